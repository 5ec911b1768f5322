"""Runs the doctor: python -m tff_superquantile.doctor."""

import sys

from tff_superquantile.doctor import command

if __name__ == "__main__":
  sys.exit(command.main(sys.argv[1:]))
