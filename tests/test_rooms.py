"""Sizes of folders and modules, and who imports whom, as the page on the architecture promises."""

import ast
import collections
import functools
import graphlib
import io
import pathlib
import re
import tokenize

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_LIBRARY = ("privacy", "tasks", "tff_superquantile")
_FOLDERS = ("benchmarks", "paper", *_LIBRARY)
_MODULES = [path for folder in _FOLDERS for path in sorted((_ROOT / folder).rglob("*.py"))]
_MOST_MODULES = 16
_MOST_LINES = 400
_MOST_LINES_OF_TESTS = 600
_MOST_LINES_OF_A_FUNCTION = 60
_ENGINE = "tff_superquantile.engine.cohort"
_EXPERIMENTS = "tff_superquantile.experiments"


def test_a_test_of_each_folder_of_tests_is_quick(pytestconfig):
  conftest = pytestconfig.pluginmanager.get_plugin(str(_ROOT / "tests/conftest.py"))
  names = [name.partition("::") for name in conftest.QUICK]
  for path, _, name in names:
    assert f"\ndef {name}(" in (_ROOT / path).read_text(encoding="utf-8")
  folders = {path.parent for path in (_ROOT / "tests").rglob("test_*.py")}
  assert len(folders) > 10 and {(_ROOT / path).parent for path, _, _ in names} == folders


def test_no_folder_has_more_than_sixteen_modules():
  modules = collections.Counter(path.parent for path in _MODULES if not path.stem.startswith("__"))
  assert len(_MODULES) > 100
  assert {folder: number for folder, number in modules.items() if number > _MOST_MODULES} == {}


_NO_CODE = {
  getattr(tokenize, name)
  for name in ("COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENDMARKER", "ENCODING")
}


def _tree_and_code(text):
  """A module's syntax tree, and its lines without docstrings, comments and blank lines."""
  tree, code = ast.parse(text), set()
  for token in tokenize.generate_tokens(io.StringIO(text).readline):
    if token.type not in _NO_CODE:
      code.update(range(token.start[0], token.end[0] + 1))
  for node in ast.walk(tree):
    documented = isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
    if documented and ast.get_docstring(node) is not None:
      code.difference_update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
  return tree, code


def _lengths(text):
  """Yields the functions of a module with their lines of code, functions within them included."""
  tree, code = _tree_and_code(text)
  for node in ast.walk(tree):
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
      yield node.name, sum(node.lineno <= line <= node.end_lineno for line in code)


def test_functions_are_short():
  long = {
    f"{path.relative_to(_ROOT)}: {name}"
    for path in _MODULES
    for name, length in _lengths(path.read_text(encoding="utf-8"))
    if length > _MOST_LINES_OF_A_FUNCTION
  }
  assert not long


def _num_lines(path):
  return len(path.read_text(encoding="utf-8").splitlines())


def test_modules_are_short_and_one_sentence_says_what_they_are():
  long = {str(path.relative_to(_ROOT)) for path in _MODULES if _num_lines(path) > _MOST_LINES}
  assert not long
  texts = {path: path.read_text(encoding="utf-8") for path in _MODULES}
  said = {path: ast.get_docstring(ast.parse(text)) or "" for path, text in texts.items() if text}
  assert [path for path, says in said.items() if not says.partition("\n\n")[0].endswith(".")] == []


def test_modules_of_tests_are_short_and_lie_in_the_rooms_of_what_they_test():
  modules = sorted((_ROOT / "tests").rglob("*.py"))
  assert len(modules) > 200
  long = {
    str(path.relative_to(_ROOT)) for path in modules if _num_lines(path) > _MOST_LINES_OF_TESTS
  }
  assert not long
  folders = {path.parent for path in (_ROOT / "tests/experiments").rglob("test_*.py")}
  rooms = {folder.relative_to(_ROOT / "tests") for folder in folders}
  assert len(rooms) > 10
  assert not [room for room in rooms if not (_ROOT / "tff_superquantile" / room).is_dir()]


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


@functools.cache
def _arrows():
  """The modules that each imports, found once, as it takes all syntax trees."""
  names = {_name(path) for path in _MODULES}
  return {_name(path): _imported(path, names) for path in _MODULES}


def test_no_imports_go_round_in_a_circle():
  arrows = _arrows()
  assert f"{_ENGINE}.computation" in arrows[f"{_ENGINE}.stages.staged"]
  assert f"{_EXPERIMENTS}.run.build" in arrows[f"{_EXPERIMENTS}.run.runner"]
  assert sum(map(len, arrows.values())) > 1000
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


def test_privacy_knows_nothing_of_the_library():
  """So that a privacy engineer reads and runs it alone."""
  arrows = {name: to for name, to in _arrows().items() if _is_in(name, "privacy")}
  assert len(arrows) > 20
  assert not [(name, t) for name, to in arrows.items() for t in to if not _is_in(t, "privacy")]


@pytest.mark.parametrize("part", [_ENGINE.rpartition(".")[0], _ENGINE, f"{_ENGINE}.graphs"])
def test_parts_of_the_engine_know_nothing_of_what_is_around_them(part):
  upwards = [
    (name, to)
    for name, all_of_it in _arrows().items()
    for to in all_of_it - {"tff_superquantile.lazy"}
    if _is_in(name, part) and not _is_in(to, part)
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
