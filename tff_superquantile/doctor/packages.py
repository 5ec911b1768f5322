"""Checks whether the installed packages are those of requirements.lock.

Needs nothing but the standard library: `packaging` may be among those that are missing.
"""

from __future__ import annotations

import dataclasses
from importlib import metadata
from importlib import util as importlib_util
import pathlib
import shlex
import sys

from tff_superquantile.doctor import report

_PROJECT = "tff_superquantile"
_EXTRA = "stack"  # Holds the lock in the metadata: see setup.cfg.
_ROOT = pathlib.Path(__file__).resolve().parents[2]
_LOCK = _ROOT / "requirements.lock"

# More than these are said in a few words, and installed from the lock.
_MOST_NAMED = 8


@dataclasses.dataclass(frozen=True)
class Lock:
  """Exact versions of all packages.

  Attributes:
    source: Where they are from, for people.
    versions: The version of each package that this Python needs, by name.
    path: The file; "" if they are from metadata.
  """

  source: str
  versions: dict[str, str]
  path: str = ""


def _parse(lines: list[str]) -> dict[str, str]:
  """Returns the versions of those requirements that are exact, and for this Python."""
  exact = [line for line in lines if "==" in line.partition(";")[0] and not line.startswith("#")]
  try:
    from packaging import requirements
  except ImportError:  # It is missing itself; those for some Pythons can wait until it is there.
    plain = [line.partition(";")[0].split("==") for line in exact if "python_version" not in line]
    return {name.strip(): version.strip() for name, version in plain}
  parsed = map(requirements.Requirement, exact)
  wanted = [r for r in parsed if r.marker is None or r.marker.evaluate({"extra": _EXTRA})]
  return {r.name: str(r.specifier).lstrip("=") for r in wanted}


def read_lock() -> Lock:
  """Reads the lock: the checkout's, or else that of the installed metadata.

  The checkout comes first: the metadata of an installation in place may be old.

  Raises:
    LookupError: If there is none.
  """
  if _LOCK.is_file():
    return Lock(_LOCK.name, _parse(_LOCK.read_text().splitlines()), str(_LOCK))
  try:
    requirements = metadata.requires(_PROJECT) or []
  except metadata.PackageNotFoundError:
    raise LookupError(f"no {_LOCK} and no metadata of {_PROJECT}") from None
  versions = _parse(requirements)
  if not versions:
    raise LookupError(f"no {_LOCK} and no extra {_EXTRA!r} in the metadata of {_PROJECT}")
  return Lock(f"the metadata of {_PROJECT}", versions)


def _installed_version(name: str) -> str | None:
  try:
    return metadata.version(name)  # None if its metadata is damaged.
  except (metadata.PackageNotFoundError, KeyError):
    return None


def _compare(lock: Lock) -> tuple[list[str], dict[str, str]]:
  """Compares what is installed with the lock; packages that it does not name do not matter.

  Returns:
    Names of packages that are not there, and the versions of those that differ, by name.
  """
  missing, different = [], {}
  for name, version in lock.versions.items():
    found = _installed_version(name)
    if found is None:
      missing.append(name)
    elif found.partition("+")[0] != version:  # The builder's name follows the +.
      different[name] = found
  return missing, different


def pip_command(lock: Lock, names: list[str], *options: str) -> str:
  """Returns the command that installs packages of the lock, without their dependencies."""
  command = [sys.executable, "-m", "pip", "install", "--no-deps", *options]
  if len(names) > _MOST_NAMED and lock.path:
    return shlex.join([*command, "-r", lock.path])
  return shlex.join([*command, *(f"{name}=={lock.versions[name]}" for name in names)])


def _listed(items: list[str]) -> str:
  shown = items if len(items) <= _MOST_NAMED else items[: _MOST_NAMED - 1]
  rest = len(items) - len(shown)
  return ", ".join(shown) + (f" and {rest} more" if rest else "")


def _finding(lock: Lock, found: str, expected: str) -> report.Finding:
  """Returns a failure whose remedy puts everything right, at once."""
  missing, different = _compare(lock)
  fix = f"Run: {pip_command(lock, sorted([*missing, *different]))}"
  return report.fail(f"Found {found}; expected {expected} {lock.source}.", fix)


def check_packages() -> report.Finding:
  """Checks whether every package of the lock is installed, in whatever version."""
  try:
    lock = read_lock()
  except LookupError as error:
    return report.fail(
      f"Found {error.args[0]}; expected one of them, to know the versions.",
      f"Run: {shlex.join([sys.executable, '-m', 'pip', 'install', '--no-deps', '-e'])} PATH"
      " of a checkout of the project.",
    )
  missing, _ = _compare(lock)
  if missing:
    return _finding(lock, f"no {_listed(missing)}", "them, as in")
  return report.ok(f"all {len(lock.versions)} of {lock.source}")


def check_versions() -> report.Finding:
  """Checks whether the installed packages have the versions of the lock."""
  lock = read_lock()
  _, different = _compare(lock)
  if different:
    named = [f"{name} {found} (not {lock.versions[name]})" for name, found in different.items()]
    return _finding(lock, _listed(named), "those of")
  return report.ok(f"as in {lock.source}")


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
  lock = read_lock()
  names = [n for n in ("tensorflow", "tensorflow-federated") if n in lock.versions]
  return f"Run: {pip_command(lock, names, '--force-reinstall')}"
