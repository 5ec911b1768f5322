"""Several runs together against dp_accounting's own composition, closed forms and single runs."""

import dataclasses
import math

import dp_accounting
from dp_accounting import pld
from helpers import flat
from helpers import gaussian
import numpy as np
import pytest

from privacy import accounting
from privacy import releases
from privacy import together
from privacy.evaluation import query as query_lib
from privacy.noise import shares

_DELTA = 1e-5


def _release(z=1.0, population=1000, clients=50, **kwargs):
  return flat.release(population, clients, None, z, **kwargs)


def _spent(*runs, delta=_DELTA):
  return together.spent([together.Repeated(release, rounds) for release, rounds in runs], delta)


def test_rounds_that_sample_nobody_are_one_gaussian_mechanism():
  everybody = _release(3.0, 50, 50, sampling="none")
  cyclic = _release(4.0, 100, 20, sampling="cyclic")
  banded = dataclasses.replace(cyclic, coefficients=(1.0, 0.5, 0.25))
  query = query_lib.Query(100, 2.0, _DELTA)
  z = query.release.effective_noise_multiplier
  runs, exact = [(everybody, 7), (cyclic, 12), (banded, 10)], query.release.without_mechanisms()
  found = _spent(*runs, (exact, 1))
  # 12 rounds of 5 groups are three of a client, and 10 are two.
  bands = 2 * (1 + 0.25 + 0.0625)
  distance = math.sqrt(7 / 9 + 3 / 16 + bands / 16 + 1 / z**2)
  assert found.epsilon == pytest.approx(gaussian.epsilon(distance, _DELTA), rel=1e-9)
  assert (found.method, found.relation) == ("gaussian", "zero_out")
  # The clients' noise is rounded as it is drawn, and some of delta is for what that leaves out.
  noise, room = query.release.parts[0].mechanism, 1e-6 * _DELTA
  slack = shares.drawn_slack(
    *(noise.local_stddev, noise.num_shares, noise.num_entries),
    sensitivity=noise.local_stddev * math.sqrt(noise.num_shares) / z,
    num_rounds=1,
    room=room / (1 + math.exp(found.epsilon + 1)),
  )
  drawn = gaussian.epsilon(distance, _DELTA - 2 * room) + slack
  found = _spent(*runs, (query.release, 1))
  assert found.epsilon == pytest.approx(drawn, rel=1e-12)
  assert "still in the list and counted" in found.neighboring_relation


@pytest.mark.parametrize("seed", range(12))
def test_different_runs_as_dp_accounting_composes_them(seed):
  rng = np.random.default_rng(seed)
  accountant, runs = pld.PLDAccountant(), []
  for _ in range(rng.integers(2, 5)):
    z, rounds = float(rng.uniform(0.8, 4.0)), int(rng.integers(1, 200))
    clients = int(rng.integers(1, 60))
    runs.append((_release(z, clients=clients), rounds))
    event = dp_accounting.PoissonSampledDpEvent(clients / 1000, dp_accounting.GaussianDpEvent(z))
    accountant.compose(event, rounds)
  if seed % 2:
    z = float(rng.uniform(1.0, 4.0))
    runs.append((_release(z, 60, 60, sampling="none"), 2))
    accountant.compose(dp_accounting.GaussianDpEvent(z), 2)
  delta = float(10.0 ** rng.uniform(-7, -3))
  found, expected = _spent(*runs, delta=delta), accountant.get_epsilon(delta)
  assert found.method == "pld"
  assert expected * (1 - 2e-3) <= found.epsilon <= expected * (1 + 5e-3) + 1e-4
  own = [together.Repeated(*run).epsilon(delta) for run in runs]
  assert max(own) < found.epsilon < sum(own)


@pytest.mark.parametrize("sampling", ["poisson", "fixed_size"])
@pytest.mark.parametrize("relation", releases.RELATIONS)
def test_runs_that_are_alike_are_one_longer_run(sampling, relation):
  release = _release(1.5, sampling=sampling, relation=relation)
  found = _spent((release, 30), (release, 50), (release, 1))
  expected = accounting.epsilon(release, 81, _DELTA, "pld").epsilon
  assert found.epsilon == pytest.approx(expected, rel=1e-12)
  # Nor does it matter if they are only nearly alike, so that transforms multiply.
  nearly = [_release(1.5 * (1 + 1e-9 * i), sampling=sampling, relation=relation) for i in range(3)]
  again = _spent(*zip(nearly, (30, 50, 1)))
  assert again.epsilon == pytest.approx(expected, rel=1e-3)
  assert (
    _spent((release, 81), (release, 0)).epsilon == accounting.epsilon(release, 81, _DELTA).epsilon
  )


@pytest.mark.parametrize("sampling", ["poisson", "fixed_size", "none", "cyclic"])
def test_other_relations_are_accounted_for_anew(sampling):
  weaker = _release(2.0, sampling=sampling)
  stronger = _release(2.0, sampling=sampling, relation="replace_one")
  mixed = _spent((weaker, 20), (stronger, 20))
  assert mixed.is_converted and mixed.relation == "replace_one"
  assert mixed.neighboring_relation == "replace one client's data"
  for both, is_larger in ((weaker, True), (stronger, False)):
    found = _spent((both, 20), (both, 20))
    assert not found.is_converted
    assert (mixed.epsilon > 1.1 * found.epsilon) == is_larger
    assert is_larger or mixed.epsilon == pytest.approx(found.epsilon, rel=1e-9)


def test_a_client_that_is_counted_in_one_run_is_so_in_all():
  words = {
    sampling: _release(sampling=sampling).neighboring_relation
    for sampling in ("poisson", "fixed_size")
  }
  assert len(set(words.values())) == 2
  for order in (("poisson", "fixed_size"), ("fixed_size", "poisson")):
    found = _spent(*((_release(2.0, sampling=sampling), 5) for sampling in order))
    assert found.neighboring_relation == words["fixed_size"]


def test_noise_of_clients_and_ends_of_noise_cost_what_they_cost():
  by_clients = flat.complete(flat.release(1000, 50, 4.0, 2.0), num_bins=16)
  assert by_clients.num_shares
  alone = accounting.epsilon(by_clients, 40, _DELTA, "pld").epsilon
  found = _spent((by_clients, 20), (dataclasses.replace(by_clients), 20))
  assert found.epsilon == pytest.approx(alone, rel=1e-9)
  little = _release(0.2)  # With probability 1e-11 an output is beyond the end of its noise.
  with pytest.raises(ValueError, match="^Found "):
    _spent((little, 100), (little, 100), delta=1e-12)


def test_where_losses_tell_nothing_epsilons_add():
  loud = _release(0.3, 60, 40)  # Its epsilon is too large for privacy losses.
  found = _spent((loud, 200), (_release(2.0), 9))
  halves = [
    together.Repeated(loud, 200).epsilon(5e-6),
    together.Repeated(_release(2.0), 9).epsilon(5e-6),
  ]
  assert (found.method, found.epsilon) == ("sum", sum(halves))


def test_nothing_costs_nothing_and_no_run_is_refused():
  assert _spent((_release(), 0), (_release(2.0), 0)).epsilon == 0.0
  with pytest.raises(ValueError, match="at least one"):
    together.spent([], _DELTA)
