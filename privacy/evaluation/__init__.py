"""One private release over a population: its query, and the entries of those that were made."""
