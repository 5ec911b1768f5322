"""The report of personalized models: methods compared before and after fine-tuning, over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import datetime
import math
import os
import pathlib
from typing import Any

import markupsafe
import numpy as np

from tff_superquantile.experiments import comparison
from tff_superquantile.experiments import finished_models
from tff_superquantile.experiments import method_names
from tff_superquantile.experiments import pages
from tff_superquantile.experiments import personalization_plots
from tff_superquantile.experiments import plot_style
from tff_superquantile.experiments import run_folder
from tff_superquantile.experiments import seed_tables

NAME = "personalization"

_COLUMNS = (
  comparison.Column("before.error.mean", "mean, before", decimals=2),
  comparison.Column("after.error.mean", "mean, after", decimals=2),
  comparison.Column("before.error.p90", "p90, before", decimals=2),
  comparison.Column("after.error.p90", "p90, after", decimals=2),
)


@dataclasses.dataclass(frozen=True)
class _Done:
  """What was found: runs by method, {method: {metric: {seed: value}}}, and what was described."""

  groups: dict[str, list[run_folder.Run]]
  values: dict[str, dict[str, dict[int, float]]]
  described: list[dict[str, Any]]


def _read(output_dir: str | os.PathLike, task: str) -> _Done:
  reader = finished_models.Results(NAME, {})
  described = {one: reader.read(one) for one in finished_models.find(output_dir, task)}
  described = {one: found for one, found in described.items() if found}
  if not described:
    raise ValueError(
      f"Found no run of {task!r} in {os.fspath(output_dir)!r} that was personalized; call `run`."
    )
  if (
    len({(f["settings"]["epochs"], f["settings"]["held_in_fraction"]) for f in described.values()})
    > 1
  ):
    raise ValueError(
      f"Found runs of {task!r} in {os.fspath(output_dir)!r} that were personalized in different"
      " ways; run the command anew, which mends that."
    )
  values: dict[str, dict[str, dict[int, float]]] = {}
  for one, found in described.items():
    numbers = run_folder.flatten({when: found[when] for when in personalization_plots.WHEN})
    for metric, value in numbers.items():
      values.setdefault(one.method, {}).setdefault(metric, {})[one.seed] = float(value)
  return _Done(run_folder.group_by_method(described), values, list(described.values()))


def write_report(output_dir: str | os.PathLike, task: str) -> dict[str, pathlib.Path]:
  """Writes the report of what is personalized, replacing an earlier one.

  Args:
    output_dir: As in `run`.
    task: As in `run`.

  Returns:
    The files: "html", "md" and "csv".

  Raises:
    ValueError: If nothing is.
  """
  done = _read(output_dir, task)
  names = {method: method_names.display_name(method) for method in done.groups}
  rows = seed_tables.rows(_COLUMNS, done.values, names)
  content = dict(
    task=method_names.task_title(task),
    summary=_summary(done),
    settings=_settings_text(done.described),
    notes=_notes(done),
  )
  page = pages.render(
    "personalization.html.j2",
    **content,
    columns=_COLUMNS,
    rows=rows,
    looks=plot_style.palette(list(done.groups)),
    figures=personalization_plots.draw_all(done.groups, done.values),
    today=datetime.date.today().isoformat(),
  )
  table = markupsafe.Markup(comparison.markdown_table(_COLUMNS, rows))
  return finished_models.write_reports(
    output_dir,
    task,
    NAME,
    {
      "html": page,
      "md": pages.render("personalization.md.j2", **content, table=table),
      "csv": seed_tables.csv_text(task, "method", done.values),
    },
  )


def terminal_text(
  output_dir: str | os.PathLike, task: str, paths: Mapping[str, pathlib.Path]
) -> str:
  """Describes a report for a terminal: the summary, the table, where it is.

  Args:
    output_dir: As in `run`.
    task: As in `run`.
    paths: What `run` returned.

  Returns:
    Lines of text.
  """
  done = _read(output_dir, task)
  names = {method: method_names.display_name(method) for method in done.groups}
  lines = [
    f"{method_names.task_title(task)}, personalized: {_summary(done)}",
    "",
    "Error of the test clients on their held-out examples in %, mean ± sd over seeds:",
    "",
    comparison.markdown_table(_COLUMNS, seed_tables.rows(_COLUMNS, done.values, names), mark=False),
    "",
    *_notes(done),
  ]
  return "\n".join([*lines, "Report:", *[f"  {path}" for path in paths.values()]])


def _summary(done: _Done) -> str:
  """What fine-tuning changes, and what it leaves of the lead over FedAvg."""
  groups, epsilon = run_folder.at_one_epsilon(done.groups)
  # By the names without a budget, as FedAvg's is then "fed_avg".
  values = {method: done.values[runs[0].method] for method, runs in groups.items()}

  def mean(method: str, metric: str) -> float:
    return float(np.mean(list(values[method][metric].values())))

  def level(method: str, metric: str) -> str:
    return f"{100 * mean(method, metric):.1f} %"

  fed_avg = method_names.FED_AVG
  first = fed_avg if fed_avg in values else next(iter(values))
  text = "" if epsilon is None else f"At ε = {epsilon:g}: "
  text += (
    f"Fine-tuning takes the mean error with {method_names.display_name(first)} from"
    f" {level(first, 'before.error.mean')} to {level(first, 'after.error.mean')} and the 90th"
    f" percentile from {level(first, 'before.error.p90')} to {level(first, 'after.error.p90')}."
  )
  rivals = [
    method
    for method in values
    if method != fed_avg and math.isfinite(mean(method, "before.error.p90"))
  ]
  if fed_avg not in values or not rivals:
    return text
  best = min(rivals, key=lambda method: mean(method, "before.error.p90"))
  before, after = (
    seed_tables.change(values[fed_avg][metric], values[best][metric])
    for metric in ("before.error.p90", "after.error.p90")
  )
  name = method_names.display_name(best)
  if before is None or after is None:
    return f"{text} FedAvg and {name} share no seed, so their difference may be the seeds’."
  text += (
    f" At the 90th percentile, {name} differs from FedAvg by {seed_tables.points(before)} points"
    f" before fine-tuning and by {seed_tables.points(after)} after it"
  )
  if before.num_seeds == 1:
    return f"{text}. This is one seed, which cannot tell an effect from chance."
  text += f", over {before.num_seeds} seeds."
  unsure = [when for when, d in (("before", before), ("after", after)) if abs(d.mean) <= d.sd]
  if unsure:
    text += (
      f" {' and '.join(unsure).capitalize()} fine-tuning, the difference is no larger than its"
      " standard deviation over seeds."
    )
  return text


def _settings_text(described: Sequence[Mapping[str, Any]]) -> str:
  settings = described[0]["settings"]
  epochs, fraction = settings["epochs"], settings["held_in_fraction"]
  rates = ", ".join(f"{rate:g}" for rate in sorted({found["learning_rate"] for found in described}))
  sizes = sorted({found["batch_size"] for found in described})
  batches = ", ".join(str(size) if size else "all examples" for size in sizes)
  return (
    f"Each test client fine-tunes on {100 * fraction:g} % of its examples for"
    f" {epochs} epoch{'' if epochs == 1 else 's'}, shuffled anew for each, with batches of"
    f" {batches} and the learning rate of the last round ({rates}). Errors are those on its other"
    " examples, before and after, the same for all methods of a seed."
  )


def _notes(done: _Done) -> list[str]:
  notes = []
  seeds = {frozenset(one.seed for one in runs) for runs in done.groups.values()}
  if len(seeds) > 1:
    notes.append("The methods ran with different seeds, so compare rows with care.")
  left_out = max(found["num_left_out"] for found in done.described)
  if left_out:
    notes.append(f"Left out: clients with a single example, up to {left_out} of a seed.")
  diverged = sum(found["num_diverged"] for found in done.described)
  if diverged:
    notes.append(
      f"Fine-tuning diverged for {diverged} of"
      f" {sum(found['num_clients'] for found in done.described)} clients (over all methods and"
      " seeds); they keep the model that they were handed."
    )
  return notes
