"""Writes client files, all or nothing."""

from collections.abc import Callable, Iterable
import contextlib
import functools
import json
import logging
import os
import zlib

import numpy as np

from privacy import checks
from tff_superquantile import atomic_files
from tff_superquantile.simulation.client_files import files
from tff_superquantile.simulation.client_files import reading

_LOG = logging.getLogger(__name__)

_MAX_NAME_BYTES = 250  # File systems allow 255.
_X_DTYPES = ("uint8", "float32")
_Y_DTYPES = ("int32", "float32")

# The shape and the type of x, without the number of examples, and the type of y.
_Spec = tuple[tuple[int, ...], str, str]


def _spec(x: np.ndarray, y: np.ndarray) -> _Spec:
  return x.shape[1:], x.dtype.name, y.dtype.name


def _check_client(
  directory: str,
  client_id: str,
  x: np.ndarray,
  y: np.ndarray,
  spec: _Spec | None,
  may_lack_examples: bool,
) -> None:
  """Raises a `ValueError` unless this client can be stored; `spec` is the first's."""
  where = f"Client {client_id!r}, on its way to {directory},"
  if any("\ud800" <= character <= "\udfff" for character in client_id):
    raise ValueError(f"{where} has half of a character (a lone surrogate) in its id; rename it.")
  if not client_id or len(files.file_stem(client_id)) + len(files.SUFFIX) > _MAX_NAME_BYTES:
    raise ValueError(f"{where} has an id that is empty or too long to name a file; shorten it.")
  if x.dtype.name not in _X_DTYPES or y.dtype.name not in _Y_DTYPES:
    raise ValueError(
      f"{where} has x of type {x.dtype} and y of type {y.dtype}; expected uint8 or float32, and"
      " int32 (classes) or float32 (numbers)."
    )
  if x.ndim < 1 or y.shape != x.shape[:1] or not (len(y) or may_lack_examples):
    raise ValueError(
      f"{where} has x of shape {x.shape} and y of shape {y.shape}; expected at least one example"
      " and one label for each."
    )
  if y.dtype == np.int32 and y.min(initial=0) < 0:
    raise ValueError(f"{where} has the label {y.min()}; expected classes, numbered from 0.")
  if spec is not None and _spec(x, y) != spec:
    raise ValueError(
      f"{where} has examples of shape {x.shape[1:]} and type {x.dtype} with labels of type"
      f" {y.dtype}, the clients before it of shape {spec[0]} and type {spec[1]} with labels of type"
      f" {spec[2]}; all must be alike."
    )
  for name, values in (("x", x), ("y", y)):
    if values.dtype.kind == "f" and not np.all(np.isfinite(values)):
      raise ValueError(
        f"{where} has values of {name} that are not finite; mend or drop those examples."
      )


def _write_into(
  directory: str,
  target: str,
  clients: Iterable,
  x_scale: float,
  count_dropped: Callable[[], int | None],
  may_lack_examples: bool,
) -> None:
  """Writes all files of a cache into the existing `directory`; errors speak of `target`."""
  client_ids, num_examples, checksums = [], [], []
  num_classes = 0
  spec: _Spec | None = None
  for client_id, x, y in clients:
    x, y = np.asarray(x), np.asarray(y)
    _check_client(target, client_id, x, y, spec, may_lack_examples)
    spec = _spec(x, y)
    path = files.client_path(directory, client_id)
    content = x.astype(x.dtype.newbyteorder("<"), copy=False).tobytes()
    content += y.astype(y.dtype.newbyteorder("<"), copy=False).tobytes()
    try:
      # "x" refuses ids given twice, also those that a file system takes for the same name.
      with atomic_files.naming(path), open(path, "xb") as f:
        f.write(content)
    except FileExistsError:
      raise ValueError(
        f"Found client id {client_id!r} twice on its way to {target}; a client's examples must come"
        " all at once, under an id of its own."
      ) from None
    client_ids.append(client_id)
    num_examples.append(len(y))
    checksums.append(zlib.crc32(content))
    if y.dtype == np.int32:
      num_classes = max(num_classes, int(y.max(initial=-1)) + 1)
  if spec is None:
    raise ValueError(f"Found no clients to write to {target}; expected at least one.")
  index = {
    "format_version": reading.FORMAT_VERSION,
    "x_shape": list(spec[0]),
    "x_dtype": spec[1],
    "y_dtype": spec[2],
    "x_scale": x_scale,
    "num_classes": num_classes,
    "num_dropped": count_dropped(),
    "client_ids": client_ids,
    "num_examples": num_examples,
    "checksums": checksums,
  }
  index["checksum"] = reading.index_checksum(index)
  # The index is written last, when all files that it names would survive a loss of power. One call
  # makes all of them durable, since an fsync of each would take 0.3 to 4 ms.
  os.sync()
  atomic_files.write(os.path.join(directory, files.INDEX_NAME), json.dumps(index))


def _write_and_open(
  directory: str,
  clients: Iterable,
  x_scale: float,
  count_dropped: Callable[[], int | None] = lambda: None,
  may_lack_examples: bool = False,
) -> files.ClientFiles:
  x_scale = checks.positive("x_scale", x_scale)
  with contextlib.ExitStack() as stack:
    try:
      temporary = stack.enter_context(atomic_files.temporary_folder(directory))
    except OSError as e:
      raise ValueError(
        f"Found that no cache can be made in {os.path.dirname(directory)} ({e.strerror}); expected"
        " a folder that can be written to: name another one (--cache_dir)."
      ) from e
    made = os.path.join(temporary, "made")
    os.mkdir(made)
    _write_into(made, directory, clients, x_scale, count_dropped, may_lack_examples)
    try:
      os.rename(made, directory)
    except OSError:
      # Another process has written the same clients in the meantime, so its directory is used.
      if not os.path.exists(os.path.join(directory, files.INDEX_NAME)):
        raise
  return reading.open_client_files(directory)


def write_client_files(
  directory: str | os.PathLike,
  clients: Iterable[tuple[str, np.ndarray, np.ndarray]],
  *,
  x_scale: float = 1.0,
) -> files.ClientFiles:
  """Writes one file per client and an index, all or nothing.

  The files appear under `directory` at once, by a rename, when the last client is written; if a
  second process made the directory meanwhile, its files are used and these are dropped.

  Args:
    directory: The directory to make.
    clients: (client id, x [n, ...] uint8 or float32, y [n] int32 or float32) of each client, with
      the same types and trailing shape for all; taken one at a time: a generator needs no memory.
    x_scale: Factor from a stored x to the model's input.

  Returns:
    The opened files.

  Raises:
    ValueError: If the directory exists, there are no clients, or a client has no examples, an id
      that was there before, an x unlike the others', or values that are not finite.
  """
  directory = os.path.abspath(directory)
  if os.path.exists(directory):
    raise ValueError(f"Found {directory} already there; open it, or delete it to write it anew.")
  return _write_and_open(directory, clients, x_scale)


def open_or_write_client_files(
  directory: str | os.PathLike,
  make_clients: Callable[[], Iterable[tuple[str, np.ndarray, np.ndarray]]],
  *,
  x_scale: float = 1.0,
  count_dropped: Callable[[], int | None] = lambda: None,
  may_lack_examples: bool = False,
) -> files.ClientFiles:
  """Opens the directory if it is there; else calls `make_clients` and writes what it gives.

  Of several processes one writes, and the others wait for it and open what it wrote.

  Args:
    directory: The directory to open, or to make with its parents.
    make_clients: Returns (client id, x [n, ...] uint8 or float32, y [n] int32 or float32) of each
      client, with the same types and trailing shape for all; called only if there is no directory.
    x_scale: Factor from a stored x to the model's input.
    count_dropped: Returns how many clients `make_clients` has left out, after it has ended; None if
      that is not known. It becomes `ClientFiles.num_dropped`.
    may_lack_examples: Whether clients may have no examples (n = 0).

  Returns:
    The opened files.

  Raises:
    ValueError: As `write_client_files`, but for a directory that exists, and `open_client_files`.
    OSError: If the directory cannot be written.
  """
  directory = os.path.abspath(directory)
  if not os.path.exists(directory):
    parent = os.path.dirname(directory)
    waiting = functools.partial(_LOG.info, "Waiting for a process that writes to %s.", parent)
    with contextlib.suppress(OSError):  # Writing will say what is wrong.
      os.makedirs(parent, exist_ok=True)
    with atomic_files.lock(parent, waiting):
      if not os.path.exists(directory):
        return _write_and_open(directory, make_clients(), x_scale, count_dropped, may_lack_examples)
  return reading.open_client_files(directory)
