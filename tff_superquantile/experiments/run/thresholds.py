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
from tff_superquantile.experiments.run import methods

if TYPE_CHECKING:
  from privacy import releases
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


def check(config: Config) -> None:
  """Checks the threshold of a resolved run that is not private.

  Raises:
    ValueError: If flags of the threshold are missing or contradict each other.
  """
  methods.theta_of(config)
  threshold, threshold_noise_multiplier = config.threshold, config.threshold_noise_multiplier
  if config.smoothing and threshold != "reweighting":
    raise ValueError(
      f"Found --smoothing={config.smoothing} with --threshold={threshold}; only reweighting is"
      " smoothed."
    )
  row = THRESHOLDS[threshold or "exact"]
  if row.is_private and row.needs_noise and threshold_noise_multiplier is None:
    raise ValueError(
      f"Found --threshold={threshold} without --threshold_noise_multiplier; give the noise's"
      " standard deviation over the sensitivity, for example 1.0."
    )
  if not row.is_private and threshold_noise_multiplier is not None:
    raise ValueError(
      f"Found --threshold_noise_multiplier with --threshold={threshold}, which has no noise; use"
      f" one of {', '.join(private())}."
    )
  if threshold == "tree" and config.sampling != "fixed_size":
    raise ValueError(
      f"Found --threshold=tree with --sampling={config.sampling} in a run without a budget; the"
      " fewest clients of a round follow from one. Use --sampling=fixed_size."
    )
  build(config, None, None)  # A tree checks its bins and its noise.


def build(config: Config, release: releases.Release | None, key: bytes | None) -> dict[str, Any]:
  """Builds what a run makes of the clients' losses.

  Args:
    config: From `build.resolve`.
    release: The releases of a round, for private runs.
    key: The key from which their noise follows.

  Returns:
    `threshold` and `histogram` of `methods.Ingredients`, each None where there is none.
  """
  found: dict[str, Any] = dict(threshold=None, histogram=None)
  if config.threshold is None:
    return found
  if key is None:
    # Without a budget there is no claim: noise may be as public as the seed.
    from tff_superquantile.simulation import seeds  # --help needs no NumPy.

    key = seeds.client_seed(config.seed, 0, "noise of the server").tobytes()
  arguments = (config, key, None if release is None else release.tree)
  if methods.METHODS[config.algorithm].has_threshold:
    return {**found, "threshold": THRESHOLDS[config.threshold].build(*arguments)}
  return {**found, "histogram": histogram_keywords(*arguments)}
