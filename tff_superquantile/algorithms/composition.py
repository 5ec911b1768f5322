"""Puts client work, distributor, aggregator and finalizer together into a learning process."""

import collections
from typing import Any, Callable, Optional, Union

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from privacy import checks
from tff_superquantile.algorithms import mean
from tff_superquantile.client_work import local_model
from tff_superquantile.client_work import optimizers
from tff_superquantile.client_work import process

AggregationFactory = Union[
  tff.aggregators.WeightedAggregationFactory, tff.aggregators.UnweightedAggregationFactory
]


def build_learning_process(
  model_fn: local_model.Model,
  client_work: process.AnyClientWork,
  server_optimizer_fn: Optional[optimizers.OptimizerOrKerasFn] = None,
  model_distributor: Optional[tff.learning.templates.DistributionProcess] = None,
  model_aggregator: Optional[AggregationFactory] = None,
  divisor_fn: Optional[Callable[[Any], tf.Tensor]] = None,
) -> tff.learning.templates.LearningProcess:
  """Composes `client_work` with the parts that all algorithms share.

  Args:
    model_fn: The model, whose weights the process holds.
    client_work: What clients do.
    server_optimizer_fn: Applies the aggregated update; None for SGD with learning rate 1, which
      replaces the model by the average.
    model_distributor: Sends the weights; None to broadcast them.
    model_aggregator: Aggregates the updates; None for the weighted mean, which leaves the model as
      it is when all weights are zero. An unweighted factory ignores the weights, so that clients
      below the threshold enter with zero updates.
    divisor_fn: A TensorFlow function from the measurements of `client_work` to the number by which
      the aggregated update is divided, for aggregators that return a sum; None not to divide.

  Returns:
    A `tff.learning.templates.LearningProcess`. Its clients hold data sets, or what the
    `examples_fn` of `client_work` takes.

  Raises:
    TypeError: If the parts do not fit together.
  """
  initial_weights_fn = local_model.build_initial_weights_fn(model_fn)
  weights_type = initial_weights_fn.type_signature.result
  if server_optimizer_fn is None:
    server_optimizer_fn = tff.learning.optimizers.build_sgdm(1.0)
  if model_distributor is None:
    model_distributor = tff.learning.templates.build_broadcast_process(weights_type)
  checks.of_type(
    "model_distributor",
    model_distributor,
    tff.learning.templates.DistributionProcess,
    "a tff.learning.templates.DistributionProcess or None",
  )
  if model_aggregator is None:
    model_aggregator = mean.MeanFactory()
  if isinstance(model_aggregator, tff.aggregators.UnweightedAggregationFactory):
    model_aggregator = tff.aggregators.as_weighted_aggregator(model_aggregator)
  checks.of_type(
    "model_aggregator",
    model_aggregator,
    tff.aggregators.WeightedAggregationFactory,
    "a tff.aggregators.WeightedAggregationFactory, an UnweightedAggregationFactory or None",
  )
  reported_type = client_work.next.type_signature.result.result.member.update
  aggregator = model_aggregator.create(reported_type, tff.TensorType(np.float32))
  finalizer = tff.learning.templates.build_apply_optimizer_finalizer(
    optimizers.as_tff_optimizer(server_optimizer_fn, "server_optimizer_fn"), weights_type
  )
  return _compose(
    initial_weights_fn, model_distributor, client_work, aggregator, finalizer, divisor_fn
  )


def _build_divide(
  aggregator: tff.templates.AggregationProcess,
  client_work: tff.templates.MeasuredProcess,
  divisor_fn: Callable[[Any], tf.Tensor],
) -> tff.Computation:
  """Builds (update, measurements of the client work) -> the update divided by the divisor."""

  @tff.tensorflow.computation(
    aggregator.next.type_signature.result.result.member,
    client_work.next.type_signature.result.measurements.member,
  )
  def divide(update, measurements):
    divisor = divisor_fn(measurements)
    return tf.nest.map_structure(lambda u: u / tf.cast(divisor, u.dtype), update)

  return divide


def _compose(
  initial_weights_fn: tff.Computation,
  distributor: tff.learning.templates.DistributionProcess,
  client_work: process.AnyClientWork,
  aggregator: tff.templates.AggregationProcess,
  finalizer: tff.learning.templates.FinalizerProcess,
  divisor_fn: Optional[Callable[[Any], tf.Tensor]],
) -> tff.learning.templates.LearningProcess:
  """Composes any client work as `tff.learning.templates.compose_learning_process` does TFF's.

  TFF's composer refuses clients that hold no data sets, and leaves no place for a division by what
  the client work has measured. The state, the metrics and their names are the same.
  """
  state_class = tff.learning.templates.LearningAlgorithmState

  @tff.federated_computation
  def initialize():
    return tff.federated_zip(
      state_class(
        tff.federated_eval(initial_weights_fn, tff.SERVER),
        distributor.initialize(),
        client_work.initialize(),
        aggregator.initialize(),
        finalizer.initialize(),
      )
    )

  divide = None if divisor_fn is None else _build_divide(aggregator, client_work, divisor_fn)
  server_state_type = initialize.type_signature.result
  clients_type = client_work.next.type_signature.parameter[2]

  @tff.federated_computation(server_state_type, clients_type)
  def next_fn(state, clients):
    distributed = distributor.next(state.distributor, state.global_model_weights)
    worked = client_work.next(state.client_work, distributed.result, clients)
    aggregated = aggregator.next(
      state.aggregator, worked.result.update, worked.result.update_weight
    )
    update = aggregated.result
    if divide is not None:
      update = tff.federated_map(divide, (update, worked.measurements))
    finalized = finalizer.next(state.finalizer, state.global_model_weights, update)
    new_state = state_class(
      finalized.result, distributed.state, worked.state, aggregated.state, finalized.state
    )
    metrics = collections.OrderedDict(
      distributor=distributed.measurements,
      client_work=worked.measurements,
      aggregator=aggregated.measurements,
      finalizer=finalized.measurements,
    )
    return tff.learning.templates.LearningProcessOutput(
      tff.federated_zip(new_state), tff.federated_zip(metrics)
    )

  state_type = server_state_type.member

  @tff.tensorflow.computation(state_type)
  def get_model_weights(state):
    return state.global_model_weights

  @tff.tensorflow.computation(state_type, state_type.global_model_weights)
  def set_model_weights(state, weights):
    return state_class(
      weights, state.distributor, state.client_work, state.aggregator, state.finalizer
    )

  @tff.tensorflow.computation(state_type)
  def get_hparams(state):
    return collections.OrderedDict(
      client_work=client_work.get_hparams(state.client_work),
      finalizer=finalizer.get_hparams(state.finalizer),
    )

  @tff.tensorflow.computation(state_type, get_hparams.type_signature.result)
  def set_hparams(state, hparams):
    return state_class(
      state.global_model_weights,
      state.distributor,
      client_work.set_hparams(state.client_work, hparams["client_work"]),
      state.aggregator,
      finalizer.set_hparams(state.finalizer, hparams["finalizer"]),
    )

  return tff.learning.templates.LearningProcess(
    initialize,
    next_fn,
    get_model_weights,
    set_model_weights,
    get_hparams_fn=get_hparams,
    set_hparams_fn=set_hparams,
  )
