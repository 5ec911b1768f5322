"""Opens Shakespeare, or generated plays in its place, as client files that are written once."""

from collections.abc import Iterator
import os

import numpy as np

from tasks import task
from tasks import user_files
from tasks.shakespeare import characters
from tasks.shakespeare import readers
from tasks.shakespeare import standin
from tff_superquantile.simulation import client_files

_CACHE_VERSION = 1  # A change of the conversion changes this too.


def open_clients(request: task.Request) -> list[client_files.ClientFiles]:
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


def open_standin(request: task.Request) -> list[client_files.ClientFiles]:
  """Opens generated plays, always of the same 200 roles, 2 MB; see `standin`."""
  directory = os.path.join(request.cache_dir, f"shakespeare_standin_{standin.VERSION}")
  return [client_files.open_or_write_client_files(directory, standin.make_roles)]
