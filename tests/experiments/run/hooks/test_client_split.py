"""How a run's clients are split: attacks through `train`, and runs that go on."""

import shutil

import numpy as np
import pytest

from tff_superquantile.experiments import evaluate
from tff_superquantile.experiments import finished_run
from tff_superquantile.experiments import run
from tff_superquantile.experiments.config import names
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run import noise_key
from tff_superquantile.experiments.run import runner

_KEY = "00112233445566778899aabbccddeeff\n"
pytestmark = pytest.mark.usefixtures("restored_context")


def _rows():
  rng = np.random.default_rng(0)
  rows = []
  for i in range(30 * 8):
    v, w = rng.normal(size=2)
    rows.append((f"c{i % 30}", int(v + 0.3 * w > 0), f"{v:.4f}", "ab"[int(w > 0)]))
  return rows


@pytest.fixture
def config(tmp_path):
  """Of a table; `write` makes it."""
  _write(tmp_path / "visits.csv", _rows())
  (tmp_path / "key").write_text(_KEY)
  return run_config.from_values(
    task="own",
    data_dir=str(tmp_path / "visits.csv"),
    client_column="site",
    label_column="outcome",
    algorithm="fed_avg",
    num_rounds=2,
    output_dir=str(tmp_path / "results"),
    cache_dir=str(tmp_path / "cache"),
  )


def _write(path, rows):
  lines = ["site,outcome,v,w", *(",".join(map(str, row)) for row in rows)]
  path.write_text("\n".join(lines) + "\n")


def _private(config, tmp_path, name, **changes):
  changes = {"update_noise_multiplier": 30.0, "clip_norm": 1.0, **changes}
  key = str(tmp_path / "key")
  output = str(tmp_path / name)
  return run_config.with_values(config, output_dir=output, noise_key_file=key, **changes)


def test_one_training_client_does_not_move_others_nor_their_inputs(
  config, tmp_path, capsys, monkeypatch
):
  # Noise follows from the clients, too; here it is the same, so that it cancels.
  monkeypatch.setattr(noise_key, "of_noise", lambda key, *_: key)
  asked = dict(min_examples_per_client=3, clients_per_round=10, delta=1e-3)
  whole = runner.train(_private(config, tmp_path, "whole", **asked))
  told = capsys.readouterr().out
  assert whole.flags["client_split"] == "by_id"
  found = finished_run.config(whole, {})
  changed = finished_run.load_task(finished_run.get_task(whole, found), found)[1][
    "train"
  ].client_ids[3]
  is_own = [row[0] == changed for row in _rows()]
  first = is_own.index(True)
  attacks = {
    "two rows": [row for i, row in enumerate(_rows()) if not is_own[i] or i == first],
    "class": [(r[0], 7, *r[2:]) if own else r for r, own in zip(_rows(), is_own)],
    "gone": [row for row, own in zip(_rows(), is_own) if not own],
  }
  members = []
  for name, rows in attacks.items():
    _write(tmp_path / "visits.csv", rows)
    other = runner.train(_private(config, tmp_path, name, **asked))
    said = capsys.readouterr().out
    for one in ("client_id", "num_examples"):
      np.testing.assert_array_equal(other.clients("test")[one], whole.clients("test")[one])
    assert other.columns == whole.columns
    if name != "gone":
      assert said.replace(str(other.path), str(whole.path)) == told
      assert other.manifest["num_clients"] == whole.manifest["num_clients"]
      assert {**other.flags, "output_dir": ""} == {**whole.flags, "output_dir": ""}
      # All that the noise hides: the training clients' part of ten is at most C of 30 C.
      difference = [a - b for a, b in zip(other.weights.trainable, whole.weights.trainable)]
      assert 0 < max(np.abs(d).max() for d in difference) < 1.0
      members.append(other.weights.trainable)
  # Whether its rows are too few or of another class: it takes part without examples.
  for one, another in zip(*members):
    np.testing.assert_array_equal(one, another)


def test_a_shuffled_run_goes_on_with_its_own_clients(config, tmp_path):
  path = runner.train(run_config.with_values(config, client_split="shuffled")).path
  ids = run.Run(path, 0).clients("test")["client_id"]
  # Of 30 clients, 6 are shuffled to the end.
  assert len(ids) == 6
  np.testing.assert_array_equal(evaluate.evaluate(path).columns["client_id"], ids)
  assert runner.train(config).path == path
  (path / "metrics.json").unlink()
  again = runner.train(config)  # It goes on, by the flags of a new run.
  assert again.flags["client_split"] == "shuffled" and again.finished
  np.testing.assert_array_equal(again.clients("test")["client_id"], ids)
  with pytest.raises(ValueError, match="--client_split=shuffled there, by_id here"):
    runner.train(run_config.with_values(config, client_split="by_id"))
  private = _private(config, tmp_path, "private", client_split="shuffled", delta=1e-3)
  with pytest.raises(ValueError, match="Found --client_split=shuffled for a private run"):
    runner.train(private)


def test_runs_with_other_clients_are_not_mixed(config, tmp_path):
  path = runner.train(run_config.with_values(config, client_split="shuffled")).path
  new = run_config.with_values(config, algorithm="superquantile", theta=0.5)
  with pytest.raises(ValueError, match="split otherwise.*--output_dir, or .*=shuffled") as error:
    runner.train(new)
  assert "\n" not in str(error.value)
  noise = dict(update_noise_multiplier=1.0, threshold_noise_multiplier=1.0, clip_norm=1.0)
  with pytest.raises(ValueError, match="another --output_dir.$"):
    runner.train(run_config.with_values(new, **noise))
  assert not names.run_path(new).exists()
  found = runner.train(run_config.with_values(new, client_split="shuffled"))
  test = run.Run(path, 0).clients("test")["client_id"]
  np.testing.assert_array_equal(found.clients("test")["client_id"], test)
  shutil.rmtree(tmp_path / "results")
  assert runner.train(new).flags["client_split"] == "by_id"
