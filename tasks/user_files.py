"""Reads and identifies the files of users; tasks that read such files share this.

LEAF (Caldas et al. 2018) leaves all its data sets in one form: a directory with train/*.json and
test/*.json, each file {"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y":
[...]}}}. Tasks differ in what an x and a y are, and in the other files that hold the same data.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
import hashlib
import json
import logging
import os
import re
from typing import Any

import numpy as np
from pyarrow import parquet

from tasks import data_set

_LOG = logging.getLogger("tff_superquantile.tasks")

_LEAF_KEYS = {"users": list, "num_samples": list, "user_data": dict}


def fingerprint(facts: Iterable[Any], paths: Iterable[str]) -> str:
  """Returns 16 hexadecimal digits of files' paths, sizes and ages, and of further facts in JSON."""
  facts = list(facts)
  for path in sorted(os.path.abspath(path) for path in paths):
    stat = os.stat(path)
    facts.append((path, stat.st_size, stat.st_mtime_ns))
  return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def open_parquet(path: str, columns: Iterable[str], remedy: str) -> parquet.ParquetFile:
  """Opens a Parquet file; raises a `ValueError` with a remedy if it is none, or lacks columns."""
  try:
    file = parquet.ParquetFile(path)
  except (OSError, ValueError) as e:
    raise ValueError(f"{path} is not readable as Parquet; {remedy}.") from e
  missing = set(columns) - set(file.schema_arrow.names)
  if missing:
    file.close()
    raise ValueError(f"{path} has no columns {sorted(missing)}; {remedy}.")
  return file


def _check_user(path: str, user: str, num_samples: Any, data: Any, leaf: data_set.DataSet) -> None:
  """Raises a `ValueError` unless a user has as many x as y as there should be, and some."""
  where = f"{path}: {leaf.client} {user!r}"
  if not (isinstance(data, dict) and "x" in data and isinstance(data.get("y"), list)):
    raise ValueError(f"{where} lacks x or y in user_data; expected a list of each.")
  if not data["y"]:
    raise ValueError(f"{where} has no examples; drop the {leaf.client} from the file.")
  num_x = len(data["x"]) if isinstance(data["x"], (list, np.ndarray)) else "no list of"
  if not num_x == len(data["y"]) == num_samples:
    raise ValueError(
      f"{where} has {num_x} {leaf.examples} and {len(data['y'])} labels but num_samples says"
      f" {num_samples}; expected the same number three times."
    )


def iterate_leaf(
  paths: Iterable[str], leaf: data_set.DataSet, object_hook: Callable[[dict], Any] | None = None
) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
  """Yields (path, user, {"x": ..., "y": [...]}) of LEAF files, with as many x as y, at least one.

  LEAF's split by sample leaves two parts of a user, in files of the same name but for "train" and
  "test". Where `paths` has both, the parts are put together. `leaf` names the data set in errors;
  `object_hook`, as in `json.load`, is called with each JSON object as soon as it is read.
  """
  parts: dict[str, list[str]] = {}
  for path in paths:
    name = re.sub("train|test", "", os.path.basename(path))
    is_second = name in parts and os.path.dirname(parts[name][0]) != os.path.dirname(path)
    parts.setdefault(name if is_second or name not in parts else path, []).append(path)
  seen: dict[str, str] = {}
  for first, *others in parts.values():
    rest: dict[str, Mapping[str, Any]] = {}
    for other in others:
      rest.update(_iterate_file(other, leaf, {}, object_hook))
    for user, data in _iterate_file(first, leaf, seen, object_hook):
      yield first, user, _join(data, rest.pop(user)) if user in rest else data
    for user, data in rest.items():
      _check_once(others[0], user, seen, leaf)
      yield others[0], user, data


def _join(first: Mapping[str, Any], second: Mapping[str, Any]) -> Mapping[str, Any]:
  """Puts two parts of a user together: lists, or arrays that an `object_hook` has made of them."""
  x = (first["x"], second["x"])
  arrays = [part for part in x if isinstance(part, np.ndarray)]
  are_alike = len(arrays) == 2 and len({part.shape[1:] for part in arrays}) == 1
  return {"x": np.concatenate(x) if are_alike else [*x[0], *x[1]], "y": first["y"] + second["y"]}


def _check_once(path: str, user: str, seen: dict[str, str], leaf: data_set.DataSet) -> None:
  """Notes the file of a user; raises a `ValueError` if there is one already."""
  if user in seen:
    raise ValueError(
      f"{path}: {leaf.client} {user!r} is there twice, before in {seen[user]}; expected each"
      f" {leaf.client} once in a split."
    )
  seen[user] = path


def _iterate_file(
  path: str,
  leaf: data_set.DataSet,
  seen: dict[str, str],
  object_hook: Callable[[dict], Any] | None,
) -> Iterator[tuple[str, Mapping[str, Any]]]:
  """Yields the users of one file, none of whom may be in `seen`."""
  _LOG.info("Reading %s.", path)
  try:
    with open(path, encoding="utf-8") as f:
      data = json.load(f, object_hook=object_hook)
  except (ValueError, RecursionError) as e:  # Not JSON or not UTF-8; or nested too deeply.
    raise ValueError(
      f"{path} is not complete JSON ({e}); copy or make it again with LEAF's {leaf.command}."
    ) from e
  contents = data if isinstance(data, dict) else {}
  missing = [key for key, kind in _LEAF_KEYS.items() if not isinstance(contents.get(key), kind)]
  if missing:
    raise ValueError(
      f"{path} lacks the keys {', '.join(missing)}; expected LEAF's {', '.join(_LEAF_KEYS)}."
    )
  users, counts, user_data = (data[key] for key in _LEAF_KEYS)
  users = [str(user) for user in users]
  if len(users) != len(counts) or set(users) != set(user_data):
    raise ValueError(
      f"{path} has {len(users)} users, {len(counts)} num_samples and {len(user_data)}"
      f" {leaf.client}s in user_data; expected the same {leaf.client}s in all three."
    )
  del data, contents  # Else two files would be held while the next one is read.
  for user, num_samples in zip(users, counts):
    _check_once(path, user, seen, leaf)
    of_user = user_data.pop(user)
    _check_user(path, user, num_samples, of_user, leaf)
    yield user, of_user
