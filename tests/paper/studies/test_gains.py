"""The studies of gains: changes by brute force, what is left out, what is refused."""

import pathlib
import shutil

import numpy as np
import pytest

from paper.studies import cohort_gain
from paper.studies import gains
from paper.studies import noise_gain
from tff_superquantile import atomic_files
from tff_superquantile.experiments.config import names
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run import cross_validation
from tff_superquantile.experiments.run import run_folder

_TASK = "emnist_linear_folds_2"
_KEPT = pathlib.Path(__file__).parents[2] / "experiments" / "kept_results" / "synthetic"
_LEDGER = _KEPT / "superquantile_theta_0.5_tree_epsilon_20" / "seed_0" / "privacy.json"


def _write(output_dir, *, errors, **flags):
  """Writes the two runs of a cross-validation; the even clients are tested by the first."""
  own = dict(dict(task="emnist_linear", folds=2, client_split="by_id"), **flags)
  own.setdefault("algorithm", "superquantile")
  own.setdefault("run_name", "_".join(f"{flag}_{value}" for flag, value in flags.items()))
  for seed in (0, 1):
    folder = output_dir / _TASK / names.folder(run_config.from_values(**own)) / f"seed_{seed}"
    folder.mkdir(parents=True)
    flags = {**own, "seed": seed, "exact_siblings": "refused"}
    lines = [f"--{flag}={value}\n" for flag, value in flags.items()]
    (folder / "flags.txt").write_text("".join(lines))
    rows = [f"c{i},{error},0.5,10\n" for i, error in enumerate(errors) if i % 2 == seed]
    (folder / "test_clients.csv").write_text("client_id,error,loss,num_examples\n" + "".join(rows))
    of_run = {"mean": float(np.mean(errors[seed::2])), "p90": 0.5, "superquantile_90": 0.5}
    atomic_files.write_json(folder / "metrics.json", {"test": {"error": of_run}})


@pytest.fixture
def drawn(tmp_path):
  rng = np.random.default_rng(0)
  errors = {}
  for size in (20, 100):
    for averaged in (1, 50):
      for theta in (1.0, 0.5):
        method = dict(algorithm="fed_avg") if theta == 1.0 else dict(theta=theta)
        of_clients = np.round(rng.beta(2, 4, 40), 6)
        errors[theta, averaged, size] = of_clients
        shared = dict(clients_per_round=size, averaged_rounds=averaged)
        _write(tmp_path, errors=of_clients, **method, **shared)
  # Without FedAvg's with as many clients, by another rate, and another method.
  _write(tmp_path, errors=of_clients, theta=0.5, clients_per_round=30)
  _write(tmp_path, errors=of_clients, theta=0.5, clients_per_round=20, l2=0.5)
  _write(tmp_path, errors=of_clients, algorithm="q_fed_avg", q=1.0, clients_per_round=20)
  return tmp_path, errors


def _points(folder):
  return gains.find(cross_validation.pool(run_folder.find_runs(folder)), cohort_gain.AXIS)


def test_changes_are_those_of_all_clients_together(drawn):
  folder, errors = drawn
  points = _points(folder)
  assert [(p.averaged, p.place) for p in points] == [(1, 20), (1, 100), (50, 20), (50, 100)]
  for point in points:
    ours, theirs = (errors[theta, point.averaged, point.place] for theta in (0.5, 1.0))
    change = point.changes["test.error.mean"]
    assert change.value == pytest.approx(np.mean(ours - theirs))
    # The normal interval of paired differences, which that of a bootstrap is near.
    half = 1.96 * np.std(ours - theirs, ddof=1) / np.sqrt(40)
    assert change.high - change.low == pytest.approx(2 * half, rel=0.15)
    p90 = np.percentile(ours, 90) - np.percentile(theirs, 90)
    assert point.changes["test.error.p90"].value == pytest.approx(p90)
    worst = np.sort(ours)[-4:].mean() - np.sort(theirs)[-4:].mean()
    assert point.changes["test.error.superquantile_90"].value == pytest.approx(worst)


def test_the_page_says_each_change_in_words_and_in_its_figure(drawn):
  folder, errors = drawn
  page = cohort_gain.report(folder, _TASK)
  table, figure = page.blocks
  assert len(table.rows) == 4 and "averaged model, K = 50" in table.rows[2].name
  told = 100 * np.mean(errors[0.5, 1, 20] - errors[1.0, 1, 20])
  text = f"{told:+.1f}".replace("-", "\N{MINUS SIGN}")
  assert table.rows[0].cells[0].text == text
  assert f"Mean, last round’s model: {text} at 20" in figure.alt and b"<svg" in figure.light


def test_runs_without_a_partner_are_refused(tmp_path):
  _write(tmp_path, errors=np.full(40, 0.5), theta=0.5, clients_per_round=20)
  _write(tmp_path, errors=np.full(40, 0.5), algorithm="fed_avg", clients_per_round=30)
  with pytest.raises(ValueError, match="Found no place with both FedAvg and a theta in 2 runs"):
    _points(tmp_path)


def test_noise_is_that_of_the_ledger(tmp_path):
  errors = np.linspace(0.1, 0.5, 40)
  for epsilon, method in ((20.0, {"algorithm": "fed_avg"}), (20.5, {"theta": 0.5}), (3.0, {})):
    _write(tmp_path, errors=errors, epsilon=epsilon, clip_norm=0.1, **method)
  for folder in tmp_path.glob("*/*epsilon_20*/seed_*"):
    shutil.copy(_LEDGER, folder)
  (point,) = gains.find(cross_validation.pool(run_folder.find_runs(tmp_path)), noise_gain.AXIS)
  assert point.place == 0.54 and point.changes["test.error.mean"].value == 0.0
