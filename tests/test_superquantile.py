"""The mathematics against linear programming, convex conditions and closed forms."""

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest
from scipy import optimize

from paper import smoothed
from tff_superquantile import superquantile

_LOSS = st.floats(-5, 5, allow_nan=False).map(lambda value: round(value, 3))
_WEIGHT = st.floats(0.05, 20)


@st.composite
def _clients(draw, weighted=True):
  losses = draw(st.lists(_LOSS, min_size=1, max_size=12))
  weights = None
  if weighted and draw(st.booleans()):
    weights = draw(st.lists(_WEIGHT, min_size=len(losses), max_size=len(losses)))
  theta = draw(st.one_of(st.floats(0.01, 1.0), st.sampled_from([0.1, 0.25, 0.3, 0.5, 0.7, 1.0])))
  return np.array(losses), theta, None if weights is None else np.array(weights)


def _alpha(losses, weights):
  weights = np.ones(len(losses)) if weights is None else weights
  return weights / weights.sum()


def _solve_dual(losses, theta, weights):
  alpha = _alpha(losses, weights)
  solution = optimize.linprog(
    -losses, A_eq=np.ones((1, len(losses))), b_eq=[1.0], bounds=[(0, a / theta) for a in alpha]
  )
  assert solution.success
  return -solution.fun


@hypothesis.given(_clients())
def test_dual_weights_attain_the_linear_program(clients):
  losses, theta, weights = clients
  pi = superquantile.dual_weights(losses, theta, weights)
  assert np.all(pi >= 0) and pi.sum() == pytest.approx(1.0)
  assert np.all(pi <= _alpha(losses, weights) / theta * (1 + 1e-8))
  assert pi @ losses == pytest.approx(_solve_dual(losses, theta, weights), abs=1e-8)
  assert superquantile.superquantile(losses, theta, weights) == pytest.approx(pi @ losses)


@hypothesis.given(_clients())
def test_quantile_is_the_upper_one(clients):
  losses, theta, weights = clients
  alpha = _alpha(losses, weights)
  eta = superquantile.quantile(losses, theta, weights)
  assert eta in losses
  assert alpha[losses > eta].sum() < theta * (1 + 1e-8)
  assert alpha[losses >= eta].sum() >= theta * (1 - 1e-8)


@hypothesis.given(st.integers(1, 300), st.integers(1, 100))
def test_exactly_ceil_theta_n_untied_losses_pass(n, percent):
  losses = np.random.default_rng(n).permutation(n).astype(float)
  eta = superquantile.quantile(losses, percent / 100)
  assert np.sum(losses >= eta) == -(-percent * n // 100)


def test_threshold_rule_equals_the_dual_when_theta_n_is_an_integer():
  losses = np.random.default_rng(0).normal(size=40)
  for k in range(1, 41):
    np.testing.assert_allclose(
      superquantile.tail_weights(losses, k / 40),
      superquantile.dual_weights(losses, k / 40),
      atol=1e-9,
    )


def test_threshold_rule_is_within_the_papers_bound():
  # Proposition "quantile": 0 <= F_theta - hat F_theta <= B / (theta n) for losses in [0, B].
  rng = np.random.default_rng(1)
  for _ in range(200):
    losses, theta = rng.uniform(0, 2, size=rng.integers(2, 30)), rng.uniform(0.05, 1)
    gap = superquantile.superquantile(losses, theta) - (
      superquantile.tail_weights(losses, theta) @ losses
    )
    assert -1e-9 <= gap <= 2 / (theta * len(losses)) + 1e-9


@hypothesis.given(_clients(), st.floats(0.01, 50))
def test_smoothed_weights_satisfy_the_optimality_conditions(clients, smoothing):
  losses, theta, weights = clients
  alpha = _alpha(losses, weights)
  pi = smoothed.dual_weights(losses, theta, smoothing, weights)
  assert pi.sum() == pytest.approx(1.0)
  assert np.all(pi <= alpha / theta * (1 + 1e-7))
  # Gradient of the objective: one value on uncapped clients, no smaller on capped ones.
  positive = pi > 1e-250
  gradient = losses[positive] - smoothing * (np.log(pi[positive] / alpha[positive]) + 1)
  capped = pi[positive] >= alpha[positive] / theta * (1 - 1e-7)
  if np.any(~capped):
    level = gradient[~capped]
    assert np.ptp(level) < 1e-5 * max(1.0, smoothing)
    if np.any(capped):
      assert gradient[capped].min() >= level.max() - 1e-5 * max(1.0, smoothing)


def test_smoothing_meets_both_limits_and_stays_finite():
  losses = np.array([0.1, 1e4, 3.0, -1e4, 2.0])
  np.testing.assert_allclose(
    smoothed.dual_weights(losses, 0.5, 1e-6),
    superquantile.dual_weights(losses, 0.5),
    atol=1e-9,
  )
  np.testing.assert_allclose(smoothed.dual_weights(losses, 0.5, 1e9), np.full(5, 0.2), atol=1e-4)
  np.testing.assert_allclose(smoothed.dual_weights(losses, 1.0, 0.5), np.full(5, 0.2), atol=1e-9)


@pytest.mark.parametrize("weighted", [False, True])
def test_smoothed_weights_of_many_cohorts_are_those_of_each(weighted):
  rng = np.random.default_rng(5)
  losses = np.round(rng.normal(size=[3, 4, 15]), 1)  # Some tie.
  thetas = rng.choice([0.01, 0.1, 0.333, 0.5, 0.9, 1.0], size=[3, 4])
  smoothings = rng.choice([1.0, 0.1, 0.01], size=[3, 4])
  weights = rng.uniform(0.1, 2.0, size=losses.shape) if weighted else None
  many = smoothed.dual_weights(losses, thetas, smoothings, weights)
  alike = smoothed.dual_weights(losses, 0.3, 0.2, weights)
  for index in np.ndindex(3, 4):
    of_one = None if weights is None else weights[index]
    one = smoothed.dual_weights(losses[index], thetas[index], smoothings[index], of_one)
    np.testing.assert_allclose(many[index], one, rtol=0.0, atol=1e-15)
    one = smoothed.dual_weights(losses[index], 0.3, 0.2, of_one)
    np.testing.assert_allclose(alike[index], one, rtol=0.0, atol=1e-15)


@pytest.mark.parametrize(
  "theta,smoothing,message",
  [
    ([0.5, 1.5], 1.0, "theta = 1.5"),
    ([0.0, 0.5], 1.0, "theta = 0.0"),
    ([0.5, float("nan")], 1.0, "theta = nan"),
    (0.5, [1.0, 0.0], "smoothing"),
  ],
)
def test_one_bad_cohort_among_many_is_refused(theta, smoothing, message):
  losses = [[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]
  with pytest.raises(ValueError, match=message):
    smoothed.dual_weights(losses, theta, smoothing)


@hypothesis.given(st.lists(_LOSS, min_size=1, max_size=30), st.floats(0, 100))
def test_percentile_with_equal_weights_is_numpys(values, q):
  assert superquantile.percentile(values, q) == pytest.approx(np.percentile(values, q), abs=1e-9)
  assert superquantile.percentile(values, q, np.full(len(values), 3.0)) == pytest.approx(
    np.percentile(values, q), abs=1e-9
  )


def test_percentile_follows_the_weights():
  assert superquantile.percentile([0.0, 1.0], 50, [1.0, 9.0]) == pytest.approx(0.5)
  assert superquantile.percentile([0.0, 1.0, 2.0], 50, [1.0, 1.0, 98.0]) > 1.4
  assert superquantile.percentile([0.0, 7.0], 30, [1.0, 0.0]) == 0.0


@pytest.mark.parametrize("theta", [0, -0.1, 1.0001, float("nan"), float("inf")])
def test_theta_outside_its_range_is_refused(theta):
  with pytest.raises(ValueError, match=r"tail fraction must lie in \(0, 1\]"):
    superquantile.quantile([1.0, 2.0], theta)


@pytest.mark.parametrize(
  "losses,weights,message",
  [
    ([], None, "one loss a client"),
    ([[1.0]], None, "one loss a client"),
    ([1.0, float("nan")], None, "not finite"),
    ([1.0, 2.0], [1.0], "weights of shape"),
    ([1.0, 2.0], [0.0, 0.0], "not all zero"),
    ([1.0, 2.0], [-1.0, 2.0], "not negative"),
  ],
)
def test_bad_losses_and_weights_are_refused(losses, weights, message):
  for function in (superquantile.quantile, superquantile.dual_weights, superquantile.tail_weights):
    with pytest.raises(ValueError, match=message):
      function(losses, 0.5, weights)
  with pytest.raises(ValueError, match="smoothing"):
    smoothed.dual_weights([1.0], 0.5, 0.0)
