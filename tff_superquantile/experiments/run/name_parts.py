"""The parts of a run's name: what tells it from others of its algorithm."""

from __future__ import annotations

from collections.abc import Mapping
import os
import pathlib
from typing import Any, NamedTuple

from privacy import parts as parts_lib
from tff_superquantile.experiments.run import run_config
from tff_superquantile.experiments.run.parts import methods


class NamePart(NamedTuple):
  """A part of a run's name: its text in names of folders, and for people.

  Methods of one budget are sorted by its number; None for others.
  """

  folder: str
  title: str
  number: float | None = None


def word(name: str) -> str:
  """Returns how names of folders tell a name, also one of a part from outside, MODULE:CLASS."""
  return name.replace(":", ".")


def _number(values: Mapping[str, Any], name: str) -> list[NamePart]:
  """Returns the part of a number among the values of flags; none where it has no value."""
  value, one = values[name], run_config.flags()[name]
  if value is None:
    return []
  # A wide tail comes first.
  key = -float(value) if name == "theta" else float(value)
  return [NamePart(f"{one.short}_{value:g}", f"{one.symbol} = {value:g}", key)]


def is_in_setting_of(
  config: run_config.RunConfig | None, other: run_config.RunConfig | None
) -> bool:
  """Returns whether a run can be compared with another; it can unless its --run_name hides more."""
  if config is None or other is None or not config.run_name:
    return True
  settings = (
    (one.num_rounds, one.cohort.size, one.local, one.server.learning_rate)
    for one in (config, other)
  )
  return len(set(settings)) == 1


def of_method(config: run_config.RunConfig) -> list[NamePart]:
  """Returns the parameters of a run's method."""
  parts, found = [], config.values()
  for one in methods.parameters(type(config.method)):
    # With `wanted_updates`, the number of updates decides theta.
    if one.name != "theta" or found["wanted_updates"] is None:
      parts += _number(found, one.name)
  return parts


def of_run(config: run_config.RunConfig) -> list[NamePart]:
  """Returns the parts that tell a run from others of its algorithm, in the order of its name."""
  parts = of_method(config)
  found = config.values()
  is_tail = isinstance(config.method, methods.Superquantile)
  threshold = found["threshold"] if is_tail else None
  if threshold is not None and threshold != "exact":
    parts.append(NamePart(word(threshold), threshold.replace("_", "-")))
  if found["smoothing"]:
    parts += _number(found, "smoothing")
  if found["averaged_rounds"] > 1:
    parts += _number(found, "averaged_rounds")
  for name, one in run_config.flags().items():
    if found.get(name) in one.words:
      parts.append(NamePart(found[name], one.words[found[name]]))
  if config.start is not None:
    start = pathlib.Path(os.path.abspath(config.start.folder)).parent.name  # Its method.
    parts.append(NamePart(f"from_{start}", f"from {start}"))
  if config.privacy is not None and isinstance(config.privacy.clip, parts_lib.AdaptiveClip):
    parts.append(NamePart("adaptive_clip", "adaptive clip"))
  parts += _number(found, "bands")
  if config.epsilon is not None:  # The noise multipliers follow from it.
    (epsilon,) = _number(found, "epsilon")
    return [*parts, epsilon._replace(number=None)]
  for field in ("threshold_noise_multiplier", "update_noise_multiplier"):
    parts += _number(found, field)
  return parts
