"""What differences over many data sets say: ranks, and their distances.

The tests over data sets are those of Demsar (2006), "Statistical Comparisons of Classifiers over
Multiple Data Sets". No TensorFlow.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import math

import numpy as np
import pandas as pd
from scipy import stats

LEVEL = 0.05


def signed_ranks(changes: Sequence[float]) -> float:
  """Returns Wilcoxon's two-sided p-value that changes over data sets are around zero.

  The changes have one unit, such as % of the first method's number. Those that are zero or NaN do
  not count; with fewer than six others the test could tell nothing, and p is NaN.
  """
  known = np.asarray(changes, float)
  known = known[np.isfinite(known) & (known != 0)]
  return float(stats.wilcoxon(known).pvalue) if len(known) >= 6 else math.nan


def critical_distance(num_methods: int, num_data_sets: int) -> float:
  """Returns Nemenyi's distance: mean ranks that differ by less cannot be told apart at 0.05.

  It is q sqrt(k (k + 1) / (6 N)), with the quantile q of the Studentised range of k methods and
  infinitely many degrees of freedom, over sqrt(2).
  """
  quantile = stats.studentized_range.ppf(1 - LEVEL, num_methods, np.inf) / math.sqrt(2)
  return float(quantile * math.sqrt(num_methods * (num_methods + 1) / (6 * num_data_sets)))


@dataclasses.dataclass(frozen=True)
class Ranks:
  """How methods rank over the data sets that have all methods.

  The means begin with the best method's; rank 1 is the lowest number's. The distance is Nemenyi's
  critical one; the p-value is that of Friedman's test that all methods are alike.
  """

  means: pd.Series
  num_data_sets: int
  distance: float
  p_value: float


def ranks(results: pd.DataFrame) -> Ranks | None:
  """Ranks methods on each data set, and averages over those that have all methods.

  The results are [data sets, methods], of which less is better; NaN where there is none. Equal
  numbers share the mean of their ranks. There are no ranks for fewer than three methods or two data
  sets, of which nothing can be tested.
  """
  whole = results.dropna()
  if whole.shape[1] < 3 or len(whole) < 2:
    return None
  of_each = whole.rank(axis=1)
  test = stats.friedmanchisquare(*(whole[name] for name in whole))
  return Ranks(
    of_each.mean().sort_values(kind="stable"),
    len(whole),
    critical_distance(whole.shape[1], len(whole)),
    float(test.pvalue),
  )
