"""Finished runs of small linear models, without having trained them."""

import pathlib

import numpy as np
import tensorflow as tf

from privacy import parts
from tasks import models
from tff_superquantile import atomic_files
from tff_superquantile import distribution
from tff_superquantile.experiments.config import methods
from tff_superquantile.experiments.config import names
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.config import servers
from tff_superquantile.experiments.evidence import grouped
from tff_superquantile.experiments.references import kept
from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.simulation import client_files

# Runs of earlier versions, kept as they were.
KEPT = pathlib.Path(__file__).resolve().parents[1] / "experiments/kept_results"
TASK = "tiny"
SIZES = (24, 30, 1, 41, 18, 26, 33, 22, 28, 36, 25)
LEARNING_RATE, BATCH_SIZE, L2 = 0.2, 4, 0.01
_NUM_FEATURES, _NUM_CLASSES = 5, 3


# Short names of numbers in a folder's name, and their flags.
_NUMBERS = {
  one.short: one.name for kind in methods.METHODS.values() for one in methods.parameters(kind)
}
_NUMBERS["epsilon"] = "epsilon"


def flags_of(method):
  """Flags that make a run's folder of this name; --run_name where no method has it."""
  fitting = [name for name in methods.METHODS if method.startswith(name)]
  algorithm = max(fitting, key=len, default="")
  flags = {"exact_siblings": "refused", "algorithm": algorithm}
  words = iter(method[len(algorithm) :].split("_")[1:])
  for word in words:
    if word in _NUMBERS:
      flags[_NUMBERS[word]] = next(words, "")
    elif word in parts.THRESHOLDS:
      flags["threshold"] = word
    elif word in servers.SERVERS:
      flags["server_optimizer"] = word
  try:
    is_its_folder = names.folder(run_config.from_flags(flags)) == method
  except ValueError:
    is_its_folder = False
  return flags if is_its_folder else {"exact_siblings": "refused", "run_name": method}


def model():
  spec = (tf.TensorSpec([None, _NUM_FEATURES], tf.float32), tf.TensorSpec([None], tf.int32))
  return models.build_linear_classifier(spec, _NUM_CLASSES, intercept=True)


def _true_weights(seed):
  return np.random.default_rng(seed).normal(size=[_NUM_FEATURES, _NUM_CLASSES])


def clients(folder, seed):
  """Test clients of a seed, whose labels follow a common rule and one of their own."""
  rng = np.random.default_rng([seed, 1])

  def make():
    for i, size in enumerate(SIZES):
      x = rng.normal(size=[size, _NUM_FEATURES]).astype(np.float32)
      rule = _true_weights(seed) + 0.7 * rng.normal(size=[_NUM_FEATURES, _NUM_CLASSES])
      yield f"writer {i}", x, (x @ rule).argmax(axis=1).astype(np.int32)

  return client_files.open_or_write_client_files(pathlib.Path(folder) / f"clients_{seed}", make)


def write_folder(folder, flags, weights, sizes=SIZES, finished=True):
  """Writes the folder of a run with these flags, trainable weights and sizes of test clients."""
  folder.mkdir(parents=True)
  flags = {**flags, "exact_siblings": "refused"}  # As in each run since 0.4.
  (folder / "flags.txt").write_text("".join(f"--{n}={v}\n" for n, v in flags.items()))
  run_files.write_weights(folder / "weights.npz", run_files.Weights(tuple(weights), ()))
  with open(folder / "test_clients.csv", "w") as stream:
    stream.write("client_id,num_examples,loss,error\n")
    stream.writelines(f"writer {i},{size},0.5,0.2\n" for i, size in enumerate(sizes))
  if finished:
    atomic_files.write_json(folder / "metrics.json", {"test": {"error": {"mean": 0.2}}})
  return folder


def write_run(output_dir, method, seed, *, noise=0.5, finished=True, num_rounds=30):
  """Writes the folder of a run whose model is the common rule, and noise of the method's own."""
  flags = dict(
    flags_of(method),
    task=TASK,
    seed=seed,
    batch_size=BATCH_SIZE,
    client_learning_rate=LEARNING_RATE,
    learning_rate_decay=0.5,
    rounds_per_decay=10,
    num_rounds=num_rounds,
    l2=L2,
    local_epochs=1,
    client_weighting="num_examples",
    sampling="fixed_size",
    clients_per_round=10,
    rounds_per_evaluation=10,
    max_loss=5.0,
  )
  rng = np.random.default_rng([seed, *method.encode()])
  weights = _true_weights(seed) + noise * rng.normal(size=[_NUM_FEATURES, _NUM_CLASSES])
  return write_folder(
    pathlib.Path(output_dir) / TASK / method / f"seed_{seed}",
    flags,
    (weights.astype(np.float32), np.zeros(_NUM_CLASSES, np.float32)),
    finished=finished,
  )


def columns(errors, further=None):
  """Columns of clients, whose losses are their errors; how much further measures are above them."""
  errors = np.asarray(errors)
  ids, sizes = [f"client {i}" for i in range(len(errors))], np.full(len(errors), 9)
  more = {name: errors + shift for name, shift in (further or {}).items()}
  return {"client_id": ids, "num_examples": sizes, "loss": errors, "error": errors, **more}


def fabricate(
  folder, methods, references=None, *, place="own", seed=0, further=None, rounds=(), **flags
):
  """Writes runs and reference models with these errors of clients; returns the runs.

  Errors of a method may be by part, "test", "shared" and so on; `rounds` are training losses.
  """
  for method, errors in methods.items():
    path = folder / place / method / f"seed_{seed}"
    write_folder(path, {**flags_of(method), "seed": seed, **flags}, ())
    metrics = {}
    for part, of_part in (errors if isinstance(errors, dict) else {"test": errors}).items():
      own = columns(of_part, further)
      run_files.write_clients(path / f"{part}_clients.csv", own)
      measures = [name for name in own if name not in ("client_id", "num_examples")]
      metrics[part] = {name: distribution.describe(own[name]) for name in measures}
    atomic_files.write_json(path / "metrics.json", metrics)
    lines = ["round,train_loss", *(f"{1 + i},{loss}" for i, loss in enumerate(rounds))]
    (path / "rounds.csv").write_text("\n".join(lines) + "\n")
  found = {
    key: kept.Reference("a model", columns(errors, further), {})
    for key, errors in (references or {}).items()
  }
  kept.write(folder / place, seed, kept.References("print", found, {"local": "small"}))
  return grouped.by_method(run_folder.find_runs(folder))


def markdown_tables(text):
  """The tables of a Markdown text, as lists of rows of cells."""
  tables, lines = [[]], text.splitlines()
  for line in lines:
    if line.startswith("|"):
      tables[-1].append([cell.strip() for cell in line.strip("|").split("|")])
    elif tables[-1]:
      tables.append([])
  return [[table[0], *table[2:]] for table in tables if table]
