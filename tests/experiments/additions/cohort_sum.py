"""A noisy number of a round as somebody adds it: its sum. The other of two files."""

import dataclasses

from tff_superquantile import secure_sums


@dataclasses.dataclass(frozen=True)
class CohortSum(secure_sums.Number):
  """Adds up the clients' shares, each 1 in a run without a threshold."""

  z: float
  name = "noisy_cohort_size"
  sensitivity = 1.0
  initial = 0.0

  @property
  def noise_multiplier(self):
    return self.z

  def of_client(self, length, limit, share):
    return share

  def of_round(self, state, mean, share_sum):
    return state, mean * share_sum
