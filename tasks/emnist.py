"""The paper's EMNIST tasks: 62 classes of handwriting, a client is a writer.

Section "Datasets and Tasks" of the paper's appendix: writers with fewer than 100 images are
dropped, and each seed takes 865 writers to train on and 865 others to test on. Images keep the
convention of both LEAF and TensorFlow Federated: paper is 1.0, ink is 0.0, nothing is normalised
(the authors' code takes (x - mean) / mean of each pixel instead).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
import contextlib
import functools
import os
from typing import Any

from absl import logging
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tasks import emnist_files
from tasks import emnist_standin
from tasks import models
from tasks import task
from tasks import user_files
from tff_superquantile.simulation import client_files

_CACHE_VERSION = 1  # Of what conversion does: whoever changes that changes this too.
_CLIENTS_PER_SPLIT = 865
_LEVELS = 255
# LEAF's and TFF's pixels are k / 255; a copy rounded to four decimals is still within this.
_QUANTIZATION_TOLERANCE = 1e-3
_INPUT_SPEC = (
  tf.TensorSpec([None, emnist_files.SIDE, emnist_files.SIDE], tf.float32),
  tf.TensorSpec([None], tf.int32),
)


class _NotEightBitError(Exception):
  """Pixels that aren't multiples of 1 / 255; conversion goes on in float32."""


def _quantize(writers: Iterable) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
  """Yields writers with their pixels as uint8, a quarter of the bytes to read in every round."""
  for writer, x, y in writers:
    levels = np.rint(x * _LEVELS)
    if np.max(np.abs(levels / _LEVELS - x)) > _QUANTIZATION_TOLERANCE:
      raise _NotEightBitError()
    yield writer, levels.astype(np.uint8), y


def _open_or_convert(
  cache_dir: str, name: str, paths: list[str], iterate: Callable[[], Iterable]
) -> client_files.ClientFiles:
  """The client files of some source files, converted on first use.

  Args:
    cache_dir: Where the client files are kept.
    name: Tells caches of one source apart.
    paths: The source files; a change of any of them makes another cache.
    iterate: Returns the writers of these files.

  Returns:
    The files of all writers.
  """
  fingerprint = user_files.fingerprint([_CACHE_VERSION], paths)
  directory = os.path.join(cache_dir, f"emnist_{name}_{fingerprint}")
  try:
    return client_files.open_or_write_client_files(
      directory, lambda: _quantize(iterate()), x_scale=1 / _LEVELS
    )
  except _NotEightBitError:
    logging.info("The pixels of %s are not multiples of 1/255: kept as float32.", paths[0])
    return client_files.open_or_write_client_files(directory, iterate)


def _iterate_compressed(path: str, decompressed: str) -> Iterator:
  """Yields the writers of a compressed database, by way of a file that is removed at the end."""
  # There already if an earlier conversion was killed.
  if not os.path.exists(decompressed):
    emnist_files.decompress(path, decompressed)
  try:
    yield from emnist_files.iterate_sqlite(decompressed)
  finally:
    with contextlib.suppress(FileNotFoundError):  # Another conversion was faster.
      os.remove(decompressed)


def _open_database(cache_dir: str, path: str) -> client_files.ClientFiles:
  """The writers of TFF's database, compressed or not."""
  if not path.endswith((".lzma", ".xz")):
    return _open_or_convert(cache_dir, "all", [path], lambda: emnist_files.iterate_sqlite(path))
  fingerprint = user_files.fingerprint([_CACHE_VERSION], [path])
  decompressed = os.path.join(cache_dir, f"emnist_{fingerprint}.sqlite")
  return _open_or_convert(cache_dir, "all", [path], lambda: _iterate_compressed(path, decompressed))


def _open_leaf(cache_dir: str, paths: Mapping[str, list[str]]) -> list[client_files.ClientFiles]:
  """The writers of LEAF's training and test files, [train, test]."""
  files = {
    split: _open_or_convert(
      cache_dir, split, paths[split], functools.partial(emnist_files.iterate_leaf, paths[split])
    )
    for split in ("train", "test")
  }
  user_files.check_split_by_user(files, paths, emnist_files.LEAF)
  return [files["train"], files["test"]]


def _open_pools(data_dir: str, cache_dir: str) -> list[client_files.ClientFiles]:
  """Finds and opens the data: [train, test] writers of LEAF, or the [all] of a TFF database."""
  if not data_dir:
    return [_open_database(cache_dir, emnist_files.download(cache_dir))]
  names = (emnist_files.DATABASE_NAME, emnist_files.COMPRESSED_NAME)
  source = user_files.find_source(data_dir, names, emnist_files.LEAF)
  if isinstance(source, str):
    return [_open_database(cache_dir, source)]
  return _open_leaf(cache_dir, source)


def _choose(
  pools: list[client_files.ClientFiles], source: str, seed: int, min_examples: int, **choice: Any
) -> Mapping[str, client_files.ClientFiles]:
  """The splits of a seed, from [train, test] pools or from one pool that is cut in half."""
  rng = np.random.default_rng(seed)
  pools = [task.with_enough_examples(pool, min_examples) for pool in pools]
  ids = [task.shuffled_clients(rng, pool) for pool in pools]
  if len(pools) == 1:
    half = (len(ids[0]) + 1) // 2
    pools, ids = pools * 2, [ids[0][:half], ids[0][half:]]
  if not all(ids):
    raise ValueError(
      f"{source} has {len(ids[0])} writers to train on and {len(ids[1])} to test on with at least"
      f" {min_examples} images each; expected at least one of either: lower"
      " --min_examples_per_client, or get more of EMNIST."
    )
  return task.choose_clients(pools, ids, own_number=_CLIENTS_PER_SPLIT, **choice)


def load_clients(
  *,
  data_dir: str,
  cache_dir: str,
  seed: int,
  num_train_clients: int,
  num_test_clients: int,
  validation_fraction: float,
  min_examples_per_client: int = 0,
) -> Mapping[str, client_files.ClientFiles]:
  """Loads the writers of a seed, converting the user's files on first use.

  LEAF's files hold training and test writers apart, and the seed shuffles either; in TFF's database
  it shuffles all writers and cuts them in half. Then the first ones of each are taken.

  Args:
    data_dir: Directory with LEAF's train/*.json and test/*.json, or with TFF's emnist_all.sqlite or
      emnist_all.sqlite.lzma, or one of these two files; "" to download TFF's.
    cache_dir: Where the converted files are kept; 0.6 GB for all of EMNIST.
    seed: Of the choice of writers; not negative.
    num_train_clients: 0 for 865, or all if there are fewer.
    num_test_clients: 0 for 865, or all if there are fewer.
    validation_fraction: Fraction of the training writers to hold out.
    min_examples_per_client: Writers with fewer images are dropped; 0 for 100.

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
  pools = _open_pools(data_dir, cache_dir)
  min_examples = min_examples_per_client or emnist_files.LEAF.min_examples
  return _choose(pools, data_dir or cache_dir, seed, min_examples, **choice)


def load_standin(
  *,
  cache_dir: str,
  seed: int,
  num_train_clients: int,
  num_test_clients: int,
  validation_fraction: float,
) -> Mapping[str, client_files.ClientFiles]:
  """Loads generated handwriting in place of EMNIST; makes it if `cache_dir` doesn't hold it yet.

  Not EMNIST, and no figure measured on it is one of EMNIST: see `emnist_standin`. The generated
  writers are always the same; the seed shuffles them and cuts them in half, as in TFF's database.

  Args:
    cache_dir: Where they are kept, 60 MB.
    seed: Of the choice of writers; not negative.
    num_train_clients: At most 200; 0 for all.
    num_test_clients: At most 200; 0 for all.
    validation_fraction: Fraction of the training writers to hold out.

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
  pool = client_files.open_or_write_client_files(
    os.path.join(cache_dir, f"emnist_standin_{emnist_standin.VERSION}"),
    emnist_standin.make_writers,
    x_scale=1 / _LEVELS,
  )
  return _choose([pool], cache_dir, seed, emnist_files.LEAF.min_examples, **choice)


def _build_linear_model(seed: int) -> tff.learning.models.FunctionalModel:
  del seed  # The objective is convex: it starts from zero.
  return models.build_linear_classifier(_INPUT_SPEC, emnist_files.NUM_CLASSES, intercept=False)


def _build_convnet(seed: int) -> tff.learning.models.FunctionalModel:
  return models.build_convnet(seed, _INPUT_SPEC, emnist_files.NUM_CLASSES)


TASKS = (
  task.Task(
    name="emnist_linear",
    build_model=_build_linear_model,
    load_clients=load_clients,
    load_standin=load_standin,
    defaults=dict(
      num_rounds=3000,
      clients_per_round=100,
      # The authors' 1.0 is for pixels divided by their mean. On pixels as they are, of 0.003, 0.01,
      # 0.03, 0.1 and 0.3 it leaves FedAvg the least training loss (the paper's criterion).
      client_learning_rate=0.03,
      batch_size=10,
      local_epochs=1,
      l2=1e-7,
      client_weighting="num_examples",
      learning_rate_decay=1.0,
      rounds_per_decay=1,
      rounds_per_evaluation=50,
      max_loss=4.0,
    ),
  ),
  task.Task(
    name="emnist_convnet",
    build_model=_build_convnet,
    load_clients=load_clients,
    load_standin=load_standin,
    defaults=dict(
      num_rounds=1000,
      clients_per_round=100,
      # The authors' 0.32 is for pixels divided by their mean; on pixels as they are it gets stuck.
      client_learning_rate=0.1,
      batch_size=16,
      local_epochs=1,
      l2=0.0,
      client_weighting="num_examples",
      learning_rate_decay=0.5,
      rounds_per_decay=400,
      rounds_per_evaluation=10,
      max_loss=4.0,
    ),
  ),
)
