"""Who takes part in the rounds of a private run, with which seed, and with which examples."""

import pathlib

from helpers import flat
import numpy as np
import pytest

from privacy import cohorts as kinds
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run import selection
from tff_superquantile.experiments.run.hooks import hook
from tff_superquantile.simulation import client_files
from tff_superquantile.simulation import cohorts
from tff_superquantile.simulation import seeds

_KEY, _OTHER_KEY = bytes(range(16)), bytes(range(1, 17))
_POPULATION = 40
_IDS = [f"c{i}" for i in range(_POPULATION)]
_ROUNDS = range(1, 60)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
  clients = ((client_id, np.zeros([2, 3], np.uint8), np.zeros(2, np.int32)) for client_id in _IDS)
  return client_files.write_client_files(tmp_path_factory.mktemp("files") / "c", clients)


def _release(**values):
  values = dict(
    population=_POPULATION,
    clients_per_round=10,
    threshold_noise_multiplier=3.0,
    update_noise_multiplier=1.0,
    **values,
  )
  return flat.release(**values)


def _with_shares(**values):
  return flat.complete(_release(**values), num_bins=16)


def _name(handle):
  return pathlib.Path(handle["path"]).stem


def _rounds(files, release, key=_KEY):
  secret = hook.Secret(release, key, key, released=0, epsilon=float)
  select = selection.build_selection(files, run_config.from_values(), secret)
  rounds = [select(r) for r in _ROUNDS]
  for round_num, handles in zip(_ROUNDS, rounds):
    names = [_name(handle) for handle in handles]
    assert len(set(names)) == len(names)
    for name, handle in zip(names, handles):
      # Whoever it is and whatever it is there for, its noise is its own, by the key.
      np.testing.assert_array_equal(handle["seed"], seeds.client_seed(key, round_num, name))
  assert [[dict(h, seed=tuple(h["seed"])) for h in handles] for handles in rounds] == [
    [dict(h, seed=tuple(h["seed"])) for h in select(r)] for r in _ROUNDS
  ]
  return rounds


def _names(handles, with_examples=True):
  return [_name(h) for h in handles if (h["index"] >= 0) == with_examples]


def _poisson(clients_per_round, max_clients=None, key=_KEY):
  sample = cohorts.build_sampler(
    kinds.Poisson(size=clients_per_round), _IDS, key, max_clients=max_clients
  )
  return [sample(r) for r in _ROUNDS]


def test_where_the_server_makes_the_noise_cohorts_are_not_cut(files):
  rounds = _rounds(files, _release(threshold_kind="geometric"))
  assert [_names(handles) for handles in rounds] == _poisson(10)
  assert not any(_names(handles, False) for handles in rounds)
  others = _rounds(files, _release(threshold_kind="geometric"), _OTHER_KEY)
  assert [_names(handles) for handles in others] == _poisson(10, key=_OTHER_KEY)
  assert _poisson(10) != _poisson(10, key=_OTHER_KEY)


def test_cohorts_are_cut_at_the_number_of_shares(files):
  release = _with_shares()
  assert release.num_shares == 23  # 10 + 4 sqrt(10)
  assert [_names(h) for h in _rounds(files, release)] == _poisson(10, 23)


@pytest.mark.parametrize("protocol,contacted", [("complement", None), ("private_coin", 20)])
def test_the_sampler_is_told_to_cut(files, monkeypatch, protocol, contacted):
  # Cohorts that large are rare: what the sampler is asked for says it, and not what it draws.
  release = _with_shares(protocol=protocol, contacted=contacted)
  asked = []

  def sampler(cohort, client_ids, key, *, max_clients):
    asked.append((list(client_ids), cohort.size, key, max_clients))
    return lambda round_num: list(client_ids[: round_num % max_clients + 1])

  monkeypatch.setattr(cohorts, "build_sampler", sampler)
  _rounds(files, release)
  assert asked == [(_IDS, contacted or 10, _KEY, release.num_shares)]


def test_helpers_complete_every_cohort(files):
  release = _with_shares(protocol="helpers")
  for handles, cohort in zip(_rounds(files, release), _poisson(10, 23)):
    assert len(handles) == 23
    assert _names(handles) == cohort and len(_names(handles, False)) == 23 - len(cohort)


def test_with_a_private_coin_those_who_are_contacted_add_data_by_chance(files):
  release = _with_shares(protocol="private_coin", contacted=20)
  assert release.num_shares == 38
  rounds = _rounds(files, release)
  contacted = _poisson(20, 38)
  assert [sorted(_names(h) + _names(h, False)) for h in rounds] == [sorted(c) for c in contacted]
  # Of each of them half, whatever the others do: five standard deviations.
  adding, total = (sum(map(len, lists)) for lists in (map(_names, rounds), contacted))
  assert abs(adding - total / 2) < 5 * np.sqrt(total) / 2
  toss = cohorts.build_coin(0.5, _KEY)
  for round_num, handles, cohort in zip(_ROUNDS, rounds, contacted):
    assert _names(handles) == [client for client in cohort if toss(round_num, client)]


def test_cohorts_of_fixed_size(files):
  rounds = _rounds(files, _with_shares(sampling="fixed_size"))
  sample = cohorts.build_sampler(kinds.FixedSize(size=10), _IDS, _KEY)
  assert [_names(handles) for handles in rounds] == [sample(r) for r in _ROUNDS]


def test_cohorts_that_all_may_know_tell_nothing_of_the_key(files):
  release = _release(sampling="cyclic", threshold_kind="primal_dual")
  sample = cohorts.build_sampler(kinds.Cyclic(size=10), _IDS, run_config.from_values().seed)
  for key in (_KEY, _OTHER_KEY):
    rounds = [list(map(_name, handles)) for handles in _rounds(files, release, key)]
    assert rounds == [sample(r) for r in _ROUNDS]
