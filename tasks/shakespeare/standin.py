"""Generates plays with the shapes of Shakespeare's: roles and what they say, all invented."""

from collections.abc import Iterator
import logging
import os

import numpy as np

from tasks import task
from tasks.shakespeare import characters
from tff_superquantile.simulation import client_files

_LOG = logging.getLogger("tff_superquantile.tasks")

_VERSION = "v1"  # A change of the drawing changes this too.
NUM_ROLES = 200

_SEED = 1623
_SHORTEST, _LONGEST = 400, 4000  # Characters that a role says.
_NUM_WORDS = 200
_CONSONANTS, _VOWELS = "bcdfghlmnrst", "aeiou"
_END_OF_SENTENCE = 0.15  # Probability that a word is the last of its sentence.


def _make_words(rng: np.random.Generator) -> list[str]:
  """Makes words of one to three syllables."""

  def syllable() -> str:
    return str(rng.choice(list(_CONSONANTS)) + rng.choice(list(_VOWELS)))

  return ["".join(syllable() for _ in range(rng.integers(1, 4))) for _ in range(_NUM_WORDS)]


def _say(rng: np.random.Generator, words: list[str], favourites: np.ndarray, length: int) -> str:
  """Returns sentences of at least so many characters, with words by their probabilities."""
  speech, size, begins = [], 0, True
  while size < length:
    word = words[rng.choice(len(words), p=favourites)]
    word = word.capitalize() if begins else word
    begins = rng.random() < _END_OF_SENTENCE
    speech.append(word + "." if begins else word)
    size += len(speech[-1]) + 1
  return " ".join(speech)


def make_roles() -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
  """Yields roles, always the same, as (role, x uint8 [n, 80], y int32 [n]), n about 32 to 400."""
  _LOG.info("Making %d roles of invented plays, once.", NUM_ROLES)
  words = _make_words(np.random.default_rng(_SEED))
  common = 1.0 / np.arange(1, _NUM_WORDS + 1)  # Zipf's law.
  for i in range(NUM_ROLES):
    rng = np.random.default_rng([_SEED, i])
    length = int(_SHORTEST + (_LONGEST - _SHORTEST) * rng.beta(0.6, 3.0))
    favourites = rng.dirichlet(40.0 * common / common.sum())
    others = rng.permutation(list(_CONSONANTS))
    turned = rng.random(len(_CONSONANTS)) < rng.beta(0.5, 2.0)
    dialect = {ord(c): str(other) for c, other, t in zip(_CONSONANTS, others, turned) if t}
    speech = _say(rng, words, favourites, length).translate(dialect)
    yield f"standin_{i:04d}", *characters.cut(speech)


def open_clients(request: task.Request) -> list[client_files.ClientFiles]:
  """Opens the roles, 2 MB of client files that are written once."""
  directory = os.path.join(request.cache_dir, f"shakespeare_standin_{_VERSION}")
  return [client_files.open_or_write_client_files(directory, make_roles)]
