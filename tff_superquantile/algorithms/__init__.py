"""Builds learning processes, each algorithm in a file of its own."""

from tff_superquantile.algorithms.aaggff import build_aaggff
from tff_superquantile.algorithms.agnostic_fed_avg import build_agnostic_fed_avg
from tff_superquantile.algorithms.eagle import build_eagle
from tff_superquantile.algorithms.fed_avg import build_fed_avg
from tff_superquantile.algorithms.fed_avg import build_weighted_fed_avg
from tff_superquantile.algorithms.fed_prox import build_fed_prox
from tff_superquantile.algorithms.gifair import build_gifair
from tff_superquantile.algorithms.learning_process import Options
from tff_superquantile.algorithms.learning_process import build_averaged
from tff_superquantile.algorithms.private.dp_mean import dp_mean_factory
from tff_superquantile.algorithms.private.private import Private
from tff_superquantile.algorithms.prop_fair import build_prop_fair
from tff_superquantile.algorithms.q_fed_avg import build_q_fed_avg
from tff_superquantile.algorithms.semi_vred import build_semi_vred
from tff_superquantile.algorithms.superquantile_family import build_superquantile_family
from tff_superquantile.algorithms.superquantile_fed_avg import build_superquantile_fed_avg
from tff_superquantile.algorithms.tilted_erm import build_tilted_erm
from tff_superquantile.noise_source import BandedKey
from tff_superquantile.secure_sums import AdaptiveClipNorm

__all__ = (
  "AdaptiveClipNorm",
  "BandedKey",
  "Options",
  "Private",
  "build_aaggff",
  "build_agnostic_fed_avg",
  "build_averaged",
  "build_eagle",
  "build_fed_avg",
  "build_fed_prox",
  "build_gifair",
  "build_prop_fair",
  "build_q_fed_avg",
  "build_semi_vred",
  "build_superquantile_family",
  "build_superquantile_fed_avg",
  "build_tilted_erm",
  "build_weighted_fed_avg",
  "dp_mean_factory",
)
