"""Opens a user's table as client files, which are written once."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
import hashlib
import json
import logging
import os
from typing import Any

from tasks import own_flags
from tasks import task
from tasks.own import columns as columns_lib
from tasks.own import encoding as encoding_lib
from tasks.own import files
from tasks.own import partition
from tasks.own import reading
from tasks.own import summary as summary_lib
from tasks.own import user_table
from tasks.own import values
from tff_superquantile import atomic_files
from tff_superquantile.simulation import client_files

_LOG = logging.getLogger("tff_superquantile.tasks")

_VERSION = 2  # Part of the digest that identifies a table; it must not change.
_FORMAT = 11  # A change of the converted files, or of what is kept beside them, changes this.
# What else the converted files follow from.
_OF_RUN = (
  "seed_of_split",
  "num_train_clients",
  "num_test_clients",
  "validation_fraction",
  "is_private",
  "is_shuffled",
  "folds",
  "held_out_examples",
)
# What else a table's digest follows from, where it is given.
_OF_TABLE_IF_GIVEN = (
  *("drop_columns", "rows_without_label", "rows_without_client", "separator", "missing"),
  *("partition", "simulated_clients"),
)


def open_clients(
  request: task.Request, split: user_table.Split
) -> tuple[list[client_files.ClientFiles], summary_lib.Summary]:
  """Opens the clients of a table, after converting it on first use.

  Mean, standard deviation and categories are those of the training clients. In a private run they
  are those of the other clients: a statistic of training clients would be a release that no
  accounting covers, and would let one client move the inputs of all others. So are, then, the kinds
  of columns, which of them are dropped and the classes, if the user does not name these. Rows of
  training clients with another class are left out, and their values of another kind are missing;
  see `user_table.UserTable`. Names of columns and the number of clients are public in such a run.
  Where the request brings what the columns of an earlier table became, that is carried out, and
  nothing follows from this table.

  It returns the files of all clients with enough examples, then, where examples are held out, the
  files of these; and what was found.
  """
  own = request.flags_of(own_flags.TableFlags)
  if not own.data_dir:
    raise ValueError(
      f"Found no --data_dir; name a file {', '.join(files.FORMATS)}, or a folder of such files."
    )
  known = encoding_lib.from_text(request.columns) if request.columns else None
  needed = [] if known is None else [feature.name for feature in known.features]
  classes = () if known is None else known.label.classes
  source, columns = columns_lib.open_table(own, needed, classes)
  kind = own.label_kind
  if known is not None:
    known.check_fits(columns, kind, own.classes)
  least = request.min_examples_per_client
  facts = [_VERSION, files.digest(source.files), *dataclasses.astuple(columns), kind, least]
  facts += [own.classes] * bool(own.classes)
  facts += [(n, value) for n in _OF_TABLE_IF_GIVEN if (value := getattr(own, n)) is not None]
  seed_of_partition = request.split_seed or 0  # Of all seeds and folds, the same clients.
  facts += [seed_of_partition] * bool(own.partition)
  digest = _hash(facts)[:16]
  of_run = [_FORMAT, digest, *(getattr(request, name) for name in _OF_RUN)]
  directory = os.path.join(request.cache_dir, f"own_{_hash(of_run)[:16]}")
  converted = _open_converted(_directories(directory, request))
  if known is not None and not (converted and converted[1].encoding == known):
    of_run.append(request.columns)
    directory = os.path.join(request.cache_dir, f"own_{_hash(of_run)[:16]}")
    converted = _open_converted(_directories(directory, request))
  if converted is not None:
    return converted
  _LOG.info("Reading %s, once.", request.data_dir)
  features = list(dict.fromkeys((*columns.features, *needed)))
  by = own.partition_column
  if by is not None and by not in features:
    features.append(by)
  frame, put_right = source.read(columns.client, columns.label, features)
  if own.partition:
    clients = partition.assign(own, frame, columns.label, features, seed_of_partition)
    frame = {**frame, reading.FILE_NAME: values.Column.of(reading.FILE_NAME, clients)}
  table = user_table.UserTable(frame, columns, request, split, known)
  pools = [
    client_files.open_or_write_client_files(
      path,
      functools.partial(table.encode, bool(held_out)),
      count_dropped=lambda: table.num_dropped,
      may_lack_examples=request.keeps_apart,
    )
    for held_out, path in enumerate(_directories(directory, request))
  ]
  summary = summary_lib.summarise(table, digest, put_right, source.others)
  content = dataclasses.asdict(summary)
  atomic_files.write_json(f"{directory}.json", {"sha256": _hash(content), "summary": content})
  return pools, summary


def _directories(directory: str, request: task.Request) -> list[str]:
  """Returns the directories of the clients' files: of their examples, and of those held out."""
  return [directory, f"{directory}_held_out"][: 2 if request.held_out_examples else 1]


def _hash(content: Any) -> str:
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
    if kept["sha256"] != _hash(values):
      raise ValueError("its checksum is that of other contents")
    columns = [summary_lib.ColumnSummary(**column) for column in values.pop("columns")]
    encoding = encoding_lib.from_json(values.pop("encoding"))
    summary = summary_lib.Summary(columns=columns, encoding=encoding, **values)
  except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
    _LOG.warning("%s cannot be read (%s); it is made anew from the table.", path, error)
    return None
  return [*map(client_files.open_client_files, directories)], summary
