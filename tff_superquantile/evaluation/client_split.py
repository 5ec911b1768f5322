"""Splits each client's examples: one part adapts or chooses a model, the other measures it."""

from typing import NamedTuple

import numpy as np

from privacy import checks
from tff_superquantile.evaluation import examples as examples_lib
from tff_superquantile.simulation import seeds


class SplitExamples(NamedTuple):
  """Holds the two parts of every client's examples, for the same clients in the same order.

  Attributes:
    held_in: Examples to fine-tune or choose a model on, at least one of each client.
    held_out: Examples to measure the result on, at least one of each client.
    num_left_out: The number of clients with fewer than two examples, which are in neither part.
  """

  held_in: examples_lib.ClientExamples
  held_out: examples_lib.ClientExamples
  num_left_out: int


def split_examples(
  examples: examples_lib.ClientExamples, held_in_fraction: float, seed: int
) -> SplitExamples:
  """Splits every client's examples at random.

  A client's split depends on the seed, its id and its number of examples alone. It is the same for
  every model, and whatever other clients there are.

  Args:
    examples: The examples of all clients.
    held_in_fraction: Fraction of a client's examples to hold in, in (0, 1), rounded so that neither
      part is empty.
    seed: The seed, not negative.

  Returns:
    The parts, of the clients that have at least two examples.

  Raises:
    ValueError: If the fraction is not in (0, 1), or no client has two examples.
  """
  checks.fraction("held_in_fraction", held_in_fraction)
  ids, rows_in, rows_out = [], [], []
  for client_id, start, end in zip(examples.client_ids, examples.offsets, examples.offsets[1:]):
    size = int(end - start)
    if size < 2:
      continue
    order = seeds.generator(seed, f"held-in examples of {client_id}").permutation(size)
    cut = min(max(round(held_in_fraction * size), 1), size - 1)
    ids.append(client_id)
    rows_in.append(start + order[:cut])
    rows_out.append(start + order[cut:])
  if not ids:
    raise ValueError(
      f"Found {len(examples.client_ids)} clients, none with two examples; expected at least one"
      " with an example to hold in and one to hold out: use a task whose test clients have more."
    )

  def take(rows_of_clients: list[np.ndarray]) -> examples_lib.ClientExamples:
    offsets = np.cumsum([0, *map(len, rows_of_clients)])
    rows = np.concatenate(rows_of_clients)
    return examples_lib.ClientExamples(
      ids, examples.x[rows], examples.y[rows], offsets, examples.decode
    )

  return SplitExamples(take(rows_in), take(rows_out), len(examples.client_ids) - len(ids))
