"""All randomness of a run derives from (seed, purpose, round), so that a resumed run repeats it."""

import hashlib
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


def client_seed(seed: int, round_num: int, client_id: str) -> np.ndarray:
  """Returns the seed of all that a client draws in a round, its noise for one.

  Keyed hashing (BLAKE2b): from a client's seed neither the run's seed nor the seeds, and so the
  noise, of other clients can be computed, except by guessing the run's seed. Runs whose noise must
  withstand that take a large random seed; deployments take each client's own entropy.

  Args:
    seed: The run's seed, not negative.
    round_num: The round, not negative.
    client_id: The client.

  Returns:
    int64 [2], not negative.
  """
  key = hashlib.sha256(str(seed).encode()).digest()
  digest = hashlib.blake2b(f"{round_num}:{client_id}".encode(), digest_size=16, key=key).digest()
  return np.frombuffer(digest, np.uint64).astype(np.int64) & np.int64(2**63 - 1)
