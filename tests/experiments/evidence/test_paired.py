"""Paired differences with intervals, against enumeration, scipy and simulated truth."""

import itertools

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tff_superquantile import superquantile
from tff_superquantile.experiments.evidence import bootstrap
from tff_superquantile.experiments.evidence import paired
from tff_superquantile.experiments.pages import units


def _pair(before, after, first=0):
  ids = [f"client_{first + index}" for index in range(len(before))]
  return pd.DataFrame({"before": before, "after": after}, ids)


def _of_sample(name, values):
  values = np.asarray(values, float)
  if name == "superquantile_90":
    return superquantile.superquantile(values, 0.1)
  return {
    "mean": np.mean(values),
    "max": np.max(values),
    "p90": np.percentile(values, 90),
    "p50": np.percentile(values, 50),
  }[name]


_STATISTICS = ("mean", "max", "p50", "p90", "superquantile_90")


@pytest.mark.parametrize("name", _STATISTICS)
def test_a_statistic_of_counts_is_that_of_the_repeated_sample(name):
  rng = np.random.default_rng(0)
  for size in (1, 2, 7, 33):
    ordered = np.sort(np.round(rng.random(size), 1))
    counts = rng.integers(0, 4, (50, size))
    found = bootstrap.statistic(name, ordered, counts)
    for row, value in zip(counts, found):
      if row.sum():
        assert value == pytest.approx(_of_sample(name, np.repeat(ordered, row)), abs=1e-12)
      else:
        assert np.isnan(value)


def test_an_unknown_statistic_is_refused():
  with pytest.raises(ValueError, match="Found the statistic 'pmean'"):
    bootstrap.statistic("pmean", np.ones(3), np.ones((1, 3), int))


@pytest.mark.parametrize("name", _STATISTICS)
def test_resamples_are_those_of_all_draws_of_few_clients(name):
  before, after = np.array([0.1, 0.5, 0.3, 0.9]), np.array([0.2, 0.2, 0.35, 0.6])
  levels, drawn = bootstrap.differences(name, [_pair(before, after)], num_draws=40_000)
  assert levels[0] == pytest.approx([_of_sample(name, before), _of_sample(name, after)])
  exact = [
    _of_sample(name, after[list(draw)]) - _of_sample(name, before[list(draw)])
    for draw in itertools.product(range(4), repeat=3)
  ]
  values, shares = np.unique(np.round(exact, 9), return_counts=True)
  found = np.round(drawn, 9)
  assert set(found) == set(values)
  for value, share in zip(values, shares / len(exact)):
    assert np.mean(found == value) == pytest.approx(share, abs=0.012)


@pytest.mark.parametrize("name", ["mean", "p90", "superquantile_90"])
def test_the_interval_of_one_seed_is_that_of_scipy(name):
  rng = np.random.default_rng(1)
  before = rng.beta(2, 6, 300)
  after = np.clip(before - rng.normal(0.03, 0.05, 300), 0, 1)
  _, drawn = bootstrap.differences(name, [_pair(before, after)], num_draws=4000)
  expected = stats.bootstrap(
    (before, after),
    lambda first, second: _of_sample(name, second) - _of_sample(name, first),
    paired=True,
    vectorized=False,
    method="percentile",
    n_resamples=4000,
    rng=np.random.default_rng(2),
  ).confidence_interval
  width = expected.high - expected.low
  np.testing.assert_allclose(np.quantile(drawn, [0.025, 0.975]), expected, atol=0.12 * width)


def test_seeds_that_have_all_clients_in_common_give_students_interval():
  # Clients do not differ in their changes, so that the seeds alone do.
  before = np.random.default_rng(3).random(50)
  changes = np.array([-0.05, -0.02, -0.03])
  pairs = [_pair(before, before + change) for change in changes]
  _, drawn = bootstrap.differences("mean", pairs, num_draws=4000)
  expected = stats.t.interval(0.95, 2, changes.mean(), stats.sem(changes))
  np.testing.assert_allclose(np.quantile(drawn, [0.025, 0.975]), expected, atol=0.0005)


def test_the_same_results_give_the_same_interval():
  rng = np.random.default_rng(4)
  pairs = [_pair(rng.random(30), rng.random(30), first=10 * seed) for seed in range(3)]
  first, second = (bootstrap.differences("p90", pairs)[1] for _ in range(2))
  np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("number", [2, 5, 6])
def test_fewer_than_six_clients_have_no_interval_and_detect_nothing(number):
  before = np.linspace(0.2, 0.6, number)
  change = paired.of_pairs({0: _pair(before, before - 0.05)}, "test.error.mean")
  assert change.has_interval == change.is_detected == (number == 6)
  assert paired.cell(change, units.PERCENT)[1:] == (
    ("(−5.0 to −5.0)", True) if number > 5 else ("", False)
  )


def _change(low, high, value, num_seeds=1, num_clients=100):
  return paired.Change("test.error.p90", 0.0, value, low, high, num_seeds, num_clients)


def test_a_change_says_whether_and_how_it_would_be_detected():
  assert not _change(-0.1, 0.02, -0.04).is_detected
  assert _change(-0.1, -0.02, -0.06).is_detected and _change(0.01, 0.2, 0.1).is_detected
  assert not _change(np.nan, np.nan, 0.1).is_detected
  # Half of the interval is 0.06: three halves of the change, so 2.25 times the data, and for a
  # power of 80 % 2.04 times that.
  assert _change(-0.1, 0.02, -0.04).enough() == (460, "client")
  assert _change(-0.1, 0.02, -0.04, num_seeds=4).enough() == (19, "seed")
  assert _change(-0.1, -0.02, -0.06).enough() is None
  assert _change(-0.1, 0.02, 0.0).enough() is None
  assert _change(-0.1, 0.024, -0.04).interval(units.PERCENT) == "−10.0 to +2.4"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mean", "p90", "superquantile_90"])
@pytest.mark.parametrize(
  "num_seeds, shared, between", [(1, True, 0.0), (3, True, 0.02), (3, False, 0.02), (5, False, 0.0)]
)
def test_intervals_cover_the_truth(name, num_seeds, shared, between):
  rng = np.random.default_rng(5)

  def draw(num_clients):
    before = rng.beta(2, 6, num_clients)
    return before, before - 0.02 + 0.05 * rng.normal(size=num_clients)

  many = draw(1_000_000)
  truth = _of_sample(name, many[1]) - _of_sample(name, many[0])
  covered, trials = 0, 400
  for _ in range(trials):
    common = draw(100)
    pairs = []
    for seed in range(num_seeds):
      before, after = common if shared else draw(100)
      effect = between * rng.normal()
      pairs.append(_pair(before, after + effect, first=0 if shared else 100 * seed))
    _, low, high = bootstrap.interval(name, pairs)
    covered += low <= truth <= high
  # An interval of 95 % is below this number in one of a thousand tests. (Of several seeds the
  # clients' part counts twice, and of percentiles resamples differ more than samples.)
  assert covered >= stats.binom.ppf(0.001, trials, 0.95), covered / trials
