"""The format of the folder in which a run keeps the results of every client at each evaluation.

`round_NUMBER.parquet` has a row a client: `round`, `split`, `client_id`, `num_examples`, `loss`,
`error`, and the measure of --metric. pandas and pyarrow read the folder as one table. Importing
this module needs no TensorFlow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import io
import pathlib
from typing import Any

import numpy as np

from tff_superquantile import atomic_files


def write(
  folder: pathlib.Path, round_num: int, results: Mapping[str, Mapping[str, Sequence[Any]]]
) -> pathlib.Path:
  """Writes an evaluation's {split: {column: a value a client}} like `atomic_files.write`."""
  import pyarrow as pa  # Commands that touch no such file do not wait for it.
  from pyarrow import parquet

  tables = []
  for split, columns in results.items():
    number = len(columns["client_id"])
    tables.append(pa.table({"round": [round_num] * number, "split": [split] * number, **columns}))
  buffer = io.BytesIO()
  parquet.write_table(pa.concat_tables(tables), buffer)
  folder.mkdir(exist_ok=True)
  path = folder / f"round_{round_num:07d}.parquet"
  atomic_files.write(path, buffer.getvalue())
  return path


def find(folder: pathlib.Path) -> dict[int, pathlib.Path]:
  """Returns the files of a folder that may be missing, by round and in their order."""
  paths = sorted(folder.glob(f"round_{'[0-9]' * 7}.parquet"))
  return {int(path.stem.removeprefix("round_")): path for path in paths}


def read(folder: pathlib.Path, split: str) -> dict[str, np.ndarray]:
  """Reads a split's arrays by column but "split", sorted by round; empty for no clients."""
  import pyarrow as pa
  from pyarrow import parquet

  tables = []
  for path in find(folder).values():
    try:
      # Without threads, which a fork of this process would lack.
      table = parquet.read_table(path, filters=[("split", "=", split)], use_threads=False)
    except (OSError, pa.ArrowException) as error:
      raise ValueError(
        f"Found that {path} is damaged; expected the results of clients at an evaluation: bring the"
        " file back, or remove it, and reports leave that evaluation out."
      ) from error
    tables.append(table.drop_columns("split"))
  table = pa.concat_tables(tables) if tables else pa.table({})
  return {name: table[name].to_numpy() for name in table.column_names if table.num_rows}
