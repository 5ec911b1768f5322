"""Checks a machine, and says what to do about what is wrong with it."""
