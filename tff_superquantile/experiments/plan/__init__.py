"""Experiments of several runs: what they are, how they are tuned, and who carries them out."""
