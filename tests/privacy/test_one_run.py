"""Lower bounds of epsilon by canaries: against jax_privacy, brute force, and simulated runs.

The table below is of jax_privacy 2.0.0 (PyPI; with dp-accounting 0.6.0, jax 0.10.2, numpy 2.4.6) in
an environment of its own: `_epsilon_one_run(0.0, m, r, v, s, delta)` and `_epsilon_one_run_fdp` of
the same of jax_privacy.auditing, on which its `CanaryScoreAuditor.epsilon_one_run` and
`epsilon_one_run_fdp` rest. The scores are those of
`CanaryScoreAuditor(scores[coins], scores[~coins])` with `threshold_strategy=Explicit(threshold)`
and significance 0.05.
"""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from scipy import special
from scipy import stats

from privacy import accounting
from privacy import cohorts
from privacy import one_run
from privacy import parts
from privacy import releases
from privacy.noise import banded

# Canaries, guesses, right ones, delta, significance; epsilon, epsilon of a Gaussian trade-off.
_ORACLE = [
  (1000, 500, 285, 1e-5, 0.05, 0.1290850857081144, 0.2150945882267179),
  (1000, 500, 285, 1e-5, 0.05 / 9, 0.0468997064058901, 0.064469778846807),
  (1000, 500, 285, 1e-3, 0.05, 0.056007781038927514, 0.11782287146805014),
  (1000, 250, 170, 1e-5, 0.05, 0.5228114408691672, 0.8378071698923666),
  (1000, 126, 100, 1e-5, 0.05 / 9, 0.7787417984447071, 1.0491848818249538),
  (1000, 126, 100, 1e-3, 0.05, 0.2404172244750385, 0.969460764692869),
  (1000, 126, 100, 1e-3, 0.05 / 9, 0.0, 0.6774914843501185),
  (200, 100, 64, 1e-5, 0.05, 0.2149793776084517, 0.3758725416813804),
  (200, 50, 41, 1e-3, 0.05, 0.7307799488527887, 1.0009813174760709),
  (100, 50, 50, 1e-5, 0.05, 2.781889334332235, 5.839971200876487),
  (100, 50, 50, 1e-3, 0.05, 2.4812692334617927, 4.270570306724112),
  (64, 32, 29, 1e-5, 0.05, 1.2370658475365053, 2.5278500234063004),
  (1000, 500, 489, 1e-5, 0.05, 3.2794390715695476, 5.861040074957941),
  (1000, 500, 489, 1e-3, 0.05 / 9, 0.0, 3.274124121255168),
  (400, 200, 101, 1e-5, 0.05, 0.0, 0.0),
]


@pytest.mark.parametrize("canaries,made,right,delta,significance,epsilon,gaussian", _ORACLE)
def test_bounds_are_those_of_jax_privacy(
  canaries, made, right, delta, significance, epsilon, gaussian
):
  guesses = one_run.Guesses(canaries, made, right)
  found = one_run.epsilon_at_least(guesses, delta, significance)
  assert found == pytest.approx(epsilon, abs=1e-5)
  found = one_run.gaussian_epsilon_at_least(guesses, delta, significance)
  assert found == pytest.approx(gaussian, abs=1e-4)


@pytest.mark.parametrize(
  "mu,threshold,right,epsilon,gaussian",
  [
    (1.0, 1.3105063468104035, 83, 1.1294390345010938, 1.9176331558788982),
    (2.5, 2.4492608871388972, 98, 2.7183190095881398, 4.805742496675106),
  ],
)
def test_bounds_of_scores_are_those_of_jax_privacy(mu, threshold, right, epsilon, gaussian):
  rng = np.random.default_rng(5)
  for each in (1.0, 2.5):  # In the order in which the oracle drew.
    coins = rng.random(400) < 0.5
    scores = rng.normal(size=400) + each * coins
    if each == mu:
      break
  above = scores >= threshold
  guesses = one_run.Guesses(400, int(above.sum()), int(coins[above].sum()))
  assert guesses == one_run.Guesses(400, 100, right)
  assert one_run.epsilon_at_least(guesses, 1e-5, 0.05) == pytest.approx(epsilon, abs=1e-5)
  found = one_run.gaussian_epsilon_at_least(guesses, 1e-5, 0.05)
  assert found == pytest.approx(gaussian, abs=1e-4)


def test_without_delta_it_is_the_binomial_tail_of_randomized_response():
  # Each coin is released truly with probability e / (1 + e), for epsilon = 1: the worst there is.
  truly = math.e / (1 + math.e)
  for right in (1, 5, 9):
    brute = sum(
      np.prod(np.where(outcome, truly, 1 - truly))
      for outcome in itertools.product((0, 1), repeat=10)
      if sum(outcome) >= right
    )
    found = one_run.p_value(one_run.Guesses(10, 10, right), 1.0, 0.0)
    assert found == pytest.approx(brute, rel=1e-12)


def test_delta_costs_what_the_theorem_says():
  guesses = one_run.Guesses(40, 20, 16)
  law = stats.binom(20, 1 / (1 + np.exp(-0.7)))
  worst = max((law.cdf(15) - law.cdf(15 - i)) / i for i in range(1, 17))
  expected = law.sf(15) + 2 * 40 * 1e-3 * worst
  assert one_run.p_value(guesses, 0.7, 1e-3) == pytest.approx(expected, rel=1e-12)


def test_guesses_are_the_extremes_and_numbers_are_fixed_before():
  coins = np.array([True, False, True, False, False, True, True, False])
  scores = np.array([3.0, -2.0, 2.0, 0.0, 4.0, 1.0, -1.0, -3.0])
  # The highest two are of coins False, True; the lowest two are of False, False.
  assert one_run.guess(coins, scores, 4) == one_run.Guesses(8, 4, 3)
  assert one_run.guess(coins, scores, 8) == one_run.Guesses(8, 8, 6)
  assert one_run.numbers_of_guesses(1000) == (500, 250)
  assert one_run.numbers_of_guesses(1) == (2,)
  for made in (3, 0, 10):
    with pytest.raises(ValueError, match="expected an even number"):
      one_run.guess(coins, scores, made)
  with pytest.raises(ValueError, match="each to be at most the next"):
    one_run.Guesses(8, 4, 5)


def test_the_trade_off_of_a_claim_is_below_the_mechanisms_own():
  # Of a Gaussian, whose f is known: touched where a claim was made, and never above.
  mu = 1.3
  claim = {
    delta: banded.epsilon(1 / mu, delta) for delta in special.expit(np.linspace(-11, -0.07, 200))
  }
  of_claim, exact = one_run.trade_off_of(claim), one_run.gaussian_trade_off(mu)
  rates = np.linspace(1e-4, 0.9999, 300)
  gaps = np.array([exact(x) - of_claim(x) for x in rates])
  assert gaps.min() > -1e-9 and gaps.max() < 1e-3
  assert one_run.trade_off_of({1e-5: 2.0})(1.0) == 0.0


def _coins_and_scores(rng, mu, num_canaries):
  coins = rng.random(num_canaries) < 0.5
  return coins, rng.normal(size=num_canaries) + mu * coins


@pytest.mark.parametrize("mu", [0.0, 0.8, 2.0])
def test_bounds_are_below_the_truth_in_nineteen_of_twenty_runs(mu):
  # The coins of a Gaussian mechanism's canaries, of which the adversary knows all but the noise. At
  # delta = 1e-5 the bounds are within 5 % of the runs; they are so with much to spare.
  rng, delta = np.random.default_rng(int(10 * mu)), 1e-5
  truth = {d: banded.epsilon(1 / mu, d) if mu else 0.0 for d in (delta, 1e-3, 0.1)}
  found = [
    one_run.bounds(*_coins_and_scores(rng, mu, 100), truth, 0.95, are_independent=True)
    for _ in range(100)
  ]
  bad = [
    max(b.epsilon, b.gaussian_epsilon, b.independent_epsilon) > truth[delta]
    or b.contradicts_if_independent
    for b in found
  ]
  assert np.mean(bad) <= 0.05
  # Without power they would hold, too.
  if mu == 2.0:
    assert np.median([b.gaussian_epsilon for b in found]) > 0.25 * truth[delta]


def test_one_hypothesis_is_rejected_as_often_as_it_may_be():
  # The worst case of pure epsilon, where the theorem is tight: randomized response.
  rng, epsilon = np.random.default_rng(3), 1.0
  rights, times = np.unique(rng.binomial(100, math.e / (1 + math.e), 2000), return_counts=True)
  found = [one_run.epsilon_at_least(one_run.Guesses(100, 100, int(v)), 0.0, 0.05) for v in rights]
  above = np.sum(times[np.array(found) > epsilon]) / 2000
  assert 0.03 < above <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 2000)


def test_a_claim_of_half_the_noise_is_contradicted_and_a_true_one_is_not():
  rng = np.random.default_rng(11)
  deltas = special.expit(np.linspace(-11.5, 2.0, 16))
  claim = {delta: banded.epsilon(1.0, delta) for delta in deltas}
  verdicts = {
    mu: [
      one_run.bounds(
        *_coins_and_scores(rng, mu, 1000), claim, 0.95, are_independent=True
      ).contradicts_claim
      for _ in range(10)
    ]
    for mu in (1.0, 2.0)
  }
  assert not any(verdicts[1.0]) and np.mean(verdicts[2.0]) > 0.5


def test_a_gaussian_bound_is_conservative_for_sampled_rounds():
  # Few rounds of rare participation are far from a Gaussian: its curve has heavier tails.
  rng, delta, share, noise, rounds = np.random.default_rng(5), 1e-5, 0.1, 0.7, 5
  release = releases.Release(
    cohort=cohorts.Poisson(1000, 1000 * share), parts=(parts.UpdateSum(noise_multiplier=noise),)
  )
  claim = {
    d: accounting.epsilon(release, rounds, d).epsilon for d in (delta, 1e-4, 1e-3, 1e-2, 0.1)
  }
  bad = []
  for _ in range(100):
    coins = rng.random(200) < 0.5
    sent = (rng.random([rounds, 200]) < share) * coins
    seen = sent + noise * rng.normal(size=sent.shape)
    ratios = np.log(1 - share + share * np.exp((seen - 0.5) / noise**2))
    found = one_run.bounds(coins, ratios.sum(axis=0), claim, 0.95, are_independent=True)
    highest = max(found.epsilon, found.gaussian_epsilon, found.independent_epsilon)
    bad.append(found.contradicts_if_independent or highest > claim[delta])
  assert np.mean(bad) <= 0.05


@pytest.mark.parametrize("mu,epsilon", [(1.0, 0.7375325027107023), (2.5, 1.401194036927944)])
def test_rates_are_those_of_jax_privacy(mu, epsilon):
  # `epsilon_clopper_pearson(0.05, 1e-5, threshold_strategy=Explicit(t))` of the last 360 scores
  # with t the median of the first 40.
  rng = np.random.default_rng(5)
  for each in (1.0, 2.5):
    coins = rng.random(400) < 0.5
    scores = rng.normal(size=400) + each * coins
    if each == mu:
      break
  true, false = one_run.rates(coins, scores, 0.05)
  assert math.log((true - 1e-5) / false) == pytest.approx(epsilon, abs=1e-9)
  # No canary is in, or none is out: no rate is known.
  assert one_run.rates(np.zeros(20, bool), np.arange(20.0), 0.05) == (0.0, 1.0)
  assert one_run.rates(np.ones(20, bool), np.arange(20.0), 0.05) == (0.0, 1.0)


def test_independent_canaries_find_half_the_noise_where_the_general_bounds_do_not():
  rng = np.random.default_rng(2)
  claim = {d: banded.epsilon(1.0, d) for d in special.expit(np.linspace(-11.5, 2.0, 16))}
  coins, scores = _coins_and_scores(rng, 1.6, 1000)
  found = one_run.bounds(coins, scores, claim, 0.95, are_independent=True)
  assert not found.contradicts_claim and found.contradicts_if_independent
  assert found.epsilon < found.gaussian_epsilon < max(claim.values()) < found.independent_epsilon


def test_every_statement_has_its_part_of_the_significance():
  coins, scores = _coins_and_scores(np.random.default_rng(8), 2.0, 400)
  claim, third = {1e-5: 3.0, 0.1: 1.0}, 0.05 / 3
  found = one_run.bounds(coins, scores, claim, 0.95, are_independent=True)
  guesses = [one_run.guess(coins, scores, made) for made in (200, 100)]
  assert found.guesses == tuple(guesses)
  general = [one_run.epsilon_at_least(each, 1e-5, third / 2) for each in guesses]
  gaussian = [one_run.gaussian_epsilon_at_least(each, 1e-5, third / 4) for each in guesses]
  expected = (max(general), max(gaussian))
  assert (found.epsilon, found.gaussian_epsilon) == pytest.approx(expected, rel=1e-9)
  true, false = one_run.rates(coins, scores, third)
  mu = stats.norm.ppf(true) - stats.norm.ppf(false)
  assert found.independent_epsilon == pytest.approx(banded.epsilon(1 / mu, 1e-5))
  # Where canaries may tell of each other, that bound is not made, and judges nothing.
  others = one_run.bounds(coins, scores, claim, 0.95, are_independent=False)
  assert others == dataclasses.replace(
    found, independent_epsilon=None, contradicts_if_independent=found.contradicts_claim
  )


def test_a_confidence_that_is_none_is_refused():
  with pytest.raises(ValueError, match="confidence"):
    one_run.bounds(np.array([True, False]), np.zeros(2), {1e-5: 1.0}, 1.0, are_independent=True)
