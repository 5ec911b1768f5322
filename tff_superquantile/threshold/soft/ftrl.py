"""Builds the weighting of AAggFF-D, by following the regularized leader (FTRL)."""

import collections
import math

import tensorflow as tf

from privacy import checks
from tff_superquantile.threshold import process
from tff_superquantile.threshold.soft import per_client


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
  the process see `per_client.build_per_client_weighting`.
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

  return per_client.build_per_client_weighting(num_clients, initial_state_fn, update_fn)
