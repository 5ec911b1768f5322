"""Makes the files of reference models that the finished runs of a task lack."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
import hashlib
import json
import pathlib
import sys
from typing import Any

import numpy as np

from tff_superquantile.experiments import cli
from tff_superquantile.experiments import finished_run
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.references import kept
from tff_superquantile.experiments.references import without_models
from tff_superquantile.experiments.run import run_folder

_VERSION = 7  # Of what is computed; another number makes all files anew.
_LEAST_OF_A_CLIENT = 10  # Half of them fit its own model.
# Of its weights, over the number of examples: without it the loss of separable classes has no
# bound. From 0.003 to 0.1 own errors of twelve tables change by 0.02 at most, losses fall by half.
_PRIOR = 0.1
_MOST_CLIENTS = 100  # That get a model of their own.
_MOST_PRODUCTS = 2e10  # Examples times weights, one pass of which takes seconds.
_MOST_ENTRIES = 200  # Of a client's profile.
_OF_CLIENTS = ("validation_fraction", "min_examples_per_client")  # Flags that choose them.
_PRIVATE = (
  "it would say of the training clients of private runs what no budget covers; a folder without"
  " private runs has it"
)


def make(runs: Iterable[run_folder.Run], is_strict: bool = False) -> list[pathlib.Path]:
  """Makes the reference models of each seed, unless they are there and up to date.

  Where a run of the task is private, nothing follows from training clients: the constant is that
  of the validation and test clients, who are outside of the guarantee. A seed whose data are not
  there, or are not those of its run, gets none, with a sentence on the error stream; a strict call
  raises that. Returns the files that were written.
  """
  by_seed: dict[int, list[run_folder.Run]] = {}
  finished = [run for run in runs if run.finished]
  for run in finished:
    by_seed.setdefault(run.seed, []).append(run)
  # Flags that cannot be read may be those of a private run.
  is_private = any(run.config is None or run.config.is_private for run in finished)
  written = []
  for seed, of_seed in by_seed.items():
    chosen = _choose(of_seed, is_private)
    if chosen is None or chosen.config is None:
      continue
    folder = chosen.path.parent.parent
    fingerprint = _fingerprint(chosen, is_private)
    earlier = kept.read(folder, seed)
    if earlier is not None and earlier.fingerprint == fingerprint:
      continue
    print(f"Fitting reference models, seed {seed}", file=sys.stderr, flush=True)
    try:
      references = _compute(chosen, chosen.config, is_private, fingerprint)
    except (OSError, ValueError) as error:
      if is_strict:
        raise
      print(f"The report has no reference models of seed {seed}: {error}", file=sys.stderr)
      continue
    written.append(kept.write(folder, seed, references))
  return written


def _choose(runs: Sequence[run_folder.Run], is_private: bool) -> run_folder.Run | None:
  """Returns the run whose clients and model count, FedAvg's; a private one where one is."""
  known = [
    run
    for run in runs
    if run.config is not None and run.clients("test") and (run.config.is_private or not is_private)
  ]
  return min(known, key=lambda run: run.method.order, default=None)


def _fingerprint(run: run_folder.Run, is_private: bool) -> str:
  """Identifies what the reference models follow from; of training clients their data's digest."""
  names = ("task", "model", "l2", "class_weights", "data", "num_train_clients", "seed")
  parts = {
    "version": _VERSION,
    "is_private": is_private,
    "flags": {name: run.flags.get(name) for name in (*names, *_OF_CLIENTS)},
    "data": run.manifest.get("data"),
    "columns": run.columns,
    "clients": run.clients("test")["client_id"].tolist(),
    "sizes": run.clients("test")["num_examples"].tolist(),
  }
  return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _compute(
  run: run_folder.Run, config: run_config.RunConfig, is_private: bool, fingerprint: str
) -> kept.References:
  """Computes the reference models of a seed."""
  task = finished_run.get_task(run, config)
  with cli.starting_tensorflow():
    from tff_superquantile import evaluation
    from tff_superquantile.experiments.references import fitting
    from tff_superquantile.experiments.run import build
    from tff_superquantile.experiments.run.hooks import class_weights
    from tff_superquantile.experiments.run.hooks import personalizing

  model, splits = build.load_task(task, config)
  run.check_clients("test", splits["test"].client_ids)

  test = evaluation.examples_of_files(splits["test"])
  sources = [s for s in ("validation", "test") if s in splits] if is_private else ["train"]
  answers = {s: test if s == "test" else evaluation.examples_of_files(splits[s]) for s in sources}
  labels = np.concatenate([np.reshape(clients.y, -1) for clients in answers.values()])
  is_number = task.error == "rmse"
  num_classes = None if is_number else evaluation.num_classes(model)
  constant = fitting.constant(labels, num_classes)
  description = _describe_constant(task, constant.label, sources)
  references = {kept.CONSTANT: _reference(description, constant.results(test))}
  left_out = {}
  l2, trained, weighted = config.local.l2 or 0.0, model, ""
  if config.local.class_weights == class_weights.BALANCED:
    weights = class_weights.balanced(labels.astype(np.int64), evaluation.num_classes(model))
    trained, weighted = class_weights.weighted(model, weights), ", with class weights"
  reason = _PRIVATE if is_private else _why_no_fit(model, len(labels))
  if reason:
    left_out[kept.POOLED] = reason
  else:
    results = fitting.pooled(model, answers["train"], test, l2, task.error, trained)
    description = (
      f"fitted by L-BFGS to the examples of all {len(answers['train'].client_ids)} training clients"
      f" in one place, each example counted once{weighted}"
    )
    references[kept.POOLED] = _reference(description, results)
  # Of a client's own rows, those that are held out are the test client's.
  sizes = np.diff(test.offsets) / (config.task.held_out_examples or 1.0)
  enough = np.flatnonzero(sizes >= _LEAST_OF_A_CLIENT)
  reason = _why_no_fit(model, 0) or _why_no_own_models(len(enough), len(test.client_ids))
  if reason:
    left_out[kept.LOCAL] = reason
  else:
    its = {test.client_ids[i] for i in enough[:_MOST_CLIENTS]}
    parts = personalizing.split_clients(config, splits)
    places = [i for i, client_id in enumerate(parts.held_in.client_ids) if client_id in its]
    of_its = evaluation.SplitExamples(parts.held_in.take(places), parts.held_out.take(places), 0)
    results = fitting.local(model, of_its, l2, task.error, trained, _PRIOR)
    constants = fitting.own_constants(of_its, num_classes)
    halves = "one half of a test client's own examples and tested on the other half alone"
    if config.task.held_out_examples:
      halves = "a client's own training examples and tested on those that it holds out"
    of_whom = f"{len(its)} of {len(test.client_ids)} test clients"
    references[kept.LOCAL] = _reference(f"fitted to {halves}, for {of_whom}{weighted}", results)
    what = "mean label" if is_number else "most frequent class"
    references[kept.OWN_CONSTANT] = _reference(f"its {what}, of the same examples", constants)
  # Of a cross-validation the rows of all folds are the same.
  profiles = {} if is_private else _profiles(task, test)
  facts = {} if is_private else _facts(task, [test, *answers.values()])
  return kept.References(fingerprint, references, left_out, is_private, profiles, facts)


def _entries(task: Any, clients: Any) -> tuple[np.ndarray, list[str], list[str]]:
  """Returns rows [rows, inputs + labels] of a table, and the names of inputs and of labels.

  Labels are numbers, or whether a row is of a class. There is nothing where no columns are known,
  or too many.
  """
  inputs: list[str] = []
  for feature in json.loads(task.columns)["features"] if task.columns else ():
    name = feature["name"]
    inputs += [f"{name} {category}" for category in feature["categories"]] or [name]
    inputs += [f"{name} missing"] * feature["has_missing"]
  labels = np.reshape(clients.y, [-1, 1]).astype(np.float64)
  of_label = ["label"]
  if task.error != "rmse":
    named = list(enumerate(task.labels))[len(task.labels) == 2 :]  # Of two, one tells all.
    labels, of_label = labels == [i for i, _ in named], [f"class {c}" for _, c in named]
  number = len(inputs) + len(of_label)
  if not inputs or clients.x.shape[1:] != (len(inputs),) or number > _MOST_ENTRIES:
    return np.empty([0, 0]), [], []
  return np.column_stack([clients.x, labels]), inputs, of_label


def _facts(task: Any, parts: Sequence[Any]) -> dict[str, Any]:
  """Returns what the rows of all clients of a table say without a model, each client once."""
  values, inputs, of_label = _entries(task, parts[0])
  if not inputs:
    return {}
  values = np.vstack([_entries(task, part)[0] for part in parts])
  sizes = np.concatenate([np.diff(part.offsets) for part in parts])
  owners = np.repeat(np.concatenate([part.client_ids for part in parts]), sizes)
  x, y = np.split(values, [len(inputs)], axis=1)
  offsets = np.cumsum([0, *sizes])
  ranks = without_models.ranks(x, y, offsets, inputs)
  differ = task.error != "rmse" and without_models.do_labels_differ(y, offsets)
  columns = json.loads(task.columns)
  mean, std = task.label_scale or (0.0, 1.0)
  asked = [(f"labels {columns['label']['name']}", y[:, 0], mean, std, True)] * (not task.labels)
  telling = {rank.name for rank in ranks}
  for feature in (feature for feature in columns["features"] if feature["kind"] == "number"):
    name = feature["name"]
    column, scale = x[:, inputs.index(name)], (feature["mean"], feature["std"])
    asked.append((f"values of column {name}", column, *scale, name in telling))
  gross = [
    without_models.gross(column, mean + std * column, owners, what, tells)
    for what, column, mean, std, tells in asked
  ]
  return without_models.facts(ranks, [found for found in gross if found is not None], differ)


def _profiles(task: Any, test: Any) -> dict[str, np.ndarray]:
  """Returns what the rows of each test client of a table are like, by the names of entries."""
  values, inputs, of_label = _entries(task, test)
  if not inputs:
    return {}
  starts, sizes = test.offsets[:-1], np.diff(test.offsets)
  sums = np.add.reduceat(np.vstack([values, np.zeros(values.shape[1])]), starts, axis=0)
  means = np.where(sizes[:, None] > 0, sums / np.maximum(1, sizes)[:, None], np.nan)
  return {**dict(zip([*inputs, *of_label], means.T)), "number of rows": sizes}


def _describe_constant(task: Any, label: float, sources: Sequence[str]) -> str:
  """Says what the constant answer is, and whose labels chose it."""
  of_whom = f"the {' and '.join(sources)}{'ing' * (sources == ['train'])} clients"
  if task.error == "rmse":
    mean, std = task.label_scale or (0.0, 1.0)
    answer = np.format_float_positional(mean + std * label, 4, fractional=False, trim="-")
    return f"{answer}, the mean of the labels of {of_whom}"
  name = task.labels[int(label)] if task.labels else str(int(label))
  return f"{name!r}, the most frequent class of {of_whom}"


def _why_no_fit(model: Any, num_examples: int) -> str:
  """Returns why a model is not fitted by L-BFGS; "" if it is."""
  from tff_superquantile.experiments.references import fitting

  if not fitting.is_linear(model):
    return "only linear models are fitted, whose loss has a single minimum"
  num_weights = sum(np.size(weights) for weights in model.initial_weights[0])
  if num_examples * num_weights > _MOST_PRODUCTS:
    return f"{num_examples} examples and {num_weights} weights would take as long as the runs"
  return ""


def _why_no_own_models(num_enough: int, num_clients: int) -> str:
  if 2 * num_enough > num_clients:
    return ""
  return (
    f"only {num_enough} of {num_clients} test clients have {_LEAST_OF_A_CLIENT} examples, half of"
    " which it takes to fit a model"
  )


def _reference(description: str, results: Any) -> kept.Reference:
  """Returns a reference model from what it is and its `evaluation.Measured`."""
  return kept.Reference(description, results.of_clients.columns(), results.pooled)
