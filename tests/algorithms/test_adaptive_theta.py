"""Training with a theta that follows how many turn up, in the clear and private."""

import functools

import numpy as np
import problems
import pytest
import tensorflow_federated as tff

from privacy.noise import tree_mechanism
from tff_superquantile import algorithms
from tff_superquantile import threshold as threshold_lib

pytestmark = pytest.mark.usefixtures("simulation_context")

_ARRAYS = problems.client_arrays(sizes=(8, 7, 9, 6, 8, 10, 7, 9, 8, 6, 9, 8), seed=3)
_RATE = 0.2
_MAX_LOSS = 6.0
_RULE = threshold_lib.AdaptiveTheta(3, 0.25, 1.0)


def _tree(z=1e-3, num_bins=1024, expected_clients=8):
  mechanism = tree_mechanism.build_tree_mechanism(z, num_bins, expected_clients, num_shares=12)
  return functools.partial(
    threshold_lib.build_tree_quantile, mechanism=mechanism, max_loss=_MAX_LOSS
  )


def _process(theta=_RULE, **kwargs):
  return algorithms.build_superquantile_fed_avg(
    problems.linear_model(),
    theta,
    tff.learning.optimizers.build_sgdm(_RATE),
    client_weighting=tff.learning.ClientWeighting.UNIFORM,
    **kwargs,
  )


def _private(theta=_RULE, threshold=None, **kwargs):
  return algorithms.build_superquantile_fed_avg(
    problems.linear_model(),
    theta,
    tff.learning.optimizers.build_sgdm(_RATE),
    threshold=threshold,
    **problems.with_private(
      **{
        **dict(clip_norm=1e3, expected_clients=8, noise_key=bytes(16), local_batch_size=0),
        **dict(noise_multiplier=1e-9),
        **kwargs,
      }
    ),
  )


def _clients(indices):
  return problems.datasets([_ARRAYS[i] for i in indices], batch_size=100)


def _losses_and_updates(weights, indices):
  """By hand, of the clients at these weights: [n], [n, parameters]."""
  losses = [problems.losses_and_gradient(weights, *_ARRAYS[i])[0] for i in indices]
  updates = [problems.update(weights, *_ARRAYS[i], _RATE) for i in indices]
  return np.array(losses), np.array(updates)


@pytest.mark.parametrize("threshold", ["exact", "reweighting"])
def test_rounds_against_numpy_while_the_cohort_changes(threshold):
  process = _process(threshold=threshold)
  state = process.initialize()
  for size in (12, 5, 2, 1, 7):
    weights = [np.asarray(w, np.float64) for w in state.global_model_weights.trainable]
    indices = range(size)
    losses, updates = _losses_and_updates(weights, indices)
    output = process.next(state, _clients(indices))
    measured = output.metrics["client_work"]
    wanted = min(size, 3)  # 3 of 12 are a quarter.
    tail = np.argsort(-losses)[:wanted]
    assert measured["threshold"]["theta"] == np.float32(wanted / size)
    assert measured["cohort"]["tail_size"] == wanted
    assert measured["cohort"]["cohort_size"] == size
    state = output.state
    np.testing.assert_allclose(
      problems.vector(state.global_model_weights.trainable),
      problems.vector(weights) + updates[tail].mean(axis=0),
      atol=2e-6,
    )


def test_an_empty_cohort_leaves_the_model():
  for process in (_process(), _process(threshold="reweighting"), _process(0.5), _process(1.0)):
    state = process.initialize()
    output = process.next(state, [])
    before, after = (s.global_model_weights.trainable for s in (state, output.state))
    np.testing.assert_array_equal(problems.vector(before), problems.vector(after))
    assert output.metrics["client_work"]["cohort"]["cohort_size"] == 0


# Private.


def test_private_rounds_divide_the_sum_over_the_wanted_tail_by_its_estimate():
  process = _private(threshold=_tree())
  state = process.initialize()
  for size in (12, 8, 5, 3, 2):
    weights = [np.asarray(w, np.float64) for w in state.global_model_weights.trainable]
    losses, updates = _losses_and_updates(weights, range(size))
    output = process.next(state, _clients(range(size)))
    measured = output.metrics["client_work"]
    assert list(measured) == ["threshold"]  # Nothing else of the cohort.
    measured = measured["threshold"]
    wanted = min(size, 3)
    assert measured["theta"] == pytest.approx(wanted / size, rel=0.02)
    assert measured["estimated_tail_size"] == pytest.approx(wanted, abs=0.1)
    tail = np.clip(losses, 0, _MAX_LOSS) >= measured["threshold"]
    assert tail.sum() == wanted and tail[np.argsort(-losses)[:wanted]].all()
    state = output.state
    np.testing.assert_allclose(
      problems.vector(state.global_model_weights.trainable),
      problems.vector(weights) + updates[tail].sum(axis=0) / measured["estimated_tail_size"],
      atol=5e-6,
    )


@pytest.mark.parametrize("size", [0, 13])
def test_private_rounds_without_anybody_or_with_too_many(size):
  # z_w C is large here, so that noise is all that counts: N(0, z_w^2 C^2) over the divisor.
  process = _private(threshold=_tree(), clip_norm=1e9)
  state = process.initialize()
  output = process.next(state, _clients([i % 12 for i in range(size)]))
  measured = output.metrics["client_work"]["threshold"]
  assert measured["aborted"] == (size > 12)
  if size:  # By the tail that is expected.
    assert measured["estimated_tail_size"] == 3.0 and measured["theta"] == np.float32(3 / 8)
  else:  # By its floor.
    assert measured["estimated_tail_size"] == 1.5 and measured["theta"] == 1.0
    assert measured["estimated_cohort_size"] == pytest.approx(0.0, abs=0.1)
  change = problems.vector(output.state.global_model_weights.trainable) - problems.vector(
    state.global_model_weights.trainable
  )
  if size:  # Everybody is above a threshold of 0.
    change -= _losses_and_updates(problems.initial_weights(), [*range(12), 0])[1].sum(axis=0) / 3.0
  stddev = 1.0 / float(measured["estimated_tail_size"])
  assert np.all(np.isfinite(change)) and 0.5 < np.std(change) / stddev < 1.7


def test_private_thresholds_that_cannot_adapt_are_refused():
  geometric = functools.partial(
    threshold_lib.build_geometric_quantile,
    noise_multiplier=1.0,
    expected_clients=8,
    initial_estimate=1.0,
  )
  with pytest.raises(ValueError, match="geometric threshold, which releases nothing"):
    _private(threshold=geometric)
  with pytest.raises(ValueError, match="without a threshold"):
    _private(threshold=None)
  with pytest.raises(ValueError, match="Found a threshold that shows the server the losses"):
    _private(threshold=threshold_lib.build_exact_quantile)
  with pytest.raises(ValueError, match="Found theta = 0.0"):
    _private(0.0, threshold=_tree())
