"""Runs the bench; the package says what it does."""

import sys

from benchmarks import tailbench
from tff_superquantile.experiments import cli

if __name__ == "__main__":
  sys.exit(cli.run(tailbench))
