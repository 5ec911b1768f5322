"""Writes an exported model into a folder, in one of several formats."""

from __future__ import annotations

from collections.abc import Callable
import io
import os
import pathlib
import re
from typing import Any

import numpy as np

LABELS = "labels.txt"
# In the messages of TensorFlow Lite's converter.
_OTHER_OPERATOR = re.compile(r"'tf\.(\w+)' op")


def write(model: Any, name: str, folder: pathlib.Path) -> None:
  """Writes a model with the names of its classes, one a line, if it has classes.

  Args:
    model: The model, an `exported_model.ExportedModel`.
    name: A key of `FORMATS`.
    folder: An existing folder.

  Raises:
    ValueError: If the model has no such form.
    OSError: If a file cannot be written.
  """
  FORMATS[name](model, folder)
  if model.labels:
    text = "".join(f"{label}\n" for label in model.labels)
    (folder / LABELS).write_text(text, encoding="utf-8")


def _write_saved_model(model: Any, folder: pathlib.Path) -> None:
  import tensorflow as tf

  module = model.to_module()
  signatures = {"serving_default": module.serve.get_concrete_function()}
  tf.saved_model.save(module, os.fspath(folder / "saved_model"), signatures)


def _write_keras(model: Any, folder: pathlib.Path) -> None:
  model.to_keras().save(folder / "model.keras")


def _write_tflite(model: Any, folder: pathlib.Path) -> None:
  import tensorflow as tf

  module = model.to_module()
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


def _write_npz(model: Any, folder: pathlib.Path) -> None:
  buffer = io.BytesIO()
  np.savez(buffer, **model.to_arrays(), labels=np.array(model.labels))
  (folder / "model.npz").write_bytes(buffer.getvalue())


FORMATS: dict[str, Callable[[Any, pathlib.Path], None]] = {
  "saved_model": _write_saved_model,
  "keras": _write_keras,
  "tflite": _write_tflite,
  "npz": _write_npz,
}
