"""TFF's own `tff.learning.algorithms.build_weighted_fed_avg`, in three ways.

"client_ids" is the fastest way that is known to us: a functional model, ids of clients in, each
client's data set built by a computation on the client, as many clients at once as there are cores.
"tutorial" is the way of TFF's tutorials: a Keras model, lists of `tf.data.Dataset`, and the context
that TFF sets when it is imported. "data_sets" is the same on this project's engine, which reads the
data sets of a round, new ones each time, while the clock runs.
"""

from collections.abc import Mapping
import types
from typing import Any

import numpy as np

from benchmarks import contender
from benchmarks import workloads
from benchmarks.contenders import ours


def _weighting(workload: workloads.Workload) -> Any:
  import tensorflow_federated as tff

  return tff.learning.ClientWeighting[workload.settings["client_weighting"].upper()]


class _Stock(contender.Contender):
  """Holds the parts that the two ways share."""

  def __init__(self, workload: workloads.Workload):
    self._workload = workload
    self._process: Any = None
    self._state: Any = None
    self._cohort: list[Any] = []

  def run_round(self, round_num):
    del round_num
    self._state = self._process.next(self._state, self._cohort).state

  def weights(self):
    return [np.asarray(w) for w in self._process.get_model_weights(self._state).trainable]


class _ClientIds(_Stock):
  """Runs TFF at its best."""

  def __init__(self, workload):
    import tensorflow as tf
    import tensorflow_federated as tff

    import tasks
    from tff_superquantile.simulation import client_files

    super().__init__(workload)
    ours.set_context("native")
    settings = workload.settings
    self._files = client_files.open_client_files(settings["client_files"])
    self._files = self._files.subset(settings["client_ids"])
    stock = tff.learning.algorithms.build_weighted_fed_avg(
      tasks.get_task(settings["task"]).build_model_for(self._files, 0),
      tff.learning.optimizers.build_sgdm(settings["client_learning_rate"]),
      client_weighting=_weighting(workload),
    )
    batch_size = settings["batch_size"]
    read = client_files.build_examples_fn(self._files, shuffle=batch_size > 0)

    @tff.tensorflow.computation(client_files.HANDLE_TYPE)
    def read_batches(handle):
      if not batch_size:
        return tf.data.Dataset.from_tensors(read(handle))
      return tf.data.Dataset.from_tensor_slices(read(handle)).batch(batch_size)

    self._process = tff.simulation.compose_dataset_computation_with_learning_process(
      read_batches, stock
    )
    self._state = self._process.initialize()

  def prepare(self, round_num):
    self._cohort = ours.handles(self._files, self._workload, round_num)


def _keras_layers(workload: workloads.Workload) -> list[Any]:
  """Returns the layers of the task's model, with its weights in the same order."""
  import tensorflow as tf

  layers, outputs = tf.keras.layers, workload.settings["num_outputs"]
  if workload.settings["model"] == "lstm":
    return [layers.LSTM(workload.initial_weights[1].shape[0]), layers.Dense(outputs)]
  if workload.settings["model"] == "linear":
    return [layers.Flatten(), layers.Dense(outputs, use_bias=len(workload.initial_weights) == 2)]
  stack = [layers.Reshape((*workload.x.shape[1:], 1))]
  for kernel in (workload.initial_weights[0], workload.initial_weights[2]):
    stack.append(layers.Conv2D(kernel.shape[3], kernel.shape[:2], activation="relu"))
    stack.append(layers.MaxPooling2D())
  return [*stack, layers.Flatten(), layers.Dense(outputs)]


class _Tutorial(_Stock):
  """Runs TFF as its tutorials do, in TFF's own context or in this process."""

  def __init__(self, workload, in_process=False):
    import tensorflow as tf
    import tensorflow_federated as tff
    from tensorflow_federated.python.core.impl.executor_stacks import executor_factory

    from tff_superquantile.engine.processes import dependent_process

    super().__init__(workload)
    if in_process:
      ours.set_context("in_process")
    else:
      # TFF's worker would outlive this process; in all else it is TFF's own context.
      executor_factory.subprocess = types.SimpleNamespace(Popen=dependent_process.DependentProcess)
    settings = workload.settings
    is_binary = settings["num_outputs"] == 1
    input_spec = (
      tf.TensorSpec([None, *workload.x.shape[1:]], tf.float32),
      tf.TensorSpec([None, 1] if is_binary else [None], tf.int32),
    )

    def model_fn():
      if is_binary:
        loss = tf.keras.losses.BinaryCrossentropy(from_logits=True)
        metrics = [tf.keras.metrics.BinaryAccuracy(threshold=0.0)]
      else:
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        metrics = [tf.keras.metrics.SparseCategoricalAccuracy()]
      return tff.learning.models.from_keras_model(
        tf.keras.Sequential(
          [tf.keras.layers.InputLayer(workload.x.shape[1:]), *_keras_layers(workload)]
        ),
        loss=loss,
        input_spec=input_spec,
        metrics=metrics,
      )

    self._process = tff.learning.algorithms.build_weighted_fed_avg(
      model_fn,
      client_optimizer_fn=tff.learning.optimizers.build_sgdm(settings["client_learning_rate"]),
      server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
      client_weighting=_weighting(workload),
    )
    self._is_binary = is_binary
    weights = tff.learning.models.ModelWeights(list(workload.initial_weights), [])
    self._state = self._process.set_model_weights(self._process.initialize(), weights)

  def prepare(self, round_num):
    import tensorflow as tf

    self._cohort = []
    for x, y in self._workload.visited(round_num):
      y = y[:, np.newaxis] if self._is_binary else y
      dataset = tf.data.Dataset.from_tensor_slices((x, y))
      self._cohort.append(dataset.batch(self._workload.batch_size(len(y))))


def _build(workload: workloads.Workload, options: Mapping[str, Any]) -> contender.Contender:
  if options["way"] == "client_ids":
    return _ClientIds(workload)
  return _Tutorial(workload, in_process=options["way"] == "data_sets")


if __name__ == "__main__":
  contender.serve(_build)
