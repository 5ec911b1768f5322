"""Models with variables that no optimizer trains, and models with several outputs."""

import collections
import pathlib
import re

from helpers import problems
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from privacy.noise import tree_mechanism
from tff_superquantile import algorithms
from tff_superquantile import evaluation
from tff_superquantile import threshold

pytestmark = pytest.mark.usefixtures("simulation_context")
_PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/how_to/other_models.md"
_RATE = 0.1
_START, _SHIFT, _COUNT = 0.3, 0.5, 1.0


class _Counting(tff.learning.models.VariableModel):
  """Predicts a x + shift + count, where training adds 1 to `count` after each batch.

  So a second step of a client sees another count than the first, as batch normalisation's moving
  averages move, and no client may see that of another.
  """

  def __init__(self):
    self._a = tf.Variable(_START)
    self._frozen = [
      tf.Variable(_SHIFT, trainable=False),
      tf.Variable(_COUNT, trainable=False),
    ]

  trainable_variables = property(lambda self: [self._a])
  non_trainable_variables = property(lambda self: self._frozen)
  local_variables = property(lambda self: [])
  input_spec = property(
    lambda self: (tf.TensorSpec([None], tf.float32), tf.TensorSpec([None], tf.float32))
  )

  def predict_on_batch(self, x, training=True):
    return self._a * x + sum(self._frozen)

  def forward_pass(self, batch_input, training=True):
    x, y = batch_input
    output = self.predict_on_batch(x)
    loss = tf.reduce_mean(tf.square(output - y)) / 2
    if training:
      with tf.control_dependencies([loss]):
        self._frozen[1].assign_add(1.0)
    return tff.learning.models.BatchOutput(loss, output, tf.shape(x)[0])

  def report_local_unfinalized_metrics(self):
    return collections.OrderedDict()

  def metric_finalizers(self):
    return collections.OrderedDict()

  def reset_metrics(self):
    pass


def _arrays():
  rng = np.random.default_rng(3)
  return [(x := rng.normal(size=n).astype(np.float32), x + np.float32(n)) for n in (4, 7, 2, 5)]


def _loss(a, x, y):
  return np.mean((a * x + _SHIFT + _COUNT - y) ** 2) / 2


def _trained(a, x, y, size=2):
  """The weight after local steps, of which each sees a count that is larger by 1."""
  for step, begin in enumerate(range(0, len(x), size)):
    rows = slice(begin, begin + size)
    residual = a * x[rows] + _SHIFT + _COUNT + step - y[rows]
    a = a - _RATE * np.mean(residual * x[rows])
  return a


def _sgd():
  return tff.learning.optimizers.build_sgdm(_RATE)


def _private(build, *args, **options):
  private = algorithms.Private(clip_norm=1.0, noise_multiplier=0.1, expected_clients=4)
  return build(_Counting, *args, client_optimizer_fn=_sgd(), private=private, **options)


def _tree(theta):
  mechanism = tree_mechanism.build_tree_mechanism(1.0, 8, 4, num_shares=8)
  return threshold.build_tree_quantile(theta, mechanism, max_loss=9.0)


_BY_INDEX = dict(num_clients=4, index_fn=lambda held: tf.constant(0))
_METHODS = {
  "fed_avg": lambda: algorithms.build_fed_avg(_Counting, _sgd()),
  "superquantile": lambda: algorithms.build_superquantile_fed_avg(_Counting, 0.5, _sgd()),
  "private": lambda: _private(algorithms.build_superquantile_fed_avg, 0.5, threshold=_tree),
  "private_fed_avg": lambda: _private(algorithms.build_fed_avg),
  "fed_prox": lambda: algorithms.build_fed_prox(_Counting, 0.1, _sgd()),
  "q_fed_avg": lambda: algorithms.build_q_fed_avg(_Counting, 1.0, _sgd()),
  "tilted_erm": lambda: algorithms.build_tilted_erm(_Counting, 1.0, _sgd()),
  "prop_fair": lambda: algorithms.build_prop_fair(_Counting, 99.0, _sgd(), max_loss=90.0),
  "semi_vred": lambda: algorithms.build_semi_vred(_Counting, 1.0, _sgd()),
  "gifair": lambda: algorithms.build_gifair(_Counting, 0.5, _sgd()),
  "agnostic": lambda: algorithms.build_agnostic_fed_avg(_Counting, 0.1, _sgd(), **_BY_INDEX),
  "aaggff": lambda: algorithms.build_aaggff(_Counting, _sgd(), **_BY_INDEX),
  "averaged": lambda: algorithms.build_averaged(_METHODS["superquantile"](), 2),
}
_OFTEN = ("superquantile", "private")


@pytest.mark.parametrize(
  "name", [n if n in _OFTEN else pytest.param(n, marks=pytest.mark.slow) for n in _METHODS]
)
def test_what_no_optimizer_trains_keeps_its_value_at_the_server(name):
  process, data = _METHODS[name](), problems.datasets(_arrays(), 2)
  state = process.initialize()
  for _ in range(2):
    state, metrics = process.next(state, data)
  weights = process.get_model_weights(state)
  assert [float(w) for w in weights.non_trainable] == [_SHIFT, _COUNT]
  assert weights.trainable[0] != np.float32(_START)  # It did train.


@pytest.mark.parametrize("theta", [1.0, 0.5])
def test_each_client_begins_with_the_servers_values_and_moves_its_own(theta):
  process = algorithms.build_superquantile_fed_avg(_Counting, theta, _sgd())
  arrays, state, a = _arrays(), process.initialize(), _START
  for _ in range(2):
    state, metrics = process.next(state, problems.datasets(arrays, 2))
    losses = np.array([_loss(a, x, y) for x, y in arrays])
    sizes = np.array([len(x) for x, _ in arrays])
    in_tail = losses >= np.sort(losses)[int(len(losses) * (1 - theta))]
    measured = metrics["client_work"]["threshold"]["loss_mean"]
    assert measured == pytest.approx(np.average(losses, weights=sizes), rel=1e-5)
    a = np.average([_trained(a, x, y) for x, y in arrays], weights=sizes * in_tail)
    assert process.get_model_weights(state).trainable[0] == pytest.approx(a, rel=1e-5)


def test_the_servers_values_may_be_others_than_those_that_a_model_is_made_with():
  process = algorithms.build_superquantile_fed_avg(_Counting, 1.0, _sgd())
  state, arrays = process.initialize(), _arrays()
  weights = process.get_model_weights(state)
  others = tff.learning.models.ModelWeights(weights.trainable, [np.float32(-7.0), np.float32(2.0)])
  state = process.set_model_weights(state, others)
  _, metrics = process.next(state, problems.datasets(arrays, 2))
  losses = [np.mean((_START * x - 5.0 - y) ** 2) / 2 for x, y in arrays]
  expected = np.average(losses, weights=[len(x) for x, _ in arrays])
  measured = metrics["client_work"]["threshold"]["loss_mean"]
  assert measured == pytest.approx(expected, rel=1e-5)


def test_tff_warns_of_batch_normalisation_or_refuses_it():
  with pytest.warns(UserWarning, match="won't be updated during the training"):
    problems.keras_model_fn()
  spec = (tf.TensorSpec([None, 5], tf.float32), tf.TensorSpec([None], tf.int32))
  with pytest.raises(Exception, match="batch normalization layer"):
    tff.learning.models.functional_model_from_keras(
      problems.keras_model(), tf.keras.losses.SparseCategoricalCrossentropy(), spec
    )


def test_normalisation_without_moving_averages_has_nothing_that_is_not_trained():
  layers = tf.keras.layers
  network = tf.keras.Sequential(
    [layers.InputLayer(5), layers.Dense(4), layers.GroupNormalization(2), layers.Dense(3)]
  )
  assert not network.non_trainable_variables


# Several outputs.


def _examples(seed, n):
  x = np.random.default_rng(seed).normal(size=[n, 3]).astype(np.float32)
  return x, collections.OrderedDict(kind=(x[:, 0] > 0).astype(np.int32), size=x[:, 1:2] + seed)


def _two_outputs():
  """Returns the model that the page writes by hand."""
  text = _PAGE.read_text(encoding="utf-8")
  (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
  exec(block, names := {})
  return names["model"]


def test_a_model_with_two_outputs_trains_by_the_sum_of_their_losses():
  model = _two_outputs()
  clients = [_examples(seed, 6) for seed in range(4)]
  data = problems.datasets(clients, 6)
  process = algorithms.build_superquantile_fed_avg(model, 0.5, _sgd())
  state, metrics = process.next(process.initialize(), data)
  # At weights of zero: log 2, and the mean square of the sizes.
  losses = np.array([np.log(2) + np.mean(y["size"] ** 2) for _, y in clients])
  assert metrics["client_work"]["threshold"]["loss_mean"] == pytest.approx(losses.mean(), rel=1e-5)
  tail = np.argsort(losses)[2:]
  moves = [
    (
      _RATE * x.T @ (np.eye(2)[y["kind"]] - 0.5) / len(x),
      _RATE * 2 * x.T @ y["size"] / len(x),
    )
    for x, y in (clients[i] for i in tail)
  ]
  for found, expected in zip(process.get_model_weights(state).trainable, zip(*moves)):
    np.testing.assert_allclose(found, np.mean(expected, axis=0), atol=1e-6)
  # The evaluator measures one output, and says so.
  with pytest.raises(ValueError, match="^Found x of .* for client 0; expected one tensor each"):
    evaluation.examples_of_datasets(data)
