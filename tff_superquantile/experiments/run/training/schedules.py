"""The learning rates of clients by the round. `SCHEDULES` is the only place that knows them.

The rate of round t = 0, ..., T - 1 is gamma_t = gamma_0 f(t), with gamma_0 = --client_learning_rate
and a row's factor f. Importing this starts no TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import math
from typing import Any

Config = Any  # A `RunConfig`, whose choices of --learning_rate_schedule are the rows here.


@dataclasses.dataclass(frozen=True)
class Schedule:
  """A row of `SCHEDULES`.

  Attributes:
    factor: Returns f(t) in (0, 1] from a config, t, and the module with the functions for numbers
      like t: `math`, or `tf.math` for a float32 tensor.
    flags: The flags of this schedule alone.
    needs_num_rounds: Whether f depends on T, so that a run cannot be continued with another one.
  """

  factor: Callable[[Config, Any, Any], Any]
  flags: tuple[str, ...] = ()
  needs_num_rounds: bool = True


# The value of --learning_rate_schedule.
SCHEDULES: dict[str, Schedule] = {
  # c^floor(t / t_0), the paper's.
  "step": Schedule(
    lambda config, t, ops: ops.pow(config.learning_rate_decay, t // config.rounds_per_decay),
    flags=("learning_rate_decay", "rounds_per_decay"),
    needs_num_rounds=False,
  ),
  # Loshchilov and Hutter, "SGDR", 2017, without restarts.
  "cosine": Schedule(lambda config, t, ops: 0.5 * (1.0 + ops.cos(math.pi * t / config.num_rounds))),
  "linear": Schedule(lambda config, t, ops: 1.0 - t / config.num_rounds),
}


def check(config: Config) -> None:
  """Raises a `ValueError` for a flag of another schedule, before the task's are filled in."""
  for name, schedule in SCHEDULES.items():
    for flag in schedule.flags if name != config.learning_rate_schedule else ():
      if getattr(config, flag) is not None:
        raise ValueError(
          f"Found --{flag}={getattr(config, flag)} with --learning_rate_schedule="
          f"{config.learning_rate_schedule}; it belongs to {name}, so leave it out."
        )


def has_flag(config: Config, flag: str) -> bool:
  """Returns whether a flag means something to a config's schedule, or to all of them."""
  others = (row.flags for name, row in SCHEDULES.items() if name != config.learning_rate_schedule)
  return not any(flag in flags for flags in others)


def is_constant(config: Config) -> bool:
  """Returns whether all rounds of a resolved config have the same learning rate."""
  return config.learning_rate_schedule == "step" and config.learning_rate_decay == 1.0


def learning_rate(config: Config, round_num: int) -> float:
  """Returns gamma_t of a resolved config for t = `round_num`, from 0."""
  factor = SCHEDULES[config.learning_rate_schedule].factor
  return config.client_learning_rate * factor(config, float(round_num), math)


def build_learning_rate_fn(config: Config) -> Callable[[Any], Any] | None:
  """Returns gamma_t as a function of an int32 tensor t from 0; None for a constant rate."""
  if is_constant(config):
    return None
  import tensorflow as tf  # --help needs no TensorFlow.

  factor = SCHEDULES[config.learning_rate_schedule].factor
  return lambda round_num: (
    config.client_learning_rate * factor(config, tf.cast(round_num, tf.float32), tf.math)
  )
