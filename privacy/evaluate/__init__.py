"""One private release over a population: its query, its ledger, and the command that makes it."""
