"""The thresholds of superquantile runs. `THRESHOLDS` is the only place that builds one.

A private threshold has a row in `privacy.releases.THRESHOLDS`, too, which says how its release is
accounted for. Importing this starts no TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import tff_superquantile

if TYPE_CHECKING:
  from privacy.noise import tree_mechanism

tsq: Any = tff_superquantile  # Its names are loaded on first use.
Config = Any  # A `RunConfig`, whose choices of --threshold are the rows here.


@dataclasses.dataclass(frozen=True)
class Threshold:
  """A row of `THRESHOLDS`.

  Attributes:
    build: Returns the threshold for `build_superquantile_fed_avg`, from a run's config, the key of
      its noise, 16 bytes, and the tree that its private release accounts for, if any.
    is_private: Whether its noise hides the losses from the server, or from readers of its releases.
    needs_noise: Whether it has noise in every run. Another private one has none in a run without
      `--threshold_noise_multiplier`.
  """

  build: Callable[[Config, bytes, tree_mechanism.TreeMechanism | None], Any]
  is_private: bool = False
  needs_noise: bool = True


def _build_primal_dual(
  config: Config, key: bytes, tree: tree_mechanism.TreeMechanism | None
) -> Any:
  del tree
  if config.threshold_noise_multiplier is None:
    return functools.partial(tsq.build_primal_dual_quantile, step=config.threshold_step)
  return functools.partial(
    tsq.build_private_primal_dual_quantile,
    noise_multiplier=config.threshold_noise_multiplier,
    expected_clients=config.clients_per_round,
    step=config.threshold_step,
    noise_key=key,
  )


def histogram_keywords(
  config: Config, key: bytes, tree: tree_mechanism.TreeMechanism | None
) -> dict[str, Any]:
  """Returns the keywords of all that is built on a private histogram, as `Threshold.build`."""
  if tree is None:  # A run without a budget has no release.
    from privacy.noise import tree_mechanism  # --help needs no accountant.

    assert config.threshold_noise_multiplier is not None  # `build.resolve` sees to it.
    tree = tree_mechanism.build_tree_mechanism(
      config.threshold_noise_multiplier, config.num_bins, config.clients_per_round
    )
  return dict(mechanism=tree, max_loss=config.max_loss, secure_sum=config.secure_sum, noise_key=key)


# The value of --threshold, which names the folders of its runs, too.
THRESHOLDS: dict[str, Threshold] = {
  "exact": Threshold(lambda config, key, tree: "exact"),
  "reweighting": Threshold(
    lambda config, key, tree: functools.partial(
      tsq.threshold.build_exact_reweighting, smoothing=config.smoothing
    )
  ),
  "tree": Threshold(
    lambda config, key, tree: functools.partial(
      tsq.build_tree_quantile, **histogram_keywords(config, key, tree)
    ),
    is_private=True,
  ),
  "geometric": Threshold(
    lambda config, key, tree: functools.partial(
      tsq.build_geometric_quantile,
      noise_multiplier=config.threshold_noise_multiplier,
      expected_clients=config.clients_per_round,
      initial_estimate=config.max_loss,
      noise_key=key,
    ),
    is_private=True,
  ),
  "primal_dual": Threshold(_build_primal_dual, is_private=True, needs_noise=False),
}


def private() -> tuple[str, ...]:
  """Returns the names of the private thresholds."""
  return tuple(name for name, threshold in THRESHOLDS.items() if threshold.is_private)
