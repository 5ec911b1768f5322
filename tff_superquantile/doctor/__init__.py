"""Checks a machine, and says how to mend its faults."""
