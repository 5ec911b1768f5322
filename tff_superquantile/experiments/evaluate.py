"""Evaluates a finished run's model on any clients of its task.

    superquantile evaluate RUN_DIR [--data_dir=PATH] [--out=FILE]

computes the loss, the error and the other measures of every client of a split, exactly, prints
their distribution, those of all examples together, and the share and the recall of each class. It
writes a row a client, as a run's own test_clients.csv, and `place`, the client's place in the run:
`train` if it has trained the model, `validation`, `test`, or nothing if it is new to the run. The
clients are the run's own, or those of other files of the same task, such as writers that came
later. Those that have trained the model are measured apart. The exit code is 0, or 2 for a mistake
in the arguments, a bad folder or other data.

The numbers are exact. So no client is measured whom a run of the experiment protects, in whatever
table the client is, unless `--exact_siblings=allowed` says that clients are nobody's secret. Of a
private run, that leaves its test clients and clients who are new to it; `private_evaluation` asks
its other clients with a budget.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
import functools
import pathlib
import sys
from typing import Any, NamedTuple

import numpy as np
import tqdm

from privacy.settings import command_line
from tff_superquantile.experiments import cli
from tff_superquantile.experiments import finished_run
from tff_superquantile.experiments.config import flags as train_flags
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run import register
from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.measures import measure

_ALL = "all"
_SPLITS = ("test", "train", "validation", _ALL)
_NUMBERS = ("num_train_clients", "num_test_clients", "min_examples_per_client")
_OF_ROWS = (*train_flags.OF_ROWS, "rows_without_client")
_CLIENTS_AT_ONCE = 64  # Memory holds the examples of so many.
# Memory holds so many probabilities: of more, there are no measures of all examples together.
_MOST_PREDICTED = 2**26


class Evaluated(NamedTuple):
  """What is known of clients under a model.

  Attributes:
    task: The run's `tasks.task.Task`, of which they are clients.
    columns: Arrays of shape [clients] by column.
    predictions: Those of all their examples, one client after the other; None if there are too many
      to hold.
  """

  task: Any
  columns: dict[str, np.ndarray]
  predictions: measure.Predictions | None

  def of(self, its: np.ndarray) -> Evaluated:
    """Returns the same of some clients, bool [clients]."""
    columns = {name: values[its] for name, values in self.columns.items()}
    if self.predictions is None:
      return self._replace(columns=columns)
    rows = np.repeat(its, self.columns["num_examples"])
    predictions = measure.Predictions(*(values[rows] for values in self.predictions))
    return self._replace(columns=columns, predictions=predictions)


def define(parser: command_line.Parser) -> None:
  add = functools.partial(command_line.add_flag, parser)
  finished_run.add_arguments(parser)
  add(
    "split",
    str,
    "test",
    "the clients; all are those of the data, however few their examples, as all that came later",
    choices=_SPLITS,
  )
  parser.add_argument(
    "--out",
    type=pathlib.Path,
    metavar="FILE",
    help="a CSV file to write, a row a client with its measures and place, the split of the run in"
    " which it was; by default none is written",
  )
  add(
    "exact_siblings",
    str,
    "refused",
    "as for train: allowed to measure clients whom a run protects, as they are nobody's secret",
    choices=("refused", run_config.ALLOWED),
  )
  clients = parser.add_argument_group("which clients of other data, by default as many as the run")
  for name in _NUMBERS:
    command_line.add_flag(clients, name, int, None, "as for train")
  train_flags.add(parser.add_argument_group(train_flags.TITLE_OF_ROWS), _OF_ROWS)


def evaluate(
  folder: pathlib.Path,
  split: str = "test",
  overrides: Mapping[str, Any] | None = None,
  out: pathlib.Path | None = None,
  is_allowed: bool = False,
) -> Evaluated:
  """Computes all measures of every client of a split under a finished run's model.

  Args:
    folder: The run's folder.
    split: "test", "train", "validation", or "all" for the clients of the data.
    overrides: Values of the run's flags that say which clients there are, in place of its own.
    out: A file that is not there, for a row a client; None to write none.
    is_allowed: Whether clients whom a run protects may be measured, as they are nobody's secret.

  Returns:
    The measures of each client.

  Raises:
    ValueError: If there is no such run, data or split, or a run protects one of the clients.
  """
  overrides = overrides or {}
  run = run_folder.find_finished(folder)
  config = finished_run.config(run, overrides)
  if split == _ALL:
    config = _without_limits(config, overrides)
  if config.is_private and split != "test" and "data_dir" not in overrides:
    raise ValueError(_refusal(folder, split))
  task = finished_run.get_task(run, config, is_own="data_dir" not in overrides)
  model, splits = finished_run.load_task(task, config, everybody=split == _ALL)
  chosen = splits if split == _ALL else {split: finished_run.of_split(splits, split)}
  if not config.is_private and not overrides and split != _ALL:
    run.check_clients(split, chosen[split].client_ids)
  ids = {client_id for files in chosen.values() for client_id in files.client_ids}
  weights = run.weights_for(model)
  with register.measuring(folder, ids, is_allowed, out):
    columns, predictions = _evaluate_all(model, weights, chosen, run.error_kind)
    if out is not None:
      where = places(run, list(columns["client_id"]))
      run_files.write_clients(out, {**columns, "place": where})
  return Evaluated(task, columns, predictions)


def _evaluate_all(
  model: Any, weights: Any, chosen: Mapping[str, Any], error: str
) -> tuple[dict[str, np.ndarray], measure.Predictions | None]:
  """Returns the columns and predictions of the clients of some splits, one after the other."""
  parts, held, num_predicted = [], [], 0
  for files in chosen.values():
    for of_clients, predictions in _evaluate(model, weights, files, error):
      parts.append(of_clients)
      held.append(predictions)
      num_predicted += predictions.values.size
      if num_predicted > _MOST_PREDICTED:
        held.clear()
  columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
  if num_predicted > _MOST_PREDICTED:
    return columns, None
  return columns, measure.Predictions(*map(np.concatenate, zip(*held)))


def places(run: run_folder.Run, ids: Sequence[str]) -> np.ndarray:
  """Returns the split of a run in which each client was, by its id: texts [clients], or ""."""
  split_of = {
    client_id: split
    for split in ("test", "validation", "train")
    for client_id in run.clients(split).get("client_id", np.array([])).tolist()
  }
  return np.array([split_of.get(client_id, "") for client_id in ids], dtype=str)


def _refusal(folder: pathlib.Path, split: str) -> str:
  asked_with_a_budget = "train" if split == _ALL else split
  return (
    f"Found --split={split} of the private run {folder}, whose budget covers no exact number of its"
    f" clients; expected test clients or other data: superquantile private_evaluation {folder}"
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
  return run_config.with_values(
    config,
    num_train_clients=0,
    num_test_clients=0,
    min_examples_per_client=least,
    held_out_examples=0.0,  # All rows of a client are its examples.
  )


def _evaluate(
  model: Any, weights: Any, files: Any, error: str
) -> Iterator[tuple[dict[str, np.ndarray], measure.Predictions]]:
  """Yields columns and predictions of clients, some at a time, with a bar if that takes long."""
  from tff_superquantile import evaluation

  evaluator = None
  with tqdm.tqdm(total=len(files.client_ids), unit="client", delay=2.0, disable=None) as bar:
    for start in range(0, len(files.client_ids), _CLIENTS_AT_ONCE):
      ids = files.client_ids[start : start + _CLIENTS_AT_ONCE]
      examples = evaluation.examples_of_files(files, ids)
      evaluator = evaluation.build_evaluator(model, examples, evaluator, error)
      of_clients, predictions = evaluator.predict(weights)
      yield evaluation.measured(of_clients, predictions, error).of_clients.columns(), predictions
      bar.update(len(ids))


def main(args: argparse.Namespace) -> None:
  if args.out is not None:
    finished_run.check_new(args.out)
  overrides = finished_run.passed_flags(args, (*train_flags.WHERE_DATA_IS, *_OF_ROWS))
  for name, value in finished_run.passed_flags(args, _NUMBERS).items():
    overrides[name] = str(value)
  is_allowed = args.exact_siblings == run_config.ALLOWED
  evaluated = evaluate(args.folder, args.split, overrides, args.out, is_allowed)
  columns = evaluated.columns
  run = run_folder.find_finished(args.folder)
  where = places(run, list(columns["client_id"]))
  # With pandas, which a mistake in the arguments need not wait for.
  from tff_superquantile.experiments import evaluation_text
  from tff_superquantile.experiments.pages import tables

  noun = "client" if args.split == _ALL else f"{args.split} client"
  print(
    f"{args.folder}: {tables.plural(len(columns['client_id']), noun)} with"
    f" {tables.plural(int(columns['num_examples'].sum()), 'example')}."
  )
  is_private = run.config is None or run.config.is_private
  for heading, its in evaluation_text.groups(where, is_private):
    chosen = evaluated.of(its)
    print(heading)
    print(evaluation_text.distribution(chosen.columns, run.error_kind))
    print(evaluation_text.of_the_run(run))
    if chosen.predictions is None:
      print("There are too many examples to measure them all together.")
    else:
      of_all = (chosen.columns, chosen.predictions, evaluated.task.labels, run.error_kind)
      print(evaluation_text.together(*of_all))
  for sentence in evaluated.task.remarks:
    print(sentence)
  if args.out is not None:
    print(f"Written: {args.out}")


if __name__ == "__main__":
  sys.exit(cli.run(sys.modules[__name__]))
