"""Public builders refuse each number that is out of its range, before they build anything."""

import functools
import inspect
import math
import re

import problems
import pytest
import ranges
import tensorflow as tf
import tensorflow_federated as tff

from privacy.noise import tree_mechanism
from tff_superquantile import algorithms
from tff_superquantile import analytics
from tff_superquantile import evaluation
from tff_superquantile import secure_sums
from tff_superquantile import threshold
from tff_superquantile.secure_sums import discrete_gaussian

_TREE = tree_mechanism.build_tree_mechanism(1.0, 16, 16, num_shares=20)
_THRESHOLD = dict(theta=ranges.THETA)
_TRACKED = dict(_THRESHOLD, noise_multiplier=ranges.SCALE, expected_clients=ranges.SCALE)
_HISTOGRAM = dict(mechanism=_TREE, max_loss=ranges.SCALE.named("max_value"))
_SGD = tff.learning.optimizers.build_sgdm(0.1)
_OPTIONS = dict(
  model_fn=problems.linear_model(),
  client_optimizer_fn=_SGD,
  local_epochs=ranges.whole(1).typed(),
  local_batch_size=ranges.Range(0, (-1, 4.5, False, "4", math.nan)),
  l2=ranges.NOT_NEGATIVE,
)
_PROCESS = {name: _OPTIONS[name] for name in ("model_fn", "client_optimizer_fn")}
_ABOVE_1 = ranges.Range(2.0, (1.0, 0.5, *ranges.SCALE.wrong))  # Of losses up to 1.
_PART = ranges.Range(0.5, (1.01, -0.1, math.nan)).typed()
_RATE = ranges.Range(0.5, (1.0, -0.1, math.nan)).typed()
_STDDEV = ranges.Range(2.0, (*ranges.POSITIVE.wrong, 1e8, 1e300))
_EXAMPLES = evaluation.examples_of_datasets(problems.datasets(problems.client_arrays()))
_NUM_CLIENTS = ranges.whole(1, 3).typed()
_PRIVATE = dict(
  clip_norm=ranges.SCALE.typed(),
  noise_multiplier=ranges.SCALE.typed(),
  expected_clients=ranges.Range(1.0, (*ranges.POSITIVE.wrong, "0.3", True)),
)
_CALLS = (
  (threshold.build_exact_quantile, _THRESHOLD),
  (
    threshold.build_exact_reweighting,
    dict(_THRESHOLD, smoothing=ranges.Range(0.0, (-1.0, math.nan, math.inf))),
  ),
  (functools.partial(threshold.build_threshold, "exact"), _THRESHOLD),
  (threshold.build_tree_quantile, _THRESHOLD | _HISTOGRAM),
  (threshold.PrivateHistogramFactory, dict(mechanism=_TREE, max_value=ranges.SCALE)),
  (
    threshold.build_histogram_weighting,
    dict(_HISTOGRAM, relative_share=threshold.build_rank_share(0.5)),
  ),
  (
    threshold.build_geometric_quantile,
    dict(_TRACKED, initial_estimate=ranges.SCALE, learning_rate=ranges.SCALE),
  ),
  (threshold.build_primal_dual_quantile, dict(_THRESHOLD, step=ranges.SCALE)),
  (
    threshold.build_private_primal_dual_quantile,
    dict(_TRACKED, step=ranges.SCALE, initial_estimate=ranges.NUMBER),
  ),
  (
    threshold.AdaptiveTheta,
    dict(
      wanted_updates=ranges.whole(1),
      min_theta=ranges.Range(0.2, (0.0, -0.1, 0.9, math.nan)),
      max_theta=ranges.Range(0.8, (0.1, 1.1, math.nan)),
    ),
  ),
  (threshold.build_power_share, dict(q=ranges.NOT_NEGATIVE, max_loss=ranges.SCALE)),
  (threshold.build_tilted_share, dict(temperature=ranges.NOT_NEGATIVE, max_loss=ranges.SCALE)),
  (
    threshold.build_proportional_share,
    dict(utility_bound=_ABOVE_1, max_loss=ranges.SCALE),
  ),
  (threshold.build_semi_variance_share, dict(beta=ranges.NOT_NEGATIVE)),
  (threshold.build_rank_share, dict(fairness_strength=_PART)),
  (threshold.build_power_weighting, dict(q=ranges.NOT_NEGATIVE)),
  (
    threshold.build_tilting,
    dict(temperature=ranges.NOT_NEGATIVE, moving_average_rate=_RATE),
  ),
  (
    threshold.build_mirror_ascent,
    dict(num_clients=_NUM_CLIENTS, ascent_rate=ranges.NOT_NEGATIVE),
  ),
  (
    threshold.build_ftrl,
    dict(
      num_clients=_NUM_CLIENTS,
      decision_step=ranges.NOT_NEGATIVE,
      response_cdf=ranges.choice("normal", "logistic"),
    ),
  ),
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
  (algorithms.Private, dict(_PRIVATE, share_weight=ranges.FRACTION.typed())),
  (algorithms.dp_mean_factory, _PRIVATE),
  (algorithms.build_fed_avg, _OPTIONS),
  (algorithms.build_superquantile_fed_avg, _PROCESS | _THRESHOLD),
  (
    functools.partial(algorithms.build_superquantile_family, thetas=(1.0,)),
    dict(_PROCESS, thetas=ranges.Range((1.0,), ((1.0, 0.0), (1.0, 1.5), 0.5)).named("theta")),
  ),
  (algorithms.build_fed_prox, dict(_PROCESS, proximal_strength=ranges.NOT_NEGATIVE)),
  (algorithms.build_q_fed_avg, dict(_PROCESS, q=ranges.NOT_NEGATIVE)),
  (algorithms.build_semi_vred, dict(_PROCESS, beta=ranges.NOT_NEGATIVE)),
  (algorithms.build_gifair, dict(_PROCESS, fairness_strength=_PART)),
  (
    algorithms.build_tilted_erm,
    dict(_PROCESS, temperature=ranges.NOT_NEGATIVE, moving_average_rate=_RATE),
  ),
  (
    algorithms.build_prop_fair,
    dict(_PROCESS, utility_bound=_ABOVE_1, max_loss=ranges.SCALE),
  ),
  (
    functools.partial(algorithms.build_agnostic_fed_avg, index_fn=len),
    dict(_PROCESS, ascent_rate=ranges.NOT_NEGATIVE, num_clients=_NUM_CLIENTS),
  ),
  (
    functools.partial(algorithms.build_aaggff, index_fn=len),
    dict(_PROCESS, num_clients=_NUM_CLIENTS, decision_step=ranges.NOT_NEGATIVE),
  ),
  (algorithms.build_averaged, dict(process=None, num_rounds=ranges.whole(1))),
  (
    evaluation.split_examples,
    dict(examples=_EXAMPLES, held_in_fraction=ranges.FRACTION, seed=3),
  ),
  (
    evaluation.build_personalizer,
    dict(
      model=problems.linear_model(),
      examples=evaluation.split_examples(_EXAMPLES, 0.5, 3),
      optimizer=_SGD,
      seed=3,
      batch_size=ranges.whole(0),
      epochs=ranges.whole(0),
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


@pytest.mark.parametrize("build,arguments,name", ranges.of_calls(*_CALLS))
def test_numbers_out_of_range_are_refused(build, arguments, name):
  ranges.assert_refused(build, arguments, name)


def test_every_number_of_a_public_builder_has_a_range():
  known = {(getattr(build, "func", build).__name__, name) for build, a in _CALLS for name in a}
  for module in (algorithms, threshold):
    for build in (getattr(module, name) for name in module.__all__):
      if inspect.isfunction(build) or build in (algorithms.Private, threshold.AdaptiveTheta):
        for name, parameter in inspect.signature(build).parameters.items():
          if re.search(r"\b(float|int)\b", str(parameter.annotation)) and name != "threshold":
            assert (build.__name__, name) in known, (build, name)
  of_options = algorithms.Options.__annotations__.items()
  numbers = {name for name, kind in of_options if re.search(r"\b(float|int)\b", str(kind))}
  assert numbers - {"client_learning_rate_fn"} <= _OPTIONS.keys()
