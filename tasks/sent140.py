r"""The paper's Sent140 tasks: whether a tweet is positive or negative; a client is a Twitter user.

Section "Datasets and Tasks" of the paper's appendix: users with fewer than 50 tweets are dropped,
and one half of the others, the same in all runs, is there to train on. A word is its 50-dimensional
GloVe vector. The linear model takes the mean of the tweet's words, the RNN its first 20 words,
followed by zeros if there are fewer.

Words are those of LEAF and of the authors' code, `[\w']+|[.,!?;]`, which makes words of the parts
of @mentions and URLs. A word without a vector is a vector of zeros, in the mean, too, as in the
authors' code, and so is a tweet without words. Two things differ from that code: HTML entities are
resolved (it takes "&amp;" for the words "amp" and ";"), and words are in lower case, as those of
GloVe 6B are (it finds no vector for "Good").
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
import dataclasses
import functools
import html
import os
import re
from typing import Any

from absl import logging
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tasks import glove as glove_lib
from tasks import models
from tasks import sent140_files
from tasks import sent140_standin
from tasks import task
from tasks import user_files
from tff_superquantile.simulation import client_files

_CACHE_VERSION = 1  # Of what conversion does: whoever changes that changes this too.
_MAX_WORDS = 20
_DIMENSION = 50  # The paper's: of its word vectors, and the hidden size of its LSTM.
# Of the CSV's users into training and test users; "this split was held fixed for all experiments".
_SPLIT_SEED = 140
_WORDS = re.compile(r"[\w']+|[.,!?;]")

_LABEL_SPEC = tf.TensorSpec([None], tf.int32)
_LINEAR_SPEC = (tf.TensorSpec([None, _DIMENSION], tf.float32), _LABEL_SPEC)
_LSTM_SPEC = (tf.TensorSpec([None, _MAX_WORDS, _DIMENSION], tf.float32), _LABEL_SPEC)

_InputSpec = tuple[tf.TensorSpec, tf.TensorSpec]
_Represent = Callable[[np.ndarray], np.ndarray]


def split_words(text: str) -> list[str]:
  """The words and punctuation marks of a tweet, in lower case."""
  return _WORDS.findall(html.unescape(text).lower())


def represent_mean(vectors: np.ndarray) -> np.ndarray:
  """A tweet for the linear model.

  Args:
    vectors: float32 [words, d], the tweet's words.

  Returns:
    float32 [d], their mean; zero if there are none.
  """
  return vectors.sum(axis=0) / np.float32(max(1, len(vectors)))


def represent_sequence(vectors: np.ndarray) -> np.ndarray:
  """A tweet for the RNN.

  Args:
    vectors: float32 [words, d], the tweet's words.

  Returns:
    float32 [20, d], the first words, then zeros.
  """
  result = np.zeros((_MAX_WORDS, vectors.shape[1]), np.float32)
  result[: len(vectors)] = vectors[:_MAX_WORDS]
  return result


def _convert(
  users: Iterable[tuple[str, list[str], np.ndarray]], glove_path: str, represent: _Represent
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
  """Yields users with their tweets as arrays.

  Args:
    users: (user, texts, y int32 [n]) of each user.
    glove_path: The file of word vectors; read when all words are known, for them alone.
    represent: One of `represent_mean` and `represent_sequence`.

  Yields:
    (user, x float32 [n, ...], y int32 [n]).
  """
  vocabulary: dict[str, int] = {}
  numbered = []
  for user, texts, y in users:
    tweets = [
      np.array([vocabulary.setdefault(w, len(vocabulary)) for w in split_words(text)], np.int64)
      for text in texts
    ]
    numbered.append((user, tweets, y))
  vectors, known = glove_lib.read_vectors(glove_path, vocabulary)
  num_words = sum(len(words) for _, tweets, _ in numbered for words in tweets)
  num_known = sum(int(known[words].sum()) for _, tweets, _ in numbered for words in tweets)
  logging.info(
    "%.1f %% of %d words have no word vector, and are zeros.",
    100.0 * (1.0 - num_known / max(1, num_words)),
    num_words,
  )
  for user, tweets, y in numbered:
    yield user, np.stack([represent(vectors[words]) for words in tweets]), y


def _open_or_convert(
  cache_dir: str,
  name: str,
  paths: list[str],
  iterate: Callable[[], Iterable],
  *,
  glove_path: str,
  min_examples: int,
  represent: _Represent,
) -> client_files.ClientFiles:
  """The client files of some source files, converted on first use.

  Args:
    cache_dir: Where the client files are kept.
    name: Tells caches of one source apart.
    paths: The source files; a change of any of them makes another cache.
    iterate: Returns the users of these files.
    glove_path: The file of word vectors; so does a change of it.
    min_examples: Tweets that a user has at least; so does another number.
    represent: What becomes of a tweet; so does another function.

  Returns:
    The files of all users with enough tweets.
  """
  facts = [_CACHE_VERSION, min_examples, represent.__name__, _MAX_WORDS]
  fingerprint = user_files.fingerprint(facts, [*paths, glove_path])
  return client_files.open_or_write_client_files(
    os.path.join(cache_dir, f"sent140_{name}_{fingerprint}"),
    lambda: _convert(iterate(), glove_path, represent),
  )


def _open_pools(
  data_dir: str, cache_dir: str, glove: str, min_examples: int, represent: _Represent
) -> list[client_files.ClientFiles]:
  """Finds and opens the data: [train, test] users of LEAF, or [all] of Stanford's CSV."""
  if not data_dir:
    raise ValueError(
      "Sent140 has to be named with --data_dir; make LEAF's with its data/sent140"
      f" {sent140_files.LEAF.command} or unpack {sent140_files.CSV_NAME} of"
      f" {sent140_files.CSV_SOURCE}, and get word vectors, {glove_lib.FILE_NAME} of"
      f" {glove_lib.SOURCE}, too (generated data to try things out: --data=standin)."
    )
  source = user_files.find_source(data_dir, [sent140_files.CSV_NAME], sent140_files.LEAF)
  open_or_convert = functools.partial(
    _open_or_convert,
    cache_dir,
    glove_path=glove_lib.find_file(glove, data_dir),
    min_examples=min_examples,
    represent=represent,
  )
  if isinstance(source, str):
    iterate = functools.partial(sent140_files.iterate_csv, source, min_examples)
    return [open_or_convert("all", [source], iterate)]
  files = {
    split: open_or_convert(
      split, paths, functools.partial(sent140_files.iterate_leaf, paths, min_examples)
    )
    for split, paths in source.items()
  }
  user_files.check_split_by_user(files, source, sent140_files.LEAF)
  return [files["train"], files["test"]]


def _choose(
  pools: list[client_files.ClientFiles], source: str, seed: int, **choice: Any
) -> Mapping[str, client_files.ClientFiles]:
  """The splits of a seed, from [train, test] pools or from one pool that is cut in half.

  Args:
    pools: The users.
    source: Where they come from, for the error.
    seed: Of which users are taken from a half, if not all are; of the halves it is not.
    **choice: Further arguments of `task.choose_clients`.

  Returns:
    "train", "test" and, if one is asked for, "validation".
  """
  if len(pools) == 1:
    users = task.shuffled_clients(np.random.default_rng(_SPLIT_SEED), pools[0])
    if len(users) < 2:
      raise ValueError(
        f"{source} has a single user with enough tweets; expected one to train on and one to test"
        " on: lower --min_examples_per_client, or get more of Sent140."
      )
    half = len(users) // 2  # The paper's 438 and 439 of 877.
    pools = [pools[0].subset(users[:half]), pools[0].subset(users[half:])]
  rng = np.random.default_rng(seed)
  ids = [task.shuffled_clients(rng, pool) for pool in pools]
  return task.choose_clients(pools, ids, own_number=max(map(len, ids)), **choice)


def _load_clients(
  *,
  represent: _Represent,
  data_dir: str,
  cache_dir: str,
  seed: int,
  num_train_clients: int,
  num_test_clients: int,
  validation_fraction: float,
  glove: str = "",
  min_examples_per_client: int = 0,
) -> Mapping[str, client_files.ClientFiles]:
  """Loads the users, converting the user's files on first use.

  LEAF's files hold training and test users apart; those of the CSV are cut in half, always in the
  same way. The seed chooses among a half's users if not all are taken, and those held out.

  Args:
    represent: What the model takes for a tweet.
    data_dir: Directory with LEAF's train/*.json and test/*.json or with Stanford's CSV, or the CSV
      itself.
    cache_dir: Where the converted files are kept; 0.3 GB for the RNN, 15 MB for the linear model.
    seed: Of the choice of users; not negative.
    num_train_clients: 0 for all.
    num_test_clients: 0 for all.
    validation_fraction: Fraction of the training users to hold out.
    glove: GloVe's text file, of any dimension; "" for glove.6B.50d.txt beside the data.
    min_examples_per_client: Users with fewer tweets are dropped; 0 for 50.

  Returns:
    "train", "test" and, if the fraction is above zero, "validation".

  Raises:
    ValueError: If an argument is out of range, or the data is missing or not what it should be.
  """
  choice: dict[str, Any] = dict(
    num_train_clients=num_train_clients,
    num_test_clients=num_test_clients,
    validation_fraction=validation_fraction,
  )
  task.check_arguments(seed=seed, min_examples_per_client=min_examples_per_client, **choice)
  min_examples = min_examples_per_client or sent140_files.LEAF.min_examples
  remark = f", without users of fewer than {min_examples} tweets (--min_examples_per_client)"
  pools = [
    dataclasses.replace(pool, remark=remark)
    for pool in _open_pools(data_dir, cache_dir, glove, min_examples, represent)
  ]
  return _choose(pools, data_dir, seed, **choice)


def _load_standin(
  *,
  represent: _Represent,
  cache_dir: str,
  seed: int,
  num_train_clients: int,
  num_test_clients: int,
  validation_fraction: float,
) -> Mapping[str, client_files.ClientFiles]:
  """Loads generated tweets in place of Sent140; makes them if `cache_dir` doesn't hold them yet.

  Not Sent140, and no figure measured on them is one of Sent140: see `sent140_standin`. The users
  and their halves are always the same, as with the real data.

  Args:
    represent: What the model takes for a tweet.
    cache_dir: Where they are kept; 115 MB for the RNN, 7 MB for the linear model.
    seed: Of the choice of users; not negative.
    num_train_clients: At most 200; 0 for all.
    num_test_clients: At most 200; 0 for all.
    validation_fraction: Fraction of the training users to hold out.

  Returns:
    "train", "test" and, if the fraction is above zero, "validation".

  Raises:
    ValueError: If an argument is out of range or the cache is damaged.
  """
  choice: dict[str, Any] = dict(
    num_train_clients=num_train_clients,
    num_test_clients=num_test_clients,
    validation_fraction=validation_fraction,
  )
  task.check_arguments(seed=seed, **choice)
  name = f"sent140_standin_{sent140_standin.VERSION}_{represent.__name__}"

  def make_users() -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    for user, tweets, y in sent140_standin.make_users(_DIMENSION):
      yield user, np.stack([represent(vectors) for vectors in tweets]), y

  pool = client_files.open_or_write_client_files(os.path.join(cache_dir, name), make_users)
  return _choose([pool], cache_dir, seed, **choice)


def _build_linear_model(
  seed: int, input_spec: _InputSpec = _LINEAR_SPEC
) -> tff.learning.models.FunctionalModel:
  del seed  # The objective is convex: it starts from zero.
  return models.build_logistic_regression(input_spec, intercept=False)


def _build_lstm(
  seed: int, input_spec: _InputSpec = _LSTM_SPEC
) -> tff.learning.models.FunctionalModel:
  # "The hidden dimension of the LSTM is the same as the embedding dimension".
  return models.build_lstm(seed, input_spec, hidden_size=input_spec[0].shape[2])


TASKS = (
  task.Task(
    name="sent140_linear",
    build_model=_build_linear_model,
    model_takes_input_spec=True,
    load_clients=functools.partial(_load_clients, represent=represent_mean),
    load_standin=functools.partial(_load_standin, represent=represent_mean),
    defaults=dict(
      num_rounds=1000,
      clients_per_round=100,
      # Of 0.01 (the authors' scripts'), 0.03, 0.1, 0.3 and 1, this and 0.1 leave FedAvg the least
      # training loss (the paper's criterion), on the stand-in.
      client_learning_rate=0.03,
      batch_size=10,
      local_epochs=1,
      l2=1e-6,  # As in the authors' scripts.
      client_weighting="num_examples",
      learning_rate_decay=1.0,
      rounds_per_decay=1,
      rounds_per_evaluation=20,
      max_loss=1.5,
    ),
  ),
  task.Task(
    name="sent140_lstm",
    build_model=_build_lstm,
    model_takes_input_spec=True,
    load_clients=functools.partial(_load_clients, represent=represent_sequence),
    load_standin=functools.partial(_load_standin, represent=represent_sequence),
    defaults=dict(
      num_rounds=600,
      clients_per_round=50,
      # As in the authors' scripts. Of 0.1, 0.3, 1, 2 and 4 it leaves FedAvg the least training loss
      # on the stand-in, too.
      client_learning_rate=2.0,
      batch_size=10,
      local_epochs=1,
      l2=0.0,
      client_weighting="num_examples",
      learning_rate_decay=0.5,
      rounds_per_decay=200,
      rounds_per_evaluation=25,
      max_loss=1.5,
    ),
  ),
)
