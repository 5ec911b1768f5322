"""The command `privacy.account`: its flags, and its answers as tables and JSON."""
