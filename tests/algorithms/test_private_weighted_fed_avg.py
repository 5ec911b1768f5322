"""Private averages weighted by the clients' own losses: against numpy, what a client can do."""

import collections
import functools
import itertools

from helpers import problems
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from privacy.noise import sum_mechanism
from tff_superquantile import algorithms
from tff_superquantile import threshold
from tff_superquantile.secure_sums import gaussian_sum

pytestmark = pytest.mark.usefixtures("simulation_context")

_ARRAYS = problems.client_arrays(seed=3)
_NUM_PARAMETERS = (problems.NUM_FEATURES + 1) * problems.NUM_CLASSES
_RATE, _MAX_LOSS, _CLIP_NORM, _NUM_SHARES = 0.2, 3.0, 0.1, 9
_KEY = bytes(range(16))
_NEGLIGIBLE = 1e-9
# Each method with its share by numpy.
_METHODS = {
  "q_fed_avg": (
    threshold.build_power_share(2.0, _MAX_LOSS),
    lambda loss: (min(max(loss, 0.0), _MAX_LOSS) / _MAX_LOSS) ** 2.0,
  ),
  "tilted_erm": (
    threshold.build_tilted_share(0.8, _MAX_LOSS),
    lambda loss: np.exp(0.8 * (min(loss, _MAX_LOSS) - _MAX_LOSS)),
  ),
  "prop_fair": (
    threshold.build_proportional_share(4.0, _MAX_LOSS),
    lambda loss: 1.0 / (4.0 - min(loss, _MAX_LOSS)),
  ),
}


def _sum(z, num_entries=_NUM_PARAMETERS + 1):
  return sum_mechanism.build_sum_mechanism(z, _CLIP_NORM, num_entries, _NUM_SHARES)


def _process(share_fn, z, model=None, **kwargs):
  own = {name: kwargs.pop(name) for name in ("share_weight", "update_sum") if name in kwargs}
  return algorithms.build_weighted_fed_avg(
    problems.linear_model() if model is None else model,
    threshold.build_own_loss_weighting(share_fn),
    tff.learning.optimizers.build_sgdm(_RATE),
    private=algorithms.Private(clip_norm=_CLIP_NORM, noise_multiplier=z, noise_key=_KEY, **own),
    **{"local_batch_size": 0, **kwargs},
  )


def _report(update, share, share_weight=0.3):
  """What a client adds to the sum, by hand: (update, share), [parameters + 1]."""
  update_norm = _CLIP_NORM * np.sqrt(1.0 - share_weight**2)
  return share * np.append(problems.clipped(update, update_norm), share_weight * _CLIP_NORM)


def _reports(weights, arrays, share_of, share_weight):
  """What the clients with these examples add to the sum, [clients, parameters + 1]."""
  found = [np.zeros(_NUM_PARAMETERS + 1)]
  for x, y in arrays:
    update = -problems.update(weights, x, y, _RATE)
    loss, _ = problems.losses_and_gradient(weights, x, y)
    found.append(_report(update, share_of(loss), share_weight))
  return np.array(found)


def _noise_of_rounds(z, num_rounds):
  """The server's noise of each round, from its key, [rounds, parameters + 1]."""
  of_key = gaussian_sum.GaussianSum(_CLIP_NORM, z * _CLIP_NORM, _KEY, "updates")
  shapes = ([problems.NUM_FEATURES, problems.NUM_CLASSES], [problems.NUM_CLASSES], [])
  return problems.noise_of_rounds(of_key, shapes, num_rounds)


# z and k of the rounds of each method.
_ROUNDS = {"q_fed_avg": (0.05, 0.3), "tilted_erm": (0.05, 0.3), "prop_fair": (0.05, 0.6)}


@functools.cache
def _of_handles(method):
  z, k = _ROUNDS[method]
  options = problems.reading_handles(_ARRAYS)
  return _process(_METHODS[method][0], z, share_weight=k, **options)


@pytest.mark.parametrize("method", _METHODS)
def test_rounds_against_numpy_with_the_noise_of_the_key(method):
  _, share_of = _METHODS[method]
  z, k = _ROUNDS[method]
  process = _of_handles(method)
  state, weights = process.initialize(), problems.initial_weights()
  floors = []
  cohorts = (range(6), [0, 3], [], [5, 1, 4, 2])
  for indices, noise in zip(cohorts, _noise_of_rounds(z, len(cohorts))):
    output = process.next(state, problems.handles(indices))
    state = output.state
    summed = _reports(weights, [_ARRAYS[i] for i in indices], share_of, k).sum(axis=0) + noise
    divisor = max(summed[-1] / (k * _CLIP_NORM), 2.0 * z / k)
    floors.append(divisor == 2.0 * z / k)
    step = summed[:-1] / divisor
    expected = problems.vector(weights) - step
    found = state.global_model_weights.trainable
    np.testing.assert_allclose(problems.vector(found), expected, atol=2e-6)
    measured = output.metrics["aggregator"]
    assert measured["estimated_share_sum"] == pytest.approx(divisor, rel=1e-4)
    weights = [w.astype(np.float64) for w in found]
  assert floors[2] and not all(floors)  # Nobody, and somebody.


@pytest.fixture(scope="module")
def distributed():
  """A process whose clients make the noise, next to none."""
  return _process(_METHODS["q_fed_avg"][0], _NEGLIGIBLE, update_sum=_sum(_NEGLIGIBLE))


def test_noise_of_the_clients_is_the_same_sum(distributed, simulation_context):
  weights = problems.initial_weights()
  for num_clients in (6, 2):
    arrays = _ARRAYS[:num_clients]
    output = distributed.next(distributed.initialize(), problems.datasets(arrays))
    summed = _reports(weights, arrays, _METHODS["q_fed_avg"][1], 0.3).sum(axis=0)
    expected = problems.vector(weights) - summed[:-1] / (summed[-1] / (0.3 * _CLIP_NORM))
    steps = 10 * np.sqrt(_NUM_PARAMETERS) / _sum(_NEGLIGIBLE).scale
    found = problems.vector(output.state.global_model_weights.trainable)
    np.testing.assert_allclose(found, expected, atol=2e-6 + steps)


# What one client can do: its loss and its update are what it likes.


_EXTREME_LOSSES = (0.0, 1e-30, 0.2, _MAX_LOSS, 1e30, -1e30, np.inf, -np.inf, np.nan)
_EXTREME_UPDATES = (0.0, 1e-20, 1.0, -1.0, 1e12, 1e25, 3e38, np.inf, np.nan)
_EXTREMES = tuple(itertools.product(_EXTREME_LOSSES, _EXTREME_UPDATES))
# The share that a loss has, and what counts of it: all shares are made to be from 0 to 1.
_SHARES = {
  "q_fed_avg": _METHODS["q_fed_avg"],
  "too large, negative and no number": (tf.sqrt, lambda loss: 0.0 if loss < 0 else loss**0.5),
}


@functools.cache
def _sums_with(name, distributed=False):
  """What each extreme client adds to a sum, by the release of a round with and without it."""
  # One ordinary client, one of each extreme, and one without examples.
  x = np.zeros([len(_EXTREMES) + 1, 1, 3], np.float32)
  y = np.zeros([len(_EXTREMES) + 1, 1], np.float32)
  x[0], y[0] = (0.0, 0.3, 0.0), _MAX_LOSS
  for i, (loss, update) in enumerate(_EXTREMES):
    x[i + 1], y[i + 1] = (0.0, 0.0, update), loss
  nobody = (np.zeros([0, 3], np.float32), np.zeros(0, np.float32))
  arrays = [*zip(x, y), nobody]
  z = 1e-3 if distributed else 1e-7
  process = _process(
    _SHARES[name][0],
    z,
    problems.linear_loss_model(),
    update_sum=_sum(z, 4) if distributed else None,
    **problems.reading_handles(arrays),
  )
  initial, found = process.initialize(), []
  for index in range(1, len(arrays)):
    output = process.next(initial, problems.handles([0, index]))
    (change,) = output.state.global_model_weights.trainable
    divisor = output.metrics["aggregator"]["estimated_share_sum"]
    found.append(divisor * np.append(change.astype(np.float64), 0.3 * _CLIP_NORM))
  return np.array(found[:-1]) - found[-1]


@pytest.mark.parametrize("name", _SHARES)
def test_no_client_moves_the_sum_further_than_the_clip_norm(name):
  moved = _sums_with(name)
  assert np.all(np.isfinite(moved))
  norms = np.linalg.norm(moved, axis=1)
  assert np.all(norms <= _CLIP_NORM * (1.0 + 1e-4))
  assert norms.max() == pytest.approx(_CLIP_NORM, rel=1e-4)  # The bound is no larger than it is.
  # Two clients in each other's place.
  distances = np.linalg.norm(moved[:, np.newaxis] - moved[np.newaxis], axis=-1)
  assert distances.max() <= 2.0 * _CLIP_NORM


@pytest.mark.parametrize("name", _SHARES)
def test_extreme_clients_add_what_they_should(name):
  for moved, (loss, update) in zip(_sums_with(name), _EXTREMES):
    # A loss or an update that is no finite number, in single precision, leaves a client out.
    if np.isfinite(loss) and np.isfinite(np.float32(update)):
      share = min(_SHARES[name][1](loss), 1.0)
      expected = _report(np.array([0.0, 0.0, _RATE * update]), share)
    else:
      expected = np.zeros(4)
    np.testing.assert_allclose(moved, expected, atol=1e-5 * _CLIP_NORM)


def test_no_client_moves_a_distributed_sum_further_than_the_clip_norm():
  moved = _sums_with("too large, negative and no number", distributed=True)
  steps = 4 * np.sqrt(4) / _sum(1e-3, 4).scale
  norms = np.linalg.norm(moved, axis=1)
  assert np.all(norms <= _CLIP_NORM + steps) and norms.max() >= _CLIP_NORM - steps


# What else is released.


def test_metrics_and_state_hold_nothing_else_of_the_cohort(distributed):
  cohorts = (_ARRAYS, _ARRAYS[1:4])
  for process, of_clients in (
    (_of_handles("tilted_erm"), [problems.handles(range(len(cohort))) for cohort in cohorts]),
    (distributed, [problems.datasets(cohort) for cohort in cohorts]),
  ):
    initial = process.initialize()
    outputs = [process.next(initial, clients) for clients in of_clients]
    for output in outputs:
      metrics = {name: value for name, value in output.metrics.items() if tf.nest.flatten(value)}
      assert metrics.keys() == {"aggregator", "finalizer"}
      assert metrics["aggregator"].keys() == {"estimated_share_sum"}
      assert metrics["finalizer"] == collections.OrderedDict(update_non_finite=0)
    # Of the state all but the model is the same, whoever took part.
    kept = [tf.nest.flatten(o.state._replace(global_model_weights=())) for o in outputs]
    for one, other in zip(*kept):
      np.testing.assert_array_equal(one, other)
    is_distributed = process is distributed
    assert problems.sums(process.next) == (not is_distributed, is_distributed, 0)
