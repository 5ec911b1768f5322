"""The boxes of a report's first screen: a few numbers of two or three models, of the same clients.

What a sentence of an answer says of a level or a change is in its box, of the same clients, rows
and seeds, so that readers find each number again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import functools

import pandas as pd

from tff_superquantile.experiments.config import names
from tff_superquantile.experiments.config import personal as parts
from tff_superquantile.experiments.evidence import bootstrap
from tff_superquantile.experiments.evidence import evidence
from tff_superquantile.experiments.evidence import paired
from tff_superquantile.experiments.pages import tables
from tff_superquantile.experiments.pages import units
from tff_superquantile.experiments.references import kept

_MOST_METHODS = 2  # Beside FedAvg.
_HEADINGS = {"mean": "mean", "p90": "p90", "superquantile_90": "worst tenth", "max": "worst client"}


def of_methods(e: evidence.Evidence, methods: Sequence[names.Name] = ()) -> tables.Table | None:
  """Lays out FedAvg and methods that are compared with it, with what changes; None without any.

  The level of FedAvg is that of the seeds and clients that it shares with the first of them.
  """
  methods = methods or sorted(e.ranked[:_MOST_METHODS], key=lambda method: method.order)
  if not methods:
    return None
  baseline, first = e.groups.changes[methods[0]]
  *tail, mean = e.groups.headings
  metrics = [metric for metric in (mean, *tail) if metric in first]
  rows = [
    tables.Row(baseline.label, [tables.Cell(e.unit.number(first[m].before)) for m in metrics])
  ]
  has_interval = False
  for method in methods:
    own, cells = e.groups.changes[method][1], []
    for metric in metrics:
      change = own[metric]
      interval = f"; {change.interval(e.unit)}" if change.has_interval else ""
      has_interval |= change.has_interval
      spread = f"({e.unit.number(change.value, sign=True)}{interval})"
      cells.append(tables.Cell(e.unit.number(change.after), spread, change.is_detected))
    # Narrow: a phone shows all columns.
    rows.append(tables.Row(method.label.removeprefix("Superquantile "), cells))
  some = first[metrics[0]]
  note = (
    f"{_of_whom(e.unit, some.num_clients, some.num_seeds)}. With each level: the change"
    f" against {names.fed_avg_phrase(baseline)}"
  )
  note += " and its 95 % interval, in the report bold if without zero." if has_interval else "."
  return tables.Table("", ["", *(_HEADINGS[m.rpartition(".")[2]] for m in metrics)], rows, note)


def of_models(
  e: evidence.Evidence,
  models: Mapping[str, evidence.Model],
  measures: Sequence[str] = (),
  what: str = "",
) -> tables.Table | None:
  """Lays out models by their labels, on clients of whom each has each measure; None without any.

  Several `measures` have their means each, a single one the mean and the tail, too. `what` says
  of which examples they are.
  """
  measures = measures or [e.groups.leading.name]
  first = next(iter(models.values()))
  pairs = {m: [e.pairs(first, model, m) for model in models.values()] for m in measures}
  of_all = [pair.index for its in pairs.values() for pair in its]
  shared = functools.reduce(pd.Index.intersection, of_all)
  if shared.empty:
    return None
  tail = ["max"] if len(shared) < paired.FEW_CLIENTS else ["p90", "superquantile_90"]
  columns: dict[str, list[str]] = {}
  for measure, its in pairs.items():
    unit = units.of_measure(measure, e.groups.task_units)
    for statistic in ["mean", *tail][: 1 if len(measures) > 1 else None]:
      levels = [bootstrap.levels(statistic, pair.loc[shared])[1] for pair in its]
      heading = _HEADINGS[statistic] if len(measures) == 1 else units.words(measure)
      columns[heading] = [unit.number(level) for level in levels]
  rows = [
    tables.Row(label, [tables.Cell(column[i]) for column in columns.values()])
    for i, label in enumerate(models)
  ]
  num_seeds = len({run.seed for run in e.groups.runs})
  first_unit = units.of_measure(measures[0], e.groups.task_units)
  quantities = [first_unit.quantity, *map(units.words, measures[1:])]
  unit = first_unit._replace(quantity=" and ".join(quantities))
  told = f" of {e.num_clients}" if len(shared) < e.num_clients else ""
  note = f"{_of_whom(unit, len(shared), num_seeds)}{told}{what}."
  return tables.Table("", ["", *columns], rows, note)


def of_constant(e: evidence.Evidence, *measures: str) -> tables.Table | None:
  """Lays out the best method beside the constant answer."""
  return of_models(e, {"constant answer": kept.CONSTANT, e.best.label: e.best}, measures)


def of_own(e: evidence.Evidence) -> tables.Table | None:
  """Lays out the best method beside models that clients have of their own; None without any."""
  if kept.LOCAL not in e.references.labels:
    return None
  labels = {
    name: label.removesuffix(" (not federated)") for name, label in e.references.labels.items()
  }
  of_clients = {label: name for name, label in labels.items() if name.startswith(kept.LOCAL)}
  pooled = {labels[kept.POOLED]: kept.POOLED} if kept.POOLED in labels else {}
  models = {**of_clients, e.best.label: e.best, **pooled}
  return of_models(e, models, [e.measure_of_rows], _of_rows(e))


def of_personal(e: evidence.Evidence, method: names.Name) -> tables.Table | None:
  """Lays out what clients keep of a method's model and their own, beside the two alone."""
  models: dict[str, evidence.Model] = {
    f"kept by each client after {method.label}": (method, parts.CHOSEN),
    f"{method.label} alone": (method, parts.SHARED),
  }
  if e.change((method, parts.CHOSEN), kept.LOCAL, e.measure_of_rows) is not None:
    models["own model alone"] = kept.LOCAL
  rows = ", on those of their examples that no model of theirs was tuned on"
  return of_models(e, models, [e.measure_of_rows], rows)


def _of_rows(e: evidence.Evidence) -> str:
  """Says of which rows own models are tested; each client's test rows are the same for all else."""
  config = e.groups.runs[0].config
  if config is not None and config.task.held_out_examples:
    return ""
  return (
    ". Models of a client’s own are fitted to one half of its examples and tested on the"
    " other half, all else is tested on both"
  )


def _of_whom(unit: units.Unit, num_clients: int, num_seeds: int) -> str:
  """Says what the numbers are, and of how many clients and seeds."""
  clients = tables.plural(num_clients, "test client") if num_clients else "test clients"
  return f"{unit.quantity} in {unit.name}, {tables.plural(num_seeds, 'seed')}, {clients}"
