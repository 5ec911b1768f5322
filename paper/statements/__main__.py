"""Runs the study as a command."""

from paper import statements
from tff_superquantile.experiments import study

if __name__ == "__main__":
  study.run(statements)
