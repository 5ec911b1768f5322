"""Evaluates a finished run's model on any clients of its task.

    python -m tff_superquantile.experiments.evaluate RUN_DIR [--data_dir=PATH] [--out=FILE]

computes the loss and error of every client of a split, exactly, prints their distribution and
writes `client_id,num_examples,loss,error`, a row a client, as a run's own test_clients.csv. The
clients are the run's own, or those of other files of the same task, such as writers that came
later. The exit code is 0, or 2 for a mistake in the arguments, a bad folder or other data.

The numbers are exact. Of a private run, they are computed for its test clients, who are outside of
its guarantee, and for clients of other data. The command assumes that no client of other data has
taken part in training; it refuses data that have one of the run's test clients, as these are the
run's own clients again, differently split. `python -m privacy.evaluate` asks training and
validation clients with a budget.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
import pathlib
import sys
from typing import Any

import numpy as np
import tqdm

from privacy.command import asked
from privacy.command import flags
from tff_superquantile.experiments import cli
from tff_superquantile.experiments import finished_run
from tff_superquantile.experiments import train_flags
from tff_superquantile.experiments.run import finished
from tff_superquantile.experiments.run import run_config
from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run import run_folder

_ALL = "all"
_SPLITS = ("test", "train", "validation", _ALL)
_NUMBERS = ("num_train_clients", "num_test_clients", "min_examples_per_client")
_CLIENTS_AT_ONCE = 64  # Memory holds the examples of so many.
_ROW = "  {:<14}{:>15}{:>10}"
_TITLES = {
  "std": "sd",
  "superquantile_90": "worst 10 %",
  "superquantile_95": "worst 5 %",
  "best_10": "best 10 %",
}


def make_parser() -> flags.Parser:
  """Makes the parser; a mistake in the arguments is a ValueError with a sentence."""
  parser = flags.Parser(
    prog="python -m tff_superquantile.experiments.evaluate",
    description="Computes the loss and error of every client of a split under a finished run's"
    " model, and prints their distribution over clients: mean, percentiles and the mean of the"
    " worst 10 %. The clients are the run's own, or those of other files of the same task.",
    epilog="Exit code: 0, or 2 for a mistake in the arguments, a bad folder or other data. The"
    " numbers are exact: python -m privacy.evaluate releases them with differential privacy.",
    allow_abbrev=False,
  )
  finished_run.add_arguments(parser)
  parser.add_argument(
    "--split",
    choices=_SPLITS,
    default="test",
    help="the clients; all are those of the data, however few their examples, such as all that came"
    " later (default: test)",
  )
  parser.add_argument(
    "--out",
    type=pathlib.Path,
    metavar="FILE",
    help="a CSV file to write, client_id,num_examples,loss,error; by default none is written",
  )
  parser.add_argument("--overwrite", action="store_true", help="replace FILE if it is there")
  clients = parser.add_argument_group("which clients of other data, by default as many as the run")
  for name in _NUMBERS:
    clients.add_argument(f"--{name}", type=flags.number, metavar="N", help="as for train")
  return parser


def evaluate(
  folder: pathlib.Path, split: str = "test", overrides: Mapping[str, Any] | None = None
) -> dict[str, np.ndarray]:
  """Computes the loss and error of every client of a split under a finished run's model.

  Args:
    folder: The folder of the run.
    split: "test", "train", "validation" or "all".
    overrides: Values of the run's flags that say which clients there are, in place of its own.

  Returns:
    Arrays of shape [clients] by column: `client_id`, `num_examples`, `loss` (nats) and `error`
    (fraction of a client's examples, or root mean squared error in standard deviations of labels).

  Raises:
    ValueError: If there is no such run or split, the data are another task's, or exact numbers of
      these clients are not to be had of a private run.
  """
  overrides = overrides or {}
  run = finished.find(folder)
  config = _config(run, split, overrides)
  if config.is_private and split != "test" and "data_dir" not in overrides:
    raise ValueError(_refusal(folder, split))
  model, splits = finished_run.load_task(run, config, everybody=split == _ALL)
  chosen = splits if split == _ALL else {split: finished_run.of_split(splits, split)}
  if config.is_private:
    _check_outside(run, folder, split, config, chosen)
  elif not overrides and split != _ALL:
    finished.check_clients(run, split, chosen[split].client_ids)
  weights = finished.read_weights(run, model)
  found = [_evaluate(model, weights, files, run.error_kind) for files in chosen.values()]
  return {name: np.concatenate([columns[name] for columns in found]) for name in found[0]}


def remarks(folder: pathlib.Path, split: str, overrides: Mapping[str, Any]) -> Sequence[str]:
  """Returns sentences on a table of the user's that belong beside what `evaluate` returns."""
  run = finished.find(folder)
  config = _config(run, split, overrides)
  return finished_run.get_task(run, config).remarks


def _config(run: run_folder.Run, split: str, overrides: Mapping[str, Any]) -> run_config.RunConfig:
  """Returns the config of the clients that are evaluated."""
  config = finished_run.config(run, overrides)
  return _without_limits(config, overrides) if split == _ALL else config


def _refusal(folder: pathlib.Path, split: str) -> str:
  asked_with_a_budget = "train" if split == _ALL else split
  return (
    f"Found --split={split} of the private run {folder}, whose budget covers no exact number of its"
    f" clients; expected test clients or other data: python -m privacy.evaluate {folder}"
    f" --split={asked_with_a_budget} --epsilon=1 asks them with a budget."
  )


def _without_limits(
  config: run_config.RunConfig, overrides: Mapping[str, Any]
) -> run_config.RunConfig:
  """Returns a config that leaves no client of the data out but those that `overrides` leave out."""
  for name in ("num_train_clients", "num_test_clients"):
    if name in overrides:
      raise ValueError(
        f"Found --{name} with --split={_ALL}, which takes all clients; leave one of the two out."
      )
  least = config.task.min_examples_per_client if "min_examples_per_client" in overrides else 0
  limits: dict[str, Any] = dict(
    num_train_clients=0,
    num_test_clients=0,
    min_examples_per_client=least,
    held_out_examples=0.0,  # All rows of a client are its examples.
  )
  return run_config.replace(config, **limits)


def _check_outside(
  run: run_folder.Run,
  folder: pathlib.Path,
  split: str,
  config: run_config.RunConfig,
  chosen: Mapping[str, Any],
) -> None:
  """Raises a `ValueError` unless clients are outside of a private run's guarantee.

  They are if they are its test clients, or if none of the data's clients, chosen or not, is one of
  its test clients. Otherwise the data are the run's own, cut in another way.
  """
  own = run.clients("test").get("client_id", np.array([]))
  if split == "test" and len(own) and list(own) == list(chosen[split].client_ids):
    return
  if len(own):
    _, pools = finished_run.load_task(run, _without_limits(config, {}), everybody=True)
    everybody = {client_id for files in pools.values() for client_id in files.client_ids}
    if not everybody & set(own):
      return
  raise ValueError(_refusal(folder, split))


def _evaluate(model: Any, weights: Any, files: Any, error: str) -> dict[str, np.ndarray]:
  """Evaluates clients some at a time, with a bar if that takes long."""
  from tff_superquantile import evaluation

  evaluator = None
  found = []
  bar = tqdm.tqdm(total=len(files.client_ids), unit="client", delay=2.0, disable=None)
  with bar:
    for start in range(0, len(files.client_ids), _CLIENTS_AT_ONCE):
      ids = files.client_ids[start : start + _CLIENTS_AT_ONCE]
      x, y, offsets = files.load(ids)
      examples = evaluation.ClientExamples(ids, x, y, offsets, files.decode)
      evaluator = evaluation.build_evaluator(model, examples, evaluator, error)
      found.append(evaluator(weights).columns())
      bar.update(len(ids))
  return {name: np.concatenate([columns[name] for columns in found]) for name in found[0]}


def distribution_text(columns: Mapping[str, np.ndarray], kind: str = "misclassification") -> str:
  """Describes the distribution of clients' losses and errors in a table for a terminal.

  Args:
    columns: From `evaluate`.
    kind: How errors are measured, a `Run.error_kind`.

  Returns:
    Lines of text.
  """
  from tff_superquantile import evaluation
  from tff_superquantile.experiments.report import units

  unit = units.of_error(kind).error
  error, loss = (evaluation.describe(columns[name]) for name in ("error", "loss"))
  rows = [
    _ROW.format(_TITLES.get(name, name), unit.number(error[name]), f"{loss[name]:.3f}")
    for name in error
  ]
  return "\n".join([_ROW.format("", f"error, {unit.symbol}", "loss"), *rows])


def _main(args: argparse.Namespace) -> None:
  if args.out is not None:
    finished_run.check_new(args.out, args.overwrite)
  overrides = finished_run.given(args, train_flags.WHERE_DATA_IS)
  for name, value in finished_run.given(args, _NUMBERS).items():
    overrides[name] = str(asked.whole(name, value))
  columns = evaluate(args.folder, args.split, overrides)
  if args.out is not None:
    run_files.write_clients(args.out, columns)
  # With pandas, which a mistake in the arguments need not wait for.
  from tff_superquantile.experiments.report import tables

  noun = "client" if args.split == _ALL else f"{args.split} client"
  print(
    f"{args.folder}: {tables.plural(len(columns['client_id']), noun)} with"
    f" {tables.plural(int(columns['num_examples'].sum()), 'example')}."
  )
  print(distribution_text(columns, finished.find(args.folder).error_kind))
  for remark in remarks(args.folder, args.split, overrides):
    print(remark)
  if args.out is not None:
    print(f"Written: {args.out}")


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit code."""
  return cli.run_parser(make_parser(), _main, argv)


if __name__ == "__main__":
  sys.exit(main())
