"""Compares the finished runs of a task in a page, a Markdown table and a CSV file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import contextlib
import dataclasses
import functools
import os
import pathlib
from typing import Any

import pandas as pd

from tff_superquantile import measures
from tff_superquantile.experiments.config import names
from tff_superquantile.experiments.evidence import decision
from tff_superquantile.experiments.evidence import evidence
from tff_superquantile.experiments.evidence import grouped
from tff_superquantile.experiments.evidence import in_reports
from tff_superquantile.experiments.evidence import of_the_paper
from tff_superquantile.experiments.evidence import paired
from tff_superquantile.experiments.evidence import personal
from tff_superquantile.experiments.evidence import who_loses
from tff_superquantile.experiments.pages import page
from tff_superquantile.experiments.pages import style
from tff_superquantile.experiments.pages import tables
from tff_superquantile.experiments.pages import units
from tff_superquantile.experiments.report import budgets
from tff_superquantile.experiments.report import distributions
from tff_superquantile.experiments.report import new_clients
from tff_superquantile.experiments.report import provenance
from tff_superquantile.experiments.report import rounds
from tff_superquantile.experiments.report import sizes
from tff_superquantile.experiments.run import cross_validation
from tff_superquantile.experiments.run import run_folder

_QUESTION = "how well are the worst-off clients served?"
_STATISTICS = {
  "mean": "mean",  # Narrow screens show the first columns.
  "p90": "p90",
  "superquantile_90": "worst 10 %",
  "std": "sd",
  "p10": "p10",
  "p50": "p50",
  "p95": "p95",
  "best_10": "best 10 %",
}
# Time depends on the machine and its other work, so no entry is marked.
_TIME = tables.Column("seconds_per_round", "s / round", factor=1.0, decimals=3, contest=False)
_NOTE = (
  "{measure.quantity} of test clients in {measure.name}, each client counted once: mean, standard"
  " deviation (sd), percentiles, mean of the worst and of the best 10 % of clients. Loss: mean, in"
  " {loss.name}, of the test and of the training clients. {entries}; lower is better. Of the mean,"
  " p90 and the worst 10 % the lowest entry is bold if it is below FedAvg’s, or FedAvg’s below all"
  " others, beyond chance (see the change against FedAvg)."
)
_NOTE_OF_FEW = (
  "{measure.quantity} of test clients in {measure.name}, each client counted once: mean, and the"
  " worst client. Loss: mean, in {loss.name}, of the test and of the training clients. {entries};"
  " lower is better."
)
_FEW = (
  "Found {}: fewer than {} have no percentiles that say more than the clients"
  " themselves, so the tables show the worst client and each client in their place{}."
)

_POOLED = "test.pooled."
_MOST_RECALLS = 5  # Classes whose recalls have a column each.
_POOLED_NOTE = (
  "The examples of all test clients as if they were one client’s, so that a class of which each"
  " client has few examples is measured, too. Balanced error: the mean over classes of the share of"
  " a class’s examples that are missed; always answering with the largest of k classes has 1 − 1/k."
  " Ranking error: 1 − AUC, of more than two classes the mean of one against the rest; chance has"
  " 0.5. Calibration error: of the probability of the predicted class, in 15 bins of equal width."
  " Recall: the share of a class’s examples that are found; in brackets, how many of all examples"
  " are of the class."
)
# The headings that a terminal shows.
BRIEF = ("seeds", "mean", "p90", "worst 10 %", "worst client")
_LEAD = "{measure.quantity} of the test clients in {measure.name}, {of_seeds}:"
# Figures that have no room for any number of methods.
_FIGURES = (
  distributions.error_histogram,
  new_clients.upper_bands,
  sizes.error_against_size,
  rounds.error_by_round,
  rounds.selection_by_round,
  rounds.loss_by_round,
)
_CONTENDERS_NOTE = (
  " Of many methods, FedAvg, two baselines and the superquantile methods with the lowest 90th"
  " percentiles are drawn."
)
_ONE_SEED_NOTE = (
  " This and all other figures are of one seed: a mean over seeds is its number, and bands or bars"
  " are missing."
)


def report(output_dir: str | os.PathLike, task: str) -> page.Page:
  """Returns a page that compares the finished runs of a task, `OUTPUT_DIR/TASK/METHOD/seed_S/`.

  Args:
    output_dir: The folder of all results.
    task: The name of a task's folder there.

  Returns:
    The page.

  Raises:
    ValueError: If the task has no finished run and no diverged one.
  """
  runs = [run for run in run_folder.find_runs(output_dir) if run.task == task]
  finished = [run for run in runs if run.finished]
  unfinished = [run for run in runs if not run.finished]
  if not finished and any(run.diverged for run in unfinished):
    return provenance.without_models(unfinished, _QUESTION)
  if not finished:
    raise ValueError(
      f"A report needs a finished run of the task. Found {len(runs)} unfinished "
      f"and no finished run of {task!r} in {os.fspath(output_dir)!r}."
    )
  pooled = cross_validation.pool(finished)
  groups = grouped.by_method(pooled)
  scope = f"{tables.plural(len(groups), 'method')}, {tables.plural(len(finished), 'finished run')}"
  of_clients, numbers = _of_clients(groups)
  decided = decision.decide(groups)
  its, references = decided.evidence, decided.evidence.references
  of_all = evidence.Evidence(groups, references)
  results = [groups.results, references.results(), numbers]
  return page.Page(
    "report",
    finished[0].task_title,
    _QUESTION,
    scope + (f", {len(unfinished)} unfinished" if unfinished else ""),
    provenance.of_private_runs(groups, output_dir, task).strip(),
    [
      *map(page.Text, filter(None, [finished[0].about])),
      table(groups, references=references, title="Results", brief=BRIEF, **_notes(groups)),
      *of_the_paper.blocks(its),
      *(changes for changes in [budgets.changes(groups)] if changes.rows),
      *personal.tables_of(of_all),
      *who_loses.named(its),
      *_pooled(groups, references),
      *map(page.Text, references.notes()),
      *filter(None, [who_loses.table(its)]),
      *map(page.Text, provenance.notes(groups, unfinished)),
      *map(page.Text, cross_validation.gaps(pooled)),
      *map(page.Text, new_clients.sentences(groups)),
      *of_clients,
      *draw(groups, functools.partial(who_loses.figure, its)),
      *provenance.searches(pathlib.Path(output_dir) / task, groups.task_units),
      provenance.how_it_was_run(groups),
      *provenance.unfinished(unfinished),
    ],
    tables.to_csv(task, pd.concat(results), decision=decided.text.replace("\n", " ")),
    decided.answers,
    _picture(its),
  )


def _picture(e: evidence.Evidence) -> style.Figure | None:
  """Draws how the clients' errors are distributed with the methods that an answer compares."""
  methods = [e.chosen[1], *e.ranked[:2]] if e.ranked else list(e.levels)[:3]
  compared = grouped.Grouped({method: e.groups[method] for method in methods}, e.groups.whole)
  coloured = e.groups.contenders if set(methods) <= set(e.groups.contenders) else methods
  with contextlib.suppress(style.NothingToDraw):
    return distributions.picture(compared, style.palette(list(coloured)))
  return None


def _notes(groups: grouped.Grouped) -> dict[str, Any]:
  """Returns the note and the lead of the table of results."""
  is_one, words = groups.has_one_seed, groups.task_units._asdict()
  words.update(measure=groups.leading.unit, entries=tables.entries(is_one))
  words["of_seeds"] = "one seed" if is_one else "mean ± sd over seeds"
  note = _NOTE_OF_FEW if groups.are_few() else _NOTE
  return {"note": note.format(**words), "lead": _LEAD.format(**words)}


def _of_clients(groups: grouped.Grouped) -> tuple[list[page.Block], pd.DataFrame]:
  """Returns the table of small and large clients, or the worst of few, and its numbers."""
  if groups.are_few():
    offer = cross_validation.offer(groups.runs[0])
    number = tables.plural(groups.num_clients, "test client")
    text = _FEW.format(number, paired.FEW_CLIENTS, f"; {offer}" if offer else "")
    return [page.Text(text)], groups.worst_clients
  results, leading = sizes.error_by_size(groups), groups.leading
  columns = list(sizes.columns(results, leading))
  note = sizes.NOTE.format(
    measure=leading.words,
    unit=leading.unit.name,
    entries=tables.entries(groups.has_one_seed),
  )
  if not columns:
    return [], results
  return [table(groups, columns, results, title=sizes.TITLE, note=note)], results


def draw(groups: grouped.Grouped, *further: Callable[[], style.Figure]) -> Iterator[style.Figure]:
  """Yields all figures that runs have data for, and further ones."""
  at_one_budget, epsilon = groups.at_one_budget
  shown = at_one_budget.contenders
  if len(groups.epsilons) > 1:
    yield budgets.error_by_epsilon(groups)
  note = _CONTENDERS_NOTE if len(shown) < len(at_one_budget) else ""
  parts: list[tuple[Callable[[], style.Figure], str]] = [
    *((functools.partial(figure, shown), note) for figure in _FIGURES),
    *((figure, "") for figure in further),
  ]
  at = "" if epsilon is None else f", ε = {epsilon:g}"
  once = _ONE_SEED_NOTE if groups.has_one_seed else ""
  for part, remarks in parts:
    with contextlib.suppress(style.NothingToDraw):
      drawn = part()
      caption = drawn.caption + remarks + once
      once = ""
      yield dataclasses.replace(drawn, title=drawn.title + at, caption=caption)


def _columns(groups: grouped.Grouped) -> list[tables.Column]:
  unit, leading = groups.task_units, groups.leading
  few = {"mean": "mean", "max": "worst client"}
  statistics = few if groups.are_few() else _STATISTICS
  is_error = leading.name == "error"
  return [
    *(leading.unit.column(leading.metric(name), title) for name, title in statistics.items()),
    *([] if is_error else [unit.error.column("test.error.mean", "error")]),
    unit.loss.column("test.loss.mean", "loss"),
    unit.loss.column("train.loss.mean", "train loss"),
    _TIME,
  ]


def _pooled(groups: grouped.Grouped, references: in_reports.ReferencesBySeed) -> list[tables.Table]:
  """Returns the table of measures of all test examples together, where there are any."""
  names = [name.removeprefix(_POOLED) for name in groups.results["metric"].unique()]
  columns = [
    units.of_measure(name, groups.task_units).column(f"{_POOLED}{name}", name.replace("_", " "))
    for name in measures.NAMES
    if f"{_POOLED}{name}" in set(groups.results["metric"])
  ]
  classes = [name.partition(".")[2] for name in names if name.startswith("recall.")]
  columns += [
    units.PERCENT.column(f"{_POOLED}recall.{number}", f"recall of {name}", contest=False)
    for number, name in _named(groups, classes).items()
    if len(classes) <= _MOST_RECALLS
  ]
  if not columns:
    return []
  note = _POOLED_NOTE
  if any(map(cross_validation.num_folds, groups.runs)):
    note += " Of a cross-validation these are means over the folds."
  title, focus = "All test examples together", f"{_POOLED}{groups.leading.name}"
  return [table(groups, columns, None, references, focus, title=title, note=note)]


def _named(groups: grouped.Grouped, classes: Sequence[str]) -> dict[str, str]:
  """Returns the names of classes by their numbers, with their shares where these are known."""
  run, named = groups.runs[0], {}
  for number in classes:
    is_named = number.isdecimal() and int(number) < len(run.classes)
    name = names.printable(run.classes[int(number)]) if is_named else number
    share = run.numbers.get(f"{_POOLED}share.{number}")
    named[number] = name if share is None else f"{name} ({units.PERCENT.text(share)})"
  return named


def table(
  groups: grouped.Grouped,
  columns: Sequence[tables.Column] = (),
  results: pd.DataFrame | None = None,
  references: in_reports.ReferencesBySeed | None = None,
  focus: str = "",
  **texts: Any,
) -> tables.Table:
  """Returns a table with a row for each method, and below them out of the contest references.

  Args:
    groups: The runs, by method.
    columns: The columns, None or empty for those of the report.
    results: Numbers by method, as of `tables.of_values`; None for those of `groups`.
    references: The reference models, rows below the methods; None for none.
    focus: The metric whose column matters most; "" for the first of `groups`.
    **texts: Further texts of the table, such as `title` and `brief`.

  Returns:
    The table.
  """
  is_private = groups.at_one_budget[1] is not None
  references = references or in_reports.ReferencesBySeed({})
  labels = references.labels
  few = [groups.worst_clients] if results is None and groups.are_few() else []
  results = groups.results if results is None else results
  return tables.of_seeds(
    pd.concat([results, *few, references.results()]),
    columns or _columns(groups),
    {**{method: method.label for method in groups}, **labels},
    coloured=None if is_private else list(groups.contenders),
    not_in_contest=labels,
    marked=groups.lowest,
    focus=focus or groups.first,
    **texts,
  )
