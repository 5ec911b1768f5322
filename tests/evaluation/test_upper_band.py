"""The band for clients that nobody has seen, against simulations and independent laws."""

import math

import numpy as np
import pytest
from scipy import stats

import tff_superquantile as tsq
from tff_superquantile import distribution
from tff_superquantile import evaluation

# Quantile functions of laws of errors: continuous, with ties, with two values, with a far tail.
_LAWS = {
  "uniform": lambda u: u,
  "skewed": lambda u: u**6,
  "of ten examples": lambda u: stats.binom.ppf(u, 10, 0.3) / 10,
  "mostly zero": lambda u: np.where(u < 0.7, 0.0, 1.0),
  "far tail": lambda u: np.minimum(1e9, (1 - u) ** -2),
  "infinite for some": lambda u: np.where(u < 0.9, u, np.inf),
}


def _is_true(band, law):
  """Whether all statements of a band hold, by the quantile function of the true law.

  "At least a share q is at most x" is true for q < P(value <= x): where the law's quantile of a
  share a little below q is at most x. Shares just below each of the band's are the strictest.
  """
  said = band.shares > 0
  return bool(np.all(law(band.shares[said] - 1e-9) <= band.values[said]))


@pytest.mark.parametrize("name", _LAWS)
@pytest.mark.parametrize(("num_clients", "confidence"), [(12, 0.95), (80, 0.8)])
def test_all_statements_hold_as_often_as_claimed(name, num_clients, confidence):
  rng, draws = np.random.default_rng(5), 2000
  drawn = _LAWS[name](rng.random([draws, num_clients]))
  held = sum(_is_true(tsq.upper_band(values, confidence), _LAWS[name]) for values in drawn)
  # Five standard deviations of the number of draws; where the law is continuous it is exact.
  slack = 5 * math.sqrt(draws * confidence * (1 - confidence))
  assert held >= draws * confidence - slack
  if name in ("uniform", "skewed"):
    assert held <= draws * confidence + slack


@pytest.mark.parametrize("num_clients", [1, 2, 7, 60])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_the_margin_is_smirnovs_and_below_massarts(num_clients, confidence):
  margin = distribution.margin(num_clients, confidence)
  assert stats.ksone.sf(margin, num_clients) == pytest.approx(1 - confidence)
  # Birnbaum and Tingey's sum for P(D+ > e), by itself.
  places = np.arange(math.floor(num_clients * (1 - margin)) + 1)
  terms = [
    math.comb(num_clients, j)
    * (1 - margin - j / num_clients) ** (num_clients - j)
    * (margin + j / num_clients) ** (j - 1)
    for j in places.tolist()
  ]
  assert margin * math.fsum(terms) == pytest.approx(1 - confidence)
  assert margin < math.sqrt(math.log(1 / (1 - confidence)) / (2 * num_clients))


def test_many_clients_have_the_closed_bound():
  exact, closed = (distribution.margin(n, 0.95) for n in (10_000, 10_001))
  assert closed == pytest.approx(math.sqrt(math.log(20) / 20_002))
  assert 0 < closed - exact < 2e-5


def test_shares_and_bounds_by_a_plain_count():
  errors = [0.5, 0.1, 0.1, math.nan, 0.3, math.inf] * 4
  band = tsq.upper_band(errors)
  margin = stats.ksone.isf(0.05, 20)
  assert band.num_clients == 20 and band.values.tolist() == [0.1, 0.3, 0.5, math.inf]
  np.testing.assert_allclose(band.shares, np.array([0.4, 0.6, 0.8, 1.0]) - margin)
  assert band.largest_share == pytest.approx(1 - margin)
  for share in (0.01, 0.2, 0.4 - margin, 0.4, 0.6 - margin + 1e-9, 0.7):
    known = sorted(error for error in errors if not math.isnan(error))
    enough = [x for x in known if sum(e <= x for e in known) / 20 - margin >= share - 1e-12]
    assert band.bound(share) == (enough[0] if enough else math.inf)
  assert band.bound(0.99) == math.inf
  assert band.share([0.0, 0.1, 0.2, 9.0])[[0, 2]].tolist() == [0.0, band.shares[0]]


def test_few_clients_say_little_and_none_nothing():
  for number in (1, 2, 3):
    band = tsq.upper_band(np.zeros(number))
    assert band.largest_share == pytest.approx(1 - stats.ksone.isf(0.05, number))
    assert band.bound(0.9) == math.inf
  nobody = tsq.upper_band([math.nan])
  assert nobody.largest_share == 0.0 and nobody.bound(0.01) == math.inf


@pytest.mark.parametrize(("share", "confidence"), [(0.5, 0.95), (0.9, 0.95), (0.8, 0.98)])
def test_as_many_clients_as_it_takes(share, confidence):
  number = distribution.fewest_clients(share, confidence)
  bounds = [tsq.upper_band(np.zeros(n), confidence).bound(share) for n in (number - 1, number)]
  assert bounds == [math.inf, 0.0]


def test_described_and_in_a_frame():
  rng = np.random.default_rng(1)
  errors = rng.random(50)
  described, band = tsq.describe(errors, confidence=0.9), tsq.upper_band(errors, 0.9)
  assert {n: v for n, v in described.items() if "upper" not in n} == tsq.describe(errors)
  for q in distribution.PERCENTILES:
    assert described[f"p{q}_upper"] == band.bound(q / 100) >= described[f"p{q}"]
  losses = np.where(np.arange(50) == 3, np.nan, 1.0)
  ids = [str(i) for i in range(50)]
  metrics = evaluation.ClientMetrics(ids, np.ones(50, int), losses, errors)
  frame = metrics.to_frame(0.9)
  np.testing.assert_array_equal(frame["share_up_to_error"], band.share(errors))
  margin = distribution.margin(49, 0.9)
  assert np.isnan(frame["share_up_to_loss"].iloc[3])
  np.testing.assert_allclose(frame["share_up_to_loss"].drop("3"), 1 - margin)
  assert "share_up_to_error" not in metrics.to_frame()


@pytest.mark.parametrize("confidence", [0.0, 0.49, 1.0, math.nan])
def test_confidences_out_of_range_are_refused(confidence):
  with pytest.raises(ValueError, match=r"expected a number in \[0.5, 1\)"):
    tsq.describe([0.5], confidence=confidence)


def test_weights_are_refused():
  with pytest.raises(ValueError, match="leave the weights out"):
    tsq.describe([0.5, 0.6], [1, 2], confidence=0.95)
