"""Builds the learning processes whose every release by the server is differentially private."""
