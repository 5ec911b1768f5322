"""Runs `paper.studies` where there is one more study: `command.py [flags]`, as `python -m`."""

import pathlib
import runpy

from paper import studies

studies.STUDIES["lengths"] = "How long did each method train?"
studies.__path__.append(str(pathlib.Path(__file__).parent))  # In place of a file in the package.

if __name__ == "__main__":
  runpy.run_module("paper.studies", run_name="__main__", alter_sys=True)
