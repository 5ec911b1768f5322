"""The parameters of the private histogram: from a noise multiplier to the bits on the wire.

The mechanism. Each client i holds x_i in {0, 1}^d, the binary hierarchical histogram of its loss
with b bins: L = log2 b ones among d = 2 b - 2 nodes. It sends (c x_i + xi_i) mod M with independent
discrete Gaussian noise xi_i ~ N_Z(0, sigma_local^2 I_d), and a secure sum releases

    y = (sum_i c x_i + sum_i xi_i) mod M,

which is completed to the noise of K shares (see `shares`). Under zero-out adjacency (one client's
x_i replaced by zeros) and under addition or removal of a client the l2-sensitivity of sum_i c x_i
is Delta = c sqrt(L). Guarantee: by the theorem of `shares` the release is the Gaussian mechanism of
noise multiplier z, rho = 1 / (2 z^2), up to `shares.slack` for each node, with K sigma_local^2 = (z
Delta)^2 + 2. Reduction modulo M and all decoding are post-processing: the modulus matters to
utility only.
"""

import dataclasses
import math

import numpy as np

from privacy import checks
from privacy.noise import shares

# Sums are computed in 64 bits, and reports that are not reduced need some more than the modulus.
_MAX_MODULUS = 2**53
# A client sends two numbers a bin: a megabyte.
_MAX_BINS = 2**16

# The chance that anything wraps in a round of K clients.
_WRAP_PROBABILITY = 1e-6


@dataclasses.dataclass(frozen=True)
class TreeMechanism:
  """Parameters of the private histogram, derived by `build_tree_mechanism`.

  Attributes:
    noise_multiplier: z_q, the noise's standard deviation over the sensitivity.
    num_bins: b, a power of two.
    expected_clients: The expected number of reports.
    num_shares: K, shares of noise in the sum; with more reports there is no result.
    scale: c, the integer with which counts are multiplied.
    local_stddev: sigma_local, of the noise of one client on one scaled node.
    modulus: M.
    offset: Sums are decoded into -offset..M - offset - 1.
    sensitivity: "l2"; "paper" for the recipe of `paper.accounting`, not private by its formulas.
  """

  noise_multiplier: float
  num_bins: int
  expected_clients: int
  num_shares: int
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
  def num_entries(self) -> int:
    """d = 2 b - 2."""
    return 2 * self.num_bins - 2

  @property
  def bits_per_entry(self) -> int:
    """Bits on the wire for one node: ceil(log2 M)."""
    return (self.modulus - 1).bit_length()

  @property
  def bits_per_client(self) -> int:
    """Bits on the wire for one client in one round, before encryption."""
    return self.num_entries * self.bits_per_entry

  @property
  def count_stddev(self) -> float:
    """Standard deviation of a node's count, in clients."""
    return self.local_stddev * math.sqrt(self.num_shares) / self.scale

  def describe(self) -> str:
    """Describes the histogram in a sentence for the user, with the cost of communication."""
    return (
      f"A histogram of {self.num_bins} bins with noise multiplier {self.noise_multiplier:.4g}:"
      f" counts times {self.scale}, noise of {self.local_stddev:.3g} a client, modulo"
      f" {self.modulus}; {self.num_entries} numbers of {self.bits_per_entry} bits,"
      f" {self.bits_per_client} bits a client."
    )


def check_num_bins(num_bins: int) -> int:
  """Returns `num_bins` if it is a power of two from 2 to 2^16; raises a ValueError otherwise.

  Args:
    num_bins: b, the number of bins.

  Returns:
    b as an int.

  Raises:
    ValueError: If it is no such number.
  """
  if num_bins != int(num_bins) or num_bins < 2 or int(num_bins) & (int(num_bins) - 1):
    raise ValueError(f"Found num_bins = {num_bins}; expected a power of two of at least 2.")
  if num_bins > _MAX_BINS:
    raise ValueError(f"Found num_bins = {num_bins}; expected at most {_MAX_BINS}.")
  return int(num_bins)


def least_sensitivity(noise_multiplier: float, num_shares: int) -> float:
  """Returns the least sensitivity, in integers, with shares of noise `shares.MIN_STDDEV`.

  Args:
    noise_multiplier: z, positive.
    num_shares: K.

  Returns:
    The sensitivity in the l2 norm, not rounded.
  """
  variance = num_shares * shares.MIN_STDDEV**2 - shares.ROUNDING_VARIANCE
  return math.sqrt(variance) / noise_multiplier


def check_modulus(modulus: int, noise_multiplier: float) -> None:
  """Raises a ValueError if sums modulo `modulus` would not fit the numbers that hold them.

  Args:
    modulus: M.
    noise_multiplier: That from which it follows, for the error.

  Raises:
    ValueError: If M is above 2^53.
  """
  if modulus > _MAX_MODULUS:
    raise ValueError(
      f"Found that a noise multiplier of {noise_multiplier:g} needs sums modulo {modulus:.3g};"
      f" expected at most 2^53 = {_MAX_MODULUS:.3g}. Take one nearer to 1."
    )


def cumulative_variances(num_bins: int) -> np.ndarray:
  """Returns variances of H(1), ..., H(b - 1) after least squares, float64 [b - 1], for noise of 1.

  Given the estimate of a node, that of its left child is half of it plus an independent half
  difference of its children. So the count of the first k bins below a node of n bins is
  (k / n) times the node's estimate plus independent noise, whose variance follows from that of the
  next smaller node.

  Args:
    num_bins: b, a power of two of at least 2.

  Returns:
    The variances, float64 [b - 1].
  """
  own = np.zeros(2)  # Variances for the first 0 or 1 bins, given the estimate of the single bin.
  height_of_bin = 1
  num_below = 1
  while num_below < num_bins:
    # The variance of a bottom-up estimate of a node of this height.
    of_child = 2 ** (height_of_bin - 1) / (2**height_of_bin - 1)
    share = np.arange(num_below + 1) / num_below
    left = own + share**2 * of_child / 2.0
    right = own + (1.0 - share) ** 2 * of_child / 2.0
    own = np.concatenate([left, right[1:]])
    num_below *= 2
    height_of_bin += 1
  of_total = 2.0 * of_child
  variances: np.ndarray = own + (np.arange(num_bins + 1) / num_bins) ** 2 * of_total
  return variances[1:-1]


def wrap_margin(stddev: float, num_entries: int) -> int:
  """Returns t: all noise of a release is in [-t, t] but with `_WRAP_PROBABILITY`.

  Args:
    stddev: That of all shares together, in integers.
    num_entries: d, the integers of a release.

  Returns:
    t, an integer.
  """
  return math.ceil(stddev * math.sqrt(2.0 * math.log(2.0 * num_entries / _WRAP_PROBABILITY)))


def build_tree_mechanism(
  noise_multiplier: float,
  num_bins: int = 64,
  expected_clients: int = 100,
  *,
  num_shares: int | None = None,
) -> TreeMechanism:
  """Derives all parameters of the private histogram from its noise, bins and clients.

      c            = ceil(sqrt(4 K - 2) / (z sqrt(L)))         so that sigma_local >= 2
      sigma_local  = sqrt((z^2 c^2 L + 2) / K)
      t            = ceil(s sqrt(2 ln(2 d / 1e-6))),           s = sigma_local sqrt(K)
      M            = c K + 2 t + 1                             so that nothing wraps

  Args:
    noise_multiplier: z = z_q, the noise's standard deviation over the sensitivity.
    num_bins: b, a power of two from 2 to 2^16.
    expected_clients: The expected number of reports of a round, at least 1.
    num_shares: K, the most clients of a round, for as many of which there is noise in each; by
      default `expected_clients`, for cohorts of fixed size.

  Returns:
    The parameters.

  Raises:
    ValueError: If an argument is out of its range, or sums would not fit 64 bits.
  """
  noise_multiplier = checks.scale("noise_multiplier", noise_multiplier)
  num_bins = check_num_bins(num_bins)
  if num_shares is None:
    num_shares = expected_clients
  if not 1 <= expected_clients <= num_shares:
    raise ValueError(
      f"Found expected_clients = {expected_clients} and num_shares = {num_shares}; expected"
      " 1 <= expected_clients <= num_shares."
    )
  num_levels = num_bins.bit_length() - 1
  num_entries = 2 * num_bins - 2
  sensitivity_per_scale = math.sqrt(num_levels)
  scale = math.ceil(least_sensitivity(noise_multiplier, num_shares) / sensitivity_per_scale)
  local_stddev = shares.share_stddev(noise_multiplier, scale * sensitivity_per_scale, num_shares)
  local_stddev = max(local_stddev, shares.MIN_STDDEV)  # It is below that by rounding alone.
  offset = wrap_margin(local_stddev * math.sqrt(num_shares), num_entries)
  modulus = scale * num_shares + 2 * offset + 1
  check_modulus(modulus, noise_multiplier)
  return TreeMechanism(
    noise_multiplier=noise_multiplier,
    num_bins=num_bins,
    expected_clients=int(expected_clients),
    num_shares=int(num_shares),
    scale=scale,
    local_stddev=local_stddev,
    modulus=int(modulus),
    offset=offset,
  )
