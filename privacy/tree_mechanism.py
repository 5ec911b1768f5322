"""The parameters of the private histogram: from a noise multiplier to what goes over the wire.

The mechanism. Each client i holds x_i in {0, 1}^d, the binary hierarchical histogram of its loss
with b bins: L = log2 b ones among d = 2 b - 2 nodes. It sends (c x_i + xi_i) mod M with independent
discrete Gaussian noise xi_i ~ N_Z(0, sigma_local^2 I_d), and a secure sum releases

    y = (sum_i c x_i + sum_i xi_i) mod M,

and nothing else. Under zero-out adjacency (one client's x_i replaced by zeros; its noise stays) the
l2-sensitivity of sum_i c x_i is c sqrt(L). With k clients the noise has a standard deviation of
s = sigma_local sqrt(k), so that y costs what the Gaussian mechanism with noise multiplier
z = s / (c sqrt(L)) costs, rho = 1 / (2 z^2), up to the slack of `discreteness_slack`. Reduction
modulo M and all decoding are post-processing: the modulus matters to utility only.
"""

import dataclasses
import math
from typing import Optional

import numpy as np

# Below this standard deviation of a client's noise a sum of discrete Gaussians is not close enough
# to one for the Gaussian's cost to hold.
MIN_LOCAL_STDDEV = 1.5

_SENSITIVITIES = ("l2", "paper")


@dataclasses.dataclass(frozen=True)
class TreeMechanism:
  """Parameters of the private histogram, derived by `build_tree_mechanism`.

  Attributes:
    noise_multiplier: z_q, the noise's standard deviation over the sensitivity when `min_clients`
      clients report.
    num_bins: b, a power of two.
    expected_clients: How many clients are expected to report.
    min_clients: k_min; with fewer reports there is less noise than promised, and no result.
    max_clients: n_max; with more reports the sum may wrap, and there is no result.
    scale: c, the integer with which counts are multiplied.
    local_stddev: sigma_local, of the noise of one client on one scaled node.
    modulus: M.
    offset: Sums are decoded into -offset..M - offset - 1.
    sensitivity: "l2", or "paper" for the paper's recipe, which is not private by its formulas.
  """

  noise_multiplier: float
  num_bins: int
  expected_clients: int
  min_clients: int
  max_clients: int
  scale: int
  local_stddev: float
  modulus: int
  offset: int
  sensitivity: str = "l2"

  @property
  def num_levels(self) -> int:
    """L = log2 b: how many nodes hold a given value."""
    return self.num_bins.bit_length() - 1

  @property
  def num_nodes(self) -> int:
    """d = 2 b - 2."""
    return 2 * self.num_bins - 2

  @property
  def bits_per_entry(self) -> int:
    """Bits on the wire for one node: ceil(log2 M)."""
    return (self.modulus - 1).bit_length()

  @property
  def bits_per_client(self) -> int:
    """Bits on the wire for one client in one round, before encryption."""
    return self.num_nodes * self.bits_per_entry

  @property
  def rho(self) -> float:
    """What one release costs in zero-concentrated differential privacy: 1 / (2 z^2)."""
    return 0.5 / self.noise_multiplier**2

  def count_stddev(self, num_clients: int) -> float:
    """Standard deviation of a node's count, in clients, when `num_clients` report."""
    return self.local_stddev * math.sqrt(num_clients) / self.scale

  def describe(self) -> str:
    """One sentence for the user, with the cost of communication."""
    return (
      f"A histogram of {self.num_bins} bins with noise multiplier {self.noise_multiplier:.4g}:"
      f" counts times {self.scale}, noise of {self.local_stddev:.3g} a client, modulo"
      f" {self.modulus}; {self.num_nodes} numbers of {self.bits_per_entry} bits,"
      f" {self.bits_per_client} bits a client."
    )


def check_num_bins(num_bins: int) -> int:
  """Returns `num_bins` if it is a power of two and at least 2; raises a ValueError otherwise."""
  if num_bins != int(num_bins) or num_bins < 2 or int(num_bins) & (int(num_bins) - 1):
    raise ValueError(f"Found num_bins = {num_bins}; expected a power of two of at least 2.")
  return int(num_bins)


def check_positive(name: str, value: float) -> float:
  """Returns a positive, finite number as a Python float; raises a ValueError otherwise."""
  # dp_accounting loses mechanisms whose noise multiplier is of another type.
  value = float(value)
  if not 0.0 < value < math.inf:
    raise ValueError(f"Found {name} = {value}; expected a positive number.")
  return value


def discreteness_slack(local_stddev: float, num_clients: int) -> float:
  """tau of Kairouz, Liu and Steinke (2021): how far the sum of shares is from a discrete Gaussian.

  tau = 10 sum_(k = 1)^(n - 1) exp(-2 pi^2 sigma_local^2 k / (k + 1)) bounds the Renyi divergence of
  infinite order between the two laws, for one coordinate. Only the L coordinates that differ
  between neighbours matter.

  Args:
    local_stddev: sigma_local.
    num_clients: n, how many shares are summed.

  Returns:
    tau, not negative.
  """
  shares = np.arange(1, num_clients)
  return float(10.0 * np.exp(-2.0 * np.pi**2 * local_stddev**2 * shares / (shares + 1)).sum())


def _wrap_margin(stddev: float, num_nodes: int, failure_probability: float) -> int:
  """t: all noise of a release is in [-t, t] but with the failure probability."""
  return math.ceil(stddev * math.sqrt(2.0 * math.log(2.0 * num_nodes / failure_probability)))


def build_tree_mechanism(
  noise_multiplier: Optional[float] = None,
  num_bins: int = 64,
  expected_clients: int = 100,
  *,
  rho: Optional[float] = None,
  min_clients: Optional[int] = None,
  max_clients: Optional[int] = None,
  scale: Optional[int] = None,
  bits: Optional[int] = None,
  sensitivity: str = "l2",
  failure_probability: float = 1e-6,
) -> TreeMechanism:
  """Derives all parameters of the private histogram from what one wants of it.

      c            = ceil(1.5 sqrt(k_min) / (z sqrt(L)))       so that sigma_local >= 1.5
      sigma_local  = z c sqrt(L) / sqrt(k_min)
      t            = ceil(s sqrt(2 ln(2 d / beta))),           s = sigma_local sqrt(n_max)
      M            = c n_max + 2 t + 1                         so that nothing wraps

  Args:
    noise_multiplier: z_q. Either this or `rho`.
    num_bins: b, a power of two.
    expected_clients: How many clients are expected to report in a round.
    rho: What one release may cost in zero-concentrated differential privacy.
    min_clients: k_min, the fewest reports with which a result is released; None for
      `expected_clients`, for cohorts of fixed size without dropouts.
    max_clients: n_max; None for six standard deviations of a Poisson cohort above
      `expected_clients`.
    scale: c; None for the smallest that will do.
    bits: The modulus is 2^bits; None for the smallest modulus that will do.
    sensitivity: "l2" for c sqrt(L). "paper" is for reproduction alone: noise for the paper's
      sensitivity c L, any modulus, and decoding around zero, so that sums wrap where the paper's
      do.
    failure_probability: beta, the chance that anything wraps in a round of `max_clients`.

  Returns:
    A `TreeMechanism`.

  Raises:
    ValueError: If a number is out of its range, sigma_local would be below 1.5, or the modulus is
      too small for the cohort.
  """
  if noise_multiplier is None and rho is not None:
    noise_multiplier = math.sqrt(0.5 / check_positive("rho", rho))
  elif noise_multiplier is None or rho is not None:
    raise ValueError("Found both or neither of noise_multiplier and rho; expected one of them.")
  noise_multiplier = check_positive("noise_multiplier", noise_multiplier)
  num_bins = check_num_bins(num_bins)
  if sensitivity not in _SENSITIVITIES:
    raise ValueError(f"Found sensitivity = {sensitivity!r}; expected one of {_SENSITIVITIES}.")
  if not 0.0 < failure_probability < 1.0:
    raise ValueError(f"Found failure_probability = {failure_probability}; expected one in (0, 1).")
  if min_clients is None:
    min_clients = expected_clients
  if max_clients is None:
    max_clients = expected_clients + math.ceil(6.0 * math.sqrt(expected_clients))
  if not 1 <= min_clients <= expected_clients <= max_clients:
    raise ValueError(
      f"Found min_clients = {min_clients}, expected_clients = {expected_clients} and max_clients ="
      f" {max_clients}; expected 1 <= min_clients <= expected_clients <= max_clients."
    )

  num_levels = num_bins.bit_length() - 1
  num_nodes = 2 * num_bins - 2
  stddev_per_scale = noise_multiplier * (
    num_levels if sensitivity == "paper" else math.sqrt(num_levels)
  )
  if scale is None:
    scale = math.ceil(MIN_LOCAL_STDDEV * math.sqrt(min_clients) / stddev_per_scale)
  if scale != int(scale) or scale < 1:
    raise ValueError(f"Found scale = {scale}; expected a whole number of at least 1.")
  local_stddev = scale * stddev_per_scale / math.sqrt(min_clients)
  if MIN_LOCAL_STDDEV * (1.0 - 1e-12) < local_stddev < MIN_LOCAL_STDDEV:
    local_stddev = MIN_LOCAL_STDDEV  # Below it by rounding alone.
  if local_stddev < MIN_LOCAL_STDDEV:
    raise ValueError(
      f"Found scale = {scale}, with which a client's noise has a standard deviation of"
      f" {local_stddev:.3g}; expected at least {MIN_LOCAL_STDDEV}, below which the sum is not close"
      " to a Gaussian. Take a larger scale."
    )
  offset = _wrap_margin(local_stddev * math.sqrt(max_clients), num_nodes, failure_probability)
  modulus = scale * max_clients + 2 * offset + 1
  if bits is not None:
    if sensitivity == "l2" and modulus > 2**bits:
      raise ValueError(
        f"Found bits = {bits}; {max_clients} clients with {num_bins} bins and noise multiplier"
        f" {noise_multiplier:.4g} need a modulus of {modulus}, {(modulus - 1).bit_length()} bits."
      )
    modulus = 2**bits
  if sensitivity == "paper":
    offset = modulus // 2
  return TreeMechanism(
    noise_multiplier=noise_multiplier,
    num_bins=num_bins,
    expected_clients=int(expected_clients),
    min_clients=int(min_clients),
    max_clients=int(max_clients),
    scale=int(scale),
    local_stddev=local_stddev,
    modulus=int(modulus),
    offset=offset,
    sensitivity=sensitivity,
  )
