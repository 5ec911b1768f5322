"""Opens a table of the user's as client files that are written once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import hashlib
import json
import os
from typing import Any

from absl import logging
import numpy as np
import pandas as pd

from tasks import splits
from tasks import task
from tasks.own import columns as columns_lib
from tasks.own import features as features_lib
from tasks.own import labels as labels_lib
from tasks.own import reading
from tasks.own import summary as summary_lib
from tff_superquantile import atomic_files
from tff_superquantile.simulation import client_files

_VERSION = 2  # A change of the conversion changes this too.
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
  columns, the classes and the number of clients are public in such a run.

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
  columns = columns_lib.choose(request, paths)
  kind = request.label_kind
  least = request.min_examples_per_client
  facts = [_VERSION, reading.digest(paths), *dataclasses.astuple(columns), kind, least]
  digest = _hash(facts)
  chosen = ("seed", "num_train_clients", "num_test_clients", "validation_fraction", "is_private")
  of_run = _hash([digest, *(getattr(request, name) for name in chosen)])
  directory = os.path.join(request.cache_dir, f"own_{of_run}")
  if os.path.exists(directory) and os.path.exists(f"{directory}.json"):
    return client_files.open_client_files(directory), _read_summary(f"{directory}.json")
  logging.info("Reading %s, once.", request.data_dir)
  table = _Table(reading.read(paths, columns.client), columns, request, split)
  files = client_files.open_or_write_client_files(
    directory, table.encode, count_dropped=lambda: table.num_dropped
  )
  summary = table.summarise(digest)
  atomic_files.write_json(f"{directory}.json", dataclasses.asdict(summary))
  return files, summary


def _fitted(feature: features_lib.Feature) -> dict[str, Any]:
  """Returns what the reference clients' values decided."""
  if isinstance(feature, features_lib.Category):
    return {"categories": feature.categories}
  return {"mean": feature.mean, "std": feature.std}


def _hash(facts: Sequence) -> str:
  return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def _read_summary(path: str) -> summary_lib.Summary:
  with open(path, encoding="utf-8") as file:
    values = json.load(file)
  columns = [summary_lib.Column(**column) for column in values.pop("columns")]
  return summary_lib.Summary(columns=columns, **values)


class _Table:
  """A table in memory, whose clients are known, and whose columns have become features."""

  def __init__(
    self, frame: pd.DataFrame, columns: columns_lib.Columns, request: task.Request, split: Split
  ) -> None:
    """Checks a table; see `open_clients`.

    Args:
      frame: All rows.
      columns: The columns that the user wants.
      request: The clients that a run asks for.
      split: Chooses a run's clients.
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
    if len(ids) < _FEWEST_CLIENTS:
      dropped = f", without {self.num_dropped} that have too few examples" * bool(self.num_dropped)
      raise ValueError(
        f"Found {len(ids)} clients in {request.data_dir}{dropped}; expected at least"
        f" {_FEWEST_CLIENTS}, to train and to test on: name another --client_column, or get more"
        " data."
      )
    self._ids, self._offsets = ids, np.concatenate([[0], np.cumsum(counts)])
    self._rows = np.argsort(owners, kind="stable")  # Client after client.
    self._labels = labels_lib.parse(frame[columns.label], request.label_kind)
    # A client here has no file yet; to be chosen it needs its name and its number of examples.
    pool = client_files.ClientFiles(
      request.data_dir, tuple(ids), counts, (), "float32", 1.0, len(self._labels.class_names)
    )
    chosen = split([pool])
    train = set(chosen["train"].client_ids)
    self._num_train = len(train)
    rest = {i for name, files in chosen.items() if name != "train" for i in files.client_ids}
    is_reference = np.array([i in (rest if request.is_private else train) for i in ids])
    self._reference = is_reference[owners]
    self._num_reference = int(is_reference.sum())
    self._features, self._described = self._fit(frame)
    self._mean, self._std = self._labels.standardise(self._reference)

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

  def _fit(
    self, frame: pd.DataFrame
  ) -> tuple[list[features_lib.Feature], list[summary_lib.Column]]:
    """Returns the features, and a description of each column that was to be one."""
    found, described = [], []
    shown = self._reference if self._request.is_private else slice(None)
    for name in self._columns.features:
      feature, remark = features_lib.fit(frame[name], self._reference)
      if feature is None and self._columns.are_named and "categories" in remark:
        raise ValueError(
          f"Found {remark}, in column {name!r} of --features; expected at most"
          f" {features_lib.MOST_CATEGORIES} that repeat: leave it out, or group its values."
        )
      missing = int(frame[name][shown].isna().sum())
      if feature is None:
        described.append(summary_lib.Column(name, "dropped", missing, 0, remark))
      else:
        column = summary_lib.Column(name, feature.kind, missing, feature.width, remark)
        described.append(dataclasses.replace(column, **_fitted(feature)))
        found.append(feature)
    if not found:
      reasons = "; ".join(f"{column.name}: {column.remark}" for column in described) or "none"
      raise ValueError(
        f"Found no feature that a model could use in {self._request.data_dir} ({reasons});"
        " expected a column of numbers or of at most"
        f" {features_lib.MOST_CATEGORIES} categories: name others in --features."
      )
    return found, described

  def encode(self) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yields (client, x float32 [n, inputs], y [n]) of each client."""
    first = 0
    while first < len(self._ids):
      start = self._offsets[first]
      # Many clients at once: calls for each of them would take most of the time.
      last = max(first + 1, int(np.searchsorted(self._offsets, start + _ROWS_AT_ONCE)) - 1)
      rows = self._rows[start : self._offsets[last]]
      x, y = features_lib.encode(self._features, rows), self._labels.values[rows]
      for i in range(first, last):
        own = slice(self._offsets[i] - start, self._offsets[i + 1] - start)
        yield self._ids[i], x[own], y[own]
      first = last

  def summarise(self, digest: str) -> summary_lib.Summary:
    """Returns what was found; of training clients in a private run nothing but their number."""
    is_private, names = self._request.is_private, self._labels.class_names
    values = self._labels.values[self._reference] if is_private else self._labels.values
    counts = np.bincount(values, minlength=len(names)).tolist() if names else []
    return summary_lib.Summary(
      digest=digest,
      label_column=self._columns.label,
      client_column=self._columns.client or reading.FILE_NAME,
      rows=len(values),
      clients=self._num_reference if is_private else len(self._ids),
      whose="clients that are not trained on" if is_private else "clients",
      num_dropped=self.num_dropped,
      min_examples=self._request.min_examples_per_client,
      num_train=self._num_train,
      classes=list(zip(names, counts)),
      label_mean=self._mean,
      label_std=self._std,
      columns=self._described,
    )
