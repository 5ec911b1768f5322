"""Opens Sent140, or generated tweets in its place, as client files that are written once."""

from collections.abc import Iterable, Iterator
import logging
import os

import numpy as np

from tasks import own_flags
from tasks import task
from tasks import user_files
from tasks.sent140 import features
from tasks.sent140 import glove
from tasks.sent140 import readers
from tasks.sent140 import standin
from tff_superquantile.simulation import client_files

_LOG = logging.getLogger("tff_superquantile.tasks")

_CACHE_VERSION = 1  # A change of the conversion changes this too.


def _convert(
  users: Iterable[tuple[str, list[str], np.ndarray]], glove_path: str, represent: features.Represent
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
  """Yields (user, x float32 [n, ...], y int32 [n]) of users as (user, n texts, y)."""
  vocabulary: dict[str, int] = {}
  numbered = []
  for user, texts, y in users:
    tweets = [
      np.array(
        [vocabulary.setdefault(word, len(vocabulary)) for word in features.split_words(text)],
        np.int64,
      )
      for text in texts
    ]
    numbered.append((user, tweets, y))
  vectors, known = glove.read_vectors(glove_path, vocabulary)
  num_words = sum(len(words) for _, tweets, _ in numbered for words in tweets)
  num_known = sum(int(known[words].sum()) for _, tweets, _ in numbered for words in tweets)
  _LOG.info(
    "%.1f %% of %d words have no word vector, and are zeros.",
    100.0 * (1.0 - num_known / max(1, num_words)),
    num_words,
  )
  for user, tweets, y in numbered:
    yield user, np.stack([represent(vectors[words]) for words in tweets]), y


def open_clients(
  request: task.Request, represent: features.Represent
) -> list[client_files.ClientFiles]:
  """Opens Sent140's users, after converting the user's files on first use: [train, test] or [all].

  The converted files take 0.3 GB of the request's `cache_dir` for the RNN, 15 MB for the linear
  model.
  """
  request = readers.DATA_SET.complete(request)
  readers.DATA_SET.find(request.data_dir)  # Its error comes first.
  own = request.flags_of(own_flags.WordFlags)
  glove_path = glove.find_file(own.glove, own.data_dir, request.cache_dir)
  least = request.min_examples_per_client

  def open_files(name: str, paths: list[str]) -> client_files.ClientFiles:
    """Opens the users with enough tweets; a change of a file or a fact makes another cache."""
    is_leaf = paths[0].endswith(".json")
    users = (
      readers.iterate_leaf(paths, least) if is_leaf else readers.iterate_table(paths[0], least)
    )
    facts = [_CACHE_VERSION, least, represent.__name__, features.MAX_WORDS]
    fingerprint = user_files.fingerprint(facts, [*paths, glove_path])
    return client_files.open_or_write_client_files(
      os.path.join(request.cache_dir, f"sent140_{name}_{fingerprint}"),
      lambda: _convert(users, glove_path, represent),
      count_dropped=lambda: users.num_dropped,
    )

  return readers.DATA_SET.open(request.data_dir, open_files)


def open_standin(
  request: task.Request, represent: features.Represent
) -> list[client_files.ClientFiles]:
  """Opens generated tweets, always of the same 400 users; see `standin`."""

  def make_users() -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    for user, vectors_of_tweets, y in standin.make_users(features.DIMENSION):
      yield user, np.stack([represent(vectors) for vectors in vectors_of_tweets]), y

  name = f"sent140_standin_{standin.VERSION}_{represent.__name__}"
  return [
    client_files.open_or_write_client_files(os.path.join(request.cache_dir, name), make_users)
  ]
