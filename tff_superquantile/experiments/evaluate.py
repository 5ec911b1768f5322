"""Evaluates a finished run's model on any clients of its task.

    superquantile evaluate RUN_DIR [--data_dir=PATH] [--out=FILE]

computes the loss, the error and the other measures of every client of a split, exactly, prints
their distribution, those of all examples together, and the share and the recall of each class. It
writes a row a client, as a run's own test_clients.csv, and `place`, the client's place in the run:
`train` if it has trained the model, `validation`, `test`, or nothing if it is new to the run. The
clients are the run's own, or those of other files of the same task, such as writers that came
later. Those that have trained the model are measured apart. The exit code is 0, or 2 for a mistake
in the arguments, a bad folder or other data.

The numbers are exact. Of a private run, they are computed for its test clients, who are outside of
its guarantee, and for clients of other data. The command assumes that no client of other data has
taken part in training; it refuses data that have one of the run's test clients, as these are the
run's own clients again, differently split. `experiments.private_evaluation` asks training and
validation clients with a budget.
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
from tff_superquantile.experiments import train_flags
from tff_superquantile.experiments.run import run_config
from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.measures import measure

_ALL = "all"
_SPLITS = ("test", "train", "validation", _ALL)
_NUMBERS = ("num_train_clients", "num_test_clients", "min_examples_per_client")
_CLIENTS_AT_ONCE = 64  # Memory holds the examples of so many.
# Memory holds so many probabilities: of more, there are no measures of all examples together.
_MOST_PREDICTED = 2**26


class Evaluated(NamedTuple):
  """What is known of clients under a model.

  Attributes:
    columns: Arrays of shape [clients] by column.
    predictions: Those of all their examples, one client after the other; None if there are too many
      to hold.
  """

  columns: dict[str, np.ndarray]
  predictions: measure.Predictions | None

  def of(self, its: np.ndarray) -> Evaluated:
    """Returns the same of some clients, bool [clients]."""
    columns, found = {name: values[its] for name, values in self.columns.items()}, None
    if self.predictions is not None:
      rows = np.repeat(its, self.columns["num_examples"])
      found = measure.Predictions(*(values[rows] for values in self.predictions))
    return Evaluated(columns, found)


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
  clients = parser.add_argument_group("which clients of other data, by default as many as the run")
  for name in _NUMBERS:
    command_line.add_flag(clients, name, int, None, "as for train")


def evaluate(
  folder: pathlib.Path, split: str = "test", overrides: Mapping[str, Any] | None = None
) -> Evaluated:
  """Computes all measures of every client of a split under a finished run's model.

  `overrides` are values of the run's flags that say which clients there are, in place of its own.
  """
  overrides = overrides or {}
  run = run_folder.find_finished(folder)
  config = _config(run, split, overrides)
  if config.is_private and split != "test" and "data_dir" not in overrides:
    raise ValueError(_refusal(folder, split))
  model, splits = finished_run.load_task(run, config, everybody=split == _ALL)
  chosen = splits if split == _ALL else {split: finished_run.of_split(splits, split)}
  if config.is_private:
    _check_outside(run, folder, split, config, chosen)
  elif not overrides and split != _ALL:
    run.check_clients(split, chosen[split].client_ids)
  _check_siblings(run, config, chosen)
  weights = run.weights_for(model)
  parts, held, num_predicted = [], [], 0
  for files in chosen.values():
    for of_clients, predictions in _evaluate(model, weights, files, run.error_kind):
      parts.append(of_clients)
      held.append(predictions)
      num_predicted += predictions.values.size
      if num_predicted > _MOST_PREDICTED:
        held.clear()
  columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
  joined = measure.Predictions(*map(np.concatenate, zip(*held)))
  is_whole = num_predicted <= _MOST_PREDICTED
  return Evaluated(columns, joined if is_whole else None)


def places(run: run_folder.Run, ids: Sequence[str]) -> np.ndarray:
  """Returns the split of a run in which each client was, by its id: texts [clients], or ""."""
  found = {
    client_id: split
    for split in ("test", "validation", "train")
    for client_id in run.clients(split).get("client_id", np.array([])).tolist()
  }
  return np.array([found.get(client_id, "") for client_id in ids], dtype=str)


def _config(run: run_folder.Run, split: str, overrides: Mapping[str, Any]) -> run_config.RunConfig:
  """Returns the config of the clients that are evaluated."""
  config = finished_run.config(run, overrides)
  return _without_limits(config, overrides) if split == _ALL else config


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
  return run_config.replace(
    config,
    num_train_clients=0,
    num_test_clients=0,
    min_examples_per_client=least,
    held_out_examples=0.0,  # All rows of a client are its examples.
  )


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
      found = evaluation.measured(of_clients, predictions, error)
      yield found.of_clients.columns(), predictions
      bar.update(len(ids))


def _check_siblings(
  run: run_folder.Run, config: run_config.RunConfig, chosen: Mapping[str, Any]
) -> None:
  """Raises a `ValueError` if another run of the experiment protects a client among `chosen`."""
  from tff_superquantile.experiments.run.training import siblings

  ids = {client_id for files in chosen.values() for client_id in files.client_ids}
  of_run = run_config.from_flags(run.flags)
  measured = siblings.Coverage(set(), ids)
  siblings.check(
    run.path, of_run, lambda: finished_run.get_task(run, config), measured, data=config
  )


def main(args: argparse.Namespace) -> None:
  if args.out is not None:
    finished_run.check_new(args.out)
  overrides = finished_run.given(args, train_flags.WHERE_DATA_IS)
  for name, value in finished_run.given(args, _NUMBERS).items():
    overrides[name] = str(value)
  evaluated = evaluate(args.folder, args.split, overrides)
  columns = evaluated.columns
  run = run_folder.find_finished(args.folder)
  where = places(run, list(columns["client_id"]))
  if args.out is not None:
    run_files.write_clients(args.out, {**columns, "place": where})
  # With pandas, which a mistake in the arguments need not wait for.
  from tff_superquantile.experiments import evaluation_text
  from tff_superquantile.experiments.report import tables

  noun = "client" if args.split == _ALL else f"{args.split} client"
  print(
    f"{args.folder}: {tables.plural(len(columns['client_id']), noun)} with"
    f" {tables.plural(int(columns['num_examples'].sum()), 'example')}."
  )
  task = finished_run.get_task(run, _config(run, args.split, overrides))
  is_private = run.config is None or run.config.is_private
  for heading, its in evaluation_text.groups(where, is_private):
    chosen = evaluated.of(its)
    print(heading)
    print(evaluation_text.distribution(chosen.columns, run.error_kind))
    if chosen.predictions is None:
      print("There are too many examples to measure them all together.")
    else:
      of_all = (chosen.columns, chosen.predictions, task.labels, run.error_kind)
      print(evaluation_text.together(*of_all))
  for sentence in task.remarks:
    print(sentence)
  if args.out is not None:
    print(f"Written: {args.out}")


if __name__ == "__main__":
  sys.exit(cli.run(sys.modules[__name__]))
