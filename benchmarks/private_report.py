"""Measures how far private percentiles are from the exact ones.

    python -m benchmarks.private_report [--seeds=1000]

A seed draws n clients' errors, and noise for one release at epsilon 1 and delta 1e-5. The errors
are of a Beta distribution, or fractions k / m of clients with 40 to 200 examples and such a
probability of an error. Prints a line for each distribution and n: the exact p90, the root mean
square error of the private one, its median absolute error and how often that is at most 0.01, and
how often the truth is within one and two standard errors, by each release's own.
"""

import argparse
import math

import numpy as np
import tensorflow as tf

from privacy.evaluation import query as query_lib
from tff_superquantile import analytics
from tff_superquantile.secure_sums import discrete_gaussian
from tff_superquantile.threshold import private_histogram

_BETAS = ((8, 40), (2, 18), (2, 8))
_NUM_CLIENTS = (500, 2500)


def _errors(rng: np.random.Generator, a: float, b: float, n: int, fractions: bool) -> np.ndarray:
  values = rng.beta(a, b, n)
  if not fractions:
    return values
  sizes = rng.integers(40, 201, n)
  return rng.binomial(sizes, values) / sizes


def _measure(query: query_lib.Query, seeds: int, a: float, b: float, fractions: bool) -> str:
  tree = query.mechanism
  values = np.stack(
    [_errors(np.random.default_rng(s), a, b, query.num_clients, fractions) for s in range(seeds)]
  )
  sums = [
    tf.reduce_sum(private_histogram.scaled_counts(tf.constant(v, tf.float32), tree, 1.0), axis=0)
    for v in values
  ]
  # The shares of all clients add up to one discrete Gaussian.
  stddev = tree.local_stddev * math.sqrt(tree.num_shares)
  noise = discrete_gaussian.sample([seeds, tree.num_entries], stddev, tf.constant([7, 7], tf.int64))
  decoded = private_histogram.decode(tf.stack(sums) + noise, tree)
  quantiles = np.array(
    [
      analytics.PrivateDistribution.of_result(
        query, dict(below=below, total=total, is_valid=True)
      ).quantile(0.9)
      for below, total in zip(decoded.below.numpy(), decoded.total.numpy())
    ]
  )
  truth = np.quantile(values, 0.9, axis=1)
  distance = np.abs(quantiles[:, 0] - truth)
  return (
    f"{truth.mean():8.3f}{np.sqrt(np.mean(distance**2)):8.4f}{np.median(distance):8.4f}"
    f"{np.mean(distance <= 0.01):8.2f}{np.mean(distance <= quantiles[:, 1]):8.2f}"
    f"{np.mean(distance <= 2 * quantiles[:, 1]):8.2f}"
  )


def main() -> None:
  """Prints the table."""
  parser = argparse.ArgumentParser(description="Measures the error of private percentiles.")
  parser.add_argument("--seeds", type=int, default=1000)
  seeds = parser.parse_args().seeds
  print(f"{'errors':<24}{'n':>6}     p90     rms  median <= 0.01   1 se    2 se", flush=True)
  for n in _NUM_CLIENTS:
    query = query_lib.Query(n, 1.0, 1e-5)
    for a, b in _BETAS:
      for fractions in (False, True):
        name = f"Beta({a}, {b})" + (", k / m" if fractions else "")
        print(f"{name:<24}{n:>6}{_measure(query, seeds, a, b, fractions)}", flush=True)


if __name__ == "__main__":
  main()
