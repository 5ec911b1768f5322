"""A table in memory, which becomes examples of clients: `UserTable`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
import dataclasses
from typing import Any

import numpy as np

from privacy.settings import command_line
from tasks import own_flags
from tasks import places
from tasks import splits
from tasks import task
from tasks.own import columns as columns_lib
from tasks.own import drift
from tasks.own import encoding as encoding_lib
from tasks.own import features as features_lib
from tasks.own import labels as labels_lib
from tasks.own import reading
from tasks.own import values
from tff_superquantile.simulation import client_files

_FEWEST_CLIENTS = 3
_ROWS_AT_ONCE = 1 << 14

# Takes all clients, and chooses those of a run by the names of splits.
Split = Callable[[splits.Pools], Mapping[str, client_files.ClientFiles]]


@dataclasses.dataclass(frozen=True)
class ClientRows:
  """Rows of a table, arrays of shape [rows]."""

  columns: Mapping[str, values.Column]  # What they have in each column.
  owners: np.ndarray  # The numbers of their clients.
  is_held_out: np.ndarray  # Whether they are held out of training.
  is_reference: np.ndarray  # Whether statistics are taken of them.

  def __getitem__(self, rows: Any) -> ClientRows:
    columns = {name: column[rows] for name, column in self.columns.items()}
    others = self.owners, self.is_held_out, self.is_reference
    return ClientRows(columns, *(array[rows] for array in others))


class UserTable:
  """A table in memory.

  Where the request keeps clients apart (`Request.keeps_apart`), what a client's rows become is a
  function of these rows and of the reference, the rows of the test and validation clients. So are
  the encoding and the description of the reference alone. If one training client's rows are others,
  or none, all else is the same to the last bit; if it goes, the number of clients is another, too.

  Attributes:
    request: The clients that a run asks for.
    ids: The names of the clients.
    num_dropped: The number of clients with too few examples, which were dropped.
    num_unlabelled: The number of rows without a label, which were left out.
    num_unowned: The number of rows without a client, which were left out.
    num_reference: The number of clients of which statistics are taken.
    num_train: The number of training clients.
    rows: The examples.
    encoding: What the columns became.
    raw: What the features are, float64 [rows, features], NaN where missing.
    labels: The labels, int32 or float32 [rows].
    remarks: A remark on each feature, perhaps "".
    later_labels: As in `summary.Summary`.
  """

  def __init__(
    self,
    frame: Mapping[str, values.Column],
    columns: columns_lib.Columns,
    request: task.Request,
    split: Split,
    known: encoding_lib.Encoding | None,
  ) -> None:
    """Checks all rows of a table; `known` is what the columns of an earlier one became, if any."""
    self.columns, self.request = columns, request
    self.flags = request.flags_of(own_flags.TableFlags)
    is_owned = frame[columns.client or reading.FILE_NAME].codes >= 0
    self.num_unowned = 0
    if self.flags.rows_without_client == "drop":
      self.num_unowned = int(np.sum(~is_owned))
      frame = {name: column[is_owned] for name, column in frame.items()}
    owners, self.ids = self._owners(frame[columns.client or reading.FILE_NAME])
    drops = self.flags.rows_without_label == "drop"
    is_kept = frame[columns.label].codes >= 0 if drops else np.ones(len(owners), bool)
    self.num_unlabelled = int(np.sum(~is_kept))
    counts = np.bincount(owners[is_kept], minlength=len(self.ids))
    enough = (counts >= request.min_examples_per_client) | request.keeps_apart
    self.num_dropped = int(np.sum(~enough))
    is_kept &= enough[owners]
    self.ids, counts, owners = self.ids[enough], counts[enough], (np.cumsum(enough) - 1)[owners]
    self._check_number(known is not None)
    held_out = self._hold_out(owners[is_kept], counts)
    of_reference = self._choose(counts, split, known is not None)
    self.num_reference = int(of_reference.sum())
    whole = ClientRows(frame, owners, np.zeros(len(owners), bool), of_reference[owners])
    rows = whole[is_kept]
    self.rows = dataclasses.replace(
      rows, is_held_out=held_out, is_reference=rows.is_reference & ~held_out
    )
    self._encode(known)

  def _encode(self, known: encoding_lib.Encoding | None) -> None:
    """Finds out what the columns become, unless it is known, and carries it out."""
    request = self.request
    self.remarks: Mapping[str, str] = {}
    self.later_labels: str | None = None
    # Of clients that are kept apart, no others' rows are even looked at.
    seen = self.rows.is_reference if request.keeps_apart else np.ones(len(self.rows.owners), bool)
    if known is None:
      visible, asked = self.rows[seen], (self.flags.label_kind, self.flags.classes)
      self.encoding, self.remarks = encoding_lib.fit(
        visible.columns, self.columns, *asked, visible.is_reference
      )
    else:
      self.encoding = known
    label, column = self.encoding.label, self.rows.columns[self.columns.label]
    labels = labels_lib.read(label, column)
    labels_lib.check(label, column[seen], labels[seen])
    is_usable = ~np.isnan(labels)  # Others are of clients that are kept apart.
    self.rows, labels, seen = self.rows[is_usable], labels[is_usable], seen[is_usable]
    if not label.classes:
      limit = features_lib.LARGEST_INPUT
      labels = np.where(seen, labels, np.clip(labels, -limit, limit))
    self.labels = labels.astype(np.int32 if label.classes else np.float32)
    self.raw = np.column_stack(
      [
        features_lib.read_usable(feature, self.rows.columns[feature.name], seen)
        for feature in self.encoding.features
      ]
    )
    # The rows that may be described.
    self.shown = self.rows.is_reference if request.is_private else np.ones(len(labels), bool)
    if known is not None:
      self.remarks = drift.remarks_on(known, self.raw[self.shown])
      self.later_labels = drift.remark_on_labels(known.label, self.labels[self.shown])

  def _check_number(self, is_later: bool) -> None:
    """Raises a `ValueError` if there are too few clients to train and to test on."""
    number, dropped = len(self.ids), ""
    if self.num_dropped:
      dropped = f", without {self.num_dropped} that have too few examples"
    least, purpose = (1, "") if is_later else (_FEWEST_CLIENTS, ", to train and to test on")
    if number < least:
      raise command_line.Mistake(
        f"Found {number} clients in {self.request.data_dir}{dropped}; expected at least"
        f" {least}{purpose}",
        "name another --client_column (or --partition)",
        "get more data",
      )

  def _owners(self, column: values.Column) -> tuple[np.ndarray, np.ndarray]:
    """Returns the client of each row, int64 [rows], and the clients' names."""
    place = f"column {self.columns.client!r}"
    unusable = column.unusable_type
    names = [name.rpartition("\0")[2] for name in column.names]
    if unusable is not None and "" in names:
      raise command_line.Mistake(
        f"Found clients of type {unusable} ({place}); expected names or numbers",
        "write them as text",
        "name another --client_column",
      )
    if any("\n" in name for name in names):
      raise ValueError(
        f"Found clients whose names have line breaks ({place}); expected none: look for a quotation"
        " mark too many or too few."
      )
    blank = int(np.sum(column.codes < 0))
    if blank:
      raise command_line.Mistake(
        f"Found {blank} of {len(column)} rows without a client ({place}); expected one in each",
        "mend them",
        "leave them out by --rows_without_client=drop",
      )
    # A file without rows is a client, too.
    ids, of_names = np.unique(np.array(names, object), return_inverse=True)
    return of_names[column.codes], ids

  def _choose(self, counts: np.ndarray, split: Split, is_later: bool) -> np.ndarray:
    """Returns whether each client, with `counts` rows each, is the reference's, bool [clients].

    A later table (`is_later`) need not have clients for every split.
    """
    request = self.request
    # A client here has no file yet; to be chosen it needs its name and its number of examples.
    files = client_files.ClientFiles(
      request.data_dir, tuple(self.ids), counts, (), "float32", 1.0, 0
    )
    try:
      # Where examples are held out, each client is trained on and tested on.
      chosen = split([files] * (2 if request.held_out_examples else 1))
    except ValueError:
      if not is_later:
        raise
      chosen = {"train": files} if request.keeps_apart else {"train": files, "test": files}
    train = set(chosen["train"].client_ids)
    self.num_train = len(train)
    rest = {i for name, of_split in chosen.items() if name != "train" for i in of_split.client_ids}
    return np.array([i in (rest if request.is_private else train) for i in self.ids], bool)

  def encode(self, held_out: bool = False) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yields (client, x float32 [n, inputs], y [n]) of each client: its examples, or its held-out.

    Of those held out, only of clients that have some.
    """
    chosen = np.flatnonzero(self.rows.is_held_out == held_out)
    owners = self.rows.owners[chosen]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=len(self.ids)))])
    sorted_rows = chosen[np.argsort(owners, kind="stable")]  # Client after client.
    first = 0
    while first < len(self.ids):
      start = offsets[first]
      # Many clients at once: calls for each of them would take most of the time.
      last = max(first + 1, int(np.searchsorted(offsets, start + _ROWS_AT_ONCE)) - 1)
      rows = sorted_rows[start : offsets[last]]
      x, y = self.encoding.encode(self.raw[rows]), self.labels[rows]
      for i in range(first, last):
        own = slice(offsets[i] - start, offsets[i + 1] - start)
        if not held_out or own.stop > own.start:
          yield self.ids[i], x[own], y[own]
      first = last

  def _hold_out(self, owners: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Returns which rows are held out of their clients' training, bool [rows].

    A client's follow from its name, the seed and its number of rows alone. One with two rows or
    more keeps at least one and holds out at least one.
    """
    held_out = np.zeros(len(owners), bool)
    fraction = self.request.held_out_examples
    if fraction:
      rows = np.split(np.argsort(owners, kind="stable"), np.cumsum(counts)[:-1])
      for client_id, own in zip(self.ids, rows):
        if len(own) > 1:
          number = min(max(round(fraction * len(own)), 1), len(own) - 1)
          place = places.place(client_id, self.request.seed_of_split, places.EXAMPLES)
          order = np.random.default_rng(int(place * 2**53)).permutation(len(own))
          held_out[own[order[:number]]] = True
    return held_out
