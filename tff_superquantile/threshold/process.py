"""The narrow joint between the two aggregations of a round."""

from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

LOSS_TYPE = tff.TensorType(np.float32)


class Client(NamedTuple):
  """A client of a round, besides its data.

  Attributes:
    seed: int64 [2], of the noise that the client draws in this round; None for its own source of
      entropy.
    client_index: int32 [], which of all clients it is, from 0; None if that is not known.
  """

  seed: Optional[tf.Tensor] = None
  client_index: Optional[tf.Tensor] = None


CLIENT_TYPE = tff.types.to_type(Client(tff.TensorType(np.int64, [2]), tff.TensorType(np.int32)))

ReportFn = Callable[[tf.Tensor, tf.Tensor, Client], Any]
ShareFn = Callable[[tf.Tensor, Any, Client], tf.Tensor]


class ThresholdProcess(tff.templates.MeasuredProcess):
  """Turns the losses of a cohort into each client's share of the average.

  A client's *share*, in [0, 1], multiplies the weight with which its update enters the average:
  0 or 1 of a threshold, anything between of a soft weighting.

  `initialize` is `( -> S@SERVER)` and `next` is

      (<S@SERVER, float32@CLIENTS, float32@CLIENTS, <seed=int64[2],client_index=int32>@CLIENTS> ->
       <state=S@SERVER, result=T@SERVER, measurements=M@SERVER>)

  The second argument holds the clients' losses, NaN where a loss is not to be counted, the third
  their weights in the quantile, which private thresholds ignore, the fourth each `Client`.

  A client's part in it is two TensorFlow functions: `report_fn`, what it sends, and `share_fn`,
  what it concludes from the broadcast result T. `next` maps `report_fn` and calls
  `next_of_reports`; in a round of training the graph in which a client computes its loss calls
  `report_fn`, which saves a call a client.
  """

  def __init__(
    self,
    initialize_fn: tff.Computation,
    next_of_reports: tff.Computation,
    report_fn: ReportFn,
    share_fn: ShareFn,
    is_private: bool = False,
  ):
    """Initializes a `ThresholdProcess`.

    Args:
      initialize_fn: A `tff.Computation`, see above.
      next_of_reports: Like `next`, with the clients' reports for a second and last argument.
      report_fn: A TensorFlow function of (loss float32 [], weight float32 [], `Client`) that
        returns what the client reports.
      share_fn: A TensorFlow function of (loss float32 [], result T, `Client`) that returns the
        client's share, float32 [] in [0, 1]. A client whose share is 0, or whose loss is NaN, does
        not train.
      is_private: Whether what the server learns is differentially private. Then the measurements
        hold `estimated_tail_size`, float32, positive.
    """
    self._report_fn = report_fn
    self._share_fn = share_fn
    self._next_of_reports = next_of_reports
    self._is_private = is_private
    client_types = (LOSS_TYPE, LOSS_TYPE, CLIENT_TYPE)

    @tff.tensorflow.computation(*client_types)
    def report(loss, weight, client):
      return report_fn(loss, weight, client)

    @tff.federated_computation(
      initialize_fn.type_signature.result,
      *(tff.FederatedType(client_type, tff.CLIENTS) for client_type in client_types),
    )
    def next_fn(state, losses, weights, clients):
      return next_of_reports(state, tff.federated_map(report, (losses, weights, clients)))

    super().__init__(initialize_fn, next_fn, next_is_multi_arg=True)

  @property
  def report_fn(self) -> ReportFn:
    return self._report_fn

  @property
  def share_fn(self) -> ShareFn:
    return self._share_fn

  @property
  def next_of_reports(self) -> tff.Computation:
    return self._next_of_reports

  @property
  def is_private(self) -> bool:
    return self._is_private
