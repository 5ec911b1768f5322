"""Checks whether the installed packages are those of requirements.lock.

Without a checkout it checks whether they are those that setup.cfg allows. Needs nothing but the
standard library: `packaging` may be among those that are missing.
"""

from __future__ import annotations

import dataclasses
from importlib import metadata
from importlib import util as importlib_util
import pathlib
import platform
import re
import shlex
import sys

from tff_superquantile.doctor import report

_PROJECT = "tff_superquantile"
_EXTRA = "training"
_ROOT = pathlib.Path(__file__).resolve().parents[2]
_LOCK = _ROOT / "requirements.lock"

# What they declare is of 2023, so that they are in no requirements: see setup.cfg.
FEDERATED = {
  "tensorflow-federated": "==0.87.0",
  "tensorflow-model-optimization": "==0.8.1",
  "tensorflow-privacy": "==0.9.0",
}
# Packages that are the same but for what they have for GPUs.
_SAME = {"tensorflow-cpu": "tensorflow", "tensorflow": "tensorflow-cpu"}

# Installs packages without what they declare.
_ALONE = ("--no-deps", "--ignore-requires-python")

# More than these are said in a few words, and installed from the lock.
_MOST_NAMED = 8


@dataclasses.dataclass(frozen=True)
class Wanted:
  """The packages that there should be.

  Attributes:
    source: Where they are from, for people.
    versions: The versions of each package that will do, such as ">=2.21,<2.22", by name.
    path: The lock that they are from; "" if they are from metadata.
  """

  source: str
  versions: dict[str, str]
  path: str = ""


def _fits(version: str, bounds: str) -> bool:
  """Returns whether a version is within bounds, such as `>= '3.11' and < '3.12'` or `==3.11.*`."""

  def numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]

  for relation, bound in re.findall(r"(==|>=|<)\s*'?([\w.*]+)", bounds):
    if relation == "==":
      fits = version == bound or bound.endswith("*") and version.startswith(bound[:-1])
    else:
      fits = (numbers(version) < numbers(bound)) == (relation == "<")
    if not fits:
      return False
  return True


def _split(requirements: list[str]) -> dict[str, str]:
  """Returns names and bounds of those requirements that are for this Python."""
  versions = {}
  for requirement in requirements:
    parts = re.match(r"([a-z][\w-]*)([^;\\]*);?(.*)", requirement)
    if parts and _fits(platform.python_version(), parts[3]):
      versions[parts[1]] = parts[2].strip()
  return versions


def read_wanted() -> Wanted:
  """Reads the checkout's lock, or else the installed metadata.

  The checkout comes first: the metadata of an installation in place may be old.

  Raises:
    LookupError: If there is neither.
  """
  if _LOCK.is_file():
    return Wanted(_LOCK.name, _split(_LOCK.read_text().splitlines()), str(_LOCK))
  try:
    requirements = metadata.requires(_PROJECT) or []
  except metadata.PackageNotFoundError:
    raise LookupError(f"no {_LOCK} and no metadata of {_PROJECT}") from None
  suffix = re.compile(rf"; extra == .{_EXTRA}.$")
  ours = [suffix.sub("", r) for r in requirements if suffix.search(r) or "extra ==" not in r]
  return Wanted(f"the metadata of {_PROJECT}", {**_split(ours), **FEDERATED})


def _installed_version(name: str) -> str | None:
  for alias in (name, _SAME.get(name, name)):
    try:
      version = metadata.version(alias)  # None if its metadata is damaged.
    except (metadata.PackageNotFoundError, KeyError):
      continue
    if version:
      return version.partition("+")[0]  # The builder's name follows the +.
  return None


def _compare(wanted: Wanted) -> tuple[list[str], dict[str, str]]:
  """Compares what is installed with what is wanted; other packages do not matter.

  Returns:
    Names of packages that are not there, and the versions of those that do not fit, by name.
  """
  missing, different = [], {}
  for name, bounds in wanted.versions.items():
    found = _installed_version(name)
    if found is None:
      missing.append(name)
    elif not _fits(found, bounds):
      different[name] = found
  return missing, different


def _pip(*arguments: str) -> str:
  return shlex.join([sys.executable, "-m", "pip", "install", *arguments])


def _remedy(wanted: Wanted, names: list[str]) -> str:
  """Returns what installs packages: those of a lock and TFF's without what they declare."""
  if len(names) > _MOST_NAMED and wanted.path:
    return f"Run: {_pip(*_ALONE, '-r', wanted.path)}"
  alone: list[str] = []
  others: list[str] = []
  for name in names:
    (alone if wanted.path or name in FEDERATED else others).append(name + wanted.versions[name])
  commands = [_pip(*_ALONE, *alone)] * bool(alone) + [_pip(*others)] * bool(others)
  return "Run: " + "\nand: ".join(commands)


def _listed(items: list[str]) -> str:
  shown = items if len(items) <= _MOST_NAMED else items[: _MOST_NAMED - 1]
  rest = len(items) - len(shown)
  return ", ".join(shown) + (f" and {rest} more" if rest else "")


def _finding(wanted: Wanted, found: str, expected: str) -> report.Finding:
  """Returns a failure whose remedy puts everything right, at once."""
  missing, different = _compare(wanted)
  remedy = _remedy(wanted, sorted([*missing, *different]))
  return report.fail(f"Found {found}; expected {expected} {wanted.source}.", remedy)


def check_packages() -> report.Finding:
  """Checks whether every package is installed, in whatever version."""
  try:
    wanted = read_wanted()
  except LookupError as error:
    return report.fail(
      f"Found {error.args[0]}; expected one of them, to know the versions.",
      f"Run: {shlex.join([sys.executable, '-m', 'pip', 'install', '--no-deps', '-e'])} PATH"
      " of a checkout of the project.",
    )
  missing, _ = _compare(wanted)
  if missing:
    return _finding(wanted, f"no {_listed(missing)}", "them, as in")
  return report.ok(f"all {len(wanted.versions)} of {wanted.source}")


def check_versions() -> report.Finding:
  """Checks whether the installed packages have versions that will do."""
  wanted = read_wanted()
  _, different = _compare(wanted)
  if different:
    named = [f"{name} {found} (not {wanted.versions[name]})" for name, found in different.items()]
    return _finding(wanted, _listed(named).replace("(not ==", "(not "), "those of")
  return report.ok(f"as in {wanted.source}")


def check_own_packages() -> report.Finding:
  """Checks whether `privacy` and `tasks` are this project's, and not other folders of that name."""
  for name in ("privacy", "tasks"):
    spec = importlib_util.find_spec(name)
    found = pathlib.Path(spec.origin).parent if spec is not None and spec.origin else None
    if found is None or found.resolve() != _ROOT / name:
      return report.fail(
        f"Found {found or 'no folder'} for the package {name}; expected {_ROOT / name}.",
        "Start Python from another directory, rename that folder, or set PYTHONSAFEPATH=1 (which"
        " Python 3.11 knows).",
      )
  return report.ok(f"privacy and tasks of {_ROOT}")


def reinstall_command() -> str:
  """Returns the remedy for a TensorFlow or TFF of the right version that is broken."""
  versions = read_wanted().versions
  names = [name for name in (*_SAME, "tensorflow-federated") if name in versions]
  return f"Run: {_pip('--force-reinstall', *_ALONE, *(name + versions[name] for name in names))}"
