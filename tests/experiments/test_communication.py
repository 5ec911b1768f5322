"""The study of messages: bytes by hand, and rounds until a target error."""

import dataclasses

import finished_runs
import flat
import numpy as np
import pytest

from privacy.noise import sum_mechanism
from privacy.noise import tree_mechanism
from tff_superquantile.experiments.report import page
from tff_superquantile.experiments.run import run_config
from tff_superquantile.experiments.studies import communication
from tff_superquantile.experiments.studies import messages

_WEIGHTS = 210  # The synthetic task's: 20 features and an intercept for each of 10 classes.


def _config(**flags):
  return run_config.of(clients_per_round=100, **flags)


def _of_round(config, release):
  return messages.of_round(config.method, config.cohort.size, _WEIGHTS, release)


@pytest.mark.parametrize(
  "flags, down, threshold_up, update_up, senders, cohort",
  [
    (dict(algorithm="fed_avg"), 840, 0, 844, 100, 100),
    (dict(algorithm="fed_avg_sub", theta=0.25), 840, 0, 844, 25, 25),
    (dict(algorithm="superquantile", theta=0.25), 844, 8, 844, 25, 100),
    # 0.07 * 100 is more than 7 in floating point.
    (dict(algorithm="superquantile", theta=0.07), 844, 8, 844, 7, 100),
    (
      dict(algorithm="superquantile", theta=0.5, threshold="reweighting"),
      *(848, 8, 844, 50, 100),
    ),
    (
      dict(
        algorithm="superquantile", theta=0.5, threshold="geometric", threshold_noise_multiplier=9.0
      ),
      # Up to 100 clients' bits fit 7 bits.
      *(844, 7 / 8, 844, 50, 100),
    ),
  ],
)
def test_counts_the_messages(flags, down, threshold_up, update_up, senders, cohort):
  traffic = _of_round(_config(**flags), None)
  assert dataclasses.astuple(traffic) == (down, threshold_up, update_up, senders, cohort)
  assert traffic.plain == cohort * threshold_up + senders * update_up
  assert traffic.secure == cohort * (threshold_up + update_up)


def test_counts_what_clients_with_noise_send():
  tree = tree_mechanism.build_tree_mechanism(2.0, 16, 100)
  update = sum_mechanism.build_sum_mechanism(1.0, 1.0, _WEIGHTS, 100)
  release = flat.release(
    population=2500,
    clients_per_round=100,
    threshold_noise_multiplier=2.0,
    update_noise_multiplier=1.0,
    tree=tree,
    update_sum=update,
  )
  config = _config(
    algorithm="superquantile",
    theta=0.5,
    threshold="tree",
    threshold_noise_multiplier=2.0,
    num_bins=16,
  )
  traffic = _of_round(config, release)
  # 16 + 8 + 4 + 2 counts below the modulus; the updates' integers below theirs.
  assert traffic.threshold_up == 30 * int(np.ceil(np.log2(tree.modulus))) / 8
  assert traffic.update_up == _WEIGHTS * int(np.ceil(np.log2(update.modulus))) / 8
  # Without a budget the same tree follows from the flags.
  alone = _of_round(config, None)
  assert alone.threshold_up == traffic.threshold_up


def _write(output_dir, method, seed, tails):
  folder = finished_runs.write_run(output_dir, method, seed)
  rows = [f"{10 * i},{tail}" for i, tail in enumerate(tails)]
  (folder / "rounds.csv").write_text("\n".join(["round,test_error_p90", *rows, ""]))


def test_counts_until_the_target(tmp_path):
  for seed in (0, 1):
    _write(tmp_path, "fed_avg", seed, [0.9, 0.6, 0.5])
    _write(tmp_path, "superquantile_theta_0.5", seed, [0.9, 0.5, 0.4])
  _write(tmp_path, "q_fed_avg_q_1", 0, [0.9, 0.3, 0.2])  # Its messages are not counted.
  content = communication.report(tmp_path, finished_runs.TASK, None)
  (table,) = content.blocks
  cells = {row.name: dict(zip(table.headings[1:], row.cells)) for row in table.rows}
  assert list(cells) == ["FedAvg", "Superquantile θ = 0.5"]
  assert cells["FedAvg"]["rounds to target"].text == "20"
  assert cells["Superquantile θ = 0.5"]["rounds to target"].text == "10"
  # 18 weights and the sum of weights of 10 clients, 20 rounds.
  assert float(cells["FedAvg"]["up to target, MB"].text) == pytest.approx(
    20 * 10 * 4 * 19 / 1e6, abs=5e-3
  )
  assert "Superquantile θ = 0.5 reaches" in content.summary
  page.write(content, tmp_path)


def test_says_where_nothing_can_be_counted(tmp_path):
  _write(tmp_path, "q_fed_avg_q_1", 0, [0.9])
  with pytest.raises(ValueError, match="no finished run of FedAvg"):
    communication.report(tmp_path, finished_runs.TASK, None)


def test_a_target_that_nobody_reaches_leaves_blanks(tmp_path):
  _write(tmp_path, "fed_avg", 0, [0.9, 0.6])
  content = communication.report(tmp_path, finished_runs.TASK, 0.1)
  assert "No method reaches a 90th percentile of 10.0 %" in content.summary
  (table,) = content.blocks
  assert table.rows[0].cells[table.headings.index("seeds there, %") - 1].text == "0"
