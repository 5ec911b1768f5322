"""Runs the study `comparison` as a command of its own."""

from tff_superquantile.experiments import studies
from tff_superquantile.experiments import study

if __name__ == "__main__":
  study.run(studies.load("comparison"))
