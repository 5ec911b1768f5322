"""Turns a tweet into words, and its words' vectors into what the models take."""

from collections.abc import Callable
import html
import re

import numpy as np

DIMENSION = 50  # The paper's: of its word vectors, and the hidden size of its LSTM.
MAX_WORDS = 20  # That the RNN takes of a tweet.
# Turns the vectors of a tweet's words, [words, d], into the model's input.
Represent = Callable[[np.ndarray], np.ndarray]
_WORDS = re.compile(r"[\w']+|[.,!?;]")


def split_words(text: str) -> list[str]:
  """Returns the words and punctuation marks of a tweet, in lower case."""
  return _WORDS.findall(html.unescape(text).lower())


def represent_mean(vectors: np.ndarray) -> np.ndarray:
  """Returns the mean of a tweet's words, [words, d], as float32 [d]; zero if there are none."""
  return vectors.sum(axis=0) / np.float32(max(1, len(vectors)))


def represent_sequence(vectors: np.ndarray) -> np.ndarray:
  """Returns the first of a tweet's words, [words, d], then zeros, as float32 [20, d]."""
  result = np.zeros((MAX_WORDS, vectors.shape[1]), np.float32)
  result[: len(vectors)] = vectors[:MAX_WORDS]
  return result
