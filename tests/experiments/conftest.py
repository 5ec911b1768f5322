"""One ordinary run for all to compare with."""

import dataclasses
import fcntl
import pathlib

from helpers import commands
import pytest

_BASE = ("--num_rounds=30", "--rounds_per_evaluation=10")


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
