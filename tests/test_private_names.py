"""Names that TFF, TensorFlow Privacy and TensorFlow do not promise: as few as are listed."""

import ast
import functools
import importlib
import pathlib
import re

import nbformat
import pytest

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_OTHERS = ("tensorflow", "tensorflow_federated", "tensorflow_privacy", "dp_accounting")
# Public, in spite of the underscore.
_PUBLIC = frozenset({"_asdict", "_fields", "_make", "_replace", "_exit"})


def _listed():
  page = (_ROOT / "docs/architecture.md").read_text(encoding="utf-8")
  section = page.split("\n## Private names\n")[1]
  return re.findall(r"^\| `([\w.]+)` \|", section, flags=re.MULTILINE)


def _example_code():
  """(where, code) of the examples in the README, the pages and the notebooks."""
  for page in [_ROOT / "README.md", *sorted((_ROOT / "docs").rglob("*.md"))]:
    for block in re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), flags=re.DOTALL):
      yield page.name, block
  for path in sorted((_ROOT / "docs").rglob("*.ipynb")):
    for cell in nbformat.read(path, as_version=4).cells:
      if cell.cell_type == "code":
        # A line of IPython's own, such as %%writefile or !command, is no Python.
        yield path.name, re.sub(r"^[%!].*$", "pass", cell.source, flags=re.MULTILINE)


def _library_code():
  for folder in ("benchmarks", "paper", "privacy", "tasks", "tff_superquantile"):
    for path in sorted((_ROOT / folder).rglob("*.py")):
      yield str(path.relative_to(_ROOT)), path.read_text(encoding="utf-8")


def _imports(tree):
  """From local names to the modules and objects they stand for."""
  names = {}
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      for alias in node.names:
        name = alias.name if alias.asname else alias.name.split(".")[0]
        names[alias.asname or name] = name
    elif isinstance(node, ast.ImportFrom) and node.module:
      names.update({a.asname or a.name: f"{node.module}.{a.name}" for a in node.names})
  return names


def _defined_names(trees):
  """Names that the project itself gives to something."""
  names = set()
  for node in (node for tree in trees for node in ast.walk(tree)):
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
      names.add(node.name)
    elif isinstance(node, (ast.Attribute, ast.Name)) and isinstance(node.ctx, ast.Store):
      names.add(node.attr if isinstance(node, ast.Attribute) else node.id)
  return names


def _private_names(tree, own):
  """Private names of others: attributes with an underscore, and what is in a private module."""
  imports = _imports(tree)
  for node in ast.walk(tree):
    if not isinstance(node, ast.Attribute):
      continue
    if re.match("_[^_]", node.attr) and node.attr not in own | _PUBLIC:
      yield node.attr
    elif isinstance(node.value, ast.Name):
      name = f"{imports.get(node.value.id, '')}.{node.attr}"
      # TensorFlow and TFF keep theirs in `python` and `proto`, TensorFlow Privacy in `privacy`.
      if re.match(
        r"(tensorflow|tensorflow_federated)\.(python|proto)\.|tensorflow_privacy\.privacy\.", name
      ):
        # The messages of a protocol are one thing.
        yield imports[node.value.id] if ".proto." in name else name


def _attribute(of, name):
  """An attribute; of a class also one that its objects have."""
  return getattr(of if hasattr(of, name) or not isinstance(of, type) else of(), name)


def _resolve(name):
  """What a dotted name stands for; AttributeError or ImportError where there is none."""
  parts = name.split(".")
  for length in range(len(parts), 0, -1):
    try:
      module = importlib.import_module(".".join(parts[:length]))
    except ImportError:
      continue
    try:
      return functools.reduce(_attribute, parts[length:], module)
    except AttributeError:
      # A folder of TensorFlow's own may have the name of an interface, as tf.lite has.
      if length == 1:
        raise
  raise ImportError(f"Found no module {parts[0]}.")


def test_the_library_uses_the_listed_names_and_no_others():
  sources = {where: ast.parse(code) for where, code in _library_code()}
  own = _defined_names(sources.values())
  used = {name for tree in sources.values() for name in _private_names(tree, own)}
  # Of an attribute only its own name is known, and not what it is an attribute of.
  listed = {name.rsplit(".", 1)[1] if "._" in name else name for name in _listed()}
  assert used == listed


@pytest.mark.parametrize("name", _listed())
def test_a_listed_name_exists(name):
  _resolve(name)


def test_examples_use_public_names_that_exist():
  found = 0
  imports = {}
  for where, code in _example_code():
    tree = ast.parse(code)
    # A notebook's cells share their imports.
    imports.setdefault(where, {}).update(_imports(tree))
    assert not set(_private_names(tree, own=set())), where
    for name in set(re.findall(r"\b[a-z_]\w*(?:\.[A-Za-z_]\w*)+", ast.unparse(tree))):
      first, rest = name.split(".", 1)
      module = imports[where].get(first, "")
      assert ".python." not in module, where
      if module.split(".")[0] in _OTHERS:
        _resolve(f"{module}.{rest}")
        found += 1
  assert found
