"""One ordinary run for all to compare with, and a user's folder with parts of their own."""

import dataclasses
import fcntl
import pathlib
import re
import sys

from helpers import commands
import pytest

from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run.hooks import hook

_PAGE = commands.ROOT / "docs/how_to/add_a_part.md"
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


@pytest.fixture(scope="module")
def user(lab):
  """A folder with the files of the page."""
  for name, code in re.findall(
    r"```python\n# (\w+\.py)\n(.*?)```", _PAGE.read_text(encoding="utf-8"), re.DOTALL
  ):
    (lab.folder / name).write_text(code, encoding="utf-8")
  return lab


@pytest.fixture
def write(tmp_path, monkeypatch):
  """Writes a module that Python finds while the test lasts, and whose parts no table keeps."""
  monkeypatch.syspath_prepend(tmp_path)
  kept = [(t, dict(t)) for t in (*run_config.TABLES.values(), hook.OF_USERS)]

  def write(code, name="mine"):
    (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
    sys.modules.pop(name, None)
    for table, _ in kept:
      table.pop(f"{name}:Mine", None)
    return f"{name}:Mine"

  yield write
  for table, rows in kept:
    table.clear()
    table.update(rows)
  sys.modules.pop("mine", None)
