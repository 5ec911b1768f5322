"""The primal-dual thresholds against their recursion, and their tail against theta."""

from helpers import problems
import numpy as np
import pytest

from privacy.noise import banded
from tff_superquantile import noise_source
from tff_superquantile import secure_sums
from tff_superquantile import superquantile
from tff_superquantile import threshold as threshold_lib

pytestmark = pytest.mark.usefixtures("simulation_context")

_KEY = bytes(range(16))
_TINY = 1e-6


def _private(theta=0.3, noise_multiplier=_TINY, expected_clients=10.0, **options):
  return threshold_lib.build_private_primal_dual_quantile(
    theta, noise_multiplier, expected_clients, **{"noise_key": _KEY, **options}
  )


def _rounds(process, rounds, weights=None):
  """The measurements of rounds whose losses are given."""
  state, measurements = process.initialize(), []
  for i, losses in enumerate(rounds):
    of_round = np.ones(len(losses)) if weights is None else weights[i]
    output = process.next(
      state,
      [np.float32(loss) for loss in losses],
      [np.float32(weight) for weight in of_round],
      problems.clients(len(losses)),
    )
    state = output.state
    assert output.measurements["threshold"] == output.result
    measurements.append(output.measurements)
  return measurements


def _recursion(rounds, weights, theta, step):
  """The thresholds, float64; the next one follows the share of those at or above this one."""
  t, thresholds, k = np.inf, [], 0
  for losses, of_round in zip(rounds, weights):
    losses, of_round = np.float32(losses).astype(float), np.asarray(of_round, float)
    counted = (of_round > 0) & ~np.isnan(losses)
    losses, of_round = losses[counted], of_round[counted] / max(of_round[counted].sum(), 1e-9)
    if not losses.size:
      thresholds.append(t)
      continue
    if np.isinf(t):  # The first loss sets it, and the next cohort moves it.
      t = superquantile.quantile(losses, theta, of_round)
      thresholds.append(t)
    else:
      thresholds.append(t)
      share = of_round[losses >= np.float32(t)].sum()
      t = float(np.float32(t + step * (1 + 30 / (1 + k)) * (share / theta - 1.0)))
    k += 1
  return thresholds


def test_equals_the_recursion():
  rng = np.random.default_rng(0)
  rounds = [*rng.gamma(2.0, size=[6, 9]), [], [np.nan, 3.0, 1e30, -2.0], [np.nan], [7.0] * 3]
  rounds = [[np.nan], [], *rounds]  # No loss has set it yet.
  weights = [rng.integers(0, 5, len(losses)) for losses in rounds]
  weights[2][:] = 1
  process = threshold_lib.build_primal_dual_quantile(0.3, step=0.04)
  levels = [m["threshold"] for m in _rounds(process, rounds, weights)]
  np.testing.assert_allclose(levels, _recursion(rounds, weights, 0.3, 0.04), rtol=1e-6)
  assert np.isinf(levels[:2]).all() and np.isfinite(levels[2:]).all() and len(set(levels)) >= 8


def test_the_measured_superquantile_is_the_objective_of_rockafellar_and_uryasev():
  rng = np.random.default_rng(1)
  rounds = rng.gamma(2.0, size=[5, 11])
  process = threshold_lib.build_primal_dual_quantile(0.2, step=0.03)
  for losses, measured in zip(rounds, _rounds(process, rounds)):
    t = float(measured["threshold"])
    objective = t + np.maximum(np.float32(losses) - t, 0.0).mean() / 0.2
    assert measured["loss_superquantile"] == pytest.approx(objective, rel=1e-5)
    assert measured["loss_superquantile"] >= superquantile.superquantile(losses, 0.2) - 1e-5
    assert measured["loss_mean"] == pytest.approx(losses.mean(), rel=1e-5)


def test_small_cohorts_find_the_quantile_of_the_population():
  # The quantile of one cohort of five is its largest loss, of all losses the upper tenth.
  rng = np.random.default_rng(2)
  population = rng.gamma(2.0, size=2000)
  rounds = rng.choice(population, [1200, 5])
  process = threshold_lib.build_primal_dual_quantile(0.1, step=0.02)
  thresholds = np.array([m["threshold"] for m in _rounds(process, rounds)])[400:]
  assert thresholds.mean() == pytest.approx(np.quantile(population, 0.9), abs=0.15)
  in_tail = (rounds[400:] >= thresholds[:, np.newaxis]).mean()
  assert in_tail == pytest.approx(0.1, abs=0.01)  # Exact: 0.2.


@pytest.mark.parametrize("build", [threshold_lib.build_primal_dual_quantile, _private])
def test_theta_one_selects_everybody(build):
  measurements = _rounds(build(1.0), [[3.0, 1.0, -5.0], [0.0], []])
  assert [float(m["threshold"]) for m in measurements] == [-np.inf] * 3


def test_the_private_threshold_takes_the_same_steps():
  rng = np.random.default_rng(3)
  rounds = rng.gamma(2.0, size=[8, 10])
  measurements = _rounds(_private(step=0.04, initial_estimate=1.5), rounds)
  t, above = 1.5, []
  for k, (losses, measured) in enumerate(zip(rounds, measurements)):
    assert measured["threshold"] == pytest.approx(t, rel=1e-5)
    above.append((losses >= t).sum())
    assert measured["estimated_tail_size"] == pytest.approx(max(above[-1], 3.0), abs=1e-3)
    t += 0.04 * (1 + 30 / (1 + k)) * ((losses >= t).mean() / 0.3 - 1.0)
  assert min(above) < 3 < max(above)


def test_the_private_threshold_has_its_noise():
  z, num_clients = 4.0, 30
  # Half of the losses are below: only noise moves the estimate.
  rounds = np.tile(np.repeat([0.0, 1000.0], num_clients // 2), [400, 1])
  process = _private(0.5, z, float(num_clients), step=0.1, initial_estimate=500.0)
  thresholds = np.array([m["threshold"] for m in _rounds(process, rounds)], float)
  steps = 0.1 * (1 + 30 / np.arange(1, len(rounds)))
  noise = np.diff(thresholds) / steps
  expected = 0.5 * z / num_clients / 0.5
  assert noise.std() == pytest.approx(expected, rel=0.12)
  assert noise.mean() == pytest.approx(0.0, abs=4 * expected / 20)


@pytest.mark.parametrize("kind", ["primal_dual", "geometric"])
def test_correlated_noise_is_not_cut_and_cancels(kind):
  z, num_clients, num_rounds = 60.0, 10, 12
  c = banded.checked(banded.optimal(6, banded.Participation(num_rounds, 6)))
  key = noise_source.BandedKey(_KEY, c)
  rounds = np.random.default_rng(3).gamma(2.0, size=[num_rounds, num_clients])
  purpose = f"{kind.replace('_', '-')} threshold"
  of_key = secure_sums.GaussianSum(0.5, 0.5 * z, key, purpose)
  noise = np.ravel(problems.noise_of_rounds(of_key, [[]], num_rounds))
  if kind == "geometric":
    process = threshold_lib.build_geometric_quantile(0.3, z, 10.0, 1.5, noise_key=key)
  else:
    process = _private(noise_multiplier=z, step=0.04, initial_estimate=1.5, noise_key=key)
  measurements = _rounds(process, rounds)
  t, mean, outside = 1.5, -5.0, 0
  for k, (losses, n, measured) in enumerate(zip(rounds, noise, measurements)):
    sum_of_bits = np.where(losses <= t, 0.5, -0.5).sum() + n
    below = sum_of_bits / num_clients + 0.5
    outside += not 0.0 <= below <= 1.0
    if kind == "geometric":
      t *= np.exp(-0.2 * (below - 0.7))
      assert measured["threshold"] == pytest.approx(t, rel=1e-5)
      assert measured["estimated_tail_size"] == pytest.approx(3.0)
      continue
    assert measured["threshold"] == pytest.approx(t, rel=1e-4, abs=1e-5)
    t -= 0.04 * (1 + 30 / (1 + k)) / 0.3 * (below - 0.7)
    mean += 0.1 * (sum_of_bits - mean)
    assert measured["estimated_tail_size"] == pytest.approx(
      np.clip(5.0 - mean, 3.0, 10.0), abs=1e-3
    )
  assert outside > num_rounds / 2  # Most of what a cut would change.


def test_the_private_threshold_of_strange_cohorts():
  measurements = _rounds(_private(), [[np.nan] * 3, [], [np.inf, -np.inf], [1e30] * 40])
  assert np.isfinite([m["threshold"] for m in measurements]).all()
  sizes = [float(m["estimated_tail_size"]) for m in measurements]
  assert min(sizes) >= 3.0 - 1e-6 and sizes[-1] == 10.0
