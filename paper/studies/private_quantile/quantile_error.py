"""Measures the error of private quantiles by the paper's criterion.

A private histogram of n values gives for each tail fraction a bin j; its quantile error is
|H(j) / n - (1 - theta)|, where H(j) counts the values truly below the edge l_j (section "Privacy
and Utility Analysis"). Here it is averaged over theta = 0.1, 0.2, ..., 0.9.

All recipes run the library's own functions: encoding, noise of each client, reduction modulo M and
decoding, many data sets at once. `errors_in_tff` runs the real secure sum, one at a time.
"""

from collections.abc import Callable
import dataclasses
import math

import dp_accounting
from dp_accounting import rdp
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from paper import accounting
from privacy.noise import tree_mechanism
from tff_superquantile.secure_sums import discrete_gaussian
from tff_superquantile.simulation import seeds
from tff_superquantile.threshold import hierarchical_histogram
from tff_superquantile.threshold import private_histogram

THETAS = np.arange(1, 10) / 10.0
# delta of the paper's bound, thm:sfl:quantile:new (b): the probability with which it may fail.
FAILURE = 0.05

# Both distributions are on [0, B], with B before the sampler.
DISTRIBUTIONS: dict[str, tuple[float, Callable[..., np.ndarray]]] = {
  "uniform": (1.0, lambda rng, shape: rng.uniform(size=shape)),
  "chi2(4)": (10.0, lambda rng, shape: rng.chisquare(4, size=shape)),
}

# So many numbers of noise at once take some hundred megabytes.
_MAX_ENTRIES = 2**22


@dataclasses.dataclass(frozen=True)
class Recipe:
  """A way to get a private quantile, by a `sensitivity` and a `decoder` of private histograms.

  Its accounting is "rdp", by the Renyi accountant, or "zcdp", by the paper's conversion. The
  `bound_factor` of `error_bounds` is 4 in the theorem, and 2 in its proof; None where it does not
  speak of the decoder. A recipe `knows_num_clients` where the number of values is taken to be
  public.
  """

  title: str
  sensitivity: str
  decoder: str
  accounting: str
  knows_num_clients: bool
  bound_factor: float | None = None


RECIPES = {
  "paper": Recipe("the paper's recipe", "paper", "dyadic", "zcdp", True, 4.0),
  "dyadic": Recipe("right sensitivity, the paper's decoder", "l2", "dyadic", "rdp", True, 2.0),
  "least_squares": Recipe(
    "least squares and isotonic regression", "l2", "least_squares", "rdp", False
  ),
}


def noise_multiplier(epsilon: float, delta: float, accountant: str) -> float:
  """Finds z, the noise's deviation over the sensitivity, of one (epsilon, delta)-DP release."""
  if accountant == "zcdp":
    # rho-zCDP implies (rho + 2 sqrt(rho ln(1 / delta)), delta)-DP (Bun and Steinke, 2016).
    log_delta = math.log(1.0 / delta)
    rho = (math.sqrt(log_delta + epsilon) - math.sqrt(log_delta)) ** 2
    return math.sqrt(0.5 / rho)
  return dp_accounting.calibrate_dp_mechanism(
    rdp.RdpAccountant,
    dp_accounting.GaussianDpEvent,
    epsilon,
    delta,
    dp_accounting.ExplicitBracketInterval(0.05, 200.0),
  )


def build_mechanism(
  recipe: Recipe,
  epsilon: float,
  delta: float,
  num_bins: int,
  num_clients: int,
  bits: int | None = None,
) -> tree_mechanism.TreeMechanism:
  """Builds a recipe's parameters; refuses too few bits where the recipe does not wrap."""
  z = noise_multiplier(epsilon, delta, recipe.accounting)
  if recipe.sensitivity == "paper":
    return accounting.build_tree(z, num_bins, num_clients, num_clients, bits)
  tree = tree_mechanism.build_tree_mechanism(z, num_bins, num_clients)
  if bits is None:
    return tree
  if tree.modulus > 2**bits:
    raise ValueError(f"Found bits = {bits}; expected at least {tree.bits_per_entry}.")
  return dataclasses.replace(tree, modulus=2**bits)


def draw_values(distribution: str, num_seeds: int, num_clients: int) -> np.ndarray:
  """Draws data sets of one distribution, one a seed: float32 [num_seeds, num_clients]."""
  _, draw = DISTRIBUTIONS[distribution]
  rows = [
    draw(seeds.generator(seed, f"values {distribution}"), num_clients) for seed in range(num_seeds)
  ]
  return np.stack(rows).astype(np.float32)


def noised_sums(
  values: np.ndarray, mechanism: tree_mechanism.TreeMechanism, max_value: float
) -> tuple[np.ndarray, np.ndarray]:
  """Sums over the clients before any reduction modulo M: (true counts, scaled counts with noise).

  The values are float32 [num_seeds, num_clients], one data set a row, and at most B = `max_value`;
  the sums are int64 [num_seeds, d].
  """
  rows = max(1, _MAX_ENTRIES // (values.shape[1] * mechanism.num_entries))
  true_counts, sums = [], []
  for start in range(0, len(values), rows):
    seed = seeds.generator(start, "noise").integers(2**63 - 1, size=2)
    some = tf.constant(values[start : start + rows])
    encoded = hierarchical_histogram.encode(some, mechanism.num_bins, max_value)
    noise = discrete_gaussian.sample(tf.shape(encoded), mechanism.local_stddev, tf.constant(seed))
    true_counts.append(tf.reduce_sum(encoded, axis=1).numpy())
    sums.append(tf.reduce_sum(mechanism.scale * encoded + noise, axis=1).numpy())
  return np.concatenate(true_counts), np.concatenate(sums)


def estimated_counts(cumulative: hierarchical_histogram.Cumulative) -> np.ndarray:
  """Returns the estimates of H(1), ..., H(b), float64 [num_seeds, b]."""
  return np.concatenate([cumulative.below[:, 1:], cumulative.total[:, np.newaxis]], axis=1)


def _errors(
  true_counts: np.ndarray,
  cumulative: hierarchical_histogram.Cumulative,
  num_clients: int | None,
) -> np.ndarray:
  """Returns quantile errors, averaged over theta, float64 [num_seeds].

  The counts are int64 [num_seeds, d]. Where `num_clients` is public, as in the paper, j is in 1..b,
  too.
  """
  num_bins = cumulative.below.shape[-1]
  below = np.cumsum(true_counts[:, :num_bins], axis=1)
  total = below[:, -1:]
  below = np.concatenate([np.zeros_like(total), below], axis=1)
  errors = []
  for theta in THETAS:
    if num_clients is None:
      bin_index = hierarchical_histogram.quantile_bin(cumulative, theta).numpy()
    else:
      estimated = estimated_counts(cumulative)
      bin_index = 1 + np.argmin(np.abs(estimated - (1.0 - theta) * num_clients), axis=1)
    truly_below = np.take_along_axis(below, bin_index[:, np.newaxis], axis=1) / total
    errors.append(np.abs(truly_below[:, 0] - (1.0 - theta)))
  return np.mean(errors, axis=0)


def _decode_dyadic(
  modular_sums: tf.Tensor, mechanism: tree_mechanism.TreeMechanism
) -> hierarchical_histogram.Cumulative:
  """Decodes as the paper does: H(j) sums the fewest nodes that cover the bins below j.

  The result is neither monotone nor non-negative; the halves sum to its total.
  """
  counts = private_histogram.node_counts(modular_sums, mechanism)
  sizes = [mechanism.num_bins >> level for level in range(mechanism.num_levels)]
  levels = tf.split(counts, sizes, axis=-1)
  below = tf.zeros_like(levels[-1][..., :1])
  for nodes in reversed(levels):
    # The boundaries of the level above alternate with the boundaries behind left children.
    pairs = tf.stack([below, below + nodes[..., ::2]], axis=-1)
    below = tf.reshape(pairs, [*below.shape[:-1], 2 * below.shape[-1]])
  return hierarchical_histogram.Cumulative(below, tf.reduce_sum(levels[-1], axis=-1))


def decode(
  sums: np.ndarray, mechanism: tree_mechanism.TreeMechanism, recipe: Recipe
) -> hierarchical_histogram.Cumulative:
  """Reduces sums of `noised_sums`, [num_seeds, d], modulo M and decodes them as a recipe does."""
  wrapped = tf.constant(np.mod(sums, mechanism.modulus))
  if recipe.decoder == "dyadic":
    return _decode_dyadic(wrapped, mechanism)
  return private_histogram.decode(wrapped, mechanism)


def errors_of_sums(
  true_counts: np.ndarray,
  sums: np.ndarray,
  mechanism: tree_mechanism.TreeMechanism,
  recipe: Recipe,
) -> np.ndarray:
  """Returns a recipe's quantile errors from the sums of `noised_sums`, float64 [num_seeds]."""
  cumulative = decode(sums, mechanism, recipe)
  known = mechanism.expected_clients if recipe.knows_num_clients else None
  return _errors(true_counts, cumulative, known)


def error_bounds(
  sums: np.ndarray, mechanism: tree_mechanism.TreeMechanism, recipe: Recipe
) -> np.ndarray:
  """Computes the paper's bound on the quantile errors of a recipe, thm:sfl:quantile:new (b).

  With probability 1 - `FAILURE` every error is at most

      R*(hat H) + sqrt(f V log2 b log(4 b / FAILURE)) / n,

  for R*(hat H) = min_j |hat H(j) / n - (1 - theta)| and V = n sigma^2 / c^2, the variance of a
  node's count. The theorem has f = 4, but its proof shows f = 2, as hat H(j) adds at most log2 b
  nodes of variance V. No error is above max(theta, 1 - theta) in any case. Bounds of the sums of
  `errors_of_sums` are float64 [num_seeds], averaged over theta; NaN if the theorem does not hold,
  as for another decoder or a smaller modulus than it asks for.
  """
  n, b = mechanism.expected_clients, mechanism.num_bins
  tail = mechanism.local_stddev * math.sqrt(2.0 * math.log(16.0 * n * b / FAILURE))
  if recipe.bound_factor is None or mechanism.modulus < 2.0 + 2.0 * n * (mechanism.scale + tail):
    return np.full(len(sums), np.nan)
  cumulative = decode(sums, mechanism, recipe)
  estimated = estimated_counts(cumulative) / n
  least = [np.abs(estimated - (1.0 - t)).min(axis=1) for t in THETAS]
  noise = math.sqrt(recipe.bound_factor * mechanism.num_levels * math.log(4.0 * b / FAILURE))
  return np.mean(least, axis=0) + noise * mechanism.count_stddev / n


def errors_in_tff(
  values: np.ndarray, mechanism: tree_mechanism.TreeMechanism, max_value: float
) -> np.ndarray:
  """Returns the errors [num_seeds] of least squares by TFF's secure modular sum of `values`."""
  histogram = private_histogram.PrivateHistogramFactory(mechanism, max_value).create(
    tff.types.to_type((np.float32, tff.TensorType(np.int64, [2])))
  )
  state = histogram.initialize()
  below, total = [], []
  for seed, row in enumerate(values):
    client_seeds = seeds.generator(seed, "noise of clients").integers(2**63 - 1, size=[len(row), 2])
    result = histogram.next(state, list(zip(row, client_seeds))).result
    below.append(result["below"])
    total.append(result["total"])
  true_counts = tf.reduce_sum(
    hierarchical_histogram.encode(tf.constant(values), mechanism.num_bins, max_value), axis=1
  ).numpy()
  cumulative = hierarchical_histogram.Cumulative(tf.constant(below), tf.constant(total))
  return _errors(true_counts, cumulative, None)
