"""Folders to run commands in, and one ordinary run for all to compare with."""

import dataclasses
import fcntl
import os
import pathlib
import signal

from helpers import commands
import pytest

_BASE = ("--num_rounds=30", "--rounds_per_evaluation=10")


@pytest.fixture(autouse=True, scope="session")
def ctrl_c_works():
  """Also where the tests run in the background: children inherit what is ignored."""
  old = signal.signal(signal.SIGINT, signal.default_int_handler)
  yield
  signal.signal(signal.SIGINT, old)


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
  """A folder of all processes of these tests."""
  root = tmp_path_factory.getbasetemp()
  folder = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "shared"
  (folder / "cache").mkdir(parents=True, exist_ok=True)
  return folder


@pytest.fixture(scope="session")
def cache_dir(shared):
  """Where the synthetic clients are kept, made once for all tests."""
  return shared / "cache"


@pytest.fixture(scope="module")
def lab(tmp_path_factory, cache_dir):
  lab = commands.Lab(tmp_path_factory.mktemp("lab"), cache_dir)
  yield lab
  lab.close()


@dataclasses.dataclass(frozen=True)
class Base:
  """An ordinary run, which nothing disturbed, to compare with."""

  flags: tuple[str, ...]
  result: commands.Result
  lab: commands.Lab
  path: pathlib.Path


@pytest.fixture(scope="session")
def base(shared, cache_dir):
  """Who asks for it first carries it out, as a user does; all others read what it has left."""
  folder = shared / "base"
  folder.mkdir(exist_ok=True)
  lab = commands.Lab(folder, cache_dir)
  with open(shared / "base.lock", "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    if not (folder / "base").exists():
      result = lab.start("train", *_BASE, "--output_dir=base").wait()
      assert result.code == 0, result.err
  said = [next(folder.glob(f"*.{kind}")).read_text() for kind in ("out", "err")]
  yield Base(_BASE, commands.Result(0, *said), lab, folder / "base" / commands.METHOD / "seed_0")
  lab.close()
