"""Writes and reads the work of a race, for every contender. Needs numpy and nothing else.

A workload is a folder: `workload.json` and the arrays of `_ARRAYS`. It says everything that a
contender could otherwise choose for itself: the clients of each round, the order of each client's
examples, and so every batch, and the initial weights.
`make_workload` writes one.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import json
import os
from typing import Any

import numpy as np

_SETTINGS = "workload.json"
_WEIGHTS = "initial_weights.npz"
_ARRAYS = ("x", "y", "offsets", "cohorts", "seeds", "orders", "order_offsets")


@dataclasses.dataclass(frozen=True, eq=False)
class Workload:
  """Clients, cohorts, batches and initial weights.

  Attributes:
    x: Examples of all clients as they are stored, uint8 or float32 [examples, ...].
    y: Labels, int32 [examples].
    offsets: int64 [clients + 1]; client i owns examples offsets[i]:offsets[i + 1].
    cohorts: int32 [rounds, places], the clients of each round. A cohort that is larger than the
      number of clients has some of them several times, in places, and with orders, of their own.
    seeds: int64 [rounds, places, 2], what the client in that place draws its order from.
    orders: int32, the orders of all rounds and places one after the other, each a permutation of
      the client's examples.
    order_offsets: int64 [rounds * places + 1], where they begin and end.
    initial_weights: The model's trainable weights, in the layout of the project's tasks.
    settings: All the rest: "task"; "model" (linear, convnet or lstm); "num_outputs" of the model, 1
      for the binary logistic loss; "batch_size", 0 for all of a client's examples;
      "client_learning_rate"; "client_weighting" (num_examples or uniform); "x_scale", what a stored
      x is multiplied by; "client_files" and "client_ids", the same clients as files; "data", what
      they are, for people.
  """

  x: np.ndarray
  y: np.ndarray
  offsets: np.ndarray
  cohorts: np.ndarray
  seeds: np.ndarray
  orders: np.ndarray
  order_offsets: np.ndarray
  initial_weights: Sequence[np.ndarray]
  settings: Mapping[str, Any]

  @property
  def num_rounds(self) -> int:
    """Returns the number of rounds."""
    return len(self.cohorts)

  @property
  def num_places(self) -> int:
    """Returns the number of clients in a round."""
    return self.cohorts.shape[1]

  def order(self, round_num: int, place: int) -> np.ndarray:
    """Returns the order of the examples of the client in that place, int32 [n]."""
    i = round_num * self.num_places + place
    return self.orders[self.order_offsets[i] : self.order_offsets[i + 1]]

  def num_examples(self, round_num: int) -> np.ndarray:
    """Returns the number of examples of each client of a round, int64 [places]."""
    return np.diff(self.offsets)[self.cohorts[round_num]]

  def client_weights(self, round_num: int) -> np.ndarray:
    """Returns the weight of each client of a round in the average, float64 [places]."""
    if self.settings["client_weighting"] == "uniform":
      return np.ones(self.num_places)
    return self.num_examples(round_num).astype(np.float64)

  def client(self, index: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns a client's examples for the model, as stored: x float32 [n, ...], y int32 [n]."""
    rows = slice(self.offsets[index], self.offsets[index + 1])
    x = self.x[rows].astype(np.float32)
    scale = np.float32(self.settings["x_scale"])
    return (x if scale == 1 else x * scale), self.y[rows]

  def visited(self, round_num: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields what `client` returns for each client of a round, in the order of its batches."""
    for place, index in enumerate(self.cohorts[round_num]):
      order = self.order(round_num, place)
      x, y = self.client(index)
      yield x[order], y[order]

  def batch_size(self, num_examples: int) -> int:
    """Returns the size of a client's batches (but the last)."""
    return self.settings["batch_size"] or num_examples


def write(directory: str, workload: Workload) -> None:
  """Writes a workload into an existing folder."""
  for name in _ARRAYS:
    np.save(os.path.join(directory, f"{name}.npy"), getattr(workload, name))
  np.savez(os.path.join(directory, _WEIGHTS), *workload.initial_weights)
  with open(os.path.join(directory, _SETTINGS), "w", encoding="utf-8") as f:
    json.dump(dict(workload.settings), f)


def read(directory: str) -> Workload:
  """Reads what `write` wrote; arrays stay on disk until they are used."""
  # Else a contender that reads client files would count the arrays that it never uses.
  arrays = {
    name: np.load(os.path.join(directory, f"{name}.npy"), mmap_mode="r") for name in _ARRAYS
  }
  with np.load(os.path.join(directory, _WEIGHTS)) as weights:
    initial_weights = [weights[f"arr_{i}"] for i in range(len(weights.files))]
  with open(os.path.join(directory, _SETTINGS), encoding="utf-8") as f:
    settings = json.load(f)
  return Workload(initial_weights=initial_weights, settings=settings, **arrays)
