"""Puts faults into copies of the code, one at a time, and holds that named tests find each.

    python tests/mutants.py [--only WORDS] [--workers N]

Reads mutants.json: rows of a file, a text that is in it once, the fault in place of that text, and
the tests that must fail. Exits with 1 if a fault lived, or could not be tried.
"""

import argparse
from collections.abc import Sequence
from concurrent import futures
import contextlib
import json
import multiprocessing
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from typing import NamedTuple

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_SECONDS = 600  # A test that takes longer hangs.
_FAILED = 1  # pytest's exit code where tests were carried out, and failed.


class Mutant(NamedTuple):
  """A fault in place of a text that is in a file once, and the tests, as for pytest, to find it."""

  file: str
  before: str
  after: str
  tests: str


def read() -> list[Mutant]:
  """Returns the rows of mutants.json."""
  rows = pathlib.Path(__file__).with_suffix(".json").read_text(encoding="utf-8")
  return [Mutant(*row) for row in json.loads(rows)]


def count(mutant: Mutant, root: pathlib.Path = _ROOT) -> int:
  """Returns how often the mutant's text is in its file, 0 where the file is not there."""
  path = root / mutant.file
  return path.read_text(encoding="utf-8").count(mutant.before) if path.exists() else 0


def _copy(folder: pathlib.Path) -> None:
  """Copies the files that git knows, with what the tests read of their environment."""
  listed = subprocess.run(["git", "ls-files", "-z"], cwd=_ROOT, capture_output=True, check=True)
  for name in filter(None, listed.stdout.decode().split("\0")):
    if (_ROOT / name).is_file():
      (folder / name).parent.mkdir(parents=True, exist_ok=True)
      shutil.copy2(_ROOT / name, folder / name)
  (folder / ".venv").symlink_to(_ROOT / ".venv")


def _import_what_is_not_ours() -> None:
  """Imports what takes long, before processes fork; the faults are in none of it."""
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
  import dp_accounting  # noqa: F401
  import pandas  # noqa: F401
  import pytest  # noqa: F401
  import scipy.stats  # noqa: F401
  import tensorflow  # noqa: F401


def _run_pytest(folder: pathlib.Path, tests: str) -> None:
  """Runs tests of a copy; ends the process with pytest's exit code."""
  import pytest

  os.chdir(folder)
  ours = (str(_ROOT), str(_ROOT / "tests"))
  sys.path[:] = [str(folder), *(path for path in sys.path if path not in ours)]
  with open(folder / "pytest.log", "w") as log:
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
  code = pytest.main(["-q", "-x", "-n", "0", "-p", "no:cacheprovider", *tests.split()])
  sys.stdout.flush()
  os._exit(int(code))


def _try(mutant: Mutant, folder: pathlib.Path) -> str:
  """Returns "killed", or what happened instead; the copy is as before afterwards."""
  if count(mutant, folder) != 1:
    return f"its text is there {count(mutant, folder)} times"
  path = folder / mutant.file
  text = path.read_text(encoding="utf-8")
  path.write_text(text.replace(mutant.before, mutant.after), encoding="utf-8")
  sys.dont_write_bytecode = True  # Two versions of a file may be of one second and size.
  try:
    process = multiprocessing.get_context("fork").Process(
      target=_run_pytest, args=(folder, mutant.tests)
    )
    process.start()
    process.join(_SECONDS)
    if process.is_alive():
      process.kill()
      return "its tests hang"
    if process.exitcode == _FAILED:
      return "killed"
    return "LIVED" if process.exitcode == 0 else f"pytest ended with {process.exitcode}"
  finally:
    path.write_text(text, encoding="utf-8")


def _try_all(mutants: Sequence[Mutant], folder: pathlib.Path) -> list[str]:
  """Returns what happened to each, tried one after the other in a copy of the project."""
  sys.path.insert(0, str(folder))  # TensorFlow's import is followed by that of our stack.
  _import_what_is_not_ours()
  found = []
  for mutant in mutants:
    found.append(_try(mutant, folder))
    print(f"{found[-1]}: {mutant.file}: {mutant.after}", flush=True)
  return found


def main() -> int:
  """Tries the mutants of the command line; returns the exit code."""
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("--only", default="", help="those whose row holds these words")
  parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
  args = parser.parse_args()
  mutants = [mutant for mutant in read() if args.only in " ".join(mutant)]
  if not mutants:
    parser.error(f"Found no mutant with {args.only!r}; expected words of mutants.json.")
  found = []
  with contextlib.ExitStack() as stack:
    shares = []
    for i in range(min(args.workers, len(mutants))):
      folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
      _copy(folder)
      # Commands that tests start are the copy's, and each copy has a process of its own.
      os.environ["PYTHONPATH"] = str(folder)
      pool = futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
      stack.enter_context(pool)
      shares.append(pool.submit(_try_all, mutants[i :: args.workers], folder))
    for future in shares:
      found += future.result()
  print(f"{found.count('killed')} of {len(found)} killed")
  return int(found.count("killed") < len(found))


if __name__ == "__main__":
  sys.exit(main())
