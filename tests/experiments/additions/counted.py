"""Runs a module where rounds may count their clients: `counted.py MODULE [flags]`."""

import runpy
import sys

import cohort_count

from privacy import parts

parts.NUMBERS["--cohort_rho_ratio"] = cohort_count.CohortCount

if __name__ == "__main__":
  module = sys.argv.pop(1)
  runpy.run_module(module, run_name="__main__", alter_sys=True)
