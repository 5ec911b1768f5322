"""Client work as a process: TFF's own, or one whose clients hold something else than data sets."""

import collections
from typing import Union

import tensorflow_federated as tff


class ClientWork(tff.templates.MeasuredProcess):
  """A `tff.learning.templates.ClientWorkProcess` whose clients hold something else than data sets.

  TFF's class insists on sequences at the clients. This one takes whatever an `examples_fn` turns
  into a client's examples, such as a client id.
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


AnyClientWork = Union[tff.learning.templates.ClientWorkProcess, ClientWork]


def build_process(initialize_fn: tff.Computation, next_fn: tff.Computation) -> AnyClientWork:
  """Builds the process of two computations.

  Args:
    initialize_fn: ( -> S@SERVER), a state with that of a `hparams.Schedule` under the name `own`.
    next_fn: (S@SERVER, weights@CLIENTS, what clients hold@CLIENTS -> MeasuredProcessOutput).

  Returns:
    A `tff.learning.templates.ClientWorkProcess` if clients hold data sets, else a `ClientWork`.
  """
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
