"""The sizes of folders and modules, as the page on the architecture promises them."""

import collections
import pathlib
import re

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_FOLDERS = ("benchmarks", "privacy", "tasks", "tff_superquantile")
_MODULES = [path for folder in _FOLDERS for path in sorted((_ROOT / folder).rglob("*.py"))]
_MOST_MODULES = 12
_MOST_LINES = 250


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
