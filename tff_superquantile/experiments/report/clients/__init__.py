"""Figures and tables of the clients: distributions, sizes, and the worst-off tenth."""
