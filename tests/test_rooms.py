"""Sizes of folders and modules, and who imports whom, as the page on the architecture promises."""

import ast
import collections
import graphlib
import pathlib
import re

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_LIBRARY = ("privacy", "tasks", "tff_superquantile")
_FOLDERS = ("benchmarks", "paper", *_LIBRARY)
_MODULES = [path for folder in _FOLDERS for path in sorted((_ROOT / folder).rglob("*.py"))]
_MOST_MODULES = 12
_MOST_LINES = 250
_ENGINE = "tff_superquantile.simulation.engine"
_EXPERIMENTS = "tff_superquantile.experiments"


def test_no_folder_has_more_than_twelve_modules():
  modules = collections.Counter(path.parent for path in _MODULES if not path.stem.startswith("__"))
  assert len(_MODULES) > 100
  assert {folder: number for folder, number in modules.items() if number > _MOST_MODULES} == {}


def test_modules_are_short_but_where_the_page_says_why():
  page = (_ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
  named = set(re.findall(r"^\| `([\w/]+\.py)` \|", page, re.MULTILINE))
  long = {
    str(path.relative_to(_ROOT))
    for path in _MODULES
    if len(path.read_text(encoding="utf-8").splitlines()) > _MOST_LINES
  }
  assert long == named


def _name(path):
  return ".".join(path.relative_to(_ROOT).with_suffix("").parts).removesuffix(".__init__")


def _imported(path, names):
  """The modules that a module names in its imports, also in functions and for type checkers."""
  found = set()
  for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
    if isinstance(node, ast.Import):
      found.update(alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      assert node.level == 0, f"Found a relative import in {path}."
      full = (f"{node.module}.{alias.name}" for alias in node.names)
      found.update(name if name in names else node.module for name in full)
  return found & names


def _arrows():
  names = {_name(path) for path in _MODULES}
  return {_name(path): _imported(path, names) for path in _MODULES}


def test_no_imports_below_the_experiments_go_round_in_a_circle():
  arrows = {name: to for name, to in _arrows().items() if not _is_in(name, _EXPERIMENTS)}
  assert f"{_ENGINE}.computation" in arrows[f"{_ENGINE}.stages.staged"]
  assert sum(map(len, arrows.values())) > 300
  tuple(graphlib.TopologicalSorter(arrows).static_order())  # Raises a CycleError that names it.


@pytest.mark.parametrize("room", ["benchmarks", "paper"])
def test_the_library_knows_nothing_of_what_is_beside_it(room):
  arrows = _arrows()
  assert any(_is_in(to, room) for all_of_it in arrows.values() for to in all_of_it)
  assert not [
    (name, to)
    for name, all_of_it in arrows.items()
    for to in all_of_it
    if any(_is_in(name, part) for part in _LIBRARY) and _is_in(to, room)
  ]


@pytest.mark.parametrize("part", [_ENGINE, f"{_ENGINE}.graphs"])
def test_parts_of_the_simulation_know_nothing_of_what_is_around_them(part):
  around = part.rpartition(".")[0]
  upwards = [
    (name, to)
    for name, all_of_it in _arrows().items()
    for to in all_of_it
    if _is_in(name, part) and _is_in(to, around) and not _is_in(to, part)
  ]
  assert upwards == []


def test_the_engines_own_page_lists_its_modules_from_above_to_below():
  page = (_ROOT / _ENGINE.replace(".", "/") / "__init__.py").read_text(encoding="utf-8")
  listed = re.findall(r"^- `(\w+)/?`", page, re.MULTILINE)

  def parts(names):
    return {n.removeprefix(f"{_ENGINE}.").split(".")[0] for n in names if _is_in(n, _ENGINE)}

  arrows = {name: to for name, to in _arrows().items() if _is_in(name, _ENGINE) and name != _ENGINE}
  assert sorted(listed) == sorted(parts(arrows))
  assert len(page.split('"""')[1].splitlines()) <= 40
  for name, to in arrows.items():
    (own,) = parts([name])
    assert all(listed.index(own) <= listed.index(part) for part in parts(to)), name


def _is_in(name, package):
  return f"{name}.".startswith(f"{package}.")
