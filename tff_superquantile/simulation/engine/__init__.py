"""Runs federated computations in this process, a whole cohort at once."""

from tff_superquantile.simulation.engine.cohort_context import AsyncCohortContext
from tff_superquantile.simulation.engine.cohort_context import CohortContext

__all__ = ("AsyncCohortContext", "CohortContext")
