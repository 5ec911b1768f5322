"""What `evaluate` prints: distributions over clients, all examples together, and classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from privacy.settings import command_line
from tff_superquantile import distribution as distribution_lib
from tff_superquantile import evaluation
from tff_superquantile import measures
from tff_superquantile.experiments.evidence import paired
from tff_superquantile.experiments.pages import units
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.measures import measure

_TITLES = {
  "std": "sd",
  "superquantile_90": "worst 10 %",
  "superquantile_95": "worst 5 %",
  "best_10": "best 10 %",
}
_MOST_CLASSES = 12  # Shown, the largest.


def distribution(columns: Mapping[str, np.ndarray], kind: str = "misclassification") -> str:
  """Describes columns of `evaluate.Evaluated`: percentiles, or the worst of few clients."""
  names = [name for name in measures.NAMES if name in columns]
  of_kind = {name: units.of_measure(name, units.of_error(kind)) for name in names}
  described = {name: _describe(columns[name]) for name in names}
  rows = [["", *(f"{units.words(name)}, {of_kind[name].symbol}" for name in names)]]
  for statistic in described["error"]:
    numbers = (of_kind[name].number(described[name][statistic]) for name in names)
    rows.append([_TITLES.get(statistic, statistic), *numbers])
  return command_line.table(rows)


def _describe(values: np.ndarray) -> dict[str, float]:
  """Returns statistics of the clients that have a value, by their names."""
  finite = values[np.isfinite(values)]
  if len(values) >= paired.FEW_CLIENTS:
    return distribution_lib.describe(finite)
  best, worst = (finite.min(), finite.max()) if len(finite) else (np.nan, np.nan)
  moments = {name: distribution_lib.describe(finite)[name] for name in ("mean", "std")}
  return {**moments, "best client": float(best), "worst client": float(worst)}


def together(
  columns: Mapping[str, np.ndarray],
  predictions: measure.Predictions,
  labels: Sequence[str],
  kind: str,
) -> str:
  """Says the measures of all examples together, and the share and the recall of each class."""
  ids = columns["client_id"].tolist()
  of_clients = evaluation.ClientMetrics(
    ids, columns["num_examples"], columns["loss"], columns["error"]
  )
  pooled = evaluation.pooled(of_clients, predictions, kind)
  levels = []
  for name in (name for name in measures.NAMES if name in pooled):
    unit = units.of_measure(name, units.of_error(kind))
    levels.append(f"{units.words(name)} {unit.number(pooled[name])} {unit.symbol}")
  lines = [f"All {pooled['num_examples']} examples together: {', '.join(levels)}."]
  shares, recalls = pooled.get("share", {}), pooled.get("recall", {})
  shown = sorted(sorted(shares, key=lambda c: -shares[c])[:_MOST_CLASSES], key=int)
  if shown:
    names = [labels[int(c)] if labels else c for c in shown]
    rows = [("class", "share, %", "found (recall), %")]
    rows += [(n, f"{100 * shares[c]:.1f}", f"{100 * recalls[c]:.1f}") for n, c in zip(names, shown)]
    lines.append(command_line.table(rows))
  if len(shares) > len(shown):
    lines.append(f"  and {len(shares) - len(shown)} rarer classes")
  return "\n".join(lines)


def of_the_run(run: run_folder.Run) -> str:
  """Says how the run's own test clients fared, beside whom these clients are read; or ""."""
  columns = run.clients("test")
  measured = [name for name in measures.NAMES if name in columns]
  levels = []
  for name in measured:
    finite = columns[name][np.isfinite(columns[name])]
    if len(finite):
      unit = units.of_measure(name, units.of_error(run.error_kind))
      levels.append(f"{units.words(name)} {unit.number(finite.mean())} {unit.symbol}")
  return f"On its own test clients, mean: {', '.join(levels)}." if levels else ""


def groups(where: np.ndarray, is_private: bool) -> list[tuple[str, np.ndarray]]:
  """Returns (heading, which clients) of the distributions to show, by the clients' `places`."""
  if is_private:
    text = "A private run keeps no list of its training clients: none is assumed to be among these."
    return [(text, np.ones(len(where), bool))]
  has_trained = where == "train"
  headings = {
    "have not trained the model, by their ids": ~has_trained,
    "have trained the model, and whose errors are no forecast for others": has_trained,
  }
  return [(f"Those that {who}, {its.sum()}:", its) for who, its in headings.items() if its.any()]
