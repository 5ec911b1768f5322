"""The report of a model family: what the clients' own choice gains, over seeds."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import datetime
import math
import os
import pathlib

import markupsafe
import numpy as np

from tff_superquantile import atomic_files
from tff_superquantile.experiments import comparison
from tff_superquantile.experiments import finished_models
from tff_superquantile.experiments import method_names
from tff_superquantile.experiments import model_family_choice
from tff_superquantile.experiments import model_family_plots
from tff_superquantile.experiments import pages
from tff_superquantile.experiments import plot_style
from tff_superquantile.experiments import run_folder
from tff_superquantile.experiments import seed_tables

_COLUMNS = (
  *(
    comparison.Column(f"error.{name}", title, decimals=2)
    for name, title in model_family_choice.STATISTICS.items()
  ),
  comparison.Column("share", "picked by", contest=False),
)
_GAIN_COLUMNS = tuple(
  comparison.Column(f"gain.{name}", title, decimals=2, contest=False)
  for name, title in model_family_choice.STATISTICS.items()
)


def write_report(
  output_dir: str | os.PathLike, task: str, settings: model_family_choice.Settings
) -> dict[str, pathlib.Path]:
  """Writes the report of a family that was evaluated, replacing an earlier one.

  Args:
    output_dir: As in `run`.
    task: As in `run`.
    settings: As in `run`.

  Returns:
    The files: "html", "md" and "csv".

  Raises:
    ValueError: If the family is not complete or was not evaluated.
  """
  from tff_superquantile.evaluation import model_family

  choice = model_family_choice.choose(output_dir, task, settings)
  methods = list(choice.family.runs)
  names = model_family_choice.names(methods)
  rows = seed_tables.rows(_COLUMNS, choice.values, names, model_family.LOOK_AHEAD)
  gains = _gain_rows(choice)
  content = dict(
    task=method_names.task_title(task),
    summary=_summary(choice),
    notes=_notes(choice, settings),
  )
  page = pages.render(
    "model_family.html.j2",
    **content,
    columns=_COLUMNS,
    rows=rows,
    gain_columns=_GAIN_COLUMNS,
    gains=gains,
    looks=plot_style.palette(methods),
    figures=model_family_plots.draw_all(choice),
    num_models=len(methods),
    num_seeds=len(choice.family.seeds),
    today=datetime.date.today().isoformat(),
  )
  tables = dict(
    table=markupsafe.Markup(comparison.markdown_table(_COLUMNS, rows)),
    gains=markupsafe.Markup(comparison.markdown_table(_GAIN_COLUMNS, gains)),
  )
  paths = finished_models.write_reports(
    output_dir,
    task,
    model_family_choice.NAME,
    {
      "html": page,
      "md": pages.render("model_family.md.j2", **content, **tables),
      "csv": seed_tables.csv_text(task, "way", choice.values),
    },
  )
  atomic_files.write(
    pathlib.Path(output_dir) / task / f"{model_family_choice.NAME}_clients.csv",
    _clients_csv(choice),
  )
  return paths


def _gain_rows(choice: model_family_choice.Choice) -> list[comparison.Row]:
  """What the family gains over every other way; the family's own row would be zeros."""
  from tff_superquantile.evaluation import model_family

  others = {way: m for way, m in choice.values.items() if way != model_family.BY_ERROR}
  return seed_tables.rows(
    _GAIN_COLUMNS, others, model_family_choice.names(list(choice.family.runs))
  )


def _clients_csv(choice: model_family_choice.Choice) -> str:
  """The content of model_family_clients.csv, as the module's docstring describes it."""
  methods = list(choice.family.runs)
  names = (
    "seed",
    "client_id",
    "num_held_in",
    "num_held_out",
    "method",
    "error_held_out",
    "error_of_tuned_single",
  )
  rows = []
  for seed, columns in choice.clients.items():
    result, errors = choice.comparisons[seed], choice.errors[seed].tolist()
    single = methods.index(result.tuned_single)
    for i, (client_id, own) in enumerate(zip(columns["client_id"], result.choice)):
      sizes = [int(columns[f"num_{part}"][i]) for part in model_family_choice.PARTS]
      rows.append([seed, client_id, *sizes, methods[own], errors[own][i], errors[single][i]])
  return run_folder.csv_text(names, rows)


def terminal_text(
  output_dir: str | os.PathLike,
  task: str,
  paths: Mapping[str, pathlib.Path],
  settings: model_family_choice.Settings,
) -> str:
  """Describes a report for a terminal: the summary, the table, where it is.

  Args:
    output_dir: As in `run`.
    task: As in `run`.
    paths: What `run` returned.
    settings: As in `run`.

  Returns:
    Lines of text.
  """
  from tff_superquantile.evaluation import model_family

  choice = model_family_choice.choose(output_dir, task, settings)
  names = model_family_choice.names(list(choice.family.runs))
  rows = seed_tables.rows(_COLUMNS, choice.values, names, model_family.LOOK_AHEAD)
  lines = [
    f"{method_names.task_title(task)}, model family: {_summary(choice)}",
    "",
    "Error of the test clients on their held-out examples in %, mean ± sd over seeds:",
    "",
    comparison.markdown_table(_COLUMNS, rows, mark=False),
    "",
    *_notes(choice, settings),
  ]
  return "\n".join([*lines, "Report:", *[f"  {path}" for path in paths.values()]])


def _summary(choice: model_family_choice.Choice) -> str:
  """What the choice gains on the fairest single model, and how much of it is the clients' own."""
  from tff_superquantile.evaluation import model_family

  num_seeds = len(choice.family.seeds)
  family = choice.values[model_family.BY_ERROR]
  single = choice.values[model_family.TUNED_SINGLE]

  def level(values: Mapping[str, Mapping[int, float]], metric: str) -> str:
    return f"{100 * np.mean(list(values[metric].values())):.1f} %"

  def gain(way: str, statistic: str) -> run_folder.Aggregate:
    return run_folder.Aggregate.of(list(choice.values[way][f"gain.{statistic}"].values()))

  gains = {name: gain(model_family.TUNED_SINGLE, name) for name in ("p90", "mean")}
  effects = {}
  for name, entry in gains.items():
    size = seed_tables.points(dataclasses.replace(entry, mean=abs(entry.mean))).lstrip("+")
    flat = f"{100 * abs(entry.mean):.1f}" == "0.0"
    verb = "leaves it as it is" if flat else "lowers it by" if entry.mean > 0 else "raises it by"
    effects[name] = verb if flat else f"{verb} {size} points"
  methods = len(choice.family.runs)
  text = (
    f"With one of {methods} models for all test clients, picked on their held-in examples, the 90th"
    f" percentile of the error is {level(single, 'error.p90')}. That each client picks its own"
    f" {effects['p90']} ({level(family, 'error.p90')}); as to the mean error"
    f" ({level(single, 'error.mean')}), it {effects['mean']} ({level(family, 'error.mean')})."
  )
  if num_seeds == 1:
    return f"{text} This is one seed, which cannot tell an effect from chance."
  if abs(gains["p90"].mean) <= gains["p90"].sd:
    text += (
      f" Over {num_seeds} seeds, the change of the percentile is no larger than its standard"
      " deviation."
    )
  else:
    text += f" This is over {num_seeds} seeds."
  return text


def _notes(choice: model_family_choice.Choice, settings: model_family_choice.Settings) -> list[str]:
  """How sure a client can be of its choice, and what else a reader must know."""
  from tff_superquantile.evaluation import model_family

  sizes = np.concatenate([columns["num_held_in"] for columns in choice.clients.values()])
  error = float(np.mean(list(choice.values[model_family.BY_ERROR]["error.mean"].values())))
  noise = math.sqrt(error * (1 - error) / np.median(sizes))
  tied = np.mean([result.tied for result in choice.comparisons.values()])
  picks = [result.tuned_single for result in choice.comparisons.values()]
  counts = {method: picks.count(method) for method in choice.family.runs if method in picks}
  listed = ", ".join(
    f"{method_names.display_name(method)} ({count} seed{'' if count == 1 else 's'})"
    for method, count in counts.items()
  )
  notes = [
    f"Clients choose on {100 * settings.held_in_fraction:g} % of their examples, a median of"
    f" {np.median(sizes):g}: the error of one model is known to about ± {100 * noise:.1f} points"
    f" (one standard error). For {100 * tied:.0f} % of the clients several models tie by held-in"
    " error, and the held-in loss decides.",
    f"One for all, by held-in p90, was {listed}.",
  ]
  if choice.family.incomplete_seeds:
    notes.append(
      f"Seeds that not all models have are left out:"
      f" {', '.join(map(str, choice.family.incomplete_seeds))}."
    )
  if choice.num_left_out:
    notes.append(f"Left out: clients with a single example, up to {choice.num_left_out} of a seed.")
  return notes
