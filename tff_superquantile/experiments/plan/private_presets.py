"""The experiments with privacy budgets that `run_experiments.sh` knows by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.plan import preset as preset_lib

# The paper's delta, norms of gradients and grid. The values without tuning are the best of the
# paper's grid at epsilon 5, for all epsilons.
_PAPERS_UNITS = dict(delta=1 / 2500, clip_unit="gradient")
# The paper's norms, 0.9 to 1.5, are quantiles over clients as they train, which cost budget. Of
# FedAvg's gradients in rounds 500 to 1000, the median and the 0.9-quantile are 0.95 and 1.35 over
# training clients, and 1.7 and 2.4 over the validation clients, who are nobody's secret.
_CLIP_NORMS = (0.9, 1.3, 1.7, 2.4)
# docs/paper.md finds what was measured by names of runs whose updates have the server's noise. With
# --secure the experiment has the paper's sums, and no threshold whose noise the server makes.
# Of methods with and without privacy, on the same clients, who are nobody's secret.
_BESIDE_PUBLIC = dict(exact_siblings=run_config.ALLOWED)
_BUDGET_RATIO = dict(rho_ratio=preset_lib.Grid((0.1, 0.25, 0.5, 0.75), default=None, tune="all"))
_PRIVATE_SYNTHETIC = dict(
  fed_avg=dict(
    _PAPERS_UNITS, clip_norm=preset_lib.Grid((0.9, 1.5, 1.7, 2.4), default=1.5, tune="all")
  ),
  geometric=dict(
    _PAPERS_UNITS,
    **_BUDGET_RATIO,
    clip_norm=preset_lib.Grid(_CLIP_NORMS, default=1.3, tune="all"),
  ),
  tree=dict(
    _PAPERS_UNITS,
    **_BUDGET_RATIO,
    clip_norm=preset_lib.Grid(_CLIP_NORMS, default=1.3, tune="all"),
    max_loss=preset_lib.Grid((0.7, 0.9, 1.1, 1.3, 1.5), default=0.9, tune="all"),
    num_bins=preset_lib.Grid((16, 32, 64), default=16, tune="all"),
  ),
)


def _weighted(**flags: Any) -> dict[str, Mapping[str, Any]]:
  """Returns the flags of private methods without a threshold, whose losses above B count as B."""
  by_loss = dict.fromkeys(("q_fed_avg", "tilted_erm", "prop_fair"), flags)
  return {**by_loss, **dict.fromkeys(("semi_vred", "gifair", "eagle"), {**flags, "num_bins": 16})}


def _private_fairness(
  utility_bounds: preset_lib.Grid,
  threshold_step: float | preset_lib.Grid,
  private_flags: Mapping[str, Mapping[str, Any]],
  **fields: Any,
) -> preset_lib.Preset:
  """Returns the comparison of every method that can be private, with and without budgets.

  PropFair's M has values above B. The step of the primal-dual threshold is in units of the loss.
  The private flags are those of `Preset`; the geometric threshold's are the primal-dual's, too.
  """
  step = dict(threshold_step=threshold_step)
  return preset_lib.Preset(
    thetas=(0.5, 0.25),
    seeds=preset_lib.FIVE_SEEDS,
    baselines=(
      dict(algorithm="q_fed_avg", q=preset_lib.Grid((0.3, 1.0, 3.0, 10.0), default=3.0)),
      dict(algorithm="tilted_erm", temperature=preset_lib.Grid((0.3, 1.0, 3.0, 10.0), default=3.0)),
      dict(algorithm="prop_fair", utility_bound=utility_bounds),
      dict(algorithm="semi_vred", beta=preset_lib.Grid((1.0, 3.0, 10.0), default=3.0)),
      dict(algorithm="gifair", fairness_strength=preset_lib.Grid((0.3, 1.0), default=1.0)),
      dict(algorithm="aaggff", decision_step=preset_lib.Grid((0.1, 1.0, 10.0), default=1.0)),
    ),
    variants=tuple(dict(theta=theta, threshold="primal_dual", **step) for theta in (0.5, 0.25)),
    with_public=True,
    private_flags={**private_flags, "primal_dual": {**private_flags["geometric"], **step}},
    **fields,
  )


PRESETS: Mapping[str, preset_lib.Preset] = {
  "private_synthetic": preset_lib.Preset(
    **preset_lib.SYNTHETIC,
    thetas=(0.5, 0.25),
    seeds=preset_lib.FIVE_SEEDS,
    quick_flags=dict(num_rounds=50, rounds_per_evaluation=10),
    epsilons=(3.0, 5.0, 10.0, 15.0, 20.0),
    private_flags=_PRIVATE_SYNTHETIC,
  ),
  "private_fairness": _private_fairness(
    **preset_lib.SYNTHETIC,
    flags=_BESIDE_PUBLIC,
    quick_flags=dict(num_rounds=50, rounds_per_evaluation=10),
    epsilons=(1.0, 3.0, 5.0, 10.0, 20.0),
    utility_bounds=preset_lib.Grid((1.6, 2.0, 3.0), default=2.0),
    threshold_step=0.01,
    private_flags={
      **_PRIVATE_SYNTHETIC,
      **_weighted(**_PAPERS_UNITS, clip_norm=1.5, max_loss=0.9),
    },
  ),
  "private_fairness_emnist": _private_fairness(
    task="emnist_linear",
    # Of each seed the same writers are trained on, with privacy and without.
    flags=dict(_BESIDE_PUBLIC, num_rounds=100, rounds_per_evaluation=10, split_seed=0),
    quick_flags=preset_lib.FEWER_ROUNDS,
    # Hundreds or thousands of writers are few: with a smaller budget nothing is learned.
    epsilons=(5.0, 10.0, 20.0),
    # Above the task's B of 4, which runs without a budget have.
    utility_bounds=preset_lib.Grid((4.5, 6.0, 10.0), default=6.0),
    # Losses fall from 4.1 to 0.4 in a hundred rounds, and the threshold has to follow.
    threshold_step=preset_lib.Grid((0.03, 0.1, 0.3), default=0.1),
    private_flags={
      "fed_avg": dict(clip_norm="adaptive"),
      "geometric": dict(clip_norm="adaptive", max_loss=2.0),
      "tree": dict(clip_norm="adaptive", max_loss=2.0, num_bins=16),
      **_weighted(clip_norm="adaptive", max_loss=2.0),
    },
  ),
}
