"""Joins the two aggregations of a round by a process from losses to shares.

`build_process_of_losses` builds the processes without privacy, whose server sees the cohort's
losses, as in the paper's experiments. The losses travel as one small matrix with a row for each
client, built by `federated_aggregate`; the order in which clients report does not matter.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

LOSS_TYPE = tff.TensorType(np.float32)
# Whole numbers up to here are exact in the rows' float32.
MAX_CLIENTS = 2**24


class Client(NamedTuple):
  """Tells one client of a round from the others.

  Attributes:
    seed: int64 [2], the seed of the noise that the client draws in this round; None for its own
      source of entropy.
    client_index: int32 [], its number among all clients, from 0; None if that is not known.
  """

  seed: tf.Tensor | None = None
  client_index: tf.Tensor | None = None


CLIENT_TYPE = tff.types.to_type(Client(tff.TensorType(np.int64, [2]), tff.TensorType(np.int32)))


class Rows(NamedTuple):
  """The reports of a cohort's n clients, in no order.

  Attributes:
    losses: float32 [n], NaN where a loss is not to be counted.
    weights: float32 [n], those of the clients in the quantile, alpha_i up to a factor.
    indices: int32 [n], the clients' numbers among all; None where they are not reported.
  """

  losses: tf.Tensor
  weights: tf.Tensor
  indices: tf.Tensor | None = None

  def where(self, mask: tf.Tensor) -> "Rows":
    """Returns the rows that a bool [n] marks."""
    return Rows(*(None if column is None else tf.boolean_mask(column, mask) for column in self))

  def counted(self) -> "Rows":
    """Returns the rows that count: their loss is a number and their weight positive."""
    return self.where(tf.logical_and(self.weights > 0, tf.logical_not(tf.math.is_nan(self.losses))))


ReportFn = Callable[[tf.Tensor, tf.Tensor, Client], Any]
ShareFn = Callable[[tf.Tensor, Any, Client], tf.Tensor]
ServerFn = Callable[[Any, Rows], tuple[Any, Any, Any]]


class ThresholdProcess(tff.templates.MeasuredProcess):
  """Turns the losses of a cohort into each client's share of the average.

  A client's *share*, in [0, 1], multiplies the weight with which its update enters the average.
  A threshold gives 0 or 1, a soft weighting any number between.

  `initialize` is `( -> S@SERVER)` and `next` is

      (<S@SERVER, float32@CLIENTS, float32@CLIENTS, <seed=int64[2],client_index=int32>@CLIENTS> ->
       <state=S@SERVER, result=T@SERVER, measurements=M@SERVER>)

  The second argument holds the clients' losses, NaN where a loss is not to be counted, the third
  their weights in the quantile, which private thresholds ignore, the fourth each `Client`.

  Two TensorFlow functions are the client's part: `report_fn` makes its report, and `share_fn` makes
  its share of the broadcast result T. `next` maps `report_fn` and calls `next_of_reports`. In a
  round of training, the graph in which a client computes its loss calls `report_fn`, which saves a
  call for each client. The constructor's arguments are attributes of the process.
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
      initialize_fn: The computation `initialize`, see above.
      next_of_reports: Like `next`, with the clients' reports for a second and last argument.
      report_fn: A TensorFlow function of (loss float32 [], weight float32 [], `Client`) that
        returns the client's report.
      share_fn: A TensorFlow function of (loss float32 [], result T, `Client`) that returns the
        client's share, float32 [] in [0, 1]. A client whose share is 0, or whose loss is NaN, does
        not train.
      is_private: Whether the server learns differentially private values only, among them the
        measurement `estimated_tail_size`, or `estimated_share_sum` where shares are not only 0
        and 1: an estimate of the sum of the shares, float32, positive. Without one the shares are
        summed with the updates.
    """
    self.report_fn = report_fn
    self.share_fn = share_fn
    self.next_of_reports = next_of_reports
    self.is_private = is_private
    client_types = (LOSS_TYPE, LOSS_TYPE, CLIENT_TYPE)
    report = tff.tensorflow.computation(report_fn, *client_types)

    @tff.federated_computation(
      initialize_fn.type_signature.result,
      *(tff.FederatedType(client_type, tff.CLIENTS) for client_type in client_types),
    )
    def next_fn(state, losses, weights, clients):
      return next_of_reports(state, tff.federated_map(report, (losses, weights, clients)))

    super().__init__(initialize_fn, next_fn, next_is_multi_arg=True)


ThresholdFn = Callable[[float], ThresholdProcess]


def share_at_or_above(loss: tf.Tensor, threshold: tf.Tensor, client: Client) -> tf.Tensor:
  """Returns the share of a client for a threshold: 1.0 if its loss is at or above it, else 0.0.

  Args:
    loss: The client's loss, float32 [].
    threshold: The threshold, float32 [].
    client: Not used.

  Returns:
    The share, float32 [].
  """
  del client
  return tf.cast(loss >= threshold, tf.float32)


def _collect(reports: tff.Value, num_columns: int) -> tff.Value:
  """Collects {float32[c]}@CLIENTS as float32[n, c]@SERVER, in any order."""
  row_type = tff.TensorType(np.float32, [num_columns])
  rows_type = tff.TensorType(np.float32, [None, num_columns])

  @tff.tensorflow.computation
  def zero():
    # The static shape of the accumulator must allow it to grow.
    none = tf.zeros([0, num_columns])
    return tf.compat.v1.placeholder_with_default(none, [None, num_columns])

  @tff.tensorflow.computation(rows_type, row_type)
  def accumulate(rows, row):
    return tf.concat([rows, [row]], axis=0)

  @tff.tensorflow.computation(rows_type, rows_type)
  def merge(first, second):
    return tf.concat([first, second], axis=0)

  @tff.tensorflow.computation(rows_type)
  def report(rows):
    return rows

  return tff.federated_aggregate(reports, zero(), accumulate, merge, report)


def build_process_of_losses(
  server_fn: ServerFn,
  share_fn: ShareFn,
  *,
  initial_state_fn: Callable[[], Any] | None = None,
  reports_indices: bool = False,
) -> ThresholdProcess:
  """Builds a process whose server maps (state, rows) to (state, result, measurements).

  Args:
    server_fn: A TensorFlow function of (state, `Rows`) that returns (next state, result for the
      clients, measurements).
    share_fn: As for `ThresholdProcess`.
    initial_state_fn: A no-argument TensorFlow function that returns the state; None for no state.
    reports_indices: Whether the rows have the clients' indices, of at most `MAX_CLIENTS` clients.

  Returns:
    A `ThresholdProcess`.

  Raises:
    ValueError: If `reports_indices` and the round, as it is built, has no `index_fn`.
  """
  num_columns = 3 if reports_indices else 2
  rows_type = tff.TensorType(np.float32, [None, num_columns])
  row_type = tff.TensorType(np.float32, [num_columns])

  @tff.tensorflow.computation
  def initial_state():
    return () if initial_state_fn is None else initial_state_fn()

  @tff.federated_computation
  def initialize():
    return tff.federated_eval(initial_state, tff.SERVER)

  @tff.tensorflow.computation(initial_state.type_signature.result, rows_type)
  def at_server(state, reports):
    losses, weights, *indices = tf.unstack(reports, num_columns, axis=1)
    return server_fn(state, Rows(losses, weights, *(tf.cast(i, tf.int32) for i in indices)))

  @tff.federated_computation(
    initialize.type_signature.result, tff.FederatedType(row_type, tff.CLIENTS)
  )
  def next_of_reports(state, reports):
    state, result, measurements = tff.federated_map(
      at_server, (state, _collect(reports, num_columns))
    )
    return tff.templates.MeasuredProcessOutput(state, result, measurements)

  def report_fn(loss, weight, client):
    if not reports_indices:
      return tf.stack([loss, weight])
    if client.client_index is None:
      raise ValueError(
        "Found a threshold that takes the clients' indices but no index_fn; give one, from what a"
        " client holds to its index."
      )
    return tf.stack([loss, weight, tf.cast(client.client_index, tf.float32)])

  return ThresholdProcess(initialize, next_of_reports, report_fn, share_fn)
