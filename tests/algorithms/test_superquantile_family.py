"""A family of models against processes of single models, TFF's own FedAvg, and numpy."""

import functools

from helpers import problems
from helpers import rounds
import numpy as np
import pytest
import tensorflow_federated as tff
import tree

from tff_superquantile import algorithms

_THETAS = (0.5, 1.0, 0.25)
_SIZES = (12, 7, 20, 3, 9, 16)
_MODEL = problems.linear_model()
_OPTIONS = dict(
  model_fn=_MODEL,
  client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.2, 0.9),
  server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0, 0.5),  # Has a state.
)
_ARRAYS = problems.client_arrays(_SIZES)
_COHORTS = [(0, 1, 2, 3), (5, 4, 3, 2, 1, 0), (1, 3, 4, 5)]


def _rounds(process, state=None, cohorts=_COHORTS):
  """The outputs of `next`, one a cohort."""
  state = process.initialize() if state is None else state
  outputs = []
  for cohort in cohorts:
    outputs.append(process.next(state, problems.datasets([_ARRAYS[i] for i in cohort])))
    state = outputs[-1].state
  return outputs


@functools.cache
def _family():
  return algorithms.build_superquantile_family(thetas=_THETAS, **_OPTIONS)


@functools.cache
def _single(theta):
  if theta == 1.0:
    return algorithms.build_fed_avg(**_OPTIONS)
  return algorithms.build_superquantile_fed_avg(theta=theta, **_OPTIONS)


@pytest.fixture(scope="module")
def outputs(simulation_context):
  return _rounds(_family())


def _assert_same(found, expected):
  tree.assert_same_structure(found, expected)
  for a, b in zip(tree.flatten(found), tree.flatten(expected)):
    np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("theta", _THETAS)
def test_each_model_is_that_of_a_process_of_its_own(outputs, theta):
  j = _THETAS.index(theta)
  expected = _rounds(_single(theta))
  for found, wanted in zip(outputs, expected):
    _assert_same(found.state[j], wanted.state)
    _assert_same(found.metrics[j], wanted.metrics)


def test_weights_and_hyperparameters_of_all_models(outputs):
  process, state = _family(), outputs[-1].state
  weights, hparams = process.get_model_weights(state), process.get_hparams(state)
  assert len(weights) == len(hparams) == len(_THETAS)
  shuffled = process.set_model_weights(state, (weights[1], weights[2], weights[0]))
  _assert_same(process.get_model_weights(shuffled), (weights[1], weights[2], weights[0]))
  hparams[2]["client_work"]["learning_rate"] = 0.01
  changed = process.get_hparams(process.set_hparams(state, hparams))
  rates = [found["client_work"]["learning_rate"] for found in changed]
  np.testing.assert_allclose(rates, [0.2, 0.2, 0.01], rtol=1e-6)


@pytest.mark.parametrize(
  "thetas,error,message",
  [
    ((), ValueError, r"Found thetas = \(\); expected"),
    ((0.5, 1.0, 0.5), ValueError, r"Found thetas = \(0.5, 1.0, 0.5\); expected different"),
    ((1.0, "0.5"), TypeError, "Found theta = '0.5', of type str"),
  ],
)
def test_other_thetas_are_refused(thetas, error, message):
  with pytest.raises(error, match=message):
    algorithms.build_superquantile_family(thetas=thetas, **_OPTIONS)


def test_a_private_threshold_is_refused():
  threshold = rounds.geometric_threshold()
  with pytest.raises(ValueError, match="Found a private threshold.* for a family of models"):
    algorithms.build_superquantile_family(thetas=(1.0, 0.5), threshold=threshold, **_OPTIONS)
