"""The parameters of a distributed private sum of vectors: no server sees an update, only the sum.

The mechanism. Each client i holds a vector x_i in R^d of l2 norm at most C. It sends

    (round(s x_i) + xi_i) mod M,    xi_i ~ N_Z(0, sigma_local^2 I_d) discrete Gaussian,

and a secure sum releases the sum modulo M, and nothing else. Rounding moves a vector by at most
sqrt(d) / 2, so under zero-out adjacency (one client's x_i replaced by zeros; its noise stays) the
l2-sensitivity of the sum of the rounded vectors is at most s C + sqrt(d) / 2. With k clients the
noise has a standard deviation of sigma_local sqrt(k), and the release costs what the Gaussian
mechanism with noise multiplier z = sigma_local sqrt(k) / (s C + sqrt(d) / 2) costs, up to the slack
of `tree_mechanism.discreteness_slack` for each coordinate. The modulus matters to utility only.
"""

import dataclasses
import math

from privacy import tree_mechanism

# Rounding then adds at most one part in a hundred to the sensitivity.
_STEPS_PER_ROOT_OF_ENTRIES = 50.0
_FAILURE_PROBABILITY = 1e-6


@dataclasses.dataclass(frozen=True)
class SumMechanism:
  """Parameters of the private sum, derived by `build_sum_mechanism`.

  Attributes:
    noise_multiplier: z_w, when `min_clients` clients report.
    clip_norm: C.
    num_entries: d.
    min_clients: k_min; with fewer reports there is less noise than promised, and no result.
    max_clients: n_max; with more reports the sum may wrap, and there is no result.
    scale: s, steps of the integers in a unit of the vectors.
    local_stddev: sigma_local, of the noise of one client on one scaled entry.
    modulus: M. Sums are decoded around zero.
  """

  noise_multiplier: float
  clip_norm: float
  num_entries: int
  min_clients: int
  max_clients: int
  scale: float
  local_stddev: float
  modulus: int

  @property
  def largest_entry(self) -> int:
    """The largest absolute value of a rounded entry, before noise."""
    return math.ceil(self.scale * self.clip_norm + 0.5)

  @property
  def bits_per_client(self) -> int:
    """Bits on the wire for one client in one round, before encryption."""
    return self.num_entries * (self.modulus - 1).bit_length()


def build_sum_mechanism(
  noise_multiplier: float,
  clip_norm: float,
  num_entries: int,
  *,
  min_clients: int,
  max_clients: int,
) -> SumMechanism:
  """Derives all parameters of the private sum from what one wants of it.

  Args:
    noise_multiplier: z_w.
    clip_norm: C.
    num_entries: d, how many numbers a vector has.
    min_clients: k_min, the fewest reports with which a result is released.
    max_clients: n_max.

  Returns:
    A `SumMechanism`: the scale is such that rounding adds at most a hundredth to the sensitivity
    and a client's noise is at least 1.5, the modulus such that nothing wraps but with a chance of
    1e-6.

  Raises:
    ValueError: If a number is out of its range.
  """
  noise_multiplier = tree_mechanism.check_positive("noise_multiplier", noise_multiplier)
  clip_norm = tree_mechanism.check_positive("clip_norm", clip_norm)
  if num_entries < 1:
    raise ValueError(f"Found num_entries = {num_entries}; expected at least 1.")
  if not 1 <= min_clients <= max_clients:
    raise ValueError(
      f"Found min_clients = {min_clients} and max_clients = {max_clients}; expected"
      " 1 <= min_clients <= max_clients."
    )
  rounding = math.sqrt(num_entries) / 2.0
  root = math.sqrt(min_clients)
  norm_in_steps = max(
    _STEPS_PER_ROOT_OF_ENTRIES * math.sqrt(num_entries),
    tree_mechanism.MIN_LOCAL_STDDEV * root / noise_multiplier,
  )
  local_stddev = noise_multiplier * (norm_in_steps + rounding) / root
  margin = math.ceil(
    local_stddev
    * math.sqrt(max_clients)
    * math.sqrt(2.0 * math.log(2.0 * num_entries / _FAILURE_PROBABILITY))
  )
  modulus = 2 * (max_clients * math.ceil(norm_in_steps + 0.5) + margin) + 1
  return SumMechanism(
    noise_multiplier=noise_multiplier,
    clip_norm=clip_norm,
    num_entries=int(num_entries),
    min_clients=int(min_clients),
    max_clients=int(max_clients),
    scale=norm_in_steps / clip_norm,
    local_stddev=local_stddev,
    modulus=int(modulus),
  )
