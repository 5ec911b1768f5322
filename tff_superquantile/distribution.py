"""Describes the distribution of a quantity over the clients, as the paper's tables do.

`describe` is about the clients that were measured, `upper_band` about clients that nobody has seen.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from numpy import typing as npt
from scipy import special

from tff_superquantile import superquantile

PERCENTILES = (10, 20, 50, 60, 80, 90, 95)
# Of more clients the closed bound is as good to five digits, and the exact one takes seconds.
_MOST_FOR_EXACT = 10_000


def describe(
  values: npt.ArrayLike,
  weights: npt.ArrayLike | None = None,
  confidence: float | None = None,
) -> dict[str, float]:
  """Computes mean, spread, percentiles and tail means of a quantity over clients.

  Clients whose value is not finite are left out; with none left every entry is NaN.

  Args:
    values: [n], the loss or the error of each client.
    weights: [n] client weights (the paper weights training clients by their number of examples), or
      None for equal ones (as the paper treats test clients).
    confidence: Also adds the bounds of `upper_band` with this confidence, for clients that nobody
      has seen; None for none.

  Returns:
    `mean`, `std` (population), `p10` ... `p95` (percentiles, linearly interpolated),
    `superquantile_90` and `superquantile_95` (means of the worst 10 % and 5 % of the weight) and
    `best_10` (mean of the best 10 %), in the unit of the values; with a `confidence` also
    `p10_upper` ... `p95_upper`, the `UpperBand.bound` of these percentiles, perhaps infinite.

  Raises:
    ValueError: For a `confidence` that is out of its range, or with weights.
  """
  if confidence is not None and weights is not None:
    raise ValueError(
      f"Found weights with confidence = {confidence}; expected clients that count alike: leave the"
      " weights out."
    )
  known = np.asarray(values, np.float64)
  shares = np.ones_like(known) if weights is None else np.asarray(weights, np.float64)
  finite = np.isfinite(known) & (shares > 0)
  bounds = {}
  if confidence is not None:
    band = upper_band(known, confidence)
    bounds = {f"p{q}_upper": band.bound(q / 100) for q in PERCENTILES}
  known, shares = known[finite], shares[finite]
  names = ("mean", "std", *(f"p{q}" for q in PERCENTILES), "superquantile_90", "superquantile_95")
  if not known.size:
    return {**dict.fromkeys((*names, "best_10"), float("nan")), **bounds}
  mean = np.average(known, weights=shares)
  return {
    "mean": float(mean),
    "std": float(np.sqrt(np.average((known - mean) ** 2, weights=shares))),
    **{f"p{q}": superquantile.percentile(known, q, shares) for q in PERCENTILES},
    "superquantile_90": superquantile.superquantile(known, 0.10, shares),
    "superquantile_95": superquantile.superquantile(known, 0.05, shares),
    "best_10": -superquantile.superquantile(-known, 0.10, shares),
    **bounds,
  }


def _check(confidence: float) -> None:
  """Raises a `ValueError` for a confidence that is out of its range."""
  if not 0.5 <= confidence < 1.0:  # This refuses NaN, too; Massart's bound begins at 0.5.
    raise ValueError(
      f"Found confidence = {confidence}; expected a number in [0.5, 1), such as 0.95."
    )


def margin(num_clients: int, confidence: float) -> float:
  """Returns how far a share of n clients may be above that of all clients, at all values at once.

  It is the least e with P(sup_x (F_n(x) - F(x)) > e) <= 1 - confidence for the distribution
  function F_n of n independent draws from any law with the distribution function F: the quantile of
  Smirnov's one-sided statistic, with which the confidence is exact where F is continuous, and at
  least so large where it has steps. Of more than 10,000 clients it is the bound of Dvoretzky,
  Kiefer and Wolfowitz with Massart's constant, sqrt(log(1 / (1 - confidence)) / (2 n)), which is
  never smaller (there by less than 2e-5).

  Args:
    num_clients: n, at least 1.
    confidence: In [0.5, 1).

  Returns:
    The margin, in (0, 1].

  Raises:
    ValueError: If one is out of its range.
  """
  _check(confidence)
  if num_clients < 1:
    raise ValueError(f"Found {num_clients} clients; expected at least one.")
  if num_clients > _MOST_FOR_EXACT:
    return math.sqrt(-math.log1p(-confidence) / (2 * num_clients))
  return float(special.smirnovi(num_clients, 1.0 - confidence))


def fewest_clients(share: float, confidence: float) -> int:
  """Returns the least number of clients of which an `upper_band` bounds a share, in (0, 1)."""
  most = math.ceil(-math.log1p(-confidence) / (2 * (1.0 - share) ** 2))
  low, high = 0, max(1, most)  # Too few, and enough by the closed bound.
  while high - low > 1:
    middle = (low + high) // 2
    is_enough = margin(middle, confidence) <= 1.0 - share
    low, high = (low, middle) if is_enough else (middle, high)
  return high


@dataclasses.dataclass(frozen=True)
class UpperBand:
  """What clients that nobody has seen do not exceed, by those that were measured.

  With probability `confidence` over the draw of the n measured clients, all statements "at least a
  share q of new clients has a value of at most `bound(q)`", for all q at once, are true. It holds
  for any law of the values, ties included, if new clients are drawn as the measured ones were,
  these independently of each other, and if the model was made without them. It is about one model,
  and says nothing of the mean of the new clients' values.

  Attributes:
    values: The different values that were measured, ascending, [k]; +inf may be the last.
    measured: The share of the measured clients that has at most this value, [k].
    num_clients: n.
    confidence: The probability.
    margin: How much less `shares` are than those of the measured clients.
  """

  values: np.ndarray
  measured: np.ndarray
  num_clients: int
  confidence: float
  margin: float

  @property
  def shares(self) -> np.ndarray:
    """The share of new clients that, at least, has at most each value, [k]; 0 says nothing."""
    return np.maximum(self.measured - self.margin, 0.0)

  @property
  def largest_share(self) -> float:
    """The largest share of new clients of which anything can be said, 1 - margin, at least 0."""
    return max(0.0, 1.0 - self.margin)

  def bound(self, share: float) -> float:
    """Returns what at least this share of new clients, in (0, 1), does not exceed, perhaps inf."""
    place = int(np.searchsorted(self.shares, share, side="left"))
    return float(self.values[place]) if place < len(self.values) else math.inf

  def share(self, values: npt.ArrayLike) -> np.ndarray:
    """Returns the share of new clients that, at least, does not exceed each value; NaN for NaN."""
    asked = np.asarray(values, np.float64)
    places = np.searchsorted(self.values, asked, side="right")
    return np.where(np.isnan(asked), np.nan, np.append(0.0, self.shares)[places])


def upper_band(values: npt.ArrayLike, confidence: float = 0.95) -> UpperBand:
  """Bounds the values of clients that nobody has seen, by those of clients that were measured.

  Args:
    values: [n], the error or the loss of each test client under one model. Clients with NaN have
      none and are left out, so that the band is about clients that have one; +inf is the largest.
    confidence: That of all statements at once, in [0.5, 1). Who chooses among m models by such
      bands takes 1 - (1 - confidence) / m for each.

  Returns:
    The band; without any value, one that says nothing.

  Raises:
    ValueError: If the confidence is out of its range.
  """
  _check(confidence)
  known = np.asarray(values, np.float64).reshape(-1)
  known = known[~np.isnan(known)]
  off = margin(len(known), confidence) if len(known) else 1.0
  different, counts = np.unique(known, return_counts=True)
  measured = np.cumsum(counts) / max(1, len(known))
  return UpperBand(different, measured, len(known), confidence, off)
