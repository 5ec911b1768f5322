"""Builds weightings whose server keeps numbers for each of all clients, by the clients' index."""

import collections
from collections.abc import Callable
import math
import numbers
from typing import Any

import tensorflow as tf

from privacy import checks
from tff_superquantile.threshold import process
from tff_superquantile.threshold.soft import relative

# From (state, indices int32 [k], losses float32 [k]) to (state, log-weights float32 [n]).
UpdateFn = Callable[[Any, tf.Tensor, tf.Tensor], tuple[Any, tf.Tensor]]


def build_per_client_weighting(
  num_clients: int, initial_state_fn: Callable[[], Any], update_fn: UpdateFn
) -> process.ThresholdProcess:
  """Builds the weighting pi_i = alpha_i exp(log-weight i), by the log-weights of all n clients.

  `update_fn` is a TensorFlow function of (state, the indices and the losses of the k clients of the
  cohort that count) to the next state and all log-weights, which the cohort's average follows.

  The process is of clients with a `client_index`; its result is the log-weights of all clients,
  float32 [n], relative to the cohort's largest, with the measurements of `relative.measure`. An
  index outside [0, n) is left out and has no share.
  """
  checks.of_type("num_clients", num_clients, numbers.Integral, "a whole number")
  if not 1 <= num_clients <= process.MAX_CLIENTS:
    raise ValueError(
      f"Found num_clients = {num_clients}; expected a whole number from 1 to {process.MAX_CLIENTS}."
    )

  def is_known(index):
    return tf.logical_and(index >= 0, index < num_clients)

  def share_of(log_weights, index):
    position = tf.clip_by_value(index, 0, num_clients - 1)
    share = tf.exp(tf.minimum(tf.gather(log_weights, position), 0.0))
    return tf.where(is_known(index), share, tf.zeros_like(share))

  def server_fn(state, rows):
    losses, weights, index = rows.where(is_known(rows.indices)).counted()
    state, log_weights = update_fn(state, index, losses)
    shifted = log_weights - relative.largest(tf.gather(log_weights, index))
    measurements = relative.measure(losses, weights, share_of(shifted, index))
    return state, shifted, measurements

  def share_fn(loss, log_weights, client):
    del loss
    return share_of(log_weights, client.client_index)

  return process.build_process_of_losses(
    server_fn, share_fn, initial_state_fn=initial_state_fn, reports_indices=True
  )


def build_mirror_ascent(num_clients: int, ascent_rate: float) -> process.ThresholdProcess:
  """Builds mirror ascent on the weights lambda of min_w max_lambda sum_i lambda_i F_i(w).

  It is entropic mirror ascent (exponentiated gradient) on the simplex over all n clients, with the
  rate >= 0 in units of one over the loss; for 0 lambda_i stays alpha_i. A round changes the weights
  of its cohort only, log lambda_i <- log lambda_i + ascent_rate * F_i, and averages its updates
  with the new weights, normalised over the cohort. In expectation over uniform cohorts of m of n
  clients that is an ascent step of m / n * ascent_rate.

  The server keeps one number for each client, by the client's index: see
  `build_per_client_weighting`.

  Args:
    num_clients: n, the number of all clients that ever take part, at least 1.
    ascent_rate: The rate, >= 0, in units of one over the loss.

  Returns:
    A `ThresholdProcess`, which needs the clients' indices, in [0, n). Its state is the logarithm of
    the weights, float32 [n].

  Raises:
    TypeError: If an argument is no number.
    ValueError: If `num_clients` is below 1, or `ascent_rate` is negative.
  """
  ascent_rate = checks.not_negative("ascent_rate", ascent_rate)

  def update_fn(log_weights, index, losses):
    log_weights = tf.tensor_scatter_nd_add(log_weights, index[:, tf.newaxis], ascent_rate * losses)
    # Only differences matter. Without the shift, the numbers would grow until float32
    # rounds the steps away.
    log_weights -= tf.reduce_max(log_weights)
    return log_weights, log_weights

  return build_per_client_weighting(
    num_clients, lambda: tf.zeros([num_clients], tf.float32), update_fn
  )


def build_ftrl(num_clients: int, decision_step: float = 1.0) -> process.ThresholdProcess:
  """Builds the decision maker of AAggFF-D (Hahn, Kim and Lee, ICML 2024, algorithm 3).

  In round t = 1, 2, ... with the cohort S of n of K clients, let C = n / K and

      r_i = C cdf(F_i / mean over S of F)                          of i in S; cdf is N(1, 1)'s,
      r~_i = r + [i in S] (r_i - r) / C,    r = mean over S of r_i   its doubly robust estimate,
      l(p) = -log(1 + <p, r>)                                         the decision loss,
      g_t = -r~ / (1 + r) + r <p_t, r~ - r 1> / (1 + r)^2 1          its gradient in p,
      p_(t + 1) proportional to exp(-eta_t sum_(s <= t) g_s),
      eta_t = decision_step sqrt(log K) / ((2 + C) sqrt(t + 1)).

  g_t is the gradient at the responses r~, which are unbiased over uniform cohorts, made linear in
  them around r 1, so that it is unbiased, too. p_(t + 1) is the minimiser of the regularized sum of
  losses, in closed form as the regularizer is the negative entropy. The round averages its updates
  with p_(t + 1), normalised over S; for a step of 0 p_i stays alpha_i.

  Only differences between the coordinates of g_t matter. Its second term is the same for all
  clients, and r~_i - r is zero for the absent. With c_i = cdf(...) of mean c that leaves a score,

      G_i <- G_i + (c_i - c) / (1 + C c)    for i in S,    p proportional to exp(eta_t G),

  which is what is computed here.

  Differences to the paper: the weights alpha_i multiply p_i, so that the regularizer is the
  divergence from alpha (the paper's is that from uniform weights); C is counted in each round; a
  negative loss counts as 0. The range of the responses is C and the bound on their gradients 2 + C,
  as in the authors' code; that code leaves the term r out of the estimates r~_i of the cohort.

  The server keeps a number for each client, and one client's loss changes the shares of all. So
  there is no private form here: it would have to release K numbers with noise in each round. For
  the process see `build_per_client_weighting`.

  Args:
    num_clients: K, the number of all clients that ever take part, at least 1.
    decision_step: A factor on the paper's step, >= 0.

  Returns:
    A `ThresholdProcess`, which needs the clients' indices, in [0, K). Its state has the scores,
    float32 [K], and the number of rounds.

  Raises:
    TypeError: If an argument is no number.
    ValueError: If `num_clients` is below 1, or `decision_step` is negative.
  """
  decision_step = checks.not_negative("decision_step", decision_step)

  def initial_state_fn():
    return collections.OrderedDict(
      scores=tf.zeros([num_clients], tf.float32), round_num=tf.constant(0)
    )

  def update_fn(state, index, losses):
    # In double precision no sum of losses overflows.
    losses = tf.maximum(tf.cast(losses, tf.float64), 0.0)
    count = tf.cast(tf.size(losses), tf.float64)
    ratios = tf.math.divide_no_nan(losses, tf.math.divide_no_nan(tf.reduce_sum(losses), count))
    responses = 0.5 * tf.math.erfc((1.0 - ratios) / math.sqrt(2.0))
    mean = tf.math.divide_no_nan(tf.reduce_sum(responses), count)
    participation = count / num_clients
    gains = tf.cast((responses - mean) / (1.0 + participation * mean), tf.float32)
    scores = tf.tensor_scatter_nd_add(state["scores"], index[:, tf.newaxis], gains)
    round_num = state["round_num"] + 1
    step = decision_step * math.sqrt(math.log(num_clients)) / (2.0 + participation)
    step /= tf.sqrt(tf.cast(round_num + 1, tf.float64))
    next_state = collections.OrderedDict(scores=scores, round_num=round_num)
    return next_state, tf.cast(step, tf.float32) * scores

  return build_per_client_weighting(num_clients, initial_state_fn, update_fn)
