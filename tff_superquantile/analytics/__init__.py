"""Estimates the distribution of one number a client, with differential privacy."""

from tff_superquantile.analytics.release import Estimate
from tff_superquantile.analytics.release import PrivateDistribution
from tff_superquantile.analytics.release import build_private_distribution
from tff_superquantile.analytics.release import private_distribution

__all__ = (
  "Estimate",
  "PrivateDistribution",
  "build_private_distribution",
  "private_distribution",
)
