"""Cohorts that make one client change how all others are rounded: it must move a sum by C at most.

In sums of float32, a client that lifts the partial sum over a power of two halves the precision in
which all later clients are added. With a claimed sensitivity of 1, the first of 100 such clients
moved the sum by 1.00013, of 1000 by 1.011, and of 10 000 by 2.4.
"""

import contextlib
import math

from helpers import calls
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile import algorithms
from tff_superquantile import secure_sums
from tff_superquantile.engine.cohort import cohort_context
from tff_superquantile.threshold import Client

_KEY = bytes(range(16))
_D, _C, _K = 3, 1.0, 0.3
_UPDATE = tff.TensorType(np.float32, [_D])
_SETTINGS = ("update", "update and share", "adaptive", "adaptive with share")


def _sum(setting):
  """(state, clients -> (next state, result)) of vectors and shares, of next to no noise.

  The result is float64 where it can be, so that it shows all of the sum.
  """
  clip_norm = secure_sums.AdaptiveClipNorm(1e-9, _C) if "adaptive" in setting else _C
  private = algorithms.Private(
    clip_norm=clip_norm, noise_multiplier=1e-9, noise_key=_KEY, share_weight=_K
  )
  summed = private.build_sum(
    lambda: tff.TensorType(np.float64, [_D]), None if "share" in setting else 10.0
  )

  @tff.tensorflow.computation(_UPDATE, np.float32)
  def report(update, share):
    if "adaptive" in setting:  # Whose result has the type of the update.
      update = tf.cast(update, tf.float64)
    return summed.report_fn(update, share, Client(None, None))

  process = summed.factory.create(report.type_signature.result)

  @tff.federated_computation(
    process.initialize.type_signature.result,
    tff.FederatedType((_UPDATE, np.float32), tff.CLIENTS),
  )
  def compute(state, clients):
    output = process.next(state, tff.federated_map(report, clients))
    return output.state, output.result

  return process.initialize, compute


@contextlib.contextmanager
def _runtime(name):
  old = tff.framework.get_context_stack().current
  try:
    if name == "tffs":
      tff.framework.set_default_context(calls.tffs_runtime())
    else:
      size = None if name == "whole" else int(name.removeprefix("blocks of "))
      tff.framework.set_default_context(cohort_context.CohortContext(block_size=size))
    yield
  finally:
    tff.framework.set_default_context(old)


def _lifted(m):
  """Clients whose partial sum the first one, along e_1, lifts over a power of two: [m, d]."""
  power = int(math.log2(m / 2))
  fine = 2.0 ** (power - 24)  # Between floats below it; above it is twice that.
  first = 2**power - 1
  # Each is near a float below the power, and half way of those above further up.
  pair = np.array([0.25 + 1.01 * fine, -0.25 + -0.99 * fine], np.float32)
  line = np.concatenate([[1.0], np.ones(first), [0.5], np.resize(pair, m - 2 - first)])
  return np.pad(line[:, np.newaxis], [(0, 0), (0, _D - 1)]).astype(np.float32)


def _irregular(m):
  """Clients with all bits of the mantissa, at the clip norm and above, of both signs."""
  rng = np.random.default_rng(m)
  vectors = rng.normal(size=[m, _D]).astype(np.float32)
  vectors[::3] *= np.float32(1e30)
  vectors[0] = (2.0, -1e-3, 3.3)
  return vectors


def _clients(vectors, shares=1.0):
  return [(v, np.float32(s)) for v, s in zip(vectors, np.broadcast_to(shares, len(vectors)))]


def _moved(setting, runtime, vectors):
  """How far the first client moves the sum, in its update and its share: when away, when out."""
  away = _clients(vectors[1:])
  out = _clients(vectors, np.arange(len(vectors)) > 0)
  with _runtime(runtime):
    initialize, compute = _sum(setting)
    state = initialize()
    results = [compute(state, clients)[1] for clients in (_clients(vectors), away, out)]
  flat = [[np.asarray(part, np.float64) for part in tf.nest.flatten(result)] for result in results]
  with_it, *without = ([leaves[0], *leaves[1:]] for leaves in flat)
  return [[a - b for a, b in zip(with_it, other)] for other in without]


def _assert_within(moved, setting, m):
  # 1e-9 is the noise, which is the same in all; a share is a float32 of at most k m.
  k = _K if "share" in setting else 0.0
  for update, *share in moved:
    assert np.linalg.norm(update) <= _C * math.sqrt(1.0 - k**2) * (1 + 1e-12)
    assert np.linalg.norm(update) >= _C * math.sqrt(1.0 - k**2) * (1 - 1e-6)  # It can do as much.
    for s in share:
      assert s == pytest.approx(k, abs=k * m * 2.0**-23)


@pytest.mark.parametrize("m", [100, 1000])
@pytest.mark.parametrize("cohort", [_lifted, _irregular])
@pytest.mark.parametrize("setting", _SETTINGS)
def test_no_client_moves_a_sum_by_more_than_the_clip_norm(setting, cohort, m):
  _assert_within(_moved(setting, "whole", cohort(m)), setting, m)


@pytest.mark.parametrize("runtime,m", [("tffs", 1000), ("blocks of 256", 10_000)])
def test_nor_in_blocks_or_in_tffs_runtime(runtime, m):
  _assert_within(_moved("update", runtime, _lifted(m)), "update", m)


@pytest.mark.slow
@pytest.mark.parametrize("setting", _SETTINGS)
@pytest.mark.parametrize("runtime", ["whole", "tffs", "blocks of 256"])
def test_nor_of_ten_thousand(setting, runtime):
  for cohort in (_lifted, _irregular):
    _assert_within(_moved(setting, runtime, cohort(10_000)), setting, 10_000)


@pytest.mark.parametrize("setting", _SETTINGS)
def test_a_release_is_the_same_bits_in_any_order_blocks_and_runtime(setting):
  vectors = np.concatenate([_lifted(150), _irregular(150)])
  shares = np.random.default_rng(1).uniform(size=300).astype(np.float32)
  order = np.random.default_rng(2).permutation(300)
  releases = []
  for runtime in ("whole", "blocks of 7", "blocks of 40", "tffs"):
    with _runtime(runtime):
      initialize, compute = _sum(setting)
      for o in (np.arange(300), order)[: 1 if runtime == "tffs" else 2]:
        state, result = compute(initialize(), _clients(vectors[o], shares[o]))
        releases.append([np.asarray(t) for t in tf.nest.flatten((state, result))])
  for other in releases[1:]:
    for first, another in zip(releases[0], other):
      np.testing.assert_array_equal(first, another)
