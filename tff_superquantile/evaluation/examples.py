"""The examples of clients, one client after the other in arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tff_superquantile.simulation import client_files


class ClientExamples(NamedTuple):
  """Holds the examples of many clients, one client after the other.

  Attributes:
    client_ids: The ids of the k clients.
    x: Inputs [n, ...], as the model takes them or as `decode` does.
    y: Labels [n, ...].
    offsets: int64 [k + 1]; client i owns rows offsets[i]:offsets[i + 1].
    decode: A TensorFlow function from rows of x to the model's inputs; None for the identity.
  """

  client_ids: Sequence[str]
  x: np.ndarray
  y: np.ndarray
  offsets: np.ndarray
  decode: Callable[[tf.Tensor], tf.Tensor] | None = None

  def of_client(self, i: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows (x, y) of client i."""
    rows = slice(self.offsets[i], self.offsets[i + 1])
    return self.x[rows], self.y[rows]

  def take(self, places: Sequence[int]) -> ClientExamples:
    """Returns the examples of some clients, by their places among all, at least one."""
    rows = np.concatenate([np.arange(*self.offsets[i : i + 2]) for i in places])
    return self._replace(
      client_ids=[self.client_ids[i] for i in places],
      x=self.x[rows],
      y=self.y[rows],
      offsets=np.cumsum([0, *np.diff(self.offsets)[places]]),
    )

  def decoded(self, x: tf.Tensor) -> tf.Tensor:
    """Returns rows of x as the model takes them."""
    return x if self.decode is None else self.decode(x)

  def specs(self) -> tuple[tf.TensorSpec, tf.TensorSpec]:
    """Returns the specifications of any number of rows of x and y."""
    x, y = (tf.TensorSpec([None, *rows.shape[1:]], rows.dtype) for rows in (self.x, self.y))
    return x, y


def examples_of_files(
  files: client_files.ClientFiles, client_ids: Sequence[str] | None = None
) -> ClientExamples:
  """Reads the examples of some clients of files into memory; None for all.

  Args:
    files: The client files.
    client_ids: The clients, ids of `files`, in the order of the result; None for all.

  Returns:
    The examples as stored, one client after the other, with what decodes them to float32.

  Raises:
    ValueError: If an id is not in `files`.
  """
  ids = files.client_ids if client_ids is None else client_ids
  return ClientExamples(ids, *files.load(ids), files.decode)


def _specs_of_rows(dataset: Any, client: str) -> tuple[tf.TensorSpec, tf.TensorSpec]:
  """Returns the specifications of a row of x and of y; refuses all but finite batches (x, y)."""
  expected = 'expected a finite tf.data.Dataset of batches (x, y) or {"x": x, "y": y}'
  if not isinstance(dataset, tf.data.Dataset):
    raise TypeError(
      f"Found a {type(dataset).__name__} for client {client}; {expected}, as"
      " tf.data.Dataset.from_tensor_slices((x, y)).batch(20) is."
    )
  spec = dataset.element_spec
  names = list(spec) if isinstance(spec, Mapping) else ""
  parts = [spec[name] for name in names] if names else spec
  is_pair = isinstance(parts, (tuple, list)) and len(parts) == 2
  if not is_pair or (names and set(names) != {"x", "y"}):
    kind = f"the names {', '.join(map(str, names))}" if names else f"elements {spec}"
    raise ValueError(f"Found {kind} in the data set of client {client}; {expected}: .map to it.")
  x, y = (spec["x"], spec["y"]) if names else spec
  if not isinstance(x, tf.TensorSpec) or not isinstance(y, tf.TensorSpec):
    raise ValueError(f"Found x of {x} and y of {y} for client {client}; expected one tensor each.")
  if not x.shape.rank or not y.shape.rank:
    raise ValueError(f"Found single examples for client {client}; {expected}: .batch it.")
  if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
    raise ValueError(f"Found a data set without end for client {client}; {expected}: .take of it.")
  return tf.TensorSpec(x.shape[1:], x.dtype), tf.TensorSpec(y.shape[1:], y.dtype)


def examples_of_datasets(
  datasets: Sequence[tf.data.Dataset], client_ids: Sequence[str] | None = None
) -> ClientExamples:
  """Stacks the clients' data sets of batches (x, y), as TFF's tutorials make them.

  Args:
    datasets: The data set of each client, at least one.
    client_ids: Their ids; None for their numbers, from "0" on.

  Returns:
    The examples.

  Raises:
    TypeError: If a client has no data set.
    ValueError: If a data set has no end, other elements, or elements of other shapes and types than
      the first one; or if the ids are not one each.
  """
  ids = [str(i) for i in range(len(datasets))] if client_ids is None else list(client_ids)
  if not datasets or len(ids) != len(datasets):
    raise ValueError(f"Found {len(datasets)} data sets and {len(ids)} ids; expected one of each.")
  first = _specs_of_rows(datasets[0], ids[0])
  xs, ys, sizes = [], [], []
  for client, dataset in zip(ids, datasets):
    specs = _specs_of_rows(dataset, client)
    if not all(a.is_compatible_with(b) for a, b in zip(first, specs)):
      raise ValueError(f"Found rows {specs} for client {client}; expected {first}, as before.")
    size = 0
    for batch in dataset.as_numpy_iterator():
      x, y = (batch["x"], batch["y"]) if isinstance(batch, Mapping) else batch
      xs.append(x)
      ys.append(y)
      size += len(y)
    sizes.append(size)
  # The empty rows are those of clients without any batch.
  empty = (np.zeros([0, *(d or 0 for d in s.shape)], s.dtype.as_numpy_dtype) for s in first)
  x, y = (np.concatenate(of or [none]) for of, none in zip((xs, ys), empty))
  return ClientExamples(ids, x, y, np.cumsum([0, *sizes]))
