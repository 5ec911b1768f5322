"""Our builders in the place of TFF's: the same calls, and the same refusals where it has any.

What is asserted here of FedAvg and FedProx is what TFF asserts of its own; what differs by design
is in docs/reference/algorithms.md.
"""

import functools
from unittest import mock

from helpers import problems
from helpers import rounds
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from privacy.noise import sum_mechanism
from tff_superquantile import algorithms
from tff_superquantile import client_work
from tff_superquantile.client_work import local_model

_TREE, _GEOMETRIC = rounds.tree_threshold(), rounds.geometric_threshold()
_FED_PROX = functools.partial(algorithms.build_fed_prox, proximal_strength=1.0)
_SUPERQUANTILE = functools.partial(algorithms.build_superquantile_fed_avg, theta=0.5)
_BUILDERS = {
  "fed_avg": algorithms.build_fed_avg,
  "fed_prox": _FED_PROX,
  "tree": functools.partial(_SUPERQUANTILE, threshold=_TREE),
  "geometric": functools.partial(_SUPERQUANTILE, threshold=_GEOMETRIC),
  "prop_fair": functools.partial(algorithms.build_prop_fair, utility_bound=5.0, max_loss=4.0),
}


def _sgd():
  return tff.learning.optimizers.build_sgdm(0.1)


def _secure():
  """Options by which all sums are secure."""
  return dict(
    model_aggregator=tff.learning.secure_aggregator(),
    metrics_aggregator=tff.learning.metrics.secure_sum_then_finalize,
  )


@pytest.fixture(scope="module")
def secure():
  """The builders' processes with secure aggregators, and how often each constructed the model."""
  processes = {}
  for name, build in _BUILDERS.items():
    model_fn = mock.Mock(side_effect=problems.linear_model_fn)
    process = build(
      model_fn=model_fn, client_optimizer_fn=lambda: tf.keras.optimizers.SGD(1.0), **_secure()
    )
    processes[name] = process, model_fn.call_count
  return processes


@pytest.mark.parametrize("name", _BUILDERS)
def test_with_secure_aggregators_all_is_secure(name, secure):
  process, num_constructions = secure[name]
  tff.test.assert_not_contains_unsecure_aggregation(process.next)
  # For the initial weights, their type and the metrics, and the graph of each pass over the data.
  assert num_constructions == (3 if name.startswith("fed_") else 4)


def test_an_exact_threshold_shows_the_losses():
  options = dict(model_fn=problems.linear_model_fn, client_optimizer_fn=_sgd())
  process = _SUPERQUANTILE(**options, **_secure())
  with pytest.raises(AssertionError, match="found 1"):
    tff.test.assert_not_contains_unsecure_aggregation(process.next)


@pytest.mark.parametrize("build", [algorithms.build_fed_avg, _FED_PROX])
@pytest.mark.parametrize(
  "factory", [tff.learning.robust_aggregator, tff.learning.compression_aggregator]
)
def test_a_model_is_constructed_as_often_as_by_tff(build, factory):
  model_fn = mock.Mock(side_effect=problems.linear_model_fn)
  build(model_fn=model_fn, client_optimizer_fn=_sgd(), model_aggregator=factory())
  assert model_fn.call_count == 3


@pytest.mark.parametrize("distributed", [False, True])
def test_a_private_process_constructs_few_models(distributed):
  model_fn = mock.Mock(side_effect=problems.linear_model_fn)
  update_sum = sum_mechanism.build_sum_mechanism(1.0, 0.5, 18, 20) if distributed else None
  private = algorithms.Private(
    clip_norm=0.5, noise_multiplier=1.0, expected_clients=6, update_sum=update_sum
  )
  process = algorithms.build_superquantile_fed_avg(
    model_fn, 0.5, _sgd(), threshold=_TREE, private=private
  )
  assert model_fn.call_count == 5
  if distributed:
    tff.test.assert_not_contains_unsecure_aggregation(process.next)


@pytest.mark.parametrize(
  "model", [problems.linear_model(), problems.linear_model_fn, problems.keras_model_fn]
)
def test_a_description_has_the_type_of_the_initial_weights(model):
  weights_type = local_model.build_initial_weights_fn(model).type_signature.result
  assert local_model.describe(model).weights_type == weights_type


def _rounds(process, data):
  state = process.initialize()
  for _ in range(2):
    output = process.next(state, data)
    state = output.state
  return state.global_model_weights, output.metrics["client_work"]


def test_a_metrics_aggregator_changes_no_count(simulation_context):
  data = problems.datasets(problems.client_arrays())
  build = functools.partial(_SUPERQUANTILE, problems.linear_model_fn, client_optimizer_fn=_sgd())
  weights, metrics = _rounds(build(), data)
  plain_sum = tff.learning.metrics.sum_then_finalize
  same_weights, same_metrics = _rounds(build(metrics_aggregator=plain_sum), data)
  tf.nest.map_structure(np.testing.assert_array_equal, same_weights, weights)
  tf.nest.map_structure(np.testing.assert_array_equal, same_metrics, metrics)


@pytest.mark.parametrize("loop", list(tff.learning.LoopImplementation))
def test_both_loop_implementations_are_taken(loop):
  build = functools.partial(algorithms.build_fed_avg, problems.linear_model(), _sgd())
  process = build(loop_implementation=loop)
  assert process.next.type_signature == build().next.type_signature


def _an_iterative_process():
  weights_type = local_model.describe(problems.linear_model()).weights_type
  process = tff.learning.templates.build_broadcast_process(weights_type)
  return tff.templates.IterativeProcess(process.initialize, process.next)


_WRONG_TYPES = {
  "model_fn": [
    (lambda: 0, "callable returned type: int; expected a tff.learning.models.VariableModel"),
    (0, "Found a int for model_fn, which is not a callable"),
    (None, "Found a NoneType for model_fn, which is not a callable"),
    (problems.linear_model_fn(), "for model_fn, which is not a callable"),
  ],
  "client_optimizer_fn": [
    (3, "client_optimizer_fn = 3; expected a tff.learning.optimizers.Optimizer"),
    (lambda: 3, "client_optimizer_fn = .*; expected a tff.learning.optimizers.Optimizer"),
  ],
  "server_optimizer_fn": [("sgd", "server_optimizer_fn = 'sgd'; expected a tff.learning")],
  "client_weighting": [
    ("nonsense", "client_weighting = 'nonsense', of type str; .* UNIFORM or NUM_EXAMPLES"),
    (None, "client_weighting = None, of type NoneType; expected a tff.learning.ClientWeighting"),
    (1, "client_weighting = 1, of type int; expected"),
    (lambda examples: 1.0, "client_weighting = .*, of type function; expected"),
  ],
  "model_distributor": [
    (_an_iterative_process(), "model_distributor = .*, of type IterativeProcess; expected"),
    ("broadcast", "model_distributor = 'broadcast', of type str; expected"),
  ],
  "model_aggregator": [
    (tff.aggregators.MeanFactory, "model_aggregator = .*WeightedAggregationFactory"),
    ("mean", "model_aggregator = 'mean', of type str; expected"),
  ],
  "metrics_aggregator": [("sum", "metrics_aggregator = 'sum', of type str; expected a function")],
  "loop_implementation": [
    (None, "loop_implementation = None, of type NoneType; .*LoopImplementation"),
    ("DATASET_REDUCE", "loop_implementation = 'DATASET_REDUCE', of type str; expected"),
  ],
  "client_learning_rate_fn": [(0.1, "client_learning_rate_fn = 0.1, of type float; expected")],
  "examples_fn": [("files", "'files' for examples_fn; expected a tf.function")],
  "seed_fn": [((1, 2), r"seed_fn = \(1, 2\), of type tuple; expected a function")],
  "index_fn": [("index", "index_fn = 'index', of type str; expected a function")],
  "reference_loss_fn": [(1.0, "reference_loss_fn = 1.0, of type float; expected a function")],
  "private": [(1.0, "private = 1.0, of type float; expected a tff_superquantile.Private")],
}


@pytest.mark.parametrize(
  "name,value,message",
  [(name, *case) for name, cases in _WRONG_TYPES.items() for case in cases],
)
def test_options_of_another_type_are_refused(name, value, message):
  defaults = dict(model_fn=problems.linear_model(), client_optimizer_fn=_sgd())
  if name == "examples_fn":
    defaults["local_batch_size"] = 4
  with pytest.raises(TypeError, match=message):
    algorithms.build_fed_avg(**{**defaults, name: value})


def test_every_option_is_refused_where_its_type_is_wrong():
  arguments = {"model_fn", "client_optimizer_fn", "server_optimizer_fn"}
  numbers = {"local_epochs", "local_batch_size", "l2"}  # In test_refusals.
  assert set(_WRONG_TYPES) == arguments | set(algorithms.Options.__annotations__) - numbers


def test_a_client_weighting_by_its_name(simulation_context):
  data = problems.datasets(problems.client_arrays())
  found = {}
  for weighting in ("uniform", "NUM_EXAMPLES", *tff.learning.ClientWeighting):
    process = algorithms.build_fed_avg(problems.linear_model(), _sgd(), client_weighting=weighting)
    found[weighting], _ = _rounds(process, data)
  for name in ("uniform", "NUM_EXAMPLES"):
    expected = found[tff.learning.ClientWeighting[name.upper()]]
    tf.nest.map_structure(np.testing.assert_array_equal, found[name], expected)
  uniform, by_examples = (found[name].trainable[0] for name in ("uniform", "NUM_EXAMPLES"))
  assert np.abs(uniform - by_examples).max() > 1e-4


def test_client_work_alone_refuses_another_optimizer():
  with pytest.raises(TypeError, match="optimizer = .*; expected a tff.learning.optimizers.Opt"):
    client_work.LocalTraining(problems.linear_model(), lambda: tf.keras.optimizers.SGD(0.1))
