"""Converts Keras optimizers to TFF optimizers.

TFF 0.87 builds its processes from pure `tff.learning.optimizers.Optimizer`s; a Keras optimizer
keeps variables, which a functional model cannot hold. Optimizers with a TFF counterpart are
converted from their configuration and take the same steps; others are refused with the reason.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

OptimizerOrKerasFn: TypeAlias = (
  tff.learning.optimizers.Optimizer | Callable[[], tf.keras.optimizers.Optimizer]
)

# An optimizer with one of these options takes other steps than its TFF counterpart.
_NOT_CONVERTED = (
  "nesterov",
  "amsgrad",
  "centered",
  "clipnorm",
  "clipvalue",
  "global_clipnorm",
  "use_ema",
  "weight_decay",
)
_BUILDERS: dict[str, Callable[[float, dict[str, Any]], tff.learning.optimizers.Optimizer]] = {
  "SGD": lambda rate, config: tff.learning.optimizers.build_sgdm(rate, config["momentum"] or None),
  "Adam": lambda rate, config: tff.learning.optimizers.build_adam(
    rate, config["beta_1"], config["beta_2"], config["epsilon"]
  ),
  "Adagrad": lambda rate, config: tff.learning.optimizers.build_adagrad(
    rate, config["initial_accumulator_value"], config["epsilon"]
  ),
}


def as_tff_optimizer(
  optimizer: OptimizerOrKerasFn, name: str = "optimizer"
) -> tff.learning.optimizers.Optimizer:
  """Returns a TFF optimizer as it is, and a Keras optimizer as the TFF optimizer that equals it.

  Args:
    optimizer: A `tff.learning.optimizers.Optimizer`, or a no-argument function that returns a
      `tf.keras.optimizers` SGD (with or without momentum), Adam or Adagrad.
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
  config = keras_optimizer.get_config()
  keras_name = type(keras_optimizer).__name__
  unsupported = [f"{option}={config[option]}" for option in _NOT_CONVERTED if config.get(option)]
  learning_rate = config["learning_rate"]
  is_constant = isinstance(learning_rate, (int, float, np.floating))  # A schedule is a dict.
  if keras_name not in _BUILDERS or not is_constant or unsupported:
    raise ValueError(
      f"Found the Keras optimizer {keras_name}({', '.join(unsupported) or learning_rate}), which"
      f" has no TFF counterpart; use plain {', '.join(_BUILDERS)} with a constant learning rate, or"
      " one of tff.learning.optimizers."
    )
  return _BUILDERS[keras_name](float(learning_rate), config)
