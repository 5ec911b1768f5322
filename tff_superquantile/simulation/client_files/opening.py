"""Opens a directory of client files, after checking that all is as it was written."""

from collections.abc import Mapping
import json
import os
from typing import Any, Union
import zlib

import numpy as np

from tff_superquantile.simulation.client_files import files

FORMAT_VERSION = 2
INDEX_NAME = "index.json"
# Reading a damaged index raises one of these.
_INDEX_ERRORS = (ValueError, KeyError, TypeError, RecursionError, OSError)


def index_checksum(index: Mapping[str, Any]) -> int:
  """Returns the checksum of an index, of all that is in it but for the checksum itself."""
  rest = {name: value for name, value in index.items() if name != "checksum"}
  return zlib.crc32(json.dumps(rest).encode())


def is_outdated(directory: str) -> bool:
  """Tells whether an earlier version of this module made the directory."""
  try:
    with open(os.path.join(directory, INDEX_NAME), encoding="utf-8") as f:
      return json.load(f)["format_version"] < FORMAT_VERSION
  except _INDEX_ERRORS:
    return False  # Not there, or damaged, which is for `open_client_files` to say.


def open_client_files(directory: Union[str, os.PathLike]) -> files.ClientFiles:
  """Opens what `write_client_files` wrote, after checking that all is as it was written.

  Raises:
    ValueError: If the directory or its index is missing, of another format, or damaged, or a
      client's file is missing or damaged.
  """
  directory = os.path.abspath(directory)
  path = os.path.join(directory, INDEX_NAME)
  remedy = f"delete the directory {directory} to have it made anew"
  index = _read_index(path, remedy)
  opened = files.ClientFiles(
    directory=directory,
    client_ids=tuple(index["client_ids"]),
    num_examples=np.asarray(index["num_examples"], np.int64),
    x_shape=tuple(index["x_shape"]),
    x_dtype=index["x_dtype"],
    x_scale=index["x_scale"],
    num_classes=index["num_classes"],
    num_dropped=index.get("num_dropped"),  # An earlier version did not keep it.
  )
  record = opened.x_bytes + files.Y_BYTES
  expected = zip(opened.client_ids, opened.num_examples, index["checksums"])
  for client_id, n, checksum in expected:
    path = files.client_path(directory, client_id)
    try:
      with open(path, "rb") as f:
        content = f.read()
    except FileNotFoundError:
      raise ValueError(
        f"The file {path} is missing, expected {n * record} bytes ({n} examples); {remedy}."
      ) from None
    if len(content) != n * record:
      raise ValueError(
        f"The file {path} has {len(content)} bytes, expected {n * record} bytes ({n} examples);"
        f" {remedy}."
      )
    if zlib.crc32(content) != checksum:
      raise ValueError(
        f"The file {path} has other bytes than were written (its checksum differs); {remedy}."
      )
  return opened


def _read_index(path: str, remedy: str) -> dict[str, Any]:
  """Reads the index as it was written; errors end with the `remedy`."""
  try:
    with open(path, encoding="utf-8") as f:
      index = json.load(f)
    version = index["format_version"]
    if version != FORMAT_VERSION:
      raise ValueError(f"format version {version}, expected {FORMAT_VERSION}")
    # Whatever it is that was changed: a scale, say, may be as good as another to look at.
    if index["checksum"] != index_checksum(index):
      raise ValueError("its checksum is that of other contents")
    return index
  except FileNotFoundError:
    raise ValueError(
      f"Found no {INDEX_NAME} in {os.path.dirname(path)}; expected a directory of client files:"
      f" write one, or {remedy}."
    ) from None
  except _INDEX_ERRORS as e:
    raise ValueError(f"Found a damaged index {path} ({e!r}); {remedy}.") from e
