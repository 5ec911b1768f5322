"""Runs a command where the additions are there: `command.py MODULE [flags]`, as `python -m`."""

import runpy
import sys

import rows  # noqa: F401  Before flags and configs are made of the tables.

if __name__ == "__main__":
  module = sys.argv.pop(1)
  runpy.run_module(f"tff_superquantile.experiments.{module}", run_name="__main__", alter_sys=True)
