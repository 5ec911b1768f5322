"""The narrow joint between the two aggregations of a round."""

from typing import Any, Callable

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

LOSS_TYPE = tff.TensorType(np.float32)


class ThresholdProcess(tff.templates.MeasuredProcess):
  """Learns from the clients' losses who takes part in a round, and with what share.

  `initialize` is `( -> S@SERVER)` and `next` is

      (<S@SERVER, float32@CLIENTS, float32@CLIENTS> ->
       <state=S@SERVER, result=T@SERVER, measurements=M@SERVER>)

  The second argument holds the clients' losses, the third their weights in the quantile; weight 0
  says that a client's loss is not to be counted (it is not finite, or the client has no examples).
  The result T is broadcast; there each client computes its share from its own loss.
  """

  def __init__(
    self,
    initialize_fn: tff.Computation,
    next_fn: tff.Computation,
    share_fn: Callable[[tf.Tensor, Any], tf.Tensor],
  ):
    """Initializes a `ThresholdProcess`.

    Args:
      initialize_fn: A `tff.Computation`, see above.
      next_fn: A `tff.Computation`, see above.
      share_fn: A TensorFlow function of (loss float32 [], result T) that returns a float32 scalar
        in [0, 1]: the share of its weight with which a client of that loss enters the average. A
        client whose share is 0 does not train.
    """
    super().__init__(initialize_fn, next_fn, next_is_multi_arg=True)
    self._share_fn = share_fn

  @property
  def share_fn(self) -> Callable[[tf.Tensor, Any], tf.Tensor]:
    return self._share_fn
