"""Opens a table of the user's as client files that are written once."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import hashlib
import json
import os
from typing import Any

from absl import logging

from tasks import task
from tasks.own import columns as columns_lib
from tasks.own import encoding as encoding_lib
from tasks.own import features as features_lib
from tasks.own import reading
from tasks.own import summary as summary_lib
from tasks.own import table as table_lib
from tff_superquantile import atomic_files
from tff_superquantile.simulation import client_files

_VERSION = 2  # In the digest, by which a table is known again; it stays.
_FORMAT = 4  # A change of the converted files, or of what is kept beside them, changes this.
# What else the converted files follow from.
_OF_RUN = (
  "seed",
  "num_train_clients",
  "num_test_clients",
  "validation_fraction",
  "is_private",
  "is_shuffled",
)


def open_clients(
  request: task.Request, split: table_lib.Split
) -> tuple[client_files.ClientFiles, summary_lib.Summary]:
  """Opens the clients of a table, after converting it on first use.

  Mean, standard deviation and categories are those of the training clients. In a private run they
  are those of the other clients: a statistic of training clients would be a release that no
  accounting covers, and would let one client move the inputs of all others. So are, then, the kinds
  of columns, which of them are dropped and the classes, if the user does not name these. Rows of
  training clients with another class are left out, and their values of another kind are missing;
  see `table.Table`. Names of columns and the number of clients are public in such a run. Where the
  request brings what the columns of an earlier table became, that is carried out, and nothing
  follows from this table.

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
    known.check_fits(columns, kind, request.classes)
  least = request.min_examples_per_client
  facts = [_VERSION, reading.digest(paths), *dataclasses.astuple(columns), kind, least]
  facts += [request.classes] * bool(request.classes)
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
  texts = [columns.label, *(() if known is None else _categories_of(known))]
  frame = reading.read(paths, columns.client, texts, all_texts=request.keeps_apart)
  table = table_lib.Table(frame, columns, request, split, known)
  files = client_files.open_or_write_client_files(
    directory,
    table.encode,
    count_dropped=lambda: table.num_dropped,
    may_lack_examples=request.keeps_apart,
  )
  summary = table.summarise(digest)
  content = dataclasses.asdict(summary)
  atomic_files.write_json(f"{directory}.json", {"sha256": _checksum(content), "summary": content})
  return files, summary


def _categories_of(known: encoding_lib.Encoding) -> list[str]:
  """Returns the columns that are text even if those of a later table look like numbers."""
  return [feature.name for feature in known.features if feature.kind == features_lib.CATEGORY]


def _hash(facts: Sequence) -> str:
  return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def _checksum(content: Any) -> str:
  """Returns the SHA-256 of a value of JSON, before it is written or after it is read."""
  return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _open_converted(
  directory: str,
) -> tuple[client_files.ClientFiles, summary_lib.Summary] | None:
  """Opens what an earlier call has left; None if there is nothing."""
  path = f"{directory}.json"
  if not (os.path.exists(directory) and os.path.exists(path)):
    return None
  try:
    with open(path, encoding="utf-8") as file:
      kept = json.load(file)
    values = kept["summary"]
    if kept["sha256"] != _checksum(values):
      raise ValueError("its checksum is that of other contents")
    columns = [summary_lib.Column(**column) for column in values.pop("columns")]
    encoding = encoding_lib.from_json(values.pop("encoding"))
    summary = summary_lib.Summary(columns=columns, encoding=encoding, **values)
  except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
    logging.warning("%s cannot be read (%s); it is made anew from the table.", path, error)
    return None
  return client_files.open_client_files(directory), summary
