"""Results of an earlier version: trained anew they are the same, and they are read and resumed."""

import csv
import dataclasses
import json
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow_federated as tff

from privacy import audit
from privacy import ledger
from tff_superquantile.experiments.report import comparison
from tff_superquantile.experiments.report import page
from tff_superquantile.experiments.run import run_config
from tff_superquantile.experiments.run import runner

_KEPT = pathlib.Path(__file__).parent / "kept_results"
_TREE = "superquantile_theta_0.5_tree_epsilon_20"
_GEOMETRIC = "superquantile_theta_0.5_geometric_epsilon_20"
_OWN = "own_visits_linear/superquantile_theta_0.5_z_1_update_z_1/seed_1"
# Float32 sums in another order, as on another processor, differ by as much.
_TOLERANCE = 1e-4
# Budgets are sums of many terms in double precision; their last digits, too, follow the processor.
_ACCOUNTING_TOLERANCE = 1e-9


@pytest.fixture(autouse=True)
def restored_context():
  old = tff.framework.get_context_stack().current
  yield
  tff.framework.set_default_context(old)


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
  return runner.train(run_config.replace(config, **places, **changed)).path


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


@pytest.mark.parametrize("engine", ["auto", "native"])
def test_a_run_goes_on_for_more_rounds(tmp_path, cache_dir, engine):
  method = "superquantile_theta_0.25"
  shutil.copytree(_KEPT / "synthetic" / method, tmp_path / "synthetic" / method)
  flags = tmp_path / "synthetic" / method / "seed_0" / "flags.txt"
  text = flags.read_text()
  assert "--engine=auto\n" in text
  flags.write_text(text.replace("--engine=auto\n", f"--engine={engine}\n"))
  folder = _train(method, tmp_path, cache_dir, num_rounds=20)
  _assert_same_run(folder, _KEPT / "after_20_rounds")


def test_a_private_run_of_before_does_not_go_on(tmp_path, cache_dir):
  """Its noise was another one, and nothing says whether key and clients are the same."""
  run = tmp_path / "synthetic" / _GEOMETRIC / "seed_0"
  shutil.copytree(_KEPT / "synthetic" / _GEOMETRIC / "seed_0", run)
  for name in ("metrics.json", "weights.npz", "test_clients.csv", "validation_clients.csv"):
    (run / name).unlink()
  with pytest.raises(ValueError, match="no commitments .* as in runs of version 0.2"):
    _train(_GEOMETRIC, tmp_path, cache_dir)


def test_a_private_run_of_version_0_3_goes_on_as_that_version_would(tmp_path, cache_dir):
  """Its clients are split by --seed and its noise follows from the key alone, unlike today's."""
  before = shutil.copytree(_KEPT / "version_0.3", tmp_path / "before")
  run = before / _OWN
  flags = run / "flags.txt"
  flags.write_text(flags.read_text().replace("visits.csv", str(before / "visits.csv")))
  config = _config(run)
  assert config.task.split_seed is None and config.seed == 1
  # A folder has the name of a threshold that was asked for.
  places = dict(output_dir=str(before), cache_dir=str(cache_dir))
  config = run_config.replace(config, threshold=None, **places)
  assert runner.train(config).path == run
  manifest = json.loads((run / "manifest.json").read_text())
  assert set(manifest["commitments"]) == {"noise_key", "clients"}  # Its noise has none.
  after = before / "after_6_rounds"
  _assert_same_run(run, after)
  assert audit.audit_folder(run).holds
  new = runner.train(run_config.replace(config, output_dir=str(tmp_path), num_rounds=1)).path
  ids, old_ids, new_ids = (
    {row["client_id"] for row in _rows(folder / "test_clients.csv")} for folder in (run, after, new)
  )
  assert ids == old_ids != new_ids


def test_a_finished_run_is_not_run_again(kept, cache_dir, capsys):
  before = (kept / "synthetic" / _TREE / "seed_0" / "manifest.json").read_bytes()
  folder = _train(_TREE, kept, cache_dir)
  assert capsys.readouterr().out == f"Finished before: {folder}\n"
  assert (folder / "manifest.json").read_bytes() == before


def test_the_report_is_the_same(kept):
  page.publish(comparison.report(kept, "synthetic"), kept / "synthetic")
  found, expected = (_rows(folder / "synthetic" / "report.csv") for folder in (kept, _KEPT))
  assert {row.pop("decision") for row in found}  # Which that version did not make.
  assert found == expected


@pytest.mark.parametrize("method", [_TREE, _GEOMETRIC])
def test_what_private_runs_leave_holds(kept, method):
  assert audit.audit_folder(kept / "synthetic" / method / "seed_0").holds
