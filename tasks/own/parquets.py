"""Reads a Parquet file into columns of numbers, truth values and texts."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import compute
from pyarrow import parquet

from tasks.own import values

_MOST_SAID = 60  # Characters of a type's name.
_TIMES = (pa.types.is_timestamp, pa.types.is_duration)
_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BYTES = (
  pa.types.is_binary,
  pa.types.is_large_binary,
  pa.types.is_fixed_size_binary,
  pa.types.is_binary_view,
)
_OTHERS = (
  pa.types.is_null,
  pa.types.is_boolean,
  pa.types.is_integer,
  pa.types.is_floating,
  pa.types.is_decimal,
  pa.types.is_date,
  pa.types.is_time,
)


def _is(kind: pa.DataType, tests: Collection) -> bool:
  return any(test(kind) for test in tests)


def read(path: str, texts: Collection[str], *, all_texts: bool) -> pd.DataFrame:
  """Reads a Parquet file.

  Args:
    path: The file.
    texts: Columns that become text, whatever their type.
    all_texts: Whether all columns do.

  Returns:
    All columns: numbers, truth values and texts as pandas has them; dates and times of the day as
    text or objects with one; bytes in UTF-8 as text. All else is `values.Unusable`.

  Raises:
    ValueError, OSError or pa.ArrowException: If the file cannot be read.
  """
  # Without threads, which a fork of this process would lack.
  table = parquet.read_table(path, use_threads=False)
  columns = zip(table.column_names, table.columns)
  return pd.DataFrame({name: _read(one, all_texts or name in texts) for name, one in columns})


def _read(column: pa.ChunkedArray, is_text: bool) -> pd.Series:
  kind = column.type
  if pa.types.is_dictionary(kind):
    kind = kind.value_type
    if not _is(kind, _TEXTS):
      column = column.cast(kind)
  if pa.types.is_string_view(kind):
    kind, column = pa.string(), column.cast(pa.string())
  said = str(kind) if len(str(kind)) <= _MOST_SAID else f"{str(kind)[:_MOST_SAID]}..."
  if _is(kind, _TIMES):
    return _map(_to_pandas(column), lambda value: values.Unusable(said, str(value)))
  if _is(kind, _BYTES):
    return _map(_to_pandas(column), lambda value: _decode(value, said))
  if not _is(kind, _TEXTS + _OTHERS):
    one = values.Unusable(said)
    return pd.Series([one if is_valid else None for is_valid in _valid(column)], dtype=object)
  found = _to_pandas(column, integer_object_nulls=is_text)
  if _is(kind, _TEXTS) and _has_nul(column, kind):
    found = _map(found, lambda value: _checked(value, said))
  return _map(found, _text) if is_text else found


def _to_pandas(column: pa.ChunkedArray, **asked: bool) -> pd.Series:
  return column.to_pandas(use_threads=False, **asked).reset_index(drop=True)


def _valid(column: pa.ChunkedArray) -> np.ndarray:
  return compute.is_valid(column).to_numpy()


def _has_nul(column: pa.ChunkedArray, kind: pa.DataType) -> bool:
  has_nul = compute.match_substring(column.cast(kind), "\0")
  return bool(compute.any(has_nul).as_py())  # Neither if all are missing.


def _map(column: pd.Series, make: Any) -> pd.Series:
  """Returns `make` of each value that is not missing."""
  return column.astype(object).map(make, na_action="ignore").astype(object)


def _checked(text: str, said: str) -> Any:
  """Returns a text, unless pandas, which ends some at a NUL, would take it for another one."""
  return values.Unusable(f"{said} with NUL", text.replace("\0", "\\0")) if "\0" in text else text


def _decode(content: bytes, said: str) -> Any:
  try:
    return _checked(content.decode("utf-8"), said)
  except UnicodeDecodeError:
    return values.Unusable(f"{said} that is no text in UTF-8", content.hex())


def _text(value: Any) -> Any:
  """Returns the text of a value, the same for a number whatever the type of its column."""
  if isinstance(value, values.Unusable):
    return value
  return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)
