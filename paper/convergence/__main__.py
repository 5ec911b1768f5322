"""Runs the study as a command."""

import sys

from paper import convergence
from tff_superquantile.experiments import cli

if __name__ == "__main__":
  sys.exit(cli.run(convergence))
