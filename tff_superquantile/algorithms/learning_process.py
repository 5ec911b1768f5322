"""Builds the learning process of every algorithm from its options and the parts that it changes."""

import collections
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from typing_extensions import TypedDict

from privacy import checks
from tff_superquantile import client_work
from tff_superquantile.algorithms.private import private as private_lib
from tff_superquantile.client_work import local_model
from tff_superquantile.client_work import optimizers
from tff_superquantile.client_work import process
from tff_superquantile.threshold import ThresholdProcess

_AggregationFactory: TypeAlias = (
  tff.aggregators.WeightedAggregationFactory | tff.aggregators.UnweightedAggregationFactory
)
_DivisorFn = Callable[[Any], tf.Tensor]


class Options(TypedDict, total=False):
  """Lists the keyword arguments of every `build_*` function of this package.

  Three arguments are not among them, as every function names them itself:

  - `model_fn`: A no-argument function that returns a `tff.learning.models.VariableModel`, or a
    `tff.learning.models.FunctionalModel`.
  - `client_optimizer_fn`: A `tff.learning.optimizers.Optimizer`, or a no-argument function that
    returns a Keras SGD, Adam or Adagrad.
  - `server_optimizer_fn`: The same for the server; None for SGD with learning rate 1, so that
    the average replaces the model.

  All functions raise a TypeError if an argument is unknown or not of its documented type, and a
  ValueError if a number is out of its range.

  Attributes:
    client_weighting: The weight of a client in the average and in the quantile, a
      `tff.learning.ClientWeighting` or the name of one; by default NUM_EXAMPLES. In a private
      quantile, each client counts once.
    model_distributor: A `tff.learning.templates.DistributionProcess`; by default a broadcast.
    model_aggregator: A factory of `tff.aggregators`; by default the weighted mean of the clients
      that trained, which leaves the model as it is if none did. An unweighted factory averages over
      the whole cohort: clients that did not train count as zero.
    metrics_aggregator: As in TFF, by default `sum_then_finalize`; a given one makes the counts of
      the cohort a secure sum.
    loop_implementation: A `tff.learning.LoopImplementation`, which changes nothing: the local loop
      goes over tensors.
    client_learning_rate_fn: The rate of a round, int32 [] from 0; by default the optimizer's own.
    local_epochs: Passes over the local data set in a round; by default 1.
    local_batch_size: Examples in a local step, 0 for all of them; by default the data set's own
      batches.
    l2: The coefficient lambda of the paper's lambda / 2 |w|^2, added to the local objective (not to
      the loss that the threshold sees, which it would shift equally for all); by default 0.
    examples_fn: A `tf.function` with an input_signature of one argument, from the value that a
      client holds, such as its id, to all its examples in one batch (for example
      `simulation.client_files.build_examples_fn`). Then `next` takes these values instead of data
      sets, and a round is faster than with
      `tff.simulation.compose_dataset_computation_with_learning_process`, because the examples are
      read in the graph that uses them, and only by the clients that train.
    seed_fn: A TensorFlow function from the value that a client holds to the seed of its noise in
      the round, an integer tensor [2]; None for its own source of entropy, as of real clients.
    index_fn: A TensorFlow function from the value that a client holds to its index among all, an
      integer tensor [] from 0, for algorithms whose server keeps a number for each client.
    reference_loss_fn: A TensorFlow function from what a client holds to the loss F_i*, float32 [],
      of its own model: F_i(w) - F_i* takes the place of each loss.
    private: What makes the process differentially private, a `Private`, which states the guarantee
      and says which algorithms can be; it then chooses `client_weighting`, `model_aggregator` and
      `metrics_aggregator`.
  """

  client_weighting: str | tff.learning.ClientWeighting
  model_distributor: tff.learning.templates.DistributionProcess | None
  model_aggregator: _AggregationFactory | None
  metrics_aggregator: Callable[[Any], tff.Computation] | None
  loop_implementation: tff.learning.LoopImplementation
  client_learning_rate_fn: client_work.LearningRateFn | None
  local_epochs: int
  local_batch_size: int | None
  l2: float
  examples_fn: tf.types.experimental.GenericFunction | None
  seed_fn: Callable[[Any], tf.Tensor] | None
  index_fn: Callable[[Any], tf.Tensor] | None
  reference_loss_fn: Callable[[Any], tf.Tensor] | None
  private: private_lib.Private | None


class MeanFactory(tff.aggregators.WeightedAggregationFactory):
  """Computes the weighted mean as `tff.aggregators.MeanFactory` does, in half its time.

  TFF's factory sums weighted values and weights apart, so that other factories fit inside. Here one
  sum carries both. If all weights are zero, the mean is zero: the tail is empty, and the model
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
        state, tff.federated_map(divide, sums), tff.federated_value((), tff.SERVER)
      )

    return tff.templates.AggregationProcess(initialize, next_fn)


def build(
  model_fn: local_model.Model,
  client_optimizer_fn: optimizers.OptimizerOrKerasFn,
  server_optimizer_fn: optimizers.OptimizerOrKerasFn | None,
  options: Options,
  *,
  threshold: ThresholdProcess | None = None,
  hooks: client_work.ClientHooks | None = None,
  divisor_fn: _DivisorFn | None = None,
  theta: float = 1.0,
) -> tff.learning.templates.LearningProcess:
  """Builds the learning process of an algorithm, whose `options` are the caller's.

  `threshold` turns losses into the clients' shares; with None all clients train. `hooks` are the
  algorithm's changes to a client's round. `divisor_fn` is a TensorFlow function from the
  measurements of the client work to the number by which the aggregated update is divided, for
  aggregators that return a sum; None not to divide. `theta` is about the fraction of clients that
  train. Clients hold data sets, or the values that the option `examples_fn` takes.
  """
  unknown = sorted(set(options) - set(Options.__annotations__))
  if unknown:
    raise TypeError(
      f"Found the unknown keyword argument {unknown[0]}; expected some of"
      f" {', '.join(Options.__annotations__)}."
    )
  own: dict[str, Any] = dict(options)
  private = own.pop("private", None)
  if private is not None:
    hooks, own, divisor_fn = private_lib.build_round(
      private, model_fn, own, threshold, hooks, theta
    )
  distributor, factory = own.pop("model_distributor", None), own.pop("model_aggregator", None)
  checks.of_type(
    "loop_implementation",
    own.pop("loop_implementation", tff.learning.LoopImplementation.DATASET_REDUCE),
    tff.learning.LoopImplementation,
    "a tff.learning.LoopImplementation",
  )
  local = client_work.LocalTraining(
    model_fn, client_work.as_tff_optimizer(client_optimizer_fn, "client_optimizer_fn"), **own
  )
  work = client_work.build_client_work(local, threshold, hooks, measure_cohort=private is None)
  initial_weights_fn = local_model.build_initial_weights_fn(model_fn)
  weights_type = initial_weights_fn.type_signature.result
  if distributor is None:
    distributor = tff.learning.templates.build_broadcast_process(weights_type)
  checks.of_type(
    "model_distributor",
    distributor,
    tff.learning.templates.DistributionProcess,
    "a tff.learning.templates.DistributionProcess or None",
  )
  reported_type = work.next.type_signature.result.result.member.update
  aggregator = _weighted(factory).create(reported_type, tff.TensorType(np.float32))
  if server_optimizer_fn is None:
    server_optimizer_fn = tff.learning.optimizers.build_sgdm(1.0)
  server_optimizer = optimizers.as_tff_optimizer(server_optimizer_fn, "server_optimizer_fn")
  finalizer = tff.learning.templates.build_apply_optimizer_finalizer(
    optimizers.without_autograph(server_optimizer),
    weights_type,
    tf.autograph.experimental.do_not_convert(tff.learning.templates.reject_non_finite_update),
  )
  return _compose(initial_weights_fn, distributor, work, aggregator, finalizer, divisor_fn)


def _weighted(factory: Any) -> tff.aggregators.WeightedAggregationFactory:
  """Returns a weighted factory for the option `model_aggregator`, by default the mean's."""
  if isinstance(factory, tff.aggregators.UnweightedAggregationFactory):
    return tff.aggregators.as_weighted_aggregator(factory)
  factory = MeanFactory() if factory is None else factory
  checks.of_type(
    "model_aggregator",
    factory,
    tff.aggregators.WeightedAggregationFactory,
    "a tff.aggregators.WeightedAggregationFactory, an UnweightedAggregationFactory or None",
  )
  return factory


def _compose(
  initial_weights_fn: tff.Computation,
  distributor: tff.learning.templates.DistributionProcess,
  work: process.AnyClientWork,
  aggregator: tff.templates.AggregationProcess,
  finalizer: tff.learning.templates.FinalizerProcess,
  divisor_fn: _DivisorFn | None,
) -> tff.learning.templates.LearningProcess:
  """Composes any client work as `tff.learning.templates.compose_learning_process` does TFF's.

  TFF's composer refuses clients that hold no data sets, and leaves no place for a division by a
  measurement of the client work. The state, the metrics and their names are the same.
  """
  state_class = tff.learning.templates.LearningAlgorithmState

  @tff.federated_computation
  def initialize():
    return tff.federated_zip(
      state_class(
        tff.federated_eval(initial_weights_fn, tff.SERVER),
        distributor.initialize(),
        work.initialize(),
        aggregator.initialize(),
        finalizer.initialize(),
      )
    )

  if divisor_fn is not None:

    @tff.tensorflow.computation(
      aggregator.next.type_signature.result.result.member,
      work.next.type_signature.result.measurements.member,
    )
    def divide(update, measurements):
      divisor = divisor_fn(measurements)
      return tf.nest.map_structure(lambda u: u / tf.cast(divisor, u.dtype), update)

  server_state_type = initialize.type_signature.result

  @tff.federated_computation(server_state_type, work.next.type_signature.parameter[2])
  def next_fn(state, clients):
    distributed = distributor.next(state.distributor, state.global_model_weights)
    worked = work.next(state.client_work, distributed.result, clients)
    aggregated = aggregator.next(
      state.aggregator, worked.result.update, worked.result.update_weight
    )
    update = aggregated.result
    if divisor_fn is not None:
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

  return tff.learning.templates.LearningProcess(
    initialize, next_fn, **_build_accessors(server_state_type.member, work, finalizer)
  )


def _build_accessors(
  state_type: Any,
  work: process.AnyClientWork,
  finalizer: tff.learning.templates.FinalizerProcess,
) -> dict[str, tff.Computation]:
  """Builds what gets and sets weights and hyperparameters of a state, by TFF's names."""
  state_class = tff.learning.templates.LearningAlgorithmState

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
      client_work=work.get_hparams(state.client_work),
      finalizer=finalizer.get_hparams(state.finalizer),
    )

  @tff.tensorflow.computation(state_type, get_hparams.type_signature.result)
  def set_hparams(state, hparams):
    return state_class(
      state.global_model_weights,
      state.distributor,
      work.set_hparams(state.client_work, hparams["client_work"]),
      state.aggregator,
      finalizer.set_hparams(state.finalizer, hparams["finalizer"]),
    )

  return dict(
    get_model_weights=get_model_weights,
    set_model_weights=set_model_weights,
    get_hparams_fn=get_hparams,
    set_hparams_fn=set_hparams,
  )


def build_averaged(
  process: tff.learning.templates.LearningProcess, num_rounds: int
) -> tff.learning.templates.LearningProcess:
  """Builds iterate averaging: clients train the models of a process, and its mean is what it finds.

  With w_t the process's model after round t and K = `num_rounds`, the model is

      m_t = m_(t-1) + (w_t - m_(t-1)) / min(t, K),    m_0 = w_0,

  the mean of all models up to round K, and then one in which a model's weight falls by 1 / e in K
  rounds. Noise is less in the mean, and noise that later rounds cancel is much less. A private run
  releases its models, and so their mean costs nothing. Setting the model sets w and m.

  Args:
    process: The process whose models are averaged.
    num_rounds: K, at least 1.

  Returns:
    A `tff.learning.templates.LearningProcess` with metrics and hyperparameters of `process`.

  Raises:
    TypeError, ValueError: If `num_rounds` is no whole number, or below 1.
  """
  most = float(checks.whole("num_rounds", num_rounds, 1))
  weights_type = process.get_model_weights.type_signature.result

  @tff.tensorflow.computation(weights_type)
  def first(weights):
    return collections.OrderedDict(mean=weights, round_num=tf.constant(0))

  @tff.tensorflow.computation(first.type_signature.result, weights_type)
  def moved(own, weights):
    round_num = own["round_num"] + 1
    share = 1.0 / tf.minimum(tf.cast(round_num, tf.float32), most)
    mean = tf.nest.map_structure(
      lambda m, w: m + tf.cast(share, m.dtype) * (w - m), own["mean"], weights
    )
    return collections.OrderedDict(mean=mean, round_num=round_num)

  @tff.federated_computation
  def initialize():
    state = process.initialize()
    own = tff.federated_map(first, tff.federated_map(process.get_model_weights, state))
    return tff.federated_zip(collections.OrderedDict(process=state, own=own))

  @tff.federated_computation(
    initialize.type_signature.result, process.next.type_signature.parameter[1]
  )
  def next_fn(state, clients):
    output = process.next(state["process"], clients)
    weights = tff.federated_map(process.get_model_weights, output.state)
    own = tff.federated_map(moved, (state["own"], weights))
    return tff.learning.templates.LearningProcessOutput(
      tff.federated_zip(collections.OrderedDict(process=output.state, own=own)), output.metrics
    )

  both_type = initialize.type_signature.result.member
  get_model_weights = tff.tensorflow.computation(lambda state: state["own"]["mean"], both_type)

  @tff.tensorflow.computation(both_type, weights_type)
  def set_model_weights(state, weights):
    inner = process.set_model_weights(state["process"], weights)
    own = collections.OrderedDict(state["own"], mean=weights)
    return collections.OrderedDict(process=inner, own=own)

  get_hparams = tff.tensorflow.computation(
    lambda state: process.get_hparams(state["process"]), both_type
  )

  @tff.tensorflow.computation(both_type, get_hparams.type_signature.result)
  def set_hparams(state, hparams):
    return collections.OrderedDict(state, process=process.set_hparams(state["process"], hparams))

  return tff.learning.templates.LearningProcess(
    initialize,
    next_fn,
    get_model_weights,
    set_model_weights,
    get_hparams_fn=get_hparams,
    set_hparams_fn=set_hparams,
  )
