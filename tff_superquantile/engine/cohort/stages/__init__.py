"""Cohorts in blocks: a computation is cut at its aggregations into stages."""

from tff_superquantile.engine.cohort.stages.block_functions import BlockFunction
from tff_superquantile.engine.cohort.stages.block_functions import MapBlocks
from tff_superquantile.engine.cohort.stages.staged import Stages

__all__ = ("BlockFunction", "MapBlocks", "Stages")
