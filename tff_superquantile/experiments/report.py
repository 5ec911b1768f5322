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

Unfinished runs are listed and otherwise left out. Needs no TensorFlow.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
import csv
import dataclasses
import datetime
import io
import math
import os
import pathlib
import re
import sys
from typing import Any

from absl import app
from absl import flags
import jinja2
import markupsafe
import numpy as np

from tff_superquantile.experiments import plots
from tff_superquantile.experiments import run_folder

_TEMPLATES = pathlib.Path(__file__).parent / "templates"
_MEAN = "test.error.mean"
_P90 = "test.error.p90"
_TAIL = "the 90th percentile of the test clients’ error"
# Flags that say where and for which seed, not how: they differ without a difference.
_BOOKKEEPING_FLAGS = frozenset({"seed", "seeds", "output_dir"})


@dataclasses.dataclass(frozen=True)
class _Column:
  """A column of the table; `decimals` None stands for three significant digits."""

  metric: str
  title: str
  factor: float = 100.0
  decimals: int | None = 1
  contest: bool = True  # Whether the lowest entry is marked.
  brief: bool = False  # Whether a terminal shows the column too.


_COLUMNS = (
  _Column(_MEAN, "mean", brief=True),
  _Column("test.error.std", "sd"),
  _Column("test.error.p10", "p10"),
  _Column("test.error.p50", "p50"),
  _Column(_P90, "p90", brief=True),
  _Column("test.error.p95", "p95"),
  _Column("test.error.superquantile_90", "worst 10 %", brief=True),
  _Column("test.error.best_10", "best 10 %"),
  _Column("train.loss.mean", "train loss", factor=1.0, decimals=3),
  # Time depends on the machine and what else it does, so nobody wins.
  _Column("seconds_per_round", "s / round", factor=1.0, decimals=None, contest=False),
)


@dataclasses.dataclass(frozen=True)
class _Cell:
  """An entry of the table as text; `spread` is "± sd" or empty."""

  value: str
  spread: str = ""
  best: bool = False

  def __str__(self) -> str:
    return f"{self.value} {self.spread}".strip()


@dataclasses.dataclass(frozen=True)
class _Row:
  """A method's row of the table."""

  method: str
  name: str
  num_seeds: int
  cells: list[_Cell]


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
  columns, rows = _table(runs.groups)
  figures, omitted = plots.draw_all(runs.groups)
  environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(_TEMPLATES),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
  )
  environment.filters["data_uri"] = lambda svg: (
    "data:image/svg+xml;base64," + base64.b64encode(svg).decode()
  )
  content = dict(
    task=run_folder.display_name(task),
    summary=summary(runs.groups),
    columns=columns,
    rows=rows,
    focus=_P90,
    notes=_notes(runs.groups),
    unfinished=[_describe_unfinished(run) for run in runs.unfinished],
  )
  page = environment.get_template("report.html.j2").render(
    **content,
    figures=figures,
    omitted=omitted,
    looks=plots.palette(list(runs.groups)),
    how=_how_it_was_run(runs.groups),
    today=datetime.date.today().isoformat(),
  )
  # Escaped for Markdown by its filter; what is marked safe, autoescape leaves alone.
  environment.filters["md"] = lambda text: markupsafe.Markup(_escape_markdown(text))
  markdown = environment.get_template("report.md.j2").render(
    **content, table=markupsafe.Markup(_markdown_table(columns, rows))
  )

  folder = pathlib.Path(output_dir) / task
  paths = {
    "html": folder / "report.html",
    "markdown": folder / "report.md",
    "csv": folder / "report.csv",
  }
  run_folder.write_atomically(paths["html"], page)
  run_folder.write_atomically(paths["markdown"], markdown)
  run_folder.write_atomically(paths["csv"], _csv(task, runs.groups))
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
  columns, rows = _table(runs.groups, brief=True)
  lines = [
    f"{run_folder.display_name(task)}: {summary(runs.groups)}",
    "",
    "Error of the test clients in %, mean ± sd over seeds:",
    "",
    _markdown_table(columns, rows, mark=False),
    "",
    *_notes(runs.groups),
  ]
  if runs.unfinished:
    lines.append(f"Not counted: {_count(len(runs.unfinished), 'unfinished run')}.")
  return "\n".join([*lines, "Report:", *[f"  {path}" for path in paths.values()]])


def summary(groups: plots.Groups) -> str:
  """Says in a few sentences what the runs show.

  FedAvg is compared with the method that has the lowest 90th percentile of the test error, seed by
  seed over the seeds that both have.

  Args:
    groups: Finished runs by method.

  Returns:
    Plain text, errors in % and differences in percentage points.
  """
  tails = {
    method: run_folder.aggregate(runs)[_P90].mean
    for method, runs in groups.items()
    if _P90 in run_folder.aggregate(runs)
  }
  tails = {method: tail for method, tail in tails.items() if math.isfinite(tail)}
  if not tails:
    return f"No method reports {_TAIL}."
  rivals = [method for method in tails if method != run_folder.FED_AVG]
  best = min(rivals or tails, key=tails.get)
  name = run_folder.display_name(best)
  if run_folder.FED_AVG not in tails or not rivals:
    return (
      f"With {name}, {_TAIL} is {_percent(tails[best])}; there is no result of "
      f"{'FedAvg' if rivals else 'another method'} to compare with."
    )

  seeds, tail, tail_sd, levels = _compare(groups[run_folder.FED_AVG], groups[best], _P90)
  spread = "" if math.isnan(tail_sd) else f" ± {tail_sd:.1f}"
  if f"{tail:.1f}".strip("-") == "0.0":
    effect = f"leaves {_TAIL} as it is ({levels})"
  else:
    effect = (
      f"{'lowers' if tail < 0 else 'raises'} {_TAIL} by {abs(tail):.1f}{spread} points ({levels})"
    )
  if all(_MEAN in run_folder.aggregate(groups[method]) for method in (run_folder.FED_AVG, best)):
    mean = _compare(groups[run_folder.FED_AVG], groups[best], _MEAN)[1]
    effect += f" and changes the mean by {_signed(mean)} points"
  text = (
    f"Against FedAvg, {name} {effect}"
    if len(rivals) == 1
    else f"Of {len(rivals)} methods compared with FedAvg, {name} does best by the worst-off "
    f"clients: it {effect}"
  )
  if seeds == 0:
    return f"{text}; the two share no seed, so part of the difference may be the seeds’."
  if seeds == 1:
    return f"{text}. This is one seed, which cannot tell an effect from chance."
  caution = (
    " The change of the percentile is no larger than its standard deviation over seeds."
    if abs(tail) <= tail_sd
    else ""
  )
  return f"{text}, over {seeds} seeds.{caution}"


def _compare(
  before: Sequence[run_folder.Run], after: Sequence[run_folder.Run], metric: str
) -> tuple[int, float, float, str]:
  """Compares a fraction between two methods, seed by seed where they share seeds.

  Args:
    before: Runs of a method, of which at least one has the metric.
    after: Runs of another method, likewise.
    metric: A name in `Run.numbers`.

  Returns:
    The number of shared seeds, mean and sd over them (NaN below two) of the change in percentage
    points, and the two levels as text.
  """
  first, second = (
    {run.seed: 100 * run.numbers[metric] for run in runs if metric in run.numbers}
    for runs in (before, after)
  )
  shared = sorted(first.keys() & second.keys())
  old = np.mean([first[seed] for seed in shared or first])
  new = np.mean([second[seed] for seed in shared or second])
  changes = [second[seed] - first[seed] for seed in shared] or [new - old]
  change = run_folder.Aggregate.of(changes)
  return len(shared), change.mean, change.sd, f"{_percent(old / 100)} → {_percent(new / 100)}"


def _table(groups: plots.Groups, brief: bool = False) -> tuple[list[_Column], list[_Row]]:
  """Returns the columns that some method has, and a row for each method."""
  aggregates = {method: run_folder.aggregate(runs) for method, runs in groups.items()}
  columns = [
    column
    for column in _COLUMNS
    if (column.brief or not brief)
    and any(column.metric in aggregate for aggregate in aggregates.values())
  ]
  cells: dict[str, list[_Cell]] = {method: [] for method in groups}
  for column in columns:
    entries = {
      method: aggregate[column.metric]
      for method, aggregate in aggregates.items()
      if column.metric in aggregate
    }
    if column.decimals is None:
      sizes = [entry.mean for entry in entries.values() if 0 < entry.mean < math.inf]
      decimals = min(4, max(0, 2 - math.floor(math.log10(min(sizes, default=1)))))
      column = dataclasses.replace(column, decimals=decimals)
    texts = {method: _number(entry.mean, column) for method, entry in entries.items()}
    finite = {method: entry.mean for method, entry in entries.items() if math.isfinite(entry.mean)}
    # What reads the same as the best is as good, so the text decides and not the 15th digit.
    best = texts[min(finite, key=finite.get)] if len(groups) > 1 and finite else None
    for method, row in cells.items():
      if method not in entries:
        row.append(_Cell("–"))
        continue
      sd = entries[method].sd
      spread = "" if math.isnan(sd) else f"± {_number(sd, column)}"
      row.append(_Cell(texts[method], spread, column.contest and texts[method] == best))
  return columns, [
    _Row(method, run_folder.display_name(method), len(groups[method]), row)
    for method, row in cells.items()
  ]


def _number(value: float, column: _Column) -> str:
  """Formats a value in the column's unit."""
  value *= column.factor
  if not math.isfinite(value):
    return "NaN" if math.isnan(value) else "∞"
  return f"{value:.{column.decimals}f}"


def _percent(fraction: float) -> str:
  return f"{100 * fraction:.1f} %"


def _signed(points: float) -> str:
  text = f"{points:+.1f}"
  return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "−")


def _count(number: int, noun: str) -> str:
  return f"{number} {noun}{'' if number == 1 else 's'}"


def _markdown_table(columns: Sequence[_Column], rows: Sequence[_Row], mark: bool = True) -> str:
  """Lays the table out in Markdown with aligned columns, the best entries bold if `mark`."""
  lines = [["method", "seeds", *[column.title for column in columns]]]
  for row in rows:
    lines.append(
      [
        _escape_markdown(row.name),
        str(row.num_seeds),
        *[f"**{cell}**" if mark and cell.best else str(cell) for cell in row.cells],
      ]
    )
  widths = [max(4, *map(len, column)) for column in zip(*lines)]
  text = [
    " | ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines
  ]
  rule = "|".join(["-" * (widths[0] + 2), *["-" * (width + 1) + ":" for width in widths[1:]]])
  return "\n".join([f"| {text[0]} |", f"|{rule}|", *[f"| {line} |" for line in text[1:]]])


def _escape_markdown(text: str) -> str:
  """Escapes what Markdown would read as markup; underscores within words are none."""
  text = text.replace("&", "&amp;").replace("<", "&lt;")
  return re.sub(r"([\\`*\[\]|~>#]|(?<![^\W_])_|_(?![^\W_]))", r"\\\1", text)


def _csv(task: str, groups: plots.Groups) -> str:
  """The content of report.csv, as the module's docstring describes it."""
  buffer = io.StringIO()
  writer = csv.writer(buffer, lineterminator="\n")
  writer.writerow(["task", "method", "metric", "mean", "sd", "num_seeds"])
  for method, runs in groups.items():
    for metric, entry in run_folder.aggregate(runs).items():
      sd = "" if entry.num_seeds == 1 else repr(entry.sd)
      writer.writerow([task, method, metric, repr(entry.mean), sd, entry.num_seeds])
  return buffer.getvalue()


def _notes(groups: plots.Groups) -> list[str]:
  """What a reader of the table must know about these runs."""
  notes = []
  seeds = {method: {run.seed for run in runs} for method, runs in groups.items()}
  if len({frozenset(numbers) for numbers in seeds.values()}) > 1:
    listing = "; ".join(
      f"{run_folder.display_name(method)}: {_ranges(numbers)}" for method, numbers in seeds.items()
    )
    notes.append(f"The methods ran with different seeds ({listing}), so compare rows with care.")
  diverged = [
    run_folder.display_name(method)
    for method, runs in groups.items()
    if not all(math.isfinite(run.numbers.get("train.loss.mean", 0)) for run in runs)
  ]
  if diverged:
    notes.append(f"A run diverged (its training loss is not a number): {', '.join(diverged)}.")
  return notes


def _how_it_was_run(groups: plots.Groups) -> dict[str, Any]:
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
    values = [manifest[name] for manifest in manifests if name in manifest]
    if name not in ("seed", "seconds_per_round", "task", "method"):
      spans = name.startswith(("start", "finish")) and len(set(map(type, values))) == 1
      about[name.replace("_", " ").replace("versions.", "")] = (
        f"{min(values)} to {max(values)}"
        if spans and min(values) != max(values)
        else _join_distinct(map(str, values))
      )
  return {
    "shared": shared,
    "differing": differing,
    "about": about,
    "seeds": {
      run_folder.display_name(method): _ranges({run.seed for run in members})
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
    f"{run_folder.display_name(run.method)}, seed {run.seed}: stopped or still running {reached}"
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


def main(argv: Sequence[str]) -> int:
  """Writes and prints the reports of all tasks; returns the exit code."""
  if len(argv) > 1:
    raise app.UsageError(f"Only flags are expected. Found {argv[1:]}.")
  output_dir = flags.FLAGS.output_dir
  runs = run_folder.find_runs(output_dir)
  tasks = sorted({run.task for run in runs if run.finished})
  if not tasks:
    unfinished = f" ({_count(len(runs), 'unfinished run')} there)" if runs else ""
    print(
      f"no finished run found in {output_dir}{unfinished}: run ./run_experiments.sh first or "
      "pass --output_dir",
      file=sys.stderr,
    )
    return 2
  for task in tasks:
    print(terminal_text(output_dir, task, write_report(output_dir, task)), end="\n\n")
  return 0


if __name__ == "__main__":
  # Defined here and not on import: the sweep imports this module and has an --output_dir too.
  flags.DEFINE_string("output_dir", "results", "Directory with the runs, TASK/METHOD/seed_S/.")
  app.run(main)
