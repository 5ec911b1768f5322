"""Builds the preprocessing of tweets within a graph: from words to what the models take.

A graph cannot resolve HTML entities, and its lower case is not Python's, so an exported model takes
words, as `features.split_words` makes them. It knows every word of the file of word vectors, and
not only those of the data, which would tell what the training clients write.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from tasks import own_flags
from tasks import preprocessing
from tasks import task
from tasks.sent140 import features
from tasks.sent140 import glove

_DESCRIPTION = (
  'the words of each tweet, re.findall(r"[\\w\']+|[.,!?;]", html.unescape(text).lower()) in'
  ' Python, with "" after the last word of a shorter tweet'
)
_VECTORS = "the vectors of a tweet's words as the model takes them (generated tweets have no words)"
_UNKNOWN = " "  # No word of the file's.


def build_preprocessing(
  request: task.Request, represent: features.Represent
) -> preprocessing.Preprocessing:
  """Builds the way from words to vectors, with the table of all words of the run's file."""
  is_mean = represent is features.represent_mean
  steps = [] if is_mean else [features.MAX_WORDS]
  if request.is_standin:
    spec = tf.TensorSpec([None, *steps, features.DIMENSION], tf.float32, "vectors")
    return preprocessing.Preprocessing(spec, _VECTORS, tf.identity, spec)
  own = request.flags_of(own_flags.WordFlags)
  path = glove.find_file(own.glove, own.data_dir, request.cache_dir)
  vocabulary = glove.read_words(path)
  vectors, _ = glove.read_vectors(path, vocabulary)
  dimension = vectors.shape[1]
  number_of = tf.keras.layers.StringLookup(
    vocabulary=list(vocabulary), mask_token="", oov_token=_UNKNOWN
  )
  # Number 0 is no word, and 1 a word without a vector: both have zeros.
  table = np.concatenate([np.zeros([2, dimension], np.float32), vectors])
  vector_of = tf.keras.layers.Embedding(*table.shape, weights=[table], trainable=False)

  def mean(words: Any) -> Any:
    is_word = tf.cast(tf.not_equal(words, ""), tf.float32)
    num_words = tf.reduce_sum(is_word, axis=1, keepdims=True)
    return tf.reduce_sum(vector_of(number_of(words)), axis=1) / tf.maximum(num_words, 1.0)

  def sequence(words: Any) -> Any:
    padded = tf.pad(number_of(words), [[0, 0], [0, features.MAX_WORDS]])
    # The graph does not see how many are left.
    return tf.reshape(vector_of(padded[:, : features.MAX_WORDS]), [-1, *steps, dimension])

  return preprocessing.Preprocessing(
    tf.TensorSpec([None, None], tf.string, "words"),
    _DESCRIPTION,
    mean if is_mean else sequence,
    tf.TensorSpec([None, *steps, dimension], tf.float32),
    (number_of, vector_of),
  )
