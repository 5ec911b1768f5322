"""Private training to a clip norm that adapts: rounds against numpy, and what is released.

The sum itself is in `tests/secure_sums/test_adaptive_clipping.py`, an attack in
`test_empirical_privacy`.
"""

import functools

from helpers import problems
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile import algorithms
from tff_superquantile import secure_sums
from tff_superquantile import threshold as threshold_lib

pytestmark = pytest.mark.usefixtures("simulation_context")

_ARRAYS = problems.client_arrays(seed=3)
# From these indices on: clients without examples, with a huge update, and with none that is finite.
_ABSENT, _BIG, _SPOILT = 6, 7, 8
_EXAMPLES = [
  *_ARRAYS,
  (_ARRAYS[0][0][:0], _ARRAYS[0][1][:0]),
  (100 * _ARRAYS[1][0], _ARRAYS[1][1]),
  (np.where(np.arange(5) == 0, np.float32(np.nan), _ARRAYS[5][0]), _ARRAYS[5][1]),
]
_NUM_PARAMETERS = (problems.NUM_FEATURES + 1) * problems.NUM_CLASSES
_KEY = bytes(range(16))
_RATE, _MAX_LOSS, _EXPECTED, _THETA, _K = 0.2, 3.0, 5.0, 0.4, 0.3
_Z_W, _Z_B, _GAMMA, _FIRST = 0.05, 0.4, 0.7, 0.3
_CLIP_NORM = algorithms.AdaptiveClipNorm(_Z_B, _FIRST, _GAMMA)
_COHORTS = (range(6), [0, 3, _ABSENT, _SPOILT, _BIG], [], [5, 1, 4, 2], [_ABSENT, _SPOILT])


@functools.cache
def _process(kind):
  noise = dict(clip_norm=_CLIP_NORM, noise_multiplier=_Z_W, noise_key=_KEY)
  common = dict(local_batch_size=0, **problems.reading_handles(_EXAMPLES))
  sgd = tff.learning.optimizers.build_sgdm(_RATE)
  if kind == "weighted":
    share_fn = threshold_lib.build_power_share(1.0, _MAX_LOSS)
    weighting = threshold_lib.build_own_loss_weighting(share_fn)
    private = algorithms.Private(share_weight=_K, **noise)
    return algorithms.build_weighted_fed_avg(
      problems.linear_model(), weighting, sgd, private=private, **common
    )
  threshold = functools.partial(
    threshold_lib.build_geometric_quantile,
    noise_multiplier=1e-3,
    expected_clients=_EXPECTED,
    initial_estimate=1.5,
    noise_key=_KEY,
  )
  return algorithms.build_superquantile_fed_avg(
    problems.linear_model(),
    _THETA,
    sgd,
    threshold=threshold,
    private=algorithms.Private(expected_clients=_EXPECTED, **noise),
    **common,
  )


def _noise_of_rounds(num_shares, num_rounds):
  """The server's noise of each round, from its key: of the weights, perhaps a share, the count."""
  of_key = secure_sums.GaussianSum(np.hypot(1.0, _Z_W / _Z_B), _Z_W, _KEY, "updates")
  shapes = [[problems.NUM_FEATURES, problems.NUM_CLASSES], [problems.NUM_CLASSES]]
  return problems.noise_of_rounds(of_key, shapes + [[]] * (num_shares + 1), num_rounds)


def _update_and_loss(weights, index):
  x, y = _EXAMPLES[index]
  if not len(y) or np.isnan(x).any():
    return None
  loss, _ = problems.losses_and_gradient(weights, x, y)
  return -problems.update(weights, x, y, _RATE), loss


@pytest.mark.parametrize("kind", ["superquantile", "weighted"])
def test_rounds_against_numpy_with_the_noise_of_the_key(kind):
  process, k = _process(kind), _K if kind == "weighted" else 0.0
  state, weights, norm = process.initialize(), problems.initial_weights(), _FIRST
  num_within, num_counted = [], []
  for indices, noise in zip(_COHORTS, _noise_of_rounds(bool(k), len(_COHORTS))):
    output = process.next(state, problems.handles(indices))
    state = output.state
    threshold = None if k else output.metrics["client_work"]["threshold"]["threshold"]
    shares, within, total = [], [], noise[:_NUM_PARAMETERS].copy()
    for index in indices:
      trained = _update_and_loss(weights, index)
      if trained is None or (threshold is not None and trained[1] < threshold):
        continue
      update, loss = trained
      shares.append(1.0 if threshold is not None else min(max(loss, 0.0), _MAX_LOSS) / _MAX_LOSS)
      length, limit = np.linalg.norm(update), norm * np.sqrt(1.0 - k**2)
      within.append(length <= limit)
      total += shares[-1] * update * min(1.0, limit / length) / norm
    divisor = _THETA * _EXPECTED
    if k:
      divisor = max(sum(shares) + noise[_NUM_PARAMETERS] / k, 2.0 * _Z_W / k)
    expected = problems.vector(weights) - norm * total / divisor
    found = state.global_model_weights.trainable
    np.testing.assert_allclose(problems.vector(found), expected, atol=2e-6)
    measured = output.metrics["aggregator"]
    assert measured["clip_norm"] == pytest.approx(norm, rel=1e-5)
    assert set(measured) == ({"clip_norm", "estimated_share_sum"} if k else {"clip_norm"})
    count = np.dot(shares, np.array(within, float) - _GAMMA) + noise[-1] / _Z_W * _Z_B * _GAMMA
    norm *= np.exp(-0.2 * np.clip(count / divisor, -_GAMMA, 1.0 - _GAMMA))
    assert state.aggregator["clip_norm"] == pytest.approx(norm, rel=1e-5)
    weights = [w.astype(np.float64) for w in found]
    num_within.append(sum(within))
    num_counted.append(len(within))
  # Some are clipped and some are not; some of the cohort do not train, and nobody does.
  assert 0 < sum(num_within) < sum(num_counted) < sum(map(len, _COHORTS))
  assert num_counted[2] == num_counted[4] == 0


@pytest.mark.parametrize("kind", ["superquantile", "weighted"])
def test_the_state_tells_who_took_part_by_the_noisy_sums_alone(kind):
  process = _process(kind)
  outputs = [process.next(process.initialize(), problems.handles(c)) for c in (_COHORTS[0], [])]
  aggregators = [output.state.aggregator for output in outputs]
  assert all(set(found) == {"clip_norm", "sum"} for found in aggregators)
  for one, other in zip(*(tf.nest.flatten(found["sum"]) for found in aggregators)):
    np.testing.assert_array_equal(one, other)
  open_sums, secure, _ = problems.sums(process.next)
  assert (open_sums, secure > 0) == (1, kind == "superquantile")
