"""Iterate averaging: the mean of a process's models, and nothing else of it, changes."""

from helpers import problems
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile import algorithms

pytestmark = pytest.mark.usefixtures("simulation_context")


def _process():
  return algorithms.build_superquantile_fed_avg(
    problems.linear_model(), 0.5, tff.learning.optimizers.build_sgdm(0.3)
  )


def _weights(process, state):
  return np.concatenate([np.ravel(w) for w in tf.nest.flatten(process.get_model_weights(state))])


@pytest.mark.parametrize("num_rounds", [1, 3, 50])
def test_the_model_is_the_mean_of_models(num_rounds):
  inner = _process()
  process = algorithms.build_averaged(inner, num_rounds)
  data = problems.datasets(problems.client_arrays())
  state, inner_state = process.initialize(), inner.initialize()
  mean = _weights(inner, inner_state)
  np.testing.assert_array_equal(_weights(process, state), mean)
  for t in range(1, 8):
    output, inner_output = process.next(state, data), inner.next(inner_state, data)
    state, inner_state = output.state, inner_output.state
    mean += (_weights(inner, inner_state) - mean) / min(t, num_rounds)
    np.testing.assert_allclose(_weights(process, state), mean, rtol=1e-5, atol=1e-6)
    # Clients train the inner model, as without.
    np.testing.assert_array_equal(_weights(inner, state["process"]), _weights(inner, inner_state))
    tf.nest.map_structure(np.testing.assert_array_equal, output.metrics, inner_output.metrics)
  # Weights that are set are those of both, and where the mean goes on.
  start = tf.nest.map_structure(lambda w: 0.0 * w + 1.0, process.get_model_weights(state))
  state = process.set_model_weights(state, start)
  assert set(_weights(process, state)) == set(_weights(inner, state["process"])) == {1.0}


def test_hyperparameters_are_those_of_the_process():
  inner = _process()
  process = algorithms.build_averaged(inner, 3)
  state = process.initialize()
  hparams = process.get_hparams(state)
  found = inner.get_hparams(inner.initialize())
  tf.nest.map_structure(np.testing.assert_array_equal, hparams, found)
  assert tf.nest.flatten(hparams)
  other = tf.nest.map_structure(lambda value: 0.5 * value, hparams)
  changed = process.set_hparams(state, other)
  tf.nest.map_structure(np.testing.assert_array_equal, process.get_hparams(changed), other)
  # And they count: steps are half as long.
  data = problems.datasets(problems.client_arrays())
  moves = []
  for start in (state, changed):
    after = process.next(start, data).state
    moves.append(_weights(inner, after["process"]) - _weights(inner, start["process"]))
  expected = inner.next(inner.set_hparams(inner.initialize(), other), data).state
  np.testing.assert_array_equal(
    moves[1], _weights(inner, expected) - _weights(inner, inner.initialize())
  )
  assert not np.allclose(*moves)
