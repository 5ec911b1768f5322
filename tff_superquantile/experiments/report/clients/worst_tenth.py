"""The worst-off tenth of the test clients over the rounds: its error, and its members.

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
Histories = Mapping[Name, Mapping[int, pd.DataFrame]]


def worst(error: np.ndarray, loss: np.ndarray) -> np.ndarray:
  """Returns whether a client is of the worst-off tenth at an evaluation, bool [evaluations, k].

  It is of ceil(k / 10) clients; the losses [evaluations, k] decide between equal errors.
  """
  ranks = np.lexsort((-loss, -error), axis=1)
  found = np.zeros(error.shape, bool)
  np.put_along_axis(found, ranks[:, : -(-error.shape[1] // 10)], True, axis=1)
  return found


def history(run: run_folder.Run, measure: str = "error") -> pd.DataFrame:
  """Measures the worst-off tenth at each evaluation of a run but that of round 0.

  By round, it has means of the measure as in the run's files: "now" of that evaluation's worst
  tenth, "first" and "last" of those who are it at the first and at the last one, "all" of all
  clients; "overlap", the share of that evaluation's worst tenth that is in the last one's; and
  "chance", what it would be on average of clients drawn at random. With fewer than two evaluations
  it is empty.
  """
  table = pd.DataFrame(run.evaluations("test"))
  if table.empty:
    return table
  table = table[table["round"] > 0]
  errors, losses = (
    table.pivot(index="round", columns="client_id", values=values) for values in (measure, "loss")
  )
  is_known = errors.notna().all()  # Clients without examples have no error.
  if len(errors) < 2 or not is_known.any():
    return pd.DataFrame()
  error, loss = (values.loc[:, is_known].to_numpy() for values in (errors, losses))
  found = worst(error, loss)
  number = found[-1].sum()
  return pd.DataFrame(
    {
      "now": (error * found).sum(axis=1) / number,
      "first": error[:, found[0]].mean(axis=1),
      "last": error[:, found[-1]].mean(axis=1),
      "all": error.mean(axis=1),
      "overlap": (found & found[-1]).sum(axis=1) / number,
      "chance": number / error.shape[1],
    },
    index=errors.index,
  )


def results(histories: Histories, measure: str) -> pd.DataFrame:
  """Collects the numbers of the first and the last evaluation, as `tables.of_values` does.

  The metrics are `test.worst_tenth.GROUP.MEASURE_first` and `MEASURE_last` for the groups "first"
  and "last", and `test.worst_tenth.overlap`, the share of the first evaluation's worst tenth in the
  last one's, beside `test.worst_tenth.chance`.
  """
  rows = []
  for method, of_seeds in histories.items():
    for seed, found in of_seeds.items():
      metrics = {
        f"test.worst_tenth.{group}.{measure}_{when}": found[group].iloc[row]
        for group in ("first", "last")
        for when, row in (("first", 0), ("last", -1))
      }
      metrics["test.worst_tenth.overlap"] = found["overlap"].iloc[0]
      metrics["test.worst_tenth.chance"] = found["chance"].iloc[0]
      rows.append((method, seed, metrics))
  return tables.of_values(rows)


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
  first = sorted({one.index[0] for _, one in found})
  chance = np.mean([one["chance"].iloc[0] for _, one in found])
  return (
    f"Mean {leading.words} in {leading.unit.name} of the test clients that are the worst-off tenth"
    f" at the first evaluation of a trained model (after round {', '.join(map(str, first))}), and"
    " of those that are it at the last one; each group at both. In both: the share of the first"
    " worst tenth that is in the last; chance alone would give"
    f" {units.PERCENT.text(chance)}. {tables.entries(len(dict(found)) == 1)}."
  )
