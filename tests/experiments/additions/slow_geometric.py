"""A private threshold as somebody adds it: a tracker that takes smaller steps. One file."""

from privacy import parts
import tff_superquantile as tsq


class SlowGeometric(parts.OneBit):
  """`build_geometric_quantile` with a quarter of its learning rate: a bit a client, as of that."""

  kind = "slow_geometric"
  gain = 0.03
  released = "a one-bit count of losses, followed slowly"

  def build(self, theta, of_run):
    return tsq.build_geometric_quantile(
      theta,
      learning_rate=0.05,
      initial_estimate=of_run.max_loss,
      **tsq.threshold.kinds.tracker(self, of_run),
    )
