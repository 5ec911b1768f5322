"""The weighted mean of the updates in one aggregation."""

import tensorflow as tf
import tensorflow_federated as tff


class MeanFactory(tff.aggregators.WeightedAggregationFactory):
  """Computes the weighted mean as `tff.aggregators.MeanFactory` does, in half its time.

  TFF's sums weighted values and weights apart, to let other factories be put inside. Here one sum
  carries both. If all weights are zero, the mean is zero: nobody was in the tail, and the model
  stays (TFF's default would divide by zero).
  """

  def create(self, value_type: tff.Type, weight_type: tff.Type) -> tff.templates.AggregationProcess:
    @tff.tensorflow.computation(value_type, weight_type)
    def weigh(value, weight):
      return tf.nest.map_structure(lambda v: v * tf.cast(weight, v.dtype), value), weight

    @tff.tensorflow.computation(weigh.type_signature.result)
    def divide(weighted_sum_and_weight):
      weighted_sum, weight = weighted_sum_and_weight[0], weighted_sum_and_weight[1]
      return tf.nest.map_structure(
        lambda v: tf.math.divide_no_nan(v, tf.cast(weight, v.dtype)), weighted_sum
      )

    @tff.federated_computation
    def initialize():
      return tff.federated_value((), tff.SERVER)

    @tff.federated_computation(
      initialize.type_signature.result,
      tff.FederatedType(value_type, tff.CLIENTS),
      tff.FederatedType(weight_type, tff.CLIENTS),
    )
    def next_fn(state, values, weights):
      sums = tff.federated_sum(tff.federated_map(weigh, (values, weights)))
      return tff.templates.MeasuredProcessOutput(
        state,
        tff.federated_map(divide, sums),
        tff.federated_value((), tff.SERVER),
      )

    return tff.templates.AggregationProcess(initialize, next_fn)
