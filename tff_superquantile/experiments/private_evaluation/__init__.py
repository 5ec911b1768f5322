"""Releases numbers of a finished run's clients with differential privacy, by a command."""
