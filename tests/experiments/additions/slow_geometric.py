"""A private threshold as somebody adds it: a tracker that takes smaller steps. One file."""

import functools

from privacy import parts
import tff_superquantile as tsq
from tff_superquantile.experiments.run.parts import thresholds


class SlowGeometric(parts.OneBit):
  """`build_geometric_quantile` with a quarter of its learning rate: a bit a client, as of that."""

  kind = "slow_geometric"
  gain = 0.03
  released = "a one-bit count of losses, followed slowly"

  def build(self, run):
    return functools.partial(
      tsq.build_geometric_quantile,
      learning_rate=0.05,
      initial_estimate=run.max_loss,
      **thresholds.tracker(self, run),
    )
