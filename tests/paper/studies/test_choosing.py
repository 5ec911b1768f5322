"""The clients' choice among models against brute force, and what the comparison claims."""

import numpy as np
import pytest

from paper.studies import choosing
from tff_superquantile import evaluation

_MODELS = ["fed_avg", "superquantile_theta_0.5", "superquantile_theta_0.1"]


def _part(seed=0, num_clients=40, num_examples=8):
  rng = np.random.default_rng(seed)
  error = rng.integers(0, num_examples + 1, [len(_MODELS), num_clients]) / num_examples
  return choosing.PartMetrics(error + rng.uniform(size=error.shape), error)


def _compare(held_in, held_out, models=_MODELS):
  return choosing.compare(models, held_in, held_out, np.random.default_rng(0))


@pytest.mark.parametrize("criterion", choosing.CRITERIA)
def test_choice_is_that_of_brute_force(criterion):
  part = _part()
  for client, got in enumerate(choosing.choose(part, criterion)):
    keys = [
      (part.error[m, client], part.loss[m, client])
      if criterion == "error"
      else part.loss[m, client]
      for m in range(len(_MODELS))
    ]
    assert got == keys.index(min(keys))


def test_ties_go_to_the_smaller_loss_then_to_the_first():
  error = np.array([[0.2, 0.2, 0.2, np.nan], [0.2, 0.2, 0.1, 0.5], [0.3, 0.2, 0.1, 0.5]])
  loss = np.array([[1.0, 1.0, 0.1, 0.1], [0.5, 1.0, 2.0, np.inf], [0.1, 1.0, 1.0, np.inf]])
  assert list(choosing.choose(choosing.PartMetrics(loss, error))) == [1, 0, 2, 1]


def test_refuses_what_is_no_choice():
  with pytest.raises(ValueError, match="criterion = 'luck'"):
    choosing.choose(_part(), "luck")
  with pytest.raises(ValueError, match="expected \\[models, clients\\] twice"):
    choosing.choose(choosing.PartMetrics(np.zeros([2, 3]), np.zeros([3, 3])))
  with pytest.raises(ValueError, match="at least two models"):
    _compare(_part(), _part(num_clients=3))
  with pytest.raises(ValueError, match="at least two models"):
    _compare(_part(), _part(), ["fed_avg"])
  with pytest.raises(ValueError, match="different names"):
    _compare(_part(), _part(), ["fed_avg", "oracle", "x"])


def test_every_way_is_measured_on_the_held_out_examples():
  held_in, held_out = _part(0), _part(1)
  result = _compare(held_in, held_out)
  everyone = np.arange(40)

  def described(pick):
    return evaluation.describe(held_out.error[pick, everyone])

  choice = [
    min(range(3), key=lambda m: (held_in.error[m, i], held_in.loss[m, i])) for i in everyone
  ]
  assert list(result.choice) == choice
  for i, name in enumerate(_MODELS):
    assert result.statistics[name]["error"] == evaluation.describe(held_out.error[i])
    assert result.statistics[name]["loss"] == evaluation.describe(held_out.loss[i])
    assert result.shares[name] == pytest.approx(np.mean(np.array(choice) == i))
  assert result.statistics[choosing.BY_ERROR]["error"] == described(choice)
  assert result.statistics[choosing.BY_LOSS]["error"] == described(held_in.loss.argmin(axis=0))
  p90 = [np.percentile(error, 90) for error in held_in.error]
  assert result.tuned_single == _MODELS[np.argmin(p90)]
  assert result.statistics[choosing.TUNED_SINGLE]["error"] == described(np.full(40, np.argmin(p90)))
  tied = [np.sum(held_in.error[:, i] == held_in.error[:, i].min()) > 1 for i in everyone]
  assert result.tied == pytest.approx(np.mean(tied))


def test_dealing_choices_at_random_keeps_the_shares_only():
  # Every client has a model of its own that is always right; the others are always wrong.
  own = np.arange(60) % 3
  error = (own[np.newaxis] != np.arange(3)[:, np.newaxis]).astype(float)
  part = choosing.PartMetrics(error, error)
  result = _compare(part, part)
  mean = {name: s["error"]["mean"] for name, s in result.statistics.items()}
  assert mean[choosing.BY_ERROR] == 0.0
  assert mean[choosing.SHUFFLED] == pytest.approx(2 / 3, abs=0.02)
  assert mean["fed_avg"] == pytest.approx(2 / 3)
