"""What decides between methods: their changes, the models that are not federated, their curves.

A method and a reference are compared by the means of the leading measure over test clients, paired
by client, of each client's mean over the seeds. One is *ahead* where zero is outside of the 95 %
interval, and *far* ahead where it is so by a tenth of the other's level, too. What a method changes
of its baseline counts from a fiftieth of the level on, and where most seeds or folds agree; with
one seed nobody can say. Of methods against their baseline, and of methods against the constant
answer, p-values are corrected by Holm. With fewer than six test clients nothing is tested: if all
of five change alike, that is chance once in sixteen times.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import functools
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from tff_superquantile.experiments.config import names
from tff_superquantile.experiments.config import personal as parts
from tff_superquantile.experiments.evidence import bootstrap
from tff_superquantile.experiments.evidence import grouped
from tff_superquantile.experiments.evidence import in_reports
from tff_superquantile.experiments.evidence import paired
from tff_superquantile.experiments.pages import units
from tff_superquantile.experiments.references import kept
from tff_superquantile.experiments.run import cross_validation
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.experiments.run.hooks import convergence

# Between 0.03 and 0.4 of a level, 0.25 and 0.75 of all losses, falls of 0 and 0.1, and 4 and 20
# clients, no decision of 76 tables with known truth changes (tests/helpers/true_tables.py).
_FAR = 0.1  # Of a level; a smaller lead is nothing to act on.
_FALL = 0.02  # Of the test measure, from one third of the evaluations to the next.
_HALF = 0.5  # Of all losses.
# Of a level: a smaller change of a measure is nothing to act on, however sure it is. Two trained
# models always differ by something, which is sure with enough test clients.
_LEAST = 0.02
_AGREE = 0.75  # Of seeds or folds, at least two: a change that two models alone have is chance.
# A method, a key of `kept.LABELS`, or a method and one of the `parts.PARTS` of its clients.
Model: TypeAlias = "str | tuple[names.Name, str]"
_ON_HALVES = (kept.LOCAL, kept.OWN_CONSTANT)
MEANS_OVER_ROWS = ("error", "loss", "mae")
_OF_CLASSES = ("balanced_error", "ranking_error")  # Means over the classes that rows have.


@dataclasses.dataclass(frozen=True)
class Evidence:
  """What decides between methods of one budget, each part computed once.

  Attributes:
    groups: Finished runs by method.
    references: The models that are not federated.
  """

  groups: grouped.Grouped
  references: in_reports.ReferencesBySeed

  @property
  def unit(self) -> units.Unit:
    return self.groups.leading.unit

  @functools.cached_property
  def is_private(self) -> bool:
    return any(run.config is None or run.config.is_private for run in self.groups.runs)

  @functools.cached_property
  def num_clients(self) -> int:
    """The number of different test clients; 0 where runs have no results of each client."""
    ids = [run.clients("test").get("client_id", ()) for run in self.groups.runs]
    return len({client_id for of_run in ids for client_id in of_run})

  @functools.cached_property
  def levels(self) -> dict[names.Name, float]:
    """The means of the leading measure, where they are finite, the lowest first."""
    return self.groups.lowest_means(self.groups.leading.metric("mean"))

  @property
  def best(self) -> names.Name:
    """The method with the lowest mean; only where there are `levels`, which a caller asks first."""
    return next(iter(self.levels))

  def change(
    self, before: Model, after: Model, measure: str = "", statistic: str = "mean"
  ) -> paired.Change | None:
    """Measures a change over the clients that both models have, of their means over seeds.

    Of two or three seeds the chance is that of clients. None without such clients.
    """
    measure = measure or self.groups.leading.name
    together = self.pairs(before, after, measure)
    return paired.of_pairs({0: together}, f"test.{measure}.{statistic}") if len(together) else None

  def pairs(self, before: Model, after: Model, measure: str) -> pd.DataFrame:
    """Returns the columns "before" and "after" of clients that both have, means over seeds.

    Models of clients' own are tested on half of their rows. That bears a mean over rows, and a mean
    over classes where there are two or more, the same ones in what both models are tested on.
    """
    together = self._pairs(before, after, measure)
    on_halves = [isinstance(m, tuple) or m in _ON_HALVES for m in (before, after)]
    if measure in MEANS_OVER_ROWS or not any(on_halves):
      return together
    known = self._pairs(before, after, "ranking_error").index  # Of one class there is none.
    if not all(on_halves):
      # A constant answer misses all classes but one: 1 - 1 / k of k classes, or 1 if all.
      counts = self._pairs(kept.OWN_CONSTANT, kept.CONSTANT, "balanced_error")
      same = (counts["before"] == counts["after"]) & (counts["after"] < 1)
      known = known.intersection(counts.index[same])
    return together[together.index.isin(known) & (measure in _OF_CLASSES)]

  def _pairs(self, before: Model, after: Model, measure: str) -> pd.DataFrame:
    pairs = paired.pairs(*(self._of_clients(what, measure) for what in (before, after)))
    if not pairs:
      return pd.DataFrame(columns=["before", "after"])
    return pd.concat(pairs.values()).groupby(level=0).mean()

  def of_clients(self, model: Model, column: str = "") -> pd.Series:
    """Returns a column of a model's test clients, "" for the leading measure, means over seeds."""
    of_seeds = self._of_clients(model, column or self.groups.leading.name)
    together = pd.concat([*of_seeds.values()]) if of_seeds else pd.Series(dtype=float)
    return together[np.isfinite(together)].groupby(level=0).mean()

  def _of_clients(self, what: Model, measure: str) -> dict[int, pd.Series]:
    """Returns the measure of test clients by their ids, by seed."""
    method, part = what if isinstance(what, tuple) else (what, "test")
    if isinstance(method, names.Name):
      return paired.of_clients(self.groups[method], measure, part)
    of_seeds = self.references.of_seed.items()
    models = ((seed, references.models.get(method)) for seed, references in of_seeds)
    columns = ((seed, model.clients) for seed, model in models if model is not None)
    return {s: pd.Series(its[measure], its["client_id"]) for s, its in columns if measure in its}

  @functools.cached_property
  def constant(self) -> dict[names.Name, paired.Change]:
    """From the constant answer to each method."""
    changes = {method: self.change(kept.CONSTANT, method) for method in self.levels}
    return {method: change for method, change in changes.items() if change is not None}

  @functools.cached_property
  def pooled(self) -> paired.Change | None:
    """From the pooled fit to the best method."""
    return self.change(kept.POOLED, self.best)

  @functools.cached_property
  def measure_of_rows(self) -> str:
    """The leading measure, where most clients' halves of rows bear it, or the error."""
    lead = self.groups.leading.name
    models: list[tuple[Model, Model]] = []
    for best in list(self.levels)[:1]:
      of_parts = (((best, part), (best, parts.SHARED)) for part in (parts.CHOSEN, parts.DITTO))
      models = [(kept.LOCAL, best), *of_parts]
    numbers = [(len(self.pairs(*its, lead)), len(self._pairs(*its, lead))) for its in models]
    are_most = [2 * borne > number for borne, number in numbers if number]
    return lead if lead in MEANS_OVER_ROWS or (are_most and all(are_most)) else "error"

  @property
  def halves_decide(self) -> bool:
    """Whether what is known of models of clients' own is of the measure that leads."""
    return self.measure_of_rows == self.groups.leading.name

  @functools.cached_property
  def own(self) -> dict[str, list[paired.Change]]:
    """From the own models of clients to each shared one: mean, and worst tenth."""
    rivals = (*self.levels, kept.POOLED, kept.CONSTANT)
    changes_of = {rival: self._mean_and_tail(kept.LOCAL, rival) for rival in rivals}
    return {rival: changes for rival, changes in changes_of.items() if changes}

  @functools.cached_property
  def personal(self) -> dict[names.Name, list[paired.Change]]:
    """From what clients keep of a method's model and their own to its model, as `own`.

    Both are on the examples that the clients' own are not tuned on.
    """
    changes_of = {m: self._mean_and_tail((m, parts.CHOSEN), (m, parts.SHARED)) for m in self.levels}
    return {method: changes for method, changes in changes_of.items() if changes}

  def facts(self, kind: str) -> list[Mapping[str, Any]]:
    """Returns what rows say without models, "ranks" or "gross" (`without_models`)."""
    of_seeds = (its.facts.get(kind, []) for its in self.references.of_seed.values())
    return next((its for its in of_seeds if its), [])

  def _mean_and_tail(self, before: Model, after: Model) -> list[paired.Change]:
    statistics = ("mean", "superquantile_90")
    changes = [self.change(before, after, self.measure_of_rows, name) for name in statistics]
    known = [change for change in changes if change is not None]
    return known[:1] if known and known[0].num_clients < paired.FEW_CLIENTS else known

  @functools.cached_property
  def learned(self) -> set[names.Name]:
    """The methods whose mean is below that of the constant answer, beyond chance."""
    return {m for m, p in _corrected(self.constant).items() if p and self.constant[m].value < 0}

  @functools.cached_property
  def worse_than_constant(self) -> list[names.Name]:
    """The methods whose mean is above that of the constant answer, beyond chance."""
    return [m for m, p in _corrected(self.constant).items() if p and self.constant[m].value > 0]

  @functools.cached_property
  def lower(self) -> set[tuple[names.Name, str]]:
    """Methods and metrics that are below the baseline's, beyond chance and by the least effect."""
    changes = {(m, metric): c for m, own in self.finite.items() for metric, c in own.items()}
    *tail, mean = self.groups.headings
    is_known = any(c.has_interval for (_, metric), c in changes.items() if metric in tail)
    tested = {at: c for at, c in changes.items() if at[1] in (tail if is_known else [mean])}
    return {
      at for at, is_sure in _corrected(tested).items() if is_sure and _is_much(tested[at], -1)
    }

  @functools.cached_property
  def finite(self) -> dict[names.Name, paired.Changes]:
    """The changes from and to runs that did not diverge."""
    # Of few clients the runs have no number of their worst.
    finite = self.groups.lowest_means(self.groups.leading.p90)
    return {
      method: own
      for method, (baseline, own) in self.groups.changes.items()
      if method in finite and baseline in finite and self.groups.first in own
    }

  @functools.cached_property
  def ranked(self) -> list[names.Name]:
    """The methods that share most seeds with their baselines, those that raise nothing first."""
    first, changes_of = self.groups.first, self.finite
    most = max((own[first].num_seeds for own in changes_of.values()), default=0)
    rivals = [method for method, own in changes_of.items() if own[first].num_seeds == most]
    helped = {method for method, _ in self.lower}

    def place(method: names.Name) -> tuple[bool, bool, float]:
      is_worse = any(_is_much(c) for c in changes_of[method].values())
      return method not in helped, is_worse, changes_of[method][first].value

    return sorted(rivals, key=place)

  @property
  def chosen(self) -> tuple[names.Name, names.Name, paired.Changes]:
    """The method that is compared, its baseline and its changes."""
    return self.ranked[0], *self.groups.changes[self.ranked[0]]

  @property
  def effects(self) -> dict[bool, list[str]]:
    """The metrics of `chosen` that are lower (True) and higher, by the least effect or more.

    Both are beyond chance, the first corrected. Where there are several seeds or folds, most of
    them have the sign of the first.
    """
    method, _, own = self.chosen
    lower = [metric for metric in own if (method, metric) in self.lower]
    higher = [metric for metric, change in own.items() if _is_much(change)]
    return {True: [m for m in lower if not self.is_repeated or self._agree(m)], False: higher}

  @property
  def is_repeated(self) -> bool:
    """Whether `chosen` was trained and tested more than once, on seeds or folds."""
    return len(self._parts(self.groups.first)) > 1

  def _parts(self, metric: str) -> list[float]:
    """Returns the changes of a metric by `chosen`, one for each seed or fold."""
    method, baseline, _ = self.chosen
    runs = (cross_validation.single(self.groups[name]) for name in (baseline, method))
    of_both = (paired.of_clients(its, metric.split(".")[1]) for its in runs)
    pairs = paired.pairs(*of_both).values()
    levels = [bootstrap.levels(metric.rpartition(".")[2], pair) for pair in pairs]
    return [float(after - before) for before, after in levels]

  def _agree(self, metric: str) -> bool:
    """Returns whether most seeds or folds lower a metric."""
    return bool(np.mean(np.array(self._parts(metric)) < 0) >= _AGREE)

  def effect(self, change: paired.Change, with_interval: bool = False) -> str:
    """Says what happens to a metric, with the interval and the levels."""
    _, column, statistic = change.metric.split(".")
    unit, subject = units.of_measure(column, self.groups.task_units), metric_name(change.metric)
    clause = unit.effect(change.value, subject)
    if change.has_interval and not change.is_detected and not clause.startswith("leaves"):
      clause = f"changes {subject} by {unit.number(change.value, sign=True)}{unit.change}"
    if not with_interval:
      return clause
    notes = [f"95 % interval {change.interval(unit)}"] if change.has_interval else []
    if statistic == self.groups.first.rpartition(".")[2]:
      before, after = unit.text(change.before), unit.text(change.after)
      # Levels that read the same would belie the change.
      notes.append(f"{before} → {after}" if before != after else f"from {before}")
    return clause + (f" ({'; '.join(notes)})" if notes else "")

  @functools.cached_property
  def unfinished(self) -> dict[names.Name, int]:
    """The rounds of methods that ended before they had converged."""
    last_rounds = {}
    for method, runs in () if self.is_private else self.groups.items():
      single = cross_validation.single(runs)
      rounds = [run.last_round or 0 for run in single if _is_falling(run, self.groups.leading)]
      last_rounds.update({method: max(rounds)} if rounds else {})
    return last_rounds

  @functools.cached_property
  def ended_first(self) -> list[names.Name]:
    """The methods of which a run ended at the first round at which it might."""
    return [
      method
      for method, runs in self.groups.items()
      if any(map(convergence.ended_first, cross_validation.single(runs)))
    ]

  @functools.cached_property
  def far(self) -> tuple[str, float, int] | None:
    """The client with over half of all clients' losses, its share, and the number of clients."""
    splits = ("test",) if self.is_private else ("train", "test")
    fed_avgs = (runs for method, runs in self.groups.items() if method.is_fed_avg)
    runs = next(fed_avgs, self.groups.runs)
    parts = [run.clients(split) for run in runs for split in splits]
    frames = [pd.DataFrame(part)[["client_id", "loss", "error"]] for part in parts if part]
    if not frames:
      return None
    clients = pd.concat(frames).groupby("client_id").mean()
    clients = clients[np.isfinite(clients).all(axis=1)]
    constant = self._of_clients(kept.CONSTANT, "error").values()
    usual = pd.Series(np.concatenate([[], *constant])).median()
    total = clients["loss"].sum()
    if len(clients) < bootstrap.FEWEST or not total:
      return None
    client = clients["loss"].idxmax()
    share, is_bad = clients["loss"][client] / total, not clients["error"][client] <= usual
    return (str(client), float(share), len(clients)) if share > _HALF and is_bad else None


def metric_name(metric: str) -> str:
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


def _is_much(change: paired.Change, sign: int = 1) -> bool:
  """Returns whether a change of this sign is beyond chance, and by the least effect or more."""
  return change.is_detected and sign * change.value >= max(_LEAST * change.before, np.spacing(1.0))


def short_name(metric: str) -> str:
  """Returns how the few words of an answer name a metric of the test clients."""
  kinds = {
    "p90": "p90",
    "superquantile_90": "the worst tenth",
    "max": "the worst client",
    "mean": "the mean",
  }
  return kinds[metric.rpartition(".")[2]]


def _corrected(changes: Mapping[Any, paired.Change]) -> dict[Any, bool]:
  """Returns by the changes' keys whether they differ from zero, beyond chance by Holm."""
  known = {at: change for at, change in changes.items() if change.has_interval}
  corrected = bootstrap.holm(
    [bootstrap.p_value(c.value, c.low, c.high, c.num_clients) for c in known.values()]
  )
  return {
    at: change.is_detected and p < 1 - bootstrap.LEVEL
    for (at, change), p in zip(known.items(), corrected)
  }


def _is_falling(run: run_folder.Run, leading: units.Leading) -> bool:
  """Returns whether a run has not converged, and its test measure falls, too, if it is known."""
  curve = run.rounds.get(f"test_{leading.name}_mean", np.array([]))
  curve = curve[np.isfinite(curve)]
  third = max(1, len(curve) // 3)
  before, last = curve[-2 * third : -third], curve[-third:]
  is_flat = len(before) and last.mean() > (1 - _FALL) * before.mean()
  return convergence.of_run(run) is False and not is_flat


def is_far_ahead(change: paired.Change | None) -> bool:
  """Returns whether the first of two is far ahead."""
  return change is not None and change.low > 0 and change.value >= _FAR * change.after
