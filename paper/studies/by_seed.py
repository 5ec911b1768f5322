"""Numbers of methods seed by seed, from results as `tables.of_values` returns them."""

from __future__ import annotations

import pandas as pd

from tff_superquantile.experiments.pages import units


def of_seed(results: pd.DataFrame, method: str, metric: str) -> pd.Series:
  """Returns a method's values of a metric, indexed by seed."""
  chosen = results[(results["method"] == method) & (results["metric"] == metric)]
  return chosen.set_index("seed")["value"]


def is_unsure(changes: pd.Series) -> bool:
  """Returns whether a mean over several seeds is no larger than its standard deviation."""
  return len(changes) > 1 and bool(abs(changes.mean()) <= changes.std())


def effect(changes: pd.Series) -> str:
  """Says what changes of an error do: "lowers it by 4.8 ± 1.1 points"."""
  if not float(units.PERCENT.number(abs(changes.mean()))):
    return "leaves it as it is"
  size = units.PERCENT.number(abs(changes.mean()))
  spread = f" ± {units.PERCENT.number(changes.std())}" if len(changes) > 1 else ""
  return f"{'lowers' if changes.mean() < 0 else 'raises'} it by {size}{spread} points"
