"""What the programs of TFF's tutorials share, and those of them that are short."""

import collections
import functools

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

_learning = tff.learning
sgdm = tff.learning.optimizers.build_sgdm


def images(num_clients=3, size=7):
  """Clients with images of 4 x 4 pixels, as TFF's tutorials get them."""
  rng = np.random.default_rng(0)
  return tff.simulation.datasets.TestClientData(
    {
      f"client {i}": collections.OrderedDict(
        label=rng.integers(0, 3, size + i).astype(np.int32),
        pixels=rng.random((size + i, 4, 4)).astype(np.float32),
      )
      for i in range(num_clients)
    }
  )


def as_batch(element):
  x, y = tf.reshape(element["pixels"], [-1, 16]), tf.reshape(element["label"], [-1, 1])
  return collections.OrderedDict(x=x, y=y)


def cohort_of(prepare):
  clients = images()
  return [prepare(clients.create_tf_dataset_for_client(i)) for i in clients.client_ids]


def seeded(data_set):
  return data_set.repeat(2).shuffle(9, seed=1).batch(5).map(as_batch).prefetch(2)


def dense_model(spec):
  layers = tf.keras.layers
  return lambda: _learning.models.from_keras_model(
    tf.keras.Sequential(
      [layers.InputLayer(input_shape=(16,)), layers.Dense(3, kernel_initializer="zeros")]
      + [layers.Softmax()]
    ),
    input_spec=spec,
    loss=tf.keras.losses.SparseCategoricalCrossentropy(),
    metrics=[tf.keras.metrics.SparseCategoricalAccuracy()],
  )


def trained(process, cohort, evaluate=None, num_rounds=3):
  """The weights and metrics of each round, and those of an evaluation of the last one."""
  state = process.initialize()
  results = []
  for _ in range(num_rounds):
    output = process.next(state, cohort)
    state = output.state
    results.append((process.get_model_weights(state), output.metrics))
  if evaluate is not None:
    of_evaluation = evaluate.set_model_weights(
      evaluate.initialize(), process.get_model_weights(state)
    )
    results.append(evaluate.next(of_evaluation, cohort).metrics)
  return results


def private_learning():
  """federated_learning_with_differential_privacy, with so little noise that nobody sees it.

  The norm to which its aggregator clips is drawn, too, but for that of the first round.
  """
  cohort = cohort_of(seeded)
  process = _learning.algorithms.build_unweighted_fed_avg(
    dense_model(cohort[0].element_spec),
    sgdm(0.5),
    sgdm(1.0, momentum=0.9),
    model_aggregator=_learning.dp_aggregator(1e-9, len(cohort)),
  )
  return lambda: trained(process, cohort, num_rounds=1)[0][0]


def random_noise():
  """random_noise_generation: that of a seed, and that of none, of which only that is compared."""

  @tff.tensorflow.computation(np.int64)
  def of_seed(seed):
    return tf.random.stateless_normal([], tf.stack([seed, seed]))

  @tff.tensorflow.computation(np.int64)
  def of_generator(seed):
    return tf.random.Generator.from_seed(seed).normal([2])

  @tff.tensorflow.computation(np.int64)
  def of_none(seed):
    return tf.random.Generator.from_non_deterministic_state().normal([]) + 0 * tf.cast(
      seed, "float"
    )

  def extremes(noise):
    return tff.federated_min(noise), tff.federated_max(noise)

  @tff.federated_computation(tff.FederatedType(np.int64, tff.CLIENTS), np.int64)
  def draw(held, seed):
    seeds = tff.federated_broadcast(tff.federated_value(seed, tff.SERVER))
    of_clients = [tff.federated_map(function, held) for function in (of_generator, of_none)]
    return extremes(tff.federated_map(of_seed, seeds)), *map(extremes, of_clients)

  def run():
    rounds = [draw([1, 2, 3], seed) for seed in (1, 2)]
    drawn = [float(end) for _, _, ends in rounds for end in ends]
    return [round_[:2] for round_ in rounds], len(set(drawn))

  return run


def names_of_clients(folder):
  """working_with_client_data, loading_your_own_dataset_from_csv: clients make data sets.

  Of their names, from an SQLite file and from a table in the graph, shuffled without a seed.
  """
  held = images()
  path = str(folder / "clients.sqlite")
  tff.simulation.datasets.save_to_sql_client_data(
    held.client_ids, held.create_tf_dataset_for_client, path
  )
  of_file = tff.simulation.datasets.load_and_parse_sql_client_data(
    path, held.element_type_structure
  )

  def prepare(data_set):
    return data_set.batch(5).map(as_batch, tf.data.AUTOTUNE).take(5).shuffle(5)

  element = prepare(held.create_tf_dataset_for_client(held.client_ids[0])).element_spec
  process = _learning.algorithms.build_fed_sgd(dense_model(element), sgdm(0.1))
  composed = [
    tff.simulation.compose_dataset_computation_with_learning_process(
      source.preprocess(prepare).dataset_computation, process
    )
    for source in (of_file, held)
  ]
  return lambda: [trained(each, held.client_ids) for each in composed]


def own_csv(folder):
  """loading_your_own_dataset_from_csv: each client finds its rows of one file."""
  path = folder / "rows.csv"

  def rows_of(name):
    rows = tf.data.experimental.CsvDataset(str(path), [tf.string, tf.string], header=True)
    return rows.filter(lambda who, _: tf.equal(who, name)).map(lambda _, text: text)

  path.write_text("who,text\na,\n")
  data = tff.simulation.datasets.ClientData.from_clients_and_tf_fn(["a", "b"], rows_of)

  @tff.tensorflow.computation(data.dataset_computation.type_signature.result)
  def count(texts):
    return texts.reduce(np.int32(0), lambda n, text: n + tf.strings.length(text))

  @tff.federated_computation(tff.FederatedType(np.str_, tff.CLIENTS))
  def lengths(names):
    texts = tff.federated_map(data.dataset_computation, names)
    return tff.federated_map(count, texts)

  def run():
    found = []
    for rows in ('a,the tail\nb,of\na,the\nb,losses of\na,"x, y"\n', "b,more\n"):
      path.write_text(f"who,text\n{rows}")
      found.append(lengths(["a", "b"]))
    return found

  return run


def own_optimizers():
  """custom_federated_algorithm_with_tff_optimizers: optimizers with states at both ends."""
  optimizers = _learning.optimizers
  at_client, at_server = sgdm(0.2, momentum=0.9), optimizers.build_adam(0.05)
  cohort = cohort_of(seeded)
  specs = (tf.TensorSpec([16, 3]), tf.TensorSpec([3]))
  weights_type = tff.types.tensorflow_to_type(specs)

  @tff.tensorflow.computation(
    weights_type, tff.SequenceType(tff.types.tensorflow_to_type(cohort[0].element_spec))
  )
  def train(weights, data_set):
    @tf.function
    def run(weights, data_set):
      own, state = weights, at_client.initialize(specs)
      for batch in data_set:
        with tf.GradientTape() as tape:
          tape.watch(own)
          logits = tf.matmul(batch["x"], own[0]) + own[1]
          labels = tf.reshape(batch["y"], [-1])
          losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
          loss = tf.reduce_mean(losses)
        state, own = at_client.next(state, own, tape.gradient(loss, own))
      return tuple(before - after for before, after in zip(weights, own))

    return run(tuple(weights), data_set)

  @tff.tensorflow.computation
  def begin():
    return tuple(tf.zeros(spec.shape) for spec in specs), at_server.initialize(specs)

  state_type = begin.type_signature.result

  @tff.tensorflow.computation(state_type, weights_type)
  def step(state, update):
    after, weights = at_server.next(state[1], tuple(state[0]), tuple(update))
    return weights, after

  of_state = tff.tensorflow.computation(lambda state: state[0], state_type)

  @tff.federated_computation(
    tff.FederatedType(state_type, tff.SERVER),
    tff.FederatedType(train.type_signature.parameter[1], tff.CLIENTS),
  )
  def next_fn(state, data_sets):
    weights = tff.federated_broadcast(tff.federated_map(of_state, state))
    updates = tff.federated_map(train, (weights, data_sets))
    return tff.federated_map(step, (state, tff.federated_mean(updates)))

  def run():
    states = [begin()]
    for _ in range(3):
      states.append(next_fn(states[-1], cohort))
    return states

  return run


class _UserVector(tf.keras.layers.Layer):
  """The vector of one user, which no server sees."""

  def build(self, input_shape):
    self.vector = self.add_weight(name="vector", shape=[1, 3], initializer="ones")

  def call(self, inputs):
    return tf.tile(self.vector, [tf.shape(inputs)[0], 1])


def _matrix_factorization(spec):
  layers = tf.keras.layers
  movies = layers.Input([1], dtype=tf.int64)
  normal = tf.keras.initializers.RandomNormal(stddev=0.3, seed=1)
  items, user = layers.Embedding(7, 3, embeddings_initializer=normal), _UserVector()
  ratings = layers.Dot(1)([layers.Flatten()(items(movies)), user(movies)])
  return _learning.models.ReconstructionModel.from_keras_model_and_layers(
    tf.keras.Model(movies, ratings), global_layers=[items], local_layers=[user], input_spec=spec
  )


def reconstruction():
  """federated_reconstruction_for_matrix_factorization: local vectors that are made anew."""
  rng = np.random.default_rng(3)
  cohort = [
    tf.data.Dataset.from_tensor_slices(
      (rng.integers(0, 7, [8 + i, 1]), rng.normal(size=[8 + i, 1]).astype(np.float32))
    ).batch(2)
    for i in range(3)
  ]
  model = functools.partial(_matrix_factorization, cohort[0].element_spec)
  halves = _learning.models.ReconstructionModel.build_dataset_split_fn(
    recon_epochs=2, recon_steps_max=3, post_recon_epochs=2, split_dataset=True
  )
  shared = dict(
    loss_fn=tf.keras.losses.MeanSquaredError,
    metrics_fn=lambda: [tf.keras.metrics.MeanAbsoluteError()],
    reconstruction_optimizer_fn=sgdm(0.1),
    dataset_split_fn=halves,
  )
  process = _learning.algorithms.build_fed_recon(
    model, server_optimizer_fn=sgdm(1.0), client_optimizer_fn=sgdm(0.1), **shared
  )
  evaluate = _learning.algorithms.build_fed_recon_eval(model, **shared)
  return lambda: trained(process, cohort, evaluate)
