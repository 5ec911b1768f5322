"""Draws the cohort of each round."""

from collections.abc import Callable, Sequence

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


def build_fixed_size_sampler(
  client_ids: Sequence[str], clients_per_round: int, seed: seeds.Seed
) -> Callable[[int], list[str]]:
  """Returns a function from the round to its cohort: uniform, of fixed size, without replacement.

  The same round always gets the same cohort, here and below.
  """
  cohorts_lib.of("fixed_size", len(client_ids), clients_per_round)  # It checks these, as below.

  def sample(round_num: int) -> list[str]:
    rng = seeds.generator(seed, "cohort", round_num)
    return [client_ids[i] for i in rng.choice(len(client_ids), clients_per_round, replace=False)]

  return sample


def build_poisson_sampler(
  client_ids: Sequence[str],
  clients_per_round: float,
  seed: seeds.Seed,
  *,
  max_clients: int | None = None,
) -> Callable[[int], list[str]]:
  """Returns a function from the round to its cohort: each client by itself with the same chance.

  What the accounting of Poisson sampling assumes. The size of a cohort, `clients_per_round` on
  average, varies down to 0; it must not be released, or the cohort is as good as one of fixed size.
  Cohorts of more than `max_clients` lose clients at random; `privacy.noise.dominating_pairs` says
  what that changes in the accounting. The seed of a private run is its key.
  """
  probability = cohorts_lib.of("poisson", len(client_ids), clients_per_round).probability

  def sample(round_num: int) -> list[str]:
    rng = seeds.generator(seed, "cohort", round_num)
    chosen = np.flatnonzero(rng.random(len(client_ids)) < probability)
    if max_clients is not None and len(chosen) > max_clients:
      chosen = np.sort(rng.choice(chosen, max_clients, replace=False))
    return [client_ids[i] for i in chosen.tolist()]

  return sample


def build_helpers_sampler(
  client_ids: Sequence[str], num_shares: int, seed: seeds.Seed
) -> Callable[[int, Sequence[str]], list[str]]:
  """Returns a function from (round, cohort) to clients who send noise alone."""

  def sample(round_num: int, cohort: Sequence[str]) -> list[str]:
    members = set(cohort)
    others = [client_id for client_id in client_ids if client_id not in members]
    rng = seeds.generator(seed, "helpers", round_num)
    return [others[i] for i in rng.choice(len(others), num_shares - len(cohort), replace=False)]

  return sample


def build_coin(probability: float, seed: seeds.Seed) -> Callable[[int, str], bool]:
  """Returns a function from (round, client id) to whether the client adds its data."""

  def toss(round_num: int, client_id: str) -> bool:
    return bool(seeds.generator(seed, f"coin of {client_id}", round_num).random() < probability)

  return toss


def _swing(num_clients: int, seed: seeds.Seed) -> Callable[[int], np.ndarray]:
  """Returns a function from the round to cos(2 pi (t / 24 - phase_i)), [n]."""
  rng = seeds.generator(seed, "availability")
  hours = rng.choice(_ZONE_HOURS, size=num_clients, p=_ZONE_SHARES)
  hours += rng.normal(scale=_HABIT_STDDEV_HOURS, size=num_clients)
  phases = hours / 24.0

  def at(round_num: int) -> np.ndarray:
    swing: np.ndarray = np.cos(2.0 * np.pi * (round_num / _ROUNDS_PER_DAY - phases))
    return swing

  return at


def build_cyclic_sampler(
  client_ids: Sequence[str], clients_per_round: float, seed: seeds.Seed
) -> Callable[[int], list[str]]:
  """Returns a function from the round to its cohort: groups take turns, in the same order again.

  The ceil(n / m) groups differ by one client at most, m the most clients of a round. A client's
  group follows from its rank among the hashes of all clients' names under the seed, which is
  public. One that misses its turn waits for its group's next one, so that its rounds are never
  closer than there are groups.
  """
  num_groups = cohorts_lib.Cyclic(len(client_ids), clients_per_round).separation  # It checks these.
  by_hash = sorted(
    client_ids, key=lambda name: seeds.client_seed(seed, 0, f"group of {name}").tobytes()
  )
  return lambda round_num: by_hash[round_num % num_groups :: num_groups]


def build_spaced_sampler(
  client_ids: Sequence[str], clients_per_round: int, separation: int, seed: seeds.Seed
) -> Callable[[int], list[str]]:
  """Returns a function from the round to its cohort: of who is there and has waited long enough.

  Client i is there with probability (1 + cos(2 pi (t / 24 - phase_i))) / 2 in round t, an hour: a
  synthetic trace of devices that are idle and charging mostly at night. phase_i, in days, is drawn
  once: a time zone out of four, as of a population of the USA, and a habit that is normal with a
  standard deviation of 1.5 hours. The cohort are m clients, drawn uniformly from those that are
  there and have not taken part in the last s - 1 rounds; fewer, or none, if there are not so many.
  Nothing depends on data. A round, from 0, is the faster the closer it is to the last asked for.
  """
  cohorts_lib.Spaced(len(client_ids), clients_per_round, separation=separation)  # It checks these.
  swing = _swing(len(client_ids), seed)
  drawn: list[np.ndarray] = []

  def draw(round_num: int) -> np.ndarray:
    rng = seeds.generator(seed, "cohort", round_num)
    can = rng.random(len(client_ids)) < 0.5 * (1.0 + swing(round_num))
    for recent in drawn[max(0, round_num - separation + 1) :]:
      can[recent] = False
    there = np.flatnonzero(can)
    return rng.choice(there, min(clients_per_round, there.size), replace=False)

  def sample(round_num: int) -> list[str]:
    while len(drawn) <= round_num:
      drawn.append(draw(len(drawn)))
    return [client_ids[i] for i in drawn[round_num]]

  return sample


_SAMPLERS: dict[type[cohorts_lib.Cohort], Callable[..., Callable[[int], list[str]]]] = {
  cohorts_lib.FixedSize: build_fixed_size_sampler,
  cohorts_lib.Poisson: build_poisson_sampler,
  cohorts_lib.Cyclic: build_cyclic_sampler,
}


def build_sampler(
  cohort: cohorts_lib.Cohort, client_ids: Sequence[str], seed: seeds.Seed
) -> Callable[[int], list[str]]:
  """Returns the function from a round to the ids of its cohort, by the kind of the cohort."""
  if isinstance(cohort, cohorts_lib.Spaced):
    return build_spaced_sampler(client_ids, int(cohort.expected), cohort.separation, seed)
  return _SAMPLERS[type(cohort)](client_ids, cohort.size, seed)
