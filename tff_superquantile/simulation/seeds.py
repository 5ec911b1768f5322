"""Derives all randomness of a run from (seed, purpose, round): a resumed run repeats it.

Of a private run, what must stay secret derives in the same way from a key of 16 random bytes in
place of the seed: its cohorts, and all its noise.
"""

from collections.abc import Sequence
import functools
import hashlib
from typing import TypeAlias
import zlib

import numpy as np

_LARGEST = np.int64(2**63 - 1)

# A public number, or a secret key.
Seed: TypeAlias = int | bytes


def generator(seed: Seed, purpose: str, round_num: int = 0) -> np.random.Generator:
  """Returns the random generator of one purpose in one round; different purposes are independent.

  Args:
    seed: A run's, not negative, or its key, 16 bytes.
    purpose: A name, such as "cohort".
    round_num: The round, from 0.

  Returns:
    A new generator, in the same state for the same arguments.
  """
  if isinstance(seed, bytes):
    digest = hashlib.blake2b(f"{purpose}:{round_num}".encode(), digest_size=16, key=seed).digest()
    return np.random.default_rng(int.from_bytes(digest, "big"))
  return np.random.default_rng([seed, zlib.crc32(purpose.encode()), round_num])


@functools.lru_cache(maxsize=16, typed=True)
def _key_of(seed: int) -> bytes:
  return hashlib.sha256(str(seed).encode()).digest()


def client_seeds(seed: Seed, round_num: int, client_ids: Sequence[str]) -> np.ndarray:
  """Returns the seeds of all that clients draw in a round, their noise for one.

  Keyed hashing (BLAKE2b): from a client's seed neither the run's seed or key nor the seeds, and so
  the noise, of other clients can be computed, except by guessing the run's seed. Private runs have
  a key instead, which cannot be guessed and gives all 128 bits; deployments take each client's own
  entropy.

  Args:
    seed: The run's seed, not negative, or its key, 16 bytes.
    round_num: The round, from 0.
    client_ids: The ids of the clients, [n].

  Returns:
    int64 [n, 2]; of a seed that is no key the numbers are not negative.
  """
  key = seed if isinstance(seed, bytes) else _key_of(seed)
  digests = [
    hashlib.blake2b(f"{round_num}:{client_id}".encode(), digest_size=16, key=key).digest()
    for client_id in client_ids
  ]
  numbers = np.frombuffer(b"".join(digests), np.int64).reshape(-1, 2)
  return numbers.copy() if isinstance(seed, bytes) else numbers & _LARGEST


def client_seed(seed: Seed, round_num: int, client_id: str) -> np.ndarray:
  """Returns the seed of one client, as `client_seeds` does.

  Args:
    seed: The run's seed, not negative, or its key, 16 bytes.
    round_num: The round, from 0.
    client_id: The client's id.

  Returns:
    int64 [2].
  """
  result: np.ndarray = client_seeds(seed, round_num, [client_id])[0]
  return result
