"""The worst-off tenth of the test clients, first and last: its error, and its members.

The worst tenth of an evaluation are the ceil(k / 10) of k test clients with the largest error, or
other leading measure, and among equal ones with the largest loss. Round 0, before training, is left
out: its errors are those of an untrained model.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from tff_superquantile.experiments.report import tables
from tff_superquantile.experiments.report import units
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.experiments.run.names import Name

# The histories of methods that have any, by seed.
Histories = Mapping[Name, Mapping[int, Mapping[str, float]]]


def worst(error: np.ndarray, loss: np.ndarray) -> np.ndarray:
  """Returns whether a client is of the worst-off tenth at an evaluation, bool [evaluations, k]."""
  ranks = np.lexsort((-loss, -error), axis=1)
  is_worst = np.zeros(error.shape, bool)
  np.put_along_axis(is_worst, ranks[:, : -(-error.shape[1] // 10)], True, axis=1)
  return is_worst


def history(run: run_folder.Run, measure: str = "error") -> dict[str, float]:
  """Measures the worst-off tenth at the first and the last evaluation of a run after round 0.

  Those of either are "first" and "last"; "overlap" is the share of the first that is in the last,
  "chance" what it would be of clients drawn at random. It is empty for fewer than two evaluations.
  """
  table = pd.DataFrame(run.evaluations("test"))
  if table.empty:
    return {}
  table = table[table["round"] > 0]
  errors, losses = (
    table.pivot(index="round", columns="client_id", values=values) for values in (measure, "loss")
  )
  is_known = errors.notna().all()  # Clients without examples have no error.
  if len(errors) < 2 or not is_known.any():
    return {}
  error, loss = (values.loc[:, is_known].to_numpy() for values in (errors, losses))
  first, *_, last = worst(error, loss)
  metrics: dict[str, float] = {}
  for group, its in (("first", first), ("last", last)):
    means = error[:, its].mean(axis=1)
    metrics |= {f"{group}.{measure}_first": means[0], f"{group}.{measure}_last": means[-1]}
  number = last.sum()
  overlap, chance = (first & last).sum() / number, number / error.shape[1]
  return {**metrics, "overlap": overlap, "chance": chance, "round": errors.index[0]}


def results(histories: Histories) -> pd.DataFrame:
  """Collects the numbers of histories as `tables.of_values` does, as `test.worst_tenth....`."""
  return tables.of_values(
    (
      method,
      seed,
      {f"test.worst_tenth.{name}": value for name, value in one.items() if name != "round"},
    )
    for method, of_seeds in histories.items()
    for seed, one in of_seeds.items()
  )


def columns(leading: units.Leading) -> list[tables.Column]:
  """Returns the columns of the table of `results`, whose measure leads at each evaluation."""
  metric, unit, name = "test.worst_tenth", leading.unit, leading.name
  return [
    unit.column(f"{metric}.first.{name}_first", "first worst tenth, then", contest=False),
    unit.column(f"{metric}.first.{name}_last", "the same clients, at last"),
    unit.column(f"{metric}.last.{name}_last", "last worst tenth, at last"),
    unit.column(f"{metric}.last.{name}_first", "the same clients, at first", contest=False),
    tables.Column(f"{metric}.overlap", "in both, %", contest=False),
  ]


def note(histories: Histories, leading: units.Leading) -> str:
  """Returns a hint on reading the table of `results`."""
  found = [(seed, one) for of_seeds in histories.values() for seed, one in of_seeds.items()]
  first = sorted({int(one["round"]) for _, one in found})
  chance = float(np.mean([one["chance"] for _, one in found]))
  return (
    f"Mean {leading.words} in {leading.unit.name} of the test clients that are the worst-off tenth"
    f" at the first evaluation of a trained model (after round {', '.join(map(str, first))}), and"
    " of those that are it at the last one; each group at both. In both: the share of the first"
    " worst tenth that is in the last; chance alone would give"
    f" {units.PERCENT.text(chance)}. {tables.entries(len(dict(found)) == 1)}."
  )
