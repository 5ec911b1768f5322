"""Lets each test client pick its model from a family of one for each tail fraction.

    python -m paper.studies model_family --output_dir=DIR --task=TASK

The paper's section "The Delta-FL Framework" trains one model for each tail fraction theta side by
side and "allow[s] each test client to select the best model according to its local data". Here the
family is the finished runs of FedAvg (theta = 1) and of superquantile aggregation with each theta;
each client picks by the error on a half of its examples, and the other half shows the gain over one
theta for all, for the same seeds. Writes

    DIR/TASK/METHOD/seed_S/model_family.csv    one row a client: client_id, num_held_in,
        num_held_out, loss_held_in, error_held_in, loss_held_out, error_held_out
    DIR/TASK/METHOD/seed_S/model_family.json   settings, and statistics over clients
    DIR/TASK/model_family.{html,md,csv}        the comparison, over seeds
    DIR/TASK/model_family_clients.csv          seed, client_id, num_held_in, num_held_out, method,
        error_held_out, error_of_tuned_single: each client's choice and its errors

Models whose results are there already, with the same settings, are not evaluated again. Errors are
fractions in files and percent in tables.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
import math
import os
import pathlib

import numpy as np
import pandas as pd

from paper.studies import by_seed
from paper.studies import choices
from paper.studies import choosing
from paper.studies import family_choices
from paper.studies import finished_models
from privacy.settings import command_line
from tff_superquantile import atomic_files
from tff_superquantile.experiments.config import names
from tff_superquantile.experiments.pages import page
from tff_superquantile.experiments.pages import tables
from tff_superquantile.experiments.pages import units

_COLUMNS = (
  *(
    tables.Column(f"error.{name}", title, decimals=2)
    for name, title in family_choices.STATISTICS.items()
  ),
  tables.Column("share", "picked by", contest=False),
)
_GAIN_COLUMNS = tuple(
  tables.Column(f"gain.{name}", title, decimals=2, contest=False)
  for name, title in family_choices.STATISTICS.items()
)
_NOTE = (
  "Misclassification error of the test clients on their held-out examples in %, each client counted"
  " once: mean, 90th percentile (p90), mean of the worst 10 % of clients; and the share of clients"
  " that pick a model by their held-in error. Entries are means, and ± the standard deviation, over"
  " seeds; the lowest of a column is bold. The rows “in hindsight” do not compete: they choose by"
  " the held-out examples that they are measured on, and are optimistic for it, even among equally"
  " good models. “Choices dealt at random” is the mean over permutations of the clients’ own"
  " choices."
)
_GAIN_NOTE = (
  "Gain: the decrease of the error by the clients’ own choice in percentage points, same seed"
  " against same seed; negative where the choice loses."
)

_DEFAULTS = family_choices.Settings()


def report(
  output_dir: str | os.PathLike,
  task: str,
  settings: family_choices.Settings = _DEFAULTS,
  overrides: Mapping[str, str] | None = None,
) -> page.Page:
  """Evaluates the family's models where that is not done yet, and reports the choice's gain.

  It writes model_family_clients.csv, too. It refuses data that have changed, and fewer than two
  methods with finished runs of one seed. The overrides replace the runs' own values of
  `train_flags.WHERE_DATA_IS`.
  """
  family = family_choices.find_family(output_dir, task, settings)
  runs = [run for of_method in family.runs.values() for run in of_method.values()]
  measured_with = {"held_in_fraction": settings.held_in_fraction}
  files = finished_models.ModelResults(family_choices.NAME, measured_with, family_choices.PARTS)
  files.measure(runs, family_choices.evaluate, overrides)
  methods = list(family.runs)
  chosen = {seed: family_choices.choose(family, files, seed) for seed in family.seeds}
  names = _names(methods)
  others = {way: name for way, name in names.items() if way != choosing.BY_ERROR}
  results = tables.of_values(
    (way, seed, choice.metrics(way)) for way in names for seed, choice in chosen.items()
  )
  drawn = {way: name for way, name in others.items() if way != choosing.BY_LOSS}
  atomic_files.write(
    pathlib.Path(output_dir, task, "model_family_clients.csv"),
    family_choices.clients_csv(methods, chosen),
  )
  return page.Page(
    family_choices.NAME,
    f"{runs[0].task_title}, model family",
    "what do clients gain by choosing their model?",
    f"{len(methods)} models a seed, {tables.plural(len(family.seeds), 'seed')}",
    _summarize(results, len(methods)),
    [
      tables.of_seeds(
        results,
        _COLUMNS,
        names,
        not_in_contest=choosing.LOOK_AHEAD,
        first="who gets which model",
        title="Results",
        note=_NOTE,
        focus="error.p90",
        lead="Error of the test clients on their held-out examples in %, mean ± sd over seeds:",
      ),
      *map(page.Text, [*_notes(family, chosen, results, settings), *files.left_out(runs)]),
      tables.of_seeds(
        results[results["method"].isin(others)],
        _GAIN_COLUMNS,
        others,
        title="Gain of the choice",
        first="own choice, by error, against",
        note=_GAIN_NOTE,
        focus="gain.p90",
      ),
      choices.shares(results, methods, names),
      choices.gains(results, methods, drawn),
    ],
    tables.to_csv(task, results, "way"),
  )


def _names(methods: Sequence[names.Name]) -> dict[str, str]:
  """Returns the names of the ways to give clients a model, in the order of the table."""
  return {
    **{method: method.label + (" (θ = 1)" if method.is_fed_avg else "") for method in methods},
    choosing.TUNED_SINGLE: "One for all, by held-in p90",
    choosing.BY_ERROR: "Family: own choice, by error",
    choosing.BY_LOSS: "Family: own choice, by loss",
    choosing.SHUFFLED: "Choices dealt at random",
    choosing.HINDSIGHT_SINGLE: "One for all, in hindsight",
    choosing.ORACLE: "Own choice, in hindsight",
  }


def _summarize(results: pd.DataFrame, num_models: int) -> str:
  """Says how much the choice gains over the fairest single model."""

  def level(way: str, metric: str) -> str:
    return units.PERCENT.text(by_seed.of_seed(results, way, metric).mean())

  gains = {
    name: by_seed.of_seed(results, choosing.TUNED_SINGLE, f"gain.{name}")
    for name in ("p90", "mean")
  }
  effects = {name: by_seed.effect(-gain) for name, gain in gains.items()}
  single, family = choosing.TUNED_SINGLE, choosing.BY_ERROR
  text = (
    f"With one of {num_models} models for all test clients, picked on their held-in examples, the"
    f" 90th percentile of the error is {level(single, 'error.p90')}. The clients’ own choice"
    f" {effects['p90']} ({level(family, 'error.p90')}); as to the mean error"
    f" ({level(single, 'error.mean')}), it {effects['mean']} ({level(family, 'error.mean')})."
  )
  num_seeds = len(gains["p90"])
  if num_seeds == 1:
    return f"{text} {tables.ONE_SEED}"
  if by_seed.is_unsure(gains["p90"]):
    return (
      f"{text} Over {num_seeds} seeds, the change of the percentile is no larger than its standard"
      " deviation."
    )
  return f"{text} This is over {num_seeds} seeds."


def _notes(
  family: family_choices.Family,
  chosen: Mapping[int, family_choices.ModelChoice],
  results: pd.DataFrame,
  settings: family_choices.Settings,
) -> list[str]:
  """Returns caveats: the certainty of a client's choice, and the clients left out."""
  size = np.median(np.concatenate([choice.clients["num_held_in"] for choice in chosen.values()]))
  error = by_seed.of_seed(results, choosing.BY_ERROR, "error.mean").mean()
  noise = math.sqrt(error * (1 - error) / size)
  tied = np.mean([choice.comparison.tied for choice in chosen.values()])
  picks = [choice.comparison.tuned_single for choice in chosen.values()]
  listed = ", ".join(
    f"{method.label} ({tables.plural(picks.count(method), 'seed')})"
    for method in family.runs
    if method in picks
  )
  notes = [
    f"Clients choose on {100 * settings.held_in_fraction:g} % of their examples, a median of"
    f" {size:g}: the error of one model is known to about ± {100 * noise:.1f} points (one standard"
    f" error). For {100 * tied:.0f} % of the clients several models tie by held-in error, and the"
    " held-in loss decides.",
    f"One for all, by held-in p90, was {listed}.",
  ]
  if family.incomplete_seeds:
    seeds = ", ".join(map(str, family.incomplete_seeds))
    notes.append(f"Seeds that not all models have are left out: {seeds}.")
  return notes


def define(parser: command_line.Parser) -> None:
  finished_models.define(parser, "choose")
  command_line.add_flag(
    parser,
    "methods",
    str,
    [],
    "Folder names of the family's methods; empty for fed_avg and those called"
    " superquantile_theta_... by their tail fraction alone.",
    are_several=True,
  )


def main(args: argparse.Namespace) -> None:
  output_dir, task, overrides = finished_models.finished_task(args)
  settings = family_choices.Settings(args.held_in_fraction, tuple(args.methods))
  content = report(output_dir, task, settings, overrides)
  print(page.publish(content, pathlib.Path(output_dir, task)))
