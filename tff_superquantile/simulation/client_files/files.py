"""Describes the clients' files, and reads them into memory."""

import collections
from collections.abc import Sequence
import dataclasses
import functools
import math
import os
from typing import Any
import urllib.parse

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

# The suffix keeps the ids "index.json", "." and ".." from being files of their own meaning.
SUFFIX = ".bin"
INDEX_NAME = "index.json"
Y_BYTES = 4  # int32 and float32
# It stands in place of a client's index.
WITHOUT_EXAMPLES = -1

# The handle of a client in a round: the path of its file, the seed of all that it draws, and its
# index among `client_ids`.
HANDLE_TYPE = tff.to_type(
  collections.OrderedDict(path=np.str_, seed=tff.TensorType(np.int64, (2,)), index=np.int32)
)


@dataclasses.dataclass(frozen=True, eq=False)
class ClientFiles:
  """The examples of some clients, on disk.

  Attributes:
    directory: Absolute path of the directory that holds the files.
    client_ids: The clients, in the order in which they were written or chosen.
    num_examples: int64 [clients], examples of each client, aligned with `client_ids`.
    x_shape: Shape of one example, without the batch dimension.
    x_dtype: The type of a stored x, "uint8" or "float32".
    x_scale: Factor from a stored x to the model's input (1 / 255 for pixels).
    num_classes: One more than the largest label in the directory; 0 for labels that are numbers.
    num_dropped: Clients left out for too few examples; None if nobody has counted them.
    remark: What errors about the number of clients add to it, such as ", without the 7 of 9 clients
      that have fewer than 100 examples".
    y_dtype: The type of y: "int32" for classes, "float32" for numbers.
    min_examples: Clients with fewer are members without examples, as `handles` makes them, so that
      a client that falls below it changes nothing else.
  """

  directory: str
  client_ids: tuple[str, ...]
  num_examples: np.ndarray
  x_shape: tuple[int, ...]
  x_dtype: str
  x_scale: float
  num_classes: int
  num_dropped: int | None = None
  remark: str = ""
  y_dtype: str = "int32"
  min_examples: int = 0

  @property
  def input_spec(self) -> tuple[tf.TensorSpec, tf.TensorSpec]:
    """Returns the type of what a model reads: (x float32 [None, ...], y [None] of `y_dtype`)."""
    return (
      tf.TensorSpec((None,) + self.x_shape, tf.float32),
      tf.TensorSpec((None,), self.y_dtype),
    )

  @functools.cached_property
  def _positions(self) -> dict[str, int]:
    return {client_id: i for i, client_id in enumerate(self.client_ids)}

  @property
  def x_bytes(self) -> int:
    """Returns the bytes of one example's x."""
    return math.prod(self.x_shape) * np.dtype(self.x_dtype).itemsize

  def path(self, client_id: str) -> str:
    """Returns the path of a client's file.

    Args:
      client_id: The client's id.

    Returns:
      The path.
    """
    return client_path(self.directory, client_id)

  def _indices(self, client_ids: Sequence[str]) -> list[int]:
    unknown = [client_id for client_id in client_ids if client_id not in self._positions]
    if unknown:
      raise ValueError(
        f"Found {len(unknown)} client ids that {self.directory} does not hold among these clients,"
        f" first {unknown[0]!r}; use ids of `client_ids`."
      )
    return [self._positions[client_id] for client_id in client_ids]

  def subset(self, client_ids: Sequence[str]) -> "ClientFiles":
    """Returns the same files, seen as these clients only, in this order.

    Args:
      client_ids: Different ids among those of the files.

    Returns:
      The files.

    Raises:
      ValueError: If an id is given twice, or is not there.
    """
    indices = self._indices(client_ids)
    if len(set(indices)) != len(indices):
      raise ValueError(f"Found a client id given twice for a subset of {self.directory}.")
    return dataclasses.replace(
      self, client_ids=tuple(client_ids), num_examples=self.num_examples[indices]
    )

  def handles(
    self,
    client_ids: Sequence[str],
    seeds: Sequence[Sequence[int]] | np.ndarray,
    with_examples: Sequence[bool] | None = None,
  ) -> list[collections.OrderedDict[str, Any]]:
    """Returns the handles of clients for their graphs, values of `HANDLE_TYPE`.

    Args:
      client_ids: The clients' ids, [n].
      seeds: Two integers a client, of what it draws, such as its shuffle, [n, 2].
      with_examples: Whether a client has its examples in this round, [n]; without them it may send
        noise alone, in graphs built by `build_examples_fn(..., may_lack_examples=True)`. None: all.

    Returns:
      Of each client the path of its file (so the graphs of all directories are equal), the seed,
      int64 [2], and the client's index among `client_ids`, int32, or `WITHOUT_EXAMPLES`; see
      `min_examples`.

    Raises:
      ValueError: If a seed is not two integers, or a client is not there.
    """
    indices = np.array(self._indices(client_ids), np.int32)
    array = np.asarray(seeds)
    if array.shape != (len(client_ids), 2) or array.dtype.kind not in "iu":
      raise ValueError(
        f"Found seeds of shape {array.shape} and type {array.dtype} for {len(client_ids)} clients;"
        " expected two integers each."
      )
    is_in = self.num_examples[indices] >= self.min_examples
    if with_examples is not None:
      is_in &= np.asarray(with_examples, bool)
    marks = np.where(is_in, indices, np.int32(WITHOUT_EXAMPLES))
    return [
      collections.OrderedDict(path=self.path(client_id), seed=seed, index=index)
      for client_id, seed, index in zip(client_ids, array.astype(np.int64), marks)
    ]

  def handle(
    self, client_id: str, seed: Sequence[int] | np.ndarray
  ) -> collections.OrderedDict[str, Any]:
    """Returns the handle of one client, as `handles` has it.

    Args:
      client_id: The client's id.
      seed: Two integers, of what the client draws.

    Returns:
      The handle.

    Raises:
      ValueError: As by `handles`.
    """
    return self.handles([client_id], np.asarray([seed]))[0]

  def decode(self, x: np.ndarray | tf.Tensor) -> tf.Tensor:
    """Decodes stored x (as `load` returns it) to the model's x; nothing else scales it.

    Args:
      x: Numbers of the type `x_dtype`.

    Returns:
      float32, of the same shape.

    Raises:
      ValueError: If x is of another type.
    """
    x = tf.convert_to_tensor(x)
    if x.dtype.name != self.x_dtype:
      raise ValueError(
        f"Found x of type {x.dtype.name}; expected {self.x_dtype}, as it is stored in"
        f" {self.directory}."
      )
    x = tf.cast(x, tf.float32)
    return x if self.x_scale == 1.0 else x * tf.constant(self.x_scale, tf.float32)

  def load(
    self, client_ids: Sequence[str] | None = None
  ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Reads some clients into memory as they are stored.

    Args:
      client_ids: The ids, None for all.

    Returns:
      x [n, ...] of type `x_dtype` (`decode` makes it the model's input), y [n], and offsets int64
      [clients + 1]: client i owns rows offsets[i]:offsets[i + 1].

    Raises:
      ValueError: If a client is not there.
    """
    client_ids = self.client_ids if client_ids is None else client_ids
    counts = self.num_examples[self._indices(client_ids)]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
    x = np.empty((offsets[-1],) + self.x_shape, self.x_dtype)
    y = np.empty(offsets[-1], self.y_dtype)
    stored_x_dtype, stored_y_dtype = (
      np.dtype(dtype).newbyteorder("<") for dtype in (self.x_dtype, self.y_dtype)
    )
    for i, client_id in enumerate(client_ids):
      rows = slice(offsets[i], offsets[i + 1])
      raw = np.fromfile(self.path(client_id), np.uint8)
      cut = int(counts[i]) * self.x_bytes
      x[rows] = raw[:cut].view(stored_x_dtype).reshape((-1,) + self.x_shape)
      y[rows] = raw[cut:].view(stored_y_dtype)
    return x, y, offsets


def file_stem(client_id: str) -> str:
  """Returns the name of a client's file, without its suffix."""
  return urllib.parse.quote(client_id, safe="")


@functools.lru_cache(maxsize=2**16)
def client_path(directory: str, client_id: str) -> str:
  """Returns the path of a client's file."""
  return os.path.join(directory, file_stem(client_id) + SUFFIX)
