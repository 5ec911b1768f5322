"""Describes a client's work in every algorithm (`LocalTraining`) and in one (`ClientHooks`)."""

import collections.abc
from collections.abc import Callable
import dataclasses
import functools
import numbers
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from privacy import checks
from tff_superquantile import noise_source
from tff_superquantile.client_work import cohort_metrics
from tff_superquantile.client_work import local_model
from tff_superquantile.client_work import local_update
from tff_superquantile.client_work import process
from tff_superquantile.threshold import Client

# A client's seed has streams, so that the threshold's noise and the update's differ.
THRESHOLD_STREAM, UPDATE_STREAM = 0, 1
_FUNCTIONS = (
  *("metrics_aggregator", "client_learning_rate_fn", "seed_fn", "index_fn", "reference_loss_fn"),
)


class ClientData(NamedTuple):
  """The type of the value that a client holds, and a TensorFlow function to its `Examples`."""

  type: tff.Type
  read: Callable[[Any], local_update.Examples]


def _as_client_weighting(
  weighting: str | tff.learning.ClientWeighting,
) -> tff.learning.ClientWeighting:
  """Returns a member of the enumeration as it is, and a name as the member of that name."""
  members = tff.learning.ClientWeighting.__members__
  if isinstance(weighting, str):
    weighting = members.get(weighting.upper(), weighting)
  checks.of_type(
    "client_weighting",
    weighting,
    tff.learning.ClientWeighting,
    f"a tff.learning.ClientWeighting or the name of one, {' or '.join(members)}",
  )
  return weighting


def _build_client_data(
  input_spec: Any, examples_fn: tf.types.experimental.GenericFunction | None
) -> ClientData:
  """Returns a description of the clients' values: data sets, or the inputs of `examples_fn`."""
  if examples_fn is None:
    element_type = tff.types.tensorflow_to_type(input_spec)
    return ClientData(tff.SequenceType(element_type), local_update.examples_of_dataset)
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

  def read(held: Any) -> local_update.Examples:
    batch = tf.nest.pack_sequence_as(input_spec, tf.nest.flatten(examples_fn(held)))
    return local_update.Examples(batch, None)

  return ClientData(tff.types.tensorflow_to_type(signature[0]), read)


@dataclasses.dataclass(frozen=True)
class LocalTraining:
  """Describes a client's work in every algorithm: model, data, weight, local steps.

  The fields are the keyword arguments of the algorithms that concern a client. Their meaning is
  that of `algorithms.Options`.

  Attributes:
    model_fn: A `FunctionalModel`, or a no-argument function that returns a `VariableModel`.
    optimizer: Takes the local steps.

  Raises:
    ValueError: If a number is out of its range, or an `examples_fn` is given without a
      `local_batch_size`.
    TypeError: If a field is not of its documented type.
  """

  model_fn: local_model.Model
  optimizer: tff.learning.optimizers.Optimizer
  client_weighting: str | tff.learning.ClientWeighting = tff.learning.ClientWeighting.NUM_EXAMPLES
  metrics_aggregator: cohort_metrics.MetricsAggregator | None = None
  client_learning_rate_fn: process.LearningRateFn | None = None
  local_epochs: int = 1
  local_batch_size: int | None = None
  l2: float = 0.0
  examples_fn: tf.types.experimental.GenericFunction | None = None
  seed_fn: Callable[[Any], tf.Tensor] | None = None
  index_fn: Callable[[Any], tf.Tensor] | None = None
  reference_loss_fn: Callable[[Any], tf.Tensor] | None = None

  def __post_init__(self) -> None:
    checks.of_type(
      "optimizer",
      self.optimizer,
      tff.learning.optimizers.Optimizer,
      "a tff.learning.optimizers.Optimizer",
    )
    object.__setattr__(self, "client_weighting", _as_client_weighting(self.client_weighting))
    for name in _FUNCTIONS:
      checks.of_type(
        name, getattr(self, name), (collections.abc.Callable, type(None)), "a function or None"
      )
    checks.of_type("local_epochs", self.local_epochs, numbers.Integral, "a whole number")
    checks.whole("local_epochs", self.local_epochs, 1)
    if self.local_batch_size is not None:
      checks.of_type("local_batch_size", self.local_batch_size, numbers.Integral, "a whole number")
      checks.whole("local_batch_size", self.local_batch_size, 0)
    object.__setattr__(self, "l2", checks.not_negative("l2", self.l2))
    if self.examples_fn is not None and self.local_batch_size is None:
      raise ValueError("Found an examples_fn without local_batch_size; give one (0: all).")

  # The construction of a model may take long, so its description is cached.
  @functools.cached_property
  def model(self) -> local_model.ModelDescription:
    """Describes the model: its types and metrics."""
    return local_model.describe(self.model_fn)

  @functools.cached_property
  def data(self) -> ClientData:
    """Describes the value that a client holds, and how its examples are read from it."""
    return _build_client_data(self.model.input_spec, self.examples_fn)

  def weight(self, num_examples: tf.Tensor) -> tf.Tensor:
    """Returns the weight alpha_i of a client, float32 []; zero without examples."""
    if self.client_weighting == tff.learning.ClientWeighting.UNIFORM:
      return tf.where(num_examples > 0, 1.0, 0.0)
    return tf.cast(num_examples, tf.float32)

  def client(self, held: Any, stream: int) -> Client:
    """Returns the client that holds a value: its seed and index, each None without a function."""
    seed = index = None
    if self.seed_fn is not None:
      # The order of the client's examples, which its update shows, may be drawn from the same seed.
      seed = noise_source.for_purpose(self.seed_fn(held), f"noise {stream}")
    if self.index_fn is not None:
      index = tf.cast(self.index_fn(held), tf.int32)
    return Client(seed, index)


@dataclasses.dataclass(frozen=True)
class ClientHooks:
  """Changes a client's round for one algorithm.

  Attributes:
    proximal_strength: mu of FedProx: adds mu / 2 |w_i - w|^2 to the local objective.
    damping_fn: A TensorFlow function from (loss F_i(w), update w - w_i, the round's hparams of the
      optimizer) to the factor d_i, float32 [], by which the update is divided and its weight
      multiplied; None for 1. It needs a threshold, for which losses are computed.
    report_fn: A TensorFlow function from (update, its weight in the average, float32 [],
      `threshold.Client`) to the value that a client reports in place of its update, whether it
      trained or not; None for the update itself.
  """

  proximal_strength: float = 0.0
  damping_fn: Callable[[tf.Tensor, Any, Any], tf.Tensor] | None = None
  report_fn: Callable[[Any, tf.Tensor, Client], Any] | None = None

  def __post_init__(self) -> None:
    strength = checks.not_negative("proximal_strength", self.proximal_strength)
    object.__setattr__(self, "proximal_strength", strength)
