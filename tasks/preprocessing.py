"""Describes the way from examples as people have them to the input of a task's model."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Preprocessing:
  """What an exported model does with an example before the network sees it.

  Attributes:
    raw_spec: Type of a batch of raw examples, with the name of the input.
    description: What a raw example is, in words that continue "Input: ".
    apply: Takes a batch of raw examples, returns the model's x. It consists of TensorFlow's ops and
      `layers`, so that a graph and Keras can follow it alike.
    x_spec: Type of that x.
    layers: Keras layers that `apply` calls, none of which is trainable.
    probe: Makes (raw examples, their x as the run computes it) for a check of an exported model;
      None if there is no other way to x than `apply`.
    arrays: The numbers and texts of `apply` by name, for programs that rebuild it; empty where it
      is the identity, or nobody has written them down.
  """

  raw_spec: tf.TensorSpec
  description: str
  apply: Callable[[Any], Any]
  x_spec: tf.TensorSpec
  layers: Sequence[tf.keras.layers.Layer] = ()
  probe: Callable[[], tuple[np.ndarray, np.ndarray]] | None = None
  arrays: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

  @property
  def input_spec(self) -> tuple[tf.TensorSpec, tf.TensorSpec]:
    """Returns the type of what a model is trained on: (x, y int32 [None])."""
    return self.x_spec, tf.TensorSpec([None], tf.int32)


def none(x_spec: tf.TensorSpec) -> Preprocessing:
  """Builds the preprocessing of a model whose own input is what people have.

  Args:
    x_spec: Type of a batch of the model's x.

  Returns:
    The preprocessing, whose raw examples are x.
  """
  raw_spec = tf.TensorSpec(x_spec.shape, x_spec.dtype, "features")
  return Preprocessing(raw_spec, "the features as the model takes them", tf.identity, x_spec)
