"""Experiments of several runs: their presets, their tuning, and the pool that carries them out."""
