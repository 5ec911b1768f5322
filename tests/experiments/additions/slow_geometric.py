"""A private threshold as somebody adds it: a tracker that takes smaller steps. One file."""

import dataclasses
import functools

from privacy import parts
import tff_superquantile as tsq
from tff_superquantile.experiments.run.parts import thresholds


class Count(parts.OneBit):
  """Its release: a bit a client, as of `build_geometric_quantile`."""

  kind = "slow_geometric"
  gain = 0.03
  released = "a one-bit count of losses, followed slowly"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlowGeometric(thresholds.Private):
  """`build_geometric_quantile` with a quarter of its learning rate."""

  def build(self, run):
    return functools.partial(
      tsq.build_geometric_quantile,
      learning_rate=0.05,
      noise_multiplier=self.noise_multiplier,
      expected_clients=run.clients_per_round,
      initial_estimate=run.max_loss,
      noise_key=run.noise_key,
    )
