"""Builds soft alternatives to a threshold, which give every client a positive share by its loss.

A client's share is its factor over the largest factor of the cohort, so that nothing overflows,
whatever the losses. The average divides by the sum of the weights pi_i, share times alpha_i.
"""

import collections
import numbers

import tensorflow as tf

from privacy import checks
from tff_superquantile.threshold import process

# Smaller losses count as this one, so that ratios and powers of a loss of zero are numbers.
MIN_LOSS = 1e-10


def measure(
  losses: tf.Tensor, weights: tf.Tensor, shares: tf.Tensor
) -> collections.OrderedDict[str, tf.Tensor]:
  """Measures the losses and the shares of a cohort.

  Args:
    losses: float32 [k], losses of the clients that count.
    weights: float32 [k], their weights alpha_i.
    shares: float32 [k]; client i has the weight alpha_i * shares_i in the average.

  Returns:
    `loss_mean` and `loss_max`, and `effective_clients`, (sum_i pi_i)^2 / sum_i pi_i^2, the number
    of clients of equal weight that would average as well. All are zero if no client counts.
  """
  pi = weights * shares
  return collections.OrderedDict(
    loss_mean=tf.math.divide_no_nan(tf.reduce_sum(weights * losses), tf.reduce_sum(weights)),
    loss_max=_max(losses),
    effective_clients=tf.math.divide_no_nan(tf.reduce_sum(pi) ** 2, tf.reduce_sum(pi**2)),
  )


def _max(values: tf.Tensor) -> tf.Tensor:
  """Returns the largest value, or 0 if there is none."""
  return tf.cond(tf.size(values) > 0, lambda: tf.reduce_max(values), lambda: tf.constant(0.0))


def _split(rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  rows = tf.boolean_mask(rows, process.counted(rows))
  return rows[:, process.LOSS], rows[:, process.WEIGHT]


def build_power_weighting(q: float) -> process.ThresholdProcess:
  """Builds the weighting with pi_i proportional to alpha_i F_i^q, as in q-FFL.

  Args:
    q: The exponent q >= 0; 0 weighs all clients by alpha_i.

  Returns:
    A `ThresholdProcess` whose result is the cohort's largest loss, with the measurements of
    `measure`.

  Raises:
    TypeError: If q is not a number.
    ValueError: If q is not a number from 0 to 1e9.
  """
  q = checks.not_negative("q", q)

  def share_of(loss, largest):
    ratio = tf.maximum(loss, MIN_LOSS) / tf.maximum(largest, MIN_LOSS)
    return tf.pow(tf.minimum(ratio, 1.0), q)

  def server_fn(state, rows):
    losses, weights = _split(rows)
    largest = _max(losses)
    return state, largest, measure(losses, weights, share_of(losses, largest))

  return process.build_process_of_losses(
    server_fn, lambda loss, largest, client: share_of(loss, largest)
  )


def build_tilting(temperature: float, moving_average_rate: float = 0.0) -> process.ThresholdProcess:
  """Builds the weighting with pi_i proportional to alpha_i exp(t F_i), as in tilted ERM.

  The gradient of the tilted risk R_t(w) = (1 / t) log(sum_i alpha_i exp(t F_i(w))) is
  sum_i alpha_i exp(t (F_i - R_t)) grad F_i, whose weights sum to one. With a moving average,
  R~ <- (1 / t) log((1 - r) exp(t R~) + r exp(t R_t)) replaces R_t of the cohort, so that weights
  sum to one over rounds only. The measurement `update_scale` is their sum in the round,
  exp(t (R_t - R~)), by which the average is to be multiplied.

  Args:
    temperature: t >= 0, in units of one over the loss; 0 weighs all clients by alpha_i, a large
      temperature favours the worst client.
    moving_average_rate: r in [0, 1); 0 for weights that sum to one in each round.

  Returns:
    A `ThresholdProcess` whose result is the cohort's largest loss, with the measurements of
    `measure`, and `update_scale`.

  Raises:
    TypeError: If an argument is not a number.
    ValueError: If a number is out of its range.
  """
  temperature = checks.not_negative("temperature", temperature)
  checks.of_type("moving_average_rate", moving_average_rate, numbers.Real, "a number")
  if not 0.0 <= moving_average_rate < 1.0:
    raise ValueError(
      f"Found moving_average_rate = {moving_average_rate}; expected a number in [0, 1), 0 for none."
    )
  averages = moving_average_rate > 0.0 and temperature > 0.0

  def share_of(loss, largest):
    return tf.exp(temperature * tf.minimum(loss - largest, 0.0))

  def initial_state_fn():
    # The first cohort sets the average.
    return collections.OrderedDict(log_average=tf.constant(0.0), is_set=tf.constant(False))

  def update_average(state, losses, weights):
    """Returns the new state and the round's sum over the average, exp(t (R_t - R~))."""
    log_weights = tf.math.log(weights / tf.reduce_sum(weights))
    log_round = tf.reduce_logsumexp(log_weights + temperature * losses)
    mixed = tf.reduce_logsumexp(
      tf.stack(
        [
          tf.math.log(1.0 - moving_average_rate) + state["log_average"],
          tf.math.log(moving_average_rate) + log_round,
        ]
      )
    )
    log_average = tf.where(state["is_set"], mixed, log_round)
    new_state = collections.OrderedDict(log_average=log_average, is_set=tf.constant(True))
    return new_state, tf.exp(log_round - log_average)

  def server_fn(state, rows):
    losses, weights = _split(rows)
    largest = _max(losses)
    measurements = measure(losses, weights, share_of(losses, largest))
    measurements["update_scale"] = tf.constant(1.0)
    if averages:
      state, measurements["update_scale"] = tf.cond(
        tf.size(losses) > 0,
        lambda: update_average(state, losses, weights),
        lambda: (state, tf.constant(1.0)),
      )
    return state, largest, measurements

  return process.build_process_of_losses(
    server_fn,
    lambda loss, largest, client: share_of(loss, largest),
    initial_state_fn=initial_state_fn if averages else None,
  )


def build_mirror_ascent(num_clients: int, ascent_rate: float) -> process.ThresholdProcess:
  """Builds mirror ascent on the weights lambda of min_w max_lambda sum_i lambda_i F_i(w).

  It is entropic mirror ascent (exponentiated gradient) on the simplex over all clients. A round
  changes the weights of its cohort only, log lambda_i <- log lambda_i + ascent_rate * F_i, and
  averages its updates with the new weights, normalised over the cohort. In expectation over uniform
  cohorts of m of n clients that is an ascent step of m / n * ascent_rate.

  The server keeps one number for each client, by the client's index.

  Args:
    num_clients: n, the number of all clients that ever take part.
    ascent_rate: Step size of the ascent >= 0, in units of one over the loss; for 0 lambda_i stays
      alpha_i.

  Returns:
    A `ThresholdProcess` of clients with a `client_index`; its result is the log-weights of all
    clients, float32 [n], relative to the cohort's largest, with the measurements of `measure`. An
    index outside [0, n) is left out of the ascent and has no share.

  Raises:
    TypeError: If an argument is not a number.
    ValueError: If a number is out of its range.
  """
  checks.of_type("num_clients", num_clients, numbers.Integral, "a whole number")
  if not 1 <= num_clients <= process.MAX_CLIENTS:
    raise ValueError(
      f"Found num_clients = {num_clients}; expected a whole number from 1 to {process.MAX_CLIENTS}."
    )
  ascent_rate = checks.not_negative("ascent_rate", ascent_rate)

  def initial_state_fn():
    return tf.zeros([num_clients], tf.float32)

  def is_known(index):
    return tf.logical_and(index >= 0, index < num_clients)

  def share_of(log_weights, index):
    position = tf.clip_by_value(index, 0, num_clients - 1)
    share = tf.exp(tf.minimum(tf.gather(log_weights, position), 0.0))
    return tf.where(is_known(index), share, tf.zeros_like(share))

  def server_fn(log_weights, rows):
    index = tf.cast(rows[:, process.INDEX], tf.int32)
    counted = tf.logical_and(process.counted(rows), is_known(index))
    rows, index = tf.boolean_mask(rows, counted), tf.boolean_mask(index, counted)
    losses, weights = rows[:, process.LOSS], rows[:, process.WEIGHT]
    log_weights = tf.tensor_scatter_nd_add(log_weights, index[:, tf.newaxis], ascent_rate * losses)
    # Only differences matter. Unshifted numbers would grow until float32 rounds the steps away.
    log_weights -= tf.reduce_max(log_weights)
    relative = log_weights - _max(tf.gather(log_weights, index))
    measurements = measure(losses, weights, share_of(relative, index))
    return log_weights, relative, measurements

  def share_fn(loss, log_weights, client):
    del loss
    return share_of(log_weights, client.client_index)

  return process.build_process_of_losses(
    server_fn, share_fn, initial_state_fn=initial_state_fn, reports_indices=True
  )
