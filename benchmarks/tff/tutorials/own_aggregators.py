"""custom_aggregators: aggregation processes, each called once or twice."""

import collections
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

Cell = Callable[[], Any]


def build(num_rounds: int) -> list[Cell]:
  """Returns the cells."""
  float_type = tff.TensorType(np.float32)

  class Scaled(tff.aggregators.UnweightedAggregationFactory):
    """Sums values that clients scale and the server scales back; by an inner factory."""

    def __init__(self, inner: Any, has_state: bool):
      self._inner, self._has_state = inner, has_state

    def create(self, value_type: Any) -> tff.templates.AggregationProcess:
      inner = self._inner.create(value_type)
      has_state = self._has_state

      @tff.tensorflow.computation(value_type, np.float32)
      def scale(value: Any, factor: tf.Tensor) -> Any:
        return tf.nest.map_structure(lambda x: x * factor, value)

      @tff.tensorflow.computation(value_type, np.float32)
      def unscale(value: Any, factor: tf.Tensor) -> Any:
        return tf.nest.map_structure(lambda x: x / factor, value)

      @tff.tensorflow.computation(np.float32)
      def next_factor(factor: tf.Tensor) -> tf.Tensor:
        return factor + 1.0 if has_state else factor

      @tff.federated_computation
      def initialize() -> Any:
        own = tff.federated_value(2.0, tff.SERVER)
        return tff.federated_zip((own, inner.initialize()))

      @tff.federated_computation(
        initialize.type_signature.result, tff.FederatedType(value_type, tff.CLIENTS)
      )
      def next_fn(state: Any, value: Any) -> Any:
        factor, inner_state = state
        scaled = tff.federated_map(scale, (value, tff.federated_broadcast(factor)))
        output = inner.next(inner_state, scaled)
        summed = tff.federated_map(unscale, (output.result, factor))
        after = tff.federated_zip((tff.federated_map(next_factor, factor), output.state))
        measured = tff.federated_zip(
          collections.OrderedDict(scaled=output.result, inner=output.measurements)
        )
        return tff.templates.MeasuredProcessOutput(after, summed, measured)

      return tff.templates.AggregationProcess(initialize, next_fn)

  factories = tff.aggregators
  cells: list[Cell] = []
  for inner, has_state in (
    (factories.SumFactory(), False),
    (factories.SumFactory(), True),
    (factories.clipping_factory(3.0, factories.SumFactory()), True),
    (factories.SecureSumFactory(10.0, -10.0), False),
  ):
    process = Scaled(inner, has_state).create(float_type)
    state: list[Any] = []

    def start(process: Any = process, state: list[Any] = state) -> Any:
      state.append(process.initialize())
      return state[-1]

    def step(process: Any = process, state: list[Any] = state) -> Any:
      output = process.next(state[-1], [1.0, 2.0, 5.0])
      state.append(output.state)
      return output.result, output.measurements

    cells += [start, *[step] * max(1, num_rounds // 4)]
  return cells
