"""The parts of a run's name: what tells it from others of its algorithm."""

from __future__ import annotations

import os
import pathlib
from typing import NamedTuple

from tff_superquantile.experiments.run import methods
from tff_superquantile.experiments.run import run_config

# Fields that are numbers of a run's name without being parameters of its method: their names in a
# folder, and for people.
_NUMBERS = {
  "smoothing": ("smoothing", "ν"),
  "epsilon": ("epsilon", "ε"),
  "threshold_noise_multiplier": ("z", "z"),
  "update_noise_multiplier": ("update_z", "update z"),
}
# Fields whose values are words of a run's name: the value that is left out, and the words for
# people where they differ from those of the folder.
_WORDS: dict[str, tuple[str, dict[str, str]]] = {
  "server_optimizer": (
    "sgd",
    {"adam": "server Adam", "yogi": "server Yogi", "adagrad": "server Adagrad"},
  ),
  "keep": ("last", {"best": "best round"}),
  "update_sum": ("central", {"distributed": "distributed noise"}),
  "noise_shares": ("complement", {"private_coin": "private coin"}),
  "relation": ("zero_out", {"replace_one": "replace one"}),
}


# What runs share that are compared, unless a --run_name says that they do not.
_SETTING = (
  *("num_rounds", "clients_per_round", "local_epochs", "batch_size", "client_learning_rate", "l2"),
  *("client_momentum", "learning_rate_schedule", "server_learning_rate"),
)


class Part(NamedTuple):
  """A part of a run's name.

  Attributes:
    folder: Its text in names of folders.
    title: Its text for people.
    number: Its number, by which methods of one budget are sorted; None for others.
  """

  folder: str
  title: str
  number: float | None = None


def _number(config: run_config.RunConfig, field: str, short: str, symbol: str) -> list[Part]:
  """Returns the part of a number; none where it has no value."""
  value = getattr(config, field)
  if value is None:
    return []
  # A wide tail comes first.
  key = -float(value) if field == "theta" else float(value)
  return [Part(f"{short}_{value:g}", f"{symbol} = {value:g}", key)]


def is_in_setting_of(
  config: run_config.RunConfig | None, other: run_config.RunConfig | None
) -> bool:
  """Returns whether a run can be compared with another; it can unless its --run_name hides more."""
  if config is None or other is None or not config.run_name:
    return True
  return all(getattr(config, name) == getattr(other, name) for name in _SETTING)


def of_method(config: run_config.RunConfig) -> list[Part]:
  """Returns the parameters of a run's method."""
  parts = []
  for one in methods.METHODS[config.algorithm].parameters:
    # With `wanted_updates`, the number of updates decides theta.
    if one.short and (one.name != "theta" or config.wanted_updates is None):
      parts += _number(config, one.name, one.short, one.symbol)
  return parts


def of_run(config: run_config.RunConfig) -> list[Part]:
  """Returns the parts that tell a run from others of its algorithm, in the order of its name."""
  parts = of_method(config)
  threshold = config.threshold if methods.METHODS[config.algorithm].has_threshold else None
  if threshold is not None and threshold != "exact":
    parts.append(Part(threshold, threshold.replace("_", "-")))
  if config.smoothing:
    parts += _number(config, "smoothing", *_NUMBERS["smoothing"])
  for field, (usual, titles) in _WORDS.items():
    value = getattr(config, field)
    if value != usual:
      parts.append(Part(value, titles.get(value, value)))
  if config.initial_weights:
    start = pathlib.Path(os.path.abspath(config.initial_weights)).parent.name  # Its method.
    parts.append(Part(f"from_{start}", f"from {start}"))
  if config.clip_norm == run_config.ADAPTIVE:
    parts.append(Part("adaptive_clip", "adaptive clip"))
  if config.epsilon is not None:  # The noise multipliers follow from it.
    (epsilon,) = _number(config, "epsilon", *_NUMBERS["epsilon"])
    return [*parts, epsilon._replace(number=None)]
  for field in ("threshold_noise_multiplier", "update_noise_multiplier"):
    parts += _number(config, field, *_NUMBERS[field])
  return parts
