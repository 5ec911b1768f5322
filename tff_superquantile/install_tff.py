"""Installs TensorFlow Federated into this Python, and has each start of it prepare its import.

    pip install 'tff-superquantile[training]'
    superquantile install_tff

TFF and two packages that belong to it declare Python before 3.12 and versions of 2023, which no
resolver can have beside today's; they run all the same (`stack` says why). So pip gets them here
without what they declare, unless they are there. It is safe to repeat.

Exit status: 0 done, 1 pip or the environment failed, 2 bad arguments.
"""

from __future__ import annotations

import argparse
from importlib import metadata
import importlib.util
import subprocess
import sys
import sysconfig

from privacy.settings import command_line
from tff_superquantile import stack

# scripts/lock.sh takes the versions from here.
PACKAGES = (
  "tensorflow-federated==0.87.0",
  "tensorflow-privacy==0.9.0",
  "tensorflow-model-optimization==0.8.1",
)
_PIP = ("-m", "pip", "--no-input", "--disable-pip-version-check", "install")
_FLAGS = ("--no-deps", "--ignore-requires-python", "--only-binary=:all:")
_RED_LINES = (
  "When pip installs something later, it may say in red that these packages ask for others, of"
  " 2023: that is expected, and nothing is broken."
)


def define(parser: command_line.Parser) -> None:
  """Adds no flag."""
  del parser  # It has no flags.


def _is_there(package: str) -> bool:
  """Tells whether this Python has a package in the version that is named."""
  name, _, version = package.partition("==")
  try:
    return metadata.version(name) == version
  except metadata.PackageNotFoundError:
    return False


def _failure(packages: list[str]) -> str:
  """Installs packages; returns what failed, "" for nothing."""
  if importlib.util.find_spec("pip") is None:
    return f"Found no pip in {sys.executable}; expected it: {sys.executable} -m ensurepip gets it."
  print(f"Installing {', '.join(packages)} ...", flush=True)
  command = [sys.executable, *_PIP, *_FLAGS, *packages]
  done = subprocess.run(command, capture_output=True, text=True, check=False)
  if done.returncode == 0:
    return ""
  said = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
  reason = said[-1].removeprefix("ERROR:").strip() if said else f"exit status {done.returncode}"
  return (
    f"Found that pip cannot install them ({reason}); expected Linux x86_64 with glibc 2.31 or"
    " newer, for which they have wheels, an index that can be reached, and an environment that can"
    " be written."
  )


def main(args: argparse.Namespace) -> int:
  """Installs what is missing, and prepares the import; returns the exit status."""
  del args
  missing = [package for package in PACKAGES if not _is_there(package)]
  try:
    failure = _failure(missing) if missing else ""
    path = failure or stack.install_at_start(sysconfig.get_path("purelib"))
  except OSError as error:
    failure = (
      f"Found that {error.filename} cannot be written ({error.strerror}); expected that it can."
    )
  if failure:
    print(f"Error: {failure}", file=sys.stderr)
    return 1
  print(f"TensorFlow Federated can be imported in {sys.prefix} ({path} prepares it).")
  if missing:
    print(_RED_LINES)
  return 0


if __name__ == "__main__":
  sys.exit(command_line.run(sys.modules[__name__]))
