"""A bare loop of one `tf.function` a client, averaged in numpy: FedAvg without a runtime.

No TFF runtime, no aggregation, no metrics; the examples of a round are in memory, in order.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks import contender
from benchmarks import workloads


def _build_train(model: Any, learning_rate: float) -> Any:
  """Builds a function of weights and a client's examples to its weights after training."""
  import tensorflow as tf

  x_spec, y_spec = model.input_spec
  weights_spec = [tf.TensorSpec(w.shape, w.dtype) for w in model.initial_weights[0]]

  @tf.function(input_signature=[weights_spec, x_spec, y_spec, tf.TensorSpec([], tf.int32)])
  def train(weights, x, y, batch_size):
    def step(start, *weights):
      batch_x, batch_y = x[start : start + batch_size], y[start : start + batch_size]
      with tf.GradientTape() as tape:
        tape.watch(weights)
        output = model.predict_on_batch((weights, ()), batch_x, training=True)
        loss = model.loss(output, batch_y)
      gradients = tape.gradient(loss, weights)
      return (start + batch_size, *[w - learning_rate * g for w, g in zip(weights, gradients)])

    return tf.while_loop(
      lambda start, *_: start < tf.shape(y)[0], step, (tf.constant(0), *weights)
    )[1:]

  return train


class _Floor(contender.Contender):
  """FedAvg, one client after the other."""

  def __init__(self, workload: workloads.Workload, options: Mapping[str, Any]):
    del options
    import tasks
    from tff_superquantile.simulation import client_files

    settings = workload.settings
    files = client_files.open_client_files(settings["client_files"])
    model = tasks.get_task(settings["task"]).build_model_for(files, 0)
    self._train = _build_train(model, settings["client_learning_rate"])
    self._workload = workload
    self._weights = list(workload.initial_weights)
    self._examples: list[tuple[Any, Any]] = []

  def prepare(self, round_num):
    import tensorflow as tf

    self._examples = [
      (tf.constant(x), tf.constant(y)) for x, y in self._workload.visited(round_num)
    ]

  def run_round(self, round_num):
    import tensorflow as tf

    client_weights = self._workload.client_weights(round_num)
    initial = [tf.constant(w) for w in self._weights]
    total = [np.zeros(w.shape) for w in self._weights]
    for (x, y), client_weight in zip(self._examples, client_weights):
      trained = self._train(initial, x, y, self._workload.batch_size(len(y)))
      for one_total, one_trained in zip(total, trained):
        one_total += client_weight * one_trained.numpy()
    self._weights = [(t / client_weights.sum()).astype(np.float32) for t in total]

  def weights(self):
    return self._weights


if __name__ == "__main__":
  contender.serve(_Floor)
