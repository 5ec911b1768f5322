"""What the Hugging Face Hub reads of a model card is the run's, and nothing of private clients."""

import json
import math
import pathlib
import shutil

import pytest
import yaml

from tff_superquantile.experiments.export import front_matter
from tff_superquantile.experiments.run import run_folder

_KEPT = pathlib.Path(__file__).parent / "kept_results" / "synthetic"
_TREE = "superquantile_theta_0.5_tree_epsilon_20"


def _run(tmp_path, name):
  return shutil.copytree(_KEPT / name, tmp_path / "synthetic" / name) / "seed_0"


def _read(path):
  """The YAML as the Hub takes it: between the first two lines of ---, at the very beginning."""
  text = front_matter.build(run_folder.Run(path, 0))
  before, yaml_text, after = text.split("---\n")
  assert before == "" and after == "\n"
  return yaml.safe_load(yaml_text)


def _numbers(value):
  """All numbers in nested values."""
  if isinstance(value, dict):
    value = list(value.values())
  if isinstance(value, list):
    return [number for part in value for number in _numbers(part)]
  return [value] if isinstance(value, float) else []


def test_a_runs_numbers_are_those_of_metrics_json_of_test_clients(tmp_path):
  path = _run(tmp_path, "superquantile_theta_0.5")
  entries = _read(path)
  assert {"license", "library_name", "tags", "metrics", "model-index"} == entries.keys()
  assert "differential-privacy" not in entries["tags"] and "synthetic" in entries["tags"]
  written = json.loads((path / "metrics.json").read_text())
  (model,) = entries["model-index"]
  (result,) = model["results"]
  assert {"task", "dataset", "metrics"} == result.keys()  # As the Hub requires, with `type` and ...
  assert result["dataset"]["split"] == "test"
  found = {(m["type"], m["name"].split(", ")[1]): m["value"] for m in result["metrics"]}
  for measure in ("error", "loss"):
    of_test = written["test"][measure]
    assert found[measure, "mean over test clients"] == of_test["mean"]
    assert found[measure, "90th percentile over test clients"] == of_test["p90"]
  of_others = {*_numbers(written["train"]), *_numbers(written["validation"])}
  assert {*_numbers(entries)} <= {*_numbers(written["test"])} and of_others - {*_numbers(entries)}
  assert sorted(entries["metrics"]) == ["error", "loss"]


def test_a_private_run_has_no_number_there(tmp_path):
  entries = _read(_run(tmp_path, _TREE))
  assert "differential-privacy" in entries["tags"]
  assert entries.keys() == {"license", "library_name", "tags"} and _numbers(entries) == []
  assert json.loads((_KEPT / _TREE / "seed_0/metrics.json").read_text())["test"]["error"]


def test_nor_has_a_run_of_which_it_is_not_known_whether_it_was_private(tmp_path):
  path = _run(tmp_path, _TREE)
  (path / "flags.txt").write_text("--exact_siblings=refused\n--algorithm=nothing\n")
  assert run_folder.Run(path, 0).config is None
  assert _numbers(_read(path)) == []


@pytest.mark.parametrize("value", [math.nan, None])
def test_a_measure_that_nobody_has_is_left_out(tmp_path, value):
  path = _run(tmp_path, "superquantile_theta_0.5")
  written = json.loads((path / "metrics.json").read_text())
  written["test"]["error"] = dict.fromkeys(written["test"]["error"], value)
  written["test"]["of_nobody_knows_what"] = {"mean": 1.25}
  (path / "metrics.json").write_text(json.dumps(written))
  entries = _read(path)
  assert entries["metrics"] == ["loss"] and 1.25 not in _numbers(entries)


def test_names_with_marks_of_yaml_stay_names(tmp_path):
  path = _run(tmp_path, "superquantile_theta_0.5")
  odd = path.parent.parent.rename(tmp_path / "own_a: b #c é")
  entries = _read(odd / "superquantile_theta_0.5" / "seed_0")
  assert "own_a: b #c é" in entries["tags"]


def test_a_card_without_it_is_the_card(tmp_path):
  path = _run(tmp_path, "superquantile_theta_0.5")
  body = "# Model card\n\n---\n\nMore.\n"
  assert front_matter.without(front_matter.build(run_folder.Run(path, 0)) + body) == body
  assert front_matter.without(body) == body
