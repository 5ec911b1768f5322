"""Numbers of methods seed by seed, from results as `tables.of_values` returns them."""

from __future__ import annotations

import pandas as pd

from tff_superquantile.experiments.pages import units


def of_seed(results: pd.DataFrame, method: str, metric: str) -> pd.Series:
  """Returns a method's values of a metric, indexed by seed."""
  chosen = results[(results["method"] == method) & (results["metric"] == metric)]
  return chosen.set_index("seed")["value"]


def change(results: pd.DataFrame, metric: str, before: str, after: str) -> pd.Series:
  """Returns the second method's metric minus the first's, over the seeds that both have."""
  first, second = (of_seed(results, method, metric) for method in (before, after))
  shared = first.index.intersection(second.index).sort_values()
  return second[shared] - first[shared]


def is_unsure(changes: pd.Series) -> bool:
  """Returns whether a mean over several seeds is no larger than its standard deviation."""
  return len(changes) > 1 and bool(abs(changes.mean()) <= changes.std())


def points(changes: pd.Series, sign: bool = True) -> str:
  """Formats changes of an error as mean and sd over seeds, in points: "−4.8 ± 1.1"."""
  text = units.PERCENT.number(changes.mean(), sign)
  return text if len(changes) == 1 else f"{text} ± {units.PERCENT.number(changes.std())}"


def effect(changes: pd.Series) -> str:
  """Says what changes of an error do: "lowers it by 4.8 ± 1.1 points"."""
  if not float(units.PERCENT.number(abs(changes.mean()))):
    return "leaves it as it is"
  verb, sizes = ("lowers", -changes) if changes.mean() < 0 else ("raises", changes)
  return f"{verb} it by {points(sizes, sign=False)} points"
