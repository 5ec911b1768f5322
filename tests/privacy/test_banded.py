"""Noise that is correlated over rounds: against matrices, brute force, jax_privacy and a table."""

import itertools
import json
import pathlib

from helpers import gaussian
import numpy as np
import pytest
from scipy import integrate
from scipy import linalg
from scipy import stats

from privacy import account
from privacy.noise import banded

_ORACLES = json.loads(
  pathlib.Path(__file__).with_name("banded_oracles.json").read_text(encoding="utf-8")
)
_RUN = ("--population=2500", "--clients_per_round=100", "--num_rounds=1000", "--delta=4e-4")


def _matrix(c, num_rounds):
  column = np.zeros(num_rounds)
  column[: len(c)] = c
  return linalg.toeplitz(column, np.zeros(num_rounds))


def _brute_force(c, participation, signs=(1.0,)):
  """The largest norm of C g over all rounds that a client may take, and all signs of g."""
  matrix, largest = _matrix(c, participation.num_rounds), 0.0
  for k in range(1, participation.most + 1):
    for rounds in itertools.combinations(range(participation.num_rounds), k):
      if all(np.diff(rounds) >= participation.separation):
        for g in itertools.product(signs, repeat=k):
          largest = max(largest, np.linalg.norm(matrix[:, list(rounds)] @ g))
  return largest


@pytest.mark.parametrize(
  "num_rounds,separation,most",
  [(9, 2, None), (10, 3, None), (10, 3, 2), (8, 1, 3), (7, 4, 1), (11, 4, None)],
)
def test_sensitivity_by_brute_force(num_rounds, separation, most):
  participation = banded.Participation(num_rounds, separation, most)
  generator = np.random.default_rng(num_rounds)
  for bands in (1, separation, min(num_rounds, separation + 2), num_rounds):
    falling = np.sort(generator.uniform(size=bands))[::-1]
    for c in (banded.square_root(bands), falling):
      assert banded.is_exact(c, separation)
      assert banded.sensitivity(c, participation) == pytest.approx(_brute_force(c, participation))


def test_sensitivity_of_any_coefficients():
  generator = np.random.default_rng(0)
  participation = banded.Participation(8, 2)
  for _ in range(10):
    c = np.append(1.0, generator.normal(size=4))
    assert not banded.is_exact(c, 2)
    largest = _brute_force(c, participation, signs=(-1.0, 1.0))
    assert largest <= banded.sensitivity(c, participation) * (1 + 1e-12) < 2.5 * largest
    # Few bands are exact for any sign.
    few = c[:2]
    assert banded.is_exact(few, 2)
    assert banded.sensitivity(few, participation) == pytest.approx(
      _brute_force(few, participation, signs=(-1.0, 1.0))
    )


def test_a_later_coefficient_that_is_larger_counts_at_all_distances_up_to_its_own():
  # The rounds 0 and 3 are three apart, and the bound for two apart may not be less.
  c, participation = (1.0, 0.0, 0.0, 1.0), banded.Participation(4, 2)
  assert _brute_force(c, participation) == pytest.approx(np.sqrt(5))
  assert banded.sensitivity(c, participation) == pytest.approx(np.sqrt(6))


def test_sensitivity_of_vectors_is_no_larger():
  # Norms of 1 in any directions: no client gains by turning from round to round.
  generator = np.random.default_rng(1)
  participation = banded.Participation(20, 4)
  c = banded.square_root(9)
  bound = banded.sensitivity(c, participation)
  matrix = _matrix(c, 20)[:, ::4]
  for _ in range(200):
    g = generator.normal(size=(5, 3))
    assert np.linalg.norm(matrix @ (g / np.linalg.norm(g, axis=1, keepdims=True))) <= bound
  assert np.linalg.norm(matrix @ np.ones((5, 1))) == pytest.approx(bound)


def test_square_root():
  root = _matrix(banded.square_root(12), 12)
  np.testing.assert_allclose(root @ root, np.tril(np.ones((12, 12))), atol=1e-12)


@pytest.mark.parametrize("row", _ORACLES["roots"], ids=str)
def test_roots_by_jax_privacy(row):
  c = banded.square_root(row["bands"])
  participation = banded.Participation(row["num_rounds"], row["separation"], row["most"])
  assert banded.sensitivity(c, participation) == pytest.approx(row["sensitivity"], rel=1e-6)
  assert banded.error(c, row["num_rounds"]) == pytest.approx(row["error"], rel=1e-6)


@pytest.mark.parametrize("row", _ORACLES["optimal"], ids=str)
def test_optimal_by_jax_privacy(row):
  participation = banded.Participation(row["num_rounds"], row["num_rounds"])
  c = banded.optimal(row["bands"], participation)
  assert banded.is_exact(c, 1)
  found = banded.sensitivity(c, participation) * banded.error(c, row["num_rounds"])
  assert found == pytest.approx(row["loss"], rel=1e-6)


def test_optimal_is_best_nearby():
  # With more bands than the separation, too: no direction that keeps c falling lessens the product.
  participation = banded.Participation(60, 5)
  c = banded.optimal(9, participation)

  def loss(c):
    return banded.sensitivity(c, participation) * banded.error(c, 60)

  np.testing.assert_allclose(c[5:], 0.0, atol=1e-4)
  assert loss(c) < 0.97 * loss(banded.square_root(9))
  generator = np.random.default_rng(2)
  for size in (1e-3, 1e-2, 0.1):
    for _ in range(30):
      other = np.sort(np.abs(c + size * generator.normal(size=9)))[::-1]
      assert loss(other) > loss(c) * (1 - 1e-9)


def test_more_bands_help_where_participations_are_few():
  once = banded.Participation(60, 5, 1)

  def loss(bands):
    c = banded.optimal(bands, once)
    return banded.sensitivity(c, once) * banded.error(c, 60)

  assert loss(30) < 0.8 * loss(5)


@pytest.mark.parametrize("z", [20.0, 3.0, 0.5, 0.1])
def test_gaussian_mechanism(z):
  epsilon = banded.epsilon(z, 1e-5)
  assert gaussian.delta(epsilon, 1.0 / z) == pytest.approx(1e-5, rel=1e-5)


def test_adaptive_streams_cost_no_more():
  # The worst of all adaptive clients that choose signs by what they have seen. The likelihood ratio
  # of a run of two rounds, both taken, is integrated over the first release.
  c, z = np.array([1.0, 0.5]), 1.0
  delta_c = banded.sensitivity(c, banded.Participation(2, 1))
  sd = z * delta_c
  grid = np.linspace(-40.0, 40.0, 40001) * sd / 4
  epsilon = banded.epsilon(z, 1e-3)

  def divergence(chosen):
    """The sum of (P - e^epsilon Q)+ where g_1 = 1 and g_2 is chosen by the first release."""
    shift = c[1] + chosen  # Row 2 of C g.
    p, q = stats.norm.pdf(grid, 1.0, sd), stats.norm.pdf(grid, 0.0, sd)
    mu = np.abs(shift) / sd
    with np.errstate(divide="ignore", invalid="ignore"):
      rest = epsilon + np.log(q) - np.log(p)
      second = stats.norm.cdf(mu / 2 - rest / mu) - np.exp(rest) * stats.norm.cdf(
        -mu / 2 - rest / mu
      )
    return integrate.trapezoid(p * np.nan_to_num(second), grid)

  best = divergence(np.ones_like(grid))
  assert best == pytest.approx(1e-3, rel=1e-3)
  generator = np.random.default_rng(4)
  for threshold in generator.normal(size=20) * sd:
    assert divergence(np.where(grid < threshold, -1.0, 1.0)) <= best * (1 + 1e-9)


@pytest.mark.parametrize(
  "coefficients,words",
  [
    ([], "expected a vector"),
    ([[1.0]], "expected a vector"),
    (np.ones(6), "no more bands than rounds"),
    ([0.0, 1.0], "the first of them positive"),
    ([1.0, np.nan], "expected finite"),
  ],
)
def test_mistakes(coefficients, words):
  with pytest.raises(ValueError, match=words):
    banded.error(coefficients, 5)
  with pytest.raises(ValueError, match=words):
    banded.sensitivity(coefficients, banded.Participation(5, 2))


def _json(capsys, *argv):
  assert account.run(["calibrate", *argv, "--json"]) == 0
  return json.loads(capsys.readouterr().out)


def test_command(capsys):
  found = _json(capsys, *_RUN, "--epsilon=5", "--sampling=cyclic")
  assert (found["bands"], found["separation"], found["participations"]) == (25, 25, 40)
  assert found["sensitivity"] == pytest.approx(13.2, abs=0.05)
  # The table of what the runs of others have, RMS over 1000 rounds.
  independent = np.sqrt(1001 / 2)
  z_poisson = _json(capsys, *_RUN, "--epsilon=5")["update_noise_multiplier"]
  assert z_poisson * independent == pytest.approx(26, abs=0.5)
  z_fixed = _json(capsys, *_RUN, "--epsilon=5", "--sampling=fixed_size")["update_noise_multiplier"]
  assert z_fixed * independent == pytest.approx(46, abs=0.5)
  # With 50 bands of the square root it was 26.
  assert found["running_sums_noise"] == pytest.approx(24.8, abs=0.1)
  alone = _json(capsys, *_RUN, "--epsilon=5", "--sampling=cyclic", "--bands=1")
  assert alone["running_sums_noise"] == pytest.approx(104, abs=0.5)
  assert alone["update_noise_multiplier"] * independent == pytest.approx(
    alone["running_sums_noise"]
  )
  longer = _json(
    capsys, *_RUN[:2], "--epsilon=5", "--sampling=spaced", "--separation=12", "--num_rounds=20"
  )
  assert (longer["bands"], longer["separation"], longer["participations"]) == (12, 12, 2)
