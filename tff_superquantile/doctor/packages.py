"""The doctor's checks of the installed packages: whether they are those of requirements.lock.

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


@dataclasses.dataclass(frozen=True)
class Comparison:
  """How the installed packages differ from the lock.

  Attributes:
    lock: The lock.
    missing: Names of packages that are not there.
    different: Of those with another version, (name, the version that is there).
  """

  lock: Lock
  missing: list[str]
  different: list[tuple[str, str]]


def _parse(lines: list[str]) -> dict[str, str]:
  """Returns the versions of those requirements that are exact, and for this Python."""
  exact = [line for line in lines if "==" in line and not line.startswith("#")]
  try:
    from packaging import requirements
  except ImportError:  # It is missing itself; those for some Pythons can wait until it is there.
    plain = [line.partition(";")[0].split("==") for line in exact if "python_version" not in line]
    return {name.strip(): version.strip() for name, version in plain}
  parsed = map(requirements.Requirement, exact)
  wanted = [r for r in parsed if r.marker is None or r.marker.evaluate({"extra": _EXTRA})]
  return {r.name: str(r.specifier).lstrip("=") for r in wanted}


def read_lock() -> Lock:
  """The lock: of the checkout, or else of the metadata of what is installed.

  The checkout first: what it left in the metadata when it was installed in place may be old.

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


def compare() -> Comparison:
  """Compares what is installed with the lock; packages that it does not name do not matter.

  Raises:
    LookupError: If there is no lock.
  """
  lock = read_lock()
  missing, different = [], []
  for name, version in lock.versions.items():
    found = _installed_version(name)
    if found is None:
      missing.append(name)
    elif found.partition("+")[0] != version:  # After the + is who built it.
      different.append((name, found))
  return Comparison(lock, missing, different)


def pip_command(lock: Lock, names: list[str], *options: str) -> str:
  """The command that installs packages of the lock, without their dependencies."""
  command = [sys.executable, "-m", "pip", "install", "--no-deps", *options]
  if len(names) > _MOST_NAMED and lock.path:
    return shlex.join([*command, "-r", lock.path])
  return shlex.join([*command, *(f"{name}=={lock.versions[name]}" for name in names)])


def _listed(items: list[str]) -> str:
  shown = items if len(items) <= _MOST_NAMED else items[: _MOST_NAMED - 1]
  rest = len(items) - len(shown)
  return ", ".join(shown) + (f" and {rest} more" if rest else "")


def _fix(comparison: Comparison) -> str:
  """What puts everything right, at once."""
  wrong = sorted([*comparison.missing, *(name for name, _ in comparison.different)])
  return f"Run: {pip_command(comparison.lock, wrong)}"


def check_packages() -> report.Finding:
  """Whether every package of the lock is installed, in whatever version."""
  try:
    comparison = compare()
  except LookupError as error:
    return report.fail(
      f"Found {error.args[0]}; expected one of them, to know the versions.",
      f"Run: {shlex.join([sys.executable, '-m', 'pip', 'install', '--no-deps', '-e'])} PATH"
      " of a checkout of the project.",
    )
  missing, source = comparison.missing, comparison.lock.source
  if missing:
    return report.fail(
      f"Found no {_listed(missing)}; expected them, as in {source}.", _fix(comparison)
    )
  return report.ok(f"all {len(comparison.lock.versions)} of {source}")


def check_versions() -> report.Finding:
  """Whether what is installed has the versions of the lock."""
  comparison = compare()
  lock, different = comparison.lock, comparison.different
  if different:
    found = _listed(
      [f"{name} {version} (not {lock.versions[name]})" for name, version in different]
    )
    return report.fail(f"Found {found}; expected those of {lock.source}.", _fix(comparison))
  return report.ok(f"as in {lock.source}")


def check_own_packages() -> report.Finding:
  """Whether `privacy` and `tasks` are this project's, and not other folders of that name."""
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
  """What to do where TensorFlow or TFF is there in the right version, but broken."""
  lock = read_lock()
  names = [n for n in ("tensorflow", "tensorflow-federated") if n in lock.versions]
  return f"Run: {pip_command(lock, names, '--force-reinstall')}"
