"""How sentences of a report name a metric, and what changes it."""

from __future__ import annotations

from tff_superquantile.experiments.references import evidence
from tff_superquantile.experiments.report import paired
from tff_superquantile.experiments.report import units


def name(metric: str) -> str:
  """Returns how sentences name a metric of the test clients."""
  _, column, statistic = metric.split(".")
  quantity = units.words(column)
  kinds = {
    "p90": f"the 90th percentile of the test clients’ {quantity}",
    "superquantile_90": f"the mean {quantity} of the worst tenth",
    "max": f"the {quantity} of the worst test client",
    "mean": f"the mean {quantity}",
  }
  return kinds.get(statistic, f"{statistic} of the test clients’ {quantity}")


def effect(e: evidence.Evidence, one: paired.Change, with_interval: bool = False) -> str:
  """Says what happens to a metric, with the interval and the levels."""
  _, column, statistic = one.metric.split(".")
  unit, subject = units.of_measure(column, e.groups.task_units), name(one.metric)
  said = unit.effect(one.value, subject)
  if one.has_interval and not one.is_detected and not said.startswith("leaves"):
    said = f"changes {subject} by {unit.number(one.value, sign=True)}{unit.change}"
  if not with_interval:
    return said
  notes = [f"95 % interval {one.interval(unit)}"] if one.has_interval else []
  if statistic == e.groups.first.rpartition(".")[2]:
    before, after = unit.text(one.before), unit.text(one.after)
    # Levels that read the same would belie the change.
    notes.append(f"{before} → {after}" if before != after else f"from {before}")
  return said + (f" ({'; '.join(notes)})" if notes else "")
