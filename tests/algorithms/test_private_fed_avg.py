"""Private averages by shares of a histogram: rounds against numpy, and what a client can do."""

import functools
import itertools

from helpers import problems
import numpy as np
import pytest
import tensorflow_federated as tff

from privacy.noise import sum_mechanism
from privacy.noise import tree_mechanism
from tff_superquantile import algorithms
from tff_superquantile import threshold

pytestmark = pytest.mark.usefixtures("simulation_context")

_ARRAYS = problems.client_arrays(seed=3)
_RATE, _MAX_LOSS, _NUM_BINS, _CLIP_NORM, _EXPECTED = 0.2, 4.0, 16, 0.15, 4
_build = algorithms.build_fed_avg


def _private(**values):
  usual = dict(clip_norm=_CLIP_NORM, noise_multiplier=1.0, noise_key=bytes(range(16)))
  return algorithms.Private(**{**usual, "expected_clients": _EXPECTED, **values})


def _process(share, model=None, z=1e-7, **options):
  mechanism = tree_mechanism.build_tree_mechanism(1e-6, _NUM_BINS, _EXPECTED, num_shares=8)
  return algorithms.build_weighted_fed_avg(
    problems.linear_model() if model is None else model,
    threshold.build_histogram_weighting(share, mechanism, _MAX_LOSS, noise_key=bytes(range(16))),
    tff.learning.optimizers.build_sgdm(_RATE),
    private=_private(noise_multiplier=z),
    local_batch_size=0,
    **options,
  )


def _clipped_update(weights, x, y):
  return problems.clipped(problems.update(weights, x, y, _RATE), _CLIP_NORM)


@pytest.mark.parametrize(
  "share, shares_of",
  [
    (
      threshold.build_semi_variance_share(2.0),
      functools.partial(problems.semi_variance_shares, beta=2.0),
    ),
    (
      threshold.build_rank_share(0.9),
      functools.partial(problems.rank_shares, strength=0.9),
    ),
  ],
  ids=["semi_vred", "gifair"],
)
def test_rounds_against_numpy(share, shares_of):
  process = _process(share, **problems.reading_handles(_ARRAYS))
  state, weights, found = process.initialize(), problems.initial_weights(), []
  for round_num, cohort in enumerate(([0, 1, 2, 3, 4, 5], [5, 1], [2, 3, 0, 4])):
    output = process.next(state, problems.handles(cohort, round_num))
    state = output.state
    losses = [problems.losses_and_gradient(weights, *_ARRAYS[i])[0] for i in cohort]
    shares = problems.shares_by_histogram(shares_of, losses, _MAX_LOSS, _NUM_BINS)
    found.append(np.ptp(shares))
    updates = np.array([_clipped_update(weights, *_ARRAYS[i]) for i in cohort])
    divisor = shares.mean() * max(len(cohort), _EXPECTED / 2.0)
    trained = state.global_model_weights.trainable
    expected = problems.vector(weights) + shares @ updates / divisor
    np.testing.assert_allclose(problems.vector(trained), expected, atol=3e-6)
    measured = output.metrics["client_work"]["threshold"]
    assert measured["estimated_share_sum"] == pytest.approx(divisor, abs=1e-3)
    assert output.metrics["client_work"].keys() == {"threshold"}
    weights = [w.astype(np.float64) for w in trained]
  assert max(found) > 0.1  # Shares differ.


def test_what_needs_no_losses_of_others_is_private_by_its_own_builder():
  data, same = problems.datasets(_ARRAYS), dict(private=_private(), local_batch_size=0)
  same.update(
    model_fn=problems.linear_model(),
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(_RATE),
  )
  own_loss = threshold.build_own_loss_weighting(threshold.build_proportional_share(5.0, _MAX_LOSS))
  for one, other in (
    (
      functools.partial(algorithms.build_fed_prox, proximal_strength=0.0),
      algorithms.build_fed_avg,
    ),
    (
      functools.partial(algorithms.build_prop_fair, utility_bound=5.0, max_loss=_MAX_LOSS),
      functools.partial(algorithms.build_weighted_fed_avg, weighting=own_loss),
    ),
  ):
    trained = []
    for build in (one, other):
      process = build(**same)
      state = process.next(process.initialize(), data).state
      trained.append(problems.vector(state.global_model_weights.trainable))
    np.testing.assert_array_equal(*trained)


_EXTREMES = tuple(
  itertools.product((0.0, _MAX_LOSS, 1e30, -1e30, np.inf, np.nan), (0.0, 1.0, 3e38, np.nan))
)


@functools.cache
def _extreme_sums():
  """The sum of clipped updates with one client of each extreme, and its share sum."""
  x = np.zeros([len(_EXTREMES) + 1, 1, 3], np.float32)
  y = np.zeros([len(_EXTREMES) + 1, 1], np.float32)
  x[0], y[0] = (0.0, 1.0, 0.0), 1.0
  for i, (loss, update) in enumerate(_EXTREMES):
    x[i + 1], y[i + 1] = (0.0, 0.0, update), loss
  process = _process(
    threshold.build_rank_share(1.0),
    problems.linear_loss_model(),
    **problems.reading_handles(list(zip(x, y))),
  )
  initial, found = process.initialize(), []
  for index in range(1, len(_EXTREMES) + 1):
    output = process.next(initial, problems.handles([0, index]))
    (change,) = output.state.global_model_weights.trainable
    measured = output.metrics["client_work"]["threshold"]
    found.append(change.astype(np.float64) * measured["estimated_share_sum"])
  return np.array(found)


def test_no_client_adds_more_than_the_clip_norm_whatever_its_loss_and_update():
  found = _extreme_sums()
  assert np.all(np.isfinite(found))
  own, other = np.abs(found[:, 2]), np.abs(found[:, 1])
  # Each term is share * clip(update): both axes are bounded by C, and the bound is reached.
  assert np.all(own <= _CLIP_NORM * (1.0 + 1e-4)) and np.all(other <= _CLIP_NORM * (1.0 + 1e-4))
  for (loss, update), added in zip(_EXTREMES, own):
    # Of two clients the worse has the rank 1/2, and the share (1 + 1/2) / 2 with lambda = 1.
    expected = (0.75 if loss > 1.0 else 0.25) * min(_RATE * update, _CLIP_NORM)
    is_left_out = not (np.isfinite(loss) and np.isfinite(update))
    assert added == pytest.approx(0.0 if is_left_out else expected, abs=1e-4)


# Refusals.


_NORM = algorithms.AdaptiveClipNorm(1.0, _CLIP_NORM)


def _sum(z=1.0, clip_norm=_CLIP_NORM, num_entries=18):
  return sum_mechanism.build_sum_mechanism(z, clip_norm, num_entries, 9)


@pytest.mark.parametrize(
  "arguments,message",
  [
    (dict(update_sum=3), "update_sum = 3, of type int"),
    (dict(update_sum=_sum(clip_norm=0.2)), r"\(0.2, 1.0\).*\(0.15, 1.0\)"),
    (dict(update_sum=_sum(0.9)), r"\(0.15, 0.9\).*\(0.15, 1.0\)"),
    (dict(clip_norm=_NORM, update_sum=_sum()), "modulus follows from a fixed clip norm.* a number"),
    (
      dict(noise_key=algorithms.BandedKey(bytes(16), (1.0, 0.5)), update_sum=_sum()),
      "correlated over rounds with an update_sum",
    ),
  ],
)
def test_values_of_a_private_process_that_are_refused(arguments, message):
  with pytest.raises((TypeError, ValueError), match=f"^Found .*{message}"):
    algorithms.Private(**{**dict(clip_norm=_CLIP_NORM, noise_multiplier=1.0), **arguments})


_OWN_LOSS = threshold.build_own_loss_weighting(threshold.build_power_share(1.0, _MAX_LOSS))


@pytest.mark.parametrize(
  "build,arguments,error,message",
  [
    (
      _build,
      dict(private=_private(noise_key="sixteen letters.")),
      TypeError,
      "noise_key = 'sixteen letters.', of type str",
    ),
    (_build, dict(client_weighting="num_examples"), TypeError, "client_weighting for a private"),
    (_build, dict(private=_private(noise_key=bytes(8))), ValueError, "of 8 bytes; expected 16"),
    (
      _build,
      dict(private=_private(noise_key=bytes(8), update_sum=_sum())),
      ValueError,
      "of 8 bytes; expected 16",
    ),
    (_build, dict(private=_private(update_sum=_sum(num_entries=17))), ValueError, "expected 17"),
    (_build, dict(private=_private(expected_clients=None)), ValueError, "no expected_clients"),
    (
      algorithms.build_weighted_fed_avg,
      dict(weighting=_OWN_LOSS, private=_private(update_sum=_sum())),
      ValueError,
      "of 19 numbers; expected 18",
    ),
    (algorithms.build_weighted_fed_avg, dict(weighting="tree"), TypeError, "weighting = 'tree'"),
    *(
      (build, {}, ValueError, "shows the server the losses; expected a private one")
      for build in (
        functools.partial(algorithms.build_superquantile_fed_avg, theta=0.5),
        functools.partial(algorithms.build_superquantile_fed_avg, theta=1.0),
        functools.partial(
          algorithms.build_superquantile_fed_avg, theta=0.5, threshold="reweighting"
        ),
        functools.partial(algorithms.build_q_fed_avg, q=1.0),
        functools.partial(algorithms.build_tilted_erm, temperature=1.0),
        functools.partial(algorithms.build_gifair, fairness_strength=1.0),
      )
    ),
    (
      functools.partial(algorithms.build_superquantile_family, thetas=(1.0,)),
      {},
      ValueError,
      "`private`, for a family",
    ),
  ],
)
def test_processes_that_cannot_be_private(build, arguments, error, message):
  usual = dict(
    model_fn=problems.linear_model(),
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(_RATE),
    private=_private(),
  )
  with pytest.raises(error, match=message):
    build(**{**usual, **arguments})
