"""Runs a module where rounds may count their clients: `counted.py MODULE [flags]`."""

import runpy
import sys

import cohort_count
import cohort_flags

from privacy import parts
from tff_superquantile.experiments.run.parts import privacy

parts.KINDS.append(cohort_count.CohortCount)
privacy.NUMBERS["--cohort_rho_ratio"] = cohort_flags.CohortSize

if __name__ == "__main__":
  module = sys.argv.pop(1)
  runpy.run_module(module, run_name="__main__", alter_sys=True)
