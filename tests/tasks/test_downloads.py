"""Downloads, from a server on this machine: cut, damaged, refused, slow, shared and killed."""

import dataclasses
import hashlib
import http.server
import io
import lzma
import multiprocessing
import os
import pathlib
import re
import shutil
import signal
import tarfile
import threading
import time
import zipfile

from helpers import emnist_fixtures
from helpers import pools
from helpers import sent140_fixtures
from helpers import shakespeare_fixtures
import numpy as np
import pytest

from tasks import downloads
from tasks.emnist import readers as emnist_readers
from tasks.sent140 import glove
from tasks.sent140 import readers as sent140_readers
from tasks.shakespeare import readers as shakespeare_readers

_CONTENT = np.random.default_rng(0).bytes(1_000_000)
_CUT = 600_000


class _Server(http.server.ThreadingHTTPServer):
  """Serves `files`; `gets` has the path and the first byte of each request."""

  daemon_threads = True

  def __init__(self):
    super().__init__(("127.0.0.1", 0), _Handler)
    self.files: dict[str, bytes] = {}
    self.gets: list[tuple[str, int]] = []
    self.knows_ranges = True
    self.status = 0
    self.cuts = 0  # So many answers end after `_CUT` bytes of the file.
    self.delay = 0.0  # Seconds before each tenth.
    self.on_tenth = lambda i: None

  def url(self, name):
    return f"http://127.0.0.1:{self.server_address[1]}/{name}"


class _Handler(http.server.BaseHTTPRequestHandler):
  def log_message(self, *_):
    pass

  def do_GET(self):  # noqa: N802
    server, name = self.server, self.path[1:]
    asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
    first = int(asked[1]) if asked and server.knows_ranges else 0
    server.gets.append((name, first))
    whole = server.files.get(name, b"")
    status = server.status or (404 if name not in server.files else 206 if asked else 200)
    status = 200 if status == 206 and not server.knows_ranges else status
    status = 416 if status == 206 and first >= len(whole) else status
    self.send_response(status)
    content = whole[first:] if status < 300 else b"<html>No.</html>"
    self.send_header("Content-Length", str(len(content)))
    self.end_headers()
    end = len(content)
    if server.cuts:
      server.cuts -= 1
      end = max(0, _CUT - first)
    step = max(1, len(whole) // 10)
    for i, start in enumerate(range(0, end, step)):
      time.sleep(server.delay)
      server.on_tenth(i)
      try:
        self.wfile.write(content[start : min(start + step, end)])
      except OSError:
        return
    self.close_connection = True


@pytest.fixture
def server(monkeypatch, tmp_path):
  """A server, while there is no copy of TFF's own in the user's home."""
  monkeypatch.setenv("NO_PROXY", "127.0.0.1")
  monkeypatch.setenv("HOME", str(tmp_path / "home"))
  with _Server() as server:
    server.files["a.bin"] = _CONTENT
    thread = threading.Thread(target=server.serve_forever, kwargs=dict(poll_interval=0.01))
    thread.start()
    yield server
    server.shutdown()
    thread.join()


def _download(server, name="a.bin", **changes):
  content = server.files[name]
  sha256 = hashlib.sha256(content).hexdigest()
  fields = dict(what="it", urls=(server.url(name),), sha256=sha256, size=len(content))
  return downloads.Download(**{**fields, **changes})


def _left(folder):
  """What is in a folder besides the lock."""
  return sorted(set(os.listdir(folder)) - {"downloads.lock"})


def _assert_fails(download, cache, *parts):
  """The sentence names the reason and the command by hand."""
  with pytest.raises(ValueError) as error:
    download.fetch(str(cache))
  message = str(error.value)
  assert "\n" not in message and not re.search(r"\.\s+[A-Z]", message), message
  by_hand = f"curl -fL -C - -o {cache / download.name}.part {download.urls[-1]}"
  assert message.endswith(by_hand), message
  for part in parts:
    assert part in message, message


def test_once_and_whole(tmp_path, server, capfd):
  download = _download(server)
  for _ in range(2):
    path = download.fetch(str(tmp_path / "new" / "cache"))
    assert pathlib.Path(path).read_bytes() == _CONTENT
  assert server.gets == [("a.bin", 0)]
  assert _left(tmp_path / "new" / "cache") == ["a.bin"]
  assert capfd.readouterr().err.count("Downloading it, 1 MB, from http://127.0.0.1") == 1


def test_a_cut_download_goes_on_where_it_was(tmp_path, server):
  server.cuts = 1
  download = _download(server)
  assert pathlib.Path(download.fetch(str(tmp_path / "once"))).read_bytes() == _CONTENT
  (_, begin), (_, goes_on) = server.gets
  assert begin == 0 and _CUT - 100_000 < goes_on <= _CUT
  # After a second answer that brings nothing more it gives up, and keeps what it has.
  server.cuts = 2
  _assert_fails(download, tmp_path, "could not be downloaded (Connection broken: ")
  part = (tmp_path / "a.bin.part").read_bytes()
  assert len(part) == goes_on and _CONTENT.startswith(part)
  assert pathlib.Path(download.fetch(str(tmp_path))).read_bytes() == _CONTENT
  assert [first for _, first in server.gets[2:]] == [0, goes_on, goes_on]
  assert _left(tmp_path) == ["a.bin", "once"]


def test_a_cut_of_a_server_without_ranges(tmp_path, server):
  server.knows_ranges, server.cuts = False, 1
  assert pathlib.Path(_download(server).fetch(str(tmp_path))).read_bytes() == _CONTENT
  assert len(server.gets) == 2
  server.cuts = 99  # It never gets further, and that is noticed.
  _assert_fails(_download(server), tmp_path / "other", "could not be downloaded")


@pytest.mark.parametrize("size", [len(_CONTENT), 0])
def test_what_was_got_by_hand_is_checked_and_taken(tmp_path, server, size):
  download = _download(server, size=size)
  (tmp_path / "a.bin.part").write_bytes(_CONTENT)
  assert pathlib.Path(download.fetch(str(tmp_path))).read_bytes() == _CONTENT
  assert len(server.gets) == (0 if size else 1)  # Without a known size it asks for the rest.
  (tmp_path / "a.bin").unlink()
  (tmp_path / "a.bin.part").write_bytes(_CONTENT[::-1])
  _assert_fails(download, tmp_path, "another file", download.sha256)
  assert _left(tmp_path) == []


def test_wrong_bytes_are_not_kept(tmp_path, server):
  download = _download(server)
  server.files["a.bin"] = b"<html>Log in</html>" * 1000
  _assert_fails(download, tmp_path, "another file", download.sha256, "curl -fL")
  assert _left(tmp_path) == []
  # A mirror is tried, too.
  server.files["mirror/a.bin"] = _CONTENT
  both = dataclasses.replace(download, urls=(server.url("a.bin"), server.url("mirror/a.bin")))
  assert pathlib.Path(both.fetch(str(tmp_path))).read_bytes() == _CONTENT


def test_a_refusal_and_a_mirror(tmp_path, server):
  server.status = 403
  _assert_fails(_download(server), tmp_path, "403 Forbidden", server.url("a.bin"))
  assert _left(tmp_path) == []
  server.status = 0
  gone = "http://127.0.0.1:9/a.bin"  # Nobody is there.
  _assert_fails(_download(server, urls=(gone,)), tmp_path, "refused")
  both = (gone, server.url("none/a.bin"), server.url("a.bin"))
  assert pathlib.Path(_download(server, urls=both).fetch(str(tmp_path))).read_bytes() == _CONTENT


def test_a_slow_server_and_one_that_falls_silent(tmp_path, server, monkeypatch):
  monkeypatch.setattr(downloads, "_SECONDS_WITHOUT_DATA", 0.5)
  server.delay = 0.1
  _download(server).fetch(str(tmp_path / "slow"))
  server.delay = 2.0
  _assert_fails(_download(server), tmp_path / "silent", "timed out")


def test_no_room(tmp_path, server, monkeypatch):
  free = shutil._ntuple_diskusage(10**12, 10**12, 10**9)
  monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
  download = _download(server, room=10**9)
  with emnist_fixtures.refused("1.0 GB free", str(tmp_path), "--cache_dir"):
    download.fetch(str(tmp_path))
  assert server.gets == [] and _left(tmp_path) == []
  # With a part of it there is enough room.
  (tmp_path / "a.bin.part").write_bytes(_CONTENT)
  download.fetch(str(tmp_path))


def test_a_disk_that_fills_up(tmp_path, server):
  (tmp_path / "a.bin.part").symlink_to("/dev/full")
  with pytest.raises(OSError, match="No space left") as error:
    _download(server).fetch(str(tmp_path))
  assert error.value.filename == str(tmp_path / "a.bin.part")


def test_two_at_once_are_one_download(tmp_path, server, capfd):
  server.delay = 0.05
  download = _download(server)
  fork = multiprocessing.get_context("fork")
  processes = [fork.Process(target=download.fetch, args=(str(tmp_path),)) for _ in range(3)]
  for process in processes:
    process.start()
  for process in processes:
    process.join()
    assert process.exitcode == 0
  assert server.gets == [("a.bin", 0)] and _left(tmp_path) == ["a.bin"]
  assert capfd.readouterr().err.count("Another process downloads") == 2


@pytest.mark.parametrize("is_killed", [True, False])
def test_killed_or_interrupted_and_resumed(tmp_path, server, is_killed):
  download = _download(server)
  number = signal.SIGKILL if is_killed else signal.SIGINT
  server.on_tenth = lambda i: os.kill(process.pid, number) if i == 5 else None
  server.delay = 0.05
  process = multiprocessing.get_context("fork").Process(
    target=download.fetch, args=(str(tmp_path),)
  )
  process.start()
  process.join(60)
  assert process.exitcode
  server.delay, server.on_tenth = 0.0, lambda i: None
  assert "a.bin.part" in _left(tmp_path)
  assert 0 < (tmp_path / "a.bin.part").stat().st_size < len(_CONTENT)
  assert pathlib.Path(download.fetch(str(tmp_path))).read_bytes() == _CONTENT
  assert [first > 0 for _, first in server.gets] == [False, True]


def _zip(**members):
  buffer = io.BytesIO()
  with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
    for name, content in members.items():
      file.writestr(name, content)
  return buffer.getvalue()


def test_an_archive_leaves_its_members_and_stays_where_unpacking_ends(
  tmp_path, server, monkeypatch
):
  server.files["a.zip"] = _zip(wanted=b"12", unwanted=b"3" * 99)
  download = _download(server, "a.zip", members=("wanted",))
  unpack = downloads.Download._unpack

  def interrupt(*_):
    raise KeyboardInterrupt

  monkeypatch.setattr(downloads.Download, "_unpack", interrupt)
  with pytest.raises(KeyboardInterrupt):
    download.fetch(str(tmp_path))
  assert _left(tmp_path) == ["a.zip.part"]
  monkeypatch.setattr(downloads.Download, "_unpack", unpack)
  assert pathlib.Path(download.fetch(str(tmp_path))).read_bytes() == b"12"
  assert _left(tmp_path) == ["wanted"] and len(server.gets) == 1


def _serve(monkeypatch, server, readers, *contents):
  """Lets a data set's downloads be small files of this server's."""
  made = []
  for download, content in zip(readers.DATA_SET.downloads, contents):
    server.files[download.name] = content
    small = _download(server, download.name)
    fields = {name: getattr(small, name) for name in ("urls", "sha256", "size")}
    made.append(dataclasses.replace(download, **fields))
  monkeypatch.setattr(
    readers, "DATA_SET", dataclasses.replace(readers.DATA_SET, downloads=tuple(made))
  )
  return made


def test_emnist(tmp_path, server, monkeypatch):
  path = emnist_fixtures.write_sqlite(
    tmp_path / "emnist_all.sqlite", emnist_fixtures.make_writers([100, 100])
  )
  content = lzma.compress(path.read_bytes(), format=lzma.FORMAT_ALONE)
  (small,) = _serve(monkeypatch, server, emnist_readers, content)
  monkeypatch.setattr(emnist_readers, "DOWNLOAD", small)
  cache = tmp_path / "cache"
  for _ in range(2):
    assert len(emnist_fixtures.load("", cache)["train"].client_ids) == 1
  assert len(server.gets) == 1
  database, converted = _left(cache)
  assert database == "emnist_all.sqlite.lzma" and converted.startswith("emnist_all_")
  # The database takes room once more when it is converted.
  shutil.rmtree(cache / converted)
  free = shutil._ntuple_diskusage(10**12, 10**12, 10**9)
  monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
  with emnist_fixtures.refused("expected 5.3 GB for EMNIST", "--cache_dir"):
    emnist_fixtures.load("", cache)


@pytest.mark.parametrize("folder", ["home/.tff", "cache"])
def test_emnist_that_was_downloaded_before(tmp_path, server, folder):
  path = emnist_fixtures.write_sqlite(
    tmp_path / folder / "emnist_all.sqlite", emnist_fixtures.make_writers([100, 100])
  )
  assert len(emnist_fixtures.load("", tmp_path / "cache")["train"].client_ids) == 1
  assert path.exists() and server.gets == []


def test_sent140_and_its_word_vectors(tmp_path, server, monkeypatch):
  tweets = sent140_fixtures.write_csv(
    tmp_path / "tweets.csv", sent140_fixtures.make_users([60] * 8)
  )
  vectors = sent140_fixtures.write_glove(tmp_path / "vectors.txt")
  contents = [
    _zip(**{sent140_readers.CSV_NAME: tweets.read_bytes(), "testdata.csv": b"no"}),
    _zip(**{"glove.6B.300d.txt": b"no", glove.FILE_NAME: vectors.read_bytes()}),
  ]
  _serve(monkeypatch, server, sent140_readers, *contents)
  for name in ("sent140_linear", "sent140_lstm"):
    splits = pools.load(name, "", tmp_path / "cache")
    assert sum(len(files.client_ids) for files in splits.values()) == 8
  assert len(server.gets) == 2
  files = [name for name in _left(tmp_path / "cache") if "." in name]
  assert files == [glove.FILE_NAME, sent140_readers.CSV_NAME]
  # Vectors of the user's own are not downloaded; those that are there serve other tweets, too.
  pools.load("sent140_linear", "", tmp_path / "other", glove=str(vectors))
  assert len(server.gets) == 3
  pools.load("sent140_linear", tweets, tmp_path / "cache")
  assert len(server.gets) == 3


def _plays(folder):
  """TFF's archive, of four roles with few examples."""
  texts = shakespeare_fixtures.make_texts([120] * 4)
  buffer = io.BytesIO()
  with tarfile.open(fileobj=buffer, mode="w:bz2") as file:
    for name in (shakespeare_readers.TRAIN_NAME, shakespeare_readers.TEST_NAME):
      snippets = {role: [text] for role, text in texts.items()}
      file.add(shakespeare_fixtures.write_hdf5(folder / name, snippets), f"./{name}")
  return buffer.getvalue()


def test_the_page_lists_every_file():
  page = pathlib.Path(__file__).parents[2] / "docs" / "how_to" / "get_data.md"
  text = page.read_text(encoding="utf-8")
  for readers in (emnist_readers, sent140_readers, shakespeare_readers):
    for download in readers.DATA_SET.downloads:
      assert re.fullmatch("[0-9a-f]{64}", download.sha256)
      for part in (*download.urls, download.sha256, f"{download.size:,}" if download.size else ""):
        assert part.removeprefix("https://") in text


def test_an_experiment_downloads_once_before_its_runs_or_says_why_not(
  tmp_path, server, lab, monkeypatch
):
  server.files["shakespeare.tar.bz2"] = _plays(tmp_path)
  (download,) = shakespeare_readers.DATA_SET.downloads
  sha256 = hashlib.sha256(server.files["shakespeare.tar.bz2"]).hexdigest()
  here = dataclasses.replace(download, urls=(server.url("shakespeare.tar.bz2"),), sha256=sha256)
  # The task has the same data set, so that its field is replaced.
  monkeypatch.setitem(vars(shakespeare_readers.DATA_SET), "downloads", (here,))
  shakespeare_fixtures.shorten(monkeypatch)
  flags = [
    *("--experiment=shakespeare", "--quick", "--thetas=0.5", "--num_rounds=1", "--num_workers=2"),
    *("--clients_per_round=1", "--min_examples_per_client=1"),
    *(f"--cache_dir={tmp_path / 'cache'}", f"--output_dir={tmp_path / 'results'}"),
  ]

  def run(*more):
    return lab.bare("sweep", *flags, *more)

  printed = run("--print_commands")
  assert printed.code == 0 and printed.out.count("--task=shakespeare") == 2
  assert not (tmp_path / "cache").exists() and server.gets == []
  server.status = 403
  refused = run()
  assert refused.code == 2 and "Traceback" not in refused.err, refused.err
  [line] = [line for line in refused.err.splitlines() if line.startswith("Error:")]
  assert "Shakespeare could not be downloaded (403 Forbidden)" in line
  assert not (tmp_path / "results").exists() and len(server.gets) == 1
  server.status = 0
  done = run()
  assert done.code == 0, done.err
  assert len(server.gets) == 2 and done.err.count("Downloading Shakespeare") == 1
  assert len(list(tmp_path.glob("results/shakespeare/*/seed_0/metrics.json"))) == 2
