"""Builds thresholds that are a variable of the server, moved a step a round (primal-dual CVaR)."""

import collections

import numpy as np
import tensorflow as tf

from privacy import checks
from tff_superquantile import noise_source
from tff_superquantile import superquantile
from tff_superquantile.threshold import exact
from tff_superquantile.threshold import process
from tff_superquantile.threshold import quantile_tracker

# In the first rounds losses fall fast, and t has far to go. So steps are longer: 31 times as long
# in the first round, and twice as long in the 30th.
_EARLY_ROUNDS = 30.0


def _of_round(step: float, round_num: tf.Tensor) -> tf.Tensor:
  """Returns step (1 + 30 / (1 + k)), the step size of round k, from 0; float32 []."""
  return step * (1.0 + _EARLY_ROUNDS / (1.0 + tf.cast(round_num, tf.float32)))


def build_primal_dual_quantile(theta: float, *, step: float = 0.01) -> process.ThresholdProcess:
  """Builds the threshold of primal-dual superquantile optimisation, from the cohort's losses.

  The superquantile of the losses of ALL clients is, by Rockafellar and Uryasev (2000),

      F_theta(w) = min_t  t + E max(F_i(w) - t, 0) / theta,

  whose subgradients at (w, t) are E [F_i >= t] grad F_i / theta and 1 - P(F_i >= t) / theta. Both
  are means over clients, so that a cohort of any size estimates them without bias. The server keeps
  t and takes a step along each (Theodoropoulos et al. 2023, arXiv 2309.14176): the clients with
  F_i >= t train, and then

      t <- t + step_k (share of the cohort with F_i >= t, over theta, less 1),

  with step_k = step (1 + 30 / (1 + k)) in round k.

  The quantile of a small cohort's losses is a biased estimate of that of all: its mean over cohorts
  has another minimum than F_theta. This t has seen the cohorts of about theta / (step p) rounds,
  where p is the density of the losses at t. A tail may be empty; then the model stays as it is.

  The first cohort that has a loss sets t to its upper (1 - theta)-quantile, without a step: before
  training all losses may be the same. Rounds without a loss do not count.

  Args:
    theta: The tail fraction, in (0, 1]. For 1, all losses count and t only falls: FedAvg.
    step: The step size of t after the first rounds, in units of the loss. The quantile moves with
      the model; t falls by at most `step_k` in a round.

  Returns:
    A `ThresholdProcess` whose result is t before the round's step, float32, in units of the loss
    (+inf until a loss counts). Measurements: `threshold` and `loss_mean`; `loss_superquantile`, the
    objective above for the cohort at t, never below the cohort's superquantile.

  Raises:
    TypeError: If an argument is not of its type.
    ValueError: If a number is out of its range.
  """
  theta = superquantile.check_theta(theta)
  step = checks.scale("step", step)

  def initial_state_fn():
    return collections.OrderedDict(
      threshold=tf.constant(np.inf, tf.float32), round_num=tf.constant(0)
    )

  def server_fn(state, rows):
    losses, weights, index = exact.sorted_tail(rows, theta)
    any_counts = tf.size(rows.counted().losses) > 0
    first = tf.cast(losses[index], tf.float32)
    is_set = state["round_num"] > 0
    threshold = tf.where(is_set, state["threshold"], first)
    t = tf.cast(threshold, tf.float64)
    above = tf.reduce_sum(tf.where(losses >= t, weights, tf.zeros_like(weights)))
    step_of_round = tf.cast(_of_round(step, state["round_num"]), tf.float64)
    moved = tf.cast(t + step_of_round * (above / theta - 1.0), tf.float32)
    if theta == 1.0:  # All train, though rounding would leave out the client that has set t.
      threshold = tf.constant(-np.inf, tf.float32)
    # A product would be NaN for an empty cohort, whose placeholder loss is infinite.
    excess = tf.reduce_sum(tf.where(losses > t, weights * (losses - t), tf.zeros_like(losses)))
    new_state = collections.OrderedDict(
      threshold=tf.where(any_counts, tf.where(is_set, moved, first), state["threshold"]),
      round_num=state["round_num"] + tf.cast(any_counts, tf.int32),
    )
    measurements = collections.OrderedDict(
      threshold=threshold,
      loss_mean=tf.cast(tf.reduce_sum(weights * losses), tf.float32),
      loss_superquantile=tf.cast(t + excess / theta, tf.float32),
    )
    return new_state, threshold, measurements

  return process.build_process_of_losses(
    server_fn, process.share_at_or_above, initial_state_fn=initial_state_fn
  )


def build_private_primal_dual_quantile(
  theta: float,
  noise_multiplier: float,
  expected_clients: float,
  *,
  step: float = 0.01,
  initial_estimate: float = 0.0,
  noise_key: noise_source.NoiseKey = None,
) -> process.ThresholdProcess:
  """Builds the threshold of `build_primal_dual_quantile` from a private bit of each client.

  A client's bit says whether its loss is at most t. With `below` the noisy fraction of such
  clients, cut to [0, 1], t <- t - (step_k / theta) (below - (1 - theta)). That is the same step,
  but that a loss equal to t counts as below it here. The cut is a bias where the noise is not small
  beside theta m.

  With noise that is correlated over rounds (a `BandedKey`) nothing is cut, so that later noise
  cancels earlier noise in t, and the size of the tail follows from a mean over rounds: a divisor
  that moved with each round's noise would keep the noise of the updates from cancelling.

  Guarantee: see `quantile_tracker.build_tracker`, a Gaussian mechanism of `noise_multiplier`.

  The round uses t before its step, so that its tail are the clients whose bits were summed. Their
  estimated number, m / 2 less the noisy sum, is computed from the release, at no cost in privacy.
  It is used where it is above theta m, as in the first rounds, in which t rises from the initial
  estimate and nearly all train: there theta m would multiply their mean by 1 / theta.

  Each client counts once, whatever its weight. NaN adds nothing to the sum and is never selected;
  infinite and negative losses count as they are.

  Args:
    theta: As in `build_primal_dual_quantile`. For 1 the threshold is -inf.
    noise_multiplier: z_q, the standard deviation of the noise over the sensitivity of 1/2.
    expected_clients: m, the divisor of the sum, q n with Poisson sampling.
    step: As in `build_primal_dual_quantile`.
    initial_estimate: The first t, in units of the loss. From below, t rises by up to step_k
      (1 / theta - 1) in a round while all train; from above it would fall by step_k alone, and none
      would.
    noise_key: Secret key of the server's noise, 16 bytes, or a `BandedKey`; None for fresh entropy.

  Returns:
    A `ThresholdProcess`, whose result is t before the round's step, float32. Measurements:
    `threshold`; `estimated_tail_size`, from theta m to m.

  Raises:
    TypeError: If an argument is not of its type.
    ValueError: If a number is out of its range.
  """
  step = checks.scale("step", step)

  def at_server(before, after, noised, smallest):
    del after
    return before, tf.clip_by_value(0.5 * expected_clients - noised, smallest, expected_clients)

  return quantile_tracker.build_tracker(
    "primal-dual",
    theta,
    noise_multiplier,
    expected_clients,
    checks.number("initial_estimate", initial_estimate),
    noise_key,
    at_server,
    is_geometric=False,
    learning_rate_fn=lambda round_num: _of_round(step, round_num) / theta,
  )
