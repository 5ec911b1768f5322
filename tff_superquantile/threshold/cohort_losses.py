"""Processes whose server sees the cohort's losses: no privacy, the paper's experiments.

The losses travel as one small matrix of rows, one a client, built by `federated_aggregate`; the
order in which clients report does not matter.
"""

from typing import Any, Callable, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.threshold import process

# Columns of the rows; INDEX only where clients report their index.
LOSS, WEIGHT, INDEX = 0, 1, 2
# Whole numbers up to here are exact in the rows' float32.
MAX_CLIENTS = 2**24

ServerFn = Callable[[Any, tf.Tensor], tuple[Any, Any, Any]]


def _report(loss: tf.Tensor, weight: tf.Tensor, client: process.Client) -> tf.Tensor:
  """Returns what a client tells the server: its loss and weight, in the clear."""
  del client
  return tf.stack([loss, weight])


def _report_with_index(loss: tf.Tensor, weight: tf.Tensor, client: process.Client) -> tf.Tensor:
  """Returns the same and the client's index, by which the server keeps what it knows of it."""
  if client.client_index is None:
    raise ValueError(
      "Found a threshold that takes the clients' indices but no index_fn; give one, from what a"
      " client holds to its index."
    )
  return tf.stack([loss, weight, tf.cast(client.client_index, tf.float32)])


def _collect(reports: tff.Value, num_columns: int) -> tff.Value:
  """{float32[c]}@CLIENTS -> float32[n, c]@SERVER."""
  row_type = tff.TensorType(np.float32, [num_columns])
  rows_type = tff.TensorType(np.float32, [None, num_columns])

  @tff.tensorflow.computation
  def zero():
    # The static shape of the accumulator must say that it grows.
    return tf.compat.v1.placeholder_with_default(tf.zeros([0, num_columns]), [None, num_columns])

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


def counted(rows: tf.Tensor) -> tf.Tensor:
  """Which rows count: a loss that is a number, and a positive weight; bool [n]."""
  return tf.logical_and(rows[:, WEIGHT] > 0, tf.logical_not(tf.math.is_nan(rows[:, LOSS])))


def build_process(
  server_fn: ServerFn,
  share_fn: process.ShareFn,
  *,
  initial_state_fn: Optional[Callable[[], Any]] = None,
  reports_indices: bool = False,
) -> process.ThresholdProcess:
  """Builds a process whose server maps (state, rows) to (state, result, measurements).

  Args:
    server_fn: A TensorFlow function of (state, rows float32 [n, 2], or [n, 3] with indices) that
      returns (next state, result for the clients, measurements).
    share_fn: As for `ThresholdProcess`.
    initial_state_fn: A no-argument TensorFlow function that returns the state; None for no state.
    reports_indices: Whether the rows hold the clients' indices; at most `MAX_CLIENTS` clients.

  Returns:
    A `ThresholdProcess`.
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
  def at_server(state, rows):
    return server_fn(state, rows)

  @tff.federated_computation(
    initialize.type_signature.result, tff.FederatedType(row_type, tff.CLIENTS)
  )
  def next_of_reports(state, reports):
    state, result, measurements = tff.federated_map(
      at_server, (state, _collect(reports, num_columns))
    )
    return tff.templates.MeasuredProcessOutput(state, result, measurements)

  report_fn = _report_with_index if reports_indices else _report
  return process.ThresholdProcess(initialize, next_of_reports, report_fn, share_fn)
