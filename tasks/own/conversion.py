"""Opens a table of the user's as client files that are written once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import hashlib
import json
import os
from typing import Optional

from absl import logging
import numpy as np
import pandas as pd

from tasks import splits
from tasks import task
from tasks.own import columns as columns_lib
from tasks.own import encoding as encoding_lib
from tasks.own import features as features_lib
from tasks.own import labels as labels_lib
from tasks.own import reading
from tasks.own import summary as summary_lib
from tff_superquantile import atomic_files
from tff_superquantile.simulation import client_files

_VERSION = 2  # In the digest, by which a table is known again; it stays.
_FORMAT = 3  # A change of the converted files, or of what is kept beside them, changes this.
# What else the converted files follow from.
_OF_RUN = (
  "seed",
  "num_train_clients",
  "num_test_clients",
  "validation_fraction",
  "is_private",
)
_FEWEST_CLIENTS = 3
_ROWS_AT_ONCE = 1 << 14

# Takes all clients, and chooses those of a run by the names of splits.
Split = Callable[[splits.Pools], Mapping[str, client_files.ClientFiles]]


def open_clients(
  request: task.Request, split: Split
) -> tuple[client_files.ClientFiles, summary_lib.Summary]:
  """Opens the clients of a table, after converting it on first use.

  Mean, standard deviation and categories are those of the training clients. In a private run they
  are those of the other clients: a statistic of training clients would be a release that no
  accounting covers, and would let one client move the inputs of all others. Names and kinds of
  columns, the classes and the number of clients are public in such a run. Where the request brings
  what the columns of an earlier table became, that is carried out, and nothing follows from this
  table.

  Args:
    request: The clients that a run asks for.
    split: Chooses a run's clients.

  Returns:
    The files of all clients with enough examples, and what was found.

  Raises:
    ValueError: If the table cannot be read or used.
  """
  if not request.data_dir:
    raise ValueError(
      "Found no --data_dir; name a .csv, .csv.gz or .parquet file, or a folder of such files."
    )
  paths = reading.find(request.data_dir)
  known = encoding_lib.from_text(request.columns) if request.columns else None
  names = [] if known is None else [feature.name for feature in known.features]
  columns = columns_lib.choose(request, paths, names)
  kind = request.label_kind
  if known is not None:
    known.check_fits(columns, kind)
  least = request.min_examples_per_client
  facts = [_VERSION, reading.digest(paths), *dataclasses.astuple(columns), kind, least]
  digest = _hash(facts)
  of_run = [_FORMAT, digest, *(getattr(request, name) for name in _OF_RUN)]
  directory = os.path.join(request.cache_dir, f"own_{_hash(of_run)}")
  converted = _open_converted(directory)
  if known is not None and not (converted and converted[1].encoding == known):
    directory = os.path.join(request.cache_dir, f"own_{_hash([*of_run, request.columns])}")
    converted = _open_converted(directory)
  if converted is not None:
    return converted
  logging.info("Reading %s, once.", request.data_dir)
  frame = reading.read(paths, columns.client, [] if known is None else _texts_of(known))
  table = _Table(frame, columns, request, split, known)
  files = client_files.open_or_write_client_files(
    directory, table.encode, count_dropped=lambda: table.num_dropped
  )
  summary = table.summarise(digest)
  atomic_files.write_json(f"{directory}.json", dataclasses.asdict(summary))
  return files, summary


def _texts_of(known: encoding_lib.Encoding) -> list[str]:
  """Returns the columns that are text even if those of a later table look like numbers."""
  category = features_lib.CATEGORY
  names = [feature.name for feature in known.features if feature.kind == category]
  return [*names, known.label.name] if known.label.classes else names


def _hash(facts: Sequence) -> str:
  return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def _open_converted(
  directory: str,
) -> Optional[tuple[client_files.ClientFiles, summary_lib.Summary]]:
  """Opens what an earlier call has left; None if there is nothing."""
  path = f"{directory}.json"
  if not (os.path.exists(directory) and os.path.exists(path)):
    return None
  with open(path, encoding="utf-8") as file:
    values = json.load(file)
  columns = [summary_lib.Column(**column) for column in values.pop("columns")]
  encoding = encoding_lib.from_json(values.pop("encoding"))
  summary = summary_lib.Summary(columns=columns, encoding=encoding, **values)
  return client_files.open_client_files(directory), summary


class _Table:
  """A table in memory, whose clients are known, and whose columns have become features."""

  def __init__(
    self,
    frame: pd.DataFrame,
    columns: columns_lib.Columns,
    request: task.Request,
    split: Split,
    known: Optional[encoding_lib.Encoding],
  ) -> None:
    """Checks a table; see `open_clients`.

    Args:
      frame: All rows.
      columns: The columns that the user wants.
      request: The clients that a run asks for.
      split: Chooses a run's clients.
      known: What the columns of an earlier table became; None to find it out here.
    """
    self._columns, self._request = columns, request
    owners, ids = self._owners(frame)
    counts = np.bincount(owners, minlength=len(ids))
    enough = counts >= request.min_examples_per_client
    self.num_dropped = int(np.sum(~enough))
    if self.num_dropped:
      frame = frame[enough[owners]].reset_index(drop=True)
      owners = (np.cumsum(enough) - 1)[owners[enough[owners]]]
      ids, counts = ids[enough], counts[enough]
    are_few = len(ids) < _FEWEST_CLIENTS
    if are_few and (known is None or not len(ids)):
      dropped = f", without {self.num_dropped} that have too few examples" * bool(self.num_dropped)
      raise ValueError(
        f"Found {len(ids)} clients in {request.data_dir}{dropped}; expected at least"
        f" {_FEWEST_CLIENTS}, to train and to test on: name another --client_column, or get more"
        " data."
      )
    self._ids, self._offsets = ids, np.concatenate([[0], np.cumsum(counts)])
    self._rows = np.argsort(owners, kind="stable")  # Client after client.
    # A client here has no file yet; to be chosen it needs its name and its number of examples.
    pool = client_files.ClientFiles(request.data_dir, tuple(ids), counts, (), "float32", 1.0, 0)
    # A later table need not have clients for every split.
    chosen = {"train": pool, "test": pool} if are_few else split([pool])
    train = set(chosen["train"].client_ids)
    self._num_train = len(train)
    rest = {i for name, files in chosen.items() if name != "train" for i in files.client_ids}
    is_reference = np.array([i in (rest if request.is_private else train) for i in ids])
    self._reference = is_reference[owners]
    # The rows that may be described.
    self._shown = self._reference if request.is_private else slice(None)
    self._num_reference = int(is_reference.sum())
    remarks: dict[str, str] = {}
    if known is None:
      known, remarks = encoding_lib.fit(frame, columns, request.label_kind, self._reference)
    self._encoding = known
    self._labels = labels_lib.read(known.label, frame[columns.label])
    self._raw = np.column_stack([features_lib.read(one, frame[one.name]) for one in known.features])
    remarks = remarks or encoding_lib.remarks_on(known, self._raw[self._shown])
    self._described = self._describe(frame, remarks)

  def _owners(self, frame: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Returns the client of each row, int64 [rows], and the clients' names."""
    column = frame[self._columns.client or reading.FILE_NAME]
    owners, ids = pd.factorize(column.astype(object).map(str, na_action="ignore"), sort=True)
    is_blank = np.array([not name.strip() for name in ids] + [True])  # The code of NaN is -1.
    blank = int(is_blank[owners].sum())
    if blank:
      raise ValueError(
        f"Found {blank} of {len(column)} rows without a client"
        f" (--client_column={self._columns.client}); expected one in each: mend or drop them."
      )
    return owners.astype(np.int64), np.asarray(ids, object)

  def _describe(self, frame: pd.DataFrame, remarks: Mapping[str, str]) -> list[summary_lib.Column]:
    """Describes each column that was to be a feature, or is one."""
    features = {feature.name: feature for feature in self._encoding.features}
    described = []
    wanted = [name for name in self._columns.features if name in frame]
    for name in dict.fromkeys((*wanted, *features)):
      missing = int(frame[name][self._shown].isna().sum())
      if name in features:
        one = features[name]
        column = summary_lib.Column(name, one.kind, missing, one.width, remarks.get(name, ""))
      else:
        reason = self._encoding.dropped.get(name, "not among the columns of the model")
        column = summary_lib.Column(name, "dropped", missing, 0, reason)
      described.append(column)
    return described

  def encode(self) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yields (client, x float32 [n, inputs], y [n]) of each client."""
    first = 0
    while first < len(self._ids):
      start = self._offsets[first]
      # Many clients at once: calls for each of them would take most of the time.
      last = max(first + 1, int(np.searchsorted(self._offsets, start + _ROWS_AT_ONCE)) - 1)
      rows = self._rows[start : self._offsets[last]]
      x, y = features_lib.encode(self._encoding.features, self._raw[rows]), self._labels[rows]
      for i in range(first, last):
        own = slice(self._offsets[i] - start, self._offsets[i + 1] - start)
        yield self._ids[i], x[own], y[own]
      first = last

  def summarise(self, digest: str) -> summary_lib.Summary:
    """Returns what was found; of training clients in a private run nothing but their number."""
    is_private, names = self._request.is_private, self._encoding.label.classes
    values = self._labels[self._shown]
    counts = np.bincount(values, minlength=len(names)).tolist() if names else []
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
    )
