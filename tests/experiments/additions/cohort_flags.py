"""A noisy number of a round as somebody adds it: its flags. The third of three files."""

import dataclasses

import cohort_count

from privacy.settings import flag
from tff_superquantile.experiments.run.parts import privacy


@dataclasses.dataclass(frozen=True, kw_only=True)
class CohortSize(privacy.Number):
  """The size of the cohort, with noise."""

  kind = cohort_count.CohortCount
  ratio: float | None = flag.field(
    None, "The count's part of the budget; without it nothing is counted.", name="cohort_rho_ratio"
  )
  z: float | None = flag.field(
    None, "Noise on the count of clients over its sensitivity.", name="cohort_noise_multiplier"
  )

  def build(self, norm):
    import cohort_sum  # --help needs no TensorFlow.

    return cohort_sum.CohortSum(self.noise)
