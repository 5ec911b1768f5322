"""Describes the distribution of a quantity over the clients, as the paper's tables do."""

import numpy as np
from numpy import typing as npt

from tff_superquantile import superquantile

PERCENTILES = (10, 20, 50, 60, 80, 90, 95)


def describe(values: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> dict[str, float]:
  """Computes mean, spread, percentiles and tail means of a quantity over clients.

  Clients whose value is not finite are left out; with none left every entry is NaN.

  Args:
    values: [n], the loss or the error of each client.
    weights: [n] client weights (the paper weights training clients by their number of examples), or
      None for equal ones (as the paper treats test clients).

  Returns:
    `mean`, `std` (population), `p10` ... `p95` (percentiles, linearly interpolated),
    `superquantile_90` and `superquantile_95` (means of the worst 10 % and 5 % of the weight) and
    `best_10` (mean of the best 10 %), in the unit of the values.
  """
  known = np.asarray(values, np.float64)
  shares = np.ones_like(known) if weights is None else np.asarray(weights, np.float64)
  finite = np.isfinite(known) & (shares > 0)
  known, shares = known[finite], shares[finite]
  names = ("mean", "std", *(f"p{q}" for q in PERCENTILES), "superquantile_90", "superquantile_95")
  if not known.size:
    return dict.fromkeys((*names, "best_10"), float("nan"))
  mean = np.average(known, weights=shares)
  return {
    "mean": float(mean),
    "std": float(np.sqrt(np.average((known - mean) ** 2, weights=shares))),
    **{f"p{q}": superquantile.percentile(known, q, shares) for q in PERCENTILES},
    "superquantile_90": superquantile.superquantile(known, 0.10, shares),
    "superquantile_95": superquantile.superquantile(known, 0.05, shares),
    "best_10": -superquantile.superquantile(-known, 0.10, shares),
  }
