"""Measures the exact loss and error of every client, and their distribution over clients."""

from tff_superquantile.distribution import UpperBand
from tff_superquantile.distribution import describe
from tff_superquantile.distribution import upper_band
from tff_superquantile.evaluation.client_split import SplitExamples
from tff_superquantile.evaluation.client_split import split_examples
from tff_superquantile.evaluation.clients import ClientMetrics
from tff_superquantile.evaluation.clients import Evaluator
from tff_superquantile.evaluation.clients import Measured
from tff_superquantile.evaluation.clients import build_evaluator
from tff_superquantile.evaluation.clients import build_evaluators
from tff_superquantile.evaluation.clients import measured
from tff_superquantile.evaluation.clients import pooled
from tff_superquantile.evaluation.ditto import DittoTrainer
from tff_superquantile.evaluation.errors import is_single_score
from tff_superquantile.evaluation.examples import ClientExamples
from tff_superquantile.evaluation.examples import examples_of_datasets
from tff_superquantile.evaluation.examples import examples_of_files
from tff_superquantile.evaluation.personalization import Personalized
from tff_superquantile.evaluation.personalization import Personalizer
from tff_superquantile.evaluation.prediction import build_predict
from tff_superquantile.evaluation.prediction import num_classes

__all__ = (
  "ClientExamples",
  "ClientMetrics",
  "DittoTrainer",
  "Evaluator",
  "Measured",
  "Personalized",
  "Personalizer",
  "SplitExamples",
  "UpperBand",
  "build_evaluator",
  "build_evaluators",
  "build_predict",
  "describe",
  "examples_of_datasets",
  "examples_of_files",
  "is_single_score",
  "measured",
  "num_classes",
  "pooled",
  "split_examples",
  "upper_band",
)
