"""Finds the data sets of users."""

from collections.abc import Callable, Mapping, Sequence
import contextlib
import dataclasses
import glob
import itertools
import json
import os
import re
from typing import Any

from tasks import downloads as downloads_lib
from tasks import request as request_lib
from tff_superquantile.simulation import client_files

_STANDIN = "To try things out there are generated data: --data=standin"

_HEAD_BYTES = 1 << 24  # The head of a JSON file has its users' names.


@dataclasses.dataclass(frozen=True)
class DataSet:
  """A data set, in LEAF's files or in one file that holds all of it."""

  name: str  # Its common name.
  file_names: Sequence[str]  # Names of the files that hold all of it, the preferred one first.
  command: str  # The command that makes LEAF's files.
  client: str  # The word for a client, such as "writer".
  examples: str  # The word for examples, such as "images".
  # Clients with fewer are dropped unless --min_examples_per_client says otherwise.
  min_examples: int
  # The public files that hold all of it, the examples first.
  downloads: Sequence[downloads_lib.Download] = ()

  @property
  def remedy(self) -> str:
    """The steps to get it, a line each."""
    return (
      f"The first run downloads it, and so does ./run_experiments.sh download {self.name.lower()}\n"
      f"Or name {', '.join(self.file_names)} or LEAF's directory with --data_dir.\n{_STANDIN}"
    )

  def complete(self, request: request_lib.Request) -> request_lib.Request:
    """Returns a request with the paths of the public files, downloaded, if it names no data."""
    if request.data_dir:
      return request
    missing = [file for file in self.downloads if not getattr(request.own, file.flag)]
    paths: dict[str, Any] = {file.flag: file.fetch(request.cache_dir) for file in missing}
    own: Any = request.own
    return dataclasses.replace(request, own=dataclasses.replace(own, **paths))

  def find(self, data_dir: str) -> str | Mapping[str, list[str]]:
    """Finds the file that holds all, or LEAF's {"train": paths, "test": paths}, but not both."""
    layout = (
      f"{', '.join(self.file_names)}, or train/*.json and test/*.json as LEAF's"
      f" {self.command} leaves them"
    )
    if os.path.isfile(data_dir):
      if data_dir.endswith(".json"):
        raise ValueError(
          f"{data_dir} is a single JSON file; name the directory that holds {layout}."
        )
      return data_dir
    if os.path.exists(data_dir) and not os.path.isdir(data_dir):
      raise ValueError(
        f"Found that {data_dir} is no regular file but a pipe or a device; expected {layout}: write"
        " its content to a file."
      )
    if not os.path.isdir(data_dir):
      raise ValueError(
        f"There is no directory or file {data_dir}; let --data_dir name one that holds {layout}."
      )
    of_split = {
      split: sorted(glob.glob(os.path.join(glob.escape(data_dir), split, "*.json")))
      for split in ("train", "test")
    }
    paths = [os.path.join(data_dir, name) for name in self.file_names]
    paths = [path for path in paths if os.path.isfile(path)]
    if paths and any(of_split.values()):
      raise ValueError(
        f"{data_dir} holds both {os.path.basename(paths[0])} and LEAF's JSON; name that file itself"
        " to use it, or move it away."
      )
    if paths:
      return paths[0]
    for path in itertools.chain.from_iterable(of_split.values()):
      if not os.path.isfile(path):
        raise ValueError(
          f"{path} is no file but a folder, a pipe or a link that leads nowhere; expected LEAF's"
          " JSON: move it away."
        )
    empty = [f"{split}/*.json" for split, files in of_split.items() if not files]
    if empty:
      raise ValueError(f"{data_dir} has no {' and no '.join(empty)}; expected {layout}.")
    return of_split

  def open(
    self, data_dir: str, open_files: Callable[[str, list[str]], client_files.ClientFiles]
  ) -> list[client_files.ClientFiles]:
    """Opens the clients that `find` finds: [all], or [train, test] of LEAF's split by user."""
    source = self.find(data_dir)
    if isinstance(source, str):
      return [open_files("all", [source])]
    if _is_by_sample(source):
      return [open_files("all", [*source["train"], *source["test"]])]
    train, test = (open_files(split, paths) for split, paths in source.items())
    both = set(train.client_ids) & set(test.client_ids)
    if both:
      raise ValueError(
        f"{os.path.dirname(source['test'][0])} has {len(both)} {self.client}s that are in"
        f" {os.path.dirname(source['train'][0])} too, first {min(both)!r}; expected others, or in"
        f" each file those of its counterpart (-t sample): run LEAF's {self.command} again."
      )
    return [train, test]


def _users(path: str) -> set[str]:
  """Returns the users of one of LEAF's files; none if its head does not tell."""
  with open(path, encoding="utf-8", errors="replace") as file:
    text = file.read(_HEAD_BYTES)
  if begin := re.search(r'"users"\s*:\s*(?=\[)', text):
    with contextlib.suppress(ValueError):  # Longer than the head.
      return set(map(str, json.JSONDecoder().raw_decode(text, begin.end())[0]))
  return set()


def _is_by_sample(paths: Mapping[str, list[str]]) -> bool:
  """Tells whether LEAF's first training and test files have the same clients."""
  train, test = (_users(of_split[0]) for of_split in paths.values())
  return bool(train) and train == test
