"""Splits pools of clients into those to train on, to test on and to validate on."""

from collections.abc import Sequence
import dataclasses

import numpy as np

from tff_superquantile.simulation import client_files

Pools = Sequence[client_files.ClientFiles]


def drop_small_clients(
  pool: client_files.ClientFiles, min_examples: int
) -> client_files.ClientFiles:
  """Drops clients with too few examples.

  Args:
    pool: The clients, perhaps already without some that had too few examples (`num_dropped`).
    min_examples: Number of examples that a client has at least.

  Returns:
    The others, with a remark on how many were dropped, for errors.
  """
  ids = [i for i, n in zip(pool.client_ids, pool.num_examples) if n >= min_examples]
  num_dropped = len(pool.client_ids) - len(ids) + (pool.num_dropped or 0)
  if not num_dropped:
    return pool
  remark = (
    f", without the {num_dropped} of {len(ids) + num_dropped} clients that have fewer than"
    f" {min_examples} examples (--min_examples_per_client)"
  )
  return dataclasses.replace(pool.subset(ids), num_dropped=num_dropped, remark=remark)


def shuffle(pools: Pools, seed: int) -> list[client_files.ClientFiles]:
  """Shuffles the clients of each pool; the result does not depend on the order that they had."""
  rng = np.random.default_rng(seed)
  shuffled = []
  for pool in pools:
    ids = sorted(pool.client_ids)
    shuffled.append(pool.subset([ids[i] for i in rng.permutation(len(ids))]))
  return shuffled


def cut(pool: client_files.ClientFiles, num_first: int) -> list[client_files.ClientFiles]:
  """Cuts a pool into its first clients, `num_first` of them, and the others."""
  return [pool.subset(pool.client_ids[:num_first]), pool.subset(pool.client_ids[num_first:])]


def shuffle_and_halve(pools: Pools, seed: int) -> Pools:
  """Shuffles each pool, then cuts a single one in half; the first half has the odd client."""
  pools = shuffle(pools, seed)
  return pools if len(pools) > 1 else cut(pools[0], (len(pools[0].client_ids) + 1) // 2)


def take(
  pool: client_files.ClientFiles, count: int, own_number: int, kind: str
) -> client_files.ClientFiles:
  """Takes the first clients of a pool.

  Args:
    pool: The clients, in the order in which they are taken.
    count: Number of clients that the user asked for; 0 for the task's own number.
    own_number: The task's own number; 0 for all, which are taken also if there are fewer.
    kind: The purpose of these clients, such as "training", for the error.

  Returns:
    The clients taken.

  Raises:
    ValueError: If more are asked for than there are.
  """
  num_clients = len(pool.client_ids)
  if count > num_clients:
    raise ValueError(
      f"Found {num_clients} {kind} clients{pool.remark} but {count} were asked for; ask for at most"
      f" {num_clients}, or 0 for the task's own number."
    )
  return pool.subset(pool.client_ids[: count or own_number or num_clients])


def hold_out(pool: client_files.ClientFiles, fraction: float) -> list[client_files.ClientFiles]:
  """Cuts training clients into those that stay and the last ones, held out for validation.

  Args:
    pool: The training clients, in random order.
    fraction: Fraction to hold out, in (0, 1); at least one client is.

  Returns:
    The clients that stay and those held out.

  Raises:
    ValueError: If no client stays.
  """
  num_clients = len(pool.client_ids)
  num_kept = num_clients - max(1, round(fraction * num_clients))
  if num_kept < 1:
    raise ValueError(
      f"Found validation_fraction = {fraction}, which holds out all {num_clients} training"
      " clients; lower it or take more training clients."
    )
  return cut(pool, num_kept)
