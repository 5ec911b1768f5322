"""Runs the bench; the package says what it does."""

from benchmarks import tailbench
from tff_superquantile.experiments import cli

if __name__ == "__main__":
  cli.run_module(tailbench)
