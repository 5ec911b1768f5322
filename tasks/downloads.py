"""Downloads public files: once, whole, checked, and by one process at a time."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import os
import pathlib
import shlex
import shutil
import sys
import textwrap
from typing import Any

from tff_superquantile import atomic_files

_CHUNK_BYTES = 1 << 16
_SECONDS_WITHOUT_DATA = 60.0  # A firewall that drops packets would hang for long.
_MOST_CHARACTERS = 200  # Of what the network's error says.
_WHOLE, _NOTHING_LEFT = 200, 416  # A server sends all of a file; it has no more than we have.


@dataclasses.dataclass(frozen=True)
class Download:
  """A public file that has the same bytes for everybody."""

  what: str  # The word for its content.
  urls: Sequence[str]  # Where it is: the next is tried where one fails.
  sha256: str  # Of its bytes.
  size: int = 0  # In bytes; 0 if that is not known.
  # The files of this archive that are kept, the one that is used first; empty to keep it.
  members: Sequence[str] = ()
  room: int = 0  # The bytes that unpacking and converting it take besides.
  instead: str = ""  # The name of a file that does as well.
  flag: str = "data_dir"  # The flag by which users name a file of theirs in its place.

  @property
  def name(self) -> str:
    """The name of the file that is downloaded."""
    return self.urls[0].rpartition("/")[2]

  def find(self, cache_dir: str) -> str | None:
    """Returns the path of the file that is used, downloaded here or by TFF itself, or None."""
    for folder in (os.path.join(os.path.expanduser("~"), ".tff"), cache_dir):
      for name in filter(None, (self.instead, *(self.members or [self.name])[:1])):
        if os.path.isfile(os.path.join(folder, name)):
          return os.path.join(folder, name)
    return None

  def fetch(self, cache_dir: str) -> str:
    """Returns the path of the file that is used, after downloading it if it isn't there."""
    path = self.find(cache_dir)
    if path is None:
      atomic_files.make_folder("cache_dir", pathlib.Path(cache_dir))
      waiting = f"Another process downloads to {cache_dir}: waiting for it."
      with atomic_files.lock(os.path.join(cache_dir, "downloads.lock"), lambda: _say(waiting)):
        path = self.find(cache_dir) or self._fetch(cache_dir)
    return path

  def _fetch(self, cache_dir: str) -> str:
    part = os.path.join(cache_dir, f"{self.name}.part")
    check_room(cache_dir, max(0, self.size - _size(part)) + self.room, self.what)
    with atomic_files.temporary_folder(os.path.join(cache_dir, self.name)) as folder:
      file = self._download(folder, part)
      try:
        paths = self._unpack(file) if self.members else [file]
        for path in paths:
          target = os.path.join(cache_dir, os.path.basename(path))
          os.replace(path, target)
      except BaseException:  # Unpacking was interrupted: the archive stays.
        os.replace(file, part)
        raise
    return target

  def _unpack(self, archive: str) -> list[str]:
    """Unpacks the members of the archive beside it; returns their paths, the first one last."""
    import pooch

    folder = os.path.dirname(archive)
    is_zip = archive.endswith(".zip")
    unpack = (
      pooch.Unzip(self.members, extract_dir=folder) if is_zip else pooch.Untar(extract_dir=folder)
    )
    with atomic_files.naming(folder):
      path_of = {os.path.basename(path): path for path in unpack(archive, "download", None)}
    return [path_of[name] for name in reversed(self.members)]

  def _download(self, folder: str, part: str) -> str:
    """Downloads the file from the first place that has it to the path `part`, then to `folder`."""
    import pooch  # Few commands need it.
    import requests

    pooch.get_logger().setLevel("ERROR")

    def go_on(url: str, target: str, _: Any) -> None:
      if not self.size or _size(part) < self.size:
        _append(url, part)
      os.replace(part, target)

    for url in self.urls:
      size = f", {self.size / 1e6:.0f} MB," if self.size else ""
      _say(f"Downloading {self.what}{size} from {url} to {os.path.dirname(part)}.")
      by_hand = (
        "the same command goes on where this one stopped; or get the file by hand and repeat the"
        f" command: curl -fL -C - -o {shlex.quote(part)} {url}"
      )
      before = -1
      while before < _size(part):  # After a cut it goes on, as long as there is more each time.
        before = _size(part)
        try:
          return pooch.retrieve(url, f"sha256:{self.sha256}", self.name, folder, downloader=go_on)
        except (requests.RequestException, ValueError) as e:
          error = e
    reason = f"{url} is another file than that of SHA-256 {self.sha256}, and is dropped"
    if isinstance(error, requests.RequestException):
      reason = _reason(error)
    raise ValueError(f"{self.what} could not be downloaded ({reason}); {by_hand}") from error


def _say(text: str) -> None:
  print(text, file=sys.stderr, flush=True)


def _reason(error: Any) -> str:
  """Returns the words for what failed, without the objects that requests names before them."""
  if error.response is not None:
    return f"{error.response.status_code} {error.response.reason}"
  cause = error
  while getattr(cause, "args", ()) and not getattr(cause, "errno", None):
    cause = getattr(cause, "reason", None) or cause.args[0]
  return textwrap.shorten(str(cause).rpartition("): ")[2], _MOST_CHARACTERS, placeholder=" ...")


def _size(path: str) -> int:
  return os.path.getsize(path) if os.path.exists(path) else 0


def _append(url: str, part: str) -> None:
  """Appends to a file what it lacks of that at a URL, with a bar on a terminal."""
  import pooch
  import requests

  failure: requests.RequestException | None = None
  with atomic_files.naming(part), open(part, "ab") as file:

    def look(response: requests.Response, *_: Any, **__: Any) -> None:
      if response.status_code == _WHOLE:  # It knows no ranges.
        file.truncate(0)

    downloader = pooch.HTTPDownloader(
      progressbar=sys.stderr.isatty(),
      chunk_size=_CHUNK_BYTES,
      timeout=_SECONDS_WITHOUT_DATA,
      headers={"Range": f"bytes={file.tell()}-", "Accept-Encoding": "identity"},
      hooks={"response": look},
    )
    try:
      downloader(url, file, None)
    except requests.RequestException as error:  # An OSError, but not of the file's.
      failure = error
  if failure and getattr(failure.response, "status_code", None) != _NOTHING_LEFT:
    if not _size(part):
      os.remove(part)
    raise failure


def check_room(folder: str, size: int, what: str) -> None:
  """Raises a `ValueError` unless so many bytes fit into a folder."""
  free = shutil.disk_usage(folder).free
  if free < size:
    raise ValueError(
      f"Found {free / 1e9:.1f} GB free in {folder}; expected {size / 1e9:.1f} GB for {what} while"
      " it is downloaded and converted: make room, or choose another --cache_dir."
    )
