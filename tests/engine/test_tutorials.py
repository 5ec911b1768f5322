"""The programs of TFF's tutorials give here what TFF's runtime gives, cell by cell.

python -m pytest tests/engine/test_tutorials.py --run_slow    # All; some without it.
"""

import asyncio
import collections
import datetime
import importlib

from helpers import calls
from helpers import tutorials
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.engine import context

pytestmark = pytest.mark.usefixtures("restored_context")
_OF_BENCHMARKS = ("core_language", "own_aggregators", "own_algorithm", "sequence_algorithm")
_learning = tff.learning


class _OwnModel(_learning.models.VariableModel):
  """The model that federated_learning_for_image_classification writes by hand."""

  def __init__(self, spec):
    self._spec = spec
    self._weights, self._bias = tf.Variable(tf.zeros([16, 3])), tf.Variable(tf.zeros(3))
    self._sums = [tf.Variable(0.0, trainable=False) for _ in range(3)]

  trainable_variables = property(lambda self: [self._weights, self._bias])
  non_trainable_variables = property(lambda self: [])
  local_variables = property(lambda self: self._sums)
  input_spec = property(lambda self: self._spec)

  @tf.function
  def predict_on_batch(self, x, training=True):
    del training
    return tf.nn.softmax(tf.matmul(x, self._weights) + self._bias)

  @tf.function
  def forward_pass(self, batch_input, training=True):
    del training
    predictions = self.predict_on_batch(batch_input["x"])
    labels = tf.reshape(batch_input["y"], [-1])
    loss = -tf.reduce_mean(
      tf.reduce_sum(tf.one_hot(labels, 3) * tf.math.log(predictions), axis=[1])
    )
    right = tf.equal(tf.argmax(predictions, 1, tf.int32), labels)
    num_examples = tf.cast(tf.size(labels), tf.float32)
    self._sums[0].assign_add(num_examples)
    self._sums[1].assign_add(loss * num_examples)
    self._sums[2].assign_add(tf.reduce_sum(tf.cast(right, tf.float32)))
    return _learning.models.BatchOutput(loss, predictions, tf.shape(predictions)[0])

  @tf.function
  def report_local_unfinalized_metrics(self):
    num, loss, right = self._sums
    return collections.OrderedDict(num_examples=[num], loss=[loss, num], accuracy=[right, num])

  def metric_finalizers(self):
    return collections.OrderedDict(
      num_examples=tf.function(func=lambda x: x[0]),
      loss=tf.function(func=lambda x: x[0] / x[1]),
      accuracy=tf.function(func=lambda x: x[0] / x[1]),
    )

  @tf.function
  def reset_metrics(self):
    for total in self._sums:
      total.assign(0.0)


def _image_classification():
  """federated_learning_for_image_classification: Keras, and the same model by hand."""
  cohort = tutorials.cohort_of(tutorials.seeded)
  spec = cohort[0].element_spec
  models = (tutorials.dense_model(spec), lambda: _OwnModel(spec))
  processes = [
    (
      _learning.algorithms.build_weighted_fed_avg(
        model_fn, tutorials.sgdm(0.02), tutorials.sgdm(1.0)
      ),
      _learning.algorithms.build_fed_eval(model_fn),
    )
    for model_fn in models
  ]
  return lambda: [tutorials.trained(process, cohort, evaluate) for process, evaluate in processes]


class _Accuracy(tf.keras.metrics.SparseCategoricalAccuracy):
  """The metric of federated_learning_for_text_generation, of all characters."""

  def __init__(self, name="accuracy", dtype=tf.float32):
    super().__init__(name, dtype=dtype)

  def update_state(self, y_true, y_pred, sample_weight=None):
    flat = tf.reshape(y_true, [-1, 1]), tf.reshape(y_pred, [-1, len(_LETTERS) + 1, 1])
    return super().update_state(flat[0], tf.squeeze(flat[1], -1), sample_weight)


_LETTERS = "abcdefgh .,"


def _text_generation():
  """federated_learning_for_text_generation: snippets, a table of characters, a GRU."""
  values = tf.range(len(_LETTERS), dtype=tf.int64)
  table = tf.lookup.StaticHashTable(
    tf.lookup.KeyValueTensorInitializer(list(_LETTERS), values), default_value=len(_LETTERS)
  )

  def to_ids(element):
    characters = tf.strings.bytes_split(tf.reshape(element["snippets"], [1])).values
    return table.lookup(characters)

  def preprocess(data_set):
    chunks = data_set.map(to_ids).unbatch().batch(6, drop_remainder=True)
    return (
      chunks.shuffle(20, seed=3).batch(2, drop_remainder=True).map(lambda c: (c[:, :-1], c[:, 1:]))
    )

  rng = np.random.default_rng(1)
  texts = [["".join(rng.choice(list(_LETTERS + "?"), 40)) for _ in range(2)] for _ in range(3)]
  cohort = [
    preprocess(tf.data.Dataset.from_tensor_slices(collections.OrderedDict(snippets=own)))
    for own in texts
  ]
  spec = cohort[0].element_spec

  def model_fn():
    layers, initializers = tf.keras.layers, tf.keras.initializers
    uniform = initializers.RandomUniform(-0.1, 0.1, seed=4)
    return _learning.models.from_keras_model(
      tf.keras.Sequential(
        [
          layers.InputLayer((5,), dtype=tf.int64),
          layers.Embedding(len(_LETTERS) + 1, 4, embeddings_initializer=uniform),
          layers.GRU(
            5, return_sequences=True, kernel_initializer=uniform, recurrent_initializer=uniform
          ),
          layers.Dense(len(_LETTERS) + 1, kernel_initializer=uniform),
        ]
      ),
      input_spec=spec,
      loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
      metrics=[_Accuracy()],
    )

  process = _learning.algorithms.build_weighted_fed_avg(
    model_fn, tutorials.sgdm(0.5), tutorials.sgdm(1.0)
  )
  return lambda: tutorials.trained(process, cohort)


def _simulations():
  """simulations, working_with_client_data: no seed, so what no order changes is compared."""
  cohort = tutorials.cohort_of(lambda d: d.batch(5).map(tutorials.as_batch).take(5).shuffle(5))
  of_epochs = tutorials.cohort_of(
    lambda d: d.repeat(3).shuffle(500).batch(4).map(tutorials.as_batch)
  )
  model_fn = tutorials.dense_model(of_epochs[0].element_spec)
  gradient = _learning.algorithms.build_fed_sgd(model_fn, tutorials.sgdm(0.1))
  evaluate = _learning.algorithms.build_fed_eval(model_fn)
  return lambda: [tutorials.trained(gradient, held, evaluate) for held in (cohort, of_epochs)]


def _client_work(model_fn, optimizer, largest_norm):
  """The client work of composing_learning_algorithms, which clips gradients."""
  with tf.Graph().as_default():
    model = model_fn()
    data_type = tff.SequenceType(tff.types.tensorflow_to_type(model.input_spec))
    weights_type = _learning.models.weights_type_from_model(model)

  @tf.function
  def update(model, data_set, initial_weights):
    weights = _learning.models.ModelWeights.from_model(model)
    tf.nest.map_structure(lambda x, y: x.assign(y), weights, initial_weights)
    specs = tf.nest.map_structure(lambda v: tf.TensorSpec(v.shape, v.dtype), weights.trainable)
    optimizer_state = optimizer.initialize(specs)
    num_examples = tf.constant(0)
    for batch in data_set:
      with tf.GradientTape() as tape:
        outputs = model.forward_pass(batch)
      gradients, _ = tf.clip_by_global_norm(
        tape.gradient(outputs.loss, weights.trainable), largest_norm
      )
      num_examples += tf.cast(outputs.num_examples, tf.int32)
      optimizer_state, updated = optimizer.next(optimizer_state, weights.trainable, gradients)
      tf.nest.map_structure(lambda x, y: x.assign(y), weights.trainable, updated)
    delta = tf.nest.map_structure(lambda x, y: x - y, initial_weights.trainable, weights.trainable)
    return _learning.templates.ClientResult(delta, tf.cast(num_examples, tf.float32))

  @tff.tensorflow.computation(weights_type, data_type)
  def work(weights, data_set):
    return update(model_fn(), data_set, weights)

  @tff.federated_computation
  def initialize():
    return tff.federated_value((), tff.SERVER)

  @tff.federated_computation(
    initialize.type_signature.result,
    tff.FederatedType(weights_type, tff.CLIENTS),
    tff.FederatedType(data_type, tff.CLIENTS),
  )
  def next_fn(state, weights, data_sets):
    results = tff.federated_map(work, (weights, data_sets))
    nothing = tff.federated_value((), tff.SERVER)
    return tff.templates.MeasuredProcessOutput(state, results, nothing)

  return _learning.templates.ClientWorkProcess(initialize, next_fn)


def _composing():
  """composing_learning_algorithms: a process of four parts, one of them by hand."""
  cohort = tutorials.cohort_of(tutorials.seeded)
  model_fn = tutorials.dense_model(cohort[0].element_spec)

  @tff.tensorflow.computation()
  def initial_weights():
    return _learning.models.ModelWeights.from_model(model_fn())

  weights_type = initial_weights.type_signature.result
  process = _learning.templates.compose_learning_process(
    initial_weights,
    _learning.templates.build_broadcast_process(weights_type),
    _client_work(model_fn, tutorials.sgdm(0.5), 0.1),
    tff.aggregators.MeanFactory().create(weights_type.trainable, tff.TensorType(np.float32)),
    _learning.templates.build_apply_optimizer_finalizer(tutorials.sgdm(1.0, 0.9), weights_type),
  )
  return lambda: tutorials.trained(process, cohort)


def _tuning():
  """tuning_recommended_aggregators: those of it that draw nothing, with its adaptive norms."""
  quantile = tff.aggregators.PrivateQuantileEstimationProcess.no_noise
  clipping = quantile(1.0, 0.8, np.log(10.0))
  zeroing = quantile(10.0, 0.98, np.log(10.0), 2.0, 1.0)
  mean = tff.aggregators.MeanFactory
  factories = [
    _learning.robust_aggregator(),
    _learning.robust_aggregator(zeroing=False),
    _learning.secure_aggregator(),
    tff.aggregators.zeroing_factory(zeroing, tff.aggregators.clipping_factory(clipping, mean())),
    tff.aggregators.zeroing_factory(10.0, tff.aggregators.clipping_factory(1.0, mean())),
  ]
  cohort = tutorials.cohort_of(tutorials.seeded)
  model_fn = tutorials.dense_model(cohort[0].element_spec)
  processes = [
    _learning.algorithms.build_weighted_fed_avg(
      model_fn, tutorials.sgdm(0.5), model_aggregator=factory
    )
    for factory in factories
  ]
  return lambda: [tutorials.trained(process, cohort) for process in processes]


def _heavy_hitters():
  """private_heavy_hitters: words of lines, by hash tables that are summed."""
  texts = [["the tail of", "the losses"], ["the mean", "of the losses"], ["a tail", "a tail the"]]
  cohort = [
    tf.data.Dataset.from_tensor_slices(own)
    .map(lambda line: tf.strings.split(tf.strings.lower(line)))
    .unbatch()
    .batch(2)
    for own in texts
  ]
  options = dict(capacity=50, string_max_bytes=10)
  computations = [
    tff.analytics.heavy_hitters.iblt.build_iblt_computation(**options, **others)
    for others in (
      dict(max_words_per_user=4, secure_sum_bitwidth=32),
      dict(k_anonymity=2, multi_contribution=False),
    )
  ]

  def run():
    found = [computation(cohort) for computation in computations]
    return [
      (sorted(zip(each.heavy_hitters.tolist(), map(int, each.heavy_hitters_counts))), each.clients)
      for each in found
    ]

  return run


def _selecting():
  """federated_select_and_sparse_aggregation: clients train the rows of a table that they need."""
  num_words, most = 12, 4
  keys_type = tff.TensorType(np.int32, [most])
  table_type = tff.TensorType(np.float32, [num_words, 3])
  words_type = tff.SequenceType(np.int32)
  rows_type = tff.SequenceType(tff.TensorType(np.float32, [3]))

  @tff.tensorflow.computation(words_type)
  def keys_of(words):
    unique = tf.sort(tf.unique(words.batch(100).get_single_element()).y)[:most]
    return tf.ensure_shape(tf.pad(unique, [[0, most - tf.size(unique)]]), [most])

  @tff.tensorflow.computation(table_type, np.int32)
  def select(table, key):
    return tf.gather(table, key)

  @tff.tensorflow.computation(rows_type, words_type, keys_type)
  def train(rows, words, keys):
    own = rows.batch(most).get_single_element()
    hits = words.reduce(
      tf.zeros([most]), lambda sums, word: sums + tf.cast(tf.equal(keys, word), tf.float32)
    )
    update = hits[:, tf.newaxis] * (1.0 - own)
    return tf.scatter_nd(keys[:, tf.newaxis], update, [num_words, 3])

  @tff.tensorflow.computation(table_type, table_type)
  def apply(table, update):
    return table + 0.1 * update

  @tff.tensorflow.computation()
  def num_keys():
    return tf.constant(num_words, tf.int32)

  @tff.federated_computation(
    tff.FederatedType(table_type, tff.SERVER), tff.FederatedType(words_type, tff.CLIENTS)
  )
  def next_fn(table, words):
    keys = tff.federated_map(keys_of, words)
    most_keys = tff.federated_eval(num_keys, tff.SERVER)
    rows = tff.federated_select(keys, most_keys, table, select)
    updates = tff.federated_map(train, (rows, words, keys))
    return tff.federated_map(apply, (table, tff.federated_sum(updates)))

  rng = np.random.default_rng(2)
  cohort = [
    tf.data.Dataset.from_tensor_slices(rng.integers(0, num_words, 9).astype(np.int32))
    for _ in range(3)
  ]

  def run():
    table = np.arange(36, dtype=np.float32).reshape(12, 3)
    tables = []
    for _ in range(2):
      table = next_fn(table, cohort)
      tables.append(table)
    return tables

  return run


_OF_FILES = (tutorials.names_of_clients, tutorials.own_csv)
_SLOW = {
  "image classification": _image_classification,
  "text generation": _text_generation,
  "simulations": _simulations,
  "composing": _composing,
  "tuning": _tuning,
  "heavy hitters": _heavy_hitters,
  "private learning": tutorials.private_learning,
  "names of clients": tutorials.names_of_clients,
  "own optimizers": tutorials.own_optimizers,
  "reconstruction": tutorials.reconstruction,
}
_TUTORIALS = {
  "selecting": _selecting,
  "own csv": tutorials.own_csv,
  "random noise": tutorials.random_noise,
  **_SLOW,
}


@pytest.mark.parametrize(
  "name",
  [pytest.param(name, marks=pytest.mark.slow if name in _SLOW else []) for name in _TUTORIALS],
)
def test_tutorials_give_what_tffs_runtime_gives(native, name, tmp_path):
  build = _TUTORIALS[name]
  run = build(tmp_path) if build in _OF_FILES else build()
  expected = calls.plain(calls.invoke(native, run))
  context.set_simulation_context()
  calls.assert_equal(calls.plain(run()), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", _OF_BENCHMARKS)
def test_tutorials_that_are_timed_give_what_tffs_runtime_gives(native, name):
  build = importlib.import_module(f"benchmarks.tff.tutorials.{name}").build
  tff.framework.set_default_context(native)
  tf.random.set_seed(0)
  expected = [calls.plain(cell()) for cell in build(2)]
  context.set_simulation_context()
  tf.random.set_seed(0)
  calls.assert_equal([calls.plain(cell()) for cell in build(2)], expected)


class _Selections(tff.program.FederatedDataSourceIterator):
  """Three clients a round, each time one further."""

  def __init__(self, num_rounds=0):
    self._num_rounds = num_rounds
    self._cohort = tutorials.cohort_of(tutorials.seeded)

  @classmethod
  def from_bytes(cls, data):
    return cls(int(data))

  def to_bytes(self):
    return str(self._num_rounds).encode()

  def __deepcopy__(self, memo):  # TensorFlow copies no data set.
    return _Selections(self._num_rounds)

  @property
  def federated_type(self):
    element = tff.types.tensorflow_to_type(self._cohort[0].element_spec)
    return tff.FederatedType(tff.SequenceType(element), tff.CLIENTS)

  def select(self, k=None):
    self._num_rounds += 1
    return [self._cohort[(self._num_rounds + i) % 3] for i in range(k)]


class _Clients(tff.program.FederatedDataSource):
  federated_type = property(lambda self: _Selections().federated_type)
  capabilities = ()

  def iterator(self):
    return _Selections()


def _programs(of_context, folder, num_rounds):
  """`tff.learning.programs.train_model`, with evaluations beside it; goes on where it ended."""
  tff.framework.set_default_context(tff.program.NativeFederatedContext(of_context))
  model = tutorials.dense_model(_Selections()._cohort[0].element_spec)
  evaluation = _learning.algorithms.build_fed_eval(model)
  models, metrics, evaluated = (tff.program.MemoryReleaseManager() for _ in range(3))

  def state(name):
    return tff.program.FileProgramStateManager(folder / name)

  asyncio.run(
    _learning.programs.train_model(
      train_process=_learning.algorithms.build_weighted_fed_avg(model, tutorials.sgdm(0.5)),
      train_data_source=_Clients(),
      train_per_round_clients=2,
      train_total_rounds=num_rounds,
      program_state_manager=state("training"),
      model_output_manager=models,
      train_metrics_manager=metrics,
      evaluation_manager=_learning.programs.EvaluationManager(
        _Clients(),
        evaluated,
        state,
        lambda name: (evaluation, None),
        cohort_size=3,
        duration=datetime.timedelta(seconds=0.1),
      ),
      evaluation_periodicity=2,
    )
  )
  return [list(manager.values().items()) for manager in (models, metrics, evaluated)]


@pytest.mark.slow
def test_training_programs_give_what_tffs_runtime_gives(tmp_path):
  native = tff.backends.test.create_async_test_cpp_execution_context()
  ours = context.create_async_simulation_context()
  for num_rounds, trained in ((3, [1, 2, 3]), (5, [4, 5])):
    expected = _programs(native, tmp_path / "native", num_rounds)
    found = _programs(ours, tmp_path / "ours", num_rounds)
    models, metrics, evaluated = found
    assert len(models) == 1 and [num for num, _ in metrics] == trained and evaluated
    calls.assert_equal(calls.plain(found), calls.plain(expected))
