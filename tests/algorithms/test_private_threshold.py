"""Training with private thresholds: rounds of superquantile aggregation end to end."""

import functools

from helpers import problems
import numpy as np
import pytest
import tensorflow_federated as tff

from privacy.noise import tree_mechanism
from tff_superquantile import algorithms
from tff_superquantile import noise_source
from tff_superquantile import threshold as threshold_lib

pytestmark = pytest.mark.usefixtures("simulation_context")

# Their third and fourth loss stay bins apart in the rounds of these tests.
_ARRAYS = problems.client_arrays(seed=3)
_MAX_LOSS = 6.0
_KEY = bytes(range(16))
_NUM_SHARES = 8


def _tree(z=1e-3, num_bins=256):
  mechanism = tree_mechanism.build_tree_mechanism(z, num_bins, 6, num_shares=_NUM_SHARES)
  return functools.partial(
    threshold_lib.build_tree_quantile,
    mechanism=mechanism,
    max_loss=_MAX_LOSS,
    noise_key=_KEY,
  )


def _geometric(z=0.5):
  return functools.partial(
    threshold_lib.build_geometric_quantile,
    noise_multiplier=z,
    expected_clients=6,
    initial_estimate=1.0,
    noise_key=_KEY,
  )


def _process(threshold, theta=0.5, **kwargs):
  return algorithms.build_superquantile_fed_avg(
    problems.linear_model(),
    theta,
    tff.learning.optimizers.build_sgdm(0.2),
    threshold=threshold,
    **kwargs,
  )


def _of_handles(threshold, theta=0.5, **kwargs):
  return _process(
    threshold, theta, local_batch_size=4, **problems.reading_handles(_ARRAYS), **kwargs
  )


def _run(process, cohorts):
  """The weights after all rounds and the metrics of each."""
  state, metrics = process.initialize(), []
  for cohort in cohorts:
    output = process.next(state, cohort)
    state = output.state
    metrics.append(output.metrics["client_work"])
  return state.global_model_weights.trainable, metrics


def _assert_same(first, second, atol=0.0):
  for a, b in zip(first, second):
    np.testing.assert_allclose(a, b, rtol=0, atol=atol)


def test_with_little_noise_the_tree_selects_whom_the_exact_threshold_selects():
  cohorts = [problems.handles(range(6), round_num) for round_num in range(3)]
  uniform = dict(client_weighting=tff.learning.ClientWeighting.UNIFORM)
  tree, exact = _of_handles(_tree(), **uniform), _of_handles("exact", **uniform)
  weights, metrics = _run(tree, cohorts)
  expected, exact_metrics = _run(exact, cohorts)
  _assert_same(weights, expected, atol=1e-6)
  for ours, exacts in zip(metrics, exact_metrics):
    assert ours["cohort"] == exacts["cohort"] == dict(cohort_size=6, tail_size=3, num_excluded=0)
    assert ours["threshold"]["threshold"] <= exacts["threshold"]["threshold"]
    assert ours["threshold"]["estimated_tail_size"] == pytest.approx(3, abs=0.1)
    assert set(ours["threshold"]) == {
      "threshold",
      "estimated_cohort_size",
      "estimated_tail_size",
      "aborted",
    }


def test_the_noise_has_a_seed_of_its_own():
  # Not the very seed, which may be that of the order of the examples.
  process = _of_handles(_tree(z=1.0, num_bins=16))
  _, (metrics,) = _run(process, [problems.handles(range(6))])
  handles = problems.handles(range(6))
  bare = _tree(z=1.0, num_bins=16)(0.5)
  (w, b) = problems.initial_weights()
  losses = [np.float32(problems.losses_and_gradient((w, b), x, y)[0]) for x, y in _ARRAYS]
  seeds = [handle["seed"] for handle in handles]

  def measure(seeds):
    clients = [threshold_lib.Client(seed, np.int32(0)) for seed in seeds]
    return bare.next(bare.initialize(), losses, losses, clients).measurements

  same = measure(seeds)
  assert same["estimated_cohort_size"] != metrics["threshold"]["estimated_cohort_size"]
  # Of 128 bits, like the seed that it comes from.
  of_noise = [noise_source.for_purpose(seed, "noise 0").numpy() for seed in seeds]
  assert {seed.dtype for seed in of_noise} == {np.dtype(np.int64)}
  own = measure(of_noise)
  assert own["estimated_cohort_size"] == metrics["threshold"]["estimated_cohort_size"]
  assert own["threshold"] == pytest.approx(metrics["threshold"]["threshold"])


def test_no_loss_leaves_the_clients():
  # What is summed openly is the model, the metrics of training and the sizes of the cohort.
  fed_avg = algorithms.build_fed_avg(
    problems.linear_model(), tff.learning.optimizers.build_sgdm(0.2)
  )
  open_sums, _, _ = problems.sums(fed_avg.next)
  assert problems.sums(_process(_tree()).next) == (open_sums, 1, 0)
