"""Public names of a package that are loaded on first use."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
import importlib
import importlib.util
import pathlib
import sys
from typing import Any

NOT_INSTALLED = (
  "Found no package {}, which training needs; install what belongs to it by pip install"
  " 'tff-superquantile[training]' and then superquantile install_tff."
)


def check_neighbours(*names: str) -> None:
  """Finds the packages of these names that are beside this one, in the place of others.

  `python -m` looks into the user's folder first, where invoke's file is tasks.py. Its folder is
  looked into last then, as by the command `superquantile`. A program of the user's has that folder
  for its own modules: an `ImportError` says which file to rename.
  """
  root = pathlib.Path(__file__).resolve().parents[1]

  def strangers() -> list[str]:
    specs = {name: importlib.util.find_spec(name) for name in names if name not in sys.modules}
    specs.update((name, sys.modules[name].__spec__) for name in names if name in sys.modules)
    places = {
      name: pathlib.Path(spec.origin) for name, spec in specs.items() if spec and spec.origin
    }
    return [
      f"{name} in {place}"
      for name, place in places.items()
      if place.resolve().parent != root / name
    ]

  if strangers() and sys.argv[:1] == ["-m"]:
    sys.path.append(sys.path.pop(0))
  if found := strangers():
    raise ImportError(
      f"Found the module {' and '.join(found)}; expected that of {root}, which has the same name:"
      " rename yours, or start this program in another folder."
    )


def attach(
  package: str, modules: Sequence[str], names: Mapping[str, Sequence[str]]
) -> tuple[tuple[str, ...], Callable[[str], Any], Callable[[], list[str]]]:
  """Makes `__all__`, `__getattr__` and `__dir__` of a package that loads names late (PEP 562).

      __all__, __getattr__, __dir__ = lazy.attach(__name__, ("algorithms",), {...})

  `modules` are public as they are. `names` has, for each module of the package (of another one,
  with a slash before its whole name), functions and classes that are public names of the package,
  too.
  """
  homes = {name: module for module, members in names.items() for name in members}
  public = tuple(sorted([*modules, *homes]))

  def load(name: str) -> Any:
    if name not in homes and name not in modules:
      raise AttributeError(f"module {package!r} has no attribute {name!r}")
    try:
      home = homes.get(name, name)
      module = importlib.import_module(home[1:] if home[0] == "/" else f"{package}.{home}")
    except ModuleNotFoundError as error:
      if error.name not in ("tensorflow", "tensorflow_federated"):
        raise
      raise ModuleNotFoundError(NOT_INSTALLED.format(error.name), name=error.name) from None
    return getattr(module, name) if name in homes else module

  return public, load, lambda: list(public)


def attach_stub(
  package: str, file: str
) -> tuple[tuple[str, ...], Callable[[str], Any], Callable[[], list[str]]]:
  """Does what `attach` does for the names that the stub of a package's file imports."""
  names: dict[str, list[str]] = {}
  for node in ast.parse(pathlib.Path(file).with_suffix(".pyi").read_text(encoding="utf-8")).body:
    assert isinstance(node, ast.ImportFrom)
    names.setdefault(f"/{node.module}", []).extend(alias.name for alias in node.names)
  return attach(package, (), names)
