"""The paper's bound on the error of its private quantiles, thm:sfl:quantile:new (b)."""

import math

import numpy as np

from privacy.noise import tree_mechanism
from tff_superquantile.experiments.studies.private_quantile import quantile_error

# The probability with which the bound may fail, delta of the theorem.
FAILURE = 0.05


def error_bounds(
  sums: np.ndarray, mechanism: tree_mechanism.TreeMechanism, recipe: quantile_error.Recipe
) -> np.ndarray:
  """Computes the bound on the quantile errors of a recipe.

  With probability 1 - `FAILURE` every error is at most

      R*(hat H) + sqrt(f V log2 b log(4 b / FAILURE)) / n,

  for R*(hat H) = min_j |hat H(j) / n - (1 - theta)| and V = n sigma^2 / c^2, the variance of a
  node's count. The theorem has f = 4, but its proof shows f = 2, as hat H(j) adds at most log2 b
  nodes of variance V. No error is above max(theta, 1 - theta) in any case.

  Args:
    sums: As `quantile_error.errors_of_sums` takes them.
    mechanism: The parameters.
    recipe: The recipe, with f.

  Returns:
    float64 [num_seeds], averaged over theta; NaN if the theorem does not hold, as for another
    decoder or a smaller modulus than it asks for.
  """
  n, b = mechanism.expected_clients, mechanism.num_bins
  tail = mechanism.local_stddev * math.sqrt(2.0 * math.log(16.0 * n * b / FAILURE))
  if recipe.bound_factor is None or mechanism.modulus < 2.0 + 2.0 * n * (mechanism.scale + tail):
    return np.full(len(sums), np.nan)
  cumulative = quantile_error.decode(sums, mechanism, recipe)
  estimated = quantile_error.estimated_counts(cumulative) / n
  least = [np.abs(estimated - (1.0 - t)).min(axis=1) for t in quantile_error.THETAS]
  noise = math.sqrt(recipe.bound_factor * mechanism.num_levels * math.log(4.0 * b / FAILURE))
  return np.mean(least, axis=0) + noise * mechanism.count_stddev / n
