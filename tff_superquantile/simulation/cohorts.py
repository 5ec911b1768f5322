"""Who takes part in a round."""

from collections.abc import Sequence
from typing import Callable

from tff_superquantile.simulation import seeds


def build_fixed_size_sampler(
  client_ids: Sequence[str], clients_per_round: int, seed: int
) -> Callable[[int], list[str]]:
  """Returns a function from the round to its cohort: uniform, of fixed size, without replacement.

  Args:
    client_ids: All clients.
    clients_per_round: The size of a cohort.
    seed: The run's seed.

  Returns:
    A function of the round's number; the same round always gets the same cohort.

  Raises:
    ValueError: If clients_per_round is not between 1 and the number of clients.
  """
  client_ids = list(client_ids)
  if not 1 <= clients_per_round <= len(client_ids):
    raise ValueError(
      f"Found clients_per_round = {clients_per_round} with {len(client_ids)} training clients;"
      f" expected a number from 1 to {len(client_ids)}."
    )

  def sample(round_num: int) -> list[str]:
    rng = seeds.generator(seed, "cohort", round_num)
    return [client_ids[i] for i in rng.choice(len(client_ids), clients_per_round, replace=False)]

  return sample


def build_poisson_sampler(
  client_ids: Sequence[str], clients_per_round: float, seed: int
) -> Callable[[int], list[str]]:
  """Returns a function from the round to its cohort: each client by itself with the same chance.

  What the accounting of Poisson sampling assumes. The size of a cohort varies, down to 0; it must
  not be released, or the cohort is as good as one of fixed size.

  Args:
    client_ids: All clients.
    clients_per_round: The expected size of a cohort.
    seed: The run's seed.

  Returns:
    A function of the round's number; the same round always gets the same cohort.

  Raises:
    ValueError: If clients_per_round is not positive or exceeds the number of clients.
  """
  client_ids = list(client_ids)
  if not 0 < clients_per_round <= len(client_ids):
    raise ValueError(
      f"Found clients_per_round = {clients_per_round} with {len(client_ids)} training clients;"
      f" expected a positive number up to {len(client_ids)}."
    )
  probability = clients_per_round / len(client_ids)

  def sample(round_num: int) -> list[str]:
    rng = seeds.generator(seed, "cohort", round_num)
    chosen = rng.random(len(client_ids)) < probability
    return [client_id for client_id, is_chosen in zip(client_ids, chosen) if is_chosen]

  return sample
