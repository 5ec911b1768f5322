"""An empirical audit: how well do rounds of training really tell who took part?

The real TFF round runs many times on two cohorts that differ in one client, the canary, whose data
are there or not (zero-out), with noise anew each time. From what a round releases, the change of
the model times the divisor and the threshold's measurements, the best linear test between the
cohorts is computed; its cut is chosen on the first 100 rounds of each cohort and its error rates
are counted in the next 400. Clopper and Pearson's bounds on these rates, both at once with 95 %
confidence, bound mu of Gaussian differential privacy from below, mu >= Phi^-1(TPR) - Phi^-1(FPR),
and so epsilon at delta = 1e-5. It must be under the epsilon that `privacy.accounting` states, and
above a half of it, so that neither too little nor absurdly much noise passes.

Power, with mu = 2 as here: the bound is about 1.7 (epsilon 8), where the accounted epsilon of 10.7
is that of mu = 2.1 and its half that of mu = 1.2, four standard deviations from either limit. Half
the noise gives a bound of 3.4, three times the noise at most 0.9. The noise has seeds: a test that
passes does so always.
"""

import collections
import functools

import numpy as np
import pytest
from scipy import optimize
from scipy import stats
import tensorflow as tf
import tensorflow_federated as tff

from privacy import accounting
from privacy import sum_mechanism
from privacy import tree_mechanism
from tff_superquantile import algorithms
from tff_superquantile import threshold as threshold_lib

pytestmark = pytest.mark.usefixtures("simulation_context")

_DELTA = 1e-5
_NUM_CHOOSING, _NUM_COUNTING = 100, 400
_CLIP_NORM = 0.2
_MAX_LOSS = 4.0
# One example each: three ordinary clients, the canary, and the canary without its data.
_X = np.array([[0, 1, 0], [0, 0, -2], [0, 0.1, 0.1], [9, 0, 0]], np.float32)
_LOSSES = np.array([0.2, 3.0, 0.5, 9.0], np.float32)
_COHORTS = {"with": (0, 1, 2, 3), "without": (0, 1, 2, 4)}
_HANDLE_SPEC = collections.OrderedDict(
  index=tf.TensorSpec([], tf.int32), seed=tf.TensorSpec([2], tf.int64)
)


@tf.function(input_signature=[_HANDLE_SPEC])
def _examples(handle):
  index = handle["index"]
  rows = tf.range(index, tf.minimum(index + 1, len(_X)))
  return tf.gather(_X, rows), tf.gather(_LOSSES, rows)


def _model():
  """A linear loss, label - x w: the update is the mean of x times the learning rate."""

  @tf.function
  def predict(weights, x, training):
    del training
    return tf.linalg.matvec(x, weights[0][0])

  return tff.learning.models.FunctionalModel(
    initial_weights=((np.zeros(3, np.float32),), ()),
    predict_on_batch_fn=predict,
    loss_fn=lambda output, label, sample_weight=None: tf.reduce_mean(label - output),
    input_spec=(tf.TensorSpec([None, 3], tf.float32), tf.TensorSpec([None], tf.float32)),
  )


def _fresh_but_for_the_noise(state, initial):
  """The state before any training, with the noise's counters where they are."""
  client_work = initial.client_work
  if "threshold" in client_work and isinstance(client_work["threshold"], dict):
    threshold = state.client_work["threshold"]
    query = collections.OrderedDict(
      tracker=client_work["threshold"]["query"]["tracker"], noise=threshold["query"]["noise"]
    )
    threshold = collections.OrderedDict(query=query, sum=threshold["sum"])
    client_work = collections.OrderedDict(client_work, threshold=threshold)
  return initial._replace(client_work=client_work, aggregator=state.aggregator)


def _statistics(process, cohort, first_seed, statistic):
  """What `statistic` says after each of the rounds on a cohort."""
  state = initial = process.initialize()
  found = []
  for trial in range(_NUM_CHOOSING + _NUM_COUNTING):
    clients = [
      collections.OrderedDict(
        index=np.int32(index), seed=np.array([first_seed + trial, position], np.int64)
      )
      for position, index in enumerate(cohort)
    ]
    output = process.next(_fresh_but_for_the_noise(state, initial), clients)
    state = output.state
    weights = state.global_model_weights.trainable[0]
    measured = (output.metrics["client_work"] or {}).get("threshold", {})
    found.append(statistic(np.asarray(weights, np.float64), measured))
  return np.array(found)


def _best_cut(with_canary, without):
  """Where the two samples are told apart best, in terms of mu."""
  cuts = np.quantile(np.concatenate([with_canary, without]), np.linspace(0.1, 0.9, 81))

  def mu(cut):
    # Half a count, so that no rate is 0 or 1.
    rates = [(np.sum(s > cut) + 0.5) / (len(s) + 1) for s in (with_canary, without)]
    return stats.norm.ppf(rates[0]) - stats.norm.ppf(rates[1])

  return max(cuts, key=mu)


def _mu_at_least(with_canary, without):
  """A lower bound with 95 % confidence."""
  cut = _best_cut(with_canary[:_NUM_CHOOSING], without[:_NUM_CHOOSING])
  true_positives = np.sum(with_canary[_NUM_CHOOSING:] > cut)
  false_positives = np.sum(without[_NUM_CHOOSING:] > cut)
  n = _NUM_COUNTING
  tpr = stats.beta.ppf(0.025, true_positives, n - true_positives + 1) if true_positives else 0.0
  fpr = (
    stats.beta.ppf(0.975, false_positives + 1, n - false_positives) if false_positives < n else 1.0
  )
  return max(stats.norm.ppf(tpr) - stats.norm.ppf(fpr), 0.0)


def _gaussian_epsilon(mu, delta):
  """Of the Gaussian mechanism, exactly (Balle and Wang, 2018)."""
  if mu <= 0:
    return 0.0

  def excess(epsilon):
    tail = np.exp(epsilon + stats.norm.logcdf(-epsilon / mu - mu / 2))
    return stats.norm.cdf(mu / 2 - epsilon / mu) - tail - delta

  return optimize.brentq(excess, 0.0, 20 + mu * mu + 20 * mu) if excess(0.0) > 0 else 0.0


def test_the_formula_for_epsilon():
  # Of a Gaussian of sigma = 1, and between PLD and RDP of the accountant.
  release = accounting.Release(4, 4, None, 1.0, accounting.NO_SAMPLING)
  exact = _gaussian_epsilon(1.0, _DELTA)
  assert exact == pytest.approx(4.3776, abs=1e-3)
  assert exact <= accounting.epsilon(release, 1, _DELTA, "pld").epsilon <= 1.01 * exact
  assert exact <= accounting.epsilon(release, 1, _DELTA).epsilon <= 1.1 * exact


def test_the_bound_holds_for_samples_of_known_mu():
  rng = np.random.default_rng(0)
  size = _NUM_CHOOSING + _NUM_COUNTING
  bounds = [
    _mu_at_least(rng.normal(mu, 1.0, size), rng.normal(0.0, 1.0, size))
    for mu in (0.0, 0.5, 2.0, 4.0)
    for _ in range(20)
  ]
  bounds = np.reshape(bounds, [4, 20])
  assert np.mean(bounds > np.array([[1e-9], [0.5], [2.0], [4.0]])) < 0.05
  assert bounds[2].min() > 1.2 and np.median(bounds[2]) > 1.55 and bounds[3].min() > 2.5


def _audit(process, release, statistic):
  found = {
    name: _statistics(process, cohort, first_seed, statistic)
    for first_seed, (name, cohort) in zip((0, 10**6), _COHORTS.items())
  }
  if not release.cohort_limits:
    # Both began with the same counter, and so the same noise.
    found["without"] = np.roll(found["without"], 1)
  epsilon = _gaussian_epsilon(_mu_at_least(found["with"], found["without"]), _DELTA)
  accounted = accounting.epsilon(release, 1, _DELTA).epsilon
  assert epsilon <= accounted, "less noise than the accounting says"
  assert epsilon >= accounted / 2, "much more noise than the accounting says"


def _process(theta, threshold, z_w, update_sum=None):
  return algorithms.build_private_superquantile_fed_avg(
    _model(),
    theta,
    tff.learning.optimizers.build_sgdm(0.1),
    threshold=threshold,
    clip_norm=_CLIP_NORM,
    noise_multiplier=z_w,
    expected_clients=4,
    noise_seed=20,
    update_sum=update_sum,
    local_batch_size=0,
    examples_fn=_examples,
    seed_fn=lambda handle: handle["seed"],
  )


def test_dp_fed_avg():
  z_w = 0.5
  _audit(
    _process(1.0, None, z_w),
    accounting.Release(4, 4, None, z_w, accounting.NO_SAMPLING),
    lambda weights, measured: 4 * weights[0],
  )


def test_geometric_threshold():
  z_q, z_w, theta = 0.9, 0.6, 0.5
  threshold = functools.partial(
    threshold_lib.build_geometric_quantile,
    noise_multiplier=z_q,
    expected_clients=4,
    initial_estimate=1.5,
    learning_rate=0.2,
    seed=30,
  )

  def statistic(weights, measured):
    update = weights[0] * measured["estimated_tail_size"] / _CLIP_NORM
    # Where the estimate went tells the noisy sum of bits: the canary takes 1/2 away.
    bits = 4 * -np.log(measured["threshold"] / 1.5) / 0.2
    return update / z_w**2 - bits / 0.5 / z_q**2

  _audit(
    _process(theta, threshold, z_w),
    accounting.Release(4, 4, z_q, z_w, accounting.NO_SAMPLING, threshold_kind="geometric"),
    statistic,
  )


def test_tree_threshold_and_distributed_sum():
  z_q, z_w, theta = 1.5, 0.55, 0.5
  limits = dict(min_clients=4, max_clients=4)
  tree = tree_mechanism.build_tree_mechanism(z_q, 2, 4, **limits)
  update_sum = sum_mechanism.build_sum_mechanism(z_w, _CLIP_NORM, 3, **limits)
  threshold = functools.partial(
    threshold_lib.build_tree_quantile, mechanism=tree, max_loss=_MAX_LOSS, seeded=True
  )

  def statistic(weights, measured):
    assert not measured["aborted"]
    update = weights[0] * measured["estimated_tail_size"] / _CLIP_NORM
    # The number of clients, from two noisy bins.
    return update / z_w**2 + measured["estimated_cohort_size"] / (2 * z_q**2)

  release = accounting.Release(
    4, 4, z_q, z_w, accounting.NO_SAMPLING, tree=tree, update_sum=update_sum
  )
  _audit(_process(theta, threshold, z_w, update_sum), release, statistic)
