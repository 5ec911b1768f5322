"""The theorem behind noise in shares, step by step, against exact sums and integrals."""

import decimal
import itertools
import math

from helpers import gaussian
import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest
from scipy import signal
from scipy import stats

from privacy.noise import shares

_ROUNDING_ALONE = 5.0 * math.exp(-4.0 * math.pi**2)


def _discrete(variance, largest):
  """N_Z(0, variance) at -largest..largest."""
  values = np.arange(-largest, largest + 1)
  unnormalised = np.exp(-0.5 * values**2 / variance)
  return unnormalised / unnormalised.sum()


def _noise(stddev, num_reports, num_shares):
  """The law of a round's noise on one integer, exactly: k shares and what completes them to K."""
  found = np.ones(1)
  for _ in range(num_reports):
    found = np.convolve(found, _discrete(stddev**2, math.ceil(14 * stddev)))
  missing = (num_shares - num_reports) * stddev**2
  if missing:
    found = np.convolve(found, _discrete(missing, math.ceil(14 * math.sqrt(missing))))
  return found


def _log_ratio(stddev, num_reports, num_shares):
  """The largest |log| of the ratio of that to N_Z(0, K sigma^2), up to six deviations."""
  noise = _noise(stddev, num_reports, num_shares)
  largest = len(noise) // 2
  target = _discrete(num_shares * stddev**2, largest)
  bulk = np.abs(np.arange(-largest, largest + 1)) <= 6 * stddev * math.sqrt(num_shares)
  return np.abs(np.log(noise[bulk] / target[bulk])).max()


@pytest.mark.parametrize("stddev", [0.6, 0.7, 0.8, 0.9, 1.0])
@pytest.mark.parametrize("num_shares", [2, 3, 7, 20])
def test_the_sum_of_any_number_of_shares_and_the_complement_is_one_law(stddev, num_shares):
  worst = 0.0
  for num_reports in sorted({0, 1, 2, num_shares // 2, num_shares - 1, num_shares}):
    found = _log_ratio(stddev, num_reports, num_shares)
    bound = shares.slack(stddev, num_shares)
    assert found <= bound
    if num_reports == num_shares:  # As with helpers.
      assert found <= shares.slack(stddev, num_shares, "helpers")
      assert found <= shares.sum_slack(stddev, num_shares)
    worst = max(worst, found)
  # With so little noise the difference is there to be seen. The bound adds up what later shares
  # smooth away, so that it is not idle with few of them.
  assert worst > 1e-8
  if num_shares == 2:
    assert worst > 0.05 * bound


def _exact_discrete(variance, largest):
  values = [(-decimal.Decimal(z * z) / (2 * variance)).exp() for z in range(-largest, largest + 1)]
  total = sum(values)
  return [value / total for value in values]


def test_the_sum_of_shares_at_the_least_noise_in_forty_digits():
  # Slack of 1e-16 does not show in double precision.
  with decimal.localcontext() as context:
    context.prec = 40
    variance, num_shares, largest = decimal.Decimal(4), 3, 30
    one = _exact_discrete(variance, largest)
    rest = _exact_discrete(2 * variance, 2 * largest)
    target = _exact_discrete(num_shares * variance, 3 * largest)
    worst = decimal.Decimal(0)
    for z in range(0, 11):  # One share and a complement of two.
      found = sum(
        one[x + largest] * rest[z - x + 2 * largest]
        for x in range(-largest, largest + 1)
        if abs(z - x) <= 2 * largest
      )
      worst = max(worst, abs((found / target[z + 3 * largest]).ln()))
  assert 1e-24 < worst < shares.slack(2.0, num_shares, "complement")
  # vw / (v + w) is sigma^2 (K - 1) / K: Poisson's summation formula has twice this.
  assert float(worst) < 3 * math.exp(-2 * math.pi**2 * 4 * 2 / 3)


def _rounded(variance, of_rounding, z, step):
  """P(z) where y ~ N(0, variance - of_rounding) is rounded at random, by the trapezoidal rule."""
  stddev = math.sqrt(variance - of_rounding)
  y = np.arange(-12 * stddev, 12 * stddev + step, step)
  integers = np.arange(math.floor(y[0]) - 12, math.ceil(y[-1]) + 13)
  weights = np.exp(-0.5 * (integers[:, np.newaxis] - y) ** 2 / of_rounding).sum(axis=0)
  kept = np.exp(-0.5 * (z - y) ** 2 / of_rounding) / weights
  return step * np.sum(stats.norm.pdf(y, scale=stddev) * kept)


@pytest.mark.parametrize("of_rounding", [0.3, 0.45, 0.6, 0.75])
@pytest.mark.parametrize("variance", [1.0, 1.7, 3.0, 9.0])
def test_a_gaussian_rounded_at_random_is_a_discrete_gaussian(of_rounding, variance):
  # The lemma for less noise of rounding than is used, where its bound can be seen.
  bound = 5 * math.exp(-2 * math.pi**2 * of_rounding)
  target = _discrete(variance, 60)
  ratios = [
    abs(math.log(_rounded(variance, of_rounding, z, 0.01) / target[z + 60]))
    for z in range(math.ceil(5 * math.sqrt(variance)))
  ]
  assert max(ratios) <= bound
  if variance == 1.0:
    assert max(ratios) > 1e-3 * bound


def test_a_gaussian_rounded_at_random_as_it_is_used_in_forty_digits():
  pi = decimal.Decimal("3.14159265358979323846264338327950288419716939937510")
  assert shares.ROUNDING_VARIANCE == 2.0
  with decimal.localcontext() as context:
    context.prec = 40
    steps = 8  # Of y in a unit: the rule is exact to far more digits than forty.
    for variance in (decimal.Decimal(4), decimal.Decimal("2.5")):
      rest = variance - 2
      weights = [
        sum((-((z - decimal.Decimal(i) / steps) ** 2) / 4).exp() for z in range(-25, 27))
        for i in range(steps)
      ]
      target = _exact_discrete(variance, 40)
      for z in (0, 1, 4):
        found = decimal.Decimal(0)
        for i in range(-25 * steps, 25 * steps + 1):
          y = decimal.Decimal(i) / steps
          found += (-y * y / (2 * rest) - (z - y) ** 2 / 4).exp() / weights[i % steps]
        found /= steps * (2 * pi * rest).sqrt()
        assert abs((found / target[z + 40]).ln()) <= _ROUNDING_ALONE


@pytest.mark.parametrize("noise_multiplier", [0.4, 1.0, 2.5])
@pytest.mark.parametrize("sensitivity", [1, 3, 6])
def test_discrete_noise_is_worth_the_continuous_one(noise_multiplier, sensitivity):
  # The hockey-stick divergences of a shift by an integer, exactly, against a Gaussian's.
  for num_shares in (2, 6):
    stddev = shares.share_stddev(noise_multiplier, sensitivity, num_shares)
    if stddev < 0.6:
      continue  # The tail of a convolution is no bulk there.
    noise = _noise(stddev, 1, num_shares)
    before = np.append(noise, np.zeros(sensitivity))
    after = np.append(np.zeros(sensitivity), noise)
    mu, tau = 1 / noise_multiplier, shares.slack(stddev, num_shares)
    for epsilon in np.linspace(0, 1.5 * mu**2 + 4 * mu, 200):
      found = np.maximum(after - math.exp(epsilon) * before, 0).sum()
      assert found <= math.exp(tau) * gaussian.delta(epsilon - 2 * tau, mu) + 1e-13


def _sampled(stddev, num_shares, data, probability):
  """The law of a round on one integer: each client by itself, noise of K shares."""
  size = 2 * math.ceil(14 * stddev * math.sqrt(num_shares)) + 40
  law = np.zeros(2 * size + 1)
  for chosen in itertools.product((0, 1), repeat=len(data)):
    count = sum(chosen)
    weight = probability**count * (1 - probability) ** (len(data) - count)
    noise = _noise(stddev, count, num_shares)
    shift = sum(value for value, is_chosen in zip(data, chosen) if is_chosen)
    start = size + shift - len(noise) // 2
    law[start : start + len(noise)] += weight * noise
  return law


@pytest.mark.parametrize("stddev,sensitivity", [(0.85, 1), (0.9, 2), (2.0, 3), (2.0, 6)])
@pytest.mark.parametrize("other", [-1, 0, 1])
def test_a_sampled_round_is_worth_the_sampled_gaussian(stddev, sensitivity, other):
  # The whole theorem for three clients, by enumeration of all cohorts: the number of reports
  # differs, the noise does not.
  num_shares, probability = 3, 0.4
  others = [other * sensitivity] * 2
  laws = [
    _sampled(stddev, num_shares, others + mine, probability)
    for mine in ([sensitivity], [0], [])  # With its data, zeroed out, removed.
  ]
  z = shares.delivered_noise_multiplier(stddev, sensitivity, num_shares)
  tau = shares.slack(stddev, num_shares)
  x = np.linspace(-14 * z - 2, 14 * z + 3, 400_001)
  nothing = stats.norm.pdf(x, scale=z)
  mixed = probability * stats.norm.pdf(x, 1, z) + (1 - probability) * nothing
  step = x[1] - x[0]
  for without in laws[1:]:
    for epsilon in (0.0, 0.1, 0.3, 0.7, 1.2, 2.0):
      less = math.exp(epsilon - 2 * tau)
      for pair, bound in (
        ((laws[0], without), step * np.maximum(mixed - less * nothing, 0).sum()),
        ((without, laws[0]), step * np.maximum(nothing - less * mixed, 0).sum()),
      ):
        found = np.maximum(pair[0] - math.exp(epsilon) * pair[1], 0).sum()
        assert found <= math.exp(tau) * bound + 1e-9


@hypothesis.given(st.floats(1e-3, 1e3), st.floats(1, 1e6), st.integers(1, 10**6))
def test_share_stddev_and_delivered_noise_are_inverse(noise_multiplier, sensitivity, num_shares):
  stddev = shares.share_stddev(noise_multiplier, sensitivity, num_shares)
  total = num_shares * stddev**2
  assert total == pytest.approx((noise_multiplier * sensitivity) ** 2 + 2)
  found = shares.delivered_noise_multiplier(stddev, sensitivity, num_shares)
  # Where rounding has most of the variance, digits are lost.
  digits = 1e-15 * total / (noise_multiplier * sensitivity) ** 2
  assert found == pytest.approx(noise_multiplier, rel=1e-12 + 10 * digits)


def test_too_little_noise_delivers_none():
  assert shares.delivered_noise_multiplier(0.1, 5.0, 10) == 0.0
  assert shares.delivered_noise_multiplier(math.sqrt(0.2), 5.0, 10) == pytest.approx(0, abs=1e-7)


def test_sum_slack_is_its_formula():
  for stddev, num_shares in ((0.3, 2), (0.5, 7), (1.0, 100)):
    direct = 0.0
    for k in range(1, num_shares):
      direct += 10 * math.exp(-2 * math.pi**2 * stddev**2 * k / (k + 1))
    assert shares.sum_slack(stddev, num_shares) == pytest.approx(direct)
  assert shares.sum_slack(0.2, 1) == 0.0  # One share is exact.
  assert 0.0 < shares.sum_slack(1.5, 10**5) < 1e-8
  assert shares.sum_slack(0.3, 100) > 1.0


def test_slack_is_its_formula():
  for stddev, num_shares in ((0.6, 2), (0.8, 5), (1.0, 140)):
    summed = shares.sum_slack(stddev, num_shares) + _ROUNDING_ALONE
    apart = 10 * math.exp(-2 * math.pi**2 * stddev**2 * (num_shares - 1) / num_shares)
    assert shares.slack(stddev, num_shares, "helpers") == pytest.approx(summed)
    for protocol in ("complement", "private_coin"):
      assert shares.slack(stddev, num_shares, protocol) == pytest.approx(summed + apart)
  assert shares.slack(0.6, 1) == _ROUNDING_ALONE  # With one share there is nothing to complete.
  # The smallest of all k (K - k) / K, which is what a complement goes by, is at the ends.
  for num_shares in (2, 9, 140):
    apart = [k * (num_shares - k) / num_shares for k in range(1, num_shares)]
    assert min(apart) == pytest.approx((num_shares - 1) / num_shares)


def test_slack_at_the_least_noise_is_as_good_as_none():
  assert shares.MIN_STDDEV == 2.0
  for num_shares in (10, 140, 10**4):
    assert shares.slack(2.0, num_shares) == pytest.approx(1.8e-16, rel=0.05)
  # A million numbers for a thousand rounds.
  assert 1.2e6 * 1000 * shares.slack(2.0, 140) < 1e-6


@hypothesis.given(st.floats(0.5, 5.0), st.integers(1, 500), st.sampled_from(shares.PROTOCOLS))
def test_slack_falls_with_noise_and_grows_with_shares(stddev, num_shares, protocol):
  found = shares.slack(stddev, num_shares, protocol)
  assert found >= shares.slack(1.01 * stddev, num_shares, protocol) > 0
  more = shares.sum_slack(stddev, num_shares + 1)
  assert more * (1 + 1e-12) >= shares.sum_slack(stddev, num_shares) >= 0


def _drawn_and_exact(stddev, num_shares):
  """The laws of the sum of shares as drawn, in integers, and as they should be, in 40 digits."""
  largest = math.ceil(12 * stddev)
  law = _discrete(stddev**2, largest)
  masses = np.rint(np.ldexp(law, 62)).astype(np.int64)
  masses[largest] += 2**62 - masses.sum()
  one = np.array([int(mass) for mass in masses], dtype=object)
  exact = np.array(_exact_discrete(decimal.Decimal(stddev) ** 2, largest), dtype=object)
  drawn, ideal = one, exact
  for _ in range(num_shares - 1):
    drawn, ideal = np.convolve(drawn, one), np.convolve(ideal, exact)
  return drawn / decimal.Decimal(2) ** (62 * num_shares), ideal


@pytest.mark.parametrize("stddev,num_shares", [(3.0, 1), (3.0, 2), (3.0, 5), (11.5, 3)])
def test_the_law_of_drawn_shares_is_within_its_bounds(stddev, num_shares):
  with decimal.localcontext() as context:
    context.prec = 40
    drawn, ideal = _drawn_and_exact(stddev, num_shares)
    fewer, exact = (np.ones(1), np.ones(1))
    if num_shares > 1:
      fewer, _ = _drawn_and_exact(stddev, num_shares - 1)
      _, exact = _drawn_and_exact(stddev, 1)
      fewer = np.convolve(fewer, exact)
    ends = np.abs(np.arange(drawn.size) - drawn.size // 2) / (stddev * math.sqrt(num_shares))
    for bulk in (3.0, 5.0, 7.0):
      law = shares.drawn_law(stddev, num_shares, bulk)
      inner = ends <= bulk
      r = np.array([float((a / b).ln()) for a, b in zip(drawn[inner], ideal[inner])])
      assert 1e-4 * law.ratio < np.abs(r).max() <= law.ratio
      assert np.abs(np.diff(r)).max() <= law.slope
      assert np.abs(r[:-7] - r[7:]).max() <= 7 * law.slope
      if num_shares > 1:  # One share is exact in the place of a drawn one.
        of_fewer = [float((a / b).ln()) for a, b in zip(drawn[inner], fewer[inner])]
        assert np.abs(of_fewer).max() <= law.one
      beyond = sum(abs(drawn[~inner] - ideal[~inner]))
      assert float(beyond) <= law.outside


@pytest.mark.parametrize("num_shares", [1, 2])
def test_the_law_of_pairs_that_are_drawn_at_once_is_within_its_bounds(num_shares):
  # As `discrete_gaussian` draws two numbers by one word: their joint law is rounded.
  stddev, largest = 2.1, 26
  law = _discrete(stddev**2, largest)
  masses = np.rint(np.ldexp(np.outer(law, law), 62)).astype(np.int64)
  masses[largest, largest] += 2**62 - masses.sum()
  with decimal.localcontext() as context:
    context.prec = 40
    exact = np.array(_exact_discrete(decimal.Decimal(stddev) ** 2, largest), dtype=object)
    errors = np.vectorize(lambda mass: decimal.Decimal(int(mass)) / 2**62)(masses)
    errors = (errors - np.outer(exact, exact)).astype(float)
  both, change = np.outer(law, law), errors
  if num_shares == 2:  # The products of two errors are 1e-15 of it.
    change = 2 * signal.convolve2d(errors, both)
    both = signal.convolve2d(both, both)
  ends = np.arange(len(both)) - len(both) // 2
  ends = np.abs(ends) / (stddev * math.sqrt(num_shares))
  for bulk in (3.0, 4.5, 6.0):
    bounds = shares.drawn_law(stddev, num_shares, bulk)
    inner = ends <= bulk
    r = (change / both)[np.ix_(inner, inner)]
    assert 1e-4 * bounds.ratio < np.abs(r).max() <= 2 * bounds.ratio
    assert np.abs(np.diff(r, axis=0)).max() <= bounds.slope
    assert np.abs(change.sum(axis=0)[~inner]).sum() <= bounds.outside


@pytest.mark.parametrize("stddev,num_shares", [(3.0, 2), (3.0, 5), (11.5, 3)])
def test_what_drawn_noise_adds_to_epsilon(stddev, num_shares):
  # The hockey-stick divergences of the two laws, a shift apart, of one number of one round.
  shift = 5
  with decimal.localcontext() as context:
    context.prec = 40
    laws = _drawn_and_exact(stddev, num_shares)
    none = np.array([decimal.Decimal(0)] * shift, dtype=object)
    pairs = [(np.append(law, none), np.append(none, law)) for law in laws]
    for room in (1e-10, 1e-15):
      slack = shares.drawn_slack(stddev, num_shares, 1, shift, 1, room)
      assert 0 < slack < 1e-6
      for epsilon in (0.0, 0.5, 1.5, 3.0):
        factor = decimal.Decimal(epsilon).exp()
        less = (decimal.Decimal(epsilon) - decimal.Decimal(slack)).exp()
        (after, before), (of_exact, from_exact) = pairs
        found = sum(max(a - factor * b, 0) for a, b in zip(after, before))
        bound = sum(max(a - less * b, 0) for a, b in zip(of_exact, from_exact))
        bound *= decimal.Decimal(slack).exp()
        assert found <= bound + (1 + factor) * decimal.Decimal(room)


def test_drawn_slack_adds_up():
  # An update of 49,000 numbers in 1,500 rounds, of 140 shares.
  stddev = shares.share_stddev(1.0, 50.5 * math.sqrt(49_000), 140)
  arguments = dict(local_stddev=stddev, num_shares=140, sensitivity=50.5 * math.sqrt(49_000))
  slack = shares.drawn_slack(num_entries=49_000, num_rounds=1500, room=5e-13, **arguments)
  assert 1e-7 < slack < 1e-5
  more = shares.drawn_slack(num_entries=98_000, num_rounds=1500, room=5e-13, **arguments)
  longer = shares.drawn_slack(num_entries=49_000, num_rounds=3000, room=5e-13, **arguments)
  assert slack < more < longer < 3 * slack
  assert shares.drawn_slack(num_entries=9, num_rounds=0, room=1e-9, **arguments) == 0.0
  assert shares.drawn_slack(num_entries=10**9, num_rounds=10**9, room=1e-300, **arguments) > 1.0


def test_drawn_slack_leaves_no_more_out_than_there_is_room_for():
  # With less room its bulk is larger, and so is what it bounds there.
  slacks = [shares.drawn_slack(700.0, 5, 1000, 1500.0, 10, room) for room in (1e-9, 1e-13, 1e-17)]
  assert 1e3 * slacks[0] < slacks[1] < 0.1 * slacks[2]


def test_cohort_limit():
  assert shares.cohort_limit(2500, 100) == 140
  assert shares.cohort_limit(120, 100) == 120
  assert shares.cohort_limit(10**6, 1) == 5
  assert shares.cohort_limit(10**6, 0.25) == 3
  assert shares.cohort_limit(1, 1) == 1
  for population, clients in ((2500, 100), (10**5, 31.7), (700, 400)):
    limit = shares.cohort_limit(population, clients)
    assert limit <= population
    # Room for four standard deviations, which is seldom exceeded.
    assert shares.overflow_probability(population, clients / population, limit) < 5e-4


def _cohorts(population, probability, limit):
  """All cohorts and their probabilities, cut at random."""
  for chosen in itertools.product((0, 1), repeat=population):
    count = sum(chosen)
    weight = probability**count * (1 - probability) ** (population - count)
    members = [i for i in range(population) if chosen[i]]
    cut = list(itertools.combinations(members, min(count, limit)))
    for cohort in cut:
      yield cohort, weight / len(cut)


@pytest.mark.parametrize("population", [1, 2, 5, 7])
@pytest.mark.parametrize("probability", [0.2, 0.7, 1.0])
def test_reports_and_overflow_by_enumeration(population, probability):
  for limit in range(1, population + 1):
    expected = np.zeros(limit)
    for cohort, weight in _cohorts(population, probability, limit):
      if 0 in cohort:
        expected[len(cohort) - 1] += weight
    sizes, found = shares.reports_of_a_member(population, probability, limit)
    np.testing.assert_array_equal(sizes, np.arange(1, limit + 1))
    np.testing.assert_allclose(found, expected / expected.sum(), atol=1e-12)
    # The others of client 0 alone.
    full = sum(
      weight
      for cohort, weight in _cohorts(population - 1, probability, population)
      if len(cohort) >= limit
    )
    overflow = shares.overflow_probability(population, probability, limit)
    assert overflow == pytest.approx(full, abs=1e-12)
    if limit >= population:
      assert overflow == 0.0


def test_reports_by_their_definition_and_for_a_billion_clients():
  population, probability, limit = 2500, 0.04, 140
  others = np.arange(population)
  weights = stats.binom.pmf(others, population - 1, probability)
  weights = weights * np.minimum(1.0, limit / (others + 1.0))
  expected = np.bincount(np.minimum(others, limit - 1), weights=weights)
  sizes, found = shares.reports_of_a_member(population, probability, limit)
  np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-9)
  # Nothing is as large as the population.
  sizes, found = shares.reports_of_a_member(10**9, 1e-6, 1127)
  assert len(sizes) == 1127 and found.sum() == pytest.approx(1)
  assert found @ sizes == pytest.approx(1001, rel=1e-3)


@hypothesis.given(st.floats(2.0, 1e4), st.integers(1, 10**5), st.integers(0, 10**5))
def test_loss_ratio_bounds_the_ratio_for_any_noise(stddev, num_reports, missing):
  num_shares = num_reports + missing
  bound = shares.loss_ratio(num_reports, num_shares)
  all_shares = shares.delivered_noise_multiplier(stddev, 1.0, num_shares)
  reported = shares.delivered_noise_multiplier(stddev, 1.0, num_reports)
  assert 1.0 <= (all_shares / reported) ** 2 * (1 + 1e-12) <= bound * (1 + 1e-11)
  # And is no larger than it must be.
  least = [shares.delivered_noise_multiplier(2.0, 1.0, k) for k in (num_shares, num_reports)]
  assert bound == pytest.approx((least[0] / least[1]) ** 2)
