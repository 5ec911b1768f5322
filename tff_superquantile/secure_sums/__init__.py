"""Computes private sums over the clients: secure sums of integers, with noise."""

from tff_superquantile.secure_sums.adaptive_clipping import AdaptiveClipNorm
from tff_superquantile.secure_sums.adaptive_clipping import AdaptiveClippingSumFactory
from tff_superquantile.secure_sums.gaussian_sum import GaussianSum
from tff_superquantile.secure_sums.noisy_sum import DistributedGaussianSumFactory
from tff_superquantile.secure_sums.noisy_sum import NoisySumFactory

__all__ = (
  "AdaptiveClipNorm",
  "AdaptiveClippingSumFactory",
  "DistributedGaussianSumFactory",
  "GaussianSum",
  "NoisySumFactory",
)
