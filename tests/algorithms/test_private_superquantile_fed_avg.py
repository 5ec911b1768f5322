"""Training with end-to-end differential privacy: rounds against numpy, the noise, what is released.

The noise as an adversary sees it is in `test_empirical_privacy`.
"""

import functools

from helpers import problems
import numpy as np
import pytest
from scipy import stats
import tensorflow as tf
import tensorflow_federated as tff

from privacy.noise import sum_mechanism
from privacy.noise import tree_mechanism
from tff_superquantile import algorithms
from tff_superquantile import threshold as threshold_lib

pytestmark = pytest.mark.usefixtures("simulation_context")

_ARRAYS = problems.client_arrays(seed=3)
_NUM_PARAMETERS = (problems.NUM_FEATURES + 1) * problems.NUM_CLASSES
_RATE = 0.2
_MAX_LOSS = 6.0
_HUGE, _NEGLIGIBLE = 1e3, 1e-9  # Of clip norm and noise multiplier.
_NOBODY = (
  np.zeros([0, problems.NUM_FEATURES], np.float32),
  np.zeros([0], np.int32),
)
# All that clients of handles may hold: `_ARRAYS`, and from these indices on others.
_BIG, _ABSENT, _LARGE, _SPOILT = 6, 7, 8, 11
_EXAMPLES = [
  *_ARRAYS,
  (100 * _ARRAYS[1][0], _ARRAYS[1][1]),
  _NOBODY,
  *((np.float32(factor) * _ARRAYS[1][0], _ARRAYS[1][1]) for factor in (1e12, 1e25, 1e37)),
  (np.where(np.arange(5) == 0, np.float32(np.nan), _ARRAYS[5][0]), _ARRAYS[5][1]),
]
# Of a chi-square test of the noise's variance; the seeds are fixed where they can be.
_FALSE_ALARM = 1e-7
_KEY = bytes(range(16))
_NUM_SHARES = 9


# Thresholds, sums and processes have no state: what several tests use is built, and compiled, once.


@functools.cache
def _tree(z=0.3, num_bins=64):
  mechanism = tree_mechanism.build_tree_mechanism(z, num_bins, 6, num_shares=_NUM_SHARES)
  return functools.partial(
    threshold_lib.build_tree_quantile,
    mechanism=mechanism,
    max_loss=_MAX_LOSS,
    noise_key=_KEY,
  )


@functools.cache
def _geometric(initial_estimate=1.5, z=1e-3, expected_clients=5.0):
  return functools.partial(
    threshold_lib.build_geometric_quantile,
    noise_multiplier=z,
    expected_clients=expected_clients,
    initial_estimate=initial_estimate,
    noise_key=_KEY,
  )


@functools.cache
def _sum(z=_NEGLIGIBLE, clip_norm=_HUGE, num_entries=_NUM_PARAMETERS):
  return sum_mechanism.build_sum_mechanism(z, clip_norm, num_entries, _NUM_SHARES)


def _new_process(theta=1.0, *, clip_norm=_HUGE, z=_NEGLIGIBLE, model=None, **kwargs):
  return algorithms.build_superquantile_fed_avg(
    problems.linear_model() if model is None else model,
    theta,
    tff.learning.optimizers.build_sgdm(_RATE),
    **problems.with_private(
      clip_norm=clip_norm,
      noise_multiplier=z,
      **{
        **dict(threshold=None, expected_clients=6, noise_key=_KEY, local_batch_size=0),
        **kwargs,
      },
    ),
  )


_process = functools.cache(_new_process)


@functools.cache
def _of_handles(theta=1.0, **kwargs):
  """A process whose clients hold indices of `_EXAMPLES`, and seeds."""
  return _process(theta, **problems.reading_handles(_EXAMPLES), **kwargs)


def _handles(indices=range(6), round_num=0):
  return problems.handles(indices, round_num)


def _next(process, clients, state=None):
  """(state, trainable weights, what the client work measured) after a round."""
  output = process.next(process.initialize() if state is None else state, clients)
  return output.state, output.state.global_model_weights.trainable, output.metrics["client_work"]


def _released(process, clients):
  """One round's change of the model as one vector."""
  state = process.initialize()
  before = problems.vector(state.global_model_weights.trainable)
  return problems.vector(_next(process, clients, state)[1]) - before


def _updates(weights, arrays):
  """What each client's training adds to the weights, by hand: [clients, parameters]."""
  return np.array([problems.update(weights, x, y, _RATE) for x, y in arrays])


# One round against numpy.


@pytest.mark.parametrize("distributed", [False, True])
def test_dp_fed_avg_is_the_sum_over_the_expected_clients(distributed):
  process = _process(expected_clients=7.5, update_sum=_sum() if distributed else None)
  updates = _updates(problems.initial_weights(), _ARRAYS)
  # With next to no noise the steps of a distributed sum are so small that six do not matter.
  for num_clients in (6, 3):
    released = _released(process, problems.datasets(_ARRAYS[:num_clients]))
    expected = updates[:num_clients].sum(axis=0) / 7.5
    np.testing.assert_allclose(released, expected, atol=1e-6)


@pytest.mark.parametrize(
  "threshold,theta,divisors",
  [
    (_tree(), 0.5, None),
    (_tree(num_bins=16), 1.0, None),
    (_geometric(), 0.4, {2.0}),
  ],
  ids=["tree", "tree_theta_1", "geometric"],
)
def test_rounds_with_a_threshold_divide_by_the_measured_tail(threshold, theta, divisors):
  process = _of_handles(theta, threshold=threshold)
  state, weights, measured = None, problems.initial_weights(), []
  for round_num in range(3):
    state, released, metrics = _next(process, _handles(round_num=round_num), state)
    losses = [problems.losses_and_gradient(weights, x, y)[0] for x, y in _ARRAYS]
    metrics = metrics["threshold"]
    tail = np.array(losses) >= metrics["threshold"]
    assert 0 < tail.sum() and (theta == 1.0 or tail.sum() < 6)
    update = _updates(weights, _ARRAYS)[tail].sum(axis=0) / metrics["estimated_tail_size"]
    np.testing.assert_allclose(
      problems.vector(released), problems.vector(weights) + update, atol=2e-6
    )
    weights = [w.astype(np.float64) for w in released]
    measured.append(float(metrics["estimated_tail_size"]))
  if divisors is None:  # Estimates, and not the exact size of the tail.
    assert len(set(measured)) == 3 and any(m != round(m) for m in measured)
  else:
    assert {round(m, 6) for m in measured} == divisors


def test_server_optimizer_and_client_options():
  process = algorithms.build_fed_avg(
    problems.linear_model(),
    tff.learning.optimizers.build_sgdm(1.0),
    tff.learning.optimizers.build_sgdm(0.5),
    private=algorithms.Private(
      clip_norm=_HUGE, noise_multiplier=_NEGLIGIBLE, expected_clients=6, noise_key=_KEY
    ),
    client_learning_rate_fn=lambda round_num: 0.1,
    local_epochs=2,
    local_batch_size=5,
    l2=0.1,
  )
  weights = problems.initial_weights()
  sgd = dict(learning_rate=0.1, batch_size=5, epochs=2, l2=0.1)
  updates = [problems.vector(problems.local_sgd(weights, x, y, **sgd)) for x, y in _ARRAYS]
  expected = 0.5 * (np.mean(updates, axis=0) - problems.vector(weights))
  np.testing.assert_allclose(_released(process, problems.datasets(_ARRAYS)), expected, atol=2e-6)


# What one client can do.


def _of_clipped(distributed):
  """(clip norm, expected clients, mechanism of the sum, process) with next to no noise."""
  clip_norm, divisor = 0.05, 4.0
  update_sum = _sum(clip_norm=clip_norm, z=1e-3) if distributed else None
  process = _of_handles(
    clip_norm=clip_norm, z=1e-3, expected_clients=divisor, update_sum=update_sum
  )
  return clip_norm, divisor, update_sum, process


@pytest.mark.parametrize("distributed", [False, True])
def test_no_client_moves_the_model_further_than_the_clip_norm(distributed):
  clip_norm, divisor, update_sum, process = _of_clipped(distributed)
  cohort = [0, 1, 2, 3, 4, _BIG]
  # The same noise in both.
  with_it = _released(process, _handles(cohort))
  without = _released(process, _handles([*cohort[:-1], _ABSENT]))
  moved = np.linalg.norm(with_it - without)
  steps = 0.0 if update_sum is None else np.sqrt(_NUM_PARAMETERS) / update_sum.scale
  assert moved == pytest.approx(clip_norm / divisor, abs=(1e-5 * clip_norm + steps) / divisor)
  updates = _updates(problems.initial_weights(), [_EXAMPLES[i] for i in cohort])
  assert np.all(np.linalg.norm(updates, axis=1) > clip_norm)  # Everybody is clipped here.
  noise = 1e-3 * clip_norm * 3 * np.sqrt(_NUM_PARAMETERS)
  expected = sum(problems.clipped(update, clip_norm) for update in updates)
  assert np.linalg.norm(divisor * with_it - expected) < noise + 6 * steps


@pytest.mark.parametrize("distributed", [False, True])
def test_no_update_is_too_large_to_be_clipped(distributed):
  # Even where the square of its norm is too large for a float32: one client must not be able to
  # suppress the round's noise.
  clip_norm, divisor, _, process = _of_clipped(distributed)
  without = _released(process, _handles([0, _ABSENT, _ABSENT, 2]))
  for index in range(_LARGE, _LARGE + 3):
    with_it = _released(process, _handles([0, index, _ABSENT, 2]))
    assert np.all(np.isfinite(with_it)) and np.all(with_it != 0)
    moved = divisor * np.linalg.norm(with_it - without)
    # Clipped, or left out if the training itself gave no finite update.
    assert moved < 1e-4 * clip_norm or moved == pytest.approx(clip_norm, rel=0.03)


@pytest.mark.parametrize(
  "kind,distributed",
  [("none", False), ("none", True), ("tree", True), ("geometric", False)],
)
def test_a_client_that_is_not_finite_does_what_one_without_examples_does(kind, distributed):
  threshold = dict(none=None, tree=_tree(z=1.0), geometric=_geometric(z=1.0))[kind]
  process = _of_handles(
    1.0 if threshold is None else 0.5,
    clip_norm=0.1,
    z=1.0,
    threshold=threshold,
    update_sum=_sum(1.0, 0.1) if distributed else None,
  )
  _, spoilt, measured = _next(process, _handles([0, 1, 2, 3, _SPOILT]))
  _, empty, measured_empty = _next(process, _handles([0, 1, 2, 3, _ABSENT]))
  assert np.all(np.isfinite(problems.vector(spoilt)))
  np.testing.assert_array_equal(problems.vector(spoilt), problems.vector(empty))
  tf.nest.map_structure(np.testing.assert_array_equal, measured, measured_empty)
  if kind == "none":
    _, healthy, _ = _next(process, _handles([0, 1, 2, 3, 5]))
    assert np.abs(problems.vector(healthy) - problems.vector(spoilt)).max() > 1e-4
  if not distributed:
    _, absent, _ = _next(process, _handles([0, 1, 2, 3]))
    np.testing.assert_allclose(problems.vector(absent), problems.vector(spoilt), rtol=0, atol=1e-6)


# The noise.


@functools.cache
def _wide_model(shapes=((60, 40), (60, 40), (200,))):
  """Many parameters, none of which anybody's data moves."""

  @tf.function
  def predict(weights, x, training):
    del training
    return 0.0 * x * tf.add_n([tf.reduce_sum(w) for w in weights[0]])

  return tff.learning.models.FunctionalModel(
    initial_weights=(tuple(np.zeros(shape, np.float32) for shape in shapes), ()),
    predict_on_batch_fn=predict,
    loss_fn=lambda output, label, sample_weight=None: tf.reduce_mean(output - label),
    input_spec=(tf.TensorSpec([None], tf.float32), tf.TensorSpec([None], tf.float32)),
  )


_NUM_WIDE = 2 * 60 * 40 + 200


def _wide_clients(num_clients):
  example = (np.ones(1, np.float32), np.ones(1, np.float32))
  return [tf.data.Dataset.from_tensors(example)] * num_clients


def _assert_normal(sample, stddev):
  """A sample is N(0, stddev^2): its variance by chi-square, its law by Kolmogorov and Smirnov."""
  sample = np.ravel(sample)
  ratio = np.sum((sample / stddev) ** 2)
  low, high = stats.chi2.ppf([_FALSE_ALARM / 2, 1 - _FALSE_ALARM / 2], sample.size)
  assert low < ratio < high, f"{np.sqrt(ratio / sample.size)} times what it should be"
  assert stats.kstest(sample / stddev, "norm").pvalue > _FALSE_ALARM


def _assert_uncorrelated(first, second):
  bound = stats.norm.isf(_FALSE_ALARM / 2) / np.sqrt(first.size)
  assert abs(np.corrcoef(np.ravel(first), np.ravel(second))[0, 1]) < bound


def _wide_process(noise_key=_KEY, distributed=False):
  """A process that releases noise alone, with the mechanism of its sum."""
  update_sum = _sum(1.7, 0.3, _NUM_WIDE) if distributed else None
  return update_sum, _process(
    model=_wide_model(),
    clip_norm=0.3,
    z=1.7,
    expected_clients=8,
    noise_key=noise_key,
    update_sum=update_sum,
  )


@pytest.mark.parametrize("noise_key", [_KEY, None])
@pytest.mark.parametrize("num_clients", [0, 5])
def test_the_noise_of_the_server_is_z_clip_norm_over_divisor(noise_key, num_clients):
  _, process = _wide_process(noise_key)
  state, first, _ = _next(process, _wide_clients(num_clients))
  _, second, _ = _next(process, _wide_clients(num_clients), state)
  rounds = [first, [b - a for a, b in zip(first, second)]]
  for released in rounds:
    _assert_normal(problems.vector(released), 1.7 * 0.3 / 8)
    _assert_uncorrelated(released[0], released[1])  # Tensors of the same shape.
  _assert_uncorrelated(*map(problems.vector, rounds))


@pytest.mark.parametrize("num_clients", [0, 4, 9])
def test_the_noise_of_the_clients_is_completed_whatever_their_number(num_clients):
  update_sum, process = _wide_process(distributed=True)
  state, first, _ = _next(process, _wide_clients(num_clients))
  _, second, _ = _next(process, _wide_clients(num_clients), state)
  stddev = update_sum.local_stddev * np.sqrt(_NUM_SHARES) / update_sum.scale
  # What was asked for, and what rounding adds to the sensitivity.
  assert stddev == pytest.approx(1.01 * 1.7 * 0.3, rel=1e-6)
  rounds = [first, [b - a for a, b in zip(first, second)]]
  for released in rounds:
    _assert_normal(problems.vector(released), stddev / 8)
    _assert_uncorrelated(released[0], released[1])
  _assert_uncorrelated(*map(problems.vector, rounds))


def _noisy(threshold, update_sum):
  theta = 1.0 if threshold is None else 0.5
  return _process(theta, threshold=threshold, clip_norm=0.3, z=1.0, update_sum=update_sum)


# Rounds without anybody.


# Without a threshold there is only the noise, see above.
@pytest.mark.parametrize("kind", ["tree", "geometric"])
def test_without_clients_the_server_releases_noise(kind):
  threshold = dict(tree=_tree(), geometric=_geometric())[kind]
  process = _process(
    0.5, model=_wide_model(), threshold=threshold, clip_norm=0.3, z=1.7, expected_clients=6
  )
  state, weights, metrics = _next(process, [])
  if kind == "tree":  # A histogram of noise, and half of the expected tail at least.
    assert metrics["threshold"]["aborted"] == 0
    divisor = float(metrics["threshold"]["estimated_tail_size"])
    assert 1.5 <= divisor < 5.0
  else:
    divisor = 2.5
  _assert_normal(problems.vector(weights), 1.7 * 0.3 / divisor)
  _, later, _ = _next(process, _wide_clients(6), state)
  assert np.all(np.isfinite(problems.vector(later)))


@pytest.mark.parametrize("kind", ["tree", "geometric"])
def test_with_an_empty_tail_the_server_releases_noise(kind):
  threshold = dict(tree=_tree(z=1e-3), geometric=_geometric(1e6))[kind]
  process = _process(0.5, threshold=threshold, clip_norm=0.3, z=1.0)
  spoilt = [(np.full_like(x, np.nan), y) for x, y in _ARRAYS]
  arrays = spoilt if kind == "tree" else _ARRAYS
  empty_tail = _released(process, problems.datasets(arrays))
  # With the floor of the divisor where it is estimated.
  divisor = dict(tree=1.5, geometric=2.5)[kind]
  noise = _released(_process(clip_norm=0.3, z=1.0, expected_clients=divisor), [])
  np.testing.assert_allclose(empty_tail, noise, rtol=1e-4)
  assert np.linalg.norm(noise) > 0.1


@pytest.mark.parametrize("kind", ["none", "tree", "geometric"])
def test_a_distributed_sum_of_more_than_there_are_shares_for_leaves_the_model(kind):
  threshold = dict(none=None, tree=_tree(), geometric=_geometric())[kind]
  process = _noisy(threshold, _sum(1.0, 0.3))
  state = process.initialize()
  for num_clients in (10, 12):
    clients = [_ARRAYS[i % 6] for i in range(num_clients)]
    state, weights, metrics = _next(process, problems.datasets(clients), state)
    np.testing.assert_array_equal(
      problems.vector(weights), problems.vector(problems.initial_weights())
    )
    if kind == "tree":
      assert metrics["threshold"]["aborted"] == 1
  for clients in ([], _ARRAYS[:3], _ARRAYS):
    _, weights, metrics = _next(process, problems.datasets(clients), state)
    assert (
      np.abs(problems.vector(weights) - problems.vector(problems.initial_weights())).max() > 1e-3
    )
    if kind == "tree":
      assert metrics["threshold"]["aborted"] == 0


# What else is released.


def _leaves(structure):
  return [np.asarray(leaf) for leaf in tf.nest.flatten(structure)]


def test_metrics_and_state_hold_nothing_else_of_the_cohort():
  of_bits = {"threshold", "estimated_tail_size"}
  for threshold, measurements in (
    (None, None),
    (_tree(), of_bits | {"estimated_cohort_size", "aborted"}),
    (_geometric(), of_bits),
  ):
    for update_sum in (None, _sum(1.0, 0.3)):
      process = _noisy(threshold, update_sum)
      before = process.initialize()
      outputs = [
        process.next(before, problems.datasets(clients)) for clients in (_ARRAYS, _ARRAYS[1:5])
      ]
      for output in outputs:
        metrics = dict(output.metrics)
        client_work = metrics.pop("client_work")
        if threshold is None:
          assert not client_work
        else:
          assert set(client_work) == {"threshold"}
          assert set(client_work["threshold"]) == measurements
        assert metrics.pop("finalizer") == dict(update_non_finite=0)
        assert not _leaves(metrics)
      # Of the state all but the model and the threshold is the same, whoever took part.
      own = [(o.state.distributor, o.state.aggregator, o.state.finalizer) for o in outputs]
      works = [output.state.client_work["own"] for output in outputs]
      for one, other in zip(*map(_leaves, zip(own, works))):
        np.testing.assert_array_equal(one, other)
      if threshold is not None:
        kept = [_leaves(output.state.client_work["threshold"]) for output in outputs]
        changed = [not np.array_equal(a, b) for a, b in zip(*kept)]
        assert sum(changed) <= 1  # The threshold, which is released.


def test_nothing_but_secure_sums_leaves_the_clients():
  for threshold, num_sums in ((None, 1), (_tree(), 2)):
    process = _noisy(threshold, _sum(1.0, 0.3))
    tff.test.assert_not_contains_unsecure_aggregation(process.next)
    assert problems.sums(process.next) == (0, num_sums, 0)
    text = process.next.to_building_block().compact_representation()
    # Residues are summed modulo M: a larger modulus would show how many of them wrapped.
    for mechanism in (_sum(1.0, 0.3), *([threshold.keywords["mechanism"]] if threshold else [])):
      assert f"<values={mechanism.modulus},num_reports={2**31 - 1}>" in text


def test_with_a_trusted_server_one_open_sum_a_release_leaves_the_clients():
  # Of the updates; thresholds sum securely, and there are no counts and no training metrics.
  for threshold in (None, _tree(), _geometric()):
    process = _noisy(threshold, None)
    open_sums, _, others = problems.sums(process.next)
    assert (open_sums, others) == (1, 0)


def test_a_theta_that_needs_a_threshold():
  with pytest.raises(ValueError, match="theta = 0.5 without a threshold"):
    _new_process(0.5)
