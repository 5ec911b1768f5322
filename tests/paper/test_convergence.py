"""The theory, in numbers: certificates, rates, floors; the library against the simulation."""

import csv
import dataclasses
import functools

from helpers import commands
import numpy as np
import pandas as pd
import pytest
from scipy import optimize

from paper import convergence
from paper import smoothed
from paper import theory
from paper.convergence import algorithm
from paper.convergence import cutting
from paper.convergence import optimum
from paper.convergence import regression
from paper.convergence import smoothing
from tff_superquantile import superquantile

_THETAS = (1.0, 0.5, 0.1, 0.01)
_CHECKED_THETAS = (0.9, 0.5, 0.333, 0.1, 0.01)


@pytest.fixture(scope="module")
def problem():
  return regression.build_problem()


def _ranks(problem, theta, cohort_size=None):
  return cutting.rank_weights(problem.num_clients, theta, cohort_size)


def _gradients(problem, point):
  """The gradients of the F_i at a point [d], without the regulariser: [n, d]."""
  residuals = problem.features @ point - problem.labels
  return np.einsum("ie,ied->id", residuals, problem.features) / problem.labels.shape[1]


def _linear_program(losses, theta):
  """max of sum_i pi_i losses_i over P_theta, by a general solver."""
  n = losses.size
  solution = optimize.linprog(
    -losses, A_eq=np.ones([1, n]), b_eq=[1.0], bounds=(0.0, 1.0 / (theta * n)), method="highs"
  )
  return -solution.fun


def _central_differences(function, point, step=1e-6):
  """The gradient [d] of a function at a point [d]."""
  steps = step * np.eye(point.size)
  return np.array([function(point + s) - function(point - s) for s in steps]) / (2.0 * step)


def _smoothed_objective(problem, point, theta, smoothing):
  """F_theta^nu = max over P_theta of sum_i pi_i F_i - nu KL(pi || uniform), + lambda / 2 |w|^2."""
  losses = problem.losses(point)
  weights = smoothed.dual_weights(losses, theta, smoothing)
  kept = weights[weights > 0]
  entropy = np.sum(kept * np.log(kept * losses.size))
  return weights @ losses - smoothing * entropy + 0.5 * problem.l2 * point @ point


@pytest.fixture(scope="module")
def points(problem):
  return np.random.default_rng(0).normal(size=[5, problem.dimension])


@pytest.mark.parametrize("theta", _CHECKED_THETAS)
def test_objective_is_a_linear_program_and_has_the_subgradient(problem, points, theta):
  def objective(w):
    return superquantile.superquantile(problem.losses(w), theta) + 0.5 * problem.l2 * w @ w

  for point in points:
    losses = problem.losses(point)
    value = superquantile.superquantile(losses, theta)
    assert value == pytest.approx(_linear_program(losses, theta), abs=1e-9)
    of_ranks = problem.objective(point, _ranks(problem, theta))
    assert objective(point) == pytest.approx(of_ranks, abs=1e-9)
    weights = superquantile.dual_weights(losses, theta)
    expected = weights @ _gradients(problem, point) + problem.l2 * point
    np.testing.assert_allclose(_central_differences(objective, point), expected, atol=1e-7)


@pytest.mark.parametrize("theta", _CHECKED_THETAS)
@pytest.mark.parametrize("nu", [1.0, 0.1, 0.01])
def test_smoothed_objective_is_near_and_has_the_gradient(problem, points, theta, nu):
  def objective(w):
    return _smoothed_objective(problem, w, theta, nu)

  for point in points:
    losses = problem.losses(point)
    weights = smoothed.dual_weights(losses, theta, nu)
    expected = weights @ _gradients(problem, point) + problem.l2 * point
    np.testing.assert_allclose(_central_differences(objective, point), expected, atol=1e-7)
    distance = problem.objective(point, _ranks(problem, theta)) - objective(point)
    # The proof has 2 nu log n; the entropy of P_theta is within [0, log(1 / theta)].
    assert -1e-12 <= distance <= 2.0 * nu * np.log(problem.num_clients)


@pytest.mark.parametrize("theta", [0.5, 0.1])
def test_smoothing_has_a_floor_below_its_bound(problem, theta):
  start = np.zeros(problem.dimension)
  best = optimum.minimise(problem, _ranks(problem, theta))
  floors = []
  for nu in (1.0, 0.1, 0.01):
    point = smoothing.minimise(problem, theta, nu, start)
    # Nothing is lower, by another solver.
    other = optimize.minimize(
      lambda w: _smoothed_objective(problem, w, theta, nu),  # noqa: B023
      start,
      method="Nelder-Mead",
      options=dict(maxfev=8000, maxiter=8000, xatol=1e-9, fatol=1e-13),
    )
    assert _smoothed_objective(problem, point, theta, nu) <= other.fun + 1e-10
    floors.append(problem.objective(point, _ranks(problem, theta)) - best.value)
    assert 0.0 < floors[-1] <= nu * np.log(1.0 / theta)
  assert np.all(np.diff(floors) < 0)


def test_little_smoothing_is_slow_and_much_has_a_floor(problem):
  frame = smoothing.measure(problem, [0.5], [1e-3, 1.0], 2**11, 4)
  slow, theorems, smooth = frame.sort_values("smoothing").itertuples()
  assert theorems.is_theorems and not slow.is_theorems
  assert theorems.error < min(slow.error, smooth.error)
  assert slow.error > 100 * slow.bound
  assert smooth.error == pytest.approx(smooth.floor, rel=0.1)


@pytest.mark.parametrize("theta, size", [(1, 100), (0.5, 100), (0.1, 100), (0.01, 100), (0.1, 25)])
def test_optimum_is_certified(problem, theta, size):
  ranks = _ranks(problem, theta, size)
  best = optimum.minimise(problem, ranks)
  # Everything anew: pi is majorised by omega, so in the hull of its permutations, attains the
  # maximum, and makes the subgradient vanish.
  partial = np.cumsum(-np.sort(-best.weights))
  assert np.all(best.weights >= 0) and np.all(partial <= np.cumsum(ranks) + 1e-12)
  assert partial[-1] == pytest.approx(1.0, abs=1e-12)
  losses = problem.losses(best.point)
  assert best.weights @ losses == pytest.approx(-np.sort(-losses) @ ranks, abs=1e-12)
  slope = best.weights @ _gradients(problem, best.point) + problem.l2 * best.point
  assert np.linalg.norm(slope) < 1e-11
  assert 0 <= best.gap < 1e-11
  # No point nearby is better.
  nearby = best.point + 1e-4 * np.random.default_rng(0).normal(size=[200, problem.dimension])
  assert np.all(problem.objective(nearby, ranks) > best.value)


def test_the_problem_is_not_trivial(problem):
  fed_avg = optimum.minimise(problem, _ranks(problem, 1.0))
  for theta in (0.5, 0.1, 0.01):
    best = optimum.minimise(problem, _ranks(problem, theta))
    assert best.num_tied >= 2  # F_theta has a kink at its minimum.
    of_fed_avg = problem.objective(fed_avg.point, _ranks(problem, theta))
    assert of_fed_avg > best.value + 0.005


def test_constants_hold_on_the_ball_and_are_attained(problem):
  constants = regression.build_constants(problem)
  points = np.random.default_rng(0).normal(size=[20000, problem.dimension])
  points *= constants.radius / np.linalg.norm(points, axis=1, keepdims=True)
  assert 0.95 * constants.max_loss < problem.losses(points).max() <= constants.max_loss
  steepest = max(np.linalg.norm(_gradients(problem, w), axis=1).max() for w in points[:4000])
  assert 0.95 * constants.lipschitz < steepest <= constants.lipschitz
  assert constants.smoothness == pytest.approx(1.0)
  assert constants.condition_number == pytest.approx(3.0)
  # Long local training, of any client alone, stays in the ball.
  for learning_rate in (0.01, 0.3, 2 / 3):
    matrices, offsets = problem.local_maps(learning_rate, 1)
    models = points[: problem.num_clients]
    for _ in range(50):
      models = np.einsum("ijk,ik->ij", matrices, models) + offsets
      assert np.linalg.norm(models, axis=1).max() <= constants.radius * (1 + 1e-12)


@pytest.mark.parametrize("theta, size", [(0.5, 4), (0.4, 4), (1.0, 3), (0.1, 5), (0.5, 12)])
def test_rank_weights_are_the_mean_over_all_cohorts(theta, size):
  import itertools

  losses = np.random.default_rng(0).uniform(size=12)
  values = [
    superquantile.superquantile(losses[list(cohort)], theta)
    for cohort in itertools.combinations(range(12), size)
  ]
  ranks = cutting.rank_weights(12, theta, size)
  assert -np.sort(-losses) @ ranks == pytest.approx(np.mean(values), abs=1e-12)
  assert np.all(np.diff(ranks) <= 1e-15)
  with pytest.raises(ValueError, match="cohort_size = 13"):
    cutting.rank_weights(12, theta, 13)


def test_theorem_setting_by_hand():
  constants = regression.Constants(1.0, 5.0, 2.0, 1.0, 0.5)
  arguments = dict(theta=0.5, cohort_size=20, local_steps=4)
  setting = functools.partial(algorithm.theorem_setting, constants, 4.0, **arguments)
  # G^2 = 4, kappa = 3, C = 0.25, T = 10000: log(C T / log m) = 6.7267, the smallest of the deltas.
  delta = np.log(2500 / np.log(20)) / 10000
  late = setting(num_rounds=10000)
  assert late.smoothing == pytest.approx(8 * 4 * delta / 0.5)
  # log(C theta m T) = log 25000, doubled.
  smoothness = 1.5 + 4 / late.smoothing
  expected = min(
    1 / (4 * smoothness), 1 / (24 * np.sqrt(smoothness)), 2 * np.log(25000) / (0.5 * 10000)
  )
  assert late.learning_rate == pytest.approx(expected / 4)
  # Before 16 kappa^(3/2) rounds, delta is capped.
  assert setting(num_rounds=20).smoothing == setting(num_rounds=30).smoothing
  with pytest.raises(ValueError, match="cohort_size = 1"):
    algorithm.theorem_setting(
      constants, 4.0, theta=1.0, cohort_size=1, num_rounds=10, local_steps=1
    )


def test_averaged_iterate_weighs_as_the_theorem_says(problem):
  start = np.ones(problem.dimension)

  def run(num_rounds):
    setting = algorithm.Setting(0.3, num_rounds, 0.05, 0.1)
    return algorithm.simulate(
      problem, start, [setting], cohort_size=problem.num_clients, local_steps=3
    )

  iterates = np.array([start, *[run(t)[1][0, 0] for t in range(1, 21)]])
  beta = (1 - 0.05 * problem.l2 * 3 / 2) ** -(1.0 + np.arange(21))
  expected = beta @ iterates / beta.sum()
  np.testing.assert_allclose(run(20)[0][0, 0], expected, atol=1e-13)


def test_settings_side_by_side_do_not_mix(problem):
  settings = [
    algorithm.Setting(theta, num_rounds, rate, smoothing)
    for theta, num_rounds, rate, smoothing in ((0.5, 7, 0.1, 0.2), (0.1, 30, 0.03, 0.05))
  ]
  arguments = dict(cohort_size=problem.num_clients, local_steps=2)
  start = np.ones(problem.dimension)
  both = algorithm.simulate(problem, start, settings, **arguments)
  for index, setting in enumerate(settings):
    alone = algorithm.simulate(problem, start, [setting], **arguments)
    for together, apart in zip(both, alone):
      np.testing.assert_allclose(together[index], apart[0], atol=1e-14)


@pytest.fixture(scope="module")
def everyone(problem):
  """Errors with all clients, by tail fraction."""
  points = algorithm.measure(
    problem, 100, thetas=_THETAS, all_rounds=[2**k for k in range(9, 15)], num_seeds=1
  )
  return dict(list(points.groupby("theta")))


def test_rate_with_everyone_is_one_over_rounds(problem, everyone):
  # 1 / T, but for logarithms (above -1) and luck with the kinks (below); without kinks the error is
  # that of the local steps, kappa^2 G^2 / (lambda T^2).
  assert theory.rate(everyone[1.0], "error") < -1.7
  for theta in (0.5, 0.1):
    assert -1.6 < theory.rate(everyone[theta], "error") < -0.7
  constants = regression.build_constants(problem)
  for theta, points in everyone.items():
    errors = points["error"].to_numpy()
    assert np.all(np.diff(errors) < 0) and errors[-1] > -1e-12
    # The theorem's own rate term, constants and logarithms left out.
    bounds = constants.lipschitz**2 / (problem.l2 * points["num_rounds"])
    bounds *= 1 / (theta * 100) + np.log(100)
    assert np.all(errors < 10 * bounds)


def test_small_theta_approaches_the_worst_case(problem, everyone):
  optima = list(optimum.compare_optima(problem, (1.0, 0.99, 0.5, 0.1, 0.01)).itertuples())
  values = [best.value for best in optima]
  assert np.all(np.diff(values) > 0)
  assert optima[0].value == optima[0].mean and optima[-1].value == optima[-1].worst
  # The mean pays for the worst case.
  assert np.all(np.diff([best.mean for best in optima]) > 0)
  assert np.all(np.diff([best.worst for best in optima[1:]]) < 0)
  assert optima[1].distance < 0.01 * optima[-1].distance
  # What the algorithm reaches at theta = 1 / n has the loss of the minimax point, almost, which
  # FedAvg's is far from.
  error = everyone[0.01]["error"].iloc[-1]
  of_fed_avg = optima[0].worst - optima[-1].value
  assert error < 0.05 * of_fed_avg


def test_errors_with_cohorts_level_off_at_the_floor(problem):
  points = {}
  for size in (10, 50):
    measured = algorithm.measure(problem, size, thetas=(1.0, 0.1), all_rounds=[2**14], num_seeds=3)
    points[size] = list(measured.itertuples())
  for size in (10, 50):
    biased = [point for point in points[size] if point.theta == 0.1]
    (floor,) = optimum.sampling_biases(problem, [0.1], [size]).itertuples()
    assert 0.8 * floor.floor < biased[-1].error < 2.5 * floor.floor < floor.bound
    # Without reweighting there is no bias, and no floor.
    assert [p.error for p in points[size] if p.theta == 1.0][-1] < 1e-5
  assert points[50][-1].error < points[10][-1].error


def _model(problem, start):
  """The clients' linear regression as a TFF model."""
  import tensorflow as tf
  import tensorflow_federated as tff

  @tf.function
  def predict(weights, x, training):
    del training
    return tf.linalg.matvec(x, weights[0][0])

  d = problem.dimension
  return tff.learning.models.FunctionalModel(
    initial_weights=((start.astype(np.float32),), ()),
    predict_on_batch_fn=predict,
    loss_fn=lambda output, label, sample_weight=None: 0.5 * tf.reduce_mean((output - label) ** 2),
    metrics_fns=tff.learning.metrics.create_functional_metric_fns(dict),
    input_spec=(tf.TensorSpec([None, d], tf.float32), tf.TensorSpec([None], tf.float32)),
  )


@pytest.mark.usefixtures("simulation_context")
@pytest.mark.parametrize("theta, smoothing", [(0.3, 0.2), (1.0, 0.2), (0.05, 0.01)])
def test_simulation_is_the_librarys_learning_process(theta, smoothing):
  import tensorflow as tf
  import tensorflow_federated as tff

  from tff_superquantile import algorithms
  from tff_superquantile import threshold as threshold_lib

  problem = regression.build_problem(num_clients=20)
  start = regression.build_start(problem, regression.build_constants(problem))
  process = algorithms.build_superquantile_fed_avg(
    _model(problem, start),
    theta,
    tff.learning.optimizers.build_sgdm(0.1),
    threshold=functools.partial(threshold_lib.build_exact_reweighting, smoothing=smoothing),
    client_weighting=tff.learning.ClientWeighting.UNIFORM,
    local_epochs=3,
    local_batch_size=0,
    l2=problem.l2,
  )
  data = [
    tf.data.Dataset.from_tensor_slices((x.astype(np.float32), y.astype(np.float32))).batch(3)
    for x, y in zip(problem.features, problem.labels)
  ]
  state = process.initialize()
  for num_rounds in range(1, 5):
    state = process.next(state, data).state
    setting = algorithm.Setting(theta, num_rounds, 0.1, smoothing)
    _, last = algorithm.simulate(problem, start, [setting], cohort_size=20, local_steps=3)
    (weights,) = state.global_model_weights.trainable
    np.testing.assert_allclose(weights, last[0, 0], atol=3e-6)
  assert np.linalg.norm(weights - start) > 0.5


def _run(folder, *arguments):
  arguments = ("--quick", f"--output_dir={folder}", *arguments)
  return commands.carry_out("paper.convergence", *arguments, folder=folder)


def test_command_leaves_tables_and_figures(tmp_path):
  result = _run(tmp_path, f"--figures_dir={tmp_path}/figures")
  assert result.code == 0, result.err
  assert "less its minimum, n = 100" in result.out
  folder = tmp_path / "convergence"
  names = {path.name for path in folder.iterdir()}
  assert names == {"report.html", "report.md", "report.csv", "bias.csv", "smoothing.csv"}
  figures = {path.name for path in (tmp_path / "figures").iterdir()}
  assert figures == {
    f"convergence-{figure}-{theme}.svg"
    for figure in ("error-by-rounds", "sampling-bias", "smoothing")
    for theme in ("light", "dark")
  }
  with open(folder / "report.csv", newline="") as file:
    rows = list(csv.DictReader(file))
  # Tail fractions, cohort sizes and numbers of rounds.
  assert sum(row["threshold"] == "reweighting" for row in rows) == 4 * 4 * 8
  assert sum(row["threshold"] == "primal_dual" for row in rows) == 3 * 3
  assert all(float(row["error"]) > -1e-12 for row in rows)
  page, text = (folder / "report.html").read_text(), (folder / "report.md").read_text()
  assert page.count("data:image/svg+xml") == 6 and "FAILED" not in page
  for row in ("| 0.1, 25 ", "| 0.01 ", "Checks: passed"):
    assert row in text
  assert "FAILED" not in text


def test_checks_fail_where_the_measured_does_not_hold(problem):
  points = pd.DataFrame(dict(error=[0.1, 1e-7]))
  biases = optimum.sampling_biases(problem, (1.0, 0.5), (10,))
  optima = optimum.compare_optima(problem, [0.5])
  duals = pd.DataFrame(dict(theta=[0.5], cohort_size=[10], num_rounds=[2**14], error=[1e-9]))
  smooth = pd.DataFrame(dict(floor=[0.1], bound=[0.2]))
  assert all(convergence.check(points, duals, biases, optima, smooth).values())
  wrong = (
    (points - 0.2, duals, biases, optima, smooth),
    (points, duals.assign(error=0.5 * biases["floor"].max()), biases, optima, smooth),
    (points, duals, biases.assign(largest=2.0 * biases["bound"]), optima, smooth),
    (points, duals, biases.assign(floor=3.0 * biases["bound"]), optima, smooth),
    (points, duals, biases, optima.assign(gap=1e-9), smooth),
    (points, duals, biases, optima, smooth.assign(floor=0.3)),
  )
  for measured in wrong:
    assert not all(convergence.check(*measured).values())


def test_the_primal_dual_threshold_has_no_floor(problem):
  measured = algorithm.measure(
    problem, 10, thetas=[0.1], all_rounds=[2**13], num_seeds=2, threshold_step=0.01
  )
  (floor,) = optimum.sampling_biases(problem, [0.1], [10])["floor"]
  assert floor == pytest.approx(6.0e-3, rel=0.1)
  assert measured["error"].max() <= 1.2e-3


def test_an_empty_tail_leaves_the_model(problem):
  # Two of ten clients are in the first tail, more than theta: the threshold rises above all losses.
  setting = algorithm.Setting(theta=0.15, num_rounds=1, learning_rate=1e-3, smoothing=1.0)
  start = np.ones(problem.dimension)
  arguments = dict(cohort_size=10, local_steps=2, seed=3, threshold_step=1e9)
  points = [
    algorithm.simulate(
      problem, start, [dataclasses.replace(setting, num_rounds=num_rounds)], **arguments
    )[1][0, 0]
    for num_rounds in (1, 2, 3)
  ]
  assert not np.array_equal(points[0], start)
  np.testing.assert_array_equal(points[1], points[0])
  assert not np.array_equal(points[2], points[1])  # It has come down again.


@pytest.mark.parametrize(
  "flag, message",
  [
    ("--num_seeds=1", "num_seeds"),
    ("--output_dir=/dev/null", "/dev/null"),
    ("--figures_dir=/dev/null/x", "--figures_dir"),
  ],
)
def test_mistakes_end_in_one_sentence(tmp_path, flag, message):
  result = _run(tmp_path, flag)
  result.assert_fails_with_a_sentence(2, message)
