"""Runs a command: `python -m tff_superquantile NAME`."""

import sys

from tff_superquantile import commands

if __name__ == "__main__":
  sys.exit(commands.main())
