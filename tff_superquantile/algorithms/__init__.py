"""Learning processes: one algorithm a file, each a `build_*` function."""

from tff_superquantile.algorithms.fed_avg import build_fed_avg
from tff_superquantile.algorithms.private_superquantile_fed_avg import (
  build_private_superquantile_fed_avg,
)
from tff_superquantile.algorithms.superquantile_fed_avg import build_superquantile_fed_avg

__all__ = ("build_fed_avg", "build_private_superquantile_fed_avg", "build_superquantile_fed_avg")
