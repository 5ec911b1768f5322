"""Programs that use an exported model, one a format, for its card; the tests carry them out."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
import tensorflow as tf

_TENSORFLOW = "import numpy as np\nimport tensorflow as tf\n"
_SAVED_MODEL = """
serve = tf.saved_model.load("saved_model").signatures["serving_default"]
answers = serve({name}=tf.constant({name}))["{output}"].numpy()
"""
_KERAS = """
model = tf.keras.models.load_model("model.keras")
answers = model(tf.constant({name}))["{output}"].numpy()
"""
_TFLITE = """
lite = tf.lite.Interpreter("model.tflite")
answers = lite.get_signature_runner("serving_default")({name}={name})["{output}"]
"""
_NPZ = """
model = np.load("model.npz")
"""
# As `tasks.own.encoding.Encoding.encode`.
_ENCODE = """
inputs, first = [], 0
for i, count in enumerate(model["preprocessing/num_categories"]):
  values, has_missing = features[:, i], model["preprocessing/has_missing"][i]
  missing = np.isnan(values)
  if count:  # A category is its number in preprocessing/categories[first : first + count].
    place = np.where(missing, count if has_missing else -1, values)
    inputs.append(place[:, None] == np.arange(count + has_missing))
    first += count
  else:
    scaled = (values - model["preprocessing/mean"][i]) / model["preprocessing/std"][i]
    inputs.append(np.where(missing, 0.0, np.clip(scaled, -1e6, 1e6))[:, None])
    inputs += [missing[:, None]] * int(has_missing)
x = np.concatenate(inputs, axis=1).astype(np.float32)
"""
_LAYERS = """
layers = [name.removesuffix("/kernel") for name in model if name.endswith("/kernel")]
for layer in layers:
  x = x @ model[f"{layer}/kernel"] + (model[f"{layer}/bias"] if f"{layer}/bias" in model else 0)
  x = np.maximum(x, 0) if layer != layers[-1] else x
"""
_NUMBERS = """
answers = x[:, 0] * model["label_std"] + model["label_mean"]
"""
_CLASSES = """
scores = np.concatenate([0 * x, x], axis=1) if x.shape[1] == 1 else x  # One is the second class's.
answers = np.exp(scores - scores.max(axis=1, keepdims=True))
answers /= answers.sum(axis=1, keepdims=True)  # The probabilities.
"""


def code(model: Any, name: str) -> str:
  """Returns a program for an export, "" where it would have to rebuild more than dense layers."""
  spec = model.preprocessing.raw_spec
  output = "probabilities" if model.label_scale is None else "prediction"
  if name == "npz":
    return _npz(model)
  lines = {"saved_model": _SAVED_MODEL, "keras": _KERAS, "tflite": _TFLITE}.get(name)
  if lines is None:  # A format of somebody else's.
    return ""
  dtype = tf.float32 if name == "tflite" and spec.dtype == tf.float64 else spec.dtype
  body = lines.format(name=spec.name, output=output)
  return f"{_TENSORFLOW}\n{_rows(model, dtype)}{body}print(answers)\n"


def _rows(model: Any, dtype: tf.DType) -> str:
  """Returns the line of three examples: of a table the columns' means, as no row is all zeros."""
  spec = model.preprocessing.raw_spec
  shape = [3, *(5 if size is None else size for size in spec.shape[1:])]
  means = model.preprocessing.arrays.get("mean")
  if means is not None:
    listed = textwrap.fill(", ".join(f"{mean:.6g}" for mean in means), 90)
    indented = textwrap.indent(listed, "  ")
    return (
      f"means = [  # Of the table's columns; the first category of one that has categories.\n"
      f"{indented}\n]\n{spec.name} = np.array([means] * 3, np.{dtype.name})  # To be replaced."
    )
  if dtype == tf.string:
    return f'{spec.name} = np.full({shape}, "", object)  # Three examples, to be replaced.'
  return f"{spec.name} = np.zeros({shape}, np.{dtype.name})  # Three examples, to be replaced."


def _npz(model: Any) -> str:
  """Returns the program that computes a model of dense layers in NumPy."""
  arrays, spec = model.to_arrays(), model.preprocessing.raw_spec
  is_dense = all(
    name.startswith("dense") and name.endswith(("/kernel", "/bias")) and np.ndim(array) <= 2
    for name, array in arrays.items()
  )
  is_table = bool(model.preprocessing.arrays)
  if not is_dense or not (is_table or _takes_raw_rows(model)):
    return ""
  encode = _ENCODE if is_table else f"x = {spec.name}\n"
  answers = _CLASSES if model.label_scale is None else _NUMBERS
  body = "".join(part.lstrip("\n") for part in (_NPZ, encode, _LAYERS, answers))
  return f"import numpy as np\n\n{_rows(model, spec.dtype)}\n{body}print(answers)\n"


def _takes_raw_rows(model: Any) -> bool:
  """Returns whether the network takes raw examples as they are, rows of numbers."""
  spec = model.preprocessing.raw_spec
  return model.preprocessing.apply is tf.identity and spec.shape.rank == 2
