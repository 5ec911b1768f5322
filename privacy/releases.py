"""The releases of a round of a private run, with their cohort and their noise.

A round releases a threshold (a noisy histogram of losses or a noisy one-bit count), the noisy sum
of clipped updates, and if the clip norm adapts a noisy one-bit count of the updates within it. All
are computed on the SAME cohort, so that a round is one subsampled mechanism,
subsample(compose(threshold, update, count)), and not the composition of subsampled ones, which
would cost less than the truth. All are Gaussian, so that only

    z_eff = (z_q^-2 + z_w^-2 + z_b^-2)^(-1/2)

counts, where z_q, z_w and z_b are the standard deviations over the l2-sensitivities of one client's
data.
"""

import dataclasses
import math
from typing import Any

from privacy import checks
from privacy.noise import shares
from privacy.noise import sum_mechanism
from privacy.noise import tree_mechanism

POISSON = "poisson"
FIXED_SIZE = "fixed_size"
NO_SAMPLING = "none"
SAMPLINGS = (POISSON, FIXED_SIZE, NO_SAMPLING)

TREE = "tree"
GEOMETRIC = "geometric"
PRIMAL_DUAL = "primal_dual"


@dataclasses.dataclass(frozen=True)
class ThresholdKind:
  """The accounting of a kind of private threshold's release.

  Attributes:
    released: The release of a round, in words.
    replace_one_factor: The release's sensitivity to replacing a client over that to removing its
      data.
    noise_by_server: Whether the server adds the noise, so that it sees the release without.
    rank_variance: The variance of the threshold's rank among the clients, over z_q^2; None where
      it follows from the bins of a histogram.
  """

  released: str
  replace_one_factor: float
  noise_by_server: bool
  rank_variance: float | None = None


# The gain of a step of a tracked threshold: the change of its rank by that of the fraction of
# clients below it. It is the step size times a typical density: 0.2 times that of the logarithm of
# the losses (geometric); 0.01 / theta, at theta = 0.25, times that of the losses (primal-dual). The
# tracker averages over rounds.
_GAINS = {GEOMETRIC: 0.12, PRIMAL_DUAL: 0.02}


def _of_one_bit(threshold: str) -> ThresholdKind:
  # A bit of +-1/2 changes its sign. A step leaves g / (2 - g) of the variance z_q^2 / 4.
  gain = _GAINS[threshold]
  return ThresholdKind(
    "a one-bit count of losses",
    2.0,
    noise_by_server=True,
    rank_variance=gain / (2.0 - gain) / 4.0,
  )


# The kinds of private thresholds; the library and `tff_superquantile.experiments.run.thresholds`
# build them.
THRESHOLDS: dict[str, ThresholdKind] = {
  # A client is in L nodes of the tree before it is replaced, and in L others after that.
  TREE: ThresholdKind("a histogram of losses", math.sqrt(2.0), noise_by_server=False),
  GEOMETRIC: _of_one_bit(GEOMETRIC),
  PRIMAL_DUAL: _of_one_bit(PRIMAL_DUAL),
}

ZERO_OUT = "zero_out"
REPLACE_ONE = "replace_one"
RELATIONS = (ZERO_OUT, REPLACE_ONE)


def _positive(name: str, value: Any) -> float:
  number = checks.number(name, value)
  if number <= 0:
    raise ValueError(f"Found {name} = {number:g}; expected a positive number.")
  return number


@dataclasses.dataclass(frozen=True)
class Release:
  """A round's releases with their noise, and how the round's cohort is sampled.

  Numbers may be given as any real scalar; they are kept as Python's own.

  Attributes:
    population: n, the number of clients.
    clients_per_round: m, the (expected) number of clients whose data count in a round.
    threshold_noise_multiplier: z_q, noise of the threshold's release over its sensitivity to
      removing one client's data; None if no private threshold is released.
    update_noise_multiplier: z_w, noise on the SUM of clipped updates over the clip norm; None if
      no weights are released.
    sampling: "poisson": each client takes part in each round with probability m / n, by itself.
      "fixed_size": m clients, uniformly, without replacement. "none": no secret sampling, as if
      everybody took part in every round.
    tree: Parameters of the histogram whose noise its clients make. With it the answers take into
      account that this noise is discrete and that Poisson cohorts are cut at its number of shares.
    threshold_kind: A key of `THRESHOLDS`, for the sensitivity of the threshold's release to
      replacing a client, and the source of its noise.
    update_sum: Parameters of the sum of updates whose noise the clients make; None where the server
      adds the noise. Taken into account like `tree`.
    relation: The neighbouring data sets: "zero_out", one client's data removed, or "replace_one",
      one client's data replaced by any other.
    protocol: The source of the shares of noise that a cohort lacks, one of `shares.PROTOCOLS`.
    contacted: The expected number of clients that a round contacts with the protocol
      "private_coin": each is contacted with probability contacted / n and then adds its data with
      probability m / contacted. None with other protocols.
    weighted_updates: Whether each client's update is multiplied by a weight in [0, 1] that follows
      from the client's own data, and the sum of updates has one entry more, for the sum of the
      weights. The sensitivity, of both together, is the clip norm as without.
    clip_count_noise_multiplier: z_b, noise on the count by which the clip norm adapts over its
      sensitivity to removing one client's data; None for a fixed clip norm. The server adds it.
  """

  population: int
  clients_per_round: float
  threshold_noise_multiplier: float | None
  update_noise_multiplier: float | None
  sampling: str = POISSON
  tree: tree_mechanism.TreeMechanism | None = None
  threshold_kind: str = TREE
  update_sum: sum_mechanism.SumMechanism | None = None
  relation: str = ZERO_OUT
  protocol: str = shares.COMPLEMENT
  contacted: float | None = None
  weighted_updates: bool = False
  clip_count_noise_multiplier: float | None = None

  def __post_init__(self) -> None:
    self._put("population", checks.whole("population", self.population, 1))
    self._put("clients_per_round", _positive("clients_per_round", self.clients_per_round))
    for name in (
      *("threshold_noise_multiplier", "update_noise_multiplier", "clip_count_noise_multiplier"),
    ):
      if getattr(self, name) is not None:
        self._put(name, checks.scale(name, _positive(name, getattr(self, name))))
    for name, choices in (
      ("sampling", SAMPLINGS),
      ("threshold_kind", tuple(THRESHOLDS)),
      ("relation", RELATIONS),
      ("protocol", shares.PROTOCOLS),
    ):
      checks.one_of(name, getattr(self, name), choices)
    self._check_cohort()
    if self.threshold_noise_multiplier is None and self.update_noise_multiplier is None:
      raise ValueError(
        "Found neither threshold_noise_multiplier nor update_noise_multiplier; expected at least"
        " one release to account for."
      )
    if self.tree is not None:
      self._check_tree(self.tree)
    if self.update_sum is not None:
      self._check_update_sum(self.update_sum)
    self._check_weighted_updates()
    self._check_clip_count()
    self._check_num_shares()

  def _put(self, name: str, value: Any) -> None:
    """Sets a field of the frozen object."""
    object.__setattr__(self, name, value)

  def _check_cohort(self) -> None:
    if self.clients_per_round > self.population:
      raise ValueError(
        f"Found clients_per_round = {self.clients_per_round:g} of population = {self.population};"
        " expected at most the population, a sampling probability of at most 1."
      )
    if self.sampling == FIXED_SIZE and self.clients_per_round != int(self.clients_per_round):
      raise ValueError(
        f"Found clients_per_round = {self.clients_per_round:g} with fixed_size sampling; expected"
        " a whole number."
      )
    if self.protocol != shares.COMPLEMENT and self.sampling != POISSON:
      raise ValueError(
        f"Found the protocol {self.protocol} with {self.sampling} sampling, where every cohort has"
        " all shares of noise; expected poisson."
      )
    if (self.contacted is not None) != (self.protocol == shares.PRIVATE_COIN):
      raise ValueError(
        f"Found contacted = {self.contacted} with the protocol {self.protocol}; expected how many"
        " clients a round contacts with private_coin, and none elsewhere."
      )
    if self.contacted is not None:
      self._put("contacted", _positive("contacted", self.contacted))
      if not self.clients_per_round <= self.contacted <= self.population:
        raise ValueError(
          f"Found contacted = {self.contacted:g} with clients_per_round ="
          f" {self.clients_per_round:g} and population = {self.population}; expected a number"
          " between these, both included."
        )

  def _check_tree(self, tree: tree_mechanism.TreeMechanism) -> None:
    if self.threshold_noise_multiplier is None or self.threshold_kind != TREE:
      raise ValueError("Found a tree without a tree threshold's noise multiplier; expected both.")
    # Its noise counts, not the multiplier it was built with, whose sensitivity may be the paper's.
    # More noise than promised is fine.
    delivered = shares.delivered_noise_multiplier(
      tree.local_stddev, tree.scale * math.sqrt(tree.num_levels), tree.num_shares
    )
    if delivered < self.threshold_noise_multiplier * (1.0 - 1e-9):
      raise ValueError(
        f"Found threshold_noise_multiplier = {self.threshold_noise_multiplier:.6g} with a tree"
        f" whose noise gives {delivered:.6g}; expected a tree with at least that noise."
      )

  def _check_weighted_updates(self) -> None:
    if not isinstance(self.weighted_updates, bool):
      raise ValueError(f"Found weighted_updates = {self.weighted_updates!r}; expected a bool.")
    if self.weighted_updates and self.update_noise_multiplier is None:
      raise ValueError("Found weighted_updates without update_noise_multiplier; expected both.")

  def _check_clip_count(self) -> None:
    if self.clip_count_noise_multiplier is None:
      return
    if self.update_noise_multiplier is None:
      raise ValueError(
        "Found clip_count_noise_multiplier without update_noise_multiplier; expected both."
      )
    if self.update_sum is not None:
      raise ValueError(
        "Found clip_count_noise_multiplier with an update_sum, whose modulus follows from a fixed"
        " clip norm; expected one of them."
      )

  def _check_update_sum(self, update_sum: sum_mechanism.SumMechanism) -> None:
    if self.update_noise_multiplier is None:
      raise ValueError("Found update_sum without update_noise_multiplier; expected both.")
    delivered = shares.delivered_noise_multiplier(
      update_sum.local_stddev, update_sum.sensitivity, update_sum.num_shares
    )
    if delivered < self.update_noise_multiplier * (1.0 - 1e-9):
      raise ValueError(
        f"Found update_noise_multiplier = {self.update_noise_multiplier:.6g} with an update_sum"
        f" whose noise gives {delivered:.6g}; expected one with that noise."
      )

  def _check_num_shares(self) -> None:
    for mechanism in (self.tree, self.update_sum):
      if mechanism is not None and mechanism.num_shares > self.population:
        raise ValueError(
          f"Found {mechanism.num_shares} shares of noise and a population of {self.population};"
          " expected at most a share of each client."
        )
    if self.num_shares is not None and self.sampling == FIXED_SIZE:
      if self.clients_per_round > self.num_shares:
        raise ValueError(
          f"Found {self.num_shares} shares of noise and cohorts of {self.clients_per_round:g};"
          " expected as many shares as clients."
        )

  @property
  def num_shares(self) -> int | None:
    """K: the most clients of a round; None where the server makes all noise."""
    found = [mechanism for mechanism in (self.tree, self.update_sum) if mechanism is not None]
    return min(mechanism.num_shares for mechanism in found) if found else None

  @property
  def sampling_probability(self) -> float:
    """q: the chance that a given client's data count in a given round; 1 without sampling."""
    if self.sampling == NO_SAMPLING:
      return 1.0
    return self.clients_per_round / self.population

  @property
  def noise_multipliers(self) -> tuple[float | None, float | None, float | None]:
    """(z_q, z_w, z_b), each None where the round has no such release."""
    return (
      self.threshold_noise_multiplier,
      self.update_noise_multiplier,
      self.clip_count_noise_multiplier,
    )

  @property
  def effective_noise_multiplier(self) -> float:
    """z_eff of all that a round releases, relative to removing one client's data."""
    return 1.0 / math.hypot(*(1.0 / z for z in self.noise_multipliers if z is not None))

  @property
  def replace_one_factors(self) -> tuple[float, float, float]:
    """The ratios of the sensitivities to replacing a client to those to removing its data.

    Of the threshold, of the sum of clipped updates, and of the count by which the clip norm adapts,
    for which 2 is a bound (`secure_sums.adaptive_clipping` has the proof).
    """
    return THRESHOLDS[self.threshold_kind].replace_one_factor, 2.0, 2.0

  @property
  def neighboring_relation(self) -> str:
    """The pair of data sets that the guarantee makes hard to tell apart, in words."""
    if self.relation == REPLACE_ONE:
      return "replace one client's data"
    if self.sampling in (POISSON, NO_SAMPLING):
      return "zero-out (a client's data removed) / add-or-remove one client"
    return "zero-out (a client's data removed, the client itself still counted)"

  @property
  def contact_probability(self) -> float:
    """The chance that a given client reports in a given round, with its data or without."""
    if self.contacted is not None:
      return self.contacted / self.population
    return self.sampling_probability

  @property
  def overflow_probability(self) -> float:
    """The chance that the others fill a round's cohort, so that a client takes one's place."""
    if self.sampling != POISSON or self.num_shares is None:
      return 0.0
    return shares.overflow_probability(self.population, self.contact_probability, self.num_shares)
