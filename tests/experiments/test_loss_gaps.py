"""Own models' losses by themselves, and runs whose clients are judged by loss gaps."""

import numpy as np
import pytest
from scipy import special
import tensorflow as tf

from privacy import audit
from tasks import models
from tff_superquantile.experiments.config import names
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.references import own_losses
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.experiments.run import runner
from tff_superquantile.simulation import client_files

_SPEC = (tf.TensorSpec([None, 3], tf.float32), tf.TensorSpec([None], tf.int32))


def _clients(feature=0):
  """Clients whose labels follow a rule, are noise, are one alone, and are none."""
  rng = np.random.default_rng(4)
  x = rng.normal(size=[4, 60, 3]).astype(np.float32)
  learnable = (x[0, :, feature] > 0).astype(np.int32)
  noise = rng.integers(0, 2, 60).astype(np.int32)
  return [
    ("rule", x[0], learnable),
    ("noise", x[1], noise),
    ("one", x[2, :1], np.int32([1])),
    ("none", x[3, :0], np.int32([])),
  ]


def _files(folder, clients):
  return client_files.open_or_write_client_files(
    str(folder), lambda: iter(clients), may_lack_examples=True
  )


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
  """The model and the own losses of the clients above."""
  model = models.build_linear_classifier(_SPEC, 2, intercept=True)
  folder = tmp_path_factory.mktemp("own_losses")
  one = own_losses.compute(model, _files(folder / "a", _clients()), 1e-4, 0)
  other = own_losses.compute(model, _files(folder / "b", _clients(1)), 1e-4, 0)
  return one, other


def test_own_models_are_measured_on_what_they_have_not_seen(computed):
  rule, noise, one, none = computed[0]
  untrained = np.log(2.0)
  assert rule < 0.35
  # Fitted to all its rows, a model of noise has a lower loss than any constant.
  x, y = _clients()[1][1:]
  with_one = np.column_stack([x, np.ones(60)])
  w = np.zeros(4)
  for _ in range(3000):
    w -= 0.5 * with_one.T @ (special.expit(with_one @ w) - y) / 60
  fitted = np.mean(np.logaddexp(0.0, with_one @ w) - y * (with_one @ w))
  assert fitted < untrained - 0.004
  assert fitted + 0.004 < noise <= untrained + 1e-6
  assert one == pytest.approx(untrained) and none == 0.0


def test_a_clients_own_loss_follows_from_its_own_rows(computed):
  one, other = computed
  assert one[0] != other[0]
  np.testing.assert_array_equal(one[1:], other[1:])


_GAPS = {
  "eagle_lambda_3": dict(algorithm="eagle", gap_strength=3.0),
  "superquantile_theta_0.5_gap": dict(algorithm="superquantile", theta=0.5, tail_by="gap"),
}


@pytest.mark.parametrize("name", _GAPS)
def test_runs_differ_from_those_by_losses(lab, name):
  small = dict(num_train_clients=12, num_test_clients=6, clients_per_round=8, num_rounds=3)
  run = runner.train(run_config.from_values(**lab.places("gaps"), **small, **_GAPS[name]))
  assert run.path.parent.name == name
  gaps = run.rounds["cohort_loss_mean"][1:]
  assert run_folder.Run(run.path, 0).finished and np.isfinite(gaps).all()
  # Before training every loss is log(10), and an own model is at least as good as none.
  assert -1e-5 < gaps[0] < np.log(10.0) - 0.05


def test_a_private_run_releases_of_gaps_what_it_releases_of_losses(lab):
  private = dict(epsilon=8.0, clip_norm=1.0, num_bins=4, split_seed=0)
  small = dict(num_train_clients=12, num_test_clients=6, clients_per_round=6, num_rounds=2)
  runs = [
    runner.train(run_config.from_values(**lab.places("private_gaps"), **small, **private, **method))
    for method in (_GAPS["eagle_lambda_3"], dict(algorithm="gifair", fairness_strength=1.0))
  ]
  columns, others = (set(run.rounds) for run in runs)
  for run, judged in zip(runs, ("loss gaps", "losses"), strict=True):
    found = audit.audit_folder(run.path)
    assert found.holds
    assert f"a histogram of {judged} with noise" in found.ledger.guarantee["mechanism"]
  assert columns == others and "cohort_loss_mean" not in columns
  assert {path.name for path in runs[0].path.iterdir()} == {p.name for p in runs[1].path.iterdir()}


def test_names_tell_gaps_from_losses():
  labels = [names.label(run_config.from_values(**method)) for method in _GAPS.values()]
  assert labels == ["EAGLE λ = 3", "Superquantile θ = 0.5, by loss gap"]


def test_models_without_one_minimum_are_refused(lab):
  network = dict(task="emnist_convnet", data="standin", num_rounds=1, clients_per_round=2)
  with pytest.raises(ValueError, match="loss gaps with a model that is not linear; expected"):
    runner.train(
      run_config.from_values(**lab.places("no_gaps"), **network, **_GAPS["eagle_lambda_3"])
    )
  assert not list((lab.folder / "no_gaps").rglob("flags.txt"))
