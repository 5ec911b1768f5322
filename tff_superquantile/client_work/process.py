"""Builds the client work's process, whose state schedules the optimizer's hyperparameters."""

import collections
from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf
import tensorflow_federated as tff

_LEARNING_RATE_KEY = tff.learning.optimizers.LEARNING_RATE_KEY

LearningRateFn = Callable[[tf.Tensor], tf.Tensor]


def build_schedule(
  optimizer: tff.learning.optimizers.Optimizer, client_learning_rate_fn: LearningRateFn | None
) -> tuple[tff.Computation, tff.Computation]:
  """Builds the schedule of an optimizer's hyperparameters."""
  hparams = optimizer.get_hparams(optimizer.initialize(tf.TensorSpec([], tf.float32)))
  if client_learning_rate_fn is not None and _LEARNING_RATE_KEY not in hparams:
    raise TypeError("Found a client_learning_rate_fn for an optimizer without a learning rate.")

  @tff.tensorflow.computation
  def initial_state():
    return collections.OrderedDict(round_num=tf.constant(0), hparams=hparams)

  @tff.tensorflow.computation(initial_state.type_signature.result)
  def advance(state):
    next_state = collections.OrderedDict(state, round_num=state["round_num"] + 1)
    hparams = collections.OrderedDict(state["hparams"])
    if client_learning_rate_fn is not None:
      rate = client_learning_rate_fn(state["round_num"])
      hparams[_LEARNING_RATE_KEY] = tf.cast(rate, hparams[_LEARNING_RATE_KEY].dtype)
    return next_state, hparams

  return initial_state, advance


class ClientWork(tff.templates.MeasuredProcess):
  """Does the work of a `ClientWorkProcess` whose clients hold other values than data sets.

  TFF's class insists on sequences at the clients. This one takes the values from which an
  `examples_fn` reads a client's examples, such as client ids.
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


AnyClientWork: TypeAlias = tff.learning.templates.ClientWorkProcess | ClientWork


def build_process(initialize_fn: tff.Computation, next_fn: tff.Computation) -> AnyClientWork:
  """Builds the process of two computations: a `ClientWork` unless clients hold data sets."""
  state_type = initialize_fn.type_signature.result.member

  @tff.tensorflow.computation(state_type)
  def get_hparams(state):
    return state["own"]["hparams"]

  @tff.tensorflow.computation(state_type, get_hparams.type_signature.result)
  def set_hparams(state, hparams):
    own = collections.OrderedDict(round_num=state["own"]["round_num"], hparams=hparams)
    return collections.OrderedDict(state, own=own)

  holds_data_sets = isinstance(next_fn.type_signature.parameter[2].member, tff.SequenceType)
  process = tff.learning.templates.ClientWorkProcess if holds_data_sets else ClientWork
  return process(initialize_fn, next_fn, get_hparams_fn=get_hparams, set_hparams_fn=set_hparams)
