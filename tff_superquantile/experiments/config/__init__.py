"""A run as a value: its flags, and the parts of which it is composed."""
