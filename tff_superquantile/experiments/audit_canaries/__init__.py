"""Attacks a private configuration by canary clients in a run of its own, by a command."""
