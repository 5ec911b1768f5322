"""What `import tff_superquantile` offers, and that it costs nothing until it is used."""

import ast
import importlib
import inspect
import pathlib
import re
import subprocess
import sys
import textwrap

import pytest
import yaml

import tff_superquantile as tsq
from tff_superquantile import algorithms
from tff_superquantile import engine
from tff_superquantile import simulation
from tff_superquantile.engine import context
from tff_superquantile.simulation import client_files

_ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("package", [tsq, engine, simulation])
def test_all_public_names_are_there_and_listed(package):
  assert dir(package) == sorted(package.__all__)
  for name in package.__all__:
    assert getattr(package, name) is not None
  with pytest.raises(AttributeError, match="has no attribute 'importlib'"):
    _ = package.importlib


def test_names_are_those_of_the_rooms():
  builders = {name for name in algorithms.__all__ if name.startswith("build_")}
  assert builders | {"AdaptiveClipNorm", "BandedKey", "Private", "dp_mean_factory"} == {
    n for n in dir(tsq) if hasattr(algorithms, n)
  }
  assert tsq.build_superquantile_fed_avg is algorithms.build_superquantile_fed_avg
  assert tsq.set_simulation_context is context.set_simulation_context
  assert simulation.ClientFiles is client_files.ClientFiles
  assert tsq.engine.context is context


def test_nothing_is_loaded_before_it_is_used():
  code = (
    "import sys, tff_superquantile as tsq; dir(tsq); dir(tsq.simulation);"
    " assert 'numpy' not in sys.modules; tsq.superquantile.superquantile;"
    " assert 'tensorflow' not in sys.modules"
  )
  subprocess.run([sys.executable, "-c", code], check=True, cwd=_ROOT)


# A block of the reference: a module and its options, which may list the members to show.
_BLOCK = re.compile(r"^::: (\S+)\n((?:    .*\n)*)", re.MULTILINE)


def _shown(text):
  """The public functions of the project that a page of the reference shows, by their names."""
  found = {}
  for name, options in _BLOCK.findall(text + "\n"):
    module, chosen = importlib.import_module(name), yaml.safe_load(options or "options: {}")
    for member in chosen["options"].get("members", dir(module)):
      value = inspect.unwrap(getattr(module, member))  # Of a cache.
      offered = member in getattr(module, "__all__", ())
      is_own = inspect.isfunction(value) and f"{value.__module__}.".startswith(f"{name}.")
      if inspect.isfunction(value) and member[0] != "_" and (offered or is_own):
        found[f"{value.__module__}.{member}"] = value
  return found


def _functions():
  """The functions that the reference shows, and those of the package and its parts, each once."""
  pages = sorted((_ROOT / "docs/reference").glob("*.md"))
  faces = [tsq, *(part for name in tsq.__all__ if inspect.ismodule(part := getattr(tsq, name)))]
  faces = "".join(f"::: {face.__name__}\n" for face in faces)
  return _shown("\n".join([faces, *(page.read_text(encoding="utf-8") for page in pages)]))


def _section(text, name):
  """The lines of a section of a docstring; None where there is none."""
  found = re.search(rf"^{name}:\n((?:  .*\n|\n)*)", text + "\n", re.MULTILINE)
  return None if found is None else found[1]


def _missing(function):
  """What a docstring leaves out: arguments, the result, or errors of the function's own."""
  text, signature = inspect.getdoc(function) or "", inspect.signature(function)
  args = _section(text, "Args")
  described = re.findall(r"^  \*{0,2}(\w+): ", args or "", re.MULTILINE)
  missing = [] if described == list(signature.parameters) else [f"Args of {signature}"]
  if signature.return_annotation not in (None, "None") and not _section(text, "Returns"):
    missing.append("Returns")
  tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
  own = [node for node in ast.walk(tree) if isinstance(node, (ast.Raise, ast.Attribute))]
  raises = any(
    isinstance(node, ast.Raise)
    or getattr(node.value, "id", "") == "checks"
    or node.attr == "check_theta"
    for node in own
  )
  if raises and not _section(text, "Raises"):
    missing.append("Raises")
  return missing


def test_a_page_shows_the_members_that_it_names():
  block = "::: tff_superquantile.superquantile\n    options:\n      members: "
  shown = [set(_shown(text)) for text in (block[:35], f"{block}[percentile]\n", f"{block}[]\n")]
  percentile = "tff_superquantile.superquantile.percentile"
  assert percentile in shown[0] and len(shown[0]) > 5
  assert shown[1:] == [{percentile}, set()]


def test_functions_of_the_reference_say_arguments_result_and_errors():
  functions = _functions()
  assert len(functions) > 200
  assert {n: missing for n, f in functions.items() if (missing := _missing(f))} == {}


def test_a_docstring_that_leaves_something_out_is_seen():
  def whole(a: int, *, b: float, **c: int) -> int:
    """Adds.

    Args:
      a: One.
      b: Another.
      **c: More.

    Returns:
      The sum.

    Raises:
      ValueError: Always.
    """
    raise ValueError(a, b, c)

  assert _missing(whole) == []
  text = whole.__doc__
  for line, expected in (
    ("b: Another.", "Args of"),
    ("Returns:", "Returns"),
    ("Raises:", "Raises"),
  ):
    whole.__doc__ = text.replace(line, "")
    assert [said[: len(expected)] for said in _missing(whole)] == [expected]
