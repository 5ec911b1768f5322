"""What a report says of clients that nobody has seen, by plain counts of its test clients."""

import math
import re

from helpers import finished_runs
import numpy as np
import pytest
from scipy import stats

from tff_superquantile.experiments.evidence import grouped
from tff_superquantile.experiments.pages import style
from tff_superquantile.experiments.report import new_clients
from tff_superquantile.experiments.run import cross_validation

_METHODS = ("fed_avg", "superquantile_theta_0.5")


def _errors(number, methods=_METHODS):
  rng = np.random.default_rng(number)
  return {method: np.round(rng.random(number), 3) for method in methods}


def _bound(errors, share, num_methods):
  """The least error that so many more clients have than the share that the margin covers it."""
  margin = stats.ksone.isf(0.05 / num_methods, len(errors))
  place = math.ceil(len(errors) * (share + margin) - 1e-9)
  return 100 * sorted(errors)[place - 1]


def test_the_sentence_by_a_plain_count(tmp_path):
  errors = _errors(100)
  (text,) = new_clients.sentences(finished_runs.fabricate(tmp_path, errors))
  bounds = [f"{_bound(errors[method], 0.8, 2):.1f} %" for method in _METHODS]
  assert text.startswith(
    "With 95 % confidence at least 80 % of new clients drawn like these 100 test clients have an"
    f" error of at most {bounds[0]} with FedAvg, {bounds[1]} with Superquantile θ = 0.5: all of it"
    " at once, of the models of seed 0. It supposes"
  )
  most = 1 - stats.ksone.isf(0.025, 100)
  number = int(re.search(r"what 90 % do not exceed takes (\d+) test clients", text)[1])
  assert f"Of more than {math.floor(100 * most)} % of new clients" in text
  assert stats.ksone.isf(0.025, number) <= 0.1 < stats.ksone.isf(0.025, number - 1)


def test_few_clients_are_told_what_they_cannot_say(tmp_path):
  groups = finished_runs.fabricate(tmp_path, _errors(3))
  (text,) = new_clients.sentences(groups)
  assert text.startswith("With 95 % confidence, of more than 29 % of new clients 3 test clients")
  with pytest.raises(style.NothingToDraw):
    new_clients.upper_bands(groups)


def test_all_methods_count_for_the_confidence_and_contenders_are_shown(tmp_path):
  methods = ["fed_avg", *(f"q_fed_avg_q_{q}" for q in range(1, 9))]
  errors = _errors(120, methods)
  groups = finished_runs.fabricate(tmp_path, errors)
  (text,) = new_clients.sentences(groups)
  assert f"at most {_bound(errors['fed_avg'], 0.8, 9):.1f} % with FedAvg" in text
  assert text.count(" % with ") == len(groups.contenders) < len(groups)
  assert b"<svg" in new_clients.upper_bands(groups.contenders).light


def test_of_several_seeds_or_folds_it_is_about_one_model(tmp_path):
  errors = {seed: _errors(40 + seed) for seed in (0, 1)}
  for seed, of_seed in errors.items():
    flags = dict(task="own", folds=2, client_split="by_id")
    groups = finished_runs.fabricate(tmp_path, of_seed, seed=seed, **flags)
  (text,) = new_clients.sentences(grouped.by_method(cross_validation.pool(groups.runs)))
  assert "these 40 test clients" in text
  assert f"at most {_bound(errors[0]['fed_avg'], 0.7, 2):.1f} % with FedAvg" in text
  assert "of the models of seed 0, of one fold of the cross-validation, each of which has" in text


def test_clients_that_are_trained_on_bound_nothing(tmp_path):
  groups = finished_runs.fabricate(tmp_path, _errors(50), held_out_examples=0.5, task="own")
  assert not new_clients.sentences(groups)
  with pytest.raises(style.NothingToDraw):
    new_clients.upper_bands(groups)


def test_private_runs_say_whose_errors_these_are(tmp_path):
  private = ["fed_avg_epsilon_5", "superquantile_theta_0.5_tree_epsilon_5"]
  (text,) = new_clients.sentences(finished_runs.fabricate(tmp_path, _errors(60, private)))
  assert "who are public in private runs" in text
  assert "of the models of seed 0 at ε = 5. It supposes" in text


def test_the_figure_has_the_steps_of_the_band(tmp_path, monkeypatch):
  errors = {"fed_avg": np.array([0.2] * 50 + [0.5] * 50)}
  groups = finished_runs.fabricate(tmp_path, errors)
  drawn = []
  monkeypatch.setattr(style, "to_svg", lambda figure: drawn.append(figure) or b"")
  caption = new_clients.upper_bands(groups).caption
  band, measured = (patch.get_data() for patch in drawn[0].axes[0].patches)
  margin = 100 * stats.ksone.isf(0.05, 100)
  np.testing.assert_allclose(band.values, [50 - margin, 100 - margin])
  np.testing.assert_allclose(measured.values, [50, 100])
  np.testing.assert_allclose(band.edges[:2], [20, 50])
  assert "the models of seed 0" in caption
