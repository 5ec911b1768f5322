"""What a report shows of personal models: shared, personal and own ones side by side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from matplotlib import figure as mpl_figure
import pandas as pd

from tff_superquantile.experiments.references import evidence
from tff_superquantile.experiments.references import kept
from tff_superquantile.experiments.references import wording
from tff_superquantile.experiments.report import paired
from tff_superquantile.experiments.report import style
from tff_superquantile.experiments.report import tables
from tff_superquantile.experiments.report import units
from tff_superquantile.experiments.run import names
from tff_superquantile.experiments.run.parts import personal as parts

_OWN = "own"
_TITLES = {parts.SHARED: "shared", parts.PERSONAL: "personal", parts.CHOSEN: "kept", _OWN: "own"}
_NOTE = (
  "{quantity} of test clients in {unit}, on those of their examples that no model of theirs was"
  " tuned on. Shared: the method’s model. Personal: fine-tuned by each client. Kept: of both each"
  " client has the one with the lower loss, by cross-fitting on those that it tunes on alone."
  " Own: fitted by the client from nothing, for up to 100 clients with 20 examples or more."
)
_CHANGES_NOTE = (
  "Changes in {unit}, paired by client; negative is better. In brackets is the 95 % interval of the"
  " bootstrap over clients, for these trained models; a change is bold only where zero is outside."
  " The difference from what clients keep after FedAvg is what fairness adds to personalization."
)


def tables_of(e: evidence.Evidence) -> Iterator[tables.Table]:
  """Yields a table of the models side by side, and one of what changes; none without any."""
  methods = [method for method in e.groups if method in e.personal]
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
  rows = []
  for method in methods:
    kept_after = (method, parts.CHOSEN)
    baseline = names.baselines(methods).get(method)
    pairs: list[tuple[evidence.Model | None, evidence.Model]] = [
      ((method, parts.SHARED), kept_after),
      (None if baseline is None else (baseline, parts.CHOSEN), kept_after),
      (kept_after, kept.LOCAL),
    ]
    changes = [
      None if before is None else e.change(before, after, e.measure_of_rows, statistic)
      for statistic in statistics
      for before, after in pairs
    ]
    cells = [
      tables.Cell("–") if one is None else paired.cell(one, unit, one.is_detected)
      for one in changes
    ]
    rows.append(tables.Row(method.label, cells))
  headings = [
    f"{title}: {words}"
    for title in statistics.values()
    for words in ("kept − shared", "kept − FedAvg’s kept", "own − kept")
  ]
  note = _CHANGES_NOTE.format(unit=unit.of_changes)
  yield tables.Table("What personal models change", ["method", *headings], rows, note)


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
    f"{what} {wording.effect(e, one, with_interval=True)}" for what, one in changes.items() if one
  )
  against = f"; against that, {' and '.join(others)}" if others else ""
  return f"{first}{against}."


def _own(e: evidence.Evidence) -> pd.DataFrame:
  """Returns the numbers of clients' own models, which all methods share, by method."""
  return tables.of_values(
    (method, seed, {f"{_OWN}.{name.removeprefix('test.')}": n for name, n in own.numbers.items()})
    for method in e.personal
    for seed, references in e.references.of_seed.items()
    if (own := references.found.get(kept.LOCAL)) is not None
  )


def figure(e: evidence.Evidence) -> style.Figure:
  """Draws what each client keeps, and its own model, against the shared one."""
  if not e.personal:
    raise style.NothingToDraw("No figure of personal models: no run has them (--personalize).")
  method = next((method for method in e.personal if method.is_fed_avg), next(iter(e.personal)))
  unit = units.of_measure(e.measure_of_rows, e.groups.task_units)
  look, words = style.palette([method])[method], units.words(e.measure_of_rows)
  marks: dict[str, tuple[evidence.Model, dict[str, Any]]] = {
    "kept by the client": ((method, parts.CHOSEN), dict(marker="o", color=style.COLORS[0])),
    "fitted from nothing": (kept.LOCAL, dict(marker="x", color=style.COLORS[1])),
  }
  shared = unit.factor * e.of_clients((method, parts.SHARED), e.measure_of_rows)
  with style.theme():
    drawn = mpl_figure.Figure((style.WIDTH, 3.6))
    axes = drawn.add_subplot()
    shown: dict[str, dict[str, Any]] = {}
    for name, (model, mark) in marks.items():
      values = unit.factor * e.of_clients(model, e.measure_of_rows)
      values = values[values.index.isin(shared.index)]
      if len(values):
        axes.scatter(shared[values.index], values, s=22, linewidths=1.2, alpha=0.7, **mark)
        shown[name] = dict(mark, linestyle="")
    axes.axline((float(shared.mean()),) * 2, slope=1, color=look.color, linestyle=(0, (1, 2)))
    axes.set_xlabel(unit.axis(f"{words.capitalize()} with the shared model"))
    axes.set_ylabel(unit.axis("with the client’s"))
    style.add_line_legend(drawn, shown)
    svg = style.to_svg(drawn)
  return style.Figure(
    "personal-models",
    f"Each client’s own model against the shared one of {method.label}",
    "A point is a test client, mean over the seeds in which it is one; below the dotted line its"
    " own model serves it better. Points on the line keep the shared one.",
    svg,
  )
