"""Folders to run commands in, and one ordinary run for all to compare with."""

import dataclasses
import pathlib
import signal

import commands
import pytest

_BASE = ("--num_rounds=30", "--rounds_per_evaluation=10")


@pytest.fixture(autouse=True, scope="session")
def ctrl_c_works():
  """Also where the tests run in the background: children inherit what is ignored."""
  old = signal.signal(signal.SIGINT, signal.default_int_handler)
  yield
  signal.signal(signal.SIGINT, old)


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory):
  """Where the synthetic clients are kept, made once for all tests."""
  return tmp_path_factory.mktemp("cache")


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
def base(tmp_path_factory, cache_dir):
  lab = commands.Lab(tmp_path_factory.mktemp("base"), cache_dir)
  result = lab.start("train", *_BASE, "--output_dir=base").wait()
  assert result.code == 0, result.err
  yield Base(_BASE, result, lab, lab.folder / "base" / commands.METHOD / "seed_0")
  lab.close()
