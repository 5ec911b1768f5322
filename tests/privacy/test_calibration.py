"""The noise that a budget asks for: by golden numbers, against its cost, and what is refused."""

import math

from helpers import flat
import numpy as np
import pytest

from privacy import accounting
from privacy import parts
from privacy import releases
from privacy.noise import shares

_DELTA = 1 / 2500
_ROUNDS = 1000
_RUN = dict(population=2500, clients_per_round=100, num_rounds=_ROUNDS)
# Little to compute: no cohort is larger than there are shares.
_SMALL = dict(population=60, clients_per_round=40, num_rounds=20)


def _cost(release, num_rounds=_ROUNDS, delta=_DELTA, accountant="tightest"):
  return accounting.epsilon(release, num_rounds, delta, accountant).epsilon


@pytest.mark.parametrize(
  "accountant,delta,golden",
  [
    ("rdp", _DELTA, {3: 1.7310, 5: 1.2447, 10: 0.8719, 15: 0.7348, 20: 0.6578}),
    ("rdp", 1e-5, {3: 2.068, 5: 1.434, 10: 0.964}),
    ("pld", _DELTA, {3: 1.5957, 5: 1.1632, 10: 0.8264, 15: 0.7004, 20: 0.6290}),
  ],
)
def test_golden_noise(accountant, delta, golden):
  for epsilon, z in golden.items():
    release = flat.calibrate(epsilon, delta, rho_ratio=None, accountant=accountant, **_RUN)
    assert release.effective_noise_multiplier == pytest.approx(
      z, rel=1e-4 if delta > 1e-5 else 1e-3
    )
    assert epsilon * (1 - 1e-4) < _cost(release, delta=delta, accountant=accountant) <= epsilon
    if accountant == "pld":  # It is the tightest here.
      spent = accounting.epsilon(release, _ROUNDS, delta)
      assert (spent.accountant, spent.rdp_order) == ("pld", None)


def test_a_fine_grid_for_many_rounds():
  # With one grid for all this failed for one, and gave 9 % too much for the other.
  release = flat.calibrate(
    1.0,
    1e-6,
    rho_ratio=None,
    accountant="pld",
    population=10_000,
    clients_per_round=100,
    num_rounds=100_000,
  )
  assert release.effective_noise_multiplier == pytest.approx(13.385, rel=2e-3)
  less = flat.release(10_000, 100, None, 10.29)
  assert _cost(less, 100_000, 1e-6, "pld") == pytest.approx(1.330, rel=5e-3)
  assert _cost(less, 100_000, 1e-6, "pld") < _cost(less, 100_000, 1e-6, "rdp")


@pytest.mark.parametrize(
  "population,clients,rounds,delta,z,epsilon",
  # An independent accountant's brackets, without dp_accounting.
  [(10_000, 1, 2000, 1e-6, 1.0, 0.0414), (10**6, 1, 2000, 1e-6, 1.0, 0.0004)],
)
def test_a_fine_grid_for_small_epsilons(population, clients, rounds, delta, z, epsilon):
  release = flat.release(population, clients, None, z)
  assert _cost(release, rounds, delta) <= 1.02 * epsilon


def test_fixed_cohorts_by_rdp_and_pld():
  def cost(z, accountant):
    release = flat.release(10**5, 100, None, z, "fixed_size", relation="replace_one")
    return _cost(release, 1000, 1e-7, accountant)

  # An independent calculation of the bound for RDP; PLD needs half the noise.
  assert cost(5.276 * 1.002, "rdp") < 0.15 < cost(5.276 * 0.998, "rdp")
  assert cost(0.5 * 5.276, "pld") < 0.15
  # The search finds that noise.
  run = dict(population=10**5, clients_per_round=100, num_rounds=1000, sampling="fixed_size")
  found = flat.calibrate(0.15, 1e-7, rho_ratio=None, accountant="rdp", **run)
  assert found.effective_noise_multiplier == pytest.approx(5.276, rel=1e-4)


@pytest.mark.parametrize("relation", releases.RELATIONS)
@pytest.mark.parametrize("sampling", flat.SAMPLED)
def test_the_tightest_accountant_asks_for_the_least_noise(relation, sampling):
  release = flat.calibrate(
    2,
    1e-5,
    population=100,
    clients_per_round=20,
    num_rounds=10,
    rho_ratio=0.3,
    relation=relation,
    sampling=sampling,
  )
  assert 2 * (1 - 1e-4) < _cost(release, 10, 1e-5) <= 2
  assert (release.relation, flat.of(release).sampling) == (relation, sampling)
  # By each of both bounds alone, as much noise or more is needed.
  z_q, z_w = flat.split_noise(release.effective_noise_multiplier * (1 - 1e-5), 0.3)
  less = flat.changed(release, threshold_noise_multiplier=z_q, update_noise_multiplier=z_w)
  for accountant in ("rdp", "pld"):
    found = accounting.epsilon_or_none(less, 10, 1e-5, accountant)
    # RDP does not know how to replace a client of a Poisson sample.
    assert (found is None) == (
      (relation, sampling, accountant) == ("replace_one", "poisson", "rdp")
    )
    assert found is None or found > 2


def test_split_noise():
  assert flat.split_noise(1.5, None) == flat.split_noise(1.5, 0) == (None, 1.5)
  assert flat.split_noise(1.5, math.inf) == (1.5, None)
  assert flat.split_noise(1.5, 1e9)[0] == pytest.approx(1.5)  # And z_w grows without limit.
  for ratio in (0.01, 0.5, 1.0, 7.0):
    z_q, z_w = flat.split_noise(1.5, ratio)
    assert (z_w / z_q) ** 2 == pytest.approx(ratio)
    assert (z_q**-2 + z_w**-2) ** -0.5 == pytest.approx(1.5)


def test_calibrate_is_quick(monkeypatch):
  tried = flat.costs_computed(monkeypatch)
  flat.calibrate(4.2, _DELTA, rho_ratio=0.3, **_RUN)
  assert 0 < len(tried) <= 20  # Each takes hundredths of a second.


@pytest.mark.parametrize("threshold_kind", ["tree", "geometric"])
@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_calibrate_leaves_room_for_the_tree(threshold_kind, accountant):
  num_bins = 1024 if threshold_kind == "tree" else None
  run = dict(rho_ratio=0.5, threshold_kind=threshold_kind, accountant=accountant, **_RUN)
  release = flat.calibrate(2.0, 1e-5, num_bins=num_bins, **run)
  assert (flat.of(release).tree is None) == (threshold_kind == "geometric")
  assert 1.999 < _cost(release, delta=1e-5, accountant=accountant) <= 2.0
  if flat.of(release).tree is not None:
    assert flat.of(release).tree.noise_multiplier == flat.of(release).threshold_noise_multiplier
    assert flat.of(release).tree.local_stddev >= shares.MIN_STDDEV
    assert flat.of(release).tree.num_shares == release.num_shares == shares.cohort_limit(2500, 100)
    # A tree of another size has the same cost: that of its noise and of cohorts that are cut.
    other = flat.complete(release, num_bins=64)
    cost = _cost(other, delta=1e-5, accountant=accountant)
    assert cost == pytest.approx(2.0, rel=1e-4)


@pytest.mark.parametrize("num_parameters", [1, 1_200_000])
def test_distributed_updates_stay_within_the_budget(num_parameters):
  release = flat.calibrate(
    3,
    _DELTA,
    rho_ratio=0.1,
    num_bins=64,
    distributed_updates=True,
    clip_norm=0.3,
    num_parameters=num_parameters,
    accountant="pld",
    **_RUN,
  )
  assert 3 * (1 - 1e-4) < _cost(release, accountant="pld") <= 3
  summed = flat.of(release).update_sum
  assert (summed.num_entries, summed.clip_norm, summed.num_shares) == (num_parameters, 0.3, 140)
  assert summed.noise_multiplier == flat.of(release).update_noise_multiplier
  assert min(summed.local_stddev, flat.of(release).tree.local_stddev) >= shares.MIN_STDDEV
  # However many numbers have noise, it is within a thousandth the noise of a server.
  z = release.effective_noise_multiplier
  assert 1.5957 * (1 - 1e-5) < z < 1.001 * 1.5957


@pytest.mark.parametrize("relation", releases.RELATIONS)
@pytest.mark.parametrize("protocol,contacted", [("helpers", None), ("private_coin", 50)])
def test_calibrate_other_protocols(relation, protocol, contacted):
  release = flat.calibrate(
    2,
    1e-4,
    rho_ratio=0.2,
    num_bins=16,
    distributed_updates=True,
    num_parameters=100,
    relation=relation,
    protocol=protocol,
    contacted=contacted,
    **_SMALL,
  )
  assert (flat.of(release).protocol, flat.of(release).contacted) == (protocol, contacted)
  assert 2 * (1 - 1e-4) < _cost(release, 20, 1e-4) <= 2
  assert release.num_shares == release.limit == 60
  # What an outsider sees does not depend on who makes the noise.
  same = flat.calibrate(2, 1e-4, rho_ratio=0.2, relation=relation, num_bins=16, **_SMALL)
  assert release.effective_noise_multiplier == pytest.approx(
    same.effective_noise_multiplier, rel=1e-5
  )


@pytest.mark.parametrize(
  "sampling,clients,expected",
  [("poisson", 100, 140), ("poisson", 2490, 2500), ("fixed_size", 100, 100), ("none", 100, 100)],
)
def test_num_shares(sampling, clients, expected):
  release = flat.release(2500, clients, 3, 2, sampling)
  assert release.limit == expected
  complete = flat.complete(release, num_bins=64, distributed_updates=True, num_parameters=10)
  entries = flat.of(complete)
  assert entries.tree.num_shares == entries.update_sum.num_shares == expected
  assert flat.release(2500, 0.5, 3, 2, "none").limit == 1


@pytest.mark.parametrize(
  "epsilon,accountant",
  [(0.01, "tightest"), (0.3, "tightest"), (50, "tightest"), (1000, "tightest"), (0.3, "rdp")],
)
def test_calibrate_over_a_wide_range(epsilon, accountant):
  release = flat.calibrate(epsilon, 1e-6, rho_ratio=0.2, accountant=accountant, **_RUN)
  assert 0.97 * epsilon < _cost(release, delta=1e-6, accountant=accountant) <= epsilon


def test_the_most_noise_is_just_not_enough():
  run = dict(rho_ratio=None, sampling="none", accountant="rdp", **_RUN)
  least = _cost(flat.release(2500, 100, None, 2000, "none"), accountant="rdp")
  with pytest.raises(ValueError, match="^Found epsilon = .*, which no noise reaches"):
    flat.calibrate(0.99 * least, _DELTA, **run)
  release = flat.calibrate(1.01 * least, _DELTA, **run)
  assert 1900 < flat.of(release).update_noise_multiplier < 2000


def _variance_of_rank(num_bins, theta):
  """Of the least-squares estimate of the count below the threshold, by solving for it.

  For noise of variance 1 on each node of a tree of counts.
  """
  rows, width = [], num_bins // 2
  while width:
    for start in range(0, num_bins, width):
      row = np.zeros(num_bins)
      row[start : start + width] = 1
      rows.append(row)
    width //= 2
  design = np.array(rows)
  assert len(design) == 2 * num_bins - 2
  below = np.zeros(num_bins)
  below[: min(max(round((1 - theta) * num_bins), 1), num_bins - 1)] = 1
  return below @ np.linalg.inv(design.T @ design) @ below


def _modelled_error(ratio, z, variance, num_parameters):
  """d z_w^2 + 2 A z_q^2, in units of C^2."""
  z_q, z_w = z * np.sqrt((1 + ratio) / ratio), z * np.sqrt(1 + ratio)
  return num_parameters * z_w**2 + 2 * variance * z_q**2


@pytest.mark.parametrize(
  "kind, num_bins, theta",
  [
    *(("tree", *shape) for shape in ((2, 0.5), (8, 0.3), (64, 0.5), (64, 0.999))),
    # Of a tracker's noise neither bins nor theta matter.
    *((kind, 64, 0.5) for kind in parts.private_kinds() if kind != "tree"),
  ],
)
@pytest.mark.parametrize("clients,z", [(100, 1.6), (20, 3.0)])
@pytest.mark.parametrize("num_parameters", [1, 210, 48_670])
def test_default_rho_ratio_has_the_least_modelled_error(
  num_bins, theta, clients, z, num_parameters, kind
):
  release = flat.release(25_000, clients, None, z)
  of_kind = dict(num_bins=num_bins, theta=theta, threshold_kind=kind)
  found = flat.default_rho_ratio(release, num_parameters, **of_kind)
  if kind == "tree":
    # Noise of z_q times the sensitivity sqrt(L) on each node.
    variance = math.log2(num_bins) * _variance_of_rank(num_bins, theta)
  else:
    # A tracker of gain g, of noise z_q on a bit of sensitivity 1/2: x <- x - g (x + noise).
    gain = {"geometric": 0.12, "primal_dual": 0.02}[kind]
    variance = 0.25 * gain**2 * sum((1 - gain) ** (2 * i) for i in range(1000))
  ratios = np.geomspace(1e-3, 1.0, 20_001)
  errors = _modelled_error(ratios, z, variance, num_parameters)
  # Where the threshold's rank is off by at most a tenth of a cohort, if it can be.
  useful = variance * z**2 * (1 + ratios) / ratios <= (clients / 10) ** 2
  expected = ratios[useful][np.argmin(errors[useful])] if useful.any() else 1.0
  assert found == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("sampling,relation", [("poisson", "zero_out"), ("none", "replace_one")])
@pytest.mark.parametrize("rho_ratio", [None, 0.1])
def test_the_count_of_an_adaptive_clip_norm_has_its_part_of_the_budget(
  sampling, relation, rho_ratio
):
  target = dict(
    population=600,
    clients_per_round=60,
    num_rounds=20,
    rho_ratio=rho_ratio,
    threshold_kind="geometric",
    sampling=sampling,
    relation=relation,
  )
  fixed = flat.calibrate(3.0, 1e-5, **target)
  found = flat.calibrate(3.0, 1e-5, **target, clip_rho_ratio=0.2)
  z_q, z_w, z_b = flat.of(found).noise_multipliers
  # All together have the noise that the others have alone.
  together = sum(z**-2 for z in (z_q, z_w, z_b) if z is not None) ** -0.5
  assert together == pytest.approx(fixed.effective_noise_multiplier, rel=1e-4)
  assert (z_w / z_b) ** 2 == pytest.approx(0.2)
  if rho_ratio:
    assert z_q**-2 == pytest.approx(rho_ratio * (z_w**-2 + z_b**-2))
  spent = accounting.epsilon(found, 20, 1e-5).epsilon
  assert 2.99 < spent <= 3.0
  without = flat.changed(found, clip_count_noise_multiplier=None)
  assert accounting.epsilon(without, 20, 1e-5).epsilon < 2.9
  by_rdp = [accounting.epsilon(release, 20, 1e-5, "rdp").epsilon for release in (without, found)]
  assert by_rdp[0] < 0.97 * by_rdp[1]
