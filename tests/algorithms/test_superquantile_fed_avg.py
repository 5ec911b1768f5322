"""Superquantile aggregation against numpy by hand, and against TFF's own FedAvg for theta = 1."""

import asyncio
import collections
import functools

from helpers import problems
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
import tree

from paper import smoothed
from tff_superquantile import algorithms
from tff_superquantile import superquantile
from tff_superquantile import threshold as threshold_lib
from tff_superquantile.algorithms import learning_process
from tff_superquantile.client_work import local_model
from tff_superquantile.client_work import local_update

pytestmark = pytest.mark.usefixtures("simulation_context")

_UNIFORM = tff.learning.ClientWeighting.UNIFORM
_BY_EXAMPLES = tff.learning.ClientWeighting.NUM_EXAMPLES


def _sgd(learning_rate=0.2):
  return tff.learning.optimizers.build_sgdm(learning_rate)


_LINEAR = problems.linear_model()


# Processes have no state: those that several tests run are built, and compiled, once.


def _superquantile(model, theta=0.5, *, threshold="exact", client_weighting=_BY_EXAMPLES):
  return _cached_superquantile(model, theta, threshold, client_weighting)


@functools.cache
def _cached_superquantile(model, theta, threshold, client_weighting):
  return algorithms.build_superquantile_fed_avg(
    model, theta, _sgd(), threshold=threshold, client_weighting=client_weighting
  )


@functools.cache
def _fed_avg(model, **kwargs):
  return algorithms.build_fed_avg(model, _sgd(), **kwargs)


@functools.cache
def _tffs_fed_avg(model):
  return tff.learning.algorithms.build_weighted_fed_avg(model, _sgd())


def _run(process, data, num_rounds=3, state=None):
  state = process.initialize() if state is None else state
  for _ in range(num_rounds):
    output = process.next(state, data)
    state = output.state
  return state, output.metrics["client_work"]


def _assert_same_weights(first, second, **tolerance):
  for a, b in zip(
    tf.nest.flatten(first.global_model_weights), tf.nest.flatten(second.global_model_weights)
  ):
    np.testing.assert_allclose(a, b, **tolerance)


def _expected_rounds(arrays, theta, num_rounds, *, client_weights, weigh, **sgd):
  """The paper's algorithm in numpy; `weigh` turns losses into the clients' weights."""
  weights = problems.initial_weights()
  for _ in range(num_rounds):
    losses = np.array([problems.losses_and_gradient(weights, x, y)[0] for x, y in arrays])
    pi = weigh(losses, theta, client_weights)
    models = [problems.local_sgd(weights, x, y, **sgd) for x, y in arrays]
    weights = [sum(p * model[i] for p, model in zip(pi, models)) for i in range(2)]
  return weights, losses, pi


@pytest.mark.parametrize(
  "threshold,weighting",
  [
    ("exact", _UNIFORM),
    ("exact", _BY_EXAMPLES),
    ("reweighting", _BY_EXAMPLES),
    ("smoothed", _BY_EXAMPLES),
  ],
)
def test_rounds_against_numpy(threshold, weighting):
  arrays, theta = problems.client_arrays(), 0.5
  thresholds = {
    "exact": ("exact", superquantile.tail_weights),
    "reweighting": ("reweighting", superquantile.dual_weights),
    "smoothed": (
      functools.partial(threshold_lib.build_exact_reweighting, smoothing=0.3),
      lambda losses, theta, w: smoothed.dual_weights(losses, theta, 0.3, w),
    ),
  }
  build_threshold, weigh = thresholds[threshold]
  process = _superquantile(_LINEAR, theta, threshold=build_threshold, client_weighting=weighting)
  state, metrics = _run(process, problems.datasets(arrays))
  client_weights = None if weighting == _UNIFORM else np.array([len(y) for _, y in arrays])
  expected, losses, pi = _expected_rounds(
    arrays, theta, 3, client_weights=client_weights, weigh=weigh, learning_rate=0.2, batch_size=4
  )
  for got, want in zip(state.global_model_weights.trainable, expected):
    np.testing.assert_allclose(got, want, atol=2e-6)
  assert metrics["cohort"] == dict(cohort_size=6, tail_size=np.sum(pi > 0), num_excluded=0)
  measured = metrics["threshold"]
  assert measured["threshold"] == pytest.approx(
    superquantile.quantile(losses, theta, client_weights), rel=1e-5
  )
  assert measured["loss_mean"] == pytest.approx(
    np.average(losses, weights=client_weights), rel=1e-5
  )
  assert measured["loss_superquantile"] == pytest.approx(
    superquantile.superquantile(losses, theta, client_weights), rel=1e-5
  )


@pytest.mark.parametrize("model", [_LINEAR, problems.keras_model_fn])
def test_theta_1_is_tffs_fed_avg(model):
  data = problems.datasets(problems.client_arrays())
  ours, our_metrics = _run(_superquantile(model, 1.0), data)
  fed_avg, fed_avg_metrics = _run(_fed_avg(model), data)
  tffs, tff_metrics = _run(_tffs_fed_avg(model), data)
  for state, metrics in ((ours, our_metrics), (fed_avg, fed_avg_metrics)):
    _assert_same_weights(state, tffs, rtol=0, atol=1e-6)
    tf.nest.map_structure(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5),
      dict(metrics["train"]),
      dict(tff_metrics["train"]),
    )


def test_theta_1_is_tffs_fed_avg_with_momentum_and_server_adam():
  data = problems.datasets(problems.client_arrays())
  states = []
  for build in (
    functools.partial(algorithms.build_superquantile_fed_avg, problems.linear_model(), 1.0),
    functools.partial(tff.learning.algorithms.build_weighted_fed_avg, problems.linear_model()),
  ):
    process = build(
      tff.learning.optimizers.build_sgdm(0.1, momentum=0.9),
      tff.learning.optimizers.build_adam(0.01),
      client_weighting=_UNIFORM,
    )
    states.append(_run(process, data)[0])
  _assert_same_weights(*states, rtol=0, atol=1e-6)


def test_ragged_batches_are_followed_and_can_be_overridden():
  arrays = problems.client_arrays([10, 6])

  def in_batches(x, y, *sizes):
    parts = np.split(np.arange(len(y)), np.cumsum(sizes)[:-1])
    parts = [tf.data.Dataset.from_tensor_slices((x[p], y[p])).batch(len(p)) for p in parts]
    return functools.reduce(tf.data.Dataset.concatenate, parts)

  ragged = [in_batches(*arrays[0], 4, 1, 5), in_batches(*arrays[1], 1, 5)]
  ours = _run(_fed_avg(_LINEAR), ragged)[0]
  tffs = _run(_tffs_fed_avg(_LINEAR), ragged)[0]
  _assert_same_weights(ours, tffs, rtol=0, atol=1e-6)
  rebatched = _run(algorithms.build_fed_avg(_LINEAR, _sgd(), local_batch_size=3), ragged)[0]
  batches_of_3 = _run(_fed_avg(_LINEAR), problems.datasets(arrays, 3))[0]
  _assert_same_weights(rebatched, batches_of_3, rtol=0, atol=0)


def test_a_gradient_that_the_model_clips_is_clipped_before_the_learning_rate():
  @tf.custom_gradient
  def clipped(scores):
    return scores, lambda upstream: tf.clip_by_value(upstream, -0.01, 0.01)

  @tf.function
  def predict(weights, x, training):
    del training
    return clipped(x @ weights[0][0])

  model = tff.learning.models.FunctionalModel(
    initial_weights=((np.zeros([2, 2], np.float32),), ()),
    predict_on_batch_fn=predict,
    loss_fn=problems.mean_cross_entropy,
    metrics_fns=tff.learning.metrics.create_functional_metric_fns(collections.OrderedDict),
    input_spec=(tf.TensorSpec([None, 2], tf.float32), tf.TensorSpec([None], tf.int32)),
  )
  x, y = np.eye(2, dtype=np.float32), np.int32([0, 1])
  state, _ = _run(_fed_avg(model), problems.datasets([(x, y)], 2), 1)
  expected = 0.2 * 0.01 * np.array([[1, -1], [-1, 1]])
  np.testing.assert_allclose(state.global_model_weights.trainable[0], expected, rtol=1e-5)


def test_epochs_batches_and_l2_against_numpy(monkeypatch):
  monkeypatch.setattr(local_update, "_LOSS_BATCH_SIZE", 5)  # The loss pass, too, has batches.
  arrays = problems.client_arrays()
  process = algorithms.build_superquantile_fed_avg(
    problems.linear_model(),
    0.5,
    _sgd(),
    client_weighting=_UNIFORM,
    local_epochs=3,
    local_batch_size=5,
    l2=0.1,
  )
  state, metrics = _run(process, problems.datasets(arrays), 2)
  expected, losses, _ = _expected_rounds(
    arrays,
    0.5,
    2,
    client_weights=None,
    weigh=superquantile.tail_weights,
    learning_rate=0.2,
    batch_size=5,
    epochs=3,
    l2=0.1,
  )
  for got, want in zip(state.global_model_weights.trainable, expected):
    np.testing.assert_allclose(got, want, atol=2e-6)
  assert metrics["threshold"]["loss_mean"] == pytest.approx(np.mean(losses), rel=1e-5)


def test_learning_rate_schedule_and_hparams():
  arrays = problems.client_arrays()
  data = problems.datasets(arrays, 100)
  process = algorithms.build_fed_avg(
    problems.linear_model(),
    _sgd(123.0),
    client_weighting=_UNIFORM,
    client_learning_rate_fn=lambda round_num: tf.where(round_num < 2, 0.3, 0.05),
  )
  state, _ = _run(process, data, 3)
  weights = problems.initial_weights()
  for learning_rate in (0.3, 0.3, 0.05):
    models = [
      problems.local_sgd(weights, x, y, learning_rate=learning_rate, batch_size=100)
      for x, y in arrays
    ]
    weights = [np.mean([model[i] for model in models], axis=0) for i in range(2)]
  for got, want in zip(state.global_model_weights.trainable, weights):
    np.testing.assert_allclose(got, want, atol=2e-6)

  process = _fed_avg(_LINEAR)
  state = process.initialize()
  hparams = process.get_hparams(state)
  assert hparams["client_work"]["learning_rate"] == pytest.approx(0.2)
  hparams["client_work"]["learning_rate"] = 0.0
  frozen = process.set_hparams(state, hparams)
  _assert_same_weights(_run(process, data, 1, frozen)[0], state, rtol=0, atol=0)


def test_hparams_of_the_server_and_nothing_else_are_set():
  data = problems.datasets(problems.client_arrays())
  process = algorithms.build_fed_avg(
    problems.linear_model(), _sgd(), tff.learning.optimizers.build_sgdm(0.7, momentum=0.9)
  )
  state, _ = _run(process, data, 1)
  hparams = process.get_hparams(state)
  assert hparams["finalizer"]["learning_rate"] == pytest.approx(0.7)
  same = process.set_hparams(state, hparams)
  tf.nest.map_structure(np.testing.assert_array_equal, tree.flatten(same), tree.flatten(state))
  hparams["finalizer"]["learning_rate"] = 0.0
  changed = process.get_hparams(process.set_hparams(state, hparams))
  assert changed["finalizer"]["learning_rate"] == 0.0
  assert changed["client_work"] == hparams["client_work"]


def _halving_distributor(weights_type):
  """Sends half the weights, counts the rounds and measures ten times their number."""

  add_one = tff.tensorflow.computation(lambda count: count + 1, np.int32)
  times_ten = tff.tensorflow.computation(lambda count: 10 * count, np.int32)
  halve = tff.tensorflow.computation(
    lambda weights: tf.nest.map_structure(lambda w: w / 2, weights), weights_type
  )

  @tff.federated_computation
  def initialize():
    return tff.federated_value(0, tff.SERVER)

  @tff.federated_computation(
    tff.FederatedType(np.int32, tff.SERVER), tff.FederatedType(weights_type, tff.SERVER)
  )
  def next_fn(count, weights):
    count = tff.federated_map(add_one, count)
    sent = tff.federated_broadcast(tff.federated_map(halve, weights))
    return tff.templates.MeasuredProcessOutput(count, sent, tff.federated_map(times_ten, count))

  return tff.learning.templates.DistributionProcess(initialize, next_fn)


def test_states_and_measurements_of_all_parts():
  arrays = problems.client_arrays()
  model = problems.linear_model()
  process = algorithms.build_superquantile_fed_avg(
    model,
    0.5,
    _sgd(),
    client_weighting=_UNIFORM,
    model_distributor=_halving_distributor(local_model.describe(model).weights_type),
    model_aggregator=tff.learning.robust_aggregator(zeroing=False),
  )
  state = process.initialize()
  output = process.next(state, problems.datasets(arrays))
  halved = [w / 2 for w in problems.initial_weights()]
  losses = [problems.losses_and_gradient(halved, x, y)[0] for x, y in arrays]
  measured = output.metrics["client_work"]["threshold"]["loss_mean"]
  assert measured == pytest.approx(np.mean(losses), rel=1e-5)
  again = process.next(output.state, problems.datasets(arrays))
  assert (state.distributor, output.state.distributor, again.state.distributor) == (0, 1, 2)
  assert output.metrics["distributor"] == 10 and again.metrics["distributor"] == 20
  assert any("clip" in name for name in again.metrics["aggregator"])
  assert again.metrics["finalizer"] == collections.OrderedDict(update_non_finite=0)
  # Adaptive clipping: its norms are other ones after each round.
  norms = [tree.flatten(s.aggregator) for s in (state, output.state, again.state)]
  assert norms[0] != norms[1] != norms[2] != norms[0]


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_the_mean_of_updates_of_another_type_than_the_weights(dtype):
  value_type = tff.to_type([(dtype, [2]), dtype])
  process = learning_process.MeanFactory().create(value_type, tff.TensorType(np.float32))
  values = [[dtype([1, 2]), dtype(3)], [dtype([5, 4]), dtype(-1)]]
  for weights, expected in (([1.0, 3.0], ([4, 3.5], 0)), ([0.0, 0.0], ([0, 0], 0))):
    output = process.next(process.initialize(), values, [np.float32(w) for w in weights])
    for found, wanted in zip(output.result, expected):
      assert found.dtype == dtype
      np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
  "process",
  [
    lambda: _fed_avg(_LINEAR),
    lambda: _superquantile(_LINEAR),
    lambda: _superquantile(_LINEAR, threshold="reweighting"),
    lambda: _superquantile(problems.linear_model_fn),
  ],
  ids=["fed_avg", "exact", "reweighting", "variable_model"],
)
def test_a_client_with_a_loss_that_is_not_finite_is_left_out_and_counted(process):
  arrays = problems.client_arrays()
  spoilt = [(x.copy(), y) for x, y in arrays]
  spoilt[2][0][0, 0] = np.nan
  spoilt[4][0][0, 0] = np.inf
  healthy = [arrays[i] for i in (0, 1, 3, 5)]
  with_spoilt, metrics = _run(process(), problems.datasets(spoilt))
  without, healthy_metrics = _run(process(), problems.datasets(healthy))
  _assert_same_weights(with_spoilt, without, rtol=0, atol=1e-7)
  assert metrics["cohort"]["num_excluded"] == 2
  assert metrics["cohort"]["cohort_size"] == 6
  assert metrics["cohort"]["tail_size"] == healthy_metrics["cohort"]["tail_size"]
  tf.nest.map_structure(
    np.testing.assert_allclose, dict(metrics["train"]), dict(healthy_metrics["train"])
  )


@pytest.mark.parametrize(
  "process",
  [
    lambda: _superquantile(_LINEAR),
    lambda: _superquantile(problems.linear_model_fn),
    lambda: _superquantile(_LINEAR, client_weighting=_UNIFORM),
    lambda: _fed_avg(_LINEAR, client_weighting=_UNIFORM),
  ],
  ids=["by_examples", "variable_model", "uniform", "without_threshold"],
)
def test_a_client_without_examples_is_left_out_and_counted(process):
  arrays = problems.client_arrays()
  empty = (np.zeros([0, problems.NUM_FEATURES], np.float32), np.zeros([0], np.int32))
  with_empty, metrics = _run(process(), problems.datasets([*arrays, empty]))
  without, expected = _run(process(), problems.datasets(arrays))
  _assert_same_weights(with_empty, without, rtol=0, atol=1e-7)
  assert metrics["cohort"] == {**expected["cohort"], "cohort_size": 7, "num_excluded": 1}


def _one_weight(predict, *examples):
  """A model whose weight is 1 and whose loss the prediction less the label, and its clients."""
  model = tff.learning.models.FunctionalModel(
    initial_weights=((np.float32(1.0),), ()),
    predict_on_batch_fn=tf.function(predict),
    loss_fn=lambda output, label, sample_weight=None: tf.reduce_mean(output - label),
    input_spec=(tf.TensorSpec([None], tf.float32), tf.TensorSpec([None], tf.float32)),
  )
  return model, [
    tf.data.Dataset.from_tensors(([np.float32(x)], [np.float32(label)])) for x, label in examples
  ]


def test_an_infinite_loss_is_left_out_though_its_gradient_is_finite():
  examples = ((1.0, 0.0), (2.0, 0.0), (9.0, -np.inf), (3.0, 0.0), (4.0, 0.0))
  model, data = _one_weight(lambda weights, x, training: weights[0][0] * x, *examples)
  process = algorithms.build_superquantile_fed_avg(model, 0.5, _sgd(0.2), client_weighting=_UNIFORM)
  state, metrics = _run(process, data, 1)
  assert metrics["cohort"] == dict(cohort_size=5, tail_size=2, num_excluded=1)
  assert metrics["threshold"]["loss_mean"] == pytest.approx(2.5)
  # A step of each of those with losses of 3 and 4.
  assert state.global_model_weights.trainable[0] == pytest.approx(1.0 - 0.2 * 3.5)


def test_a_model_that_does_not_count_its_examples():
  def model_fn():
    model = problems.linear_model_fn()
    original = model.forward_pass

    def forward_pass(batch, training=True):
      output = original(batch, training)
      return tff.learning.models.BatchOutput(output.loss, output.predictions, None)

    model.forward_pass = forward_pass
    return model

  arrays = problems.client_arrays()
  state, _ = _run(algorithms.build_fed_avg(model_fn, _sgd()), problems.datasets(arrays), 1)
  weights = problems.initial_weights()
  models = [problems.local_sgd(weights, x, y, learning_rate=0.2, batch_size=4) for x, y in arrays]
  for i, found in enumerate(state.global_model_weights.trainable):
    mean_of_models = np.average([m[i] for m in models], axis=0, weights=[len(y) for _, y in arrays])
    np.testing.assert_allclose(found, mean_of_models, atol=2e-6)


def test_with_nobody_in_the_tail_the_model_stays():
  arrays = [(np.full_like(x, np.nan), y) for x, y in problems.client_arrays()]
  process = _superquantile(_LINEAR)
  state, metrics = _run(process, problems.datasets(arrays), 1)
  _assert_same_weights(state, process.initialize(), rtol=0, atol=0)
  assert metrics["cohort"] == dict(cohort_size=6, tail_size=0, num_excluded=6)


def test_models_may_have_pythons_if_on_tensors():
  """As in TFF's own algorithms, which convert what they call by AutoGraph."""
  plain = _LINEAR

  @tf.function
  def predict(weights, x, training):
    if tf.reduce_max(x) > 100.0:
      x = 0.0 * x
    return plain.predict_on_batch(weights, x, training)

  def loss(output, label, sample_weight=None):
    if tf.shape(output)[0] > 1000:
      return 0.0
    return problems.mean_cross_entropy(output, label, sample_weight)

  functional = tff.learning.models.FunctionalModel(
    initial_weights=plain.initial_weights,
    predict_on_batch_fn=predict,
    loss_fn=loss,
    input_spec=plain.input_spec,
  )

  def model_fn():
    model = problems.linear_model_fn()
    original = model.forward_pass

    def forward_pass(batch, training=True):
      x, y = batch
      if tf.reduce_max(x) > 100.0:
        x = 0.0 * x
      return original((x, y), training)

    model.forward_pass = forward_pass
    return model

  data = problems.datasets(problems.client_arrays())
  states = []
  for model in (plain, functional, model_fn):
    states.append(_run(_superquantile(model), data, 1)[0])
  for state in states[1:]:
    for found, expected in zip(
      state.global_model_weights.trainable, states[0].global_model_weights.trainable
    ):
      np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_clients_below_the_threshold_do_not_train():
  # Their local training would raise; the loss pass, which comes first, does not.
  def predict(weights, x, training):
    if training:
      with tf.control_dependencies([tf.debugging.assert_greater(tf.reduce_max(x), 0.0)]):
        x = tf.identity(x)
    return weights[0][0] * x

  model, data = _one_weight(predict, (-3.0, 0.0), (-2.0, 0.0), (1.0, 0.0), (2.0, 0.0))
  process = algorithms.build_superquantile_fed_avg(model, 0.5, _sgd(), client_weighting=_UNIFORM)
  _, metrics = _run(process, data, 1)
  assert metrics["cohort"]["tail_size"] == 2
  everybody = algorithms.build_superquantile_fed_avg(model, 1.0, _sgd())
  with pytest.raises(Exception, match="[Aa]ssert"):
    everybody.next(everybody.initialize(), data)


@pytest.mark.parametrize(
  "factory",
  [
    tff.learning.secure_aggregator(),
    pytest.param(tff.learning.compression_aggregator(), marks=pytest.mark.slow),
    tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(
      noise_multiplier=1e-6, clients_per_round=6, clip=1.0
    ),
    tff.aggregators.clipping_factory(0.01, tff.aggregators.SumFactory()),
  ],
  ids=["secure", "compression", "dp", "clipped_sum"],
)
def test_any_tff_aggregator(factory):
  """Weighted means, an unweighted one and a sum."""
  process = algorithms.build_superquantile_fed_avg(
    problems.linear_model(), 0.5, _sgd(), model_aggregator=factory
  )
  state, _ = _run(process, problems.datasets(problems.client_arrays()), 2)
  moved = [
    np.abs(a - b).max()
    for a, b in zip(state.global_model_weights.trainable, problems.initial_weights())
  ]
  assert all(np.isfinite(moved)) and max(moved) > 1e-4


@pytest.fixture
def event_loop_of_main_thread():
  """TFF's training loop takes the thread's event loop, which asyncio.run leaves at None."""
  event_loop = asyncio.new_event_loop()
  asyncio.set_event_loop(event_loop)
  yield
  event_loop.close()


def test_tffs_training_loop_and_dataset_computation(event_loop_of_main_thread):
  sizes = np.array([len(y) for _, y in problems.client_arrays()], np.int32)

  @tf.function(input_signature=[tf.TensorSpec([], tf.int32)])
  def examples_fn(size):
    x = tf.reshape(tf.range(tf.cast(size * 5, tf.float32)), [-1, 5]) / tf.cast(size, tf.float32)
    return x, tf.range(size) % problems.NUM_CLASSES

  @tff.tensorflow.computation(np.int32)
  def make_dataset(size):
    return tf.data.Dataset.from_tensor_slices(examples_fn(size)).batch(4)

  process = _superquantile(_LINEAR)
  composed = tff.simulation.compose_dataset_computation_with_learning_process(make_dataset, process)
  state = tff.simulation.run_training_process(
    composed, training_selection_fn=lambda round_num: list(sizes), total_rounds=2
  )
  data = problems.datasets([examples_fn(tf.constant(n)) for n in sizes])
  _assert_same_weights(state, _run(process, data, 2)[0], rtol=0, atol=1e-6)
  by_size = algorithms.build_superquantile_fed_avg(
    problems.linear_model(), 0.5, _sgd(), local_batch_size=4, examples_fn=examples_fn
  )
  by_size_state, metrics = _run(by_size, list(sizes), 2)
  _assert_same_weights(by_size_state, state, rtol=0, atol=1e-6)
  weights = by_size.get_model_weights(by_size_state)
  assert by_size.get_hparams(by_size_state)["client_work"]["learning_rate"] == pytest.approx(0.2)
  restored = by_size.set_model_weights(by_size.initialize(), weights)
  _assert_same_weights(restored, state, rtol=0, atol=1e-6)
  assert metrics["cohort"]["tail_size"] >= 1


def test_dict_batches():
  arrays = problems.client_arrays()
  x_spec, y_spec = _LINEAR.input_spec
  model = tff.learning.models.FunctionalModel(
    initial_weights=_LINEAR.initial_weights,
    predict_on_batch_fn=_LINEAR.predict_on_batch,
    loss_fn=problems.mean_cross_entropy,
    input_spec=collections.OrderedDict(x=x_spec, y=y_spec),
  )
  model.has_linear_gradient = True
  data = [
    tf.data.Dataset.from_tensor_slices(collections.OrderedDict(x=x, y=y)).batch(4)
    for x, y in arrays
  ]
  as_dicts = _run(algorithms.build_superquantile_fed_avg(model, 0.5, _sgd()), data)[0]
  as_tuples = _run(_superquantile(_LINEAR), problems.datasets(arrays))[0]
  _assert_same_weights(as_dicts, as_tuples, rtol=0, atol=0)


_OF_FOUR_FEATURES = tf.function(
  lambda i: (tf.zeros([i, 4]), tf.zeros([i], tf.int32)),
  input_signature=[tf.TensorSpec([], tf.int32)],
)


@pytest.mark.parametrize(
  "arguments,error,message",
  [
    (dict(threshold="quantile"), ValueError, "threshold = 'quantile'"),
    (dict(threshold=3), TypeError, "threshold = 3, of type int"),
    (dict(examples_fn=lambda x: x, local_batch_size=1), TypeError, "input_signature"),
    (dict(examples_fn=tf.function(lambda x: x)), ValueError, "without local_batch_size"),
    (dict(examples_fn=_OF_FOUR_FEATURES, local_batch_size=0), TypeError, "the model takes"),
  ],
)
def test_bad_arguments(arguments, error, message):
  defaults = dict(model_fn=_LINEAR, theta=0.5, client_optimizer_fn=_sgd())
  with pytest.raises(error, match=message):
    algorithms.build_superquantile_fed_avg(**{**defaults, **arguments})
