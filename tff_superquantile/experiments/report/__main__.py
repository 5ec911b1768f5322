"""Compares the finished runs of each task; `comparison` says how."""

from tff_superquantile.experiments import cli
from tff_superquantile.experiments.report import comparison

if __name__ == "__main__":
  cli.run_module(comparison)
