"""The private sum of a run with canaries, which measures its result along their directions."""

from __future__ import annotations

import collections
from collections.abc import Callable
import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile import threshold as threshold_lib
from tff_superquantile.algorithms.private import private as private_lib
from tff_superquantile.experiments.audit_canaries import canaries as canaries_lib

MEASUREMENT = "canaries"
_LENGTH = 2.0  # Of a canary's update, over the (first) clip norm.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Watched(private_lib.Private):
  """A `Private` some of whose clients are canaries; else it is what it was made of.

  Attributes:
    canaries: The canaries.
  """

  canaries: canaries_lib.Canaries

  @classmethod
  def of(cls, private: private_lib.Private, canaries: canaries_lib.Canaries) -> Watched:
    """Returns a run's `Private` with canaries."""
    values = {field.name: getattr(private, field.name) for field in dataclasses.fields(private)}
    return cls(canaries=canaries, **values)

  @property
  def _first_norm(self) -> float:
    norm: Any = self.clip_norm
    return float(getattr(norm, "initial_norm", norm))

  def build_sum(
    self, update_type_fn: Callable[[], tff.Type], expected_share_sum: float | None = None
  ) -> private_lib.PrivateSum:
    """Builds the sum as it is, of what canaries send, before anything is clipped."""
    summed = super().build_sum(update_type_fn, expected_share_sum)
    num_clients = len(self.canaries.files.client_ids)

    def report(update: Any, share: tf.Tensor, client: threshold_lib.Client) -> Any:
      assert client.client_index is not None  # The builder of runs sees to it.
      code = client.client_index - num_clients
      is_canary = code >= 0
      sign = tf.cast(2 * (code % 2) - 1, tf.float32)
      along = tf.where(tf.equal(self.canaries.direction_of, code // 2), self.canaries.weights, 0.0)
      sent = _like(update, _LENGTH * self._first_norm * sign * along)
      update = tf.nest.map_structure(lambda u, s: tf.where(is_canary, s, u), update, sent)
      return summed.report_fn(update, tf.where(is_canary, 1.0, share), client)

    has_shares = expected_share_sum is None
    return summed._replace(
      factory=_Projecting(summed.factory, self.canaries, self._first_norm, has_shares),
      report_fn=report,
    )


def _like(update: Any, flat: tf.Tensor) -> Any:
  """Returns a flat vector, float32 [d], as a structure of tensors like an update."""
  tensors = tf.nest.flatten(update)
  pieces = tf.split(flat, [int(np.prod(t.shape)) for t in tensors])
  shaped = [tf.cast(tf.reshape(p, t.shape), t.dtype) for p, t in zip(pieces, tensors)]
  return tf.nest.pack_sequence_as(update, shaped)


class _Projecting(tff.aggregators.UnweightedAggregationFactory):
  """Aggregates as another does, and measures <U, u> / C of its result U and each direction u."""

  def __init__(
    self,
    factory: tff.aggregators.UnweightedAggregationFactory,
    canaries: canaries_lib.Canaries,
    clip_norm: float,
    has_shares: bool,
  ):
    self._factory, self._canaries, self._clip_norm = factory, canaries, clip_norm
    self._has_shares = has_shares

  def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
    inner, canaries = self._factory.create(value_type), self._canaries
    output_type = inner.next.type_signature.result

    @tff.tensorflow.computation(output_type.result.member, output_type.measurements.member)
    def measure(result: Any, measured: Any) -> Any:
      update = result[0] if self._has_shares else result
      kept = {name: value for name, value in (measured or {}).items() if tf.nest.flatten(value)}
      flat = [tf.reshape(tf.cast(u, tf.float32), [-1]) for u in tf.nest.flatten(update)]
      along = tf.math.unsorted_segment_sum(
        tf.concat(flat, axis=0) * canaries.weights, canaries.direction_of, canaries.num_directions
      )
      along /= kept.get("clip_norm", self._clip_norm)
      return collections.OrderedDict(kept, **{MEASUREMENT: along})

    @tff.federated_computation(
      inner.initialize.type_signature.result, inner.next.type_signature.parameter[1]
    )
    def next_fn(state: tff.Value, values: tff.Value) -> tff.templates.MeasuredProcessOutput:
      output = inner.next(state, values)
      measurements = tff.federated_map(measure, (output.result, output.measurements))
      return tff.templates.MeasuredProcessOutput(output.state, output.result, measurements)

    return tff.templates.AggregationProcess(inner.initialize, next_fn)
