"""Figures and tables of the clients: distributions, sizes, and resampling."""
