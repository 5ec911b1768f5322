"""The Shakespeare task: the next character of a play; a client is a speaking role.

The data set is that of LEAF (Caldas et al. 2018), which TensorFlow Federated has, too. An example
is 80 characters of what a role says and the character that follows, so a client's error is the
fraction of wrong next characters. The network is LEAF's, an embedding of 8 and two layers of LSTM,
but of 64 units and not of LEAF's 256, whose matrices take sixteen times the operations. With 64, a
round of 10 roles of TFF's files, 460 examples each on average, took 68 s on two cores that were
shared with other work.
"""

from collections.abc import Iterator
import os
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tasks import models
from tasks import own_flags
from tasks import preprocessing
from tasks import task
from tasks import user_files
from tasks.shakespeare import characters
from tasks.shakespeare import readers
from tasks.shakespeare import standin
from tff_superquantile.simulation import client_files

_CACHE_VERSION = 1  # A change of the conversion changes this too.
_EMBEDDING_SIZE = 8
_HIDDEN_SIZE = 64
_X_SPEC = tf.TensorSpec([None, characters.SEQUENCE_LENGTH], tf.float32)


def _open_clients(request: task.Request) -> list[client_files.ClientFiles]:
  """Opens Shakespeare's roles, converting the user's files on first use: [train, test] or [all]."""

  def open_files(name: str, paths: list[str]) -> client_files.ClientFiles:
    """Opens the roles that have a sequence; a change of a source file makes another cache."""
    is_hdf5, num_dropped = not paths[0].endswith(".json"), 0
    paths = readers.hdf5_paths(*paths) if is_hdf5 else paths

    def with_sequences() -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
      nonlocal num_dropped
      for role, x, y in readers.iterate_hdf5(paths) if is_hdf5 else readers.iterate_leaf(paths):
        if len(y):
          yield role, x, y
        else:
          num_dropped += 1

    facts = [_CACHE_VERSION, characters.SEQUENCE_LENGTH, characters.STRIDE]
    fingerprint = user_files.fingerprint(facts, paths)
    return client_files.open_or_write_client_files(
      os.path.join(request.cache_dir, f"shakespeare_{name}_{fingerprint}"),
      with_sequences,
      count_dropped=lambda: num_dropped,
    )

  return readers.DATA_SET.open(readers.DATA_SET.complete(request).data_dir, open_files)


def _build_model(seed: int) -> tff.learning.models.FunctionalModel:
  return models.build_character_lstm(
    seed,
    (_X_SPEC, tf.TensorSpec([None], tf.int32)),
    num_characters=len(characters.NAMES),
    embedding_size=_EMBEDDING_SIZE,
    hidden_size=_HIDDEN_SIZE,
  )


def _build_preprocessing(request: task.Request) -> preprocessing.Preprocessing:
  del request  # The characters of all sources are the same.
  number_of = tf.keras.layers.StringLookup(
    vocabulary=list(characters.LETTERS), num_oov_indices=1, oov_token=characters.NAMES[0]
  )

  def apply(texts: Any) -> Any:
    return tf.cast(number_of(texts), tf.float32)

  return preprocessing.Preprocessing(
    tf.TensorSpec(_X_SPEC.shape, tf.string, "characters"),
    f"the last {characters.SEQUENCE_LENGTH} characters of a text, a string each, without ends of"
    ' lines and repeated spaces, with "" before the first one of a shorter text',
    apply,
    _X_SPEC,
    (number_of,),
  )


TASKS = (
  task.Task(
    name="shakespeare",
    build_model=_build_model,
    open_clients=_open_clients,
    open_standin=standin.open_clients,
    data_set=readers.DATA_SET,
    flags=own_flags.FileFlags,
    min_examples=readers.DATA_SET.min_examples,
    labels=characters.NAMES,
    preprocessing=_build_preprocessing,
    defaults=dict(
      num_rounds=200,
      clients_per_round=10,  # LEAF's.
      client_learning_rate=0.8,  # LEAF's, for batches of 10.
      batch_size=10,
      rounds_per_evaluation=20,
      max_loss=5.0,  # Above log 81 = 4.4, the loss of a guess.
    ),
  ),
)
