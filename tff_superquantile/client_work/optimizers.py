"""Converts Keras optimizers to TFF optimizers.

TFF 0.87 builds its processes from pure `tff.learning.optimizers.Optimizer`s; a Keras optimizer
keeps variables, which a functional model cannot hold. Optimizers with a TFF counterpart are
converted from their options and take the same steps; all others are refused with the reason.
"""

from collections.abc import Callable
import copy
import inspect
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

OptimizerOrKerasFn: TypeAlias = (
  tff.learning.optimizers.Optimizer | Callable[[], tf.keras.optimizers.Optimizer]
)

_PLAIN_SGD = type(tff.learning.optimizers.build_sgdm())
# What an option may be without an effect on the steps of these optimizers.
_WITHOUT_EFFECT = ("name", "jit_compile", "ema_momentum", "ema_overwrite_frequency")
# Options of Keras 2's older optimizers that their configuration leaves out.
_UNSAID = ("gradient_aggregator", "gradient_transformers")
# By the class itself, as a subclass may take other steps: the options of the TFF optimizer, in its
# order, and what builds it. Keras's older Adagrad adds epsilon to the root, the others under it.
_BUILDERS: dict[type, tuple[tuple[str, ...], Callable[..., tff.learning.optimizers.Optimizer]]] = {
  **dict.fromkeys(
    (tf.keras.optimizers.SGD, tf.keras.optimizers.legacy.SGD),
    (("learning_rate", "momentum"), tff.learning.optimizers.build_sgdm),
  ),
  **dict.fromkeys(
    (tf.keras.optimizers.Adam, tf.keras.optimizers.legacy.Adam),
    (("learning_rate", "beta_1", "beta_2", "epsilon"), tff.learning.optimizers.build_adam),
  ),
  tf.keras.optimizers.Adagrad: (
    ("learning_rate", "initial_accumulator_value", "epsilon"),
    tff.learning.optimizers.build_adagrad,
  ),
}


def _others(optimizer: tf.keras.optimizers.Optimizer, converted: tuple[str, ...]) -> list[str]:
  """Returns the options of an optimizer, as text, that its TFF counterpart does not have."""
  numbers = (int, float, np.number)
  plain = type(optimizer)()
  config, defaults = optimizer.get_config(), plain.get_config()
  refused = []
  for name in {**inspect.signature(type(optimizer)).parameters, **config, **dict.fromkeys(_UNSAID)}:
    value = config.get(name, getattr(optimizer, name, None))
    if name in converted:
      # A schedule is a dictionary in the configuration; a function is asked, and is no variable.
      is_constant = isinstance(getattr(optimizer, name), (*numbers, tf.Variable))
      is_other = not (isinstance(value, numbers) and is_constant)
    else:
      is_other = value != defaults.get(name, getattr(plain, name, None))
    if is_other and name not in _WITHOUT_EFFECT:
      refused.append(f"{name}={value}")
  return refused


def as_tff_optimizer(
  optimizer: OptimizerOrKerasFn, name: str = "optimizer"
) -> tff.learning.optimizers.Optimizer:
  """Returns a TFF optimizer as it is, and a Keras optimizer as the TFF optimizer that equals it.

  Args:
    optimizer: A `tff.learning.optimizers.Optimizer`, or a no-argument function that returns a
      `tf.keras.optimizers` SGD (with or without momentum), Adam or Adagrad, or `legacy` SGD or
      Adam, but no subclass of these. The gradients of embeddings are dense, as in TFF, while
      legacy SGD with momentum leaves rows alone that a batch does not have.
    name: The name of the argument in errors.

  Returns:
    The TFF optimizer.

  Raises:
    TypeError: If `optimizer` is neither.
    ValueError: If the Keras optimizer has no TFF counterpart that takes the same steps.
  """
  if isinstance(optimizer, tff.learning.optimizers.Optimizer):
    return optimizer
  keras_optimizer = optimizer() if callable(optimizer) else None
  keras_bases = (tf.keras.optimizers.Optimizer, tf.keras.optimizers.legacy.Optimizer)
  if not isinstance(keras_optimizer, keras_bases):
    raise TypeError(
      f"Found {name} = {optimizer!r}; expected a tff.learning.optimizers.Optimizer or a no-argument"
      " function that returns a Keras optimizer."
    )
  kind = type(keras_optimizer)
  options, build = _BUILDERS.get(kind, ((), None))
  others = _others(keras_optimizer, options) if build else []
  if build is None or others:
    raise ValueError(
      f"Found the Keras optimizer {kind.__module__}.{kind.__name__}({', '.join(others)}), which"
      " has no TFF counterpart that takes the same steps; use tf.keras.optimizers.SGD, Adam or"
      " Adagrad with constant numbers, or one of tff.learning.optimizers."
    )
  config = keras_optimizer.get_config()
  return build(*(float(config[option]) for option in options))


def with_rate_in_loss(
  optimizer: tff.learning.optimizers.Optimizer, state: Any
) -> tuple[Any, tf.Tensor]:
  """Moves the learning rate of plain SGD from its state to the loss; returns (state, scale []).

  A step w - gamma grad F(w) is one of size 1 on gamma F. The loss's gradient is multiplied where it
  is a number, and the weights' gradients, as large as the model, are not. Others have scale 1.
  """
  rate = tff.learning.optimizers.LEARNING_RATE_KEY
  if type(optimizer) is not _PLAIN_SGD or set(state) != {rate}:
    return state, tf.constant(1.0)
  return optimizer.set_hparams(state, {rate: 1.0}), tf.cast(state[rate], tf.float32)


def without_autograph(optimizer: tff.learning.optimizers.Optimizer) -> Any:
  """Returns an optimizer, of which autograph does not look at TFF's own: there is no need."""
  if not type(optimizer).__module__.startswith("tensorflow_federated."):
    return optimizer
  unconverted = copy.copy(optimizer)
  vars(unconverted)["next"] = tf.autograph.experimental.do_not_convert(optimizer.next)
  return unconverted
