"""Reads what roles say from the files that Shakespeare's users have, and names their faults.

Two formats hold the same plays: the HDF5 of TensorFlow Federated (`iterate_hdf5`), whose examples
are the texts of each role, and LEAF's JSON (`iterate_leaf`), whose examples are sequences of 80
characters and the next one. Both readers yield (role, x uint8 [n, 80], y int32 [n]), numbers of
characters, one role at a time; n may be 0 for a role that says little.
"""

from collections.abc import Iterable, Iterator
import contextlib
import logging
import os
from typing import Any

import h5py
import numpy as np

from tasks import data_set
from tasks import downloads
from tasks import user_files
from tasks.shakespeare import characters

_LOG = logging.getLogger("tff_superquantile.tasks")

TRAIN_NAME = "shakespeare_train.h5"
TEST_NAME = "shakespeare_test.h5"
SOURCE = "https://storage.googleapis.com/tff-datasets-public/shakespeare.tar.bz2"
DOWNLOAD = downloads.Download(
  what="Shakespeare",
  urls=(SOURCE,),
  sha256="0285be9906cb5f268092eee4edeeacfc2af4574f2941f7cc2f08a321d7f5c707",
  members=(TRAIN_NAME, TEST_NAME),
  room=10_000_000,
)
_COMMAND = "preprocess.sh -s niid --sf 0.1 -k 20 -t user --tf 0.5"  # LEAF's.
_GROUP, _TEXTS = "examples", "snippets"

_Role = tuple[str, np.ndarray, np.ndarray]


def _open(path: str) -> h5py.File:
  """Opens TFF's file; raises a `ValueError` if it is another."""
  remedy = f"expected TensorFlow Federated's HDF5: get {SOURCE} again"
  try:
    file = h5py.File(path, "r")
  except OSError as e:
    raise ValueError(f"{path} is not a readable HDF5 file ({e}); {remedy}.") from e
  if not isinstance(file.get(_GROUP), h5py.Group) or not len(file[_GROUP]):
    file.close()
    raise ValueError(f"{path} has no roles in a group {_GROUP}; {remedy}.")
  return file


DATA_SET = data_set.DataSet(
  name="Shakespeare",
  file_names=(TRAIN_NAME,),
  command=_COMMAND,
  client="role",
  examples="sequences",
  min_examples=20,
  downloads=(DOWNLOAD,),
)


def hdf5_paths(path: str) -> list[str]:
  """Returns TFF's training file and, if it lies beside, its test file."""
  test = os.path.join(os.path.dirname(path), TEST_NAME)
  return [path, test] if os.path.isfile(test) and not os.path.samefile(path, test) else [path]


def _texts(path: str, role: str, roles: h5py.Group) -> list[str]:
  """Returns the texts of a role of TFF's file."""
  try:
    group = roles[role]
    texts = group.get(_TEXTS) if isinstance(group, h5py.Group) else None
    if isinstance(texts, h5py.Dataset) and texts.ndim == 1 and texts.dtype.kind in "SO":
      return [bytes(text).decode("utf-8", "replace") for text in texts[:]]
    reason = f"has no list of texts named {_TEXTS}"
  except (OSError, KeyError, TypeError) as e:  # A link leads nowhere, or data are damaged.
    reason = f"cannot be read ({' '.join(str(e.args[0] if e.args else e).split())})"
  raise ValueError(
    f"{path}: role {role!r} {reason}; expected TensorFlow Federated's HDF5: get {SOURCE} again."
  )


def iterate_hdf5(paths: Iterable[str]) -> Iterator[_Role]:
  """Yields the roles of TFF's files, each with its text in all of them.

  TFF divides each role's texts in a training and a test file; here a client is a role, so the two
  are put together, in the order of `paths`, with a space between texts.
  """
  with contextlib.ExitStack() as stack:
    opened = {path: stack.enter_context(_open(path)) for path in paths}
    _LOG.info("Reading %s.", ", ".join(opened))
    for role in sorted(set().union(*(file[_GROUP] for file in opened.values()))):
      texts = [
        text
        for path, file in opened.items()
        if role in file[_GROUP]
        for text in _texts(path, role, file[_GROUP])
      ]
      yield role, *characters.cut(" ".join(texts))


def _are_sequences(x: Any, y: Any) -> bool:
  """Tells whether these are lists of texts of 80 characters and of single characters."""
  return all(
    isinstance(texts, list) and all(isinstance(t, str) and len(t) == length for t in texts)
    for texts, length in ((x, characters.SEQUENCE_LENGTH), (y, 1))
  )


def iterate_leaf(paths: Iterable[str]) -> Iterator[_Role]:
  """Yields the roles of a split's LEAF JSON files, each in one file."""
  for path, role, data in user_files.iterate_leaf(paths, DATA_SET):
    x, y = data["x"], data["y"]
    if not _are_sequences(x, y):
      raise ValueError(
        f"{path}: role {role!r} has an example that is not a text of {characters.SEQUENCE_LENGTH}"
        f" characters and the next character; expected what LEAF's {_COMMAND} leaves."
      )
    sequences = characters.encode("".join(x)).reshape(-1, characters.SEQUENCE_LENGTH)
    yield role, sequences, characters.encode("".join(y)).astype(np.int32)
