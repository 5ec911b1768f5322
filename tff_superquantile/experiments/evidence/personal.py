"""What a report shows of personal models: shared, personal and own ones side by side."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from tff_superquantile.experiments.config import names
from tff_superquantile.experiments.config import personal as parts
from tff_superquantile.experiments.evidence import evidence
from tff_superquantile.experiments.evidence import paired
from tff_superquantile.experiments.pages import tables
from tff_superquantile.experiments.pages import units
from tff_superquantile.experiments.references import kept

_OWN = "own"
_TITLES = {
  parts.SHARED: "shared",
  parts.PERSONAL: "personal",
  parts.CHOSEN: "kept",
  parts.DITTO: "Ditto",
  _OWN: "own",
}
_NOTE = (
  "{quantity} of test clients in {unit}, on those of their examples that no model of theirs was"
  " tuned on. Shared: the method’s model. Personal: fine-tuned by each client. Kept: of both each"
  " client has the one with the lower loss, by cross-fitting on those that it tunes on alone."
  " Ditto: the client’s own model, trained beside the shared one and pulled to it. Own: fitted by"
  " the client from nothing, for up to 100 clients with 10 examples or more."
)
_CHANGES_NOTE = (
  "Changes in {unit}, paired by client; negative is better. In brackets is the 95 % interval of the"
  " bootstrap over clients, for these trained models; a change is bold only where zero is outside."
  " The difference from what clients keep after FedAvg is what fairness adds to personalization."
  "{of_whom}"
)


def tables_of(e: evidence.Evidence) -> Iterator[tables.Table]:
  """Yields a table of the models side by side, and one of what changes; none without any."""
  of_ditto = {
    method: change
    for method in e.levels
    if (change := e.change((method, parts.SHARED), (method, parts.DITTO), e.measure_of_rows))
  }
  methods = [method for method in e.groups if method in e.personal or method in of_ditto]
  if not methods:
    return
  unit = units.of_measure(e.measure_of_rows, e.groups.task_units)
  is_few = e.groups.are_few()
  statistics = {"mean": "mean"} if is_few else {"mean": "mean", "p90": "p90"}
  columns = [
    unit.column(f"{part}.{e.measure_of_rows}.{statistic}", f"{title}, {heading}")
    for statistic, title in statistics.items()
    for part, heading in _TITLES.items()
  ]
  columns.append(units.PERCENT.column(f"{parts.PERSONAL}.share_kept", "keep theirs, %"))
  yield tables.of_seeds(
    pd.concat([e.groups.results, _own(e)]),
    [column._replace(contest=False) for column in columns],
    {method: method.label for method in methods},
    title="Personal models",
    note=_NOTE.format(quantity=unit.quantity, unit=unit.name),
    focus=columns[2].metric,
    lead="Shared and personal models of the test clients:",
  )
  rows, headings = [], ["method"]
  for method in methods:
    pairs = _pairs(method, names.baselines(methods).get(method), bool(e.personal), bool(of_ditto))
    headings[1:] = [f"{title}: {words}" for title in statistics.values() for words in pairs]
    changes = [
      None if before is None else e.change(before, after, e.measure_of_rows, statistic)
      for statistic in statistics
      for before, after in pairs.values()
    ]
    cells = [
      tables.Cell("–") if change is None else paired.cell(change, unit) for change in changes
    ]
    rows.append(tables.Row(method.label, cells))
  is_of_rows = e.measure_of_rows in evidence.MEANS_OVER_ROWS
  of_whom = "" if is_of_rows else " It is of the clients that have several classes there."
  note = _CHANGES_NOTE.format(unit=unit.of_changes, of_whom=of_whom)
  yield tables.Table("What personal models change", headings, rows, note)


def _pairs(
  method: names.Name, baseline: names.Name | None, has_kept: bool, has_ditto: bool
) -> dict[str, tuple[evidence.Model | None, evidence.Model]]:
  """Returns by headings what is compared after a method: before (None: nothing), and after."""
  shared, kept_after, ditto = ((method, p) for p in (parts.SHARED, parts.CHOSEN, parts.DITTO))
  of_kept: dict[str, tuple[evidence.Model | None, evidence.Model]] = {
    "kept − shared": (shared, kept_after),
    "kept − FedAvg’s kept": (baseline and (baseline, parts.CHOSEN), kept_after),
    "own − kept": (kept_after, kept.LOCAL),
  }
  of_ditto = {"Ditto − shared": (shared, ditto)}
  if has_kept:
    of_ditto["Ditto − kept"] = (kept_after, ditto)
  return {**(of_kept if has_kept else {}), **(of_ditto if has_ditto else {})}


def sentence(e: evidence.Evidence) -> str:
  """Says what personal models change after FedAvg, and what a method before them or none would."""
  statistic = e.groups.first.rpartition(".")[2].replace("max", "mean")
  method = e.chosen[1] if e.ranked else e.best
  kept_after = (method, parts.CHOSEN)
  rivals: dict[str, evidence.Model] = {"a client’s own model alone": kept.LOCAL}
  if e.ranked:
    rivals = {f"{e.chosen[0].label} before it": (e.chosen[0], parts.CHOSEN), **rivals}
  changes = {
    f"after {method.label}, a model of its own for each client that it helps by its own examples": (
      e.change((method, parts.SHARED), kept_after, e.measure_of_rows, statistic)
    ),
    **{what: e.change(kept_after, of, e.measure_of_rows, statistic) for what, of in rivals.items()},
  }
  first, *others = (
    f"{what} {e.effect(change, with_interval=True)}" for what, change in changes.items() if change
  )
  against = f"; against that, {' and '.join(others)}" if others else ""
  return f"{first}{against}."


def _own(e: evidence.Evidence) -> pd.DataFrame:
  """Returns the numbers of clients' own models, which all methods share, by method."""
  return tables.of_values(
    (method, seed, {f"{_OWN}.{name.removeprefix('test.')}": n for name, n in own.numbers.items()})
    for method in e.personal
    for seed, references in e.references.of_seed.items()
    if (own := references.models.get(kept.LOCAL)) is not None
  )
