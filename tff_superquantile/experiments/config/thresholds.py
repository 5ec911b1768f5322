"""Builds the thresholds of runs: a builder for each class of `privacy.parts.THRESHOLDS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
import dataclasses
import functools
from typing import Any

from privacy import parts
import tff_superquantile

tsq: Any = tff_superquantile  # Its names are loaded on first use.


def histogram(inputs: BuildInputs) -> dict[str, Any]:
  """Returns the keywords of all that is built on the private histogram of a run.

  Args:
    inputs: The values of the run, whose threshold is a `parts.Tree`.

  Returns:
    The mechanism, `max_loss` and the noise key.
  """
  threshold = inputs.threshold
  assert isinstance(threshold, parts.Tree)  # Methods choose it.
  return dict(
    mechanism=threshold.mechanism,
    max_loss=inputs.max_loss,
    noise_key=inputs.noise_key,
  )


def tracker(threshold: parts.OneBit, inputs: BuildInputs) -> dict[str, Any]:
  """Returns the keywords of all that follow a quantile by one private bit a client.

  Args:
    threshold: The part, with its noise.
    inputs: The values of the run.

  Returns:
    The noise multiplier, the expected clients of a round and the noise key.
  """
  return dict(
    noise_multiplier=threshold.z,
    expected_clients=inputs.clients_per_round,
    noise_key=inputs.noise_key,
  )


def _primal_dual(threshold: parts.PrimalDual, inputs: BuildInputs) -> Any:
  step = threshold.threshold_step
  if threshold.noise_multiplier is None:
    return functools.partial(tsq.build_primal_dual_quantile, step=step)
  noise = tracker(threshold, inputs)
  return functools.partial(tsq.build_private_primal_dual_quantile, step=step, **noise)


# Each makes a function from theta to a `ThresholdProcess`.
BUILDERS: dict[type[parts.Threshold], Callable[[Any, BuildInputs], Any]] = {
  parts.Exact: lambda threshold, inputs: tsq.threshold.build_exact_quantile,
  parts.Reweighting: lambda threshold, inputs: functools.partial(
    tsq.threshold.build_exact_reweighting, smoothing=threshold.smoothing
  ),
  parts.Tree: lambda threshold, inputs: functools.partial(
    tsq.build_tree_quantile, **histogram(inputs)
  ),
  parts.Geometric: lambda threshold, inputs: functools.partial(
    tsq.build_geometric_quantile, initial_estimate=inputs.max_loss, **tracker(threshold, inputs)
  ),
  parts.PrimalDual: _primal_dual,
}


def build(inputs: BuildInputs) -> Any:
  """Returns the run's threshold for `build_superquantile_fed_avg`; None for none.

  Args:
    inputs: The values of the run.

  Returns:
    A function from theta to a `ThresholdProcess`, or None.

  Raises:
    TypeError: If the threshold's class has no builder.
  """
  if inputs.threshold is None:
    return None
  for kind in type(inputs.threshold).__mro__:
    builder = BUILDERS.get(kind, vars(kind).get("build"))
    if builder is not None:
      return builder(inputs.threshold, inputs)
  raise TypeError(
    f"Found no builder of {type(inputs.threshold).__name__}; expected one in BUILDERS."
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuildInputs:
  """The values from which a method builds its learning process.

  Attributes:
    work: Keywords of every builder: the model, the optimizer, and the work of a client. In a
      private run also its `Private`.
    num_clients: The number of training clients.
    clients_per_round: The (expected) number of clients of a round.
    max_loss: B, up to which a private release tells losses apart.
    threshold: The method's, in a private run that of the release, with its noise.
    noise_key: The key of the threshold's noise, 16 bytes or a `BandedKey`.
    seed_fn: Reads a client's seed.
    index_fn: Reads a client's number.
  """

  work: Mapping[str, Any]
  num_clients: int
  clients_per_round: float
  max_loss: float
  threshold: parts.Threshold | None
  noise_key: Any
  seed_fn: Callable[[Any], Any]
  index_fn: Callable[[Any], Any]
