"""The site builds without a broken link, and the reference has every public name."""

import html.parser
import importlib
import os
import pathlib
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[2]


def _build(config, site):
  return subprocess.run(
    [sys.executable, "-m", "mkdocs", "build", "--config-file", config, "--site-dir", site],
    cwd=_ROOT,
    env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    capture_output=True,
    text=True,
    timeout=600,
    check=False,
  )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
  folder = tmp_path_factory.mktemp("site")
  result = _build(_ROOT / "mkdocs.yml", folder)
  assert result.returncode == 0, result.stderr
  return folder


class _Ids(html.parser.HTMLParser):
  """The anchors of a page."""

  def __init__(self):
    super().__init__()
    self.ids = set()

  def handle_starttag(self, tag, attrs):
    self.ids.update(value for name, value in attrs if name == "id")


def _anchors(site):
  parser = _Ids()
  for page in sorted((site / "reference").glob("*.html")):
    parser.feed(page.read_text(encoding="utf-8"))
  return parser.ids


def test_the_reference_has_every_public_name(site):
  anchors = _anchors(site)
  for package in ("algorithms", "analytics", "client_work", "evaluation", "threshold"):
    name = f"tff_superquantile.{package}"
    public = {f"{name}.{n}" for n in importlib.import_module(name).__all__}
    # Aliases of types have no docstring of their own.
    missing = {n for n in public - anchors if not n.endswith((".Theta", "Fn"))}
    assert not missing
  assert "privacy.calibration.calibrate" in anchors
  assert "tasks.task.Task" in anchors


def test_every_page_is_there_and_nothing_is_fetched_from_elsewhere(site):
  pages = [*(_ROOT / "docs").rglob("*.md"), *(_ROOT / "docs").rglob("*.ipynb")]
  for page in pages:
    path = page.relative_to(_ROOT / "docs").with_suffix(".html")
    text = (site / str(path).replace("README", "index")).read_text(encoding="utf-8")
    assert 'src="http' not in text and "fonts.googleapis" not in text, path


def test_a_broken_link_is_an_error(tmp_path):
  docs = tmp_path / "docs"
  docs.mkdir()
  (docs / "index.md").write_text("[nowhere](nowhere.md), [no heading](#nothing)\n")
  config = (_ROOT / "mkdocs.yml").read_text(encoding="utf-8")
  start, end = config.index("\nnav:"), config.index("\nvalidation:")
  (tmp_path / "mkdocs.yml").write_text(config[:start] + config[end:], encoding="utf-8")
  result = _build(tmp_path / "mkdocs.yml", tmp_path / "site")
  assert result.returncode == 1
  assert "nowhere.md" in result.stderr and "#nothing" in result.stderr
