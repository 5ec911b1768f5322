"""Kept results: trained anew they are the same, and they are read and resumed."""

import csv
import dataclasses
import json
import pathlib
import shutil

from helpers import finished_runs
import numpy as np
import pytest

from privacy import audit
from privacy import ledger
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.pages import page
from tff_superquantile.experiments.report import comparison
from tff_superquantile.experiments.run import runner

_KEPT = finished_runs.KEPT
_TREE = "superquantile_theta_0.5_tree_epsilon_20"
_GEOMETRIC = "superquantile_theta_0.5_geometric_epsilon_20"
_OWN = "own_visits_linear/superquantile_theta_0.5_z_1_update_z_1/seed_1"
# Float32 sums in another order, as on another processor, differ by as much.
_TOLERANCE = 1e-4
# Budgets are sums of many terms in double precision; their last digits, too, follow the processor.
_ACCOUNTING_TOLERANCE = 1e-9
pytestmark = pytest.mark.usefixtures("restored_context")


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
  """A copy, as if it were a user's output directory."""
  return pathlib.Path(shutil.copytree(_KEPT, tmp_path_factory.mktemp("kept") / "results"))


def _config(run):
  lines = (run / "flags.txt").read_text().split()
  return run_config.from_flags(dict(line.removeprefix("--").split("=", 1) for line in lines))


def _train(method, output_dir, cache_dir, **changed):
  config = _config(_KEPT / "synthetic" / method / "seed_0")
  if config.privacy is not None:
    changed["noise_key_file"] = str(_KEPT / config.privacy.noise_key_file)
    # What follows from the budget.
    followed = ("threshold_noise_multiplier", "update_noise_multiplier", "rho_ratio")
    changed.update(dict.fromkeys(followed))
  places = dict(output_dir=str(output_dir), cache_dir=str(cache_dir))
  return runner.train(run_config.with_values(config, **places, **changed)).path


def _rows(path):
  with open(path, newline="") as file:
    rows = list(csv.DictReader(file))
  for row in rows:
    row.pop("seconds", None)
  return rows


def _is_same(found, kept):
  """Whether two values of a ledger are equal, but for the last digits of numbers."""
  if dataclasses.is_dataclass(kept):
    found, kept = dataclasses.asdict(found), dataclasses.asdict(kept)
  if isinstance(kept, dict):
    return found.keys() == kept.keys() and all(_is_same(found[name], kept[name]) for name in kept)
  if isinstance(kept, (list, tuple)):
    return len(found) == len(kept) and all(map(_is_same, found, kept))
  if isinstance(kept, float):
    return found == pytest.approx(kept, rel=_ACCOUNTING_TOLERANCE)
  return found == kept


def _assert_same_run(found, expected):
  """The rounds and the weights, and what is left of its privacy."""
  rows = _rows(found / "rounds.csv")
  kept_rows = _rows(expected / "rounds.csv")
  assert [list(row) for row in rows] == [list(row) for row in kept_rows]
  for row, kept_row in zip(rows, kept_rows):
    for name, value in kept_row.items():
      assert (row[name] == "") == (value == "")
      if value:
        assert float(row[name]) == pytest.approx(float(value), rel=_TOLERANCE), (row, name)
  with np.load(found / "weights.npz") as weights, np.load(expected / "weights.npz") as kept_weights:
    assert weights.files == kept_weights.files
    for name in weights.files:
      np.testing.assert_allclose(weights[name], kept_weights[name], atol=_TOLERANCE)
  if (expected / "privacy.json").exists():
    # Read, as a later version writes fields that an earlier one had not.
    texts = [(run / "privacy.json").read_text() for run in (found, expected)]
    ledgers = [ledger.Ledger.from_json(text) for text in texts]
    for name in ("release", "claim", "clip_norm", "rounds_done", "epsilon_spent", "epsilon_server"):
      values = [getattr(one, name) for one in ledgers]
      assert _is_same(*values), (name, *values)


@pytest.mark.parametrize("method", ["fed_avg", "superquantile_theta_0.5"])
def test_training_gives_the_same_results(method, tmp_path, cache_dir):
  folder = _train(method, tmp_path, cache_dir)
  assert folder == tmp_path / "synthetic" / method / "seed_0"
  _assert_same_run(folder, _KEPT / "synthetic" / method / "seed_0")


def test_a_run_goes_on_for_more_rounds(tmp_path, cache_dir):
  method = "superquantile_theta_0.25"
  shutil.copytree(_KEPT / "synthetic" / method, tmp_path / "synthetic" / method)
  folder = _train(method, tmp_path, cache_dir, num_rounds=20)
  _assert_same_run(folder, _KEPT / "after_20_rounds")


def _copy_killed(folder):
  """Copies the killed run, without what it ends with: that is another run of the same clients."""
  ignored = shutil.ignore_patterns("after_6_rounds")
  return shutil.copytree(_KEPT / "killed", folder, ignore=ignored)


def test_a_killed_private_run_goes_on_as_if_nothing_had_happened(tmp_path, cache_dir):
  before = _copy_killed(tmp_path / "before")
  run = before / _OWN
  flags = run / "flags.txt"
  flags.write_text(flags.read_text().replace("visits.csv", str(before / "visits.csv")))
  # A folder has the name of a threshold that was asked for.
  places = dict(output_dir=str(before), cache_dir=str(cache_dir), noise_key_file="")
  config = run_config.with_values(_config(run), threshold=None, **places)
  assert runner.train(config).path == run
  _assert_same_run(run, _KEPT / "killed/after_6_rounds")
  assert audit.audit_folder(run).holds


@pytest.mark.parametrize("lost", ["noise_key", "clients", "noise"])
def test_a_private_run_without_its_commitments_does_not_go_on(lost, tmp_path, cache_dir):
  before = _copy_killed(tmp_path / "before")
  run = before / _OWN
  flags = run / "flags.txt"
  flags.write_text(flags.read_text().replace("visits.csv", str(before / "visits.csv")))
  manifest = json.loads((run / "manifest.json").read_text())
  del manifest["commitments"][lost]
  (run / "manifest.json").write_text(json.dumps(manifest))
  places = dict(output_dir=str(before), cache_dir=str(cache_dir), noise_key_file="")
  with pytest.raises(ValueError, match="Found no commitments to key, clients and noise"):
    runner.train(run_config.with_values(_config(run), threshold=None, **places))


def test_a_finished_run_is_not_run_again(kept, cache_dir, capsys):
  before = (kept / "synthetic" / _TREE / "seed_0" / "manifest.json").read_bytes()
  folder = _train(_TREE, kept, cache_dir)
  assert capsys.readouterr().out == f"Finished before: {folder}\n"
  assert (folder / "manifest.json").read_bytes() == before


def test_the_report_is_the_same(kept):
  page.publish(comparison.report(kept, "synthetic"), kept / "synthetic")
  found, expected = (folder / "synthetic" / "report.csv" for folder in (kept, _KEPT))
  assert found.read_bytes() == expected.read_bytes()


@pytest.mark.parametrize("method", [_TREE, _GEOMETRIC])
def test_what_private_runs_leave_holds(kept, method):
  assert audit.audit_folder(kept / "synthetic" / method / "seed_0").holds
