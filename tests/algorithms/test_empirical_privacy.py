"""An empirical audit: how well do rounds of training really tell who took part?

The round runs many times on two cohorts that differ in the data of one client, the canary. A
logistic regression on ALL that rounds release, and its squares, learns from the first rounds of
each cohort to tell them apart; its error rates in the others, by Clopper and Pearson with 95 %
confidence, bound mu >= Phi^-1(TPR) - Phi^-1(FPR) from below, and so epsilon at delta = 1e-5 (of
Poisson cohorts epsilon >= log((TPR - delta) / FPR)). It must be under the epsilon that
`privacy.accounting` states and above a good part of it.

Power, with mu = 2 and 100 + 400 rounds: the bound is about 1.7, where the accounted epsilon is that
of mu = 2.1 and its half that of mu = 1.2, four standard deviations from either limit. Half the
noise gives 3.4, three times the noise at most 0.9. Noise has keys: what passes does so always.
"""

import functools

from helpers import flat
from helpers import gaussian
from helpers import problems
import numpy as np
import pytest
from scipy import stats
from sklearn import linear_model
from sklearn import pipeline
from sklearn import preprocessing
import tensorflow_federated as tff

from privacy import accounting
from privacy import cohorts
from privacy import parts
from privacy import releases
from privacy.noise import banded
from privacy.noise import shares
from privacy.noise import sum_mechanism
from privacy.noise import tree_mechanism
from tff_superquantile import algorithms
from tff_superquantile import noise_source
from tff_superquantile import threshold as threshold_lib

pytestmark = pytest.mark.usefixtures("simulation_context")

_DELTA = 1e-5
_KEY = bytes(range(16))
_SHORT = (100, 400)
_LONG = pytest.param((1000, 7000), id="long", marks=[pytest.mark.slow, pytest.mark.timeout(3600)])
_SIZES = [pytest.param(_SHORT, id="short"), _LONG]
_CLIP_NORM = 0.2
_MAX_LOSS = 4.0
# One example each: three ordinary clients, the canary, and the canary without its data.
_X = np.array([[0, 1, 0], [0, 0, -2], [0, 0.1, 0.1], [9, 0, 0]], np.float32)
_LOSSES = np.array([0.2, 3.0, 0.5, 9.0], np.float32)
_NOBODY = 4
_COHORTS = {"with": (0, 1, 2, 3), "without": (0, 1, 2, _NOBODY)}
_READING = problems.reading_handles(
  [(_X[i : i + 1], _LOSSES[i : i + 1]) for i in range(_NOBODY + 1)]
)


def _fresh_but_for_the_noise(state, initial):
  """The state before any training, with its sources of noise where they are."""

  def fresh(now, first):
    if isinstance(now, dict):
      return type(now)(
        (name, now[name] if name == "noise" else fresh(now[name], first[name])) for name in now
      )
    return first

  client_work = fresh(state.client_work, initial.client_work)
  aggregator = state.aggregator
  if _next_clip_norm(state):
    aggregator = {**aggregator, "clip_norm": initial.aggregator["clip_norm"]}
  return initial._replace(client_work=client_work, aggregator=aggregator)


def _next_clip_norm(state):
  """The logarithm of the norm that the round's count has moved, if it adapts."""
  adapts = isinstance(state.aggregator, dict) and "clip_norm" in state.aggregator
  return [float(np.log(state.aggregator["clip_norm"]))] if adapts else []


def _share_sum(measured):
  """The estimated sum of the shares, where it is measured."""
  return {name: measured[name] for name in ("estimated_share_sum",) if name in (measured or {})}


def _outputs(process, cohort_fn, num_rounds, first_seed):
  """All that each of the rounds releases, float [num_rounds, d]."""
  state = initial = process.initialize()
  found = []
  for trial in range(num_rounds):
    clients = problems.handles(cohort_fn(trial), first_seed + trial)
    output = process.next(_fresh_but_for_the_noise(state, initial), clients)
    state = output.state
    weights = np.asarray(state.global_model_weights.trainable[0], np.float64)
    measured = (output.metrics["client_work"] or {}).get("threshold") or {}
    measured = {**measured, **_share_sum(output.metrics["aggregator"])}
    # What was added up, before it was divided by an estimate that is released, too.
    divisor = measured.get("estimated_tail_size", measured.get("estimated_share_sum", 1.0))
    sums = weights * divisor / _CLIP_NORM
    numbers = [float(m) for m in measured.values()] + _next_clip_norm(state)
    found.append(np.concatenate([weights, sums, numbers]))
  return np.array(found)


def _learn_to_tell(with_canary, without):
  """A function from outputs to a number that is large if the canary's data seem to be there."""
  model = pipeline.make_pipeline(
    preprocessing.StandardScaler(),
    preprocessing.PolynomialFeatures(2, interaction_only=False, include_bias=False),
    preprocessing.StandardScaler(),
    linear_model.LogisticRegression(C=0.1, max_iter=1000),
  )
  labels = np.repeat([1, 0], [len(with_canary), len(without)])
  return model.fit(np.concatenate([with_canary, without]), labels).decision_function


def _best_cut(with_canary, without):
  """Where the two samples are told apart best, in terms of mu."""
  cuts = np.quantile(np.concatenate([with_canary, without]), np.linspace(0.1, 0.9, 81))

  def mu(cut):
    # Half a count, so that no rate is 0 or 1.
    rates = [(np.sum(s > cut) + 0.5) / (len(s) + 1) for s in (with_canary, without)]
    return stats.norm.ppf(rates[0]) - stats.norm.ppf(rates[1])

  return max(cuts, key=mu)


def _rates(with_canary, without, cut):
  """Bounds on (true positives, false positives), both at once with 95 % confidence."""
  hits, n = np.sum(with_canary > cut), len(with_canary)
  tpr = stats.beta.ppf(0.025, hits, n - hits + 1) if hits else 0.0
  false_alarms, n = np.sum(without > cut), len(without)
  fpr = stats.beta.ppf(0.975, false_alarms + 1, n - false_alarms) if false_alarms < n else 1.0
  return tpr, fpr


def _mu_at_least(with_canary, without, num_choosing):
  """A lower bound with 95 % confidence."""
  cut = _best_cut(with_canary[:num_choosing], without[:num_choosing])
  tpr, fpr = _rates(with_canary[num_choosing:], without[num_choosing:], cut)
  return max(stats.norm.ppf(tpr) - stats.norm.ppf(fpr), 0.0)


def test_the_formula_for_epsilon():
  # Of a Gaussian of sigma = 1, and between PLD and RDP of the accountant.
  release = flat.release(4, 4, None, 1.0, "none")
  exact = gaussian.epsilon(1.0, _DELTA)
  assert exact == pytest.approx(4.3776, abs=1e-3)
  assert exact <= accounting.epsilon(release, 1, _DELTA, "pld").epsilon <= 1.01 * exact
  assert exact <= accounting.epsilon(release, 1, _DELTA).epsilon <= 1.1 * exact


def test_the_bound_holds_for_samples_of_known_mu():
  rng = np.random.default_rng(0)
  bounds = [
    _mu_at_least(rng.normal(mu, 1.0, 500), rng.normal(0.0, 1.0, 500), 100)
    for mu in (0.0, 0.5, 2.0, 4.0)
    for _ in range(20)
  ]
  bounds = np.reshape(bounds, [4, 20])
  assert np.mean(bounds > np.array([[1e-9], [0.5], [2.0], [4.0]])) < 0.05
  assert bounds[2].min() > 1.2 and np.median(bounds[2]) > 1.55 and bounds[3].min() > 2.5


def _audit(process, release, sizes, num_helpers=0):
  """Of one round on known cohorts: the bound on epsilon, and what is accounted for."""
  num_choosing = sizes[0]
  found = {}
  for first_seed, (name, cohort) in zip((0, 10**6), _COHORTS.items()):
    members = (*cohort, *[_NOBODY] * num_helpers)
    # The second begins with another state of the server's noise.
    num_rounds = sum(sizes) + (name == "without")
    found[name] = _outputs(process, lambda trial, c=members: c, num_rounds, first_seed)
  found["without"] = found["without"][1:]
  tell = _learn_to_tell(*(outputs[:num_choosing] for outputs in found.values()))
  mu = _mu_at_least(*(tell(outputs) for outputs in found.values()), num_choosing)
  epsilon = gaussian.epsilon(mu, _DELTA)
  accounted = accounting.epsilon(release, 1, _DELTA).epsilon
  print(f"epsilon of at least {epsilon:.3f} found, {accounted:.3f} accounted for")  # For -rP.
  assert epsilon <= accounted, "less noise than the accounting says"
  assert epsilon >= accounted / 2, "much more noise than the accounting says"


def _training(z_w, update_sum=None, clip_norm=_CLIP_NORM, noise_key=_KEY, share_weight=0.3):
  """Keywords of the builders of private processes."""
  return dict(
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1),
    private=algorithms.Private(
      clip_norm=clip_norm,
      noise_multiplier=z_w,
      expected_clients=4,
      noise_key=noise_key,
      update_sum=update_sum,
      share_weight=share_weight,
    ),
    local_batch_size=0,
    **_READING,
  )


def _process(theta, threshold, z_w, update_sum=None, clip_norm=_CLIP_NORM):
  training = _training(z_w, update_sum, clip_norm)
  return algorithms.build_superquantile_fed_avg(
    problems.linear_loss_model(), theta, threshold=threshold, **training
  )


def _tree(z_q, num_shares):
  tree = tree_mechanism.build_tree_mechanism(z_q, 2, 4, num_shares=num_shares)
  return tree, functools.partial(
    threshold_lib.build_tree_quantile,
    mechanism=tree,
    max_loss=_MAX_LOSS,
    noise_key=_KEY,
  )


@pytest.mark.parametrize("sizes", _SIZES)
def test_dp_fed_avg(sizes):
  z_w = 0.5
  release = flat.release(4, 4, None, z_w, "none")
  _audit(_process(1.0, None, z_w), release, sizes)


@pytest.mark.parametrize("sizes", _SIZES)
def test_adaptive_clip_norm(sizes):
  # The canary is clipped: its bit moves the norm, and each of the two releases is half of all.
  z_w = z_b = 0.7
  clip_norm = algorithms.AdaptiveClipNorm(z_b, _CLIP_NORM, learning_rate=1.0)
  release = flat.release(4, 4, None, z_w, "none", clip_count_noise_multiplier=z_b)
  _audit(_process(1.0, None, z_w, clip_norm=clip_norm), release, sizes)


@pytest.mark.parametrize("sizes", _SIZES)
@pytest.mark.parametrize("is_distributed", [False, True])
def test_weights_by_losses(is_distributed, sizes):
  # Most of what the canary adds is its share, the largest of all, and hardly any divisor is the
  # least one, behind which the sum of the shares would hide.
  z_w, num_shares = 0.5, 7
  update_sum = None
  if is_distributed:
    update_sum = sum_mechanism.build_sum_mechanism(z_w, _CLIP_NORM, 3 + 1, num_shares)
  release = flat.release(
    num_shares,
    num_shares,
    None,
    z_w,
    "none",
    update_sum=update_sum,
    weighted_updates=True,
  )
  process = algorithms.build_weighted_fed_avg(
    problems.linear_loss_model(),
    threshold_lib.build_own_loss_weighting(threshold_lib.build_tilted_share(0.1, _MAX_LOSS)),
    **_training(z_w, update_sum, share_weight=0.8),
  )
  _audit(process, release, sizes)


@pytest.mark.parametrize("sizes", _SIZES)
def test_geometric_threshold(sizes):
  z_q, z_w = 0.9, 0.6
  threshold = functools.partial(
    threshold_lib.build_geometric_quantile,
    noise_multiplier=z_q,
    expected_clients=4,
    initial_estimate=1.5,
    learning_rate=0.2,
    noise_key=_KEY,
  )
  release = flat.release(4, 4, z_q, z_w, "none", threshold_kind="geometric")
  _audit(_process(0.5, threshold, z_w), release, sizes)


@pytest.mark.parametrize("sizes", _SIZES)
def test_shares_by_a_histogram(sizes):
  # A weak rank: the canary's share is near 1, so that its update is near the clip norm.
  z_q, z_w = 1.5, 0.55
  tree, threshold = _tree(z_q, 4)
  release = flat.release(4, 4, z_q, z_w, "none", tree=tree)
  process = algorithms.build_weighted_fed_avg(
    problems.linear_loss_model(),
    threshold_lib.build_histogram_weighting(
      threshold_lib.build_rank_share(0.1), **threshold.keywords
    ),
    **_training(z_w),
  )
  _audit(process, release, sizes)


@pytest.mark.parametrize("sizes", [_LONG])
def test_tree_threshold_and_noise_of_the_server(sizes):
  z_q, z_w = 1.5, 0.55
  tree, threshold = _tree(z_q, 4)
  release = flat.release(4, 4, z_q, z_w, "none", tree=tree)
  _audit(_process(0.5, threshold, z_w), release, sizes)


@pytest.mark.parametrize("sizes", _SIZES)
@pytest.mark.parametrize("protocol", [shares.COMPLEMENT, shares.HELPERS])
def test_tree_threshold_and_distributed_sum(sizes, protocol):
  z_q, z_w = 1.5, 0.55
  num_shares = 7
  tree, threshold = _tree(z_q, num_shares)
  update_sum = sum_mechanism.build_sum_mechanism(z_w, _CLIP_NORM, 3, num_shares)
  # The three who are not there could be.
  release = flat.release(num_shares, num_shares, z_q, z_w, "none", tree=tree, update_sum=update_sum)
  num_helpers = 3 if protocol == shares.HELPERS else 0
  _audit(_process(0.5, threshold, z_w, update_sum), release, sizes, num_helpers)


@pytest.mark.parametrize(
  "num_shares,sizes",
  [
    (3, _SHORT),
    *(
      pytest.param(most, (1000, 7000), marks=[pytest.mark.slow, pytest.mark.timeout(3600)])
      for most in (None, 4, 3)
    ),
  ],
)
def test_poisson_cohorts_complete_and_cut(num_shares, sizes):
  # Every other client is there in half of the rounds. With three shares, a cohort of four loses
  # one at random, and the canary may take another's place.
  z_w, q, num_choosing = 0.35, 0.5, sizes[0]
  update_sum = None
  if num_shares is not None:
    update_sum = sum_mechanism.build_sum_mechanism(z_w, _CLIP_NORM, 3, num_shares)
  release = flat.release(4, 2, None, z_w, update_sum=update_sum)
  process = _process(1.0, None, z_w, update_sum)
  rng = np.random.default_rng(7)
  found = {}
  for first_seed, (name, members) in zip((0, 10**6), _COHORTS.items()):

    def cohort(trial, members=members):
      chosen = [member for member in members if rng.random() < q]
      if num_shares is not None and len(chosen) > num_shares:
        chosen = list(rng.choice(chosen, num_shares, replace=False))
      return chosen

    found[name] = _outputs(process, cohort, sum(sizes), first_seed)
  tell = _learn_to_tell(*(outputs[:num_choosing] for outputs in found.values()))
  scores = [tell(outputs) for outputs in found.values()]
  accounted = accounting.epsilon(release, 1, 1e-2).epsilon
  best = 0.0
  cuts = np.quantile(np.concatenate([s[:num_choosing] for s in scores]), [0.6, 0.8, 0.9, 0.97])
  for cut in cuts:
    tpr, fpr = _rates(scores[0][num_choosing:], scores[1][num_choosing:], cut)
    best = max(best, np.log(max(tpr - 1e-2, 1e-9) / fpr))
  # Four cuts: the confidence is 80 %, and the seeds decide once and for all.
  assert best <= accounted, "less noise than the accounting says"
  # A cut cohort is accounted for as if the others were as far from the canary as can be.
  part = accounted / (10 if num_shares == 3 else 6)
  assert best >= part, "much more noise than the accounting says"


# Whole runs, whose noise is correlated over rounds.

_NUM_ROUNDS, _SEPARATION, _STEP = 8, 4, 0.005
_COEFFICIENTS = banded.checked(
  banded.optimal(_SEPARATION, banded.Participation(_NUM_ROUNDS, _SEPARATION))
)


def _with_noise_of(trial, state):
  """A state before the first round, with another seed of each noise."""
  if isinstance(state, dict):
    if set(state) == {"source", "past"}:
      return {**state, "source": state["source"] + trial}
    return {name: _with_noise_of(trial, inner) for name, inner in state.items()}
  return state


def _sums_of_run(process, is_with_canary, trial):
  """What an attacker computes of a run's releases: the noisy sums, float [T, 2].

  Of the updates it is the coordinate along the canary's. The steps of the threshold tell the sums
  of the bits, and the sizes of the tails those of the updates.
  """
  state = process.initialize()
  state = state._replace(
    client_work=_with_noise_of(trial, state.client_work),
    aggregator=_with_noise_of(trial, state.aggregator),
  )
  weights, rows, thresholds = np.zeros(3), [], []
  for round_num in range(_NUM_ROUNDS):
    # In its rounds the canary is there with its data, or without them.
    canary = (3 if is_with_canary else _NOBODY,) if round_num % _SEPARATION == 0 else ()
    output = process.next(state, problems.handles((0, 1, 2, *canary), trial))
    state = output.state
    measured = output.metrics["client_work"]["threshold"]
    after = np.asarray(state.global_model_weights.trainable[0], np.float64)
    rows.append((after - weights)[0] * float(measured["estimated_tail_size"]) / _CLIP_NORM)
    thresholds.append(float(measured["threshold"]))
    weights = after
  last = state.client_work["threshold"]["tracker"].current_estimate
  steps = -np.diff([*thresholds, float(last)]) / (_STEP * (1 + 30 / (1 + np.arange(_NUM_ROUNDS))))
  bits = 4 * (0.5 * steps + 0.5 - 0.5)  # theta = 1/2 of four clients; of bits -1/2 and 1/2.
  return np.stack([rows, bits], axis=1)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
  "sizes", [pytest.param((50, 200), id="short"), pytest.param(*_LONG.values, marks=_LONG.marks)]
)
def test_whole_runs_of_banded_noise(sizes):
  # The attacker knows the cohorts, C and the canary, and takes the likelihood ratio of all releases
  # of a run together: no test tells more, so that the bound is near to what is accounted for.
  z_q, z_w = 1.5, 1.0
  release = releases.Release(
    cohort=cohorts.Spaced(4 * _SEPARATION, 4, separation=_SEPARATION),
    parts=(parts.PrimalDual(noise_multiplier=z_q), parts.UpdateSum(noise_multiplier=z_w)),
    coefficients=_COEFFICIENTS,
  )
  key = noise_source.BandedKey(_KEY, _COEFFICIENTS)
  threshold = functools.partial(
    threshold_lib.build_private_primal_dual_quantile,
    noise_multiplier=z_q,
    expected_clients=4,
    step=_STEP,
    initial_estimate=1.5,
    noise_key=key,
  )
  process = algorithms.build_superquantile_fed_avg(
    problems.linear_loss_model(), 0.5, threshold=threshold, **_training(z_w, noise_key=key)
  )
  matrix = sum(c * np.eye(_NUM_ROUNDS, k=-j) for j, c in enumerate(_COEFFICIENTS))
  moved = matrix @ (np.arange(_NUM_ROUNDS) % _SEPARATION == 0)
  runs = {
    is_with: [_sums_of_run(process, is_with, 1 + 2 * i + is_with) for i in range(sum(sizes))]
    for is_with in (True, False)
  }
  # The canary adds e_1, in units of C, and a bit that says that its loss is above the threshold.
  weights = np.array([1.0 / z_w**2, -0.5 / (0.5 * z_q) ** 2])
  scores = {
    is_with: np.array([moved @ (matrix @ sums) @ weights for sums in found])
    for is_with, found in runs.items()
  }
  mu = _mu_at_least(scores[True], scores[False], sizes[0])
  epsilon = gaussian.epsilon(mu, _DELTA)
  accounted = accounting.epsilon(release, _NUM_ROUNDS, _DELTA).epsilon
  print(f"epsilon of at least {epsilon:.3f} found, {accounted:.3f} accounted for")
  assert epsilon <= accounted, "less noise than the accounting says"
  assert epsilon >= accounted / 2, "much more noise than the accounting says"
  # An attacker that does not undo the correlation would find less.
  plain = {w: np.array([(moved @ s) @ weights for s in found]) for w, found in runs.items()}
  assert _mu_at_least(plain[True], plain[False], sizes[0]) < mu
