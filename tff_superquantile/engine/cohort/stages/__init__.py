"""Cohorts in blocks: a computation is cut at its aggregations into stages."""

from tff_superquantile.engine.cohort.stages.functions import Named
from tff_superquantile.engine.cohort.stages.staged import Blocks
from tff_superquantile.engine.cohort.stages.staged import LocalBlocks
from tff_superquantile.engine.cohort.stages.staged import Stages
from tff_superquantile.engine.cohort.stages.staged import add_up
from tff_superquantile.engine.cohort.stages.staged import groups
from tff_superquantile.engine.cohort.stages.staged import split

__all__ = ("Blocks", "LocalBlocks", "Named", "Stages", "add_up", "groups", "split")
