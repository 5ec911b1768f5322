"""Writes an exported model into a folder, in one of the formats of `FORMATS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import io
import json
import os
import pathlib
import re
from typing import Any
import warnings

import numpy as np

from privacy.settings import plugins

CARD = "MODEL_CARD.md"
COLUMNS = "columns.json"
LABELS = "labels.txt"
TUNING = "tuning.json"
# A table's arrays of its columns in model.npz, after "preprocessing/".
OF_COLUMNS = ("mean", "std", "has_missing", "num_categories")
# In the messages of TensorFlow Lite's converter.
_OTHER_OPERATOR = re.compile(r"'tf\.(\w+)' op")


# From raw examples to the outputs of a model that was written.
Serve = Callable[[np.ndarray], Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Format:
  """A row of `FORMATS`.

  Attributes:
    purpose: The program that it is for, to continue the name of the format in --help.
    file: The name of the file or folder that it writes.
    write: Takes an `exported_model.ExportedModel` and an existing folder, writes the file, and
      returns what reads it again; None where nothing does. Raises a `ValueError` if the model has
      no such form.
    most_difference: How much the outputs of the written model may differ from the run's own.
    on_difference: The reason and the remedy where they differ more.
    instead: What it has in place of the model's outputs, for the model card; "" if it has them.
  """

  purpose: str
  file: str
  write: Callable[[Any, pathlib.Path], Serve | None]
  most_difference: float = 1e-5
  on_difference: str = (
    "report the run's columns.json as a fault of this program, or choose another --format"
  )
  instead: str = ""


@dataclasses.dataclass(frozen=True)
class Tuning:
  """How a client tunes an exported model to its own rows: as the run, or as it chooses.

  `epochs` are the numbers of which it chooses. Without label_scale, (mean, standard deviation),
  labels are classes. The trainable weights come first. Of a table's rows, `missing` and
  `rows_without_label` are the run's flags.
  """

  epochs: Sequence[int]
  learning_rate: float
  proximal_weight: float
  batch_size: int
  l2: float
  label_scale: tuple[float, float] | None
  num_classes: int
  num_trainable: int
  missing: str | None = None
  rows_without_label: str | None = None


def read_tuning(folder: pathlib.Path) -> Tuning:
  """Reads how to tune the model of an export."""
  try:
    read = Tuning(**json.loads((folder / TUNING).read_text(encoding="utf-8")))
    # Earlier exports have a single number.
    return dataclasses.replace(read, epochs=np.atleast_1d(read.epochs).tolist())
  except (OSError, TypeError, ValueError) as error:
    raise ValueError(
      f"Found no {TUNING} in {folder} that can be read; expected that of an export: export again."
    ) from error


def write(model: Any, name: str, folder: pathlib.Path) -> None:
  """Writes a model into an existing folder, reads it again, and compares their answers."""
  serve = FORMATS[name].write(model, folder)
  if serve is not None and model.preprocessing.probe is not None:
    _check(model, name, serve)
  if model.columns:
    (folder / COLUMNS).write_text(model.columns, encoding="utf-8")
  if model.labels:
    text = "".join(f"{label}\n" for label in model.labels)
    (folder / LABELS).write_text(text, encoding="utf-8")


def _check(model: Any, name: str, serve: Serve) -> None:
  """Raises a `ValueError` if a written model gives other answers than the run's own."""
  raw, x = model.preprocessing.probe()
  outputs, most = serve(raw), FORMATS[name].most_difference
  for output, expected in model.outputs(x).items():
    mean, std = model.label_scale or (0.0, 1.0)
    written = np.reshape(np.asarray(outputs[output], np.float64), np.shape(expected))
    scale = np.maximum(std, np.abs(expected - mean))
    difference = float(np.max(np.abs(written - expected) / scale))
    if not difference <= most:  # NaN is not either.
      raise ValueError(
        f"Found {output} of the model as {name} that differ by {difference:.2g} from the run's own;"
        f" expected at most {most:g}: {FORMATS[name].on_difference}."
      )


def _write_saved_model(model: Any, folder: pathlib.Path) -> Serve:
  import tensorflow as tf

  module = model.to_module()
  signatures = {"serving_default": module.serve.get_concrete_function()}
  tf.saved_model.save(module, os.fspath(folder / "saved_model"), signatures)

  def serve(raw: np.ndarray) -> Mapping[str, Any]:
    loaded = tf.saved_model.load(os.fspath(folder / "saved_model"))
    return loaded.signatures["serving_default"](**{model.preprocessing.raw_spec.name: raw})

  return serve


def _write_keras(model: Any, folder: pathlib.Path) -> Serve:
  import tensorflow as tf

  model.to_keras().save(folder / "model.keras")
  return lambda raw: tf.keras.models.load_model(folder / "model.keras")(raw)


def _write_tflite(model: Any, folder: pathlib.Path) -> Serve:
  import tensorflow as tf

  spec = model.preprocessing.raw_spec
  if spec.dtype == tf.float64:  # Its own operators have none.
    spec = tf.TensorSpec(spec.shape, tf.float32, spec.name)
  module = model.to_module(spec)
  function = module.serve.get_concrete_function()
  converter = tf.lite.TFLiteConverter.from_concrete_functions([function], module)
  converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
  try:
    content = converter.convert()
  except Exception as error:  # Its class is not public.
    others = sorted(set(_OTHER_OPERATOR.findall(str(error)))) or [type(error).__name__]
    raise ValueError(
      "Found that TensorFlow Lite's own operators do not suffice for this model"
      f" ({', '.join(others)}); expected one of these alone: use --format=saved_model."
    ) from error
  (folder / "model.tflite").write_bytes(content)

  def serve(raw: np.ndarray) -> Mapping[str, Any]:
    with warnings.catch_warnings():  # The file is the same for LiteRT, which is to follow.
      warnings.filterwarnings("ignore", r"\s*Warning: tf.lite.Interpreter is deprecated")
      runner = tf.lite.Interpreter(model_content=content).get_signature_runner()
    with np.errstate(over="ignore"):
      return runner(**{spec.name: raw.astype(spec.dtype.as_numpy_dtype)})

  return serve


def _write_npz(model: Any, folder: pathlib.Path) -> None:
  buffer = io.BytesIO()
  arrays = {f"preprocessing/{name}": a for name, a in model.preprocessing.arrays.items()}
  if model.label_scale is not None:
    arrays["label_mean"], arrays["label_std"] = map(np.float64, model.label_scale)
  np.savez(buffer, **model.to_arrays(), **arrays, labels=np.array(model.labels))
  (folder / "model.npz").write_bytes(buffer.getvalue())


_OWN = {
  "saved_model": Format("for TensorFlow", "saved_model", _write_saved_model),
  "keras": Format("for Keras", "model.keras", _write_keras),
  "tflite": Format(
    "for TensorFlow Lite",
    "model.tflite",
    _write_tflite,
    most_difference=1e-3,  # It takes raw numbers as float32.
    on_difference="its numbers are float32, which cannot hold some columns, such as times in"
    " seconds; choose --format=saved_model",
  ),
  "npz": Format(
    "the weights by name and a table's means, deviations and categories, for NumPy",
    "model.npz",
    _write_npz,
    instead="the network's weights by name, and of a table what its columns became",
  ),
}
FORMATS = plugins.Registry("format", "exports", Format, _OWN, of_classes=False)
