"""Sums vectors exactly, as integers on one grid, and adds Gaussian noise on the same grid.

A client has a vector v in R^d of norm at most C. With K = 2^30 and the grid g Z, g = C / K,

    client i    t_i = trunc((1 - 1 / K) v_i / g), towards zero,    int32 [d]
    sum         S = sum_i t_i,                                     integers in float64 [d]
    server      R = round(N / g), N ~ N(0, sigma^2 I_d),           integers in float64 [d]

and the release is g (S + R), cast to the type of the vectors. A float64 has all integers up to
2^53, so that S is exact in cohorts of up to 2^23 clients. (Beyond, partial sums would lose their
last bit. Sums in int64 would be exact up to 2^33 clients, and take one and a half times as long.)

Sensitivity: at most C, exactly. Truncation makes no entry larger, so |t_i| <= K - 1 but for the
rounding of float64: a norm over d entries is off by d 2^-54 of itself at most, in whichever order
the squares are added up, and the few products after it by 2^-53 each. Together that is less than
1 / K for d <= 2^23, and so |t_i| <= K. Integers add up without error, in any order: one client
cannot change how another is rounded, and S is the same, to the bit, for all orders of the cohort,
blocks, workers and runtimes. So setting one client's data to nothing (zero-out), and adding
or removing a client, change g S by one g t_i, of norm C at most; replacing a client changes it by
2 C at most.

Guarantee: the release is a Gaussian mechanism of noise multiplier sigma / C. As S is an integer
vector, round(S + N / g) = S + round(N / g) (for all N but those half way between two integers, of
probability zero): to put noise on the grid and to add it to a point of the grid is to put the noisy
sum on the grid. So the release is a function of g S + N, a Gaussian mechanism on the exact sum. The
server's float64 adds nothing to that: R is an integer whatever its size, and the float64 next to
S + R is a function of it. All outputs lie on one grid, whatever the data, so that their lowest bits
say nothing of it.

Noise that is correlated over rounds, n_t = z_t - c_1 n_(t-1) - ... - c_(b-1) n_(t-b+1) with z_t as
N above, keeps to that: the releases of all rounds are a function of the sums S_t + n_t, whose
guarantee `privacy.noise.banded` has. The state holds n of the last b - 1 rounds, in float64; to
make them anew from the key would take the draws of all rounds so far in each round.

What stays open is how N itself is drawn: see `standard_normal`, whose law is the normal one up to
a thousandth within five standard deviations, from seeds of 128 bits, by Philox, in float64. (For
noise multipliers up to 2^10, float64 has hundreds of numbers in each cell of the grid, so that the
grid, and not float64, says which values R can take.)

Utility: truncation moves an entry by less than g towards zero, and 1 / K by less than g again.
"""

import collections
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile import noise_source

_NUM_DRAWS = 4
# K. A client's entries fit 32 bits, and their sums over 2^23 clients the 53 bits of a float64.
_STEPS = 2.0**30


def standard_normal(shape: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
  """Draws standard normal variables, a function of a seed.

  TensorFlow's normal variables end at 5.68, as their Box-Muller transform takes uniform variables
  of 1e-7 and more. A sum beyond that end would prove that a client added to it, with a probability
  above the usual deltas. Half the sum of four variables ends at 11.35, and `privacy.accounting`
  charges the mass beyond to delta. Up to five standard deviations the density is normal to within a
  thousandth.

  Args:
    shape: Of the result, integers [rank].
    seed: int64 [2].

  Returns:
    The variables, float64 of the shape.
  """
  shape = tf.concat([[_NUM_DRAWS], shape], axis=0)
  draws = tf.random.stateless_normal(shape, seed, dtype=tf.float64)
  return tf.reduce_sum(draws, axis=0) / _NUM_DRAWS**0.5


def scale(vector: Any, factor: Any) -> Any:
  """Returns factor * vector of a structure of float tensors: a TensorFlow function.

  Args:
    vector: A structure of float tensors.
    factor: A number or a tensor, float64 [].

  Returns:
    The same structure, float64.
  """
  factor = tf.convert_to_tensor(
    factor, tf.float64
  )  # A cast would make a float32 of a number first.
  return tf.nest.map_structure(lambda v: tf.cast(v, tf.float64) * factor, vector)


class GaussianSum:
  """An exact sum of the clients' vectors with noise of full range: see the module.

  The noise follows from a secret key, or from fresh entropy. With a key a run can be repeated, and
  a resumed run continues with the noise that it would have had. The key, or the state, suffices to
  subtract the noise: neither may leave the server.
  """

  def __init__(self, sensitivity: float, stddev: float, key: noise_source.NoiseKey, purpose: str):
    """Takes the largest norm C, the noise, and a key: 16 bytes, a `BandedKey`, or None."""
    self._sensitivity = sensitivity
    self._noise_steps = stddev / sensitivity * _STEPS
    self._later: tuple[float, ...] = ()  # c_1, c_2, ...
    if isinstance(key, noise_source.BandedKey):
      self._later, key = key.coefficients[1:], key.key
    self._source = noise_source.NoiseSource(key, purpose)

  @property
  def is_correlated(self) -> bool:
    """Whether the noise of a round depends on that of rounds before."""
    return bool(self._later)

  def report(self, vector: Any, factor: Any = 1.0) -> Any:
    """Returns what a client reports of factor * vector, int32: a TensorFlow function.

    The vector is a structure of float tensors, which are finite; the factor, float64 [], is such
    that the norm of all that a client reports is at most C, up to the rounding of float64.
    """
    steps = scale(vector, factor * ((_STEPS - 1.0) / self._sensitivity))
    return tf.nest.map_structure(lambda v: tf.cast(v, tf.int32), steps)  # Which truncates.

  def steps(self, total: Any) -> Any:
    """Returns S of a sum that has the unit of the vectors and lies on the grid, float64."""
    return scale(total, _STEPS / self._sensitivity)

  def initial_state(self, like: Any = ()) -> Any:
    """Returns the state of the noise before the first round, int64 [2].

    With a `BandedKey` it has also the noise of the rounds before, the latest first, float64 [b - 1,
    *shape] for each tensor of `like`, the shapes of the sums.
    """
    source = self._source.initial_state()
    if not self._later:
      return source
    shapes = [[len(self._later), *spec.shape] for spec in tf.nest.flatten(like)]
    past = tuple(tf.zeros(shape, tf.float64) for shape in shapes)
    return collections.OrderedDict(source=source, past=past)

  def _correlated(self, independent: Sequence[tf.Tensor], past: Any) -> tuple[Any, Any]:
    """Returns (the noise of a round, that of the rounds before the next one)."""
    later = tf.constant(self._later, tf.float64)
    noise = [z - tf.tensordot(later, before, 1) for z, before in zip(independent, past)]
    moved = (tf.concat([n[tf.newaxis], p[:-1]], axis=0) for n, p in zip(noise, past))
    return noise, tuple(moved)

  def add_noise(self, state: Any, steps: Any, like: Any) -> tuple[Any, Any]:
    """Returns (the next state, g (S + R)) of a round: a TensorFlow function at the server.

    S, `steps`, is a structure of float64 tensors of integers; the elements of `like` have the types
    of the result.
    """
    seed, next_state = self._source.draw(state["source"] if self._later else state)
    flat = tf.nest.flatten(steps)
    seeds = noise_source.split(seed, len(flat))
    noise = [
      self._noise_steps * standard_normal(tf.shape(value), own_seed)
      for value, own_seed in zip(flat, seeds)
    ]
    if self._later:
      noise, past = self._correlated(noise, state["past"])
      next_state = collections.OrderedDict(source=next_state, past=past)
    noised = [
      tf.cast((value + tf.round(n)) * (self._sensitivity / _STEPS), spec.dtype)
      for value, n, spec in zip(flat, noise, tf.nest.flatten(like))
    ]
    return next_state, tf.nest.pack_sequence_as(like, noised)

  def create_of_reports(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
    """Builds the process that sums what clients reported of vectors of a `value_type`."""
    like = tff.types.type_to_tf_tensor_specs(value_type)
    report_type = tff.types.tensorflow_to_type(
      tf.nest.map_structure(lambda spec: tf.TensorSpec(spec.shape, tf.int32), like)
    )

    @tff.tensorflow.computation
    def initial_state():
      return self.initial_state(like)

    # What clients send is half as wide as their sums, and so is what a cohort has in memory.
    @tff.tensorflow.computation(report_type)
    def widen(report):
      return tf.nest.map_structure(lambda t: tf.cast(t, tf.float64), report)

    @tff.tensorflow.computation(initial_state.type_signature.result, widen.type_signature.result)
    def finish(state, steps):
      return self.add_noise(state, steps, like)

    @tff.federated_computation
    def initialize():
      return tff.federated_eval(initial_state, tff.SERVER)

    @tff.federated_computation(
      initialize.type_signature.result, tff.FederatedType(report_type, tff.CLIENTS)
    )
    def next_fn(state, reports):
      steps = tff.federated_sum(tff.federated_map(widen, reports))
      next_state, result = tff.federated_map(finish, (state, steps))
      return tff.templates.MeasuredProcessOutput(
        next_state, result, tff.federated_value((), tff.SERVER)
      )

    return tff.templates.AggregationProcess(initialize, next_fn)
