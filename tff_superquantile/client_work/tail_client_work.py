"""The clients' part of a round: loss pass, threshold, gated local training."""

import collections
import collections.abc
import numbers
from typing import Any, Callable, Optional, Union

import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile import argument_checks
from tff_superquantile import threshold as threshold_lib
from tff_superquantile.client_work import client_computations
from tff_superquantile.client_work import local_model
from tff_superquantile.client_work import local_update

_LEARNING_RATE_KEY = tff.learning.optimizers.LEARNING_RATE_KEY

LearningRateFn = Callable[[tf.Tensor], tf.Tensor]


class ClientWork(tff.templates.MeasuredProcess):
  """A `tff.learning.templates.ClientWorkProcess` whose clients hold something else than data sets.

  TFF's class insists on sequences at the clients. This one takes whatever an
  `examples_fn` turns into a client's examples, such as a client id.
  """

  def __init__(
    self,
    initialize_fn: tff.Computation,
    next_fn: tff.Computation,
    *,
    get_hparams_fn: tff.Computation,
    set_hparams_fn: tff.Computation,
  ):
    super().__init__(initialize_fn, next_fn, next_is_multi_arg=True)
    self.get_hparams = get_hparams_fn
    self.set_hparams = set_hparams_fn


def _check_whole_number(name: str, value: int, minimum: int) -> None:
  argument_checks.check_type(name, value, numbers.Integral, "a whole number")
  if value < minimum:
    raise ValueError(f"Found {name} = {value}; expected a whole number of at least {minimum}.")


def _as_client_weighting(
  weighting: Union[str, tff.learning.ClientWeighting],
) -> tff.learning.ClientWeighting:
  """Returns the member of the enumeration itself, or the one of that name."""
  members = tff.learning.ClientWeighting.__members__
  if isinstance(weighting, str):
    weighting = members.get(weighting.upper(), weighting)
  argument_checks.check_type(
    "client_weighting",
    weighting,
    tff.learning.ClientWeighting,
    f"a tff.learning.ClientWeighting or the name of one, {' or '.join(members)}",
  )
  return weighting


def _build_reader(
  input_spec: Any, examples_fn: Optional[tf.types.experimental.GenericFunction]
) -> tuple[tff.Type, Callable[[Any], local_update.Examples]]:
  """Returns what a client holds, and how its examples are read from it."""
  if examples_fn is None:
    element_type = tff.types.tensorflow_to_type(input_spec)
    return tff.SequenceType(element_type), local_update.examples_of_dataset
  signature = getattr(examples_fn, "input_signature", None)
  if signature is None or len(signature) != 1:
    raise TypeError(
      f"Found {examples_fn!r} for examples_fn; expected a tf.function with an input_signature of"
      " one argument, which says what a client holds."
    )
  outputs = tf.nest.flatten(examples_fn.get_concrete_function().structured_outputs)
  expected = tf.nest.flatten(input_spec)
  if len(outputs) != len(expected) or not all(
    spec.is_compatible_with(output) for spec, output in zip(expected, outputs)
  ):
    raise TypeError(f"Found an examples_fn that returns {outputs}; the model takes {expected}.")

  def read(client: Any) -> local_update.Examples:
    batch = tf.nest.pack_sequence_as(input_spec, tf.nest.flatten(examples_fn(client)))
    return local_update.Examples(batch, None)

  return tff.types.tensorflow_to_type(signature[0]), read


def _build_state_computations(
  optimizer: tff.learning.optimizers.Optimizer, client_learning_rate_fn: Optional[LearningRateFn]
) -> tuple[tff.Computation, tff.Computation, tff.Computation]:
  """Returns ( -> state), (state -> hparams of the round) and (state -> next round's state)."""
  hparams = optimizer.get_hparams(optimizer.initialize(tf.TensorSpec([], tf.float32)))
  if client_learning_rate_fn is not None and _LEARNING_RATE_KEY not in hparams:
    raise TypeError("Found a client_learning_rate_fn for an optimizer without a learning rate.")

  @tff.tensorflow.computation
  def initial_state():
    return collections.OrderedDict(round_num=tf.constant(0), hparams=hparams)

  state_type = initial_state.type_signature.result

  @tff.tensorflow.computation(state_type)
  def hparams_of_round(state):
    hparams = collections.OrderedDict(state["hparams"])
    if client_learning_rate_fn is not None:
      rate = client_learning_rate_fn(state["round_num"])
      hparams[_LEARNING_RATE_KEY] = tf.cast(rate, hparams[_LEARNING_RATE_KEY].dtype)
    return hparams

  @tff.tensorflow.computation(state_type)
  def next_state(state):
    return collections.OrderedDict(round_num=state["round_num"] + 1, hparams=state["hparams"])

  return initial_state, hparams_of_round, next_state


def _aggregate_metrics(
  finalizers: Any,
  metrics_aggregator: Optional[Callable[[Any], tff.Computation]],
  metrics: tff.Value,
  counts: tff.Value,
) -> collections.OrderedDict[str, tff.Value]:
  """Returns the training metrics and the counts of the cohort, at the server."""
  if metrics_aggregator is not None:
    train = metrics_aggregator(finalizers)(metrics)
    # Securely, as the aggregator may be a secure one; of a client each count is 0 or 1.
    cohort = tff.federated_secure_sum(counts, max_input=1)
    return collections.OrderedDict(train=train, cohort=cohort)

  def finalize(summed):
    if callable(finalizers):
      train = finalizers(summed["train"])
    else:
      train = collections.OrderedDict(
        (name, f(summed["train"][name])) for name, f in finalizers.items()
      )
    return collections.OrderedDict(train=train, cohort=summed["cohort"])

  # One sum for both: each sum over the clients costs as much as a small client's training.
  both = tff.federated_zip(collections.OrderedDict(train=metrics, cohort=counts))
  result = tff.learning.metrics.sum_then_finalize(finalize)(both)
  return collections.OrderedDict(train=result["train"], cohort=result["cohort"])


def build_client_work(
  model_fn: local_model.Model,
  optimizer: tff.learning.optimizers.Optimizer,
  client_weighting: Union[
    str, tff.learning.ClientWeighting
  ] = tff.learning.ClientWeighting.NUM_EXAMPLES,
  metrics_aggregator: Optional[Callable[[Any], tff.Computation]] = None,
  *,
  threshold: Optional[threshold_lib.ThresholdProcess] = None,
  client_learning_rate_fn: Optional[LearningRateFn] = None,
  local_epochs: int = 1,
  local_batch_size: Optional[int] = None,
  l2: float = 0.0,
  examples_fn: Optional[tf.types.experimental.GenericFunction] = None,
  seed_fn: Optional[Callable[[Any], tf.Tensor]] = None,
  index_fn: Optional[Callable[[Any], tf.Tensor]] = None,
  proximal_strength: float = 0.0,
  damping_fn: Optional[Callable[[tf.Tensor, Any, Any], tf.Tensor]] = None,
  update_report_fn: Optional[Callable[[Any, Optional[tf.Tensor]], Any]] = None,
  measure_cohort: bool = True,
) -> Union[tff.learning.templates.ClientWorkProcess, ClientWork]:
  """Builds the client work of FedAvg, or with `threshold` that of superquantile aggregation.

  With a threshold, each client computes the loss of its whole local data set at the round's
  weights, the threshold process turns the losses into a threshold, and only the clients whose share
  is positive train; the others do nothing at all and report a zero update of weight zero. A client
  whose loss or update is not finite, or that has no examples, is left out of the round and counted.

  Measurements: `train`, the model's own training metrics over the clients that trained; `cohort`,
  with `cohort_size`, `tail_size` (clients that entered the average) and `num_excluded` (clients
  left out because a loss or update is not finite, or for want of examples); `threshold`, what the
  threshold process measured.

  Args:
    model_fn: A `FunctionalModel`, or a no-argument function that returns a `VariableModel`.
    optimizer: Takes the local steps.
    client_weighting: The weight of a client in the average and in the quantile, or its name.
    metrics_aggregator: As in TFF; None for `tff.learning.metrics.sum_then_finalize`. Beside one,
      `cohort` is a secure sum.
    threshold: Decides who trains; None for everybody, without a loss pass.
    client_learning_rate_fn: The learning rate of a round, a TensorFlow function of the round's
      number (int32 [], from 0); None for the optimizer's own.
    local_epochs: Passes over the local data set.
    local_batch_size: Examples in a local step, 0 for all; None for the data set's own batches.
    l2: The l2 coefficient lambda of the local objective.
    examples_fn: A `tf.function` with an input_signature of one argument, from what a client holds
      (for example its id) to all its examples, one batch that matches the model's input_spec. It
      runs inside the client's graph; data sets that cross from one computation to another are
      slower. None if clients hold data sets of batches.
    seed_fn: A TensorFlow function from what a client holds to the seed of its noise in the round,
      an integer tensor [2]; for thresholds that take seeds.
    index_fn: A TensorFlow function from what a client holds to its index among all clients, an
      integer tensor [] from 0; for thresholds that take indices.
    proximal_strength: mu of FedProx: adds mu / 2 |w - w0|^2 to the local objective.
    damping_fn: A TensorFlow function from (loss F_i, update, the round's hparams of the optimizer)
      to the factor d, float32 [], by which the update is divided and its weight multiplied; None
      for 1. Only beside a threshold, which is what computes losses.
    update_report_fn: A TensorFlow function from (update, seed or None) to what a client reports in
      place of its update, whether it trained or not; None for the update itself.
    measure_cohort: Whether to measure `train` and `cohort`, exact sums over the cohort. Without,
      only the threshold's measurements leave the clients.

  Returns:
    A `tff.learning.templates.ClientWorkProcess`, or with `examples_fn` a `ClientWork`.

  Raises:
    ValueError: If a number is out of its range, or `local_batch_size` is missing beside an
      `examples_fn`, or `seed_fn` beside a threshold that takes seeds.
    TypeError: If an argument is not of its documented type, `examples_fn` does not return what the
      model takes, or the learning rate of an optimizer without one is to be scheduled.
  """
  argument_checks.check_type(
    "optimizer",
    optimizer,
    tff.learning.optimizers.Optimizer,
    "a tff.learning.optimizers.Optimizer",
  )
  client_weighting = _as_client_weighting(client_weighting)
  for name, function in (
    ("metrics_aggregator", metrics_aggregator),
    ("client_learning_rate_fn", client_learning_rate_fn),
    ("seed_fn", seed_fn),
    ("index_fn", index_fn),
  ):
    argument_checks.check_type(
      name, function, (collections.abc.Callable, type(None)), "a function or None"
    )
  _check_whole_number("local_epochs", local_epochs, 1)
  if local_batch_size is not None:
    _check_whole_number("local_batch_size", local_batch_size, 0)
  l2 = argument_checks.check_not_negative("l2", l2)
  proximal_strength = argument_checks.check_not_negative("proximal_strength", proximal_strength)
  if examples_fn is not None and local_batch_size is None:
    raise ValueError("Found an examples_fn without local_batch_size; give one (0: all).")
  if threshold is not None and threshold.takes_seeds and seed_fn is None:
    raise ValueError(
      "Found a threshold that takes seeds of noise but no seed_fn; give one, or build the threshold"
      " without seeds, so that each client uses its own source of entropy."
    )
  if threshold is not None and threshold.takes_indices and index_fn is None:
    raise ValueError(
      "Found a threshold that takes the clients' indices but no index_fn; give one, from what a"
      " client holds to its index."
    )

  model = local_model.describe(model_fn)
  data_type, read = _build_reader(model.input_spec, examples_fn)
  work = client_computations.LocalWork(
    model_fn,
    model.weights_type,
    optimizer,
    client_weighting,
    local_epochs,
    local_batch_size,
    l2,
    data_type,
    read,
    seed_fn,
    index_fn,
    proximal_strength,
    damping_fn,
    update_report_fn,
  )
  initial_state, hparams_of_round, next_state = _build_state_computations(
    optimizer, client_learning_rate_fn
  )
  hparams_type = hparams_of_round.type_signature.result
  if threshold is None:
    train_computation = client_computations.build_train_computation(work, hparams_type)
  else:
    loss_computation = client_computations.build_loss_computation(work, threshold)
    train_computation = client_computations.build_gated_train_computation(
      work, hparams_type, threshold
    )

  @tff.federated_computation
  def init_fn():
    own = tff.federated_eval(initial_state, tff.SERVER)
    if threshold is None:
      return tff.federated_zip(collections.OrderedDict(own=own))
    return tff.federated_zip(collections.OrderedDict(own=own, threshold=threshold.initialize()))

  @tff.federated_computation(
    init_fn.type_signature.result,
    tff.FederatedType(work.weights_type, tff.CLIENTS),
    tff.FederatedType(data_type, tff.CLIENTS),
  )
  def next_fn(state, weights, clients):
    hparams = tff.federated_broadcast(tff.federated_map(hparams_of_round, state["own"]))
    new_state = collections.OrderedDict(own=tff.federated_map(next_state, state["own"]))
    arguments: tuple[tff.Value, ...] = (weights, clients, hparams)
    measurements = collections.OrderedDict()
    if threshold is not None:
      losses, reports = tff.federated_map(loss_computation, (weights, clients))
      output = threshold.next_of_reports(state["threshold"], reports)
      new_state["threshold"] = output.state
      measurements["threshold"] = output.measurements
      arguments += (losses, tff.federated_broadcast(output.result))
    client_result, metrics, counts = tff.federated_map(train_computation, arguments)
    if measure_cohort:
      measurements.update(
        _aggregate_metrics(model.metric_finalizers, metrics_aggregator, metrics, counts)
      )
    if measurements:
      measurements = tff.federated_zip(measurements)
    else:
      measurements = tff.federated_value((), tff.SERVER)
    return tff.templates.MeasuredProcessOutput(
      tff.federated_zip(new_state), client_result, measurements
    )

  state_type = init_fn.type_signature.result.member

  @tff.tensorflow.computation(state_type)
  def get_hparams(state):
    return state["own"]["hparams"]

  @tff.tensorflow.computation(state_type, hparams_type)
  def set_hparams(state, hparams):
    own = collections.OrderedDict(round_num=state["own"]["round_num"], hparams=hparams)
    return collections.OrderedDict(state, own=own)

  process = tff.learning.templates.ClientWorkProcess if examples_fn is None else ClientWork
  return process(init_fn, next_fn, get_hparams_fn=get_hparams, set_hparams_fn=set_hparams)
