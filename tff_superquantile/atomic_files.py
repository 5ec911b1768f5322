"""Writes files that are there whole or not at all, whatever ends the program."""

from __future__ import annotations

import json
import os
import pathlib
import secrets
from typing import Any

import numpy as np


def write(path: str | os.PathLike, content: str | bytes, mode: int | None = None) -> None:
  """Writes a file such that a reader, or a crash, finds the old file or the new, whole.

  Args:
    path: The file to write, replaced if it exists. Its folder must exist.
    content: The content; text is written as UTF-8 with line ends as they are.
    mode: Its permissions, from its creation on; None for what the user's umask leaves.

  Raises:
    OSError: If the folder does not exist or cannot be written. No temporary file is left.
  """
  if isinstance(content, str):
    content = content.encode("utf-8", errors="replace")
  path = pathlib.Path(path)
  # In the same folder, because a rename is atomic only within one file system. An ordinary `open`
  # rather than `tempfile`, whose files nobody but their owner can read.
  temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
  try:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with open(os.open(temporary, flags, 0o666 if mode is None else mode), "wb") as stream:
      stream.write(content)
      stream.flush()
      os.fsync(stream.fileno())
    os.replace(temporary, path)
  finally:
    temporary.unlink(missing_ok=True)


def write_json(path: str | os.PathLike, value: Any) -> None:
  """Writes a value as indented JSON, like `write`.

  Args:
    path: The file to write.
    value: Dicts, lists, strings and numbers; NumPy scalars and arrays are converted.

  Raises:
    OSError: As `write`.
    TypeError: If a value is none of the above.
  """
  write(path, json.dumps(value, indent=2, default=_to_builtin) + "\n")


def _to_builtin(value: Any) -> Any:
  if isinstance(value, (np.ndarray, np.generic)):
    return value.tolist()
  raise TypeError(f"Only plain values and NumPy arrays can be written. Found {type(value)}.")
