"""What hosts of packages, documentation and archives read names what is there, and one version."""

import configparser
import json
import pathlib
import re

import pytest
import yaml

import tff_superquantile

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_DOI = "10.1007/s10994-023-06332-x"
_IS_RELEASE = ".dev" not in tff_superquantile.__version__


def _text(name):
  return (_ROOT / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def metadata():
  config = configparser.ConfigParser()
  config.read(_ROOT / "setup.cfg")
  return config["metadata"]


@pytest.fixture(scope="module")
def urls(metadata):
  return dict(line.split(" = ") for line in metadata["project_urls"].strip().splitlines())


@pytest.fixture(scope="module")
def citation():
  return yaml.safe_load(_text("CITATION.cff"))


def test_authors_license_and_paper_are_the_same_everywhere(metadata, urls, citation):
  zenodo = json.loads(_text(".zenodo.json"))
  names = {
    metadata["author"],
    *(author["name"] for author in citation["authors"]),
    *(creator["name"] for creator in zenodo["creators"]),
  }
  assert len(names) == 1
  assert {metadata["license"], citation["license"], zenodo["license"]} == {"Apache-2.0"}
  (related,) = zenodo["related_identifiers"]
  assert related["identifier"] == citation["preferred-citation"]["doi"] == _DOI
  assert urls["Paper"] == f"https://doi.org/{_DOI}"
  assert zenodo["title"] == citation["title"]
  assert set(zenodo["keywords"]) <= set(metadata["keywords"].split(", "))


def test_a_release_has_a_day_and_other_versions_have_none(urls, citation):
  """And an address is one address."""
  assert ("date-released" in citation) == _IS_RELEASE
  if _IS_RELEASE:
    (day,) = re.findall(
      rf"^## {re.escape(tff_superquantile.__version__)} - (.*)$", _text("CHANGELOG.md"), re.M
    )
    assert str(citation["date-released"]) == day
  assert urls.get("Source") == citation.get("repository-code")


def test_read_the_docs_builds_the_site_with_the_locks():
  config = yaml.safe_load(_text(".readthedocs.yaml"))
  assert config["version"] == 2 and (_ROOT / config["mkdocs"]["configuration"]).is_file()
  jobs = config["build"]["jobs"]
  (install,) = jobs["install"]
  locks = re.findall(r"-r (\S+)", install)
  assert len(locks) == 2 and all((_ROOT / name).is_file() for name in locks)
  for flag in ("--no-deps", "--require-hashes", "--ignore-requires-python"):
    assert flag in install and flag in _text("scripts/venv.sh")
  assert "python -m mkdocs build" in jobs["build"]["html"][0]
  assert "mkdocs build" in _text("scripts/build_docs.sh")


def test_a_tag_builds_checks_and_attests_the_wheel_in_this_order():
  workflow = yaml.safe_load(_text(".github/workflows/release.yml"))
  assert workflow[True] == {"push": {"tags": ["v*"]}}  # YAML reads `on` as true.
  assert workflow["permissions"] == {}
  (job,) = workflow["jobs"].values()
  assert job["permissions"].keys() == {"contents", "id-token", "attestations"}
  steps = [step.get("run", step.get("uses", "")) for step in job["steps"]]
  order = (
    *("__version__", "pip wheel", "twine check", "account spend"),
    *("install_tff", "attest-build-provenance", "gh release create"),
  )
  places = [next(i for i, step in enumerate(steps) if word in step) for word in order]
  assert places == sorted(places)
  assert "--draft" in steps[-1]


def test_the_page_on_releases_names_every_file_with_a_version():
  page = _text("docs/release.md")
  version = re.escape(tff_superquantile.__version__)
  holds = {
    name
    for name in ("setup.cfg", "tff_superquantile/__init__.py", "CITATION.cff", "pyproject.toml")
    if re.search(rf"(?m)^(__)?version(__)? ?[:=] \"?{version}", _text(name))
  }
  assert holds == {"setup.cfg", "tff_superquantile/__init__.py", "CITATION.cff"}
  assert all(f"`{name}`" in page for name in holds)
  for name in re.findall(r"`((?:\./|\.ci/|scripts/|tests/|docs/)[\w./]+)", page):
    assert (_ROOT / name).exists(), name
