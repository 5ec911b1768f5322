"""Asks every client for one number, and releases the distribution with differential privacy."""

import numpy as np
from numpy import typing as npt
import tensorflow as tf
import tensorflow_federated as tff

from privacy.evaluation import query as query_lib
from tff_superquantile.analytics import distribution
from tff_superquantile.simulation import seeds
from tff_superquantile.threshold import private_histogram

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
) -> distribution.PrivateDistribution:
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
  found = np.asarray(values, np.float64)
  if found.ndim != 1 or found.size == 0:
    raise ValueError(f"Found values of shape {found.shape}; expected one number a client, [n].")
  with np.errstate(over="ignore"):  # What is too large for float32 counts as the nearest end.
    found = found.astype(np.float32)
  query = query_lib.Query(found.size, epsilon, delta, lower, upper, num_bins)
  if noise_key is None:
    result = build_private_distribution(query)(list(found))
  else:
    compute = build_private_distribution(query, seeded=True, noise_key=noise_key)
    result = compute([(v, seeds.client_seed(noise_key, 0, str(i))) for i, v in enumerate(found)])
  return distribution.PrivateDistribution.of_result(query, result)
