"""Keeps the releases of a round on disk: a row of a CSV file, and scalars for TensorBoard.

TFF's own managers do the same at a price that a user waits for: `tff.program.CSVFileReleaseManager`
reads the whole file in each round, which makes a run's time grow with the square of its rounds, and
`tff.program.TensorBoardReleaseManager` calls TensorFlow once a number.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
import contextlib
import csv
import io
import itertools
import os
import pathlib
import socket
import time
from typing import Any
import weakref

from tensorboard.compat.proto import event_pb2
from tensorboard.compat.proto import summary_pb2
from tensorboard.plugins.scalar import summary as scalar_summary
from tensorboard.summary.writer import record_writer
import tensorflow_federated as tff

from tff_superquantile import atomic_files

_ROUND = "round"  # The first column, that of the rounds' numbers.
_counter = itertools.count()


class RowReleaseManager(tff.program.ReleaseManager):
  """Keeps one row a round in a CSV file, the same bytes as `tff.program.CSVFileReleaseManager`.

  A row is appended, and is with the operating system when `release` returns. The file is written
  anew, atomically, only when a row has a column that there was not, or a round that there was: a
  resumed run repeats the rounds after its checkpoint, whose rows go then.

  Rows can be final. Then they stay, and a round that is repeated must give the same numbers again.
  """

  def __init__(
    self,
    path: str | os.PathLike,
    *,
    final_until: int | None = None,
    may_differ: Collection[str] = (),
  ):
    """Reads the file; nothing is written before the first release.

    The file need not exist, its folder must. The rows of `final_until`, the last round that was
    released, and of those before are final; None if no rows are. Its own row may be missing: its
    writer may have been killed just before; another final row that is missing is a `ValueError`.
    Final rows may have other numbers in the columns `may_differ`.
    """
    self._path = pathlib.Path(path)
    self._final_until = final_until
    self._may_differ = frozenset(may_differ)
    self._final: dict[int, dict[str, str]] = {}
    rows = self._read()
    self._latest = int(rows[-1][_ROUND]) if rows else -1
    if final_until is not None:
      self._final = {int(row[_ROUND]): row for row in rows}
      missing = [number for number in range(final_until) if number not in self._final]
      if missing:
        raise ValueError(
          f"Found no row of round {missing[0]}, which was released, in {path}; expected it, as the"
          " round may be repeated and must give the same again: bring the file back, or choose"
          " another --output_dir."
        )

  def _read(self) -> list[dict[str, str]]:
    """Reads the rows, but for a last line that a killed writer left unfinished."""
    text = ""
    if self._path.exists():
      with open(self._path, newline="", encoding="utf-8") as stream:
        text = stream.read()
    whole = text[: text.rfind("\n") + 1]
    self._is_torn = whole != text
    reader = csv.DictReader(io.StringIO(whole, newline=""))
    self._columns = list(reader.fieldnames or [_ROUND])
    if self._columns[0] != _ROUND:
      raise ValueError(
        f"Found a file {self._path} whose first column is {self._columns[0]!r}; expected {_ROUND}."
      )
    rows = list(reader)
    if any(not (row[_ROUND] or "").isdecimal() or None in row for row in rows):
      raise ValueError(
        f"Found a row of {self._path} without a round's number or with too many cells; mend the"
        " file, or remove the run's folder."
      )
    return rows

  def _as_text(self, rows: Iterable[Mapping[str, Any]]) -> str:
    text = io.StringIO(newline="")
    csv.DictWriter(text, self._columns, restval="").writerows(rows)
    return text.getvalue()

  def _write_anew(self, rows: Iterable[Mapping[str, Any]]) -> None:
    header = self._as_text([dict(zip(self._columns, self._columns))])
    atomic_files.write(self._path, header + self._as_text(rows))
    self._is_torn = False

  async def release(self, value: Mapping[str, Any], key: int) -> None:
    """Writes the row of a round (from 0), the last one from now on: plain numbers by column.

    Other numbers than a final row has are a `ValueError`.
    """
    row = {_ROUND: key, **{name: value[name] for name in sorted(value)}}
    if self._final_until is not None and key <= self._final_until and self._repeats(row, key):
      return
    if self._is_torn or key <= self._latest or not row.keys() <= set(self._columns):
      kept = [earlier for earlier in self._read() if int(earlier[_ROUND]) < key]
      columns = self._columns if kept else [_ROUND]
      self._columns = [*columns, *(name for name in row if name not in columns)]
      self._write_anew([*kept, row])
    else:
      with atomic_files.naming(self._path):
        with open(self._path, "a", newline="", encoding="utf-8") as stream:
          stream.write(self._as_text([row]))
    self._latest = key

  def _repeats(self, row: dict[str, Any], key: int) -> bool:
    """Compares a round that was released before with its row; False if that was not written."""
    earlier = self._final.get(key)
    if earlier is None:
      return False
    for name in row.keys() - self._may_differ:
      before = earlier.get(name) or ""
      if before not in ("", str(row[name])):
        raise ValueError(
          f"Found {name} = {row[name]} in round {key}, repeated after an interruption, and"
          f" {before} in {self._path}; expected the same, as the noise of that round has been"
          " used: go on with the same versions on the machine on which the run began, or choose"
          " another --output_dir."
        )
    blank = {name: value for name, value in row.items() if not earlier.get(name)}
    if blank:  # Rounds are evaluated that were not.
      self._columns += [name for name in blank if name not in self._columns]
      earlier.update(blank)
      self._write_anew(self._final[number] for number in sorted(self._final))
    return True


def _close(writer: record_writer.RecordWriter) -> None:
  with contextlib.suppress(OSError):  # What could not be written has been an error already.
    writer.close()


class ScalarReleaseManager(tff.program.ReleaseManager):
  """Writes the numbers of a round for TensorBoard, all in one record.

  It writes in the caller's thread, whose error a full disk is then: TensorBoard's own writer has a
  thread for it, which would end with a traceback.
  """

  def __init__(self, folder: str | os.PathLike):
    os.makedirs(folder, exist_ok=True)
    place = f"{time.time():017.6f}.{socket.gethostname()}.{os.getpid()}.{next(_counter)}"
    self._path = os.path.join(folder, f"events.out.tfevents.{place}")
    # TensorFlow's writer is not used: of each eager tensor, TensorFlow 2.14 on Python 3.11 loses 16
    # bytes.
    with atomic_files.naming(self._path):
      self._writer = record_writer.RecordWriter(open(self._path, "wb"))
    self._summaries: dict[str, summary_pb2.Summary] = {}  # By the names of scalars.
    # Closes the file: called at the end, or when this object is collected.
    self.close = weakref.finalize(self, _close, self._writer)
    self._write(event_pb2.Event(wall_time=time.time(), file_version="brain.Event:2"))

  def _write(self, event: event_pb2.Event) -> None:
    with atomic_files.naming(self._path):
      self._writer.write(event.SerializeToString())
      self._writer.flush()

  async def release(self, value: Mapping[str, Any], key: int) -> None:
    """Writes the scalars of a round, plain numbers by name."""
    summary = summary_pb2.Summary()
    for name in sorted(value):
      if name not in self._summaries:
        self._summaries[name] = scalar_summary.scalar_pb(name, 0.0)
      summary.MergeFrom(self._summaries[name])
      summary.value[-1].tensor.float_val[0] = value[name]
    self._write(event_pb2.Event(wall_time=time.time(), step=key, summary=summary))
