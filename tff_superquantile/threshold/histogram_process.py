"""Builds the private processes whose result follows from a noisy histogram of the losses."""

import collections
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.threshold import private_histogram
from tff_superquantile.threshold import process

# From (the last result, what `PrivateHistogramFactory` returns) to (result, measurements).
HistogramFn = Callable[[Any, Any], tuple[Any, collections.OrderedDict[str, tf.Tensor]]]


def build_histogram_process(
  factory: private_histogram.PrivateHistogramFactory,
  server_fn: HistogramFn,
  share_fn: process.ShareFn,
  initial_result: Any,
) -> process.ThresholdProcess:
  """Builds a process whose clients report their losses to a private histogram, and nothing else.

  Guarantee: that of `factory`. The state, the result and the measurements of a round follow from
  one private histogram and from earlier ones, without looking at the clients again.

  `server_fn` is a TensorFlow function of (the last round's result, the decoded histogram) to
  (result for the clients, measurements); see `ThresholdProcess` for those it must have. The state
  is the last result, at first `initial_result` (numpy), and that of the server's source of noise.
  """
  histogram = factory.create_of_reports(process.LOSS_TYPE)

  @tff.tensorflow.computation
  def first():
    return tf.constant(initial_result)

  @tff.tensorflow.computation(
    first.type_signature.result, histogram.next.type_signature.result.result.member
  )
  def at_server(last_result, decoded):
    return server_fn(last_result, decoded)

  @tff.federated_computation
  def initialize():
    return tff.federated_zip(
      collections.OrderedDict(
        threshold=tff.federated_eval(first, tff.SERVER), noise=histogram.initialize()
      )
    )

  @tff.federated_computation(
    initialize.type_signature.result, histogram.next.type_signature.parameter[1]
  )
  def next_of_reports(state, reports):
    output = histogram.next(state["noise"], reports)
    result, measurements = tff.federated_map(at_server, (state["threshold"], output.result))
    new_state = tff.federated_zip(collections.OrderedDict(threshold=result, noise=output.state))
    return tff.templates.MeasuredProcessOutput(new_state, result, measurements)

  def report_fn(loss, weight, client):
    del weight
    return factory.report(loss, client.seed)

  return process.ThresholdProcess(initialize, next_of_reports, report_fn, share_fn, is_private=True)
