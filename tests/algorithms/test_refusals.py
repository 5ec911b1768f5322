"""Public builders refuse each number that is out of its range, before they build anything."""

import functools
import inspect
import math
import re

from helpers import problems
from helpers import ranges
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from privacy.noise import tree_mechanism
from tff_superquantile import algorithms
from tff_superquantile import analytics
from tff_superquantile import evaluation
from tff_superquantile import secure_sums
from tff_superquantile import threshold
from tff_superquantile.secure_sums import discrete_gaussian

_RATE = ranges.Range(0.5, (1.0, -0.1, math.nan)).typed()
# Of each name, whoever has an argument of that name.
_RANGES = dict(
  theta=ranges.THETA,
  thetas=ranges.Range((1.0,), ((1.0, 0.0), (1.0, 1.5), 0.5)).named("theta"),
  smoothing=ranges.Range(0.0, (-1.0, math.nan, math.inf)),
  noise_multiplier=ranges.SCALE,
  expected_clients=ranges.POSITIVE,
  initial_estimate=ranges.NUMBER,
  learning_rate=ranges.SCALE,
  step=ranges.SCALE,
  max_loss=ranges.SCALE.named("max_"),  # That of a histogram is its largest value.
  max_value=ranges.SCALE,
  q=ranges.NOT_NEGATIVE,
  beta=ranges.NOT_NEGATIVE,
  temperature=ranges.NOT_NEGATIVE,
  proximal_strength=ranges.NOT_NEGATIVE,
  ascent_rate=ranges.NOT_NEGATIVE,
  decision_step=ranges.NOT_NEGATIVE,
  utility_bound=ranges.Range(2.0, (1.0, 0.5, *ranges.SCALE.wrong)),  # Of losses up to 1.
  fairness_strength=ranges.Range(0.5, (1.01, -0.1, math.nan)).typed(),
  gap_strength=ranges.NOT_NEGATIVE,
  moving_average_rate=_RATE,
  num_clients=ranges.whole(1, 3).typed(),
  num_rounds=ranges.whole(1),
  local_epochs=ranges.whole(1).typed(),
  local_batch_size=ranges.Range(0, (-1, 4.5, False, "4", math.nan)),
  l2=ranges.NOT_NEGATIVE,
)
_OTHERS = dict(
  mechanism=tree_mechanism.build_tree_mechanism(1.0, 16, 16, num_shares=20),
  relative_share=threshold.build_rank_share(0.5),
  threshold="exact",
  model_fn=problems.linear_model(),
  client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1),
  index_fn=len,
  reference_loss_fn=len,
  process=None,
)
_STDDEV = ranges.Range(2.0, (*ranges.POSITIVE.wrong, 1e8, 1e300))
_EXAMPLES = evaluation.examples_of_datasets(problems.datasets(problems.client_arrays()))
_PRIVATE = dict(
  clip_norm=ranges.SCALE.typed(),
  noise_multiplier=ranges.SCALE.typed(),
  expected_clients=ranges.Range(1.0, (*ranges.POSITIVE.wrong, "0.3", True)),
)
# Whose arguments have another range than elsewhere.
_CALLS = (
  (algorithms.Private, dict(_PRIVATE, share_weight=ranges.FRACTION.typed())),
  (algorithms.dp_mean_factory, _PRIVATE),
  (
    secure_sums.AdaptiveClipNorm,
    dict(
      count_noise_multiplier=ranges.SCALE.typed(),
      initial_norm=ranges.SCALE.typed(),
      target_quantile=ranges.FRACTION.typed(),
      learning_rate=ranges.SCALE.typed(),
    ),
  ),
  (discrete_gaussian.probabilities, dict(stddev=_STDDEV)),
  (discrete_gaussian.sample, dict(shape=[3], stddev=_STDDEV, seed=tf.constant([0, 0], tf.int64))),
  (
    evaluation.split_examples,
    dict(examples=_EXAMPLES, held_in_fraction=ranges.FRACTION, seed=3),
  ),
  (
    evaluation.Personalizer,
    dict(
      model=problems.linear_model(),
      examples=evaluation.split_examples(_EXAMPLES, 0.5, 3),
      optimizer=_OTHERS["client_optimizer_fn"],
      seed=3,
      batch_size=ranges.whole(0),
      l2=ranges.NOT_NEGATIVE,
      proximal_strength=ranges.NOT_NEGATIVE,
    ),
  ),
  (
    functools.partial(analytics.private_distribution, [0.1, 0.2]),
    dict(
      epsilon=ranges.POSITIVE,
      delta=ranges.FRACTION.at(1e-5),
      lower=ranges.NUMBER.at(0.0),
      upper=ranges.NUMBER,
      num_bins=ranges.Range(8, (0, 1, 48, 2**17)),
    ),
  ),
)


def _names(build):
  """The names of a builder's arguments, those of its options among them."""
  names = dict(inspect.signature(build).parameters)
  needed = dict(num_clients="index_fn", gap_strength="reference_loss_fn")
  return [*names, *(o for n, o in needed.items() if {n, "options"} <= names.keys())]


def _builders():
  # What sorts a cohort in the graph builds nothing.
  known = [threshold.sorted_tail, *(getattr(build, "func", build) for build, _ in _CALLS)]
  for module in (algorithms, threshold):
    for build in (getattr(module, name) for name in module.__all__):
      if inspect.isfunction(build) and build not in known:
        yield build
  yield threshold.PrivateHistogramFactory


def _declared():
  for build in _builders():
    names = _names(build)
    if build is algorithms.build_fed_avg:
      names += algorithms.Options.__annotations__
    yield build, {name: r for name, r in (_RANGES | _OTHERS).items() if name in names}


@pytest.mark.parametrize("build,arguments,name", ranges.of_calls(*_CALLS, *_declared()))
def test_numbers_out_of_range_are_refused(build, arguments, name):
  ranges.assert_refused(build, arguments, name)


def test_every_number_of_a_public_builder_has_a_range():
  for build in _builders():
    for name, parameter in inspect.signature(build).parameters.items():
      if re.search(r"\b(float|int)\b", str(parameter.annotation)):
        assert {name} & (_RANGES | _OTHERS).keys(), (build, name)
