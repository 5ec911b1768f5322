"""Keras optimizers as TFF optimizers.

TFF 0.87 builds its processes from pure `tff.learning.optimizers.Optimizer`s; a Keras optimizer
keeps variables, which a functional model cannot hold. Those with a TFF counterpart are converted
from their configuration and take the same steps; others are refused with the reason.
"""

from typing import Any, Callable, Union

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

OptimizerOrKerasFn = Union[
  tff.learning.optimizers.Optimizer, Callable[[], tf.keras.optimizers.Optimizer]
]

_NOT_CONVERTED = {
  "nesterov": False,
  "amsgrad": False,
  "centered": False,
  "clipnorm": None,
  "clipvalue": None,
  "global_clipnorm": None,
  "use_ema": False,
  "weight_decay": None,
}


def _build_sgd(learning_rate: float, config: dict[str, Any]) -> tff.learning.optimizers.Optimizer:
  return tff.learning.optimizers.build_sgdm(learning_rate, config["momentum"] or None)


def _build_adam(learning_rate: float, config: dict[str, Any]) -> tff.learning.optimizers.Optimizer:
  return tff.learning.optimizers.build_adam(
    learning_rate, config["beta_1"], config["beta_2"], config["epsilon"]
  )


def _build_adagrad(
  learning_rate: float, config: dict[str, Any]
) -> tff.learning.optimizers.Optimizer:
  return tff.learning.optimizers.build_adagrad(
    learning_rate, config["initial_accumulator_value"], config["epsilon"]
  )


_BUILDERS = {"SGD": _build_sgd, "Adam": _build_adam, "Adagrad": _build_adagrad}


def as_tff_optimizer(
  optimizer: OptimizerOrKerasFn, name: str = "optimizer"
) -> tff.learning.optimizers.Optimizer:
  """Returns `optimizer` itself, or the TFF optimizer that equals what the function builds.

  Args:
    optimizer: A `tff.learning.optimizers.Optimizer`, or a no-argument function that returns a
      `tf.keras.optimizers` SGD (with or without momentum), Adam or Adagrad.
    name: What errors call it.

  Returns:
    A `tff.learning.optimizers.Optimizer`.

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
  unsupported = [
    f"{option}={config[option]}"
    for option, neutral in _NOT_CONVERTED.items()
    if config.get(option, neutral) not in (neutral, None, False, 0)
  ]
  learning_rate = config["learning_rate"]
  is_constant = isinstance(learning_rate, (int, float, np.floating))  # A schedule is a dict.
  if keras_name not in _BUILDERS or not is_constant or unsupported:
    raise ValueError(
      f"Found the Keras optimizer {keras_name}({', '.join(unsupported) or learning_rate}), which"
      f" has no TFF counterpart; use plain {', '.join(_BUILDERS)} with a constant learning rate, or"
      " one of tff.learning.optimizers."
    )
  return _BUILDERS[keras_name](float(learning_rate), config)
