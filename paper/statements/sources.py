"""Where the measurements come from: commands, and readers of what they leave."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import csv
import dataclasses
import math
import pathlib

import pandas as pd

from tff_superquantile.experiments.config import names
from tff_superquantile.experiments.evidence import grouped
from tff_superquantile.experiments.evidence import paired
from tff_superquantile.experiments.pages import tables
from tff_superquantile.experiments.report import sizes
from tff_superquantile.experiments.run import cross_validation
from tff_superquantile.experiments.run import run_folder

DIGITS = "digits by writer"
WRITERS, USERS = "394 writers of EMNIST", "the paper’s 877 users of Sent140"
MEASURED = pathlib.Path(__file__).parent / "measured"
# The columns of measured/made.csv: which version kept the measurements of a source, when, and how
# many of their digits are known.
MADE = ("source", "version", "date", "digits")
# The columns of measurements.
COLUMNS = ("method", "metric", "mean", "sd", "num_seeds")
# The metrics that the paper prints, and those of its figures.
_PREFIXES = ("test.error.", "train.loss.", "rounds")
# Of cross-validations, which have intervals over clients in place of the spread over seeds.
_OF_PEOPLE = (
  *("test.error.mean", "test.error.std", "test.error.p10", "test.error.p50", "test.error.p90"),
  *("test.error.superquantile_90", "train.loss.mean", "rounds"),
)
_PAIRED = ("test.error.mean", "test.error.p90", "test.error.superquantile_90")
_LESS = " less "

Reader = Callable[[pathlib.Path], pd.DataFrame]


@dataclasses.dataclass(frozen=True)
class Source:
  """The command that makes measurements, and their reader, empty for results that have none.

  `data` are data, rounds and cohorts where they are not the paper's; empty otherwise.
  """

  command: str
  read: Reader
  data: str = ""


def read_made() -> dict[str, dict[str, str]]:
  """Returns the rows of measured/made.csv by their sources; none without the file."""
  path = MEASURED / "made.csv"
  if not path.exists():
    return {}
  with path.open(encoding="utf-8", newline="") as file:
    return {row["source"]: row for row in csv.DictReader(file)}


def made(name: str) -> str:
  """Says which version kept the measurements of a source, when, and how exact they are."""
  row = read_made().get(name)
  if row is None:
    return "not kept yet"
  return f"version {row['version']}, {row['date']}, {row['digits']}"


def _of_runs(task: str, is_private: bool = False) -> Reader:
  """Returns the reader of the finished runs of a task, methods by their labels."""

  def read(output_dir: pathlib.Path) -> pd.DataFrame:
    # What else a run with a name of its own differs in, its label does not say.
    runs = [
      run
      for run in run_folder.find_runs(output_dir)
      if run.task == task and run.finished and run.config and not run.config.run_name
    ]
    whole = [run for run in cross_validation.pool(runs) if not cross_validation.gaps([run])]
    groups = run_folder.group_by_method(whole)
    chosen = {
      method: of for method, of in groups.items() if (method.epsilon is not None) == is_private
    }
    results = tables.of_values(
      (method.label, run.seed, {**_shown(run.numbers), "rounds": run.last_round or 0})
      for method, of in chosen.items()
      for run in of
    )
    if chosen:
      by_size = sizes.error_by_size(grouped.Grouped(chosen))
      labels = {method: method.label for method in chosen}
      results = pd.concat([results, by_size.assign(method=by_size["method"].map(labels))])
    if chosen and "_folds_" in task:
      results = pd.concat([results[results["metric"].map(_is_of_people)], _of_pairs(chosen)])
    return tables.over_seeds(results).reset_index() if len(results) else results

  return read


def _is_of_people(metric: str) -> bool:
  return metric in _OF_PEOPLE or metric.endswith(("_third.error.change", "_third.examples.least"))


def between(before: str, after: str) -> str:
  """Names the change from one method to another, by their labels."""
  return f"{after}{_LESS}{before}"


def methods_of(name: str) -> list[str]:
  """Returns the methods that a row is of: one, or the two of `between`."""
  return name.split(_LESS)


def is_between(name: str) -> bool:
  """Returns whether a row is of a change between two methods."""
  return _LESS in name


def _of_pairs(groups: Mapping[names.Name, Sequence[run_folder.Run]]) -> pd.DataFrame:
  """Measures changes, as `tables.of_values`, and the ends METRIC.low and .high of their intervals.

  They are those of all methods against FedAvg, and of each theta against all methods.
  """
  rows = []
  for before, own in groups.items():
    for after, other in groups.items():
      is_asked = before.is_fed_avg or (after.is_superquantile and not before.is_superquantile)
      for metric in _PAIRED if before is not after and is_asked else ():
        change = paired.change(own, other, metric)
        if change is not None:
          ends = {metric: change.value, f"{metric}.low": change.low, f"{metric}.high": change.high}
          rows.append((between(before.label, after.label), 0, ends))
  return tables.of_values(rows)


def _shown(numbers: Mapping[str, float]) -> dict[str, float]:
  return {name: value for name, value in numbers.items() if name.startswith(_PREFIXES)}


def _of_report(path: str, key: str = "method") -> Reader:
  """Returns the reader of a study's table of means over seeds, methods by their labels."""

  def read(output_dir: pathlib.Path) -> pd.DataFrame:
    file = output_dir / path
    if not file.exists():
      return pd.DataFrame(columns=list(COLUMNS))
    table = pd.read_csv(file, float_precision="round_trip").rename(columns={key: "method"})
    measured = table[list(COLUMNS)]
    # Files of results name methods by their folders.
    labels = {run.method: run.method.label for run in run_folder.find_runs(output_dir)}
    return measured.assign(method=[labels.get(method, method) for method in measured["method"]])

  return read


def _of_points(path: str, method: Sequence[str], values: Mapping[str, str]) -> Reader:
  """Returns the reader of a study's CSV of points, named by the columns `method`.

  `values` are the columns with numbers, and their names here.
  """

  def read(output_dir: pathlib.Path) -> pd.DataFrame:
    file = output_dir / path
    if not file.exists():
      return pd.DataFrame(columns=list(COLUMNS))
    points = pd.read_csv(file, float_precision="round_trip")
    # A setting that two of a study's figures have was measured twice; more data sets are better.
    if "num_seeds" in points:
      points = points.sort_values("num_seeds", ascending=False, kind="stable")
    points = points.drop_duplicates(list(method)).sort_index()
    names = points[list(method)].astype(str).agg(" ".join, axis=1)
    parts = []
    for column, metric in values.items():
      sds = points["sd"] if column == "error" and "sd" in points else math.nan
      sizes = points["num_seeds"] if "num_seeds" in points else 1
      part = dict(method=names, metric=metric, mean=points[column], sd=sds, num_seeds=sizes)
      parts.append(pd.DataFrame(part))
    return pd.concat(parts, ignore_index=True).dropna(subset=["mean"])

  return read


# The clients are dealt as in versions up to 0.2, which measured first, and have 100 images or more.
_HANDWRITING = "--data_dir=emnist_all.sqlite --client_split=shuffled --min_examples_per_client=100"
# Each writer is a test writer once.
# A CPU computes such rounds of the ConvNet in a second or two.
_SHORT = "--num_rounds=100 --clients_per_round=50 --tune=none"
SOURCES: Mapping[str, Source] = {
  "synthetic": Source(
    "./run_experiments.sh synthetic",
    _of_runs("synthetic"),
    "a task on which the paper compares FedAvg and Δ-FL with privacy only",
  ),
  "private_synthetic": Source(
    "./run_experiments.sh private_synthetic",
    _of_runs("synthetic", is_private=True),
    "the paper’s generator drawn anew, Poisson cohorts, ε a real one, clip norms untuned",
  ),
  "emnist_linear": Source(
    f"./run_experiments.sh emnist_linear {_HANDWRITING} --num_rounds=100",
    _of_runs("emnist_linear"),
    f"{DIGITS}, linear, 100 rounds of 100 clients (the paper: letters, too, 3000 rounds)",
  ),
  "emnist_convnet": Source(
    f"./run_experiments.sh emnist_convnet {_HANDWRITING} {_SHORT}",
    _of_runs("emnist_convnet"),
    f"{DIGITS}, ConvNet, untuned, 100 rounds of 50 clients (the paper: letters, too, 1000 of 100)",
  ),
  "writers_linear": Source(
    "./run_experiments.sh emnist_linear --data_dir=FEMNIST --folds=2 --num_rounds=1000 --tune=none"
    " --thetas=0.8,0.5,0.25,0.1",
    _of_runs("emnist_linear_folds_2"),
    f"{WRITERS}, nearly all with fewer than 190 images, each tested once by a model of the other"
    " half (the paper: 865, 865), untuned, 1000 rounds (the paper: 3000)",
  ),
  "users_linear": Source(
    "./run_experiments.sh sent140_linear --data_dir=SENT140 --folds=2 --min_examples_per_client=6"
    " --client_learning_rate=0.3 --tune=none",
    _of_runs("sent140_linear_folds_2"),
    f"{USERS}, with an eighth of their tweets, each tested once by a model of the other half,"
    " untuned; the last round’s models, which swing from round to round where θ is small:"
    " docs/results.md has means of models, with which the tail of θ = 0.5 is lower",
  ),
  "people_convnet": Source(
    "./run_experiments.sh emnist_convnet --data_dir=FEMNIST --folds=2 --num_rounds=100 --tune=none"
    " --thetas=0.8,0.5,0.25",
    _of_runs("emnist_convnet_folds_2"),
    f"{WRITERS}, as writers_linear, untuned, 100 rounds (the paper: 1000), after which q-FFL and"
    " AFL are far from converged",
  ),
  "personalization": Source(
    f"./run_experiments.sh personalization {_HANDWRITING} {_SHORT}",
    _of_report("emnist_convnet/report.csv"),
    "as emnist_convnet",
  ),
  "model_family": Source(
    f"./run_experiments.sh model_family {_HANDWRITING} --num_rounds=100",
    _of_report("emnist_linear/model_family.csv", "way"),
    "as emnist_linear",
  ),
  "private_quantile": Source(
    "./run_experiments.sh private_quantile",
    _of_points(
      "private_quantile/quantile_error.csv",
      ["distribution", "num_bins", "bits", "epsilon", "recipe"],
      {"error": "error", "bound": "bound"},
    ),
  ),
  "convergence": Source(
    "./run_experiments.sh convergence",
    _of_points(
      "convergence/report.csv",
      ["theta", "cohort_size", "num_rounds", "threshold"],
      {"error": "error"},
    ),
  ),
  "nonconvex": Source(
    "./run_experiments.sh nonconvex",
    _of_points(
      "nonconvex/report.csv",
      ["schedule", "theta", "cohort_size", "local_steps", "num_rounds"],
      {
        name: name
        for name in ("squared_norm", "bound", "drift", "drift_bound", "plain_drift_bound")
      },
    ),
  ),
  "sampling_bias": Source(
    "./run_experiments.sh convergence",
    _of_points(
      "convergence/bias.csv",
      ["theta", "cohort_size"],
      {"largest": "largest", "floor": "floor", "bound": "bound"},
    ),
  ),
}
