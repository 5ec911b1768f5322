"""The models of a task's finished runs, and the test clients for them.

Importing this module starts no TensorFlow.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import itertools
import os
import pathlib
import sys
from typing import Any

import tqdm

from privacy.settings import command_line
from tff_superquantile import atomic_files
from tff_superquantile.experiments import finished_run
from tff_superquantile.experiments.config import flags as train_flags
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.pages import page
from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run import run_folder

HELD_IN_FRACTION = 0.5


@dataclasses.dataclass(frozen=True)
class Material:
  """A run's model, its weights, and the test clients' examples.

  The model is a `tff.learning.models.FunctionalModel`, the weights are `run_files.Weights`. In a
  study in two parts, the examples are an `evaluation.SplitExamples`.
  """

  run: run_folder.Run
  config: run_config.RunConfig
  model: Any
  weights: Any
  examples: Any


def find(output_dir: str | os.PathLike, task: str) -> list[run_folder.Run]:
  """Finds the finished runs of a task, at least one, in the order of `run_folder.find_runs`."""
  runs = [run for run in run_folder.find_runs(output_dir) if run.task == task]
  finished = [run for run in runs if run.finished]
  if not finished:
    others = sorted({run.task for run in run_folder.find_runs(output_dir) if run.finished})
    hint = f"; there are some of {', '.join(others)}" if others else ""
    raise ValueError(
      f"Found {len(runs)} unfinished and no finished run of {task!r} in"
      f" {os.fspath(output_dir)!r}{hint}; run the experiment first, or pass another --output_dir or"
      " --task."
    )
  return finished


def define_task(parser: command_line.Parser, *, has_data: bool = True) -> None:
  """Adds the flags of a command on the finished runs of a task, and on where their data is now."""
  train_flags.add(parser, ["output_dir", "task", *(train_flags.WHERE_DATA_IS if has_data else ())])


def finished_task(args: argparse.Namespace) -> tuple[str, str, dict[str, str]]:
  """Returns --output_dir, --task and what to override of `train_flags.WHERE_DATA_IS`.

  Without --task it is the only one with finished runs.
  """
  asked, defaults = train_flags.values(args), run_config.defaults()
  output_dir, task = (asked.get(name, defaults[name]) for name in ("output_dir", "task"))
  if "task" not in asked:
    tasks = sorted({run.task for run in run_folder.find_runs(output_dir) if run.finished})
    if len(tasks) > 1:
      raise ValueError(
        f"Found finished runs of {', '.join(tasks)} in {output_dir}; choose one by --task."
      )
    task = tasks[0] if tasks else task
  overrides = {name: asked[name] for name in train_flags.WHERE_DATA_IS if name in asked}
  return output_dir, task, overrides


def publish(report: Callable[..., page.Page], args: argparse.Namespace) -> None:
  """Runs the command of a study of finished runs, report(output_dir, task)."""
  output_dir, task, _ = finished_task(args)
  print(page.publish(report(output_dir, task), pathlib.Path(output_dir, task)))


def define(parser: command_line.Parser, purpose: str) -> None:
  """Adds the flags of a study whose clients hold in a fraction of their examples for a purpose."""
  define_task(parser)
  text = f"Fraction of a test client's examples to {purpose} on; the others measure."
  command_line.add_flag(parser, "held_in_fraction", float, HELD_IN_FRACTION, text)


def check_fraction(held_in_fraction: float) -> None:
  """Raises a `ValueError` unless clients can hold in this fraction of their examples."""
  if not 0.0 < held_in_fraction < 1.0:
    raise ValueError(
      f"Found held_in_fraction = {held_in_fraction}; expected a number between 0 and 1."
    )


@dataclasses.dataclass(frozen=True)
class ModelResults:
  """The results of a study in each run's folder: NAME.csv, a row a client, and NAME.json.

  The settings are plain values on which the results depend, besides the run's model; one of them is
  the "held_in_fraction" of `evaluation.split_examples`. The parts are suffixes of the columns
  loss_PART and error_PART, whose distributions are described.
  """

  name: str
  settings: Mapping[str, Any]
  parts: Sequence[str]

  def read(self, run: run_folder.Run) -> dict[str, Any]:
    """Returns the content of the JSON; empty if there is none."""
    return run_files.read_json(run.path / f"{self.name}.json")

  def numbers(self, run: run_folder.Run) -> dict[str, float]:
    """The distributions of the parts by dotted name, such as PART.error.p90."""
    return run_files.flatten({part: self.read(run)[part] for part in self.parts})

  def left_out(self, runs: Iterable[run_folder.Run]) -> list[str]:
    """Returns a sentence about clients that were left out, if there are any."""
    most = max(self.read(run)["num_left_out"] for run in runs)
    return [f"Left out: clients with a single example, up to {most} of a seed."] if most else []

  def measure(
    self,
    runs: Sequence[run_folder.Run],
    work: Callable[[Material, Callable[[], None]], tuple[Mapping[str, Sequence], Mapping]],
    overrides: Mapping[str, str] | None = None,
  ) -> None:
    """Measures the runs that have no results of these settings and their present model.

    One bar shows the time left. Each file is written whole or not at all. The work takes what a
    run's model is tried with, and a function to be called whenever a client is done; it returns the
    columns of the CSV and what else the JSON describes. The overrides replace the runs' own values
    of `train_flags.WHERE_DATA_IS`. Other test clients than those of a run's evaluation are refused.
    """
    _check_weights(runs)
    settings = {run: {**self.settings, "model": run.fingerprint} for run in runs}
    missing = [
      run
      for run in runs
      if self.read(run).get("settings") != settings[run]
      or not (run.path / f"{self.name}.csv").is_file()
    ]
    if not missing:
      return
    # Runs go by seed, as the methods of a seed share their clients.
    missing.sort(key=lambda run: run.seed)
    sizes = [len(run.clients("test").get("client_id", ())) for run in missing]
    terminal = sys.stderr.isatty()
    loaded: dict[Any, tuple[Any, Any, list[str]]] = {}
    with tqdm.tqdm(
      desc=self.name.replace("_", " "),
      total=sum(sizes) or None,
      unit="client",
      mininterval=0.2 if terminal else 20,
      dynamic_ncols=terminal,
    ) as bar:
      for run, done in zip(missing, itertools.accumulate(sizes)):
        bar.set_postfix_str(f"{run.method}, seed {run.seed}", refresh=terminal)
        finished_run.check_classes(run)
        config = finished_run.config(run, overrides or {})
        key = config.request(run.columns)
        if key not in loaded:
          loaded = {key: _load(run, config, self.settings["held_in_fraction"])}
        model, examples, ids = loaded[key]
        run.check_clients("test", ids)
        weights = run.weights_for(model)
        material = Material(run, run_config.with_defaults(config), model, weights, examples)
        columns, described = work(material, bar.update)
        path = run.path / f"{self.name}.json"
        path.unlink(missing_ok=True)  # Written last, it says that both are there.
        run_files.write_clients(path.with_suffix(".csv"), columns)
        described = {"settings": settings[run], **described, **self._distributions(columns)}
        atomic_files.write_json(path, described)
        bar.update(done - bar.n)  # Clients that were left out count as done.

  def _distributions(self, columns: Mapping[str, Sequence]) -> dict[str, dict[str, Any]]:
    from tff_superquantile import evaluation

    return {
      part: {name: evaluation.describe(columns[f"{name}_{part}"]) for name in ("loss", "error")}
      for part in self.parts
    }


def _check_weights(runs: Iterable[run_folder.Run]) -> None:
  """Raises a `ValueError` that lists the runs without a file of their model."""
  name = run_folder.WEIGHTS
  lacking = [f"{run.method}/seed_{run.seed}" for run in runs if not (run.path / name).is_file()]
  if lacking:
    listed = ", ".join(lacking[:8]) + (", …" if len(lacking) > 8 else "")
    raise ValueError(
      f"Found no {name} in {len(lacking)} of the finished runs ({listed}), which an older"
      " version left; delete their metrics.json and run the same experiment again: it continues"
      " from the last checkpoint and writes the model."
    )


def _load(
  run: run_folder.Run, config: run_config.RunConfig, held_in_fraction: float
) -> tuple[Any, Any, list[str]]:
  """Returns a run's model, its test clients' examples in two parts, and all test clients' ids."""
  from tff_superquantile import evaluation

  model, splits = finished_run.load_task(finished_run.get_task(run, config), config)
  files = splits["test"]
  everything = evaluation.examples_of_files(files)
  return model, evaluation.split_examples(everything, held_in_fraction, run.seed), files.client_ids
