"""What the rows of the bench say beyond chance."""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import pandas as pd

from benchmarks.tailbench import plan
from benchmarks.tailbench import results as results_lib
from benchmarks.tailbench import significance
from tff_superquantile.experiments.evidence import bootstrap


@dataclasses.dataclass(frozen=True)
class Judged:
  """The rows of one budget (NaN for none), and ranks of methods; None where there are too few.

  Rows have the p-values of the changes of p90, the worst tenth and the mean: "p90_alone" and,
  corrected by Holm for the rows of the method, "p90_holm", and for all rows, "p90_all".
  """

  epsilon: float
  rows: pd.DataFrame
  ranks: significance.Ranks | None

  @property
  def words(self) -> str:
    """Returns the end of a title or a sentence."""
    return "without privacy" if math.isnan(self.epsilon) else f"with ε = {self.epsilon:g}"

  def of(self, method: str) -> pd.DataFrame:
    """Returns the rows of a method, indexed by data set."""
    return self.rows[self.rows["method"] == method].set_index("data_set")

  def relative(self, column: str, method: str) -> pd.Series:
    """Returns a column of a method in % of FedAvg's number, by data set; "p90_low" for example."""
    own = self.of(method)
    base = self.of(plan.FED_AVG)[column.rpartition("_")[0]]
    return 100 * own[column] / base.reindex(own.index)

  @property
  def rivals(self) -> list[str]:
    """Returns the methods but FedAvg, in the order of the rows."""
    return [m for m in dict.fromkeys(self.rows["method"]) if m != plan.FED_AVG]

  @functools.cached_property
  def together(self) -> pd.DataFrame:
    """The sign of each rival's changes, a row each, over all data sets together.

    It is 0 where Wilcoxon's test, corrected for the number of rivals, cannot tell.
    """
    signs_of = {}
    for column in results_lib.COMPARED:
      changes = [self.relative(f"{column}_change", method) for method in self.rivals]
      p_values = bootstrap.holm([significance.signed_ranks(change) for change in changes])
      signs = [np.sign(change[change != 0].median()) for change in changes]
      signs_of[column] = np.where(p_values < significance.LEVEL, signs, 0)
    return pd.DataFrame(signs_of, index=self.rivals)


def judge(rows: pd.DataFrame, epsilon: float) -> Judged:
  """Tests the `results.of_runs` of one budget (NaN for none), each method's against FedAvg's."""
  rows = rows.copy()
  for column in results_lib.COMPARED:
    ends = [f"{column}_{end}" for end in ("change", "low", "high")]
    known = rows[[*ends, "num_test_clients"]].to_numpy()
    rows[f"{column}_alone"] = [bootstrap.p_value(c, low, high, int(n)) for c, low, high, n in known]
    alone = rows[f"{column}_alone"]
    rows[f"{column}_holm"] = alone.groupby(rows["method"]).transform(bootstrap.holm)
    rows[f"{column}_all"] = bootstrap.holm(alone)
  return Judged(
    epsilon, rows, significance.ranks(rows.pivot(index="data_set", columns="method", values="p90"))
  )


def counts(rows: pd.DataFrame, column: str = "p90_holm") -> tuple[int, int]:
  """Returns on how many data sets a number is lower and higher beyond chance, by its p-values."""
  sure = rows[rows[column] < significance.LEVEL]
  changes = sure[f"{column.rpartition('_')[0]}_change"]
  return int((changes < 0).sum()), int((changes > 0).sum())
