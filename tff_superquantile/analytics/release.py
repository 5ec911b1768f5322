"""Asks every client for one number, and releases the distribution with differential privacy."""

from collections.abc import Mapping
import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np
from numpy import typing as npt
import tensorflow as tf
import tensorflow_federated as tff

from privacy import checks
from privacy.evaluation import query as query_lib
from tff_superquantile import superquantile
from tff_superquantile.simulation import seeds
from tff_superquantile.threshold import hierarchical_histogram
from tff_superquantile.threshold import private_histogram

# Op by op it would take fifty times as long.
_linear_variances = tf.function(hierarchical_histogram.linear_variances, autograph=False)


class Estimate(NamedTuple):
  """An estimate with its standard error, which follows from the known noise of the release.

  The standard error is that of least squares, without isotonic regression and the limits of counts,
  which reduce it. It counts neither the width of a bin nor the choice of the clients.
  """

  value: float
  standard_error: float


@dataclasses.dataclass(frozen=True, eq=False)
class PrivateDistribution:
  """An estimated distribution of one number a client; everything here is post-processing.

  Within a bin the numbers are spread evenly. If the noise leaves no clients, all estimates but the
  number of clients are NaN.

  Attributes:
    query: The query, with the ends, the budget and the guarantee.
    below: float64 [b + 1], the estimated numbers of clients below the edges of the bins; they rise
      from 0 to the number of all clients.
  """

  query: query_lib.Query
  below: np.ndarray

  @classmethod
  def of_result(cls, query: query_lib.Query, result: Mapping[str, Any]) -> "PrivateDistribution":
    """Reads the result of `build_private_distribution(query)`: `below`, `total` and `is_valid`.

    If more clients reported than the query allows, nothing was released: a `ValueError`.
    """
    if not result["is_valid"]:
      raise ValueError(
        f"Found more reports than the {query.num_clients} clients of the query; expected at most so"
        " many: ask for a query with more clients."
      )
    total = max(float(result["total"]), 0.0)
    below = np.minimum(np.asarray(result["below"], np.float64), total)
    return cls(query, np.append(below, total))

  @property
  def counts(self) -> np.ndarray:
    """The estimated numbers of clients in the bins, float64 [b], not negative."""
    return np.diff(self.below)

  @property
  def num_clients(self) -> Estimate:
    """The estimated number of clients with a number."""
    return Estimate(float(self.below[-1]), self._stddev(np.ones(self.query.num_bins)))

  @property
  def mean(self) -> Estimate:
    """The mean of the numbers."""
    return self.tail_mean(1.0)

  def quantile(self, probability: float) -> Estimate:
    """Estimates a quantile, the number below which a fraction p in (0, 1) of the clients is.

    The noise of the rank H(q) - p n at the quantile q has a known standard deviation s. The
    standard error is half of the distance between the quantiles of the ranks p n - s and p n + s
    (Woodruff 1952, "Confidence Intervals for Medians and Other Position Measures").
    """
    probability = checks.fraction("probability", probability)
    if self.below[-1] == 0.0:
      return Estimate(math.nan, math.nan)
    rank = probability * self.below[-1]
    value = self._at_rank(rank)
    fractions_below = np.clip((value - self.query.edges[:-1]) / self._width, 0.0, 1.0)
    stddev = self._stddev(fractions_below - probability)
    spread = self._at_rank(rank + stddev) - self._at_rank(rank - stddev)
    return Estimate(value, spread / 2.0)

  def tail_mean(self, theta: float) -> Estimate:
    """Estimates the superquantile, the mean of the fraction theta of the clients with the largest.

    With the quantile q of 1 - theta and N = sum_i max(0, z_i - q) it is q + N / (theta n)
    (Rockafellar and Uryasev 2000), for theta in (0, 1]; 1 is the mean of all. q minimises that, so
    that to first order only the noise of N and of n counts.
    """
    theta = superquantile.check_theta(theta)
    total = self.below[-1]
    if total == 0.0:
      return Estimate(math.nan, math.nan)
    quantile = self._at_rank((1.0 - theta) * total)
    beyond = np.maximum(self.query.edges - quantile, 0.0)
    left, right = beyond[:-1], beyond[1:]
    # Means over the bins; (right^2 - left^2) / 2 is the integral, also within the quantile's bin.
    excess = (right - left) * (right + left) / (2.0 * self._width)
    mean_excess = excess @ self.counts / total
    weights = (excess - mean_excess) / (theta * total)
    return Estimate(quantile + mean_excess / theta, self._stddev(weights))

  @property
  def _width(self) -> float:
    return (self.query.upper - self.query.lower) / self.query.num_bins

  def _at_rank(self, rank: float) -> float:
    return float(np.interp(rank, self.below, self.query.edges))

  def _stddev(self, weights: np.ndarray) -> float:
    """Returns the noise of a weighted sum of the counts."""
    variance = _linear_variances(tf.constant(weights), self.query.num_bins)
    return self.query.mechanism.count_stddev * math.sqrt(float(variance))


_VALUE_TYPE = tff.TensorType(np.float32)
_SEED_TYPE = tff.TensorType(np.int64, [2])


def build_private_distribution(
  query: query_lib.Query,
  *,
  seeded: bool = False,
  noise_key: bytes | None = None,
) -> tff.Computation:
  """Builds the computation of a query: reports of clients, their secure sum, its decoding.

  Guarantee: see `privacy.evaluation.query`. Each call is one release and spends the budget once
  more. The server sees the secure sum, with the noise of the clients that report.

  Args:
    query: The query.
    seeded: Whether clients are given the seeds of their noise, for simulations that can be
      repeated. A client's seed reveals its noise.
    noise_key: Key of the server's noise, 16 bytes, to be kept secret, for one call only; None for
      fresh entropy.

  Returns:
    A computation from {float32}@CLIENTS, with `seeded` from {<float32,int64[2]>}@CLIENTS, to
    <below=float64[b],total=float64,is_valid=bool>@SERVER, which `PrivateDistribution.of_result`
    reads. NaN is no number, and infinite ones count as the nearest end.
  """
  factory = private_histogram.PrivateHistogramFactory(
    query.mechanism, query.upper - query.lower, noise_key=noise_key
  )
  process = factory.create_of_reports(_VALUE_TYPE)
  client_type = tff.StructType([_VALUE_TYPE, _SEED_TYPE]) if seeded else _VALUE_TYPE

  @tff.tensorflow.computation(client_type)
  def report(client):
    value, seed = (client[0], client[1]) if seeded else (client, None)
    return factory.report(value - tf.constant(query.lower, tf.float32), seed)

  @tff.federated_computation(tff.FederatedType(client_type, tff.CLIENTS))
  def compute_private_distribution(clients):
    return process.next(process.initialize(), tff.federated_map(report, clients)).result

  return compute_private_distribution


def private_distribution(
  values: npt.ArrayLike,
  *,
  epsilon: float,
  delta: float | None = None,
  lower: float,
  upper: float,
  num_bins: int = 64,
  noise_key: bytes | None = None,
) -> PrivateDistribution:
  """Releases the distribution of one number a client with differential privacy, in a simulation.

  It runs `build_private_distribution` in TFF's context (see `simulation.set_simulation_context`).

  Args:
    values: [n], a number of each client; NaN for none. n is public.
    epsilon: The budget of this release.
    delta: The budget's delta; None for `privacy.accounting.default_delta`.
    lower: The lower end, chosen without a look at the values, as is `upper`.
    upper: The upper end.
    num_bins: The number of bins, a power of two.
    noise_key: Key of all noise, 16 bytes, to be kept secret, for one release only: two releases
      with one key and different arguments reveal values. None for fresh entropy.

  Returns:
    The distribution, with its guarantee in `query.guarantee`.

  Raises:
    ValueError: If an argument is out of its range, or values are not one number a client.
  """
  numbers = np.asarray(values, np.float64)
  if numbers.ndim != 1 or numbers.size == 0:
    raise ValueError(f"Found values of shape {numbers.shape}; expected one number a client, [n].")
  with np.errstate(over="ignore"):  # What is too large for float32 counts as the nearest end.
    numbers = numbers.astype(np.float32)
  query = query_lib.Query(numbers.size, epsilon, delta, lower, upper, num_bins)
  if noise_key is None:
    result = build_private_distribution(query)(list(numbers))
  else:
    compute = build_private_distribution(query, seeded=True, noise_key=noise_key)
    result = compute([(v, seeds.client_seed(noise_key, 0, str(i))) for i, v in enumerate(numbers)])
  return PrivateDistribution.of_result(query, result)
