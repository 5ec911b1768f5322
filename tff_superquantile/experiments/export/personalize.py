"""Tunes an exported model to one client's own rows, where these are.

    superquantile personalize EXPORT ROWS --out=DIR

EXPORT is the folder of an export, with model.npz of a linear model (then it needs NumPy, and
pyarrow for a table) or with saved_model/ (then TensorFlow, without TFF). ROWS are the client's: a
.csv or another table with the columns of the run's, which is read as the run read its own, or for
any model a .npz file with the arrays `x`, raw examples as the export takes them, and `y`, numbers
of classes or values. As in --personalize
the client keeps the shared model unless cross-fitting on its rows shows that its own has a lower
loss. DIR is the same export with the kept weights. No row leaves the machine, nor does a private
model's budget change: whoever publishes DIR publishes what it tells of its rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
import os
import pathlib
import shutil
import sys
from typing import Any, TypeAlias

import numpy as np

from privacy.settings import command_line
from tasks import own_flags
from tasks import request as request_lib
from tff_superquantile import atomic_files
from tff_superquantile import personal
from tff_superquantile.experiments import cli
from tff_superquantile.experiments import finished_run
from tff_superquantile.experiments.config import flags as train_flags
from tff_superquantile.experiments.export import formats
from tff_superquantile.experiments.export import front_matter

Weights = Sequence[np.ndarray]
Model: TypeAlias = "LinearModel | SavedModel"
_SEED = 0  # Of the order of the rows.


class LinearModel:
  """The linear model of a model.npz, in NumPy; x [n, ...] are its inputs, and y [n] labels."""

  def __init__(self, path: pathlib.Path, settings: formats.Tuning):
    """Reads the file; refuses a network with more than one layer."""
    self._path = path
    with np.load(path) as arrays:
      self.arrays = dict(arrays)
    self._names = [name for name in self.arrays if name.endswith(("/kernel", "/bias"))]
    kernels = [name for name in self._names if name.endswith("/kernel")]
    if len(kernels) != 1 or np.ndim(self.arrays[kernels[0]]) != 2:
      raise ValueError(
        f"Found a model that is not linear in {path}; expected one, as NumPy alone tunes no"
        " network: export it by --format=saved_model."
      )
    self.weights = [np.asarray(self.arrays[name], np.float64) for name in self._names]
    self._is_number = settings.label_scale is not None
    self.is_table = "preprocessing/mean" in self.arrays

  def loss_and_gradient(self, weights: Weights, x: Any, y: np.ndarray) -> tuple[float, Weights]:
    """Returns the mean loss of examples, and its gradient."""
    scores = x @ weights[0] + sum(weights[1:])
    if self._is_number:
      errors = scores - y.reshape(-1, 1)
      losses = 0.5 * errors**2
    else:
      both = scores if scores.shape[1] > 1 else np.concatenate([0 * scores, scores], axis=1)
      shifted = both - both.max(axis=1, keepdims=True)
      logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
      is_label = y.astype(np.int64)[:, None] == np.arange(both.shape[1])
      losses, errors = -logs[is_label], (np.exp(logs) - is_label)[:, -scores.shape[1] :]
    gradient = [x.T @ errors / len(y), errors.mean(axis=0)]
    return float(losses.mean()), [g.reshape(w.shape) for g, w in zip(gradient, weights)]

  def write(self, weights: Weights, folder: pathlib.Path) -> None:
    """Writes the model with other weights into an existing copy of its export."""
    tuned = {n: w.astype(self.arrays[n].dtype) for n, w in zip(self._names, weights)}
    np.savez(folder / self._path.name, **dict[str, Any]({**self.arrays, **tuned}))

  def inputs(self, raw: np.ndarray) -> np.ndarray:
    """Encodes a table's rows, float64 [n, columns], as the run did; other rows are inputs."""
    if not self.is_table:
      return raw.astype(np.float64)
    inputs, of_columns = [], (self.arrays[f"preprocessing/{n}"] for n in formats.OF_COLUMNS)
    for values, mean, std, has_missing, count in zip(raw.T, *of_columns):
      missing = np.isnan(values)
      if count:
        place = np.where(missing, count if has_missing else -1, values)
        inputs.append(place[:, None] == np.arange(count + has_missing))
      else:
        scaled = np.clip((values - mean) / std, -1e6, 1e6)
        inputs += [np.where(missing, 0.0, scaled)[:, None], *[missing[:, None]] * int(has_missing)]
    # The run's inputs are float32.
    return np.concatenate(inputs, axis=1).astype(np.float32).astype(np.float64)


class SavedModel:
  """The same of a saved_model/, in TensorFlow."""

  def __init__(self, path: pathlib.Path, settings: formats.Tuning):
    with cli.starting_tensorflow():
      import tensorflow as tf

    self._tf, self._path, self._scale = tf, path, settings.label_scale
    self._loaded = tf.saved_model.load(os.fspath(path))
    self._serve = self._loaded.signatures["serving_default"]
    (self._input,) = self._serve.structured_input_signature[1]
    self._variables = self._loaded.weights[: settings.num_trainable]
    self.weights = [variable.numpy() for variable in self._variables]

  def loss_and_gradient(self, weights: Weights, x: Any, y: np.ndarray) -> tuple[float, Weights]:
    tf = self._tf
    for variable, value in zip(self._variables, weights):
      variable.assign(value)
    with tf.GradientTape() as tape:
      tape.watch(self._variables)
      outputs = self._serve(**{self._input: tf.constant(x)})
      if self._scale is not None:
        mean, std = self._scale
        predicted = (tf.cast(outputs["prediction"], tf.float64) - mean) / std
        loss = 0.5 * tf.reduce_mean((predicted - y) ** 2)
      else:
        scores = outputs["logits"]
        if scores.shape.rank == 1 or scores.shape[1] == 1:
          flat = tf.reshape(scores, [-1, 1])
          scores = tf.concat([0 * flat, flat], axis=1)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y.astype(np.int64), scores)
        loss = tf.reduce_mean(losses)
    return float(loss), [g.numpy() for g in tape.gradient(loss, self._variables)]

  def write(self, weights: Weights, folder: pathlib.Path) -> None:
    for variable, value in zip(self._variables, weights):
      variable.assign(value)
    path = folder / self._path.name
    shutil.rmtree(path)
    signatures = {"serving_default": self._serve}
    self._tf.saved_model.save(self._loaded, os.fspath(path), signatures)


def _tune(
  model: Model,
  x: Any,
  y: np.ndarray,
  epochs: int,
  settings: formats.Tuning,
  rng: np.random.Generator,
) -> Weights:
  """Returns the weights of `evaluation.Personalizer.tune`; the model's where they diverge."""
  order, sizes = personal.batches(rng, len(y), settings.batch_size, epochs)
  rate, l2, pull = settings.learning_rate, settings.l2, settings.proximal_weight
  tuned, start = model.weights, 0
  while start < len(order):
    rows = order[start : start + sizes[start]]
    start += sizes[start]
    with np.errstate(over="ignore", invalid="ignore"):
      _, gradients = model.loss_and_gradient(tuned, x[rows], y[rows])
      steps = [g + l2 * v + pull * (v - w) for g, v, w in zip(gradients, tuned, model.weights)]
      tuned = [(v - rate * step).astype(v.dtype) for v, step in zip(tuned, steps)]
  return tuned if all(np.isfinite(w).all() for w in tuned) else model.weights


def choose(
  model: Model, x: Any, y: np.ndarray, settings: formats.Tuning, rng: np.random.Generator
) -> Weights | None:
  """Returns a client's own weights; None where the model as it is serves the client no worse."""

  def loss(epochs: int, tuned_on: np.ndarray, measured_on: np.ndarray) -> float:
    rows = x[tuned_on], y[tuned_on]
    own = _tune(model, *rows, epochs, settings, rng) if epochs else model.weights
    return len(measured_on) * model.loss_and_gradient(own, x[measured_on], y[measured_on])[0]

  epochs = personal.choose_epochs(rng, len(y), settings.epochs, loss)
  return _tune(model, x, y, epochs, settings, rng) if epochs else None


def read_rows(
  path: pathlib.Path,
  model: Model,
  settings: formats.Tuning,
  export: pathlib.Path,
  asked: Mapping[str, str],
) -> tuple[Any, np.ndarray]:
  """Reads a client's rows; returns the model's inputs [n, ...] and labels [n] as `choose` takes.

  `asked` are values of some of `train_flags.OF_ROWS`, for a table.
  """
  linear, scale = model if isinstance(model, LinearModel) else None, settings.label_scale
  if path.name.lower().endswith(request_lib.TABLE_FORMATS):
    raw, inputs, labels = _read_table(path, settings, export, asked)
    return (inputs if linear else raw), labels
  if path.suffix != ".npz":
    raise ValueError(
      f"Found {path}; expected a table ({', '.join(request_lib.TABLE_FORMATS)}) with the columns of"
      " the run's, or a .npz file with the arrays x and y."
    )
  with np.load(path) as arrays:
    if not {"x", "y"} <= {*arrays}:
      raise ValueError(f"Found {', '.join(arrays)} in {path}; expected the arrays x and y.")
    x, y = arrays["x"], np.asarray(arrays["y"], np.float64).reshape(-1)
  is_known = np.isfinite(y) if scale is not None else np.isin(y, np.arange(settings.num_classes))
  if len(x) != len(y) or not len(y) or not is_known.all():
    raise ValueError(
      f"Found {len(x)} examples and {int(is_known.sum())} labels in {path}; expected one each, and"
      " at least one: a number, or that of a line of labels.txt, from 0."
    )
  return (linear.inputs(x) if linear else x), y if scale is None else (y - scale[0]) / scale[1]


def _read_table(
  path: pathlib.Path,
  settings: formats.Tuning,
  export: pathlib.Path,
  asked: Mapping[str, str],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Reads a table of one client as the run read its own.

  It returns raw examples, float64 [n, columns], inputs, float64 [n, inputs], and labels [n], as
  `choose` takes them.
  """
  try:
    from tasks.own import columns
    from tasks.own import encoding
    from tasks.own import features
    from tasks.own import labels
  except ModuleNotFoundError as error:
    raise ValueError(
      f"Found no package {error.name}, which a table needs; install it, or give a .npz file."
    ) from None
  if not (export / formats.COLUMNS).is_file():
    raise ValueError(
      f"Found no {formats.COLUMNS} in {export}, without which {path} cannot be read; expected the"
      " export of a run on a table: export again, or give a .npz file with the arrays x and y."
    )
  known = encoding.from_text((export / formats.COLUMNS).read_text(encoding="utf-8"))
  of_run: dict[str, Any] = dict(
    label_column=known.label.name,
    missing=settings.missing,
    rows_without_label=settings.rows_without_label,
  )
  flags = own_flags.TableFlags(data_dir=os.fspath(path), **{**of_run, **asked})
  names = [feature.name for feature in known.features]
  frame, remarks = columns.read_of_one(flags, names, known.label.classes)
  print(*remarks, sep="\n", end="\n" if remarks else "", file=sys.stderr)
  label = frame[str(flags.label_column)]
  if flags.rows_without_label == "drop":
    frame = {name: column[label.codes >= 0] for name, column in frame.items()}
    label = frame[label.name]
  y = labels.read(known.label, label)
  labels.check(known.label, label, y)
  if not len(y):
    raise ValueError(f"Found no row with a label in {path}; expected at least one.")
  raw = np.column_stack([features.read_usable(f, frame[f.name]) for f in known.features])
  return raw, known.encode(raw).astype(np.float64), y


def define(parser: command_line.Parser) -> None:
  parser.add_argument("export", metavar="EXPORT", type=pathlib.Path, help="folder of an export")
  rows = "a table, such as a .csv, or a .npz with x and y"
  parser.add_argument("rows", metavar="ROWS", type=pathlib.Path, help=rows)
  out: dict[str, Any] = dict(type=pathlib.Path, metavar="DIR", required=True)
  parser.add_argument("--out", help="the folder to write", **out)
  train_flags.add(parser.add_argument_group(train_flags.TITLE_OF_ROWS), train_flags.OF_ROWS)


def main(args: argparse.Namespace) -> None:
  finished_run.check_new(args.out)
  if not args.rows.is_file():
    raise ValueError(f"Found no file {args.rows}; expected the rows of a client.")
  settings = formats.read_tuning(args.export)
  model: Model
  if (args.export / "model.npz").is_file():
    model = LinearModel(args.export / "model.npz", settings)
  elif (args.export / "saved_model").is_dir():
    model = SavedModel(args.export / "saved_model", settings)
  else:
    raise ValueError(
      f"Found neither model.npz nor saved_model/ in {args.export}; expected the folder of an export"
      " by --format=npz or --format=saved_model."
    )
  asked = finished_run.passed_flags(args, train_flags.OF_ROWS)
  x, y = read_rows(args.rows, model, settings, args.export, asked)
  own = choose(model, x, y, settings, np.random.default_rng(_SEED))
  with atomic_files.temporary_folder(args.out) as temporary:
    folder = pathlib.Path(temporary)
    shutil.copytree(args.export, folder, dirs_exist_ok=True)
    if own is not None:
      model.write(own, folder)
      card = front_matter.without((folder / formats.CARD).read_text(encoding="utf-8"))
      told = f"\nPersonal: tuned to {len(y)} rows of one client, of whom it may tell.\n"
      (folder / formats.CARD).write_text(card + told, encoding="utf-8")
    os.rename(folder, args.out)
  kept = "the shared model, as its own is no better" if own is None else "a model of its own"
  print(f"By its {len(y)} rows the client keeps {kept}.\nWritten: {args.out}")


if __name__ == "__main__":
  sys.exit(cli.run(sys.modules[__name__]))
