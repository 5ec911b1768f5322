"""The parameters of a distributed private sum of vectors: no server sees an update, only the sum.

The mechanism. Each client i holds a vector x_i in R^d of l2 norm at most C. It sends

    (round(s x_i) + xi_i) mod M,    xi_i ~ N_Z(0, sigma_local^2 I_d) discrete Gaussian,

and a secure sum releases the sum modulo M, which is completed to the noise of K shares (see
`shares`). Rounding moves a vector by at most sqrt(d) / 2, so under zero-out adjacency (one client's
x_i replaced by zeros) and under addition or removal of a client the l2-sensitivity of the sum of
the rounded vectors is at most Delta = s C + sqrt(d) / 2. Guarantee: by the theorem of `shares` the
release is the Gaussian mechanism of noise multiplier z, for any d, up to `shares.slack` for each
coordinate, with K sigma_local^2 = (z Delta)^2 + 2. The modulus matters to utility only.
"""

import dataclasses
import math

from privacy import checks
from privacy.noise import shares
from privacy.noise import tree_mechanism

# With so many steps, rounding adds at most one part in a hundred to the sensitivity.
_STEPS_PER_ROOT_OF_ENTRIES = 50.0


@dataclasses.dataclass(frozen=True)
class SumMechanism:
  """Parameters of the private sum, derived by `build_sum_mechanism`."""

  noise_multiplier: float  # z_w.
  clip_norm: float  # C.
  num_entries: int  # d.
  num_shares: int  # K, shares of noise in the sum; with more reports there is no result.
  scale: float  # s, steps of the integers in a unit of the vectors.
  local_stddev: float  # sigma_local, of the noise of one client on one scaled entry.
  modulus: int  # M. Sums are decoded around zero.

  @property
  def sensitivity(self) -> float:
    """Delta = s C + sqrt(d) / 2, of the rounded vectors."""
    return self.scale * self.clip_norm + math.sqrt(self.num_entries) / 2.0

  @property
  def bits_per_client(self) -> int:
    """Bits on the wire for one client in one round, before encryption."""
    return self.num_entries * (self.modulus - 1).bit_length()


def build_sum_mechanism(
  noise_multiplier: float, clip_norm: float, num_entries: int, num_shares: int
) -> SumMechanism:
  """Derives the parameters of the private sum of vectors of d numbers and norm C, with K shares.

  The scale is such that rounding adds at most a hundredth to the sensitivity and a client's noise
  is at least `shares.MIN_STDDEV`, the modulus such that nothing wraps but with a chance of 1e-6.

  Args:
    noise_multiplier: z, the noise's standard deviation over the sensitivity.
    clip_norm: C, in the l2 norm.
    num_entries: d, at least 1.
    num_shares: K, at least 1.

  Returns:
    The parameters.

  Raises:
    ValueError: If an argument is out of its range, or sums would not fit 64 bits.
  """
  noise_multiplier = checks.scale("noise_multiplier", noise_multiplier)
  clip_norm = checks.scale("clip_norm", clip_norm)
  num_entries = checks.whole("num_entries", num_entries, 1)
  num_shares = checks.whole("num_shares", num_shares, 1)
  norm_in_steps = max(
    _STEPS_PER_ROOT_OF_ENTRIES * math.sqrt(num_entries),
    tree_mechanism.least_sensitivity(noise_multiplier, num_shares),
  )
  sensitivity = norm_in_steps + math.sqrt(num_entries) / 2.0
  local_stddev = shares.share_stddev(noise_multiplier, sensitivity, num_shares)
  margin = tree_mechanism.wrap_margin(local_stddev * math.sqrt(num_shares), num_entries)
  modulus = 2 * (num_shares * math.ceil(norm_in_steps + 0.5) + margin) + 1
  tree_mechanism.check_modulus(modulus, noise_multiplier)
  return SumMechanism(
    noise_multiplier=noise_multiplier,
    clip_norm=clip_norm,
    num_entries=num_entries,
    num_shares=num_shares,
    scale=norm_in_steps / clip_norm,
    local_stddev=local_stddev,
    modulus=modulus,
  )
