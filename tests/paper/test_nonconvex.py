"""The non-convex theorem, in numbers: derivatives, proximal points, bounds and the drift."""

import functools
import itertools

from helpers import commands
import numpy as np
import pandas as pd
import pytest

from paper import nonconvex
from paper import theory
from paper.convergence import algorithm
from paper.convergence import cutting
from paper.nonconvex import measurement
from paper.nonconvex import network
from paper.nonconvex import theorem
from tff_superquantile import superquantile


@pytest.fixture(scope="module")
def problem():
  return network.build_problem()


@pytest.fixture(scope="module")
def small():
  return network.build_problem(num_clients=8)


@pytest.fixture(scope="module")
def constants(problem):
  return network.build_constants(problem)


@pytest.fixture(scope="module")
def points(problem):
  return 1.5 * np.random.default_rng(0).normal(size=[20, problem.dimension])


def _central_differences(function, point, step=1e-6):
  """The derivatives [d, ...] of a function at a point [d]."""
  steps = step * np.eye(point.size)
  return np.array([function(point + s) - function(point - s) for s in steps]) / (2.0 * step)


def test_network_and_its_derivatives_are_those_of_the_docstring(problem, points):
  weights = np.random.default_rng(1).dirichlet(np.ones(problem.num_clients))
  weights[::3] = 0.0
  for point in points[:5]:
    units = point.reshape(problem.num_units, -1)
    residuals = [
      np.tanh(x @ units.T).mean(axis=1) - y for x, y in zip(problem.features, problem.labels)
    ]
    expected = [0.5 * np.mean(r**2) for r in residuals]
    np.testing.assert_allclose(problem.losses(point), expected, atol=1e-14)
    gradients = _central_differences(problem.losses, point).T
    np.testing.assert_allclose(problem.gradients(point), gradients, atol=1e-9)
    hessian = _central_differences(lambda w: weights @ problem.gradients(w), point)
    np.testing.assert_allclose(problem.mixed_hessian(point, weights), hessian, atol=1e-9)


def test_constants_hold_and_are_not_far_off(problem, constants):
  wide = 3.0 * np.random.default_rng(2).normal(size=[300, problem.dimension])
  wide *= np.random.default_rng(3).uniform(size=[300, 1])
  assert problem.losses(wide).max() <= constants.max_loss
  steepest = max(np.linalg.norm(problem.gradients(w), axis=1).max() for w in wide)
  assert 0.3 * constants.lipschitz < steepest <= constants.lipschitz
  eigenvalues = [
    np.linalg.eigvalsh(problem.mixed_hessian(w, of_client))
    for w in wide[:40]
    for of_client in np.eye(problem.num_clients)
  ]
  assert 0.2 * constants.smoothness < np.max(eigenvalues) <= constants.smoothness
  # The losses are far from convex.
  assert -constants.weak_convexity <= np.min(eigenvalues) < -0.2 * constants.weak_convexity


@pytest.mark.parametrize("theta, size", [(0.5, 8), (0.3, 8), (0.125, 8), (0.5, 4), (1.0, 3)])
def test_proximal_point_is_the_least_of_all(small, points, theta, size):
  constants = network.build_constants(small)
  ranks = cutting.rank_weights(8, theta, size)
  cohorts = list(itertools.combinations(range(8), size))
  modulus = constants.strength - constants.weak_convexity

  def moreau(w, center):
    losses = small.losses(w)
    tails = [superquantile.superquantile(losses[list(cohort)], theta) for cohort in cohorts]
    return np.mean(tails) + 0.5 * constants.strength * np.sum((w - center) ** 2)

  for center in points[:2]:
    found = measurement.proximal_point(small, constants, ranks, center)
    assert found.gap <= 1e-11
    assert found.value == pytest.approx(moreau(found.point, center), abs=1e-12)
    # Strong convexity keeps every other point above the minimum, and only above the minimum.
    others = found.point + 0.05 * np.random.default_rng(4).normal(size=[100, small.dimension])
    for other in others:
      least = found.value + 0.5 * modulus * np.sum((other - found.point) ** 2)
      assert moreau(other, center) >= least - 1e-11


@pytest.mark.parametrize("theta, size", [(1.0, 100), (0.5, 10), (0.1, 100)])
def test_gradient_of_the_envelope_is_that_of_its_values(problem, constants, points, theta, size):
  ranks = cutting.rank_weights(problem.num_clients, theta, size)
  proximal_point = functools.partial(measurement.proximal_point, problem, constants, ranks)
  for point in points[:3]:
    slope = _central_differences(lambda w: proximal_point(w).value, point, 1e-4)
    gradient = constants.strength * (point - proximal_point(point).point)
    np.testing.assert_allclose(gradient, slope, atol=1e-5)
    assert np.linalg.norm(gradient) > 0.01


def test_rounds_are_the_algorithm_as_one_writes_it_down(problem):
  settings = [algorithm.Setting(theta, 12, 0.1, 0.0) for theta in (1.0, 0.33, 0.1)]
  measured = measurement._iterates(
    problem, network.build_start(problem), settings, [np.arange(12)] * 3, 100, 3, 1
  )
  for setting, iterates in zip(settings, measured):
    point = network.build_start(problem)
    for t in range(12):
      np.testing.assert_allclose(iterates[t, 0], point, atol=1e-13)
      weights = superquantile.dual_weights(problem.losses(point), setting.theta)
      models = np.tile(point, [problem.num_clients, 1])
      for _ in range(3):
        models = models - 0.1 * problem.gradients(models)
      point = weights @ models


def test_drift_is_the_mean_over_all_cohorts(small, points):
  ranks = cutting.rank_weights(8, 0.5, 4)
  for point in points[:3]:
    models, squares = np.tile(point, [8, 1]), np.zeros(8)
    for _ in range(4):
      squares += np.sum((models - point) ** 2, axis=1)
      models = models - 0.2 * small.gradients(models)
    of_cohorts = []
    for cohort in itertools.combinations(range(8), 4):
      weights = superquantile.dual_weights(small.losses(point)[list(cohort)], 0.5)
      of_cohorts.append(weights @ squares[list(cohort)])
    found = measurement.drift(small, ranks, point, 0.2, 4)
    assert found == pytest.approx(np.mean(of_cohorts), rel=1e-12)
    assert measurement.drift(small, ranks, point, 0.2, 1) == 0.0


@pytest.mark.parametrize("num_rounds", [1, 2, 16, 1000])
def test_drawn_rounds_have_the_mean_of_all(num_rounds):
  rng = np.random.default_rng(0)
  means = []
  for _ in range(400):
    rounds, shares = measurement.draw_rounds(num_rounds, rng)
    assert shares.sum() == pytest.approx(1.0) and np.all(np.diff(rounds) > 0)
    assert 0 <= rounds[0] and rounds[-1] < num_rounds and len(rounds) <= 45
    means.append(shares @ rounds)
  assert np.mean(means) == pytest.approx((num_rounds - 1) / 2, rel=0.02, abs=1e-9)


def test_theorem_by_hand():
  constants = network.Constants(2.0, 3.0, 5.0, 4.0)
  rate = functools.partial(theorem.learning_rate, constants, 7.0)
  # tau gamma is the least of 1 / 20, sqrt(7 / (45 T)) and (7 / (32 * 225 * 0.75 T))^(1/3).
  assert rate(num_rounds=1, local_steps=1) == pytest.approx(0.05)
  assert rate(num_rounds=70000, local_steps=1) == pytest.approx(np.sqrt(1e-4 / 45))
  third = (7.0 / (5400.0 * 1000)) ** (1 / 3)
  assert rate(num_rounds=1000, local_steps=4) == pytest.approx(third / 4)
  bound = theorem.bound(constants, 7.0, num_rounds=100, rate=0.01, local_steps=3)
  assert bound.start == pytest.approx(4 * 7 / (0.03 * 100))
  assert bound.noise == pytest.approx(4 * 0.03 * 5 * 9)
  assert bound.drift == pytest.approx(bound.noise * 8 * 5 * 0.01 * 2)
  assert theorem.drift_bound(constants, 0.01, 3) == pytest.approx(8 * 9 * 2 * 1e-4 * 9)
  # 0 + 1 + 4 squares.
  assert theorem.plain_drift_bound(constants, 0.01, 3) == pytest.approx(5 * 1e-4 * 9)


@pytest.mark.parametrize("local_steps", [1, 2, 10])
def test_learning_rate_gives_the_theorems_right_side(constants, local_steps):
  for num_rounds in (1, 30, 1000, 10**6, 10**9):
    rate = theorem.learning_rate(constants, 0.3, num_rounds=num_rounds, local_steps=local_steps)
    bound = theorem.bound(
      constants, 0.3, num_rounds=num_rounds, rate=rate, local_steps=local_steps
    ).total
    ratio = 0.3 * constants.smoothness / num_rounds
    drift = (ratio * constants.lipschitz * np.sqrt(1 - 1 / local_steps)) ** (2 / 3)
    right = np.sqrt(ratio) * constants.lipschitz + drift + ratio
    assert 4.0 * right < bound <= 16.0 * right


@pytest.fixture(scope="module")
def measured(problem, constants):
  """The gradient at the theorem's learning rate, by tail fraction."""
  frames = {}
  for theta in (1.0, 0.1):
    descent = measurement.descent(problem, theta, 100)
    settings = [
      algorithm.Setting(
        theta,
        num_rounds,
        theorem.learning_rate(constants, descent, num_rounds=num_rounds, local_steps=5),
        0.0,
      )
      for num_rounds in (16, 256, 1024, 4096)
    ]
    frames[theta] = measurement.measure(
      problem, settings, cohort_size=100, local_steps=5, num_seeds=2
    )
  return frames


def test_gradient_falls_and_is_below_the_bound(measured):
  for points in measured.values():
    assert list(points["num_rounds"]) == [16, 256, 1024, 4096]
    assert np.all(np.diff(points["squared_norm"]) < 0)
    assert np.all(points["squared_norm"] < points["bound"])
    assert np.all(points["drift"] < points["plain_drift_bound"])
    assert points["norm_error"].max() < 1e-5 < 1e-2 * np.sqrt(points["squared_norm"].min())
    assert set(points["num_seeds"]) == {1}  # With everyone nothing is random.
  slopes = [theory.rate(points.iloc[1:], "squared_norm") for points in measured.values()]
  assert -0.6 < min(slopes) <= max(slopes) < -0.3


def test_local_steps_do_the_work_of_rounds(problem, constants):
  def gradient(local_steps, rate, num_rounds):
    setting = algorithm.Setting(0.5, num_rounds, rate, 0.0)
    frame = measurement.measure(
      problem, [setting], cohort_size=100, local_steps=local_steps, num_seeds=1
    )
    return frame["squared_norm"].iloc[0]

  rate = theorem.largest_rate(constants, 10)
  assert gradient(10, rate, 200) == pytest.approx(gradient(1, 10 * rate, 200), rel=0.05)
  assert gradient(10, rate, 200) == pytest.approx(gradient(1, rate, 2000), rel=0.05)
  assert gradient(10, rate, 200) < 0.3 * gradient(1, rate, 200)


def test_checks_fail_where_the_measured_does_not_hold(measured):
  points = measured[0.1]
  drifts = points.assign(schedule="step")
  rates = pd.Series([-0.45])
  assert all(nonconvex.check(points, drifts, rates).values())
  more = drifts.assign(squared_norm=1.2 * drifts["squared_norm"])
  wrong = (
    (points.assign(squared_norm=2.0 * points["bound"]), drifts, rates),
    (points.assign(norm_error=1e-3), drifts, rates),
    (points.assign(drift=2.0 * points["plain_drift_bound"]), drifts, rates),
    (points.assign(plain_drift_bound=2.0 * points["drift_bound"]), drifts, rates),
    (points, pd.concat([drifts, more]), rates),
    (points, drifts, pd.Series([-0.45, -0.2])),
  )
  for arguments in wrong:
    assert not all(nonconvex.check(*arguments).values())


def test_command_leaves_tables_and_figures(tmp_path):
  figures_dir = tmp_path / "figures"
  flags = ("--quick", f"--output_dir={tmp_path}", f"--figures_dir={figures_dir}")
  result = commands.carry_out("paper.nonconvex", *flags, folder=tmp_path)
  assert result.code == 0, result.err
  assert "over rounds, n = 100" in result.out and "T = 256" in result.out
  folder = tmp_path / "nonconvex"
  assert {path.name for path in folder.iterdir()} == {"report.html", "report.md", "report.csv"}
  assert {path.name for path in figures_dir.iterdir()} == {
    f"nonconvex-{figure}-{look}.svg"
    for figure in ("gradient-by-rounds", "client-drift")
    for look in ("light", "dark")
  }
  rows = pd.read_csv(folder / "report.csv")
  # Tail fractions, cohort sizes and numbers of rounds; numbers of local steps and schedules.
  assert len(rows) == 3 * 2 * 5 + 4 * 3 * 5
  assert (rows["squared_norm"] <= rows["bound"]).all()
  text = (folder / "report.md").read_text()
  assert "| 0.1, 10 " in text and "Checks: passed" in text and "FAILED" not in text
