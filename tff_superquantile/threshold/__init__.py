"""Turns the losses of a cohort into each client's share of the average.

The thresholds of superquantile aggregation (exact, tree, geometric) give shares of 0 or 1, the soft
weightings of the methods that it is compared with shares in between.
"""

import collections.abc
from typing import Callable, Union

from privacy import checks
from tff_superquantile.threshold.adaptive_theta import AdaptiveTheta
from tff_superquantile.threshold.adaptive_theta import Theta
from tff_superquantile.threshold.exact import build_exact_quantile
from tff_superquantile.threshold.exact import build_exact_reweighting
from tff_superquantile.threshold.geometric import build_geometric_quantile
from tff_superquantile.threshold.private_histogram import PrivateHistogramFactory
from tff_superquantile.threshold.process import Client
from tff_superquantile.threshold.process import ThresholdProcess
from tff_superquantile.threshold.process import build_process_of_losses
from tff_superquantile.threshold.soft import build_mirror_ascent
from tff_superquantile.threshold.soft import build_power_weighting
from tff_superquantile.threshold.soft import build_tilting
from tff_superquantile.threshold.tree import build_tree_quantile

__all__ = (
  "AdaptiveTheta",
  "Client",
  "PrivateHistogramFactory",
  "Theta",
  "ThresholdFn",
  "ThresholdProcess",
  "build_exact_quantile",
  "build_exact_reweighting",
  "build_geometric_quantile",
  "build_mirror_ascent",
  "build_power_weighting",
  "build_process_of_losses",
  "build_threshold",
  "build_tilting",
  "build_tree_quantile",
)

ThresholdFn = Callable[[Theta], ThresholdProcess]

_BUILDERS: dict[str, ThresholdFn] = {
  "exact": build_exact_quantile,
  "reweighting": build_exact_reweighting,
}


def build_threshold(threshold: Union[str, ThresholdFn], theta: Theta) -> ThresholdProcess:
  """Builds the threshold process that `threshold` names.

  Args:
    threshold: "exact" (the server sees the losses and takes their quantile), "reweighting" (the
      paper's exact reweighting), or a function of theta that returns a `ThresholdProcess`, such as
      a `functools.partial` of `build_tree_quantile` or `build_geometric_quantile`.
    theta: The tail fraction, in (0, 1], or an `AdaptiveTheta`.

  Returns:
    A `ThresholdProcess`.

  Raises:
    ValueError: If the name is unknown or theta is outside (0, 1].
    TypeError: If an argument is not of its documented type, or the function does not return a
      `ThresholdProcess`.
  """
  if not isinstance(threshold, str):
    checks.of_type(
      "threshold",
      threshold,
      collections.abc.Callable,
      f"one of {sorted(_BUILDERS)} or a function of theta that returns a ThresholdProcess",
    )
    build = threshold
  elif threshold in _BUILDERS:
    build = _BUILDERS[threshold]
  else:
    raise ValueError(
      f"Found threshold = {threshold!r}; expected one of {sorted(_BUILDERS)} or a function of"
      " theta that returns a ThresholdProcess."
    )
  process = build(theta)
  if not isinstance(process, ThresholdProcess):
    raise TypeError(f"Found a {type(process).__name__} for a threshold; expected ThresholdProcess.")
  return process
