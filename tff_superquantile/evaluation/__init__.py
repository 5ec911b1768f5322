"""Loss and error of every client, exactly, and how they are distributed."""

from tff_superquantile.evaluation.clients import ClientExamples
from tff_superquantile.evaluation.clients import ClientMetrics
from tff_superquantile.evaluation.clients import build_evaluator
from tff_superquantile.evaluation.clients import examples_of_datasets
from tff_superquantile.evaluation.distribution import describe

__all__ = (
  "ClientExamples",
  "ClientMetrics",
  "build_evaluator",
  "describe",
  "examples_of_datasets",
)
