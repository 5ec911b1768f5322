"""A private threshold as somebody adds it: a tracker that takes smaller steps. One file."""

import tff_superquantile as tsq


def build_slow_geometric_quantile(theta, **keywords):
  """Builds `build_geometric_quantile` with a quarter of its learning rate."""
  return tsq.build_geometric_quantile(theta, learning_rate=0.05, **keywords)
