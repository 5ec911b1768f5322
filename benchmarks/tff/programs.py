"""Times TFF's own algorithms, unchanged, in TFF's runtime and in this process.

    python benchmarks/tff/programs.py [--clients=50] [--rounds=7] [--rows=fed_avg,fed_eval] [--cpu]

Both contexts take turns in one process, in an order that alternates, on the same states and the
same clients. After each pair of rounds the results are compared, and both go on from TFF's state. A
row whose results differ by more than the rounding of sums in another order is void; one that draws
orders is not compared. The first round contains all that is compiled; TFF's worker has started
before. `--cpu` counts the seconds of all cores, those of TFF's worker included.
"""

import argparse
import atexit
import collections
from collections.abc import Callable, Mapping, Sequence
import functools
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import time
from typing import Any, NamedTuple

import numpy as np

_ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(_ROOT))  # The benchmarks are not installed with the project.

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf  # noqa: E402
import tensorflow_federated as tff  # noqa: E402

from benchmarks import child  # noqa: E402
from privacy.settings import command_line  # noqa: E402
import tff_superquantile as tsq  # noqa: E402
from tff_superquantile.experiments import cli  # noqa: E402

_ARGS = argparse.Namespace()  # Filled by `main`.


def define(parser: command_line.Parser) -> None:
  add = functools.partial(command_line.add_flag, parser)
  add("clients", int, 50, "Clients a round.", least=1)
  add("rounds", int, 7, "Timed rounds after the first.", least=1)
  add("examples", int, 30, "Images a client, in the rows of tutorials.", least=1)
  add("cpu", bool, False, "Measures CPU seconds, those of TFF's worker included.")
  add("rows", str, [], "Only these; none for all.", are_several=True)


_FEATURES, _CLASSES, _LENGTH, _LETTERS = 20, 5, 10, 30
_TOLERANCE = 1e-4


class Program(NamedTuple):
  """A program to time, and what its clients hold.

  `start` returns the state before the first round, None without one; `step` the next state, and
  what else there is, from a state and the clients; `draws` says that it draws orders.
  """

  start: Callable[[], Any] | None
  step: Callable[[Any, Sequence[Any]], tuple[Any, Any]]
  clients: Sequence[Any]
  draws: bool = False


def _examples(batch: int = 10) -> list[tf.data.Dataset]:
  rng = np.random.default_rng(0)
  clients = []
  for _ in range(_ARGS.clients):
    x = rng.normal(size=(30, _FEATURES)).astype(np.float32)
    y = rng.integers(0, _CLASSES, 30).astype(np.int32)
    data_set = tf.data.Dataset.from_tensor_slices((x, y))
    clients.append(data_set.batch(batch) if batch else data_set)
  return clients


def _shuffled(tutorial: str) -> Program:
  """Trains as a tutorial of TFF's on simulation does, whose data sets shuffle without a seed."""
  rng = np.random.default_rng(0)

  def flat(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.reshape(image, [-1, 784]), tf.reshape(label, [-1, 1])

  def of_one(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.reshape(image, [784]), tf.reshape(label, [1])

  prepare: dict[str, Callable[[tf.data.Dataset], tf.data.Dataset]] = {
    "simulations": lambda d: d.repeat(10).shuffle(500).batch(20).map(flat),
    "client_data": lambda d: d.batch(5).map(flat).take(5).shuffle(5),
    "accelerators": lambda d: d.map(of_one).shuffle(418).repeat(2).batch(20),
    "seeded": lambda d: d.repeat(10).shuffle(500, seed=1).batch(20).map(flat),
  }
  clients = []
  for _ in range(_ARGS.clients):
    images = rng.normal(size=(_ARGS.examples, 28, 28)).astype(np.float32)
    labels = rng.integers(0, 10, _ARGS.examples).astype(np.int32)
    clients.append(prepare[tutorial](tf.data.Dataset.from_tensor_slices((images, labels))))

  def model() -> tff.learning.models.VariableModel:
    layers = [tf.keras.layers.InputLayer(784), tf.keras.layers.Dense(10)]
    return _keras(layers, clients[0].element_spec)

  process = tff.learning.algorithms.build_weighted_fed_avg(model, _sgd())
  return _learning(process, clients)._replace(draws=tutorial != "seeded")


def _names() -> Program:
  """Trains as working_with_client_data does at its end: clients make data sets of their names."""
  rng = np.random.default_rng(0)
  images = {
    f"client {i}": collections.OrderedDict(
      label=rng.integers(0, 10, _ARGS.examples).astype(np.int32),
      pixels=rng.normal(size=(_ARGS.examples, 28, 28)).astype(np.float32),
    )
    for i in range(_ARGS.clients)
  }
  folder = pathlib.Path(tempfile.mkdtemp())
  atexit.register(shutil.rmtree, folder)
  path = str(folder / "clients.sqlite")
  held = tff.simulation.datasets.TestClientData(images)
  tff.simulation.datasets.save_to_sql_client_data(
    held.client_ids, held.create_tf_dataset_for_client, path
  )
  data = tff.simulation.datasets.load_and_parse_sql_client_data(path, held.element_type_structure)

  def flat(batch: Mapping[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.reshape(batch["pixels"], [-1, 784]), tf.reshape(batch["label"], [-1, 1])

  shuffled = data.preprocess(lambda d: d.batch(5).map(flat).take(5).shuffle(5))
  spec = shuffled.element_type_structure

  def model() -> tff.learning.models.VariableModel:
    return _keras([tf.keras.layers.InputLayer(784), tf.keras.layers.Dense(10)], spec)

  composed = tff.simulation.compose_dataset_computation_with_learning_process(
    shuffled.dataset_computation,
    tff.learning.algorithms.build_weighted_fed_avg(model, _sgd()),
  )
  return _learning(composed, held.client_ids)._replace(draws=True)


def _words(number: int = 8, batch: int = 3) -> list[tf.data.Dataset]:
  rng = np.random.default_rng(0)
  words = np.array(["the", "tail", "of", "losses"], object)
  return [
    tf.data.Dataset.from_tensor_slices(rng.choice(words, number)).batch(batch)
    for _ in range(_ARGS.clients)
  ]


def _texts() -> list[tf.data.Dataset]:
  rng = np.random.default_rng(0)
  texts = rng.integers(0, _LETTERS, (_ARGS.clients, 20, _LENGTH)).astype(np.int32)
  return [tf.data.Dataset.from_tensor_slices((x, np.roll(x, -1, 1))).batch(10) for x in texts]


def _keras(layers: Sequence[tf.keras.layers.Layer], spec: Any) -> tff.learning.models.VariableModel:
  return tff.learning.models.from_keras_model(
    tf.keras.Sequential(layers),
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    input_spec=spec,
    metrics=[tf.keras.metrics.SparseCategoricalAccuracy()],
  )


def _model() -> tff.learning.models.VariableModel:
  spec = (tf.TensorSpec([None, _FEATURES]), tf.TensorSpec([None], tf.int32))
  return _keras([tf.keras.layers.InputLayer(_FEATURES), tf.keras.layers.Dense(_CLASSES)], spec)


def _lstm() -> tff.learning.models.VariableModel:
  layers = tf.keras.layers
  text = tf.TensorSpec([None, _LENGTH], tf.int32)
  return _keras(
    [
      layers.InputLayer(_LENGTH, dtype=tf.int32),
      layers.Embedding(_LETTERS, 16),
      layers.LSTM(32, return_sequences=True),
      layers.Dense(_LETTERS),
    ],
    (text, text),
  )


def _learning(process: Any, clients: Sequence[Any]) -> Program:
  def step(state: Any, cohort: Sequence[Any]) -> tuple[Any, Any]:
    output = process.next(state, cohort)
    return output.state, output.metrics

  return Program(process.initialize, step, clients)


def _computation(computation: Any, clients: Sequence[Any]) -> Program:
  return Program(None, lambda state, cohort: (state, computation(cohort)), clients)


def _sgd() -> tff.learning.optimizers.Optimizer:
  return tff.learning.optimizers.build_sgdm(0.1)


def _secure() -> Program:
  aggregator = tff.aggregators.SecureSumFactory(upper_bound_threshold=10.0)
  build = tff.learning.algorithms.build_unweighted_fed_avg
  return _learning(build(_model, _sgd(), model_aggregator=aggregator), _examples())


def _composed() -> Program:
  process = tff.learning.algorithms.build_weighted_fed_avg(_model, _sgd())
  element = tff.types.tensorflow_to_type(_examples(0)[0].element_spec)

  @tff.tensorflow.computation(tff.SequenceType(element))
  def preprocess(data_set: tf.data.Dataset) -> tf.data.Dataset:
    return data_set.map(lambda x, y: (2.0 * x, y)).batch(10)

  composed = tff.simulation.compose_dataset_computation_with_learning_process(preprocess, process)
  return _learning(composed, _examples(0))


def _heavy_hitters(clients: Sequence[tf.data.Dataset]) -> Program:
  compute = tff.analytics.heavy_hitters.iblt.build_iblt_computation(
    capacity=100, string_max_bytes=10
  )

  def count(cohort: Sequence[Any]) -> list[Any]:
    result = compute(cohort)  # In any order, and with the time.
    return sorted(zip(result.heavy_hitters, result.heavy_hitters_counts))

  return _computation(count, clients)


def _k_means() -> Program:
  rng = np.random.default_rng(0)
  points = rng.normal(size=(_ARGS.clients, 30, _FEATURES)).astype(np.float32)
  process = tff.learning.algorithms.build_fed_kmeans(_CLASSES, (_FEATURES,), random_seed=(1, 2))
  return _learning(process, [tf.data.Dataset.from_tensor_slices(own) for own in points])


def _means() -> Program:
  values = tff.FederatedType(tff.TensorType(np.float32, [None]), tff.CLIENTS)

  @tff.tensorflow.computation(tff.TensorType(np.float32, [None]))
  def double(value: tf.Tensor) -> tf.Tensor:
    return tf.concat([value, value], 0)

  @tff.tensorflow.computation(tff.TensorType(np.float32, [None]))
  def mean(value: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(value)

  @tff.federated_computation(values)
  def mean_of_means(held: Any) -> Any:
    return tff.federated_mean(tff.federated_map(mean, tff.federated_map(double, held)))

  rng = np.random.default_rng(0)
  return _computation(
    mean_of_means,
    [rng.normal(size=n).astype(np.float32) for n in rng.integers(1, 9, _ARGS.clients)],
  )


_PROGRAMS: dict[str, Callable[[], Program]] = {
  "fed_avg": lambda: _learning(
    tff.learning.algorithms.build_weighted_fed_avg(_model, _sgd()), _examples()
  ),
  "fed_prox": lambda: _learning(
    tff.learning.algorithms.build_weighted_fed_prox(_model, 0.1, _sgd()), _examples()
  ),
  "fed_sgd": lambda: _learning(tff.learning.algorithms.build_fed_sgd(_model), _examples()),
  "mime_lite": lambda: _learning(
    tff.learning.algorithms.build_weighted_mime_lite(_model, _sgd()), _examples()
  ),
  "fed_eval": lambda: _learning(tff.learning.algorithms.build_fed_eval(_model), _examples()),
  "secure fed_avg": _secure,
  "composed fed_avg": _composed,
  "LSTM fed_avg": lambda: _learning(
    tff.learning.algorithms.build_weighted_fed_avg(_lstm, _sgd()), _texts()
  ),
  "k-means": _k_means,
  "heavy hitters": lambda: _heavy_hitters(_words()),
  "100 words": lambda: _heavy_hitters(_words(100, 1)),
  "ragged means": _means,
  "simulations": lambda: _shuffled("simulations"),
  "client_data": lambda: _shuffled("client_data"),
  "accelerators": lambda: _shuffled("accelerators"),
  "seeded": lambda: _shuffled("seeded"),
  "names": _names,
}


def differ(ours: Any, theirs: Any) -> bool:
  """Tells whether two results are further apart than sums in another order are."""
  pairs = zip(tf.nest.flatten(ours), tf.nest.flatten(theirs), strict=True)
  for our_value, their_value in pairs:
    own, other = np.asarray(our_value), np.asarray(their_value)
    if other.dtype.kind == "f":
      if not np.allclose(own, other, rtol=_TOLERANCE, atol=_TOLERANCE):
        return True
    elif own.tolist() != other.tolist():
      return True
  return False


def _seconds() -> float:
  return child.cpu_seconds() if _ARGS.cpu else time.perf_counter()


def _race(name: str, contexts: dict[str, tff.framework.SyncContext]) -> str:
  program = _PROGRAMS[name]()
  seconds: dict[str, list[float]] = {context: [] for context in contexts}
  tff.framework.set_default_context(contexts["TFF"])
  state = None if program.start is None else program.start()
  is_void = False
  for round_num in range(_ARGS.rounds + 1):
    results = {}
    order = list(contexts) if round_num % 2 else list(contexts)[::-1]
    for context in order:
      tff.framework.set_default_context(contexts[context])
      start = _seconds()
      results[context] = program.step(state, program.clients)
      seconds[context].append(_seconds() - start)
    is_void |= not program.draws and differ(results["here"], results["TFF"])
    state = results["TFF"][0]
  first = [of_context[0] for of_context in seconds.values()]
  medians = [statistics.median(of_context[1:]) for of_context in seconds.values()]
  ratio = "void" if is_void else f"{medians[0] / medians[1]:.1f}"
  return (
    f"{name:18s} {medians[0]:9.3f} {medians[1]:9.3f} {ratio:>7s} {first[0]:9.2f} {first[1]:9.2f}"
  )


def main(args: argparse.Namespace) -> None:
  vars(_ARGS).update(vars(args))
  unknown = sorted(set(_ARGS.rows) - set(_PROGRAMS))
  if unknown:
    raise ValueError(f"Found no row {unknown[0]!r}; use {', '.join(_PROGRAMS)}.")
  theirs = tff.backends.test.create_sync_test_cpp_execution_context()
  tsq.set_simulation_context()
  contexts = {"TFF": theirs, "here": tff.framework.get_context_stack().current}
  tff.framework.set_default_context(theirs)
  tff.tensorflow.computation(lambda: 1)()  # Starts the worker.
  print(f"{_ARGS.clients} clients, medians of {_ARGS.rounds} rounds, {'CPU ' * _ARGS.cpu}seconds")
  print(f"{'program':18s} {'TFF':>9s} {'here':>9s} {'times':>7s} {'first TFF':>9s} {'here':>9s}")
  for name in _ARGS.rows or _PROGRAMS:
    print(_race(name, contexts), flush=True)


if __name__ == "__main__":
  sys.exit(cli.run(sys.modules[__name__]))
