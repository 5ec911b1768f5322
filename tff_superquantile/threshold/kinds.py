"""Builds the thresholds that runs name: a builder for each class of `privacy.parts.THRESHOLDS`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from privacy import parts
from tff_superquantile import noise_source
from tff_superquantile.threshold import exact
from tff_superquantile.threshold import geometric
from tff_superquantile.threshold import primal_dual
from tff_superquantile.threshold import process
from tff_superquantile.threshold import tree
from tff_superquantile.threshold.adaptive_theta import Theta


class OfRun(NamedTuple):
  """What a threshold needs to know of its run.

  Attributes:
    expected_clients: The (expected) number of clients of a round.
    max_loss: B, up to which a private release tells losses apart, and from which a tracker starts.
    noise_key: Key of the server's noise, 16 bytes, or a `BandedKey`; None for fresh entropy.
  """

  expected_clients: float
  max_loss: float
  noise_key: noise_source.NoiseKey = None


# Takes theta, the threshold with its noise, and its run.
Builder: TypeAlias = Callable[[Theta, Any, OfRun], process.ThresholdProcess]


def histogram(threshold: parts.Tree, of_run: OfRun) -> dict[str, Any]:
  """Returns the keywords of all that is built on the private histogram."""
  return dict(
    mechanism=threshold.tree,
    max_loss=of_run.max_loss,
    secure_sum=threshold.secure_sum,
    noise_key=of_run.noise_key,
  )


def tracker(threshold: parts.OneBit, of_run: OfRun) -> dict[str, Any]:
  """Returns the keywords of all that follow a quantile by one private bit a client."""
  return dict(
    noise_multiplier=threshold.z,
    expected_clients=of_run.expected_clients,
    noise_key=of_run.noise_key,
  )


def _primal_dual(
  theta: Theta, threshold: parts.PrimalDual, of_run: OfRun
) -> process.ThresholdProcess:
  step = threshold.threshold_step
  if threshold.noise_multiplier is None:
    return primal_dual.build_primal_dual_quantile(theta, step=step)
  return primal_dual.build_private_primal_dual_quantile(
    theta, step=step, **tracker(threshold, of_run)
  )


BUILDERS: dict[type[parts.Threshold], Builder] = {
  parts.Exact: lambda theta, threshold, of_run: exact.build_exact_quantile(theta),
  parts.Reweighting: lambda theta, threshold, of_run: exact.build_exact_reweighting(
    theta, smoothing=threshold.smoothing
  ),
  parts.Tree: lambda theta, threshold, of_run: tree.build_tree_quantile(
    theta, **histogram(threshold, of_run)
  ),
  parts.Geometric: lambda theta, threshold, of_run: geometric.build_geometric_quantile(
    theta, initial_estimate=of_run.max_loss, **tracker(threshold, of_run)
  ),
  parts.PrimalDual: _primal_dual,
}


def build(threshold: parts.Threshold | None, of_run: OfRun) -> process.ThresholdFn | None:
  """Returns the function from theta to a threshold's process, by its class; None for none.

  A class from elsewhere may have a method `build` of (theta, of_run) in place of a row.
  """
  if threshold is None:
    return None
  builder = BUILDERS.get(type(threshold))
  if builder is None:
    return lambda theta: threshold.build(theta, of_run)
  return lambda theta: builder(theta, threshold, of_run)
