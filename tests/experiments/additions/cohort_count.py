"""A noisy number of a round as somebody adds it: its flags and accounting. One of two files."""

import dataclasses

from privacy import parts
from privacy.settings import flag


@dataclasses.dataclass(frozen=True, kw_only=True)
class CohortCount(parts.ReleasedNumber):
  """The number of clients that train, by their shares: a client adds at most 1."""

  share: float | None = flag.field(
    None, "The count's part of the budget; without it nothing is counted.", name="cohort_rho_ratio"
  )
  noise_multiplier: float | None = flag.field(
    None, "Noise on the count of clients over its sensitivity.", name="cohort_noise_multiplier"
  )
  flag = "cohort_noise_multiplier"
  label = "clients that train"
  symbol = "z_c"
  share_flag = "cohort_rho_ratio"
  seen = "numbers of clients"
  released = "a count of the clients that train"
  noted = "the count of the clients that train"
  column = "noisy_cohort_size"
  usual_share = 0.05
  share_help = "the budget of the count of the clients over that of all before it; by default none"
  noise_help = "z_c, noise of the count of the clients over its sensitivity"

  def build(self, norm):
    import cohort_sum  # --help needs no TensorFlow.

    return cohort_sum.CohortSum(self.z)
