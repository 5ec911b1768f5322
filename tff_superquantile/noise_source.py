"""Draws the seeds of noise: 128 bits, from a secret key or from the operating system.

An attacker that can try all seeds can subtract the noise. So nothing on a seed's way may be
narrower than 128 bits. TensorFlow offers three traps:
- `stateless_fold_in(seed, index)` with a Python int gives a seed of two int32, one of them the
  index: 2^32 seeds. With an int64 it is 2^64. `tf.random.split` gives two int64.
- All of TensorFlow's own entropy (`NonDeterministicInts`, and every random op without a seed) comes
  from one Mersenne twister for the process, which is seeded with 32 bits of the operating system's.
- Its normal variables end at 5.68 standard deviations, see `gaussian_sum`.

Philox, which expands seeds, is not a cryptographic generator. No attack on it is known that beats
trying keys, but that is not a proof.
"""

import dataclasses
import hashlib
import secrets
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from privacy import checks
from privacy.noise import banded

KEY_BYTES = 16


@dataclasses.dataclass(frozen=True)
class BandedKey:
  """The key of a server's noise that is correlated over rounds, n = C^-1 z.

  It may stand wherever a server's sum takes a `noise_key`; `privacy.noise.banded` has the
  guarantee, for all sums of a process together. Each round is to go on from the state that the one
  before it left: two rounds that go on from one state are not what is accounted for.

  Attributes:
    key: 16 bytes. A process whose noise nobody can repeat would break that rule by a mere retry, so
      there is no None.
    coefficients: c_0 = 1, c_1, ..., those of `banded.optimal` for example.
  """

  key: bytes
  coefficients: tuple[float, ...]

  def __post_init__(self) -> None:
    _check_key(self.key)
    object.__setattr__(self, "coefficients", banded.checked(self.coefficients))


# What the noise of a server's sum follows from; None for fresh entropy.
NoiseKey: TypeAlias = bytes | BandedKey | None


def _check_key(key: bytes) -> None:
  checks.of_type("noise_key", key, bytes, f"{KEY_BYTES} bytes or None")
  if len(key) != KEY_BYTES:
    raise ValueError(f"Found a noise key of {len(key)} bytes; expected {KEY_BYTES}.")


def _as_seed(key: bytes) -> np.ndarray:
  return np.frombuffer(key, np.int64)


def _entropy() -> tf.Tensor:
  """Returns int64 [2], new each time the graph runs; of 32 bits only."""
  # Not tf.random.uniform: a seed set for the graph would give all clients the same noise.
  return tf.raw_ops.NonDeterministicInts(shape=tf.constant([2], tf.int64), dtype=tf.int64)


def fresh_seed() -> tf.Tensor:
  """Returns a seed that nobody can guess, int64 [2], new each time the graph runs.

  128 bits of the operating system's entropy become a part of the graph when it is built, and what
  TensorFlow calls entropy, which differs each time, is added to them: where the graph is no secret,
  as on devices, take a source of the device's own.

  Returns:
    The seed, int64 [2].
  """
  secret = tf.constant(_as_seed(secrets.token_bytes(KEY_BYTES)))
  return tf.bitwise.bitwise_xor(_entropy(), secret)


def split(seed: tf.Tensor, num: int) -> list[tf.Tensor]:
  """Splits a seed into independent ones, functions of it.

  Args:
    seed: int64 [2].
    num: The number of seeds.

  Returns:
    `num` seeds, int64 [2].
  """
  return tf.unstack(tf.random.split(tf.cast(seed, tf.int64), num))


def for_purpose(seed: tf.Tensor, purpose: str) -> tf.Tensor:
  """Returns a seed whose draws are independent of those of `seed` and other purposes.

  Two ops of one seed draw from the same Philox words, whatever their names. TensorFlow makes
  Philox's key of a seed by scrambling all 128 bits, so that another seed has other words.

  Args:
    seed: int64 [2].
    purpose: A name, fixed when the graph is built.

  Returns:
    The seed, int64 [2].
  """
  digest = hashlib.blake2b(purpose.encode(), digest_size=KEY_BYTES).digest()
  return tf.bitwise.bitwise_xor(tf.cast(seed, tf.int64), _as_seed(digest))


class NoiseSource:
  """A server's source of seeds, whose state belongs to the state of a process.

  With a key, the seeds are a function of it: a resumed process goes on as it would have. Without,
  the state is a secret of its own for every process that is built, and every draw takes fresh
  entropy besides, so that no two draws are the same, also of the same state.
  """

  def __init__(self, key: bytes | None, purpose: str):
    """Takes a secret key of 16 bytes, None for the system's entropy, and what the noise is for."""
    if key is not None:
      _check_key(key)
    self._is_repeatable = key is not None
    key = secrets.token_bytes(KEY_BYTES) if key is None else key
    self._first = derive_key(key, purpose)

  def initial_state(self) -> tf.Tensor:
    """Returns the state before the first draw, int64 [2]."""
    return tf.constant(_as_seed(self._first))

  def draw(self, state: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns a seed, int64 [2], and the next state."""
    seed, next_state = split(state, 2)
    if not self._is_repeatable:
      seed = tf.bitwise.bitwise_xor(seed, _entropy())
    return seed, next_state


def derive_key(key: bytes, purpose: str) -> bytes:
  """Derives a key for one purpose that reveals neither the key nor others.

  Args:
    key: The secret, 16 bytes.
    purpose: A name; other names give other keys.

  Returns:
    16 bytes.
  """
  return hashlib.blake2b(purpose.encode(), key=key, digest_size=KEY_BYTES).digest()
