"""Draws the cohort of each round."""

from collections.abc import Callable, Sequence
import functools

import numpy as np

from privacy import cohorts as cohorts_lib
from tff_superquantile.simulation import seeds

_ROUNDS_PER_DAY = 24
# Home time zones of clients that come and go, in hours behind the first, and their shares:
# Eastern, Central, Mountain and Pacific by population (US census 2020, rounded).
_ZONE_HOURS = (0.0, 1.0, 2.0, 3.0)
_ZONE_SHARES = (0.47, 0.29, 0.07, 0.17)
# The distance of clients' habits from their neighbours', in hours.
_HABIT_STDDEV_HOURS = 1.5


def build_helpers_sampler(
  client_ids: Sequence[str], num_shares: int, seed: seeds.Seed
) -> Callable[[int, Sequence[str]], list[str]]:
  """Returns a function from (round, cohort) to clients who send noise alone.

  Args:
    client_ids: The ids of all clients.
    num_shares: K; the helpers and the cohort together are so many.
    seed: The run's seed, or its key.

  Returns:
    The function; helpers are drawn from the clients outside the cohort, without replacement.
  """

  def sample(round_num: int, cohort: Sequence[str]) -> list[str]:
    members = set(cohort)
    others = [client_id for client_id in client_ids if client_id not in members]
    rng = seeds.generator(seed, "helpers", round_num)
    return [others[i] for i in rng.choice(len(others), num_shares - len(cohort), replace=False)]

  return sample


def build_coin(probability: float, seed: seeds.Seed) -> Callable[[int, str], bool]:
  """Returns a function from (round, client id) to whether the client adds its data.

  Args:
    probability: That of adding, in each round anew, by each client by itself.
    seed: The run's seed, or its key.

  Returns:
    The function; its answers follow from its arguments and the seed.
  """

  def toss(round_num: int, client_id: str) -> bool:
    return bool(seeds.generator(seed, f"coin of {client_id}", round_num).random() < probability)

  return toss


class _Draws:
  """The randomness of cohorts of clients, by a seed or a key."""

  def __init__(self, client_ids: Sequence[str], seed: seeds.Seed):
    self._client_ids = client_ids
    self._seed = seed

  def generator(self, purpose: str, round_num: int) -> np.random.Generator:
    return seeds.generator(self._seed, purpose, round_num)

  def order(self, purpose: str) -> np.ndarray:
    names = [f"{purpose} of {client_id}" for client_id in self._client_ids]
    hashes = [seeds.client_seed(self._seed, 0, name).tobytes() for name in names]
    return np.array(sorted(range(len(names)), key=hashes.__getitem__))

  @functools.cached_property
  def _phases(self) -> np.ndarray:
    rng = seeds.generator(self._seed, "availability")
    hours = rng.choice(_ZONE_HOURS, size=len(self._client_ids), p=_ZONE_SHARES)
    hours += rng.normal(scale=_HABIT_STDDEV_HOURS, size=len(self._client_ids))
    phases: np.ndarray = hours / 24.0
    return phases

  def are_there(self, round_num: int) -> np.ndarray:
    """Returns (1 + cos(2 pi (t / 24 - phase_i))) / 2 in round t, an hour.

    It is a synthetic trace of devices that are idle and charging mostly at night. phase_i, in days,
    is drawn once: a time zone out of four, as of a population of the USA, and a habit that is
    normal with a standard deviation of 1.5 hours.
    """
    swing = np.cos(2.0 * np.pi * (round_num / _ROUNDS_PER_DAY - self._phases))
    probabilities: np.ndarray = 0.5 * (1.0 + swing)
    return probabilities


def build_sampler(
  cohort: cohorts_lib.Cohort,
  client_ids: Sequence[str],
  seed: seeds.Seed,
  *,
  max_clients: int | None = None,
) -> Callable[[int], list[str]]:
  """Returns the function from a round to the ids of its cohort; the same round gets the same.

  Args:
    cohort: The sampling, of any population or none yet.
    client_ids: The names of all clients, [n].
    seed: The run's seed; that of a private run whose cohorts are secret is its key.
    max_clients: The most clients of a round where its size varies (Poisson sampling); None for all.

  Returns:
    A function from the round's number, from 1, to the names of its clients.

  Raises:
    ValueError: `cohort` has a size that is no number of these clients, or no size.
  """
  sample = cohort.of(len(client_ids)).sampler(_Draws(client_ids, seed), max_clients)
  return lambda round_num: [client_ids[i] for i in sample(round_num).tolist()]
