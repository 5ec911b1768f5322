"""Audits by canaries: what they send, what an adversary makes of it, and which faults it finds."""

import dataclasses
import functools
import itertools
import json

import numpy as np
import pytest
from scipy import stats
import tensorflow as tf

from privacy import accounting
from privacy import calibration
from privacy import cohorts
from privacy import one_run
from privacy import parts
from privacy import releases
from privacy.settings import command_line
from tff_superquantile.engine import context
from tff_superquantile.experiments.audit_canaries import __main__ as command
from tff_superquantile.experiments.audit_canaries import auditing
from tff_superquantile.experiments.audit_canaries import canaries as canaries_lib
from tff_superquantile.experiments.audit_canaries import watched
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run import build
from tff_superquantile.experiments.run import private

_KEY = bytes(range(16))
_NUM_CLIENTS, _NUM_ROUNDS = 40, 6


@pytest.fixture(scope="module")
def prepare(cache_dir):
  """A function from flags to (calibrated config, model, clients, release)."""

  def prepare(**flags):
    usual = dict(
      num_train_clients=_NUM_CLIENTS,
      num_test_clients=15,
      clients_per_round=20,
      num_rounds=_NUM_ROUNDS,
      clip_norm=0.5,
      delta=1e-5,
      cache_dir=str(cache_dir),
    )
    config = run_config.from_values(**{**usual, **flags})
    task = build.get_task(config)
    config = build.resolve(config, task)
    model, splits = build.load_task(task, config)
    files = dataclasses.replace(splits["train"], min_examples=1)
    config, release = private.calibrate(config, len(files.client_ids), 210, {})
    context.set_simulation_context()
    return config, model, files, release

  return prepare


_SLOW = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.mark.parametrize(
  "flags,length",
  [
    (dict(algorithm="fed_avg", update_noise_multiplier=1e-3), 1.0),
    (
      dict(
        theta=0.5,
        threshold="geometric",
        threshold_noise_multiplier=1.0,
        update_noise_multiplier=1e-3,
        sampling="fixed_size",
        relation="replace_one",
        server_optimizer="adam",
        averaged_rounds=2,
      ),
      1.0,
    ),
    *(
      pytest.param(dict(flags, update_noise_multiplier=1e-2), length, marks=_SLOW)
      for flags, length in (
        (dict(algorithm="q_fed_avg", q=1.0, max_loss=5.0), (1 - 0.3**2) ** 0.5),
        (dict(algorithm="fed_avg", clip_norm="adaptive", clip_count_noise_multiplier=1.0), 1.0),
        (dict(algorithm="fed_avg", update_sum="distributed"), 1.0),
        (
          dict(
            algorithm="fed_avg",
            update_sum="distributed",
            noise_shares="private_coin",
            contacted_clients=30,
          ),
          1.0,
        ),
        (
          dict(
            theta=0.5, threshold="tree", threshold_noise_multiplier=1.0, max_loss=5.0, num_bins=8
          ),
          1.0,
        ),
        (dict(algorithm="fed_avg", sampling="cyclic", bands=1), 1.0),
        (dict(algorithm="fed_avg", sampling="spaced", separation=2, bands=1), 1.0),
      )
    ),
  ],
)
def test_each_canary_sends_its_clipped_direction(prepare, flags, length):
  # All clients are canaries, and there is next to no noise: the sums are known.
  config, model, files, release = prepare(**flags)
  run = auditing._run(config, model, files, release, _NUM_CLIENTS, _KEY)
  canaries = run.canaries
  out = -1.0 if release.relation == releases.REPLACE_ONE else 0.0
  sent = run.there * canaries.signs * np.where(canaries.coins, length, out)
  assert 0 < run.there.sum() < run.there.size and 0 < canaries.coins.sum() < _NUM_CLIENTS
  np.testing.assert_allclose(run.sums, sent, atol=0.15)
  np.testing.assert_allclose(run.sums.mean(), sent.mean(), atol=0.02)


def test_directions_are_unit_vectors_that_share_no_weight():
  files = _Files(50)
  for num_canaries, num_weights in ((7, 100), (50, 50), (50, 8)):
    canaries = canaries_lib.draw(_KEY, files, num_canaries, num_weights, 3, releases.ZERO_OUT)
    assert canaries.num_directions == min(num_canaries, num_weights)
    vectors = np.zeros([canaries.num_directions, num_weights])
    vectors[canaries.direction_of, np.arange(num_weights)] = canaries.weights
    np.testing.assert_allclose(vectors @ vectors.T, np.eye(len(vectors)), atol=1e-6)
    assert len(set(canaries.clients.tolist())) == num_canaries
    assert set(np.unique(canaries.signs)) == {-1, 1}
    assert len(canaries.directions) == num_canaries
  another = canaries_lib.draw(bytes(16), files, 50, 8, 3, releases.ZERO_OUT)
  assert np.any(another.coins != canaries.coins) and np.any(another.signs != canaries.signs)


class _Files:
  """The names of some clients."""

  def __init__(self, num_clients):
    self.client_ids = tuple(map(str, range(num_clients)))

  def path(self, client_id):
    return client_id


def _canaries(rng, num_canaries, num_rounds, relation=releases.ZERO_OUT):
  return canaries_lib.Canaries(
    files=_Files(num_canaries),
    clients=np.arange(num_canaries),
    coins=rng.random(num_canaries) < 0.5,
    signs=rng.choice([-1, 1], [num_rounds, num_canaries]),
    direction_of=np.arange(num_canaries, dtype=np.int32),
    weights=np.ones(num_canaries, np.float32),
    relation=relation,
  )


@pytest.mark.parametrize("relation", releases.RELATIONS)
def test_scores_of_secret_cohorts_are_the_likelihood_ratio(relation):
  # Brute force over who took part in which of three rounds.
  rng, noise, share = np.random.default_rng(1), 0.8, 0.3
  release = releases.Release(
    cohort=cohorts.Poisson(100, 30),
    parts=(parts.UpdateSum(noise_multiplier=noise),),
    relation=relation,
  )
  canaries = _canaries(rng, 4, 3, relation)
  sums = rng.normal(size=[3, 4])

  def density(canary, length):
    total = 0.0
    for there in itertools.product((0, 1), repeat=3):
      chance = np.prod(np.where(there, share, 1 - share))
      sent = length * np.array(there) * canaries.signs[:, canary]
      total += chance * np.prod(stats.norm.pdf(sums[:, canary], sent, noise))
    return total

  out = -1.0 if relation == releases.REPLACE_ONE else 0.0
  expected = [np.log(density(i, 1.0) / density(i, out)) for i in range(4)]
  np.testing.assert_allclose(canaries_lib.scores(canaries, release, sums, None), expected)


@pytest.mark.parametrize("relation", releases.RELATIONS)
def test_scores_of_known_cohorts_are_the_likelihood_ratio_of_correlated_noise(relation):
  rng, noise, coefficients = np.random.default_rng(2), 1.3, (1.0, 0.5, 0.2)
  release = releases.Release(
    cohort=cohorts.Spaced(12, 3, separation=3),
    parts=(parts.UpdateSum(noise_multiplier=noise),),
    relation=relation,
    coefficients=coefficients,
  )
  canaries = _canaries(rng, 4, 7, relation)
  sums, there = rng.normal(size=[7, 4]), np.zeros([7, 4], bool)
  there[[0, 3, 6], :2], there[[1, 5], 2] = True, True  # The last one never takes part.
  matrix = sum(c * np.eye(7, k=-j) for j, c in enumerate(coefficients))
  inverse = np.linalg.inv(matrix)
  covariance = noise**2 * inverse @ inverse.T
  out = -1.0 if relation == releases.REPLACE_ONE else 0.0

  def log_density(canary, length):
    sent = length * there[:, canary] * canaries.signs[:, canary]
    return stats.multivariate_normal.logpdf(sums[:, canary], sent, covariance)

  expected = [log_density(i, 1.0) - log_density(i, out) for i in range(4)]
  found = canaries_lib.scores(canaries, release, sums, there)
  np.testing.assert_allclose(found, expected, atol=1e-9)
  assert found[3] == 0.0


def test_what_others_send_alike_in_all_rounds_is_taken_away():
  sums = np.random.default_rng(0).normal(size=[30, 5])
  moved = canaries_lib._without_others(sums + np.arange(5.0) * 100)
  np.testing.assert_allclose(moved, canaries_lib._without_others(sums), atol=1e-9)
  # The mean of a round's ten neighbours.
  around = np.delete(np.arange(10, 21), 5)
  np.testing.assert_allclose(
    canaries_lib._without_others(sums)[15], sums[15] - sums[around].mean(axis=0)
  )
  assert canaries_lib._without_others(sums[:10]) is sums[:10] or np.array_equal(
    canaries_lib._without_others(sums[:10]), sums[:10]
  )


def _simulate(rng, release, num_rounds, num_canaries, noise=1.0, length=1.0, often=1.0):
  """Coins and scores of a mechanism that has a fault, without other clients."""
  canaries = _canaries(rng, num_canaries, num_rounds, release.relation)
  shape, noise = [num_rounds, num_canaries], noise * release.find(parts.UpdateSum).z
  there = rng.random(shape) < often * release.cohort.probability
  sums = there * canaries.coins * canaries.signs * length + noise * rng.normal(size=shape)
  return canaries.coins, canaries_lib.scores(canaries, release, sums, None)


@functools.cache
def _claim(epsilon, num_rounds=60):
  release = releases.Release(cohort=cohorts.Poisson(1000, 100), parts=(parts.UpdateSum(),))
  release = calibration.calibrate(release, epsilon, 1e-5, num_rounds=num_rounds)
  config = run_config.from_values(epsilon=epsilon, delta=1e-5, num_rounds=num_rounds)
  return release, auditing.claimed(config, release)


@pytest.mark.parametrize(
  "fault,num_canaries,is_found",
  [
    ({}, 1000, False),
    (dict(noise=0.5), 1000, True),
    (dict(noise=0.1), 200, True),
    (dict(length=2.0), 1000, True),
    (dict(often=2.0), 1000, True),
    # What is too little to be found by so few.
    (dict(noise=0.9), 200, False),
  ],
)
def test_faults_of_simulated_mechanisms(fault, num_canaries, is_found):
  release, claim = _claim(3.0)
  rng = np.random.default_rng(7)
  verdicts = [
    one_run.bounds(
      *_simulate(rng, release, 60, num_canaries, **fault), claim, 0.95, are_independent=True
    ).contradicts_if_independent
    for _ in range(8)
  ]
  assert sum(verdicts) >= 6 if is_found else sum(verdicts) == 0


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 3.0, 8.0])
def test_a_right_mechanism_is_accused_in_at_most_one_of_twenty_audits(epsilon):
  release, claim = _claim(epsilon)
  rng, num_audits = np.random.default_rng(4), 400
  wrong = 0
  for _ in range(num_audits):
    found = one_run.bounds(*_simulate(rng, release, 60, 200), claim, 0.95, are_independent=True)
    highest = max(found.epsilon, found.gaussian_epsilon, found.independent_epsilon)
    wrong += found.contradicts_if_independent or highest > claim[1e-5]
  assert wrong <= 0.05 * num_audits


class _Twice(watched.Watched):
  """Each client counts twice."""

  def build_sum(self, *args):
    summed = super().build_sum(*args)

    def report(*of_client):
      return tf.nest.map_structure(lambda x: 2 * x, summed.report_fn(*of_client))

    return summed._replace(report_fn=report)


def _with_fault(fault, canaries, *of_run):
  right = private.build_part(*of_run)
  if fault == "little noise":
    right = dataclasses.replace(right, noise_multiplier=0.4 * right.noise_multiplier)
  return (_Twice if fault == "twice" else watched.Watched).of(right, canaries)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("fault", ["", "little noise", "twice"])
def test_faults_of_real_runs(prepare, monkeypatch, fault):
  flags = dict(epsilon=3.0, num_rounds=30, num_train_clients=200, algorithm="fed_avg")
  prepared = prepare(**flags)
  config, _, _, release = prepared
  monkeypatch.setattr(auditing, "_build_private", functools.partial(_with_fault, fault))
  runs = [auditing._run(*prepared, 200, bytes([i] * 16)) for i in range(4)]
  coins = np.concatenate([run.canaries.coins for run in runs])
  scores = [canaries_lib.scores(run.canaries, release, run.sums, None) for run in runs]
  claim = auditing.claimed(config, release)
  found = one_run.bounds(coins, np.concatenate(scores), claim, 0.95, are_independent=True)
  assert found.contradicts_if_independent == bool(fault)


def _main(tmp_path, cache_dir, *flags):
  places = (f"--audit_dir={tmp_path / 'audit'}", f"--cache_dir={cache_dir}")
  small = ("--num_train_clients=40", "--num_test_clients=15", "--clients_per_round=20")
  arguments = [*places, *small, "--num_rounds=3", "--algorithm=fed_avg"]
  arguments += ["--clip_norm=0.5"] * bool(flags)
  command.main(command_line.parse(command, [*arguments, *flags]))


def test_the_command(tmp_path, cache_dir, capsys, monkeypatch):
  monkeypatch.chdir(tmp_path)
  flags = ("--update_noise_multiplier=2", "--delta=1e-5", "--num_canaries=30", "--known_cohorts")
  _main(tmp_path, cache_dir, *flags)
  said = capsys.readouterr().out
  written = json.loads((tmp_path / "audit/canaries.json").read_text())
  # Its own file, and no other: no ledger, key, model or name.
  assert [path.name for path in tmp_path.rglob("*")] == ["audit", "canaries.json"]
  assert written["canaries"] == 30 and [g["made"] for g in written["guesses"]] == [14, 6]
  release = releases.Release(
    cohort=cohorts.Poisson(40, 20), parts=(parts.UpdateSum(noise_multiplier=2.0),)
  )
  expected = accounting.epsilon(release, 3, 1e-5).epsilon
  assert written["epsilon_claimed"] == pytest.approx(expected)
  assert f"epsilon <= {expected:.4g} at delta 1e-05" in said
  assert written["contradicts_claim"] is None and "says nothing of an adversary that knows" in said
  assert "prove no privacy" in said.replace("\n", " ") and "spends the epsilon" in said
  with pytest.raises(ValueError, match="already there; expected another --audit_dir"):
    _main(tmp_path, cache_dir, *flags)


@pytest.mark.parametrize(
  "flags,sentence",
  [
    ((), "expected --epsilon or --update_noise_multiplier"),
    (("--epsilon=8", "--num_canaries=41"), "with 40 training clients"),
    (("--epsilon=8", "--num_canaries=0"), "num_canaries"),
    (("--epsilon=8", "--num_runs=0"), "num_runs"),
    (("--epsilon=8", "--confidence=1"), "confidence"),
  ],
)
def test_mistakes_are_told_before_anything_is_written(tmp_path, cache_dir, flags, sentence):
  with pytest.raises(ValueError, match=sentence):
    _main(tmp_path, cache_dir, *flags)
  assert not (tmp_path / "audit").exists()


def test_a_contradicted_claim_is_an_exit_code(tmp_path, cache_dir, monkeypatch, capsys):
  outcome = auditing.Outcome(
    config=run_config.from_values(epsilon=1.0),
    release=_claim(3.0)[0],
    claim=_claim(3.0)[1],
    knows_cohorts=False,
    coins=np.array([True, False]),
    scores=np.zeros(2),
    bounds=one_run.Bounds((one_run.Guesses(2, 2, 2),), 0.0, 0.0, 4.0, False, True),
  )
  monkeypatch.setattr(auditing, "audit", lambda *args: outcome)
  with pytest.raises(SystemExit) as end:
    _main(tmp_path, cache_dir, "--epsilon=1")
  assert end.value.code == command.CONTRADICTED
  assert "contradicted, if no canary tells of another" in capsys.readouterr().out
