"""What a private training run costs.

A round releases a threshold (a noisy histogram of losses or a noisy one-bit count) and the noisy
sum of clipped updates. Both are computed on the SAME cohort, so that a round is one subsampled
mechanism, subsample(compose(threshold, update)), and not the composition of two subsampled ones,
which would cost less than the truth. Both are Gaussian, so that only

    z_eff = (z_q^-2 + z_w^-2)^(-1/2)

counts, where z_q and z_w are the standard deviations over the l2-sensitivities of one client's
data. Two accountants bound the cost from above: a curve of Renyi divergences (RDP) and privacy loss
distributions (PLD, see `dominating_pairs`). The default takes the smaller of the two.

    release = calibration.calibrate(3.0, 4e-4, population=2500, clients_per_round=100,
                                    num_rounds=1000, rho_ratio=0.5)
    Meter(release, 4e-4).epsilon(1000)  # at most 3

Everything here needs NumPy, SciPy and dp_accounting only.
"""

import dataclasses
import functools
import math
from typing import Any, Optional

import dp_accounting
from dp_accounting import rdp
import numpy as np
from scipy import stats

from privacy import checks
from privacy import dominating_pairs
from privacy import shares
from privacy import sum_mechanism
from privacy import tree_mechanism

POISSON = "poisson"
FIXED_SIZE = "fixed_size"
NO_SAMPLING = "none"
SAMPLINGS = (POISSON, FIXED_SIZE, NO_SAMPLING)

TREE = "tree"
GEOMETRIC = "geometric"
THRESHOLD_KINDS = (TREE, GEOMETRIC)

ZERO_OUT = "zero_out"
REPLACE_ONE = "replace_one"
RELATIONS = (ZERO_OUT, REPLACE_ONE)

RDP = "rdp"
PLD = "pld"
TIGHTEST = "tightest"
ACCOUNTANTS = (TIGHTEST, PLD, RDP)

# The server's Gaussian noise (`seeded_gaussian_query`) is never larger, in standard deviations.
GAUSSIAN_SUPPORT = 11.35

# dp_accounting's, which jump from 64 to 128, 256, 512 and 1024, and some between.
_ORDERS = tuple(
  [1 + x / 10 for x in range(1, 100)]
  + list(range(11, 65))
  + [72, 80, 88, 96, 112, 128, 144, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 1024]
)
# Sampling without replacement costs dp_accounting time quadratic in the order. Any set of orders
# gives a valid bound; the default set would be ten times slower and not visibly tighter.
_FIXED_SIZE_ORDERS = tuple(
  [1 + x / 10 for x in range(1, 30)] + list(range(4, 33)) + [40, 48, 64, 96, 128]
)
# Rounding each loss upwards to a grid of width h costs a run about h sqrt(T) / 2.
_COARSEST_INTERVAL, _FINEST_INTERVAL = 1e-3, 1e-5
_INTERVAL_OF_EPSILON = 0.02
# More points than this in the losses of a run are not computed.
_MOST_POINTS = 5e6
# e^epsilon is no number in double precision beyond this.
_LARGEST_PLD_EPSILON = 700.0
# Of a run with many rounds PLD is asked at these fractions of it; `Meter`.
_RUNGS = 10


def _positive(name: str, value: Any) -> float:
  number = checks.number(name, value)
  if number <= 0:
    raise ValueError(f"Found {name} = {number:g}; expected a positive number.")
  return number


def default_delta(population: int) -> float:
  """The delta to use when nobody chose one: 1e-5 or n^-1.1, whichever is smaller.

  Args:
    population: n, how many clients there are.

  Returns:
    A delta below 1 / n, with which publishing a client chosen at random is not private.
  """
  # A population of one would get a delta of 1.
  return min(1e-5, checks.whole("population", population, 1) ** -1.1)


def delta_warning(delta: float, population: int) -> Optional[str]:
  """What to say of a delta that is too large for a population.

  Args:
    delta: Of (epsilon, delta)-differential privacy.
    population: n, how many clients there are.

  Returns:
    A sentence if delta >= 1 / n, and None otherwise.
  """
  delta = checks.fraction("delta", delta)
  population = checks.whole("population", population, 1)
  # A delta that was computed as 1 / n elsewhere may differ in the last bit.
  if delta * population < 1.0 - 1e-9:
    return None
  return (
    f"Found delta = {delta:g}, not below 1 / population = {1 / population:g}: publishing the data"
    f" of one client chosen at random would satisfy it. {default_delta(population):.3g} or less"
    " is a safer choice."
  )


@dataclasses.dataclass(frozen=True)
class Release:
  """What every round of a run releases, and how its cohort comes about.

  Numbers may be given as any real scalar; they are kept as Python's own.

  Attributes:
    population: n, how many clients there are.
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
    threshold_kind: "tree" or "geometric" (a one-bit count), for how much replacing a client changes
      the threshold's release.
    update_sum: Parameters of the sum of updates whose noise the clients make; None where the server
      adds the noise. Taken into account like `tree`.
    relation: Which data sets are neighbours: "zero_out", one client's data removed, or
      "replace_one", one client's data replaced by any other.
    protocol: Who makes the shares of noise that a cohort lacks, one of `shares.PROTOCOLS`.
    contacted: The expected number of clients that a round contacts with the protocol
      "private_coin": each is contacted with probability contacted / n and then adds its data with
      probability m / contacted. None with other protocols.
  """

  population: int
  clients_per_round: float
  threshold_noise_multiplier: Optional[float]
  update_noise_multiplier: Optional[float]
  sampling: str = POISSON
  tree: Optional[tree_mechanism.TreeMechanism] = None
  threshold_kind: str = TREE
  update_sum: Optional[sum_mechanism.SumMechanism] = None
  relation: str = ZERO_OUT
  protocol: str = shares.COMPLEMENT
  contacted: Optional[float] = None

  def __post_init__(self) -> None:
    def put(name: str, value: Any) -> None:
      object.__setattr__(self, name, value)

    put("population", checks.whole("population", self.population, 1))
    put("clients_per_round", _positive("clients_per_round", self.clients_per_round))
    for name in ("threshold_noise_multiplier", "update_noise_multiplier"):
      if getattr(self, name) is not None:
        put(name, checks.scale(name, _positive(name, getattr(self, name))))
    checks.one_of("sampling", self.sampling, SAMPLINGS)
    checks.one_of("threshold_kind", self.threshold_kind, THRESHOLD_KINDS)
    checks.one_of("relation", self.relation, RELATIONS)
    checks.one_of("protocol", self.protocol, shares.PROTOCOLS)
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
      put("contacted", _positive("contacted", self.contacted))
      if not self.clients_per_round <= self.contacted <= self.population:
        raise ValueError(
          f"Found contacted = {self.contacted:g} with clients_per_round ="
          f" {self.clients_per_round:g} and population = {self.population}; expected a number"
          " between these, both included."
        )
    if self.threshold_noise_multiplier is None and self.update_noise_multiplier is None:
      raise ValueError(
        "Found neither threshold_noise_multiplier nor update_noise_multiplier; expected at least"
        " one release to account for."
      )
    if self.tree is not None:
      self._check_tree(self.tree)
    if self.update_sum is not None:
      self._check_update_sum(self.update_sum)
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

  def _check_tree(self, tree: tree_mechanism.TreeMechanism) -> None:
    if self.threshold_noise_multiplier is None or self.threshold_kind != TREE:
      raise ValueError("Found a tree without a tree threshold's noise multiplier; expected both.")
    # By its noise rather than by the multiplier it was built with, whose sensitivity may be the
    # paper's. More noise than promised is fine.
    delivered = shares.delivered_noise_multiplier(
      tree.local_stddev, tree.scale * math.sqrt(tree.num_levels), tree.num_shares
    )
    if delivered < self.threshold_noise_multiplier * (1.0 - 1e-9):
      raise ValueError(
        f"Found threshold_noise_multiplier = {self.threshold_noise_multiplier:.6g} with a tree"
        f" whose noise gives {delivered:.6g}; expected a tree with at least that noise."
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

  @property
  def num_shares(self) -> Optional[int]:
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
  def effective_noise_multiplier(self) -> float:
    """z_eff of all that a round releases, relative to removing one client's data."""
    multipliers = (self.threshold_noise_multiplier, self.update_noise_multiplier)
    return 1.0 / math.hypot(*(1.0 / z for z in multipliers if z is not None))

  @property
  def neighboring_relation(self) -> str:
    """Which two data sets are to be told apart, for people."""
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

  def gaussian(self, probability: float, growth: float = 1.0) -> dominating_pairs.SampledGaussian:
    """A round as a Gaussian mechanism on a Poisson sample.

    Args:
      probability: With which a client's data count.
      growth: By how much less noise there is than in the release: the ratio of variances.

    Returns:
      The mechanism, with the release's neighbouring relation.
    """
    factors = replace_one_factors(self.threshold_kind)
    multipliers = (self.threshold_noise_multiplier, self.update_noise_multiplier)
    replaced = math.hypot(*(f / z for f, z in zip(factors, multipliers) if z is not None))
    return dominating_pairs.SampledGaussian(
      probability=probability,
      removed=math.sqrt(growth) / self.effective_noise_multiplier,
      replaced=math.sqrt(growth) * replaced,
      replace_one=self.relation == REPLACE_ONE,
    )

  @property
  def overflow_probability(self) -> float:
    """The chance that the others fill a round's cohort, so that a client takes one's place."""
    if self.sampling != POISSON or self.num_shares is None:
      return 0.0
    return shares.overflow_probability(self.population, self.contact_probability, self.num_shares)

  @property
  def mixture(self) -> dominating_pairs.Mixture:
    """A round as Gaussian mechanisms on samples of clients, with their probabilities."""
    found = self.gaussian(self.sampling_probability)
    if self.sampling == FIXED_SIZE and found.probability < 1.0:
      return ((1.0, dataclasses.replace(found, is_replaced=True)),)
    overflow = self.overflow_probability
    if not overflow:
      return ((1.0, found),)
    full = dataclasses.replace(found, is_replaced=True, replace_one=True)
    return (1.0 - overflow, found), (overflow, full)


def replace_one_factors(threshold_kind: str) -> tuple[float, float]:
  """How much more replacing a client changes a release than removing its data does.

  Args:
    threshold_kind: "tree" (a client is in L nodes before and in L others after) or "geometric" (a
      bit of +-1/2 changes its sign).

  Returns:
    The ratios of the l2-sensitivities of the threshold and of the sum of clipped updates.
  """
  checks.one_of("threshold_kind", threshold_kind, THRESHOLD_KINDS)
  return (math.sqrt(2.0) if threshold_kind == TREE else 2.0), 2.0


def round_event(release: Release) -> dp_accounting.DpEvent:
  """What one round releases, for dp_accounting: a sample of clients, and on it all jointly.

  Args:
    release: What a round releases; how cohorts are cut, and that noise is discrete, is left out.

  Returns:
    An event for an accountant of the neighbouring relation that goes with the sampling: REPLACE_ONE
    with "fixed_size", ADD_OR_REMOVE_ONE otherwise.

  Raises:
    ValueError: If dp_accounting has no event for the sampling with the relation.
  """
  fixed = release.sampling == FIXED_SIZE
  replaced = release.relation == REPLACE_ONE
  if replaced and release.sampling == POISSON:
    raise ValueError(
      "Found poisson sampling with relation = 'replace_one', for which RDP has no bound here;"
      " expected accounting by 'pld'."
    )
  # RdpAccountant(REPLACE_ONE) accounts a Gaussian by its noise multiplier as it stands, without
  # the factor between removing and replacing: google/differential-privacy#378.
  factors = (1.0, 1.0)
  if fixed or replaced:
    factors = replace_one_factors(release.threshold_kind)
  multipliers = (release.threshold_noise_multiplier, release.update_noise_multiplier)
  event = dp_accounting.ComposedDpEvent(
    [
      dp_accounting.GaussianDpEvent(float(z / factor))
      for z, factor in zip(multipliers, factors)
      if z is not None
    ]
  )
  if release.sampling == POISSON:
    return dp_accounting.PoissonSampledDpEvent(float(release.sampling_probability), event)
  if fixed:
    return dp_accounting.SampledWithoutReplacementDpEvent(
      source_dataset_size=release.population,
      sample_size=int(release.clients_per_round),
      event=event,
    )
  return event


def run_event(release: Release, num_rounds: int) -> dp_accounting.DpEvent:
  """What a run of some rounds releases.

  Args:
    release: What each round releases.
    num_rounds: T, not negative.

  Returns:
    An event like `round_event`'s.
  """
  num_rounds = checks.whole("num_rounds", num_rounds, 0)
  if num_rounds == 0:
    return dp_accounting.NoOpDpEvent()
  return dp_accounting.SelfComposedDpEvent(round_event(release), num_rounds)


@functools.lru_cache(maxsize=128)
def _event_curve(release: Release, orders: tuple[float, ...]) -> np.ndarray:
  """The Renyi divergences of `round_event` at some orders, of a release without mechanisms."""
  fixed = release.sampling == FIXED_SIZE
  relations = dp_accounting.NeighboringRelation
  relation = relations.REPLACE_ONE if fixed else relations.ADD_OR_REMOVE_ONE
  accountant = rdp.RdpAccountant(list(orders), relation)
  # Divergences so close to 0 that rounding makes them negative are 0.
  return np.maximum(accountant.compose(round_event(release)).rdp, 0.0)


def _mixture(orders: np.ndarray, curve: np.ndarray, weight: float, other: Any) -> np.ndarray:
  """Divergences of a round that is another mechanism with some probability, for all to see."""
  exponents = np.stack([(orders - 1.0) * curve, (orders - 1.0) * other + np.zeros_like(orders)])
  log_weights = np.log([[1.0 - weight], [weight]])
  return np.logaddexp.reduce(exponents + log_weights, axis=0) / (orders - 1.0)


@functools.lru_cache(maxsize=128)
def _round_curve(release: Release) -> tuple[np.ndarray, np.ndarray]:
  """Orders and Renyi divergences of one round, but for the slack of discrete noise.

  Sampling without replacement and zero-out is accounted for as replacing a client, which includes
  it.

  Raises:
    ValueError: If RDP does not know the sampling with the relation.
  """
  overflow = release.overflow_probability
  release = dataclasses.replace(release, tree=None, update_sum=None)
  if not overflow:
    orders = _FIXED_SIZE_ORDERS if release.sampling == FIXED_SIZE else _ORDERS
    return np.array(orders), _event_curve(release, orders)
  orders = _FIXED_SIZE_ORDERS
  # Where the others fill the cohort, the client takes another's place: not worse than replacing it
  # in a sample of the same probability without replacement. The event knows whole numbers only.
  full = dataclasses.replace(
    release,
    sampling=FIXED_SIZE,
    protocol=shares.COMPLEMENT,
    contacted=None,
    clients_per_round=math.ceil(release.clients_per_round),
  )
  curve = _event_curve(release, orders)
  return np.array(orders), _mixture(np.array(orders), curve, overflow, _event_curve(full, orders))


@functools.lru_cache(maxsize=64)  # Asked for in every round of a run.
def round_slack(release: Release) -> float:
  """The log of the ratio between a round's law and one with a continuous Gaussian's noise.

  Args:
    release: What a round releases.

  Returns:
    The sum of `shares.slack` over all numbers to which clients add noise; 0 where the server makes
    all of it.
  """
  slack = 0.0
  if release.tree is not None:
    tree = release.tree
    slack += tree.num_nodes * shares.slack(tree.local_stddev, tree.num_shares, release.protocol)
  if release.update_sum is not None:
    found = release.update_sum
    slack += found.num_entries * shares.slack(
      found.local_stddev, found.num_shares, release.protocol
    )
  return slack


@functools.lru_cache(maxsize=64)
def _round_tail_probability(release: Release) -> float:
  """The chance that a round's output is one that is impossible without a client.

  The server's noise ends at `GAUSSIAN_SUPPORT` standard deviations; a client whose contribution is
  in a single number moves that end by 1 / z of them. Added to delta: 1e-16 and less, unless there
  is next to no noise.
  """
  total = 0.0
  factors = (1.0, 1.0)
  if release.relation == REPLACE_ONE:
    factors = replace_one_factors(release.threshold_kind)
  by_server = (release.threshold_kind == GEOMETRIC, release.update_sum is None)
  multipliers = (release.threshold_noise_multiplier, release.update_noise_multiplier)
  for z, factor, is_by_server in zip(multipliers, factors, by_server):
    if z is not None and is_by_server:
      total += 2.0 * release.sampling_probability * stats.norm.sf(GAUSSIAN_SUPPORT - factor / z)
  return total


@dataclasses.dataclass(frozen=True)
class Spent:
  """What some rounds cost.

  Attributes:
    epsilon: Of (epsilon, delta)-differential privacy.
    delta: The whole of delta, with what is set aside for the noise's ends.
    num_rounds: How many rounds.
    accountant: "rdp" or "pld", whose bound it is.
    rdp_order: The order that gives the least epsilon by RDP; None for PLD and for no rounds.
    tail_probability: The share of delta for outputs beyond the end of the server's noise.
  """

  epsilon: float
  delta: float
  num_rounds: int
  accountant: str
  rdp_order: Optional[float] = None
  tail_probability: float = 0.0


class Meter:
  """What a run has cost after so many rounds; quick, as a round is accounted for only once.

  Attributes:
    release: What each round releases.
    delta: Of (epsilon, delta)-differential privacy.
    accountant: "tightest", "pld" or "rdp".
  """

  def __init__(self, release: Release, delta: float, accountant: str = TIGHTEST):
    """Initializes the meter.

    Args:
      release: What each round releases.
      delta: Of (epsilon, delta)-differential privacy.
      accountant: "tightest" for the smaller of both bounds, "pld", or "rdp".

    Raises:
      ValueError: If a number is out of its range.
    """
    self.release = release
    self.delta = checks.fraction("delta", delta)
    self.accountant = checks.one_of("accountant", accountant, ACCOUNTANTS)

  def spent(self, num_rounds: int) -> Spent:
    """What `num_rounds` rounds cost against whoever sees all that they release.

    Args:
      num_rounds: How many rounds; 0 costs nothing.

    Returns:
      The cost.

    Raises:
      ValueError: If it is negative, the noise ends too early for delta, or the accountant cannot
        tell ("rdp" knows no private coin with replacement, "pld" needs some noise).
    """
    num_rounds = checks.whole("num_rounds", num_rounds, 0)
    if num_rounds == 0:
      return Spent(0.0, self.delta, 0, RDP if self.accountant == RDP else PLD)
    return _spent(self.release, num_rounds, self.delta, self.accountant)

  def epsilon(self, num_rounds: int) -> float:
    """The epsilon of `spent`."""
    return self.spent(num_rounds).epsilon

  def epsilon_at_most(self, num_rounds: int, num_rounds_planned: int) -> float:
    """A bound on `epsilon` for each round of a run; quick enough for every round.

    By RDP, or by PLD for the next of ten stages of the run, whose rounds include these: whichever
    is smaller. In the run's last round it is `epsilon`.

    Args:
      num_rounds: How many rounds are done.
      num_rounds_planned: How many there will be.

    Returns:
      An epsilon, not below that of fewer rounds.
    """
    num_rounds = checks.whole("num_rounds", num_rounds, 0)
    if self.accountant == RDP or num_rounds == 0:
      return self.epsilon(num_rounds)
    stage = math.ceil(num_rounds * _RUNGS / max(num_rounds_planned, 1))
    end = max(num_rounds, math.ceil(stage * num_rounds_planned / _RUNGS))
    found = self.epsilon(end)
    if self.accountant == TIGHTEST:
      by_rdp = _by_rdp(self.release, num_rounds, self.delta)
      found = found if by_rdp is None else min(found, by_rdp.epsilon)
    return found


@functools.lru_cache(maxsize=1024)
def _spent(release: Release, num_rounds: int, delta: float, accountant: str) -> Spent:
  if accountant == RDP:
    _round_curve(release)  # Says why, if it does not know the sampling.
    found = _by_rdp(release, num_rounds, delta)
    assert found is not None
    return found
  by_rdp = _by_rdp(release, num_rounds, delta)
  by_pld = None
  try:
    by_pld = spent_by_pld(release, num_rounds, delta, None if by_rdp is None else by_rdp.epsilon)
  except ValueError:
    if accountant == PLD or by_rdp is None:
      raise
  if by_pld is None or (
    accountant == TIGHTEST and by_rdp is not None and by_rdp.epsilon < by_pld.epsilon
  ):
    assert by_rdp is not None
    return by_rdp
  return by_pld


def _rest_of_delta(release: Release, num_rounds: int, delta: float) -> tuple[float, float]:
  """delta without what is set aside for the noise's ends, and that."""
  tail = num_rounds * _round_tail_probability(release)
  if tail >= delta:
    raise ValueError(
      f"Found noise multipliers as small as {release.effective_noise_multiplier:.3g}: with"
      f" probability {min(tail, 1.0):.2g} an output is beyond the end of the server's noise, where"
      f" it tells a client's presence; expected more noise, for less than delta = {delta:g}."
    )
  return delta - tail, tail


@functools.lru_cache(maxsize=1024)
def _by_rdp(release: Release, num_rounds: int, delta: float) -> Optional[Spent]:
  """The cost by RDP; None if RDP does not know the sampling."""
  rest, tail = _rest_of_delta(release, num_rounds, delta)
  try:
    orders, curve = _round_curve(release)
  except ValueError:
    return None
  # D(P' || Q') <= D(P || Q) + slack (2 alpha - 1) / (alpha - 1) for densities within e^(+-slack).
  slack = num_rounds * round_slack(release)
  curve = num_rounds * curve + slack * (2.0 * orders - 1.0) / (orders - 1.0)
  found, order = rdp.compute_epsilon(orders, curve, rest)
  return Spent(float(found), delta, num_rounds, RDP, float(order), tail)


def _interval(epsilon: float, num_rounds: int) -> float:
  wanted = _INTERVAL_OF_EPSILON * epsilon / math.sqrt(num_rounds)
  coarsest = _COARSEST_INTERVAL * min(max(1.0, epsilon / 10.0), 100.0)
  return min(coarsest, max(_FINEST_INTERVAL, wanted))


def spent_by_pld(
  release: Release, num_rounds: int, delta: float, guess: Optional[float] = None
) -> Spent:
  """The cost by PLD, where one knows roughly what it is; see `Meter.spent` and `pld_epsilon`."""
  rest, tail = _rest_of_delta(release, num_rounds, delta)
  slack = num_rounds * round_slack(release)
  found = pld_epsilon(release.mixture, num_rounds, rest, slack, guess)
  return Spent(found, delta, num_rounds, PLD, None, tail)


def pld_epsilon(
  mixture: dominating_pairs.Mixture,
  num_rounds: int,
  delta: float,
  slack: float = 0.0,
  guess: Optional[float] = None,
) -> float:
  """What rounds of sampled Gaussian mechanisms cost, on a grid that is fine enough for epsilon.

  Args:
    mixture: Of which mechanisms a round is one.
    num_rounds: T, at least 1.
    delta: Of (epsilon, delta)-differential privacy.
    slack: The log of the ratio between the densities of all rounds and those accounted for.
    guess: An epsilon that is not much smaller; None if there is none.

  Returns:
    The epsilon.

  Raises:
    ValueError: If that would take too long, or delta is too small for double precision.
  """
  interval = _interval(1.0 if guess is None else guess, num_rounds)
  while True:
    if guess is not None and guess / interval > _MOST_POINTS:
      raise ValueError(
        f"Found an epsilon of about {guess:.3g}, too large for accounting by 'pld'; expected more"
        " noise, or 'rdp'."
      )
    losses = dominating_pairs.losses_of_round(mixture, interval).self_compose(num_rounds)
    # With densities within a factor of e^slack, (eps, delta) becomes (eps + 2 slack, e^slack delta)
    # on the way there and back.
    with np.errstate(over="ignore"):
      found = float(losses.get_epsilon_for_delta(delta * math.exp(-slack)))
    if _LARGEST_PLD_EPSILON < found < math.inf:
      raise ValueError(
        f"Found an epsilon of about {found:.3g}, too large for accounting by 'pld'; expected more"
        " noise, or 'rdp'."
      )
    if not math.isfinite(found):
      raise ValueError(
        f"Found delta = {delta:g}, too small for accounting by 'pld' in double precision; expected"
        " 'rdp'."
      )
    # A coarse grid says too much, so that what it says may ask for too coarse a grid.
    finer = _interval(found, num_rounds)
    if finer > 0.5 * interval:
      return found + 2.0 * slack
    interval, guess = finer, found


def epsilon(release: Release, num_rounds: int, delta: float, accountant: str = TIGHTEST) -> Spent:
  """What a run costs against whoever sees all that it releases: all models and all thresholds.

  Args:
    release: What each round releases.
    num_rounds: T; 0 costs nothing.
    delta: Of (epsilon, delta)-differential privacy.
    accountant: "tightest", "pld" or "rdp".

  Returns:
    The cost, under `release.neighboring_relation`.

  Raises:
    ValueError: As `Meter.spent`.
  """
  return Meter(release, delta, accountant).spent(num_rounds)


def epsilon_or_none(
  release: Release, num_rounds: int, delta: float, accountant: str
) -> Optional[float]:
  """`epsilon` by one accountant, to stand beside another's; None where it cannot tell."""
  try:
    return epsilon(release, num_rounds, delta, accountant).epsilon
  except ValueError:
    return None
