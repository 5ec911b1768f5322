"""DP-FedAvg's mean as a factory: against numpy, and inside TFF's builder and ours."""

from helpers import problems
import numpy as np
import pytest
import tensorflow_federated as tff

from tff_superquantile import algorithms

_TYPE = tff.types.to_type(((np.float32, [2, 3]), (np.float32, [1])))


def _values(number, scale=1.0):
  rng = np.random.default_rng(number)
  draws = [scale * rng.normal(size=7).astype(np.float32) for _ in range(number)]
  return [(d[:6].reshape(2, 3), d[6:]) for d in draws]


def _flat(value):
  return np.concatenate([np.ravel(part) for part in value])


def _clipped_sum(values, norm):
  return sum(_flat(v) * min(1.0, norm / np.linalg.norm(_flat(v))) for v in values)


@pytest.mark.parametrize("secure", [False, True])
def test_the_mean_of_clipped_updates(secure, simulation_context):
  values = _values(9)
  factory = algorithms.dp_mean_factory(2.0, 1e-3, expected_clients=12, secure=secure)
  process = factory.create(_TYPE)
  output = process.next(process.initialize(), values)
  # Rounding in secure sums, and noise of 2e-3 / 12.
  np.testing.assert_allclose(_flat(output.result), _clipped_sum(values, 2.0) / 12, atol=2e-2)
  if not secure:
    np.testing.assert_allclose(_flat(output.result), _clipped_sum(values, 2.0) / 12, atol=2e-3)
  broken = [*values, (np.full([2, 3], np.nan, np.float32), np.ones(1, np.float32))]
  again = process.next(process.initialize(), broken).result
  np.testing.assert_allclose(_flat(again), _clipped_sum(values, 2.0) / 12, atol=2e-2)


@pytest.mark.parametrize("secure", [False, True])
def test_the_noise_and_a_client_beyond_measure(secure, simulation_context):
  process = algorithms.dp_mean_factory(0.5, 3.0, 10, secure=secure).create(
    tff.types.to_type((np.float32, [2000]))
  )
  state = process.initialize()
  zeros = [np.zeros(2000, np.float32)] * 4
  huge = [*zeros, np.full(2000, 1e30, np.float32)]
  draws = [process.next(state, cohort).result for cohort in (zeros, huge)]
  state = process.next(state, zeros).state
  draws.append(process.next(state, zeros).result)
  for draw in draws:
    assert np.std(draw) == pytest.approx(0.5 * 3.0 / 10, rel=0.1)
  assert np.abs(draws[0] - draws[2]).max() > 0.1  # Each round has noise of its own.
  # No client adds more than C, 0.05 in all and 0.0011 an entry.
  assert abs(np.mean(draws[1]) - np.mean(draws[0])) < 5 * 0.15 / 2000**0.5 * 2**0.5


def test_one_secure_sum_and_no_other(simulation_context):
  process = algorithms.dp_mean_factory(1.0, 1.0, 4, secure=True).create(_TYPE)
  tff.test.assert_not_contains_unsecure_aggregation(process.next)
  plain = algorithms.dp_mean_factory(1.0, 1.0, 4).create(_TYPE)
  with pytest.raises(AssertionError):
    tff.test.assert_not_contains_unsecure_aggregation(plain.next)
  # 4 + 4 sqrt(4) shares: a larger cohort would tell its size by its noise.
  state = process.initialize()
  assert _flat(process.next(state, _values(12)).result).any()
  assert not _flat(process.next(state, _values(13)).result).any()


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("ours", [False, True])
def test_in_a_learning_process(secure, ours, simulation_context):
  datasets = problems.datasets(problems.client_arrays(), 4)
  factory = algorithms.dp_mean_factory(0.05, 1e-3, len(datasets), secure=secure)
  sgd = tff.learning.optimizers.build_sgdm(0.1)
  options = dict(client_optimizer_fn=sgd, model_aggregator=factory)
  if ours:
    process = algorithms.build_fed_avg(problems.linear_model(), **options)
  else:
    process = tff.learning.algorithms.build_unweighted_fed_avg(problems.linear_model(), **options)
  before = process.initialize()
  after, _ = process.next(before, datasets)
  private = algorithms.build_fed_avg(
    problems.linear_model(),
    sgd,
    private=algorithms.Private(
      clip_norm=0.05, noise_multiplier=1e-6, expected_clients=len(datasets)
    ),
  )
  expected, _ = private.next(private.initialize(), datasets)
  found, expected = (
    _flat(process.get_model_weights(after).trainable),
    _flat(private.get_model_weights(expected).trainable),
  )
  assert np.abs(expected).max() > 0.005
  np.testing.assert_allclose(found, expected, atol=1e-3)


def test_a_norm_that_adapts(simulation_context):
  norm = algorithms.AdaptiveClipNorm(count_noise_multiplier=1e-3, initial_norm=0.01)
  process = algorithms.dp_mean_factory(norm, 1e-3, 9).create(_TYPE)
  state, norms = process.initialize(), []
  for _ in range(3):
    output = process.next(state, _values(9))
    state = output.state
    norms.append(float(output.measurements["clip_norm"]))
  # All updates are longer, so that a half is too few within: by exp(eta / 2) a round.
  np.testing.assert_allclose(norms, 0.01 * np.exp([0.0, 0.1, 0.2]), rtol=1e-2)


@pytest.mark.parametrize(
  "arguments,error,message",
  [
    (dict(expected_clients=None), ValueError, "expected_clients"),
    (
      dict(clip_norm=algorithms.AdaptiveClipNorm(count_noise_multiplier=1.0), secure=True),
      ValueError,
      "fixed norm; expected a number",
    ),
  ],
)
def test_refusals(arguments, error, message):
  usual = dict(clip_norm=1.0, noise_multiplier=1.0, expected_clients=4)
  with pytest.raises(error, match=message):
    algorithms.dp_mean_factory(**{**usual, **arguments})
