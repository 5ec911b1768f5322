"""All randomness of a run derives from (seed, purpose, round), so that a resumed run repeats it."""

import zlib

import numpy as np


def generator(seed: int, purpose: str, round_num: int = 0) -> np.random.Generator:
  """Returns the random generator of one purpose in one round.

  Args:
    seed: The run's seed, not negative.
    purpose: What is drawn, for example "cohort"; different purposes are independent.
    round_num: The round, not negative.

  Returns:
    A generator, the same for the same arguments.
  """
  return np.random.default_rng([seed, zlib.crc32(purpose.encode()), round_num])
