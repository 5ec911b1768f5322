"""The arguments that all algorithms take, described once, and the process that is built of them."""

from typing import Any, Callable, Optional, Union

import tensorflow as tf
import tensorflow_federated as tff
from typing_extensions import TypedDict

from privacy import checks
from tff_superquantile import client_work as client_work_lib
from tff_superquantile import threshold as threshold_lib
from tff_superquantile.algorithms import composition
from tff_superquantile.client_work import local_model
from tff_superquantile.client_work import optimizers


class Options(TypedDict, total=False):
  """The keyword arguments of every `build_*` function of this package.

  Three arguments have a place of their own in all of them:

  - `model_fn`: A no-argument function that returns a `tff.learning.models.VariableModel`, or a
    `tff.learning.models.FunctionalModel`.
  - `client_optimizer_fn`: A `tff.learning.optimizers.Optimizer`, or a no-argument function that
    returns a Keras SGD, Adam or Adagrad.
  - `server_optimizer_fn`: The same for the server; None for SGD with learning rate 1, so that
    the average replaces the model.

  All raise a TypeError if an argument is unknown or not of its documented type, and a ValueError if
  a number is out of its range.

  Attributes:
    client_weighting: The weight of a client in the average and in the quantile, a
      `tff.learning.ClientWeighting` or the name of one; by default NUM_EXAMPLES. In a private
      quantile, each client counts once.
    model_distributor: A `tff.learning.templates.DistributionProcess`; by default a broadcast.
    model_aggregator: A factory of `tff.aggregators`; by default the weighted mean of the clients
      that trained. An unweighted factory averages over the whole cohort: clients that did not train
      count as zero.
    metrics_aggregator: As in TFF; by default `tff.learning.metrics.sum_then_finalize`. Beside
      one the counts of the cohort are a secure sum.
    loop_implementation: A `tff.learning.LoopImplementation`, taken for the sake of TFF's callers.
      Both do the same here, as the local loop goes over tensors and iterates no data set.
    client_learning_rate_fn: The learning rate of a round, a TensorFlow function of the round's
      number (int32 [], from 0); by default the optimizer's own.
    local_epochs: Passes over the local data set in a round; by default 1.
    local_batch_size: Examples in a local step, 0 for all of them; by default the data set's own
      batches.
    l2: The coefficient lambda of the paper's lambda / 2 |w|^2, added to the local objective (not to
      the loss that the threshold sees, which it would shift equally for all); by default 0.
    examples_fn: A `tf.function` with an input_signature of one argument, from what a client holds,
      such as its id, to all its examples in one batch (for example
      `simulation.client_files.build_examples_fn`). Then `next` takes that instead of data sets, and
      a round is faster than with
      `tff.simulation.compose_dataset_computation_with_learning_process`, because the examples are
      read in the graph that uses them, and only by the clients that train.
    seed_fn: A TensorFlow function from what a client holds to the seed of its noise in the round,
      an integer tensor [2]. Without it each client draws its noise from its own source of entropy,
      as it must where clients are real, and a run can't be repeated exactly.
    index_fn: A TensorFlow function from what a client holds to its index among all clients, an
      integer tensor [] from 0, for algorithms whose server keeps something for each client.
  """

  client_weighting: Union[str, tff.learning.ClientWeighting]
  model_distributor: Optional[tff.learning.templates.DistributionProcess]
  model_aggregator: Optional[composition.AggregationFactory]
  metrics_aggregator: Optional[Callable[[Any], tff.Computation]]
  loop_implementation: tff.learning.LoopImplementation
  client_learning_rate_fn: Optional[client_work_lib.LearningRateFn]
  local_epochs: int
  local_batch_size: Optional[int]
  l2: float
  examples_fn: Optional[tf.types.experimental.GenericFunction]
  seed_fn: Optional[Callable[[Any], tf.Tensor]]
  index_fn: Optional[Callable[[Any], tf.Tensor]]


def build(
  model_fn: local_model.Model,
  client_optimizer_fn: optimizers.OptimizerOrKerasFn,
  server_optimizer_fn: Optional[optimizers.OptimizerOrKerasFn],
  options: Options,
  *,
  threshold: Optional[threshold_lib.ThresholdProcess] = None,
  hooks: Optional[client_work_lib.ClientHooks] = None,
  divisor_fn: Optional[Callable[[Any], tf.Tensor]] = None,
  measure_cohort: bool = True,
) -> tff.learning.templates.LearningProcess:
  """Builds the learning process of an algorithm: its client work, composed with the shared parts.

  Args:
    model_fn: See `Options`.
    client_optimizer_fn: See `Options`.
    server_optimizer_fn: See `Options`.
    options: What the caller of the algorithm gave.
    threshold: Turns losses into the clients' shares; None to let everybody train.
    hooks: What the algorithm changes in a client's round; None for nothing.
    divisor_fn: As in `composition.build_learning_process`.
    measure_cohort: As in `client_work.build_client_work`.

  Returns:
    A `tff.learning.templates.LearningProcess`.

  Raises:
    TypeError: If an option is unknown or not of its documented type.
    ValueError: If a number is out of its range.
  """
  unknown = sorted(set(options) - set(Options.__annotations__))
  if unknown:
    raise TypeError(
      f"Found the unknown keyword argument {unknown[0]}; expected some of"
      f" {', '.join(Options.__annotations__)}."
    )
  own: dict[str, Any] = dict(options)
  shared = {name: own.pop(name, None) for name in ("model_distributor", "model_aggregator")}
  checks.of_type(
    "loop_implementation",
    own.pop("loop_implementation", tff.learning.LoopImplementation.DATASET_REDUCE),
    tff.learning.LoopImplementation,
    "a tff.learning.LoopImplementation",
  )
  local = client_work_lib.LocalTraining(
    model_fn, client_work_lib.as_tff_optimizer(client_optimizer_fn, "client_optimizer_fn"), **own
  )
  client_work = client_work_lib.build_client_work(
    local, threshold, hooks, measure_cohort=measure_cohort
  )
  return composition.build_learning_process(
    model_fn, client_work, server_optimizer_fn, divisor_fn=divisor_fn, **shared
  )
