"""What a private training run costs, and which noise a privacy budget asks for.

A round releases a threshold (a noisy histogram of losses or a noisy one-bit count) and the noisy
sum of clipped updates. Both are computed on the SAME cohort, so that a round is one subsampled
mechanism, subsample(compose(threshold, update)), and not the composition of two subsampled ones,
which would cost less than the truth. Both are Gaussian, so that only

    z_eff = (z_q^-2 + z_w^-2)^(-1/2)

counts, where z_q and z_w are the standard deviations over the l2-sensitivities of one client's
data. The cost is carried as a curve of Renyi divergences (RDP) or as a privacy loss distribution
(PLD); subsampling does not amplify zero-concentrated differential privacy.

    release = calibrate(3.0, 4e-4, population=2500, clients_per_round=100, num_rounds=1000,
                        rho_ratio=0.5)
    Meter(release, 4e-4).epsilon(1000)  # at most 3

Everything here needs NumPy, SciPy and dp_accounting only.
"""

from collections.abc import Callable
import dataclasses
import functools
import math
from typing import Any, Optional

import dp_accounting
from dp_accounting import pld
from dp_accounting import rdp
import numpy as np
from scipy import stats

from privacy import sum_mechanism
from privacy import tree_mechanism

POISSON = "poisson"
FIXED_SIZE = "fixed_size"
NO_SAMPLING = "none"
SAMPLINGS = (POISSON, FIXED_SIZE, NO_SAMPLING)

TREE = "tree"
GEOMETRIC = "geometric"
THRESHOLD_KINDS = (TREE, GEOMETRIC)

RDP = "rdp"
PLD = "pld"
ACCOUNTANTS = (RDP, PLD)

# The share of delta that is set aside for rounds whose cohort is outside a histogram's limits.
ABORT_SHARE = 1e-3

# Sampling without replacement costs dp_accounting time quadratic in the order. Any set of orders
# gives a valid bound; the default set would be ten times slower and not visibly tighter.
_FIXED_SIZE_ORDERS = tuple(
  [1 + x / 10 for x in range(1, 30)] + list(range(4, 33)) + [40, 48, 64, 96, 128]
)
_PLD_INTERVAL = 1e-3

# Noise multipliers among which `calibrate` searches, and the few orders with which it finds out
# where: fewer orders, more noise, so that the answer is just below.
_LEAST_NOISE, _MOST_NOISE = 0.02, 2000.0
_COARSE_ORDERS = (1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 128, 256, 1024)
_FIXED_SIZE_COARSE_ORDERS = (1.5, 2, 2.5, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64)
# Levels of the largest tree for which `calibrate` leaves room when it isn't told how many bins.
_DEFAULT_LEVELS = 10


def _number(name: str, value: Any) -> float:
  """Returns any kind of real scalar as a finite Python float, or raises a ValueError."""
  # dp_accounting silently drops mechanisms whose noise multiplier is an int, a NumPy scalar or a
  # tensor when they are composed below a sampling event. So nothing but floats may get that far.
  try:
    number = float(value)
  except (TypeError, ValueError):
    raise ValueError(f"Found {name} = {value!r}; expected a number.") from None
  if not math.isfinite(number):
    raise ValueError(f"Found {name} = {number}; expected a finite number.")
  return number


def _positive(name: str, value: Any) -> float:
  number = _number(name, value)
  if number <= 0:
    raise ValueError(f"Found {name} = {number:g}; expected a positive number.")
  return number


def _whole(name: str, value: Any, least: int) -> int:
  number = _number(name, value)
  if number != int(number) or number < least:
    raise ValueError(f"Found {name} = {number:g}; expected a whole number of at least {least}.")
  return int(number)


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> str:
  if value not in choices:
    raise ValueError(f"Found {name} = {value!r}; expected one of {', '.join(choices)}.")
  return value


def check_delta(delta: Any) -> float:
  """Returns delta as a Python float; raises a ValueError unless it is in (0, 1)."""
  delta = _number("delta", delta)
  if not 0.0 < delta < 1.0:
    raise ValueError(f"Found delta = {delta:g}; expected a number between 0 and 1, both excluded.")
  return delta


def default_delta(population: int) -> float:
  """The delta to use when nobody chose one: 1e-5 or n^-1.1, whichever is smaller.

  Args:
    population: n, how many clients there are.

  Returns:
    A delta below 1 / n, with which publishing a client chosen at random is not private.
  """
  # A population of one would get a delta of 1.
  return min(1e-5, _whole("population", population, 1) ** -1.1)


def delta_warning(delta: float, population: int) -> Optional[str]:
  """What to say of a delta that is too large for a population.

  Args:
    delta: Of (epsilon, delta)-differential privacy.
    population: n, how many clients there are.

  Returns:
    A sentence if delta >= 1 / n, and None otherwise.
  """
  delta = check_delta(delta)
  population = _whole("population", population, 1)
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
    clients_per_round: m, the (expected) size of a cohort.
    threshold_noise_multiplier: z_q, noise of the threshold's release over its sensitivity to
      removing one client's data; None if no private threshold is released.
    update_noise_multiplier: z_w, noise on the SUM of clipped updates over the clip norm; None if
      no weights are released.
    sampling: "poisson": each client takes part in each round with probability m / n, by itself.
      "fixed_size": m clients, uniformly, without replacement. "none": no secret sampling, as if
      everybody took part in every round.
    tree: Parameters of the histogram whose noise its clients make. With it the answers take into
      account that this noise is discrete and that cohorts outside its limits give no result.
    threshold_kind: "tree" or "geometric" (a one-bit count), for how much replacing a client changes
      the threshold's release.
    update_sum: Parameters of the sum of updates whose noise the clients make; None where the server
      adds the noise. Taken into account like `tree`.
  """

  population: int
  clients_per_round: float
  threshold_noise_multiplier: Optional[float]
  update_noise_multiplier: Optional[float]
  sampling: str = POISSON
  tree: Optional[tree_mechanism.TreeMechanism] = None
  threshold_kind: str = TREE
  update_sum: Optional[sum_mechanism.SumMechanism] = None

  def __post_init__(self) -> None:
    def put(name: str, value: Any) -> None:
      object.__setattr__(self, name, value)

    put("population", _whole("population", self.population, 1))
    put("clients_per_round", _positive("clients_per_round", self.clients_per_round))
    for name in ("threshold_noise_multiplier", "update_noise_multiplier"):
      if getattr(self, name) is not None:
        put(name, _positive(name, getattr(self, name)))
    _one_of("sampling", self.sampling, SAMPLINGS)
    _one_of("threshold_kind", self.threshold_kind, THRESHOLD_KINDS)
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
    if self.threshold_noise_multiplier is None and self.update_noise_multiplier is None:
      raise ValueError(
        "Found neither threshold_noise_multiplier nor update_noise_multiplier; expected at least"
        " one release to account for."
      )
    if self.tree is not None:
      self._check_tree(self.tree)
    if self.update_sum is not None:
      self._check_update_sum(self.update_sum)
    limits = self.cohort_limits
    if self.sampling == FIXED_SIZE and limits and self.clients_per_round < limits[0]:
      raise ValueError(
        f"Found noise for at least {limits[0]} clients and cohorts of {self.clients_per_round:g};"
        " expected cohorts that are large enough."
      )

  def _check_tree(self, tree: tree_mechanism.TreeMechanism) -> None:
    if self.threshold_noise_multiplier is None or self.threshold_kind != TREE:
      raise ValueError("Found a tree without a tree threshold's noise multiplier; expected both.")
    # By its noise rather than by the multiplier it was built with, whose sensitivity may be the
    # paper's. More noise than promised is fine.
    delivered = (
      tree.local_stddev * math.sqrt(tree.min_clients) / (tree.scale * math.sqrt(tree.num_levels))
    )
    if delivered < self.threshold_noise_multiplier * (1.0 - 1e-9):
      raise ValueError(
        f"Found threshold_noise_multiplier = {self.threshold_noise_multiplier:.6g} with a tree"
        f" whose noise gives {delivered:.6g}; expected a tree with at least that noise."
      )

  def _check_update_sum(self, update_sum: sum_mechanism.SumMechanism) -> None:
    if self.update_noise_multiplier is None:
      raise ValueError("Found update_sum without update_noise_multiplier; expected both.")
    if update_sum.noise_multiplier < self.update_noise_multiplier * (1.0 - 1e-9):
      raise ValueError(
        f"Found update_noise_multiplier = {self.update_noise_multiplier:.6g} with an update_sum"
        f" whose noise gives {update_sum.noise_multiplier:.6g}; expected one with that noise."
      )

  @property
  def cohort_limits(self) -> Optional[tuple[int, int]]:
    """(k_min, n_max) outside of which a round has no result; None where the server makes noise."""
    found = [mechanism for mechanism in (self.tree, self.update_sum) if mechanism is not None]
    if not found:
      return None
    return max(m.min_clients for m in found), min(m.max_clients for m in found)

  @property
  def num_entries(self) -> int:
    """d: how many numbers of a round have noise that the clients make."""
    num_nodes = 0 if self.tree is None else self.tree.num_nodes
    return num_nodes + (0 if self.update_sum is None else self.update_sum.num_entries)

  @property
  def shows_cohort_size(self) -> bool:
    """Whether the clients' own noise tells how large a Poisson cohort was.

    The sum of K shares has K times the variance of one, and d entries show K up to K sqrt(2 / d),
    to within a client if d > 2 m^2. The accounting of Poisson samples takes K for unknown: it is no
    guarantee then.
    """
    return self.sampling == POISSON and self.num_entries > 2.0 * self.clients_per_round**2

  @property
  def sampling_probability(self) -> float:
    """q: the chance that a given client takes part in a given round; 1 without sampling."""
    if self.sampling == NO_SAMPLING:
      return 1.0
    return self.clients_per_round / self.population

  @property
  def effective_noise_multiplier(self) -> float:
    """z_eff of all that a round releases, relative to removing one client's data."""
    multipliers = (self.threshold_noise_multiplier, self.update_noise_multiplier)
    return sum(z**-2 for z in multipliers if z is not None) ** -0.5

  @property
  def neighboring_relation(self) -> str:
    """Which two data sets are to be told apart, for people."""
    if self.sampling == FIXED_SIZE:
      return "replace one client"
    if self.cohort_limits is not None:
      # A client who is removed takes its share of the noise along.
      return "zero-out (a client's data removed, its share of the noise stays)"
    return "zero-out (a client's data removed) / add-or-remove one client"


def replace_one_factors(threshold_kind: str) -> tuple[float, float]:
  """How much more replacing a client changes a release than removing its data does.

  Args:
    threshold_kind: "tree" (a client is in L nodes before and in L others after) or "geometric" (a
      bit of +-1/2 changes its sign).

  Returns:
    The ratios of the l2-sensitivities of the threshold and of the sum of clipped updates.
  """
  _one_of("threshold_kind", threshold_kind, THRESHOLD_KINDS)
  return (math.sqrt(2.0) if threshold_kind == TREE else 2.0), 2.0


def _gaussians(release: Release) -> list[dp_accounting.DpEvent]:
  """The releases of a round, relative to what dp_accounting's accountant takes a neighbour for."""
  threshold_factor, update_factor = 1.0, 1.0
  if release.sampling == FIXED_SIZE:
    # RdpAccountant(REPLACE_ONE) accounts a Gaussian by its noise multiplier as it stands, without
    # the factor between removing and replacing: google/differential-privacy#378.
    threshold_factor, update_factor = replace_one_factors(release.threshold_kind)
  events = []
  if release.threshold_noise_multiplier is not None:
    z = float(release.threshold_noise_multiplier / threshold_factor)
    events.append(dp_accounting.GaussianDpEvent(z))
  if release.update_noise_multiplier is not None:
    z = float(release.update_noise_multiplier / update_factor)
    events.append(dp_accounting.GaussianDpEvent(z))
  return events


def round_event(release: Release) -> dp_accounting.DpEvent:
  """What one round releases: a sample of clients, and on it all releases jointly.

  Args:
    release: What a round releases.

  Returns:
    An event for an accountant of the neighbouring relation that goes with the sampling: REPLACE_ONE
    with "fixed_size", ADD_OR_REMOVE_ONE otherwise.
  """
  event = dp_accounting.ComposedDpEvent(_gaussians(release))
  if release.sampling == POISSON:
    return dp_accounting.PoissonSampledDpEvent(float(release.sampling_probability), event)
  if release.sampling == FIXED_SIZE:
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
  num_rounds = _whole("num_rounds", num_rounds, 0)
  if num_rounds == 0:
    return dp_accounting.NoOpDpEvent()
  return dp_accounting.SelfComposedDpEvent(round_event(release), num_rounds)


class _RdpAccountant(rdp.RdpAccountant):
  """An RdpAccountant for divergences so close to 0 that rounding makes them negative."""

  @property
  def rdp(self) -> np.ndarray:
    return np.maximum(super().rdp, 0.0)

  def get_epsilon(self, target_delta: float) -> float:
    return rdp.compute_epsilon(self.orders, self.rdp, target_delta)[0]


def _rdp_accountant(sampling: str, coarse: bool = False) -> _RdpAccountant:
  orders: Optional[tuple[float, ...]]
  if sampling == FIXED_SIZE:
    orders = _FIXED_SIZE_COARSE_ORDERS if coarse else _FIXED_SIZE_ORDERS
    return _RdpAccountant(orders, dp_accounting.NeighboringRelation.REPLACE_ONE)
  orders = _COARSE_ORDERS if coarse else None  # None for dp_accounting's own.
  return _RdpAccountant(orders, dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)


def _merged_event(release: Release, num_rounds: int) -> dp_accounting.DpEvent:
  """`run_event` for PLDAccountant, which takes a single mechanism below a sampling event.

  Gaussians on the same cohort are one Gaussian.

  Args:
    release: What each round releases.
    num_rounds: T, at least 1.

  Returns:
    The event.
  """
  event = dp_accounting.GaussianDpEvent(float(release.effective_noise_multiplier))
  if release.sampling == POISSON and release.sampling_probability < 1.0:
    event = dp_accounting.PoissonSampledDpEvent(float(release.sampling_probability), event)
  return dp_accounting.SelfComposedDpEvent(event, num_rounds)


def _pld_accountant() -> pld.PLDAccountant:
  return pld.PLDAccountant(value_discretization_interval=_PLD_INTERVAL)


@functools.lru_cache(maxsize=128)
def _round_curve(release: Release) -> tuple[np.ndarray, np.ndarray]:
  """Orders and Renyi divergences of one round. Of an `_as_gaussian`."""
  accountant = _rdp_accountant(release.sampling).compose(round_event(release))
  return accountant.orders, accountant.rdp


@functools.lru_cache(maxsize=128)
def _run_losses(release: Release, num_rounds: int) -> pld.PLDAccountant:
  """The privacy losses of some rounds. Of an `_as_gaussian`."""
  return _pld_accountant().compose(_merged_event(release, num_rounds))


def _outside(population: int, q: float, min_clients: int, max_clients: int) -> tuple[float, float]:
  """The chances, for one round, that a Poisson cohort is too small or too large.

  They are about the cohort without a given client: where it has min_clients - 1 or max_clients
  members, that client decides whether there is a result. This bounds the chances of the cohort with
  that client too.

  Args:
    population: n.
    q: The sampling probability.
    min_clients: The fewest clients that give a result.
    max_clients: The most.

  Returns:
    The chances of fewer and of more.
  """
  if q >= 1.0:  # No client decides anything.
    return float(population < min_clients), float(population > max_clients)
  others = stats.binom(population - 1, q)
  too_large = 0.0 if max_clients >= population else float(others.sf(max_clients - 1))
  return float(others.cdf(min_clients - 1)), too_large


@functools.lru_cache(maxsize=128)
def _round_abort_probability(release: Release) -> float:
  limits = release.cohort_limits
  if limits is None or release.sampling != POISSON:
    return 0.0
  return sum(_outside(release.population, release.sampling_probability, *limits))


def abort_probability(release: Release, num_rounds: int) -> float:
  """A bound on the chance that some round's cohort is outside the limits of the histogram.

  Whether a round aborts depends on the cohort's size alone, not on anybody's data. Only where one
  client decides it, does it tell whether that client took part; the chance of that counts as a part
  of delta.

  Args:
    release: What each round releases.
    num_rounds: T.

  Returns:
    A number in [0, 1]; 0 without a tree or with cohorts of a size that is not secret.
  """
  return min(1.0, _whole("num_rounds", num_rounds, 0) * _round_abort_probability(release))


def _round_slack(release: Release) -> float:
  """The log of the ratio between a round's law and one with a sampled Gaussian's noise.

  tau for each number that differs between neighbours: L of the histogram's, all of an update's.
  That it is a discrete Gaussian that is sampled, not a continuous one, changes sums over its law by
  a factor of 1 +- 2 exp(-2 pi^2 s^2), which is 1 in double precision for the s >= 1.5 here.

  What is not in it: a client who is sampled adds its share of noise, so that the law with its data
  removed is not quite the law without it, which amplification by sampling takes it for. With k_min
  clients that is worth 3 to 6 % of a round's divergence at the orders that count. But noise is
  accounted for as that of k_min clients, and a cohort of the expected size makes sqrt(m / k_min)
  times as much, so that averaged over cohorts the divergence is less than half of what is accounted
  for (both computed for 126 nodes, m = 100, k_min = 45, z_q = 3).

  Args:
    release: What a round releases.

  Returns:
    A number that isn't negative; 0 where the server makes the noise.
  """
  slack = 0.0
  # The more shares are summed, the larger the bound, so that the largest cohort counts.
  tree, update_sum = release.tree, release.update_sum
  if tree is not None:
    tau = tree_mechanism.discreteness_slack(tree.local_stddev, tree.max_clients)
    slack += tau * tree.num_levels
  if update_sum is not None:
    tau = tree_mechanism.discreteness_slack(update_sum.local_stddev, update_sum.max_clients)
    slack += tau * update_sum.num_entries
  return slack


def _as_gaussian(release: Release) -> Release:
  """The release as if its noise were Gaussian, made by the server."""
  return dataclasses.replace(release, tree=None, update_sum=None)


@dataclasses.dataclass(frozen=True)
class Spent:
  """What some rounds cost.

  Attributes:
    epsilon: Of (epsilon, delta)-differential privacy.
    delta: The whole of delta, with what is set aside for rounds that abort.
    num_rounds: How many rounds.
    accountant: "rdp" or "pld".
    rdp_order: The order that gives the least epsilon; None for PLD and for no rounds.
    abort_probability: The share of delta for rounds that abort.
  """

  epsilon: float
  delta: float
  num_rounds: int
  accountant: str
  rdp_order: Optional[float] = None
  abort_probability: float = 0.0


def _spent(
  release: Release,
  num_rounds: int,
  delta: float,
  accountant: str,
  round_slack: float,
  round_abort_probability: float,
) -> Spent:
  """Accounts for some rounds of an `_as_gaussian`; what that leaves out is given apart."""
  if num_rounds == 0:
    return Spent(0.0, delta, 0, accountant)
  aborts = num_rounds * round_abort_probability
  if aborts >= delta:
    raise ValueError(
      f"Found limits of the cohort's size that a round exceeds with probability"
      f" {round_abort_probability:.2g}; expected less than delta = {delta:g} in {num_rounds}"
      " rounds. Take the limits from privacy.accounting.cohort_bounds."
    )
  slack = num_rounds * round_slack
  if accountant == PLD:
    # With densities within a factor of e^slack, (eps, delta) becomes (eps + 2 slack, e^slack delta)
    # on the way there and back.
    losses = _run_losses(release, num_rounds)
    found = losses.get_epsilon((delta - aborts) * math.exp(-slack)) + 2.0 * slack
    return Spent(float(found), delta, num_rounds, accountant, None, aborts)
  orders, curve = _round_curve(release)
  # D(P' || Q') <= D(P || Q) + slack (2 alpha - 1) / (alpha - 1), likewise.
  curve = num_rounds * curve + slack * (2.0 * orders - 1.0) / (orders - 1.0)
  found, order = rdp.compute_epsilon(orders, curve, delta - aborts)
  return Spent(float(found), delta, num_rounds, accountant, float(order), aborts)


def _check_accountant(accountant: str, sampling: str) -> None:
  _one_of("accountant", accountant, ACCOUNTANTS)
  if accountant == PLD and sampling == FIXED_SIZE:
    raise ValueError(
      "Found accountant = 'pld' with fixed_size sampling; expected 'rdp', the only one that knows"
      " sampling without replacement."
    )


class Meter:
  """What a run has cost after so many rounds; quick, as a round is accounted for only once.

  Attributes:
    release: What each round releases.
    delta: Of (epsilon, delta)-differential privacy.
    accountant: "rdp" or "pld".
  """

  def __init__(self, release: Release, delta: float, accountant: str = RDP):
    """Initializes the meter.

    Args:
      release: What each round releases.
      delta: Of (epsilon, delta)-differential privacy.
      accountant: "rdp", or the tighter "pld", for which each number of rounds costs a moment.

    Raises:
      ValueError: If a number is out of its range, or the accountant doesn't know the sampling.
    """
    _check_accountant(accountant, release.sampling)
    self.release = release
    self.delta = check_delta(delta)
    self.accountant = accountant
    self._as_gaussian = _as_gaussian(release)

  def spent(self, num_rounds: int) -> Spent:
    """What `num_rounds` rounds cost against whoever sees all that they release.

    Args:
      num_rounds: How many rounds; 0 costs nothing.

    Returns:
      The cost.

    Raises:
      ValueError: If it is negative, or cohorts are outside the histogram's limits too often.
    """
    return _spent(
      self._as_gaussian,
      _whole("num_rounds", num_rounds, 0),
      self.delta,
      self.accountant,
      _round_slack(self.release),
      _round_abort_probability(self.release),
    )

  def epsilon(self, num_rounds: int) -> float:
    """The epsilon of `spent`."""
    return self.spent(num_rounds).epsilon


def epsilon(release: Release, num_rounds: int, delta: float, accountant: str = RDP) -> Spent:
  """What a run costs against whoever sees all that it releases: all models and all thresholds.

  Args:
    release: What each round releases.
    num_rounds: T; 0 costs nothing.
    delta: Of (epsilon, delta)-differential privacy.
    accountant: "rdp" or "pld".

  Returns:
    The cost, under `release.neighboring_relation`.

  Raises:
    ValueError: If a number is out of its range, the accountant doesn't know the sampling, or
      cohorts are outside the histogram's limits too often.
  """
  return Meter(release, delta, accountant).spent(num_rounds)


def quick_pld_epsilon(release: Release, num_rounds: int, delta: float) -> Optional[float]:
  """What a run costs by PLD, to stand beside RDP, if that takes a moment only.

  Args:
    release: What each round releases.
    num_rounds: T.
    delta: Of (epsilon, delta)-differential privacy.

  Returns:
    The epsilon; None for fixed cohorts, which PLD does not know, and where epsilon is large.
  """
  if release.sampling == FIXED_SIZE:
    return None
  large = epsilon(release, num_rounds, delta).epsilon > 60.0
  if large or release.effective_noise_multiplier < 0.3 or num_rounds > 100_000:
    return None
  return epsilon(release, num_rounds, delta, PLD).epsilon


@dataclasses.dataclass(frozen=True)
class ServerSpent:
  """What a run costs a client against the server that aggregates.

  Attributes:
    epsilon: Of (epsilon, delta)-differential privacy; None where the server sees what no noise
      protects.
    delta: Of (epsilon, delta)-differential privacy.
    participations: The number of rounds for which it holds, of those in which a client takes part.
    explanation: What the number is about, or why there is none.
  """

  epsilon: Optional[float]
  delta: float
  participations: int
  explanation: str


def likely_participations(release: Release, num_rounds: int) -> int:
  """How many rounds a client takes part in, but for one client in a thousand.

  Args:
    release: What each round releases.
    num_rounds: T.

  Returns:
    The 0.999 quantile of Binomial(T, q), which is T without sampling.
  """
  num_rounds = _whole("num_rounds", num_rounds, 0)
  return int(stats.binom.ppf(0.999, num_rounds, release.sampling_probability)) if num_rounds else 0


@functools.lru_cache(maxsize=512)
def server_epsilon(
  release: Release, num_rounds: int, delta: float, participations: Optional[int] = None
) -> ServerSpent:
  """What a run costs a client against the server, who knows every cohort: nothing is amplified.

  The server of a secure sum sees the noisy histogram of each cohort. Unless clients make the noise
  of the updates too, it is trusted with these, so that this is about the threshold alone.

  Args:
    release: What each round releases.
    num_rounds: T.
    delta: Of (epsilon, delta)-differential privacy.
    participations: In how many of the rounds the client takes part; None for
      `likely_participations`.

  Returns:
    The cost for such a client, or why there is none to speak of.

  Raises:
    ValueError: If a number is out of its range, or there are more participations than rounds.
  """
  delta = check_delta(delta)
  num_rounds = _whole("num_rounds", num_rounds, 0)
  if participations is None:
    participations = likely_participations(release, num_rounds)
    who = (
      f"A client who takes part in {participations} of the {num_rounds} rounds; one in a thousand"
      " takes part in more."
    )
    if participations == num_rounds:
      who = f"A client who takes part in all of the {num_rounds} rounds."
  else:
    participations = _whole("participations", participations, 0)
    if participations > num_rounds:
      raise ValueError(
        f"Found participations = {participations} in num_rounds = {num_rounds}; expected at most"
        " one a round."
      )
    who = f"A client who takes part in {participations} of the {num_rounds} rounds."
  sees_updates = release.update_noise_multiplier is not None and release.update_sum is None
  sees_bits = release.threshold_noise_multiplier is not None and release.threshold_kind == GEOMETRIC
  if sees_bits or release.threshold_noise_multiplier is None and sees_updates:
    seen = [name for name, sees in (("counts", sees_bits), ("updates", sees_updates)) if sees]
    return ServerSpent(
      None,
      delta,
      participations,
      f"The server adds the noise to the sums of {' and '.join(seen)} itself and sees them without"
      " it: it is trusted.",
    )
  if participations == 0:
    return ServerSpent(0.0, delta, 0, who)
  # In a cohort that is known, what sampling leaves of the neighbouring relation are its factors.
  factors = replace_one_factors(TREE) if release.sampling == FIXED_SIZE else (1.0, 1.0)
  z_q, z_w = release.threshold_noise_multiplier, release.update_noise_multiplier
  known = Release(
    release.population,
    release.clients_per_round,
    None if z_q is None else z_q / factors[0],
    None if z_w is None or sees_updates else z_w / factors[1],
    NO_SAMPLING,
  )
  # Without sampling the PLD is that of one Gaussian, exact and quick unless the loss is absurd.
  total = known.effective_noise_multiplier / math.sqrt(participations)
  accountant = PLD if total > 0.05 else RDP
  # That a round aborts is no news to a server who knows the cohorts; it is trusted to discard the
  # sum of too few reports.
  found = _spent(known, participations, delta, accountant, _round_slack(release), 0.0)
  trusted = (
    "is trusted with the updates, to whose sum it adds the noise"
    if sees_updates
    else "sees noisy sums only"
  )
  return ServerSpent(
    found.epsilon,
    delta,
    participations,
    f"{who} The server, who knows every cohort but follows the protocol of the secure sums,"
    f" {trusted}.",
  )


@functools.lru_cache(maxsize=128)
def cohort_bounds(
  population: int,
  clients_per_round: float,
  num_rounds: int,
  delta: float,
  sampling: str = POISSON,
) -> tuple[int, int]:
  """The limits of a cohort's size that hardly ever leave a round without a result.

  Clients make the histogram's noise, each its share: fewer than k_min are too little noise, more
  than n_max could wrap around. Such rounds abort, for all to see. The chance that any of the T
  rounds does, seen by a client who decides it (see `abort_probability`), is at most a thousandth of
  delta, half of it on each side.

  Args:
    population: n.
    clients_per_round: m, the expected size.
    num_rounds: T.
    delta: Of (epsilon, delta)-differential privacy.
    sampling: As in `Release`; without Poisson sampling a cohort always has m clients.

  Returns:
    (min_clients, max_clients).

  Raises:
    ValueError: If a number is out of its range, or cohorts without any client are too likely.
  """
  release = Release(population, clients_per_round, None, 1.0, sampling)
  num_rounds = _whole("num_rounds", num_rounds, 1)
  delta = check_delta(delta)
  if sampling != POISSON:
    size = max(1, int(release.clients_per_round))
    return size, size
  population, q = release.population, release.sampling_probability
  if q >= 1.0:
    return population, population
  allowed = 0.5 * ABORT_SHARE * delta / num_rounds
  others = stats.binom(population - 1, q)
  # The quantile function is the first guess; what counts is the chance itself.
  min_clients = int(others.ppf(allowed)) + 1
  while min_clients > 0 and _outside(population, q, min_clients, population)[0] > allowed:
    min_clients -= 1
  max_clients = max(int(others.isf(allowed)), 1)
  while _outside(population, q, 1, max_clients)[1] > allowed:
    max_clients += 1
  if min_clients < 1:
    raise ValueError(
      f"Found cohorts of {release.clients_per_round:g} clients on average, empty with probability"
      f" {float(others.cdf(0)):.2g}; expected at most {allowed:.2g} where the clients make the"
      " noise. Take larger cohorts, fewer rounds, or the geometric threshold, whose noise the"
      " server makes."
    )
  return min_clients, max_clients


def split_noise(
  effective_noise_multiplier: float, rho_ratio: Optional[float]
) -> tuple[Optional[float], float]:
  """Divides a round's budget between threshold and weights.

  Args:
    effective_noise_multiplier: z_eff of both together.
    rho_ratio: r, what the threshold costs over what the weights cost, in rho = 1 / (2 z^2). None or
      0 for weights alone.

  Returns:
    (z_q, z_w), where z_q is None without a threshold: z sqrt((1 + r) / r) and z sqrt(1 + r).

  Raises:
    ValueError: If a number is out of its range.
  """
  z = _positive("effective_noise_multiplier", effective_noise_multiplier)
  ratio = 0.0 if rho_ratio is None else _number("rho_ratio", rho_ratio)
  if ratio < 0:
    raise ValueError(f"Found rho_ratio = {ratio:g}; expected 0 or a positive number.")
  if ratio == 0:
    return None, z
  return z * math.sqrt((1.0 + ratio) / ratio), z * math.sqrt(1.0 + ratio)


def tree_for(
  release: Release, num_bins: int, num_rounds: int, delta: float, scale: Optional[int] = None
) -> tree_mechanism.TreeMechanism:
  """The histogram that delivers a release's threshold noise.

  Args:
    release: What each round releases, with a tree threshold.
    num_bins: b, a power of two.
    num_rounds: T, for how often a cohort may be outside the limits.
    delta: Likewise.
    scale: c; None for the smallest that will do.

  Returns:
    Its parameters, with the limits of `cohort_bounds`.

  Raises:
    ValueError: If a number is out of its range.
  """
  if release.threshold_noise_multiplier is None or release.threshold_kind != TREE:
    raise ValueError("Found num_bins without a tree threshold; expected a threshold with a budget.")
  min_clients, max_clients = cohort_bounds(
    release.population, release.clients_per_round, num_rounds, delta, release.sampling
  )
  expected = min(max(round(release.clients_per_round), min_clients), max_clients)
  return tree_mechanism.build_tree_mechanism(
    release.threshold_noise_multiplier,
    num_bins,
    expected,
    min_clients=min_clients,
    max_clients=max_clients,
    scale=scale,
  )


def calibrate(
  epsilon: float,
  delta: float,
  *,
  population: int,
  clients_per_round: float,
  num_rounds: int,
  rho_ratio: Optional[float],
  sampling: str = POISSON,
  accountant: str = RDP,
  threshold_kind: str = TREE,
  num_bins: Optional[int] = None,
  distributed_updates: bool = False,
) -> Release:
  """The least noise with which a run stays within a privacy budget.

  Where clients make noise, the answer leaves room for what `Release.tree` and `Release.update_sum`
  add to the cost (discrete noise, rounds that abort): it holds with `tree_for`'s tree too.

  Args:
    epsilon: The budget.
    delta: The budget's delta.
    population: n.
    clients_per_round: m, the expected size of a cohort.
    num_rounds: T, at least 1.
    rho_ratio: r, what the threshold costs over what the weights cost; None or 0 for no threshold
      (DP-FedAvg).
    sampling: As in `Release`.
    accountant: "rdp" or "pld".
    threshold_kind: As in `Release`.
    num_bins: If given, the release comes with the tree of so many bins.
    distributed_updates: Whether clients make the noise of the updates.

  Returns:
    The release. Its cost is checked against the budget.

  Raises:
    ValueError: If a number is out of its range, or no noise in reach gives that epsilon.
  """
  epsilon = _positive("epsilon", epsilon)
  delta = check_delta(delta)
  num_rounds = _whole("num_rounds", num_rounds, 1)
  _one_of("sampling", sampling, SAMPLINGS)
  _check_accountant(accountant, sampling)

  def release_of(z: float) -> Release:
    threshold, update = split_noise(z, rho_ratio)
    return Release(
      population, clients_per_round, threshold, update, sampling, threshold_kind=threshold_kind
    )

  with_tree = threshold_kind == TREE and release_of(1.0).threshold_noise_multiplier is not None
  if num_bins is not None:
    if not with_tree:
      raise ValueError(
        "Found num_bins without a tree threshold; expected a positive rho_ratio and the tree."
      )
    levels = tree_mechanism.check_num_bins(num_bins).bit_length() - 1
    # Whether limits exist is known before the search.
    cohort_bounds(population, clients_per_round, num_rounds, delta, sampling)
  else:
    levels = _DEFAULT_LEVELS
  round_slack, round_aborts = 0.0, 0.0
  if with_tree:
    round_slack = levels * tree_mechanism.discreteness_slack(
      tree_mechanism.MIN_LOCAL_STDDEV, release_of(1.0).population
    )
  # An update's noise is spread over so many steps that being discrete costs it next to nothing.
  if (with_tree or distributed_updates) and sampling == POISSON:
    round_aborts = ABORT_SHARE * delta / num_rounds

  def cost(release: Release) -> float:
    return _spent(release, num_rounds, delta, accountant, round_slack, round_aborts).epsilon

  # The order that counts, and with it the slack's weight, is not known before. The first guess is
  # right for an order of 1.4 or more, the second for the lowest.
  release: Optional[Release] = None
  for slack_weight in (4.5, 12.0) if round_slack else (2.0,):
    budget = epsilon - slack_weight * num_rounds * round_slack
    if budget > 0 and (release is None or cost(release) > epsilon):
      budget_delta = delta - num_rounds * round_aborts
      if accountant == PLD:
        budget_delta *= math.exp(-num_rounds * round_slack)
      release = release_of(_search(release_of, num_rounds, budget, budget_delta, accountant))
  # From the split, as it will be used, and with all that was left room for.
  if release is None or cost(release) > epsilon:
    raise ValueError(
      f"Found epsilon = {epsilon:g}, which no noise reaches: the noise being discrete may cost as"
      f" much over {num_rounds} rounds; expected a larger one."
    )
  if num_bins is None:
    return release
  release = dataclasses.replace(release, tree=tree_for(release, num_bins, num_rounds, delta))
  assert Meter(release, delta, accountant).epsilon(num_rounds) <= epsilon
  return release


def _search(
  release_of: Callable[[float], Release],
  num_rounds: int,
  epsilon: float,
  delta: float,
  accountant: str,
) -> float:
  """The least effective noise multiplier with which a run stays within a budget.

  Args:
    release_of: From the multiplier to what each round releases.
    num_rounds: T.
    epsilon: The budget.
    delta: The budget's delta.
    accountant: "rdp" or "pld".

  Returns:
    z_eff, up to a millionth of it.

  Raises:
    ValueError: If no multiplier in reach gives that epsilon.
  """
  sampling = release_of(1.0).sampling

  def coarse_cost(z: float) -> float:
    event = run_event(release_of(z), num_rounds)
    return _rdp_accountant(sampling, coarse=True).compose(event).get_epsilon(delta)

  least, most = coarse_cost(_MOST_NOISE), coarse_cost(_LEAST_NOISE)
  if not least < epsilon < most:
    direction = "no noise reaches" if epsilon <= least else "no noise is little enough for"
    raise ValueError(
      f"Found epsilon = {epsilon:g}, which {direction}: noise multipliers of {_MOST_NOISE:g} and"
      f" {_LEAST_NOISE:g} cost {least:.3g} and {most:.3g}; expected an epsilon between these."
    )
  low, high = _LEAST_NOISE, _MOST_NOISE
  while high > 1.02 * low:
    middle = math.sqrt(low * high)
    low, high = (middle, high) if coarse_cost(middle) > epsilon else (low, middle)

  def fresh_accountant() -> dp_accounting.PrivacyAccountant:
    return _rdp_accountant(sampling) if accountant == RDP else _pld_accountant()

  def event_of(log_z: float) -> dp_accounting.DpEvent:
    release = release_of(math.exp(log_z))
    return (run_event if accountant == RDP else _merged_event)(release, num_rounds)

  # More orders, or the PLD, ask for less noise than the few orders did, but not for much less.
  for share in (0.9, 0.7, 0.4):
    try:
      # In the logarithm, in which the cost is close to a power law.
      log_z = dp_accounting.calibrate_dp_mechanism(
        fresh_accountant,
        event_of,
        epsilon,
        delta,
        dp_accounting.ExplicitBracketInterval(math.log(share * low), math.log(1.02 * high)),
      )
      return math.exp(log_z)
    except (ValueError, dp_accounting.mechanism_calibration.NoOptimumFoundError):
      continue
  raise ValueError(
    f"Found epsilon = {epsilon:g}, for which the search for a noise multiplier between"
    f" {share * low:.3g} and {1.02 * high:.3g} failed; expected one that accounting by"
    f" {accountant!r} is precise enough for."
  )
