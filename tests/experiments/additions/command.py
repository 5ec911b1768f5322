"""Runs a command where there is one more study: `command.py MODULE [flags]`, as `python -m`."""

import pathlib
import runpy
import sys

from tff_superquantile.experiments import studies

studies.STUDIES["lengths"] = "How long did each method train?"
studies.__path__.append(str(pathlib.Path(__file__).parent))  # In place of a file in the package.

if __name__ == "__main__":
  module = sys.argv.pop(1)
  runpy.run_module(f"tff_superquantile.experiments.{module}", run_name="__main__", alter_sys=True)
