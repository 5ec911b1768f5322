"""Runs the study as a command."""

from paper import nonconvex
from tff_superquantile.experiments import study

if __name__ == "__main__":
  study.run(nonconvex)
