"""Splits pools of clients into those to train on, to test on and to validate on.

A client's place follows from its id and the seed alone (`places`), or from a permutation of all
clients ("shuffled"), by which the results on real handwriting and tweets were measured.
"""

from collections.abc import Callable, Sequence
import dataclasses

import numpy as np

from privacy.settings import command_line
from tasks import places
from tasks import request as request_lib
from tff_superquantile.simulation import client_files

Pools = Sequence[client_files.ClientFiles]
Splitter = Callable[[Pools, request_lib.Request], Pools]


@dataclasses.dataclass(frozen=True)
class Split:
  """Splits pools of clients into training and test clients, each in the order of their places."""

  test_fraction: float = 0.5  # A client of a single pool is a test client with this probability.
  seed: int | None = None  # The seed by which a single pool is divided; None for the request's.
  # The number of test clients of so many, where a run's clients are shuffled.
  num_shuffled: Callable[[int], int] = lambda num_clients: num_clients // 2

  def apply(self, pools: Pools, request: request_lib.Request) -> Pools:
    """Returns the clients to train on and to test on, of one pool or of the two."""
    if request.is_shuffled:
      if len(pools) == 1 and self.seed is not None:
        pools = self._cut(shuffle(pools, self.seed))
      pools = shuffle(pools, request.seed_of_split)
      return self._cut(pools) if len(pools) == 1 else pools
    if request.folds:
      if len(pools) != 1:
        raise ValueError(
          f"Found --folds={request.folds} for clients that come as training and test clients;"
          " expected clients without such a division: leave it out."
        )
      pools = places.take_fold(pools[0], request.folds, request.seed)
    elif len(pools) == 1:
      seed = request.seed_of_split if self.seed is None else self.seed
      pools = places.divide(
        pools[0], self.test_fraction, seed, places.TEST, fills_sides=not request.keeps_apart
      )
    return [places.sort(pool, request.seed_of_split) for pool in pools]

  def _cut(self, pools: Pools) -> list[client_files.ClientFiles]:
    [pool] = pools
    num_clients = len(pool.client_ids)
    return cut(pool, num_clients - self.num_shuffled(num_clients))


def shuffle(pools: Pools, seed: int) -> list[client_files.ClientFiles]:
  """Shuffles the clients of each pool; the result does not depend on the order that they had.

  Args:
    pools: Pools of clients.
    seed: That of the permutations, not negative.

  Returns:
    The pools, shuffled.
  """
  rng = np.random.default_rng(seed)
  shuffled = []
  for pool in pools:
    ids = sorted(pool.client_ids)
    shuffled.append(pool.subset([ids[i] for i in rng.permutation(len(ids))]))
  return shuffled


def cut(pool: client_files.ClientFiles, num_first: int) -> list[client_files.ClientFiles]:
  """Cuts a pool into its first clients and the others.

  Args:
    pool: The clients, in their order.
    num_first: The number of first clients.

  Returns:
    Both parts, either of which may be empty.
  """
  return [pool.subset(pool.client_ids[:num_first]), pool.subset(pool.client_ids[num_first:])]


def too_few(min_examples: int) -> str:
  """Returns how a sentence calls the examples of clients that are dropped.

  Args:
    min_examples: The least number of examples of a client that stays.

  Returns:
    Words that follow "have".
  """
  if min_examples <= 1:
    return "no examples"
  return f"fewer than {min_examples} examples (--min_examples_per_client)"


def drop_small_clients(
  pool: client_files.ClientFiles, min_examples: int
) -> client_files.ClientFiles:
  """Drops clients with too few examples, with a remark on how many were dropped, for errors.

  Args:
    pool: The clients.
    min_examples: The least number of examples of a client that stays.

  Returns:
    The clients that stay, in their order.
  """
  ids = [i for i, n in zip(pool.client_ids, pool.num_examples) if n >= min_examples]
  num_dropped = len(pool.client_ids) - len(ids) + (pool.num_dropped or 0)
  if not num_dropped:
    return pool
  remark = (
    f", without the {num_dropped} of {len(ids) + num_dropped} clients that have"
    f" {too_few(min_examples)}"
  )
  return dataclasses.replace(pool.subset(ids), num_dropped=num_dropped, remark=remark)


def take(
  pool: client_files.ClientFiles, count: int, own_number: int, kind: str
) -> client_files.ClientFiles:
  """Returns the first clients of a pool, in its order.

  Args:
    pool: The clients.
    count: The number that a user asks for; 0 for `own_number`.
    own_number: The task's own number; 0 for all. A pool with fewer clients gives all.
    kind: What the clients are for, as "training", for the error.

  Returns:
    The clients.

  Raises:
    ValueError: If `count` is more than there are.
  """
  num_clients = len(pool.client_ids)
  if count > num_clients:
    raise ValueError(
      f"Found {num_clients} {kind} clients{pool.remark} but {count} were asked for; ask for at most"
      f" {num_clients}, or 0 for the task's own number."
    )
  return pool.subset(pool.client_ids[: count or own_number or num_clients])


def hold_out(
  pool: client_files.ClientFiles, request: request_lib.Request
) -> list[client_files.ClientFiles]:
  """Divides training clients into those that stay and those held out for validation.

  Held out are clients whose place for that purpose is below the request's `validation_fraction`, in
  (0, 1); in a run whose clients are shuffled, the last ones are.

  Args:
    pool: The training clients.
    request: What the run asks for.

  Returns:
    The clients that stay, and those held out.

  Raises:
    ValueError: If either part is empty.
  """
  num_clients, fraction = len(pool.client_ids), request.validation_fraction
  if request.is_shuffled:
    divided = cut(pool, max(0, num_clients - max(1, round(fraction * num_clients))))
  else:
    divided = places.divide(
      pool,
      fraction,
      request.seed_of_split,
      places.VALIDATION,
      fills_sides=not request.keeps_apart,
    )
  if request.keeps_apart:
    divided[1] = drop_small_clients(divided[1], request.min_examples_per_client)
  if not all(part.client_ids for part in divided):
    which = "none" if divided[0].client_ids else "all"
    raise command_line.Mistake(
      f"Found validation_fraction = {fraction}, which holds out {which} of the {num_clients}"
      f" training clients{divided[1].remark}; expected some of them",
      "change --validation_fraction",
      "take another --split_seed",
      "take more training clients",
      places.EVERYBODY,
    )
  return divided


def choose(
  pools: Pools, request: request_lib.Request, split: Splitter, own_number: int, is_apart: bool
) -> dict[str, client_files.ClientFiles]:
  """Chooses a run's clients from pools of all, by the names of splits.

  If `is_apart`, as in private runs, a training client is chosen by its own id and number of
  examples alone; its place by `split` must not follow from the others'. All training clients are
  taken. Those with too few examples are members without examples: they count, and may be drawn. So
  if one client's examples are replaced or removed, nothing changes but what that client itself has;
  and if a client comes or goes, nothing but the number of clients. Test and validation clients are
  not protected: they are dropped and taken by number, which changes nothing among training clients.

  Args:
    pools: All clients: one pool, or one to train on and one to test on.
    request: What the run asks for, with the least number of examples of a client.
    split: Takes pools and the request, and returns the clients to train on, to test on and, if the
      task has its own, to validate on.
    own_number: The task's own number of training clients, and of test clients; 0 for all.
    is_apart: Whether nothing of a training client may follow from the others.

  Returns:
    The clients by the split's name: "train", "test", and "validation" where there is one.

  Raises:
    ValueError: If there are fewer clients than the run asks for, or none to train or to test on,
      or, with `is_apart`, it asks for a number of training clients.
  """
  least = request.min_examples_per_client
  if is_apart and request.num_train_clients:
    raise ValueError(
      f"Found --num_train_clients={request.num_train_clients} in a private run; expected all"
      " training clients, as it follows from the others who is among the first: leave it out."
    )
  if is_apart:  # Errors, too, say nothing of the sizes of training clients.
    pools = [dataclasses.replace(pool, num_dropped=None, remark="") for pool in pools]
  else:
    pools = [drop_small_clients(pool, least) for pool in pools]
  train, *others = split(pools, request)
  test, *validation = [drop_small_clients(pool, least) for pool in others] if is_apart else others
  _check_sides(train, test, request)
  if not is_apart:
    train = take(train, request.num_train_clients, own_number, "training")
  test = take(test, request.num_test_clients, own_number, "test")
  chosen = _by_name(train, test, validation, request)
  if is_apart:
    chosen["train"] = dataclasses.replace(chosen["train"], min_examples=least)
  return chosen


def _check_sides(
  train: client_files.ClientFiles, test: client_files.ClientFiles, request: request_lib.Request
) -> None:
  """Raises a `ValueError` unless there are clients to train on and clients to test on."""
  if train.client_ids and test.client_ids:
    return
  remark = (test if train.client_ids else train).remark
  raise command_line.Mistake(
    f"Found {len(train.client_ids)} clients to train on and {len(test.client_ids)} to test on"
    f"{remark} in {request.data_dir or request.cache_dir}; expected at least one of either",
    *["lower --min_examples_per_client"] * bool(remark),
    *["take another --split_seed"] * request.keeps_apart,
    *[places.EVERYBODY] * bool(train.client_ids or test.client_ids),
    "get more data",
  )


def _by_name(
  train: client_files.ClientFiles,
  test: client_files.ClientFiles,
  validation: Pools,
  request: request_lib.Request,
) -> dict[str, client_files.ClientFiles]:
  """Returns clients by the names of splits; `validation` are those of a task's own, if any."""
  if not request.validation_fraction:
    return {"train": train, **dict(zip(["validation"], validation)), "test": test}
  if validation:
    raise ValueError(
      f"Found validation_fraction = {request.validation_fraction}; leave it at 0, since the task"
      f" has {len(validation[0].client_ids)} validation clients of its own."
    )
  train, held_out = hold_out(train, request)
  return {"train": train, "test": test, "validation": held_out}
