"""Generates tweets with the shapes of Sent140: users, words and word vectors, all invented."""

from collections.abc import Iterator
import dataclasses
import logging

import numpy as np

_LOG = logging.getLogger("tff_superquantile.tasks")

VERSION = "v1"  # A change of the drawing changes this too.
NUM_USERS = 400

_SEED = 140
_SMALLEST, _LARGEST = 50, 150  # Tweets of a user.
_NUM_TOPICS = 8
_WORDS_PER_KIND = 40  # Words of each topic that are positive, negative, and neither.
_NEUTRAL, _POSITIVE, _NEGATIVE = 0, 1, 2
_TURNED_AROUND = np.array([_NEUTRAL, _NEGATIVE, _POSITIVE])
_MEAN_WORDS = 13
_NEGATED_FRACTION = 0.2  # A fraction of the tweets that have a polar word.
_SCALE = 0.6  # Standard deviation of a coordinate of GloVe's vectors.


@dataclasses.dataclass(frozen=True)
class _Vocabulary:
  """The vectors of the words, float32 [topics, kinds, words, d], and that of "not", float32 [d]."""

  words: np.ndarray
  negation: np.ndarray


def _draw_vocabulary(rng: np.random.Generator, dimension: int) -> _Vocabulary:
  """Draws words around their topics; the polar ones are apart along two directions."""

  def draw(*shape: int) -> np.ndarray:
    return _SCALE * rng.standard_normal((*shape, dimension))

  common = draw()  # GloVe's frequent words have much in common.
  topics = draw(_NUM_TOPICS)
  polarity = 0.9 * draw() + 0.6 * draw(_NUM_TOPICS)
  words = common + topics[:, np.newaxis, np.newaxis] + draw(_NUM_TOPICS, 3, _WORDS_PER_KIND)
  words[:, _POSITIVE] += polarity[:, np.newaxis]
  words[:, _NEGATIVE] -= polarity[:, np.newaxis]
  return _Vocabulary(words.astype(np.float32), (common + 2.0 * draw()).astype(np.float32))


def _write_tweet(
  rng: np.random.Generator,
  vocabulary: _Vocabulary,
  topics: np.ndarray,
  is_positive: bool,
  plainness: float,
  sincerity: float,
) -> np.ndarray:
  """Writes one tweet, float32 [words, d], about topics of these probabilities."""
  num_words = 2 + rng.poisson(_MEAN_WORDS - 2)
  topic = rng.choice(len(topics), p=topics)
  says_positive = is_positive == (rng.random() < sincerity)
  is_polar = rng.random(num_words) < plainness
  kinds = np.where(is_polar, _POSITIVE if says_positive else _NEGATIVE, _NEUTRAL)
  which = rng.integers(0, _WORDS_PER_KIND, num_words)
  if not (is_polar.any() and rng.random() < _NEGATED_FRACTION):
    return vocabulary.words[topic, kinds, which]
  first = int(np.argmax(is_polar))
  kinds[first:] = _TURNED_AROUND[kinds[first:]]
  return np.insert(vocabulary.words[topic, kinds, which], first, vocabulary.negation, axis=0)


def make_users(dimension: int) -> Iterator[tuple[str, list[np.ndarray], np.ndarray]]:
  """Yields users, always the same, as (user, n tweets float32 [words, d], y int32 [n])."""
  _LOG.info("Making %d users of invented tweets, once.", NUM_USERS)
  vocabulary = _draw_vocabulary(np.random.default_rng(_SEED), dimension)
  for i in range(NUM_USERS):
    rng = np.random.default_rng([_SEED, i])
    count = int(_SMALLEST + (_LARGEST - _SMALLEST) * rng.beta(1.0, 3.0))
    topics = rng.dirichlet(np.full(_NUM_TOPICS, 0.4))
    y = (rng.random(count) < rng.beta(3.0, 3.0)).astype(np.int32)
    plainness = rng.uniform(0.1, 0.3)
    sincerity = 1.0 - 0.65 * rng.beta(1.2, 5.0)
    tweets = [
      _write_tweet(rng, vocabulary, topics, bool(label), plainness, sincerity) for label in y
    ]
    yield f"standin_{i:04d}", tweets, y
