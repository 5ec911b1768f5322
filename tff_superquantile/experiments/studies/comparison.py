"""Compares the finished runs of each task in a page, a Markdown table and a CSV file.

    python -m tff_superquantile.experiments.report --output_dir=DIR

reads `DIR/TASK/METHOD/seed_S/` (see `run_folder`) and writes, for each task with a finished run,

    DIR/TASK/report.html   one self-contained page: summary, table, figures, how it was run
    DIR/TASK/report.md     summary and table
    DIR/TASK/report.csv    one row for each method and metric, with the columns
        task, method   folder names
        metric         `SPLIT.loss.STATISTIC` (nats), `SPLIT.error.STATISTIC` (fraction, not
                       percent), everything in the runs' metrics.json, and `seconds_per_round`
        mean, sd       over seeds; sd has the divisor n - 1 and is blank for one seed
        num_seeds      the number n of runs that have the metric

Unfinished runs are listed and otherwise left out. `--figures_dir=DIR` writes the figures as files
too. The command needs no TensorFlow.
"""

from __future__ import annotations

from collections.abc import Sequence
import math
import os
import pathlib
from typing import Any

from absl import flags
import pandas as pd

from tff_superquantile import atomic_files
from tff_superquantile.experiments.report import budgets
from tff_superquantile.experiments.report import page
from tff_superquantile.experiments.report import provenance
from tff_superquantile.experiments.report import summary
from tff_superquantile.experiments.report import tables
from tff_superquantile.experiments.run import names
from tff_superquantile.experiments.run import run_folder

_MEAN = "test.error.mean"
_TAIL = "the 90th percentile of the test clients’ error"
_COLUMNS = (
  tables.Column(_MEAN, "mean"),
  tables.Column("test.error.std", "sd"),
  tables.Column("test.error.p10", "p10"),
  tables.Column("test.error.p50", "p50"),
  tables.Column(tables.P90, "p90"),
  tables.Column("test.error.p95", "p95"),
  tables.Column("test.error.superquantile_90", "worst 10 %"),
  tables.Column("test.error.best_10", "best 10 %"),
  tables.Column("train.loss.mean", "train loss", factor=1.0, decimals=3),
  # Time depends on the machine and its other work, so no entry is marked.
  tables.Column("seconds_per_round", "s / round", factor=1.0, decimals=None, contest=False),
)
_NOTE = (
  "{error} over test clients in %, each client counted once: mean, standard deviation (sd),"
  " percentiles, mean of the worst and of the best 10 % of clients. Train loss: mean {loss}."
  " Entries are means, and ± the standard deviation, over seeds; lower is better, the lowest entry"
  " of a column is bold."
)
# The headings that a terminal shows.
BRIEF = ("seeds", "mean", "p90", "worst 10 %")
_LEAD = "Error of the test clients in %, mean ± sd over seeds:"
_STATISTICS = {
  "mean": "mean",
  **{f"p{percent}": f"p{percent}" for percent in (10, 20, 50, 60, 80, 90, 95)},
  "superquantile_90": "worst 10 %",
  "superquantile_95": "worst 5 %",
}
# The further tables: all that the paper reports of test errors and of training losses.
_FURTHER_COLUMNS = {
  "Error of the test clients in %, all percentiles": [
    tables.Column(f"test.error.{name}", title) for name, title in _STATISTICS.items()
  ],
  "Loss of the training clients in nats, weighted by examples, all percentiles": [
    tables.Column(f"train.loss.{name}", title, factor=1.0, decimals=3)
    for name, title in _STATISTICS.items()
  ],
}


def report(output_dir: str | os.PathLike, task: str) -> page.Page:
  """Compares the finished runs of a task.

  Args:
    output_dir: The directory that holds `TASK/METHOD/seed_S/` folders.
    task: Name of the task.

  Returns:
    The page.

  Raises:
    ValueError: If the task has no finished run.
  """
  runs = [run for run in run_folder.find_runs(output_dir) if run.task == task]
  finished = [run for run in runs if run.finished]
  unfinished = [run for run in runs if not run.finished]
  if not finished:
    raise ValueError(
      f"A report needs a finished run of the task. Found {len(runs)} unfinished "
      f"and no finished run of {task!r} in {os.fspath(output_dir)!r}."
    )
  groups = run_folder.group_by_method(finished)
  figures, omitted = summary.draw(groups)
  note = _NOTE.format(**provenance.units(finished[0]))
  scope = f"{tables.plural(len(groups), 'method')}, {tables.plural(len(finished), 'finished run')}"
  further = {title: table(groups, columns) for title, columns in _FURTHER_COLUMNS.items()}
  return page.Page(
    "report",
    finished[0].task_title,
    "how well are the worst-off clients served?",
    scope + (f", {len(unfinished)} unfinished" if unfinished else ""),
    summarize(groups),
    [
      table(groups, title="Results", note=note, lead=_LEAD, brief=BRIEF),
      *_changes(groups),
      *map(page.Text, provenance.notes(finished, unfinished)),
      *(page.Details(title, [one]) for title, one in further.items() if len(one.headings) > 2),
      *figures,
      *([page.Details("Figures left out", [*map(page.Text, omitted)])] if omitted else []),
      *provenance.searches(pathlib.Path(output_dir) / task),
      provenance.how_it_was_run(groups),
      *provenance.unfinished(unfinished),
    ],
    tables.to_csv(task, tables.of_groups(groups)),
  )


def _changes(groups: run_folder.Groups) -> list[tables.Table]:
  """Returns the changes of the tail at each of several budgets, if there are such runs."""
  if len({method.epsilon for method in groups} - {None}) < 2:
    return []
  found = budgets.changes_by_epsilon(groups)
  return [found] if found.rows else []


def table(
  groups: run_folder.Groups, columns: Sequence[tables.Column] = _COLUMNS, **texts: Any
) -> tables.Table:
  """Lays out a row for each method.

  Args:
    groups: Finished runs by method.
    columns: The columns; those that no method has are left out.
    **texts: As in `tables.of_seeds`.

  Returns:
    The table.
  """
  is_private = summary.at_one_epsilon(groups)[1] is not None
  coloured = None if is_private else list(summary.contenders(groups))
  return tables.of_seeds(
    tables.of_groups(groups),
    columns,
    {method: method.label for method in groups},
    coloured=coloured,
    focus=tables.P90,
    **texts,
  )


def summarize(groups: run_folder.Groups) -> str:
  """Summarizes the runs in a few sentences; of private methods, those of the middle budget.

  Of the methods whose baseline is there, FedAvg with the same options, the one with the lowest 90th
  percentile of the test error is compared with it, seed by seed over the seeds that both have.

  Args:
    groups: Finished runs by method.

  Returns:
    Plain text, errors in % and differences in percentage points.
  """
  groups, epsilon = summary.at_one_epsilon(groups)
  results = tables.of_groups(groups)
  budget = "" if epsilon is None else f"At ε = {epsilon:g}: "
  tails = tables.lowest_means(results, tables.P90, groups)
  if not tails:
    return f"{budget}No method reports {_TAIL}."
  baselines = names.baselines(tails)
  rivals = [method for method in tails if method in baselines]
  if not rivals:
    best = next((method for method in tails if not method.is_fed_avg), next(iter(tails)))
    missing = "another method" if best.is_fed_avg else names.said_of(best.fed_avg)
    return (
      f"{budget}With {best.label}, {_TAIL} is {tables.percent(tails[best])}; there is no result of"
      f" {missing} to compare with."
    )
  best = rivals[0]
  name, fed_avg = best.label, names.said_of(baselines[best])
  effect, changes = _effect(results, baselines[best], best)
  if len(rivals) == 1:
    subject = f"Against {fed_avg}, {name}"
  elif effect.startswith("lowers"):
    of_all = f"Of {len(rivals)} methods compared with {fed_avg}"
    subject = f"{of_all}, {name} does best by the worst-off clients: it"
  else:
    of_all = f"None of {len(rivals)} methods serves the worst-off clients better than {fed_avg}"
    subject = f"{of_all}; {name} comes closest: it"
  text = f"{budget}{subject} {effect}"
  if changes.empty:
    return f"{text}; the two share no seed, so part of the difference may be the seeds’."
  caution = " The change of the percentile is no larger than its standard deviation over seeds."
  return text + tables.over(len(changes), caution if tables.is_unsure(changes) else "")


def _effect(results: pd.DataFrame, fed_avg: str, method: str) -> tuple[str, pd.Series]:
  """Returns the change of FedAvg's error by a method as a clause, and its changes of the tail."""
  changes = tables.change(results, tables.P90, fed_avg, method)

  def level(name: str, metric: str) -> float:
    values = tables.of_seed(results, name, metric)
    # Methods that share no seed are compared over all of theirs.
    return values[changes.index].mean() if len(changes) else values.mean()

  before, after = (level(name, tables.P90) for name in (fed_avg, method))
  shown = pd.Series([after - before]) if changes.empty else changes
  levels = f"{tables.percent(before)} → {tables.percent(after)}"
  effect = f"{tables.effect(shown, _TAIL)} ({levels})"
  if math.isfinite(mean := level(method, _MEAN) - level(fed_avg, _MEAN)):
    effect += f" and changes the mean by {tables.number(100 * mean, sign=True)} points"
  return effect, changes


def define_flags() -> None:
  flags.DEFINE_string("output_dir", "results", "Directory with the runs, TASK/METHOD/seed_S/.")
  flags.DEFINE_string("figures_dir", "", "Directory for the figures as SVG files; empty for none.")


def main() -> None:
  output_dir, figures_dir = flags.FLAGS.output_dir, flags.FLAGS.figures_dir
  runs = run_folder.find_runs(output_dir)
  tasks = sorted({run.task for run in runs if run.finished})
  if not tasks:
    unfinished = f" but {tables.plural(len(runs), 'unfinished one')}" if runs else ""
    raise ValueError(
      f"Found no finished run in {output_dir}{unfinished}; run ./run_experiments.sh first or pass"
      " --output_dir."
    )
  if figures_dir:
    atomic_files.make_folder("figures_dir", pathlib.Path(figures_dir))
  for task in tasks:
    content = report(output_dir, task)
    print(page.publish(content, pathlib.Path(output_dir, task)))
    if figures_dir:
      paths = page.write_figures(content, pathlib.Path(figures_dir), f"{task}-")
      print("Figures:", *paths, sep="\n  ")
    print()
