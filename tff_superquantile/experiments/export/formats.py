"""Writes an exported model into a folder, in one of several formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
import fnmatch
import io
import os
import pathlib
import re
from typing import Any

import numpy as np

CARD = "MODEL_CARD.md"
LABELS = "labels.txt"
_FILES = (
  *(CARD, LABELS, "model.keras", "model.tflite", "model.npz", "saved_model", "saved_model/assets"),
  *("saved_model/saved_model.pb", "saved_model/fingerprint.pb", "saved_model/assets/*"),
  *("saved_model/variables", "saved_model/variables/variables.*"),
)
# What a format may change of a model's outputs. TensorFlow Lite takes raw numbers as float32.
_MOST_DIFFERENCE = {"tflite": 1e-3}
_LEAST_DIFFERENCE = 1e-5
# In the messages of TensorFlow Lite's converter.
_OTHER_OPERATOR = re.compile(r"'tf\.(\w+)' op")


# From raw examples to the outputs of a model that was written.
_Serve = Callable[[np.ndarray], Mapping[str, Any]]


def is_exported(path: pathlib.PurePath) -> bool:
  """Tells whether an export, of any format, has such a file or folder, by its relative path."""
  return any(fnmatch.fnmatchcase(path.as_posix(), pattern) for pattern in _FILES)


def write(model: Any, name: str, folder: pathlib.Path) -> None:
  """Writes a model with the names of its classes, one a line, if it has classes.

  What was written is read again, and compared with the model on the preprocessing's probe.

  Args:
    model: The model, an `exported_model.ExportedModel`.
    name: A key of `FORMATS`.
    folder: An existing folder.

  Raises:
    ValueError: If the model has no such form, or gives other answers in it.
    OSError: If a file cannot be written.
  """
  serve = FORMATS[name](model, folder)
  if serve is not None and model.preprocessing.probe is not None:
    _check(model, name, serve)
  if model.labels:
    text = "".join(f"{label}\n" for label in model.labels)
    (folder / LABELS).write_text(text, encoding="utf-8")


def _check(model: Any, name: str, serve: _Serve) -> None:
  """Raises a `ValueError` if a written model gives other answers than the run's own."""
  raw, x = model.preprocessing.probe()
  found, most = serve(raw), _MOST_DIFFERENCE.get(name, _LEAST_DIFFERENCE)
  for output, expected in model.outputs(x).items():
    mean, std = model.label_scale or (0.0, 1.0)
    given = np.reshape(np.asarray(found[output], np.float64), np.shape(expected))
    scale = np.maximum(std, np.abs(expected - mean))
    difference = float(np.max(np.abs(given - expected) / scale))
    if not difference <= most:  # NaN is not either.
      why = "report the run's columns.json as a fault of this program, or choose another --format"
      if name in _MOST_DIFFERENCE:
        why = (
          "its numbers are float32, which cannot hold some columns, such as times in seconds;"
          " choose --format=saved_model"
        )
      raise ValueError(
        f"Found {output} of the model as {name} that differ by {difference:.2g} from the run's own;"
        f" expected at most {most:g}: {why}."
      )


def _write_saved_model(model: Any, folder: pathlib.Path) -> _Serve:
  import tensorflow as tf

  module = model.to_module()
  signatures = {"serving_default": module.serve.get_concrete_function()}
  tf.saved_model.save(module, os.fspath(folder / "saved_model"), signatures)

  def serve(raw: np.ndarray) -> Mapping[str, Any]:
    loaded = tf.saved_model.load(os.fspath(folder / "saved_model"))
    return loaded.signatures["serving_default"](**{model.preprocessing.raw_spec.name: raw})

  return serve


def _write_keras(model: Any, folder: pathlib.Path) -> _Serve:
  import tensorflow as tf

  model.to_keras().save(folder / "model.keras")
  return lambda raw: tf.keras.models.load_model(folder / "model.keras")(raw)


def _write_tflite(model: Any, folder: pathlib.Path) -> _Serve:
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
    runner = tf.lite.Interpreter(model_content=content).get_signature_runner()
    with np.errstate(over="ignore"):
      return runner(**{spec.name: raw.astype(spec.dtype.as_numpy_dtype)})

  return serve


def _write_npz(model: Any, folder: pathlib.Path) -> None:
  buffer = io.BytesIO()
  np.savez(buffer, **model.to_arrays(), labels=np.array(model.labels))
  (folder / "model.npz").write_bytes(buffer.getvalue())


# Each writes a model, and returns what reads it again, if anything does.
FORMATS: dict[str, Callable[[Any, pathlib.Path], _Serve | None]] = {
  "saved_model": _write_saved_model,
  "keras": _write_keras,
  "tflite": _write_tflite,
  "npz": _write_npz,
}
