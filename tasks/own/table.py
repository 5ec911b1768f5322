"""Opens a user's table as client files, which are written once: `UserTable` is it in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import functools
import hashlib
import json
import os
from typing import Any

from absl import logging
import numpy as np
import pandas as pd

from tasks import places
from tasks import splits
from tasks import task
from tasks.own import columns as columns_lib
from tasks.own import drift
from tasks.own import encoding as encoding_lib
from tasks.own import features as features_lib
from tasks.own import labels as labels_lib
from tasks.own import reading
from tasks.own import summary as summary_lib
from tasks.own import values
from tff_superquantile import atomic_files
from tff_superquantile.simulation import client_files

_FEWEST_CLIENTS = 3
_ROWS_AT_ONCE = 1 << 14
_VERSION = 2  # Part of the digest that identifies a table; it must not change.
_FORMAT = 7  # A change of the converted files, or of what is kept beside them, changes this.
# What else the converted files follow from.
_OF_RUN = (
  "seed_of_split",
  "num_train_clients",
  "num_test_clients",
  "validation_fraction",
  "is_private",
  "is_shuffled",
)
# Likewise, where they are given: earlier versions did not have them.
_OF_RUN_IF_GIVEN = ("folds", "held_out_examples")

# Takes all clients, and chooses those of a run by the names of splits.
Split = Callable[[splits.Pools], Mapping[str, client_files.ClientFiles]]


class UserTable:
  """A table in memory.

  Where the request keeps clients apart (`Request.keeps_apart`), what a client's rows become is a
  function of these rows and of the reference, the rows of the test and validation clients. So are
  the encoding and the description of the reference alone. If one training client's rows are others,
  or none, all else is the same to the last bit; if it goes, the number of clients is another, too.

  Attributes:
    num_dropped: The number of clients with too few examples, which were dropped.
  """

  def __init__(
    self,
    frame: pd.DataFrame,
    columns: columns_lib.Columns,
    request: task.Request,
    split: Split,
    known: encoding_lib.Encoding | None,
  ) -> None:
    """Checks a table; see `open_clients`.

    Args:
      frame: All rows; texts, where the request keeps clients apart.
      columns: The columns that the user wants.
      request: The clients that a run asks for.
      split: Chooses a run's clients.
      known: What the columns of an earlier table became; None to find it out here.
    """
    self._columns, self._request = columns, request
    owners, ids = self._owners(frame)
    enough = np.bincount(owners, minlength=len(ids)) >= request.min_examples_per_client
    self.num_dropped = 0 if request.keeps_apart else int(np.sum(~enough))
    if self.num_dropped:
      frame = frame[enough[owners]].reset_index(drop=True)
      owners = (np.cumsum(enough) - 1)[owners[enough[owners]]]
      ids = ids[enough]
    if len(ids) < _FEWEST_CLIENTS and (known is None or not len(ids)):
      dropped = f", without {self.num_dropped} that have too few examples" * bool(self.num_dropped)
      raise ValueError(
        f"Found {len(ids)} clients in {request.data_dir}{dropped}; expected at least"
        f" {_FEWEST_CLIENTS}, to train and to test on: name another --client_column, or get more"
        " data."
      )
    self._ids = ids
    counts = np.bincount(owners, minlength=len(ids))
    is_reference = self._choose(counts, split, known is not None)
    self._num_reference = int(is_reference.sum())
    held_out = self._hold_out(owners, counts)
    self._reference = is_reference[owners] & ~held_out
    remarks: dict[str, str] = {}
    is_later = known is not None
    if known is None:
      # Of clients that are kept apart, no others' rows are even looked at.
      seen = self._reference if request.keeps_apart else slice(None)
      asked = (request.label_kind, request.classes)
      known, remarks = encoding_lib.fit(frame[seen], columns, *asked, self._reference[seen])
    self._encoding = known
    if request.keeps_apart:
      labels = self._apart(labels_lib, known.label, frame[columns.label])
      usable = ~np.isnan(labels)
      frame, owners, self._reference = frame[usable], owners[usable], self._reference[usable]
      held_out = held_out[usable]
      self._labels = labels[usable].astype(np.int32 if known.label.classes else np.float32)
    else:
      self._labels = labels_lib.read(known.label, frame[columns.label])
    read = self._apart if request.keeps_apart else lambda how, one, column: how.read(one, column)
    raw = [read(features_lib, one, frame[one.name]) for one in known.features]
    self._raw = np.column_stack(raw)
    self._owners_of_rows, self._held_out = owners, held_out
    # The rows that may be described.
    self._shown = self._reference if request.is_private else slice(None)
    remarks = remarks or drift.remarks_on(known, self._raw[self._shown])
    self._later_labels = None
    if is_later:
      self._later_labels = drift.remark_on_labels(known.label, self._labels[self._shown])
    self._described = self._describe(frame, remarks)

  def _owners(self, frame: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Returns the client of each row, int64 [rows], and the clients' names."""
    column = frame[self._columns.client or reading.FILE_NAME]
    if self._columns.client is None:
      # A file without rows is a client, too.
      names = column.cat.categories.astype(object)
      column = column.cat.reorder_categories(sorted(names))
      return column.cat.codes.to_numpy(np.int64), np.asarray(column.cat.categories, object)
    names = column.astype(object).map(str, na_action="ignore")
    if "" in names.values and values.unusable_type(column) is not None:
      raise ValueError(
        f"Found clients of type {values.unusable_type(column)}"
        f" (--client_column={self._columns.client}); expected names or numbers: write them as text,"
        " or name another column."
      )
    owners, ids = pd.factorize(names, sort=True)
    is_blank = np.array([not name.strip() for name in ids] + [True])  # The code of NaN is -1.
    blank = int(is_blank[owners].sum())
    if blank:
      raise ValueError(
        f"Found {blank} of {len(column)} rows without a client"
        f" (--client_column={self._columns.client}); expected one in each: mend or drop them."
      )
    return owners.astype(np.int64), np.asarray(ids, object)

  def _choose(self, counts: np.ndarray, split: Split, is_later: bool) -> np.ndarray:
    """Returns whether each client, with `counts` rows each, is the reference's, bool [clients].

    A later table (`is_later`) need not have clients for every split.
    """
    request = self._request
    # A client here has no file yet; to be chosen it needs its name and its number of examples.
    files = client_files.ClientFiles(
      request.data_dir, tuple(self._ids), counts, (), "float32", 1.0, 0
    )
    try:
      # Where examples are held out, each client is trained on and tested on.
      chosen = split([files] * (2 if request.held_out_examples else 1))
    except ValueError:
      if not is_later:
        raise
      chosen = {"train": files} if request.keeps_apart else {"train": files, "test": files}
    train = set(chosen["train"].client_ids)
    self._num_train = len(train)
    rest = {i for name, of_split in chosen.items() if name != "train" for i in of_split.client_ids}
    return np.array([i in (rest if request.is_private else train) for i in self._ids], bool)

  def _apart(self, how: Any, one: Any, column: pd.Series) -> np.ndarray:
    """Reads a column, the values of the reference as `how.read` and others each by itself."""
    values = how.read_apart(one, column)
    values[self._reference] = how.read(one, column[self._reference])
    return values

  def _describe(
    self, frame: pd.DataFrame, remarks: Mapping[str, str]
  ) -> list[summary_lib.ColumnSummary]:
    """Describes each column that was to be a feature, or is one."""
    features = {feature.name: feature for feature in self._encoding.features}
    described = []
    wanted = [name for name in self._columns.features if name in frame]
    for name in dict.fromkeys((*wanted, *features)):
      missing = int(frame[name][self._shown].isna().sum())
      if name in features:
        one = features[name]
        column = summary_lib.ColumnSummary(
          name, one.kind, missing, one.width, remarks.get(name, "")
        )
      else:
        reason = self._encoding.dropped.get(name, "not among the columns of the model")
        column = summary_lib.ColumnSummary(name, "dropped", missing, 0, reason)
      described.append(column)
    return described

  def encode(self, held_out: bool = False) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yields (client, x float32 [n, inputs], y [n]) of each client: its examples, or its held-out.

    Of those held out, only of clients that have some.
    """
    wanted = np.flatnonzero(self._held_out == held_out)
    owners = self._owners_of_rows[wanted]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=len(self._ids)))])
    sorted_rows = wanted[np.argsort(owners, kind="stable")]  # Client after client.
    first = 0
    while first < len(self._ids):
      start = offsets[first]
      # Many clients at once: calls for each of them would take most of the time.
      last = max(first + 1, int(np.searchsorted(offsets, start + _ROWS_AT_ONCE)) - 1)
      rows = sorted_rows[start : offsets[last]]
      x, y = self._encoding.encode(self._raw[rows]), self._labels[rows]
      for i in range(first, last):
        own = slice(offsets[i] - start, offsets[i + 1] - start)
        if not held_out or own.stop > own.start:
          yield self._ids[i], x[own], y[own]
      first = last

  def _hold_out(self, owners: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Returns which rows are held out of their clients' training, bool [rows].

    A client's follow from its name, the seed and its number of rows alone. One with two rows or
    more keeps at least one and holds out at least one.
    """
    held_out = np.zeros(len(owners), bool)
    fraction = self._request.held_out_examples
    if fraction:
      rows = np.split(np.argsort(owners, kind="stable"), np.cumsum(counts)[:-1])
      for client_id, own in zip(self._ids, rows):
        if len(own) > 1:
          number = min(max(round(fraction * len(own)), 1), len(own) - 1)
          place = places.place(client_id, self._request.seed_of_split, places.EXAMPLES)
          order = np.random.default_rng(int(place * 2**53)).permutation(len(own))
          held_out[own[order[:number]]] = True
    return held_out

  def _largest_mean_square(self) -> float:
    """Returns what the summary has of this name."""
    rows = np.flatnonzero(self._reference)
    owners = self._owners_of_rows[rows]
    squares = [
      np.square(self._encoding.encode(self._raw[part]), dtype=np.float64).sum(axis=1)
      for part in np.split(rows, range(_ROWS_AT_ONCE, len(rows), _ROWS_AT_ONCE))
    ]
    sums = np.bincount(owners, np.concatenate(squares))
    return 1.0 + float(np.max(sums / np.maximum(np.bincount(owners), 1), initial=0.0))

  def summarise(self, digest: str) -> summary_lib.Summary:
    """Returns what was found; of training clients in a private run nothing but their number."""
    is_private, names = self._request.is_private, self._encoding.label.classes
    values = self._labels[self._shown]
    counts = np.bincount(values.astype(np.int64), minlength=len(names)).tolist() if names else []
    return summary_lib.Summary(
      digest=digest,
      client_column=self._columns.client or reading.FILE_NAME,
      rows=len(values),
      clients=self._num_reference if is_private else len(self._ids),
      whose="clients that are not trained on" if is_private else "clients",
      num_dropped=self.num_dropped,
      min_examples=self._request.min_examples_per_client,
      num_train=self._num_train,
      rows_of_classes=counts,
      encoding=self._encoding,
      columns=self._described,
      largest_mean_square=self._largest_mean_square(),
      later_labels=self._later_labels,
    )


def open_clients(
  request: task.Request, split: Split
) -> tuple[list[client_files.ClientFiles], summary_lib.Summary]:
  """Opens the clients of a table, after converting it on first use.

  Mean, standard deviation and categories are those of the training clients. In a private run they
  are those of the other clients: a statistic of training clients would be a release that no
  accounting covers, and would let one client move the inputs of all others. So are, then, the kinds
  of columns, which of them are dropped and the classes, if the user does not name these. Rows of
  training clients with another class are left out, and their values of another kind are missing;
  see `UserTable`. Names of columns and the number of clients are public in such a run. Where the
  request brings what the columns of an earlier table became, that is carried out, and nothing
  follows from this table.

  Args:
    request: The clients that a run asks for.
    split: Chooses a run's clients.

  Returns:
    The files of all clients with enough examples, then, where examples are held out, the files of
    these; and what was found.

  Raises:
    ValueError: If the table cannot be read or used.
  """
  if not request.data_dir:
    raise ValueError(
      "Found no --data_dir; name a .csv, .csv.gz or .parquet file, or a folder of such files."
    )
  paths = reading.find(request.data_dir)
  known = encoding_lib.from_text(request.columns) if request.columns else None
  needed = [] if known is None else [feature.name for feature in known.features]
  names = reading.columns_of(paths)
  columns = columns_lib.choose(request, names, needed)
  kind = request.label_kind
  if known is not None:
    known.check_fits(columns, kind, request.classes)
  least = request.min_examples_per_client
  facts = [_VERSION, reading.digest(paths), *dataclasses.astuple(columns), kind, least]
  facts += [request.classes] * bool(request.classes)
  digest = _hash(facts)
  of_run = [_FORMAT, digest, *(getattr(request, name) for name in _OF_RUN)]
  of_run += [(name, value) for name in _OF_RUN_IF_GIVEN if (value := getattr(request, name))]
  directory = os.path.join(request.cache_dir, f"own_{_hash(of_run)}")
  converted = _open_converted(_directories(directory, request))
  if known is not None and not (converted and converted[1].encoding == known):
    directory = os.path.join(request.cache_dir, f"own_{_hash([*of_run, request.columns])}")
    converted = _open_converted(_directories(directory, request))
  if converted is not None:
    return converted
  logging.info("Reading %s, once.", request.data_dir)
  texts = [columns.label, *(() if known is None else _categories_of(known))]
  frame = reading.read(paths, names, columns.client, texts, all_texts=request.keeps_apart)
  table = UserTable(frame, columns, request, split, known)
  pools = [
    client_files.open_or_write_client_files(
      path,
      functools.partial(table.encode, bool(held_out)),
      count_dropped=lambda: table.num_dropped,
      may_lack_examples=request.keeps_apart,
    )
    for held_out, path in enumerate(_directories(directory, request))
  ]
  summary = table.summarise(digest)
  content = dataclasses.asdict(summary)
  atomic_files.write_json(f"{directory}.json", {"sha256": _checksum(content), "summary": content})
  return pools, summary


def _directories(directory: str, request: task.Request) -> list[str]:
  """Returns the directories of the clients' files: of their examples, and of those held out."""
  return [directory, f"{directory}_held_out"][: 2 if request.held_out_examples else 1]


def _categories_of(known: encoding_lib.Encoding) -> list[str]:
  """Returns the columns that are text even if those of a later table look like numbers."""
  return [feature.name for feature in known.features if feature.kind == features_lib.CATEGORY]


def _hash(facts: Sequence) -> str:
  return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def _checksum(content: Any) -> str:
  """Returns the SHA-256 of a value of JSON, before it is written or after it is read."""
  return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _open_converted(
  directories: Sequence[str],
) -> tuple[list[client_files.ClientFiles], summary_lib.Summary] | None:
  """Opens what an earlier call has left; None if there is nothing."""
  path = f"{directories[0]}.json"
  if not all(map(os.path.exists, [*directories, path])):
    return None
  try:
    with open(path, encoding="utf-8") as file:
      kept = json.load(file)
    values = kept["summary"]
    if kept["sha256"] != _checksum(values):
      raise ValueError("its checksum is that of other contents")
    columns = [summary_lib.ColumnSummary(**column) for column in values.pop("columns")]
    encoding = encoding_lib.from_json(values.pop("encoding"))
    summary = summary_lib.Summary(columns=columns, encoding=encoding, **values)
  except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
    logging.warning("%s cannot be read (%s); it is made anew from the table.", path, error)
    return None
  return [*map(client_files.open_client_files, directories)], summary
