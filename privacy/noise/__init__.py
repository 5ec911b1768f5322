"""Noise that clients make: its shares, its sums and trees, and the cost of such a sum."""
