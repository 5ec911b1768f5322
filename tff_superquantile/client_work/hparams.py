"""The optimizer's hyperparameters over the rounds, as part of the server's state."""

import collections
from typing import Callable, NamedTuple, Optional

import tensorflow as tf
import tensorflow_federated as tff

_LEARNING_RATE_KEY = tff.learning.optimizers.LEARNING_RATE_KEY

LearningRateFn = Callable[[tf.Tensor], tf.Tensor]


class Schedule(NamedTuple):
  """Computations on the state of a schedule, its round's number and hyperparameters.

  Attributes:
    initial_state: ( -> state).
    hparams_of_round: (state -> hyperparameters in this round).
    next_state: (state -> state of the next round).
  """

  initial_state: tff.Computation
  hparams_of_round: tff.Computation
  next_state: tff.Computation


def build_schedule(
  optimizer: tff.learning.optimizers.Optimizer, client_learning_rate_fn: Optional[LearningRateFn]
) -> Schedule:
  """Builds the schedule of an optimizer's hyperparameters.

  Args:
    optimizer: The optimizer.
    client_learning_rate_fn: The learning rate of a round, a TensorFlow function of the round's
      number (int32 [], from 0); None for the optimizer's own.

  Returns:
    The `Schedule`.

  Raises:
    TypeError: If the learning rate of an optimizer without one is to be scheduled.
  """
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

  return Schedule(initial_state, hparams_of_round, next_state)
