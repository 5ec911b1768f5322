"""Runs the study as a command."""

from paper import nonconvex
from tff_superquantile.experiments import cli

if __name__ == "__main__":
  cli.run_module(nonconvex)
