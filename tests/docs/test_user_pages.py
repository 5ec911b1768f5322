"""Pages for users start each thing in one way, explain their words, and link to what is there."""

import pathlib
import re
import subprocess

import pytest

from tff_superquantile import commands

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_DOCS = _ROOT / "docs"
_FOR_USERS = [
  *sorted((_DOCS / "how_to").glob("*.md")),
  *sorted((_DOCS / "tutorials").glob("*.ipynb")),
  *(
    _DOCS / name for name in ("README.md", "privacy.md", "glossary.md", "reference/experiments.md")
  ),
  _ROOT / "README.md",
]
# One way each: ./run_experiments.sh in a clone, superquantile where it is installed.
_OTHER_WAYS = re.compile(r"python3? -m (?!venv)|PYTHON -m|\.venv/bin/superquantile")
_WORDS = ("own table", "stand-in", "rooms", "front", "stack")


@pytest.mark.parametrize("page", _FOR_USERS, ids=lambda page: page.name)
def test_each_thing_is_started_in_one_way(page):
  assert _OTHER_WAYS.findall(page.read_text(encoding="utf-8")) == []


def test_the_script_hands_on_each_command_of_runs():
  """`superquantile` is what the script calls: no list of commands may lack one."""
  script = (_ROOT / "run_experiments.sh").read_text(encoding="utf-8")
  (handed_on,) = re.findall(
    r"\n  ([a-z_| \\\n]+)\)\n    exec \"\$VENV/bin/python\" -m tff_superquantile \"\$exp", script
  )
  names = {name for name in re.split(r"[\s|\\]+", handed_on) if name}
  # The others have a row of their own, or belong to environments that the script does not make.
  assert names == commands.COMMANDS.keys() - {"doctor", "download", "install_tff"}
  (own_help,) = re.findall(r'case "\$\{1:-\}" in\n.*?\n(.*?)\n  \*\) help_if_asked', script, re.S)
  assert names < {name for name in re.split(r"[\s|;)]+", own_help) if name}


def test_help_of_the_script_fits_a_terminal_and_names_the_commands():
  page = subprocess.run(
    [_ROOT / "run_experiments.sh", "--help"], capture_output=True, text=True, check=True
  ).stdout
  assert max(map(len, page.splitlines())) <= 80
  for name in commands.COMMANDS.keys() - {"install_tff"}:
    assert name in page


# Words.


def _prose(text):
  """A page without its code, headings, links' targets and what stands in backticks."""
  text = re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.DOTALL | re.MULTILINE)
  text = re.sub(r"^#.*|^ {4}.*|`[^`]*`", "", text, flags=re.MULTILINE)
  return re.sub(r"\]\([^)]*\)", "]()", text)


@pytest.mark.parametrize("word", _WORDS)
def test_the_first_mention_of_a_word_of_ours_is_a_link(word):
  # Which alone is a list of names.
  pages = [page for page in _FOR_USERS if page.suffix == ".md" and page.name != "glossary.md"]
  for page in [*pages, _DOCS / "architecture.md"]:
    prose = _prose(page.read_text(encoding="utf-8"))
    first = re.search(rf"\b{word}\b", prose, re.IGNORECASE)
    if first:
      before = prose[: first.start()]
      assert before.rfind("[") > before.rfind("]"), f"{page.name}: {word}"


def test_the_words_have_an_anchor_each():
  page = (_DOCS / "glossary.md").read_text(encoding="utf-8")
  ids = re.findall(r'^\| <a id="([\w-]+)"></a>', page, re.MULTILINE)
  assert len(ids) == len(set(ids)) >= 8
  for path in _FOR_USERS:
    for anchor in re.findall(r"glossary\.md#([\w-]+)", path.read_text(encoding="utf-8")):
      assert anchor in ids, f"{path.name}: {anchor}"


# Links.


def _anchors(path):
  """Anchors of a page's headings, as GitHub and mkdocs make them, and those it sets."""
  text = path.read_text(encoding="utf-8")
  headings = re.findall(r"^#+ (.*)$", re.sub(r"(?ms)^ *```.*?^ *```$", "", text), re.MULTILINE)
  names = (re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)
  return {*names, *re.findall(r'id="([\w-]+)"', text)}


_OUTSIDE_OF_DOCS = [*sorted(_ROOT.glob("*.md")), _ROOT / "tff_superquantile/engine/README.md"]


@pytest.mark.parametrize("page", _OUTSIDE_OF_DOCS, ids=lambda page: page.name)
def test_links_to_headings_lead_there(page):
  """Those within docs/ are checked by mkdocs: test_site."""
  for path, anchor in re.findall(r"\]\((?!http)([^)#\s]*)#([^)]+)\)", page.read_text("utf-8")):
    target = (page.parent / path) if path else page
    assert anchor in _anchors(target), f"{path}#{anchor}"
