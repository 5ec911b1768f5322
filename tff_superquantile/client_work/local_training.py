"""A client's work: in every algorithm (`LocalTraining`), and in one (`ClientHooks`)."""

import collections.abc
import dataclasses
import functools
import numbers
from typing import Any, Callable, NamedTuple, Optional, Union

import tensorflow as tf
import tensorflow_federated as tff

from privacy import checks
from tff_superquantile import noise_source
from tff_superquantile import threshold as threshold_lib
from tff_superquantile.client_work import cohort_metrics
from tff_superquantile.client_work import hparams
from tff_superquantile.client_work import local_model
from tff_superquantile.client_work import local_update

# What a client draws comes from streams of its own, so that its seed may serve other ends, too.
_THRESHOLD_STREAM, _UPDATE_STREAM, _NUM_STREAMS = 0, 1, 2


class ClientData(NamedTuple):
  """Describes the value that a client holds.

  Attributes:
    type: Its type.
    read: A TensorFlow function from a value of that type to the client's `local_update.Examples`.
  """

  type: tff.Type
  read: Callable[[Any], local_update.Examples]


def _check_whole_number(name: str, value: int, minimum: int) -> None:
  checks.of_type(name, value, numbers.Integral, "a whole number")
  if value < minimum:
    raise ValueError(f"Found {name} = {value}; expected a whole number of at least {minimum}.")


def _as_client_weighting(
  weighting: Union[str, tff.learning.ClientWeighting],
) -> tff.learning.ClientWeighting:
  """Returns the member of the enumeration itself, or the one of that name."""
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
  input_spec: Any, examples_fn: Optional[tf.types.experimental.GenericFunction]
) -> ClientData:
  """Returns what a client holds: data sets of batches, or what `examples_fn` takes."""
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

  The fields are the keyword arguments of the algorithms that concern a client, and have the same
  meaning: see `algorithms.Options`.

  Attributes:
    model_fn: A `FunctionalModel`, or a no-argument function that returns a `VariableModel`.
    optimizer: Takes the local steps.

  Raises:
    ValueError: If a number is out of its range, or `local_batch_size` is missing beside an
      `examples_fn`.
    TypeError: If a field is not of its documented type.
  """

  model_fn: local_model.Model
  optimizer: tff.learning.optimizers.Optimizer
  client_weighting: Union[str, tff.learning.ClientWeighting] = (
    tff.learning.ClientWeighting.NUM_EXAMPLES
  )
  metrics_aggregator: Optional[cohort_metrics.MetricsAggregator] = None
  client_learning_rate_fn: Optional[hparams.LearningRateFn] = None
  local_epochs: int = 1
  local_batch_size: Optional[int] = None
  l2: float = 0.0
  examples_fn: Optional[tf.types.experimental.GenericFunction] = None
  seed_fn: Optional[Callable[[Any], tf.Tensor]] = None
  index_fn: Optional[Callable[[Any], tf.Tensor]] = None

  def __post_init__(self) -> None:
    checks.of_type(
      "optimizer",
      self.optimizer,
      tff.learning.optimizers.Optimizer,
      "a tff.learning.optimizers.Optimizer",
    )
    object.__setattr__(self, "client_weighting", _as_client_weighting(self.client_weighting))
    for name in ("metrics_aggregator", "client_learning_rate_fn", "seed_fn", "index_fn"):
      checks.of_type(
        name, getattr(self, name), (collections.abc.Callable, type(None)), "a function or None"
      )
    _check_whole_number("local_epochs", self.local_epochs, 1)
    if self.local_batch_size is not None:
      _check_whole_number("local_batch_size", self.local_batch_size, 0)
    object.__setattr__(self, "l2", checks.not_negative("l2", self.l2))
    if self.examples_fn is not None and self.local_batch_size is None:
      raise ValueError("Found an examples_fn without local_batch_size; give one (0: all).")

  # Cached, because the construction of a model may take long.
  @functools.cached_property
  def model(self) -> local_model.ModelDescription:
    """Describes the model: its types and metrics."""
    return local_model.describe(self.model_fn)

  @functools.cached_property
  def data(self) -> ClientData:
    """Describes the value that a client holds, and reads its examples from it."""
    return _build_client_data(self.model.input_spec, self.examples_fn)

  def weight(self, num_examples: tf.Tensor) -> tf.Tensor:
    """Returns the weight alpha_i of a client, float32 []; zero without examples."""
    if self.client_weighting == tff.learning.ClientWeighting.UNIFORM:
      return tf.where(num_examples > 0, 1.0, 0.0)
    return tf.cast(num_examples, tf.float32)

  def client_of_threshold(self, held: Any) -> threshold_lib.Client:
    """Returns the client as the threshold knows it, from what it holds."""
    return self._client(held, _THRESHOLD_STREAM)

  def client_of_update(self, held: Any) -> threshold_lib.Client:
    """Returns the same client with the seed of what its update's report draws."""
    return self._client(held, _UPDATE_STREAM)

  def _client(self, held: Any, stream: int) -> threshold_lib.Client:
    seed = index = None
    if self.seed_fn is not None:
      seed = noise_source.split(self.seed_fn(held), _NUM_STREAMS)[stream]
    if self.index_fn is not None:
      index = tf.cast(self.index_fn(held), tf.int32)
    return threshold_lib.Client(seed, index)


@dataclasses.dataclass(frozen=True)
class ClientHooks:
  """Changes a client's round for one algorithm.

  Attributes:
    proximal_strength: mu of FedProx: adds mu / 2 |w_i - w|^2 to the local objective.
    damping_fn: A TensorFlow function from (loss F_i(w), update w - w_i, the round's hparams of the
      optimizer) to the factor d_i, float32 [], by which the update is divided and its weight
      multiplied; None for 1. Only beside a threshold, for which losses are computed.
    report_fn: A TensorFlow function from (update, `threshold.Client`) to what a client reports in
      place of its update, whether it trained or not; None for the update itself.
  """

  proximal_strength: float = 0.0
  damping_fn: Optional[Callable[[tf.Tensor, Any, Any], tf.Tensor]] = None
  report_fn: Optional[Callable[[Any, threshold_lib.Client], Any]] = None

  def __post_init__(self) -> None:
    strength = checks.not_negative("proximal_strength", self.proximal_strength)
    object.__setattr__(self, "proximal_strength", strength)
