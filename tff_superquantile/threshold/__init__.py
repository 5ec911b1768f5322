"""Turns the losses of a cohort into each client's share of the average.

The thresholds of superquantile aggregation (exact, tree, geometric, primal-dual) give shares of 0
or 1. The soft weightings belong to the other methods and give shares in between, relative to the
cohort's losses (soft) or by a client's own loss alone (own_loss).
"""

from tff_superquantile.threshold.exact import build_exact_quantile
from tff_superquantile.threshold.exact import build_exact_reweighting
from tff_superquantile.threshold.exact import build_threshold
from tff_superquantile.threshold.exact import sorted_tail
from tff_superquantile.threshold.own_loss import OwnShareFn
from tff_superquantile.threshold.own_loss import build_own_loss_weighting
from tff_superquantile.threshold.own_loss import build_power_share
from tff_superquantile.threshold.own_loss import build_proportional_share
from tff_superquantile.threshold.own_loss import build_tilted_share
from tff_superquantile.threshold.primal_dual import build_primal_dual_quantile
from tff_superquantile.threshold.primal_dual import build_private_primal_dual_quantile
from tff_superquantile.threshold.private_histogram import PrivateHistogramFactory
from tff_superquantile.threshold.process import Client
from tff_superquantile.threshold.process import Rows
from tff_superquantile.threshold.process import ThresholdFn
from tff_superquantile.threshold.process import ThresholdProcess
from tff_superquantile.threshold.process import build_process_of_losses
from tff_superquantile.threshold.quantile_tracker import build_geometric_quantile
from tff_superquantile.threshold.soft.histogram import build_histogram_weighting
from tff_superquantile.threshold.soft.per_client import build_ftrl
from tff_superquantile.threshold.soft.per_client import build_mirror_ascent
from tff_superquantile.threshold.soft.relative import RelativeShare
from tff_superquantile.threshold.soft.relative import build_power_weighting
from tff_superquantile.threshold.soft.relative import build_rank_share
from tff_superquantile.threshold.soft.relative import build_relative_weighting
from tff_superquantile.threshold.soft.relative import build_semi_variance_share
from tff_superquantile.threshold.soft.relative import build_variance_share
from tff_superquantile.threshold.soft.tilting import build_tilting
from tff_superquantile.threshold.tree import build_tree_quantile

__all__ = (
  "Client",
  "OwnShareFn",
  "PrivateHistogramFactory",
  "RelativeShare",
  "Rows",
  "ThresholdFn",
  "ThresholdProcess",
  "build_exact_quantile",
  "build_exact_reweighting",
  "build_ftrl",
  "build_geometric_quantile",
  "build_histogram_weighting",
  "build_mirror_ascent",
  "build_own_loss_weighting",
  "build_power_share",
  "build_power_weighting",
  "build_primal_dual_quantile",
  "build_private_primal_dual_quantile",
  "build_process_of_losses",
  "build_proportional_share",
  "build_rank_share",
  "build_relative_weighting",
  "build_semi_variance_share",
  "build_threshold",
  "build_tilted_share",
  "build_tilting",
  "build_tree_quantile",
  "build_variance_share",
  "sorted_tail",
)
