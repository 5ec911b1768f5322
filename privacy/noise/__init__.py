"""Noise that clients make: their shares of it, sums and trees, and what such a sum costs."""
