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
too. Needs no TensorFlow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
import csv
import dataclasses
import datetime
import io
import math
import os
import pathlib
from typing import Any

from absl import flags
import markupsafe

from tff_superquantile import atomic_files
from tff_superquantile.experiments import cli
from tff_superquantile.experiments import comparison
from tff_superquantile.experiments import method_names
from tff_superquantile.experiments import pages
from tff_superquantile.experiments import plot_style
from tff_superquantile.experiments import plots
from tff_superquantile.experiments import presets
from tff_superquantile.experiments import run_folder
from tff_superquantile.experiments import tuning

# Flags that say where and for which seed, not how: they differ without a difference.
_BOOKKEEPING_FLAGS = frozenset({"seed", "seeds", "output_dir"})


@dataclasses.dataclass(frozen=True)
class _TaskRuns:
  """The runs of a task: finished ones by method, and the rest."""

  groups: dict[str, list[run_folder.Run]]
  unfinished: list[run_folder.Run]


def write_report(output_dir: str | os.PathLike, task: str) -> dict[str, pathlib.Path]:
  """Writes the report of a task next to its runs, replacing an earlier one.

  Args:
    output_dir: The directory that holds `TASK/METHOD/seed_S/` folders.
    task: Name of the task.

  Returns:
    The files written: "html", "markdown" and "csv".

  Raises:
    ValueError: If the task has no finished run.
  """
  runs = _runs_of_task(output_dir, task)
  columns, rows = comparison.table(runs.groups)
  private = run_folder.at_one_epsilon(runs.groups)[1] is not None
  figures, omitted = plots.draw_all(runs.groups)
  content = dict(
    task=method_names.task_title(task),
    summary=comparison.summary(runs.groups),
    columns=columns,
    rows=rows,
    focus=comparison.P90,
    notes=_notes(runs.groups),
    unfinished=[_describe_unfinished(run) for run in runs.unfinished],
    searches=_searches(pathlib.Path(output_dir) / task),
  )
  page = pages.render(
    "report.html.j2",
    **content,
    figures=figures,
    omitted=omitted,
    looks=plot_style.palette(
      list(runs.groups), None if private else list(comparison.contenders(runs.groups))
    ),
    further_tables=_further_tables(runs.groups),
    how=_how_it_was_run(runs.groups),
    today=datetime.date.today().isoformat(),
  )
  markdown = pages.render(
    "report.md.j2", **content, table=markupsafe.Markup(comparison.markdown_table(columns, rows))
  )

  folder = pathlib.Path(output_dir) / task
  paths = {
    "html": folder / "report.html",
    "markdown": folder / "report.md",
    "csv": folder / "report.csv",
  }
  atomic_files.write(paths["html"], page)
  atomic_files.write(paths["markdown"], markdown)
  atomic_files.write(paths["csv"], _csv(task, runs.groups))
  return paths


def write_figures(
  output_dir: str | os.PathLike, task: str, figures_dir: str | os.PathLike
) -> list[pathlib.Path]:
  """Writes the figures of a task as SVG files, each for a light and for a dark background.

  Args:
    output_dir: As given to `write_report`.
    task: As given to `write_report`.
    figures_dir: Where to write TASK-FIGURE-light.svg and TASK-FIGURE-dark.svg; made if missing.

  Returns:
    The files written.

  Raises:
    ValueError: If the task has no finished run.
  """
  folder = pathlib.Path(figures_dir)
  folder.mkdir(parents=True, exist_ok=True)
  paths = []
  for figure in plots.draw_all(_runs_of_task(output_dir, task).groups)[0]:
    for theme, svg in (("light", figure.light), ("dark", figure.dark)):
      paths.append(folder / f"{task}-{figure.name}-{theme}.svg")
      atomic_files.write(paths[-1], svg.decode("utf-8"))
  return paths


def terminal_text(
  output_dir: str | os.PathLike, task: str, paths: Mapping[str, pathlib.Path]
) -> str:
  """Describes a report for a terminal: the summary, the main columns aligned, where it is.

  Args:
    output_dir: As given to `write_report`.
    task: As given to `write_report`.
    paths: What `write_report` returned.

  Returns:
    Lines of text; the table is Markdown, below 80 letters wide for the usual names.

  Raises:
    ValueError: If the task has no finished run.
  """
  runs = _runs_of_task(output_dir, task)
  columns, rows = comparison.table(runs.groups, brief=True)
  lines = [
    f"{method_names.task_title(task)}: {comparison.summary(runs.groups)}",
    "",
    "Error of the test clients in %, mean ± sd over seeds:",
    "",
    comparison.markdown_table(columns, rows, mark=False),
    "",
    *_notes(runs.groups),
  ]
  if runs.unfinished:
    lines.append(f"Not counted: {_count(len(runs.unfinished), 'unfinished run')}.")
  return "\n".join([*lines, "Report:", *[f"  {path}" for path in paths.values()]])


def _count(number: int, noun: str) -> str:
  return f"{number} {noun}{'' if number == 1 else 's'}"


def _csv(task: str, groups: run_folder.Groups) -> str:
  """The content of report.csv, as the module's docstring describes it."""
  buffer = io.StringIO()
  writer = csv.writer(buffer, lineterminator="\n")
  writer.writerow(["task", "method", "metric", "mean", "sd", "num_seeds"])
  for method, runs in groups.items():
    for metric, entry in run_folder.aggregate(runs).items():
      sd = "" if entry.num_seeds == 1 else repr(entry.sd)
      writer.writerow([task, method, metric, repr(entry.mean), sd, entry.num_seeds])
  return buffer.getvalue()


def _further_tables(
  groups: run_folder.Groups,
) -> list[tuple[str, list[comparison.Column], list[comparison.Row]]]:
  """Titles and tables of all percentiles, for whoever wants to see more than the main table."""
  tables = (
    ("Error of the test clients in %", comparison.ERROR_COLUMNS),
    ("Loss of the training clients in nats, weighted by examples", comparison.LOSS_COLUMNS),
  )
  filled = [(title, comparison.table(groups, columns)) for title, columns in tables]
  return [(title, columns, rows) for title, (columns, rows) in filled if columns]


def _searches(folder: pathlib.Path) -> list[dict[str, Any]]:
  """What the grid searches tried and chose, as text; empty where nothing was tuned."""
  found = run_folder.read_json(folder / tuning.FILE_NAME, list)
  searches = []
  for search in found:
    percent = 100 if ".error." in search["criterion"] else 1
    tried = []
    for candidate in search["tried"]:
      result = candidate["result"]
      values = {name: value for name, value in candidate.items() if name != "result"}
      tried.append(
        dict(
          label=", ".join(f"{value:g}" for value in values.values()),
          result="failed" if result is None else f"{percent * result:.3g}",
          chosen=values == search["chosen"],
        )
      )
    searches.append(
      dict(
        method=method_names.display_name(search["method"]),
        flags=", ".join(f"--{name}" for name in search["chosen"]),
        criterion=_CRITERIA.get(search["criterion"], search["criterion"]),
        tried=tried,
      )
    )
  return searches


_CRITERIA = {
  presets.VALIDATION_P90: "90th percentile of the validation clients’ error, %",
  presets.TRAIN_LOSS: "mean loss of the training clients, nats",
}


def _notes(groups: run_folder.Groups) -> list[str]:
  """What a reader of the table must know about these runs."""
  notes = []
  seeds = {method: {run.seed for run in runs} for method, runs in groups.items()}
  if len({frozenset(numbers) for numbers in seeds.values()}) > 1:
    listing = "; ".join(
      f"{method_names.display_name(method)}: {_ranges(numbers)}"
      for method, numbers in seeds.items()
    )
    notes.append(f"The methods ran with different seeds ({listing}), so compare rows with care.")
  diverged = [
    method_names.display_name(method)
    for method, runs in groups.items()
    if not all(math.isfinite(run.numbers.get("train.loss.mean", 0)) for run in runs)
  ]
  if diverged:
    notes.append(f"A run diverged (its training loss is not a number): {', '.join(diverged)}.")
  return notes


def _how_it_was_run(groups: run_folder.Groups) -> dict[str, Any]:
  """Collects what the runs share and what they don't from their flags and manifests.

  Args:
    groups: Finished runs by method.

  Returns:
    "shared": flag values that all runs share, by name; "differing": values by flag and method;
    "seeds": seeds as text by method name; "about": entries of the manifests as text by name.
  """
  runs = [run for members in groups.values() for run in members]
  names = sorted({name for run in runs for name in run.flags} - _BOOKKEEPING_FLAGS)
  shared, differing = {}, {}
  for name in names:
    values = {
      method: _join_distinct(run.flags.get(name, "(not set)") for run in members)
      for method, members in groups.items()
    }
    if len(set(values.values())) == 1:
      shared[name] = next(iter(values.values()))
    else:
      differing[name] = list(values.values())
  about = {}
  manifests = [run_folder.flatten(run.manifest) for run in runs]
  for name in dict.fromkeys(name for manifest in manifests for name in manifest):
    found = [manifest[name] for manifest in manifests if name in manifest]
    if name not in ("seed", "seconds_per_round", "task", "method"):
      spans = name.startswith(("start", "finish")) and len(set(map(type, found))) == 1
      about[name.replace("_", " ").replace("versions.", "")] = (
        f"{min(found)} to {max(found)}"
        if spans and min(found) != max(found)
        else _join_distinct(map(str, found))
      )
  return {
    "shared": shared,
    "differing": differing,
    "about": about,
    "seeds": {
      method_names.display_name(method): _ranges({run.seed for run in members})
      for method, members in groups.items()
    },
  }


def _ranges(numbers: Iterable[int]) -> str:
  """Writes integers with runs of three or more as ranges: "0–4, 7"."""
  spans: list[list[int]] = []
  for number in sorted(numbers):
    if spans and number == spans[-1][-1] + 1:
      spans[-1].append(number)
    else:
      spans.append([number])
  return ", ".join(
    f"{span[0]}–{span[-1]}" if len(span) > 2 else ", ".join(map(str, span)) for span in spans
  )


def _join_distinct(values: Iterable[str]) -> str:
  """Lists the different values in the order of their first use, at most five."""
  distinct = list(dict.fromkeys(values))
  return ", ".join(distinct[:5]) + (", …" if len(distinct) > 5 else "")


def _describe_unfinished(run: run_folder.Run) -> str:
  reached = "before its first round" if run.last_round is None else f"after round {run.last_round}"
  return (
    f"{method_names.display_name(run.method)}, seed {run.seed}: stopped or still running {reached}"
  )


def _runs_of_task(output_dir: str | os.PathLike, task: str) -> _TaskRuns:
  runs = [run for run in run_folder.find_runs(output_dir) if run.task == task]
  finished = [run for run in runs if run.finished]
  if not finished:
    raise ValueError(
      f"A report needs a finished run of the task. Found {len(runs)} unfinished "
      f"and no finished run of {task!r} in {os.fspath(output_dir)!r}."
    )
  return _TaskRuns(run_folder.group_by_method(finished), [run for run in runs if not run.finished])


def main() -> None:
  output_dir = flags.FLAGS.output_dir
  runs = run_folder.find_runs(output_dir)
  tasks = sorted({run.task for run in runs if run.finished})
  if not tasks:
    unfinished = f" but {_count(len(runs), 'unfinished one')}" if runs else ""
    raise ValueError(
      f"Found no finished run in {output_dir}{unfinished}; run ./run_experiments.sh first or pass"
      " --output_dir."
    )
  if flags.FLAGS.figures_dir:
    cli.make_folder("figures_dir", pathlib.Path(flags.FLAGS.figures_dir))
  for task in tasks:
    print(terminal_text(output_dir, task, write_report(output_dir, task)))
    if flags.FLAGS.figures_dir:
      print("Figures:", *write_figures(output_dir, task, flags.FLAGS.figures_dir), sep="\n  ")
    print()


if __name__ == "__main__":
  # Defined here and not on import: the sweep imports this module and has an --output_dir too.
  flags.DEFINE_string("output_dir", "results", "Directory with the runs, TASK/METHOD/seed_S/.")
  flags.DEFINE_string("figures_dir", "", "Where to write the figures as SVG files; empty for not.")
  cli.run(main)
