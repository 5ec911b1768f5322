"""The baselines against independent numpy implementations, and their limits against FedAvg."""

import collections
import functools

from helpers import problems
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile import algorithms
from tff_superquantile import threshold as threshold_lib

pytestmark = pytest.mark.usefixtures("simulation_context")

_RATE = 0.2
_UNIFORM = tff.learning.ClientWeighting.UNIFORM
_BY_EXAMPLES = tff.learning.ClientWeighting.NUM_EXAMPLES
_MODEL = problems.linear_model(accuracy=False)
_MU, _L2 = 0.7, 0.05  # Of FedProx.


def _later(*values):
  """Values of which others are tried always, and these in the long run."""
  return pytest.param(*values, marks=pytest.mark.slow)


def _sgd(learning_rate=_RATE):
  return tff.learning.optimizers.build_sgdm(learning_rate)


# Processes have no state: those that several tests run are built, and compiled, once.


@functools.cache
def _fed_avg():
  return algorithms.build_fed_avg(_MODEL, _sgd())


@functools.cache
def _fed_prox(**kwargs):
  return algorithms.build_fed_prox(_MODEL, _MU, _sgd(), l2=_L2, **kwargs)


@functools.cache
def _q_fed_avg(q):
  return algorithms.build_q_fed_avg(_MODEL, q, _sgd())


@functools.cache
def _tilted_erm(temperature, **kwargs):
  return algorithms.build_tilted_erm(_MODEL, temperature, _sgd(), **kwargs)


def _run(process, data, num_rounds=3):
  state = process.initialize()
  for _ in range(num_rounds):
    state, metrics = process.next(state, data)
  weights = state.global_model_weights
  return tuple(tf.nest.flatten(weights)), metrics["client_work"]


def _assert_close(got, want, **tolerance):
  for a, b in zip(got, want):
    np.testing.assert_allclose(a, b, **(tolerance or dict(atol=3e-6)))


def _losses(weights, arrays):
  return np.array([problems.losses_and_gradient(weights, x, y)[0] for x, y in arrays])


def _updates(weights, arrays, **sgd):
  """Initial minus final weights of each client."""
  trained = [
    problems.local_sgd(weights, x, y, learning_rate=_RATE, batch_size=4, **sgd) for x, y in arrays
  ]
  return [[w - v for w, v in zip(weights, model)] for model in trained]


def _alpha(arrays, weighting):
  sizes = np.array([len(y) for _, y in arrays], np.float64)
  alpha = sizes if weighting == _BY_EXAMPLES else np.ones(len(arrays))
  return alpha / alpha.sum()


def _step(weights, updates, pi):
  return [w - sum(p * u[k] for p, u in zip(pi, updates)) for k, w in enumerate(weights)]


@pytest.mark.parametrize("epochs", [1, 2])
def test_fed_prox_against_numpy(epochs):
  arrays = problems.client_arrays()
  process = _fed_prox(local_epochs=epochs)
  weights = problems.initial_weights()
  for _ in range(3):
    updates = []
    for x, y in arrays:
      local = weights
      for _ in range(epochs):
        for start in range(0, len(y), 4):
          _, gradient = problems.losses_and_gradient(
            local, x[start : start + 4], y[start : start + 4]
          )
          local = [
            w - _RATE * (g + _L2 * w + _MU * (w - w0)) for w, g, w0 in zip(local, gradient, weights)
          ]
      updates.append([w - v for w, v in zip(weights, local)])
    weights = _step(weights, updates, _alpha(arrays, _BY_EXAMPLES))
  _assert_close(_run(process, problems.datasets(arrays))[0], weights)


def test_fed_prox_of_one_step_is_fed_avg_bit_for_bit():
  data = problems.datasets(problems.client_arrays())
  options = dict(local_batch_size=0)
  fed_prox = _run(algorithms.build_fed_prox(_MODEL, 5.0, _sgd(), **options), data)[0]
  fed_avg = _run(algorithms.build_fed_avg(_MODEL, _sgd(), **options), data)[0]
  for a, b in zip(fed_prox, fed_avg):
    np.testing.assert_array_equal(a, b)


def test_fed_prox_with_a_weight_without_gradient():
  """The penalty reaches weights of which the loss does not know."""
  spec = (tf.TensorSpec([None, 1]), tf.TensorSpec([None], tf.int32))
  model = tff.learning.models.FunctionalModel(
    initial_weights=((np.ones(1, np.float32), np.ones(1, np.float32)), ()),
    predict_on_batch_fn=tf.function(
      lambda weights, x, training: tf.concat([x * weights[0][0], x], axis=1)
    ),
    loss_fn=problems.mean_cross_entropy,
    input_spec=spec,
  )
  data = [tf.data.Dataset.from_tensors((np.ones([3, 1], np.float32), np.ones(3, np.int32)))]
  weights, _ = _run(algorithms.build_fed_prox(model, 0.5, _sgd(), l2=0.1), data, num_rounds=1)
  assert weights[1] == pytest.approx(1.0 - _RATE * 0.1)


@pytest.mark.parametrize(
  "q,weighting", [_later(0.001, _BY_EXAMPLES), (1.0, _UNIFORM), (10.0, _BY_EXAMPLES)]
)
def test_q_fed_avg_against_numpy(q, weighting):
  """As Algorithm 2 of Li et al. writes it, with its powers."""
  arrays = problems.client_arrays()
  process = algorithms.build_q_fed_avg(_MODEL, q, _sgd(), client_weighting=weighting)
  weights, alpha = problems.initial_weights(), _alpha(arrays, weighting)
  for _ in range(3):
    losses, updates = _losses(weights, arrays), _updates(weights, arrays)
    lipschitz = 1.0 / _RATE
    numerator = [np.zeros_like(w) for w in weights]
    denominator = 0.0
    for a, loss, update in zip(alpha, losses, updates):
      scaled = [lipschitz * u for u in update]
      squared_norm = sum(np.sum(s**2) for s in scaled)
      numerator = [n + a * loss**q * s for n, s in zip(numerator, scaled)]
      denominator += a * (q * loss ** (q - 1) * squared_norm + lipschitz * loss**q)
    weights = [w - n / denominator for w, n in zip(weights, numerator)]
  got, metrics = _run(process, problems.datasets(arrays), num_rounds=3)
  _assert_close(got, weights)
  assert metrics["threshold"]["loss_max"] == pytest.approx(losses.max(), rel=1e-5)


def test_q_fed_avg_follows_a_learning_rate_that_decays():
  """The Lipschitz constant is that of the round's learning rate."""
  data = problems.datasets(problems.client_arrays())
  decayed = algorithms.build_q_fed_avg(
    _MODEL, 2.0, _sgd(9.0), client_learning_rate_fn=lambda round_num: tf.constant(_RATE)
  )
  _assert_close(_run(decayed, data)[0], _run(_q_fed_avg(2.0), data)[0])


def test_q_fed_avg_with_extreme_powers_is_the_worst_client():
  arrays = problems.client_arrays()
  weights = problems.initial_weights()
  worst = int(np.argmax(_losses(weights, arrays)))
  got, metrics = _run(
    algorithms.build_q_fed_avg(_MODEL, 1e4, _sgd()), problems.datasets(arrays), num_rounds=1
  )
  assert np.all([np.all(np.isfinite(w)) for w in got])
  assert metrics["threshold"]["effective_clients"] == pytest.approx(1.0)
  # The step goes towards what the worst client alone would do.
  update = _updates(weights, arrays)[worst]
  moved = np.concatenate([np.ravel(w - v) for w, v in zip(weights, got)])
  wanted = np.concatenate([np.ravel(u) for u in update])
  cosine = moved @ wanted / np.linalg.norm(moved) / np.linalg.norm(wanted)
  assert cosine == pytest.approx(1.0, abs=1e-4)


def _tilted(temperature):
  return lambda losses, alpha: alpha * np.exp(temperature * (losses - losses.max()))


def _proportional(losses, alpha):
  assert losses.min() < 1.5 < losses.max()
  return alpha / (2.5 - np.minimum(losses, 1.5))


def _semi_variance(beta):
  return lambda losses, alpha: alpha * (1.0 + 2.0 * beta * np.maximum(losses - alpha @ losses, 0.0))


def _yue(losses, alpha):
  """As Yue et al. write it, with the ranks -5, -3, ..., 5 and strength 1."""
  return (1.0 + (2.0 * np.argsort(np.argsort(losses)) - 5.0) / 6.0) / 6.0


def _signs(losses, alpha):
  return alpha * (1.0 + 0.4 * np.sign(losses[:, np.newaxis] - losses) @ alpha)


_PROP_FAIR = functools.partial(
  algorithms.build_prop_fair, _MODEL, 2.5, client_optimizer_fn=_sgd(), max_loss=1.5
)
_SEMI_VRED = functools.partial(algorithms.build_semi_vred, _MODEL, client_optimizer_fn=_sgd())


@functools.cache
def _gifair(strength, client_weighting=_BY_EXAMPLES):
  return algorithms.build_gifair(_MODEL, strength, _sgd(), client_weighting=client_weighting)


@pytest.mark.parametrize(
  "build, weigh, weighting",
  [
    (functools.partial(_tilted_erm, 0.1), _tilted(0.1), _UNIFORM),
    _later(functools.partial(_tilted_erm, 1.0), _tilted(1.0), _BY_EXAMPLES),
    (functools.partial(_tilted_erm, 200.0), _tilted(200.0), _BY_EXAMPLES),
    _later(_PROP_FAIR, _proportional, _UNIFORM),
    (_PROP_FAIR, _proportional, _BY_EXAMPLES),
    _later(functools.partial(_SEMI_VRED, beta=0.3), _semi_variance(0.3), _UNIFORM),
    (functools.partial(_SEMI_VRED, beta=5.0), _semi_variance(5.0), _BY_EXAMPLES),
    (functools.partial(_gifair, 1.0), _yue, _UNIFORM),
    (functools.partial(_gifair, 0.4), _signs, _BY_EXAMPLES),
  ],
)
def test_weights_by_losses_against_numpy(build, weigh, weighting):
  arrays = problems.client_arrays()
  weights, alpha = problems.initial_weights(), _alpha(arrays, weighting)
  for _ in range(3):
    pi = weigh(_losses(weights, arrays), alpha)
    pi = pi / pi.sum()
    weights = _step(weights, _updates(weights, arrays), pi)
  got, metrics = _run(build(client_weighting=weighting), problems.datasets(arrays))
  _assert_close(got, weights)
  if weigh is _proportional:  # Which shows the server nobody's loss.
    assert metrics["cohort"]["tail_size"] == len(arrays)
  else:
    assert metrics["threshold"]["effective_clients"] == pytest.approx(1 / np.sum(pi**2), rel=1e-3)


def test_tilted_erm_with_a_moving_average_against_numpy():
  """Li et al.: weights exp(t F_i) over an average of exp(t R_t), which sum to one in the mean."""
  arrays, temperature, rate = problems.client_arrays(), 1.5, 0.3
  process = _tilted_erm(temperature, moving_average_rate=rate)
  weights, alpha, average = problems.initial_weights(), _alpha(arrays, _BY_EXAMPLES), None
  for _ in range(4):
    tilted = np.exp(temperature * _losses(weights, arrays))
    risk = alpha @ tilted
    average = risk if average is None else (1 - rate) * average + rate * risk
    weights = _step(weights, _updates(weights, arrays), alpha * tilted / average)
  got, metrics = _run(process, problems.datasets(arrays), num_rounds=4)
  _assert_close(got, weights)
  assert metrics["threshold"]["update_scale"] == pytest.approx(risk / average, rel=1e-4)


def test_tilted_erm_with_a_moving_average_keeps_it_where_nobody_counts():
  process = _tilted_erm(1.5, moving_average_rate=0.3)
  empty = problems.datasets([(np.zeros([0, 5], np.float32), np.zeros(0, np.int32))])
  state, metrics = process.next(process.initialize(), empty)
  assert metrics["client_work"]["threshold"]["update_scale"] == 1.0
  for a, b in zip(state.global_model_weights.trainable, _MODEL.initial_weights[0]):
    np.testing.assert_array_equal(a, b)


def _indexed_problem(arrays):
  """Clients that hold their index, and read their examples from a table by it."""
  sizes = [len(y) for _, y in arrays]
  offsets = np.cumsum([0, *sizes]).astype(np.int32)
  x, y = (np.concatenate([a[k] for a in arrays]) for k in range(2))

  @tf.function(input_signature=[tf.TensorSpec([], tf.int32)])
  def examples(index):
    rows = slice(tf.gather(offsets, index), tf.gather(offsets, index + 1))
    return tf.constant(x)[rows], tf.constant(y)[rows]

  return dict(examples_fn=examples, local_batch_size=4)


def _assert_rounds_by_index(build, weigh):
  """Of cohorts that change; `weigh` goes from a cohort and its losses to weights."""
  arrays = problems.client_arrays()
  process = build(
    client_optimizer_fn=_sgd(),
    num_clients=len(arrays),
    index_fn=lambda index: index,
    **_indexed_problem(arrays),
  )
  state, weights = process.initialize(), problems.initial_weights()
  for cohort in ([0, 2, 4], [1, 2, 3, 5], [0, 5], [4, 0, 3]):
    chosen = [arrays[i] for i in cohort]
    pi = weigh(cohort, _losses(weights, chosen))
    pi = pi / pi.sum()
    weights = _step(weights, _updates(weights, chosen), pi)
    state, metrics = process.next(state, [np.int32(i) for i in cohort])
  _assert_close(state.global_model_weights.trainable, weights)
  measured = metrics["client_work"]["threshold"]["effective_clients"]
  assert measured == pytest.approx(1 / np.sum(pi**2), rel=1e-4) and measured < 2.9


@pytest.mark.parametrize("weighting", [_later(_UNIFORM), _BY_EXAMPLES])
def test_agnostic_fed_avg_against_numpy(weighting):
  """Mirror ascent: a client's weight is kept while it is away."""
  lambdas = _alpha(problems.client_arrays(), weighting)

  def weigh(cohort, losses):
    lambdas[cohort] *= np.exp(0.8 * losses)
    return lambdas[cohort]

  build = functools.partial(algorithms.build_agnostic_fed_avg, _MODEL, 0.8)
  _assert_rounds_by_index(functools.partial(build, client_weighting=weighting), weigh)


def test_aaggff_against_numpy():
  rounds, alpha = [], _alpha(problems.client_arrays(), _BY_EXAMPLES)

  def weigh(cohort, losses):
    rounds.append((cohort, losses))
    return alpha[cohort] * problems.mixing_coefficients(rounds, len(alpha), 4.0)[-1][cohort]

  build = functools.partial(algorithms.build_aaggff, _MODEL, decision_step=4.0)
  _assert_rounds_by_index(functools.partial(build, client_weighting=_BY_EXAMPLES), weigh)


def test_agnostic_fed_avg_leaves_out_clients_of_unknown_index():
  arrays = problems.client_arrays()
  process = algorithms.build_agnostic_fed_avg(
    _MODEL, 0.5, _sgd(), num_clients=2, index_fn=lambda i: i - 1, **_indexed_problem(arrays)
  )
  _, metrics = process.next(process.initialize(), [np.int32(i) for i in range(5)])
  assert metrics["client_work"]["cohort"]["tail_size"] == 2


_LIMITS = {
  "fed_prox": functools.partial(algorithms.build_fed_prox, _MODEL, 0.0),
  "q_fed_avg": functools.partial(algorithms.build_q_fed_avg, _MODEL, 0.0),
  "q_fed_avg near 0": functools.partial(algorithms.build_q_fed_avg, _MODEL, 1e-7),
  "tilted_erm": functools.partial(algorithms.build_tilted_erm, _MODEL, 0.0),
  "tilted_erm near 0": functools.partial(algorithms.build_tilted_erm, _MODEL, 1e-7),
  "tilted_erm averaged": functools.partial(
    algorithms.build_tilted_erm, _MODEL, 0.0, moving_average_rate=0.5
  ),
  "prop_fair": functools.partial(algorithms.build_prop_fair, _MODEL, 1e9, max_loss=4.0),
  "semi_vred": functools.partial(algorithms.build_semi_vred, _MODEL, 0.0),
  "gifair": functools.partial(algorithms.build_gifair, _MODEL, 0.0),
  "reweighting": functools.partial(
    algorithms.build_superquantile_fed_avg, _MODEL, 1.0, threshold="reweighting"
  ),
}


@pytest.mark.parametrize(
  "name",
  # The very limits always; what is near them, in the long run.
  [pytest.param(name, marks=[pytest.mark.slow] if "near" in name else []) for name in _LIMITS],
)
def test_limits_are_fed_avg(name):
  data = problems.datasets(problems.client_arrays())
  _assert_close(_run(_LIMITS[name](_sgd()), data)[0], _run(_fed_avg(), data)[0], atol=1e-6)


def test_no_step_on_the_weights_is_fed_avg():
  arrays = problems.client_arrays()
  options = _indexed_problem(arrays)
  cohort = [np.int32(i) for i in range(len(arrays))]
  indexed = dict(num_clients=len(arrays), index_fn=lambda i: i, **options)
  agnostic = algorithms.build_agnostic_fed_avg(_MODEL, 0.0, _sgd(), **indexed)
  aaggff = algorithms.build_aaggff(_MODEL, _sgd(), decision_step=0.0, **indexed)
  expected = _run(algorithms.build_fed_avg(_MODEL, _sgd(), **options), cohort)[0]
  for process in (agnostic, aaggff):
    _assert_close(_run(process, cohort)[0], expected, atol=1e-6)


@pytest.mark.parametrize(
  "build",
  [
    functools.partial(_q_fed_avg, 2.0),
    functools.partial(_tilted_erm, 1.0, client_weighting=_BY_EXAMPLES),
    functools.partial(_tilted_erm, 1.5, moving_average_rate=0.3),
    functools.partial(_fed_prox, local_epochs=1),
    functools.partial(algorithms.build_prop_fair, _MODEL, 5.0, _sgd(), max_loss=4.0),
    functools.partial(_gifair, 0.4),
  ],
  ids=["q_fed_avg", "tilted_erm", "tilted_erm_averaged", "fed_prox", "prop_fair", "gifair"],
)
def test_clients_that_are_not_finite_are_left_out(build):
  arrays = problems.client_arrays()
  bad = (np.full([5, 5], np.nan, np.float32), np.zeros(5, np.int32))
  process = build()
  good = _run(process, problems.datasets(arrays))[0]
  with_bad, metrics = _run(process, problems.datasets([*arrays, bad]))
  _assert_close(with_bad, good, atol=1e-6)
  assert metrics["cohort"]["num_excluded"] == 1


def test_refuses_unknown_options():
  with pytest.raises(TypeError, match="unknown keyword argument local_epoch;"):
    algorithms.build_fed_avg(_MODEL, _sgd(), local_epoch=2)


def test_weights_by_client_ask_for_indices():
  with pytest.raises(ValueError, match="no index_fn"):
    algorithms.build_agnostic_fed_avg(_MODEL, 1.0, _sgd(), num_clients=3, index_fn=None)
  with pytest.raises(ValueError, match="no index_fn"):
    algorithms.build_aaggff(_MODEL, _sgd(), num_clients=3)


def test_mirror_ascent_alone():
  """As a process of its own, the way a threshold can be called."""
  process = threshold_lib.build_mirror_ascent(3, 1.0)
  state = process.initialize()
  clients = [threshold_lib.Client(np.zeros(2, np.int64), np.int32(i)) for i in (2, 0)]
  output = process.next(state, [1.0, 3.0], [1.0, 1.0], clients)
  np.testing.assert_allclose(output.result, [0.0, -3.0, -2.0], atol=1e-6)
  again = process.next(output.state, [5.0, np.nan], [1.0, 1.0], clients)
  np.testing.assert_allclose(again.state, [-3.0, -6.0, 0.0], atol=1e-6)
  assert again.measurements == collections.OrderedDict(
    loss_mean=5.0, loss_max=5.0, effective_clients=1.0
  )
