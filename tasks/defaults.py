"""The defaults that each task states for its experiment."""

from collections.abc import Mapping
import types
from typing import Any

WEIGHTINGS = ("num_examples", "uniform")

# The defaults that every task states, with their type and least value.
DEFAULTS: Mapping[str, tuple[type, float | None]] = types.MappingProxyType(
  {
    "num_rounds": (int, 1),
    "clients_per_round": (int, 1),
    "client_learning_rate": (float, 0.0),
    "batch_size": (int, 0),  # 0: the whole local data set is one batch.
    "local_epochs": (int, 1),
    "l2": (float, 0.0),  # lambda of the paper's (lambda / 2) ||w||^2.
    "client_weighting": (str, None),  # One of WEIGHTINGS.
    "learning_rate_decay": (float, 0.0),  # Factor; 1.0 for a constant rate.
    "rounds_per_decay": (int, 1),
    "rounds_per_evaluation": (int, 1),
    "max_loss": (float, 0.0),  # B: private thresholds tell losses apart up to here.
  }
)


def check(name: str, defaults: Mapping[str, int | float | str]) -> None:
  """Raises a `ValueError` unless a task's defaults have every key of `DEFAULTS`, and its range."""
  differing = set(defaults) ^ set(DEFAULTS)
  if differing:
    raise ValueError(
      f"Task {name!r} has defaults that differ from what a task states in"
      f" {sorted(differing)}; state each of {sorted(DEFAULTS)}."
    )
  for key, (value_type, least) in DEFAULTS.items():
    value: Any = defaults[key]
    accepted: Any = (int, float) if value_type is float else value_type
    if not isinstance(value, accepted) or isinstance(value, bool):
      raise ValueError(f"Task {name!r} has {key} = {value!r}; expected a {value_type.__name__}.")
    if least is not None and not value >= least:  # Also refuses NaN.
      raise ValueError(f"Task {name!r} has {key} = {value!r}; expected at least {least}.")
  if defaults["client_weighting"] not in WEIGHTINGS:
    raise ValueError(
      f"Task {name!r} has client_weighting = {defaults['client_weighting']!r}; expected"
      f" one of {WEIGHTINGS}."
    )
