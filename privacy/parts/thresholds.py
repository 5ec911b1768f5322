"""The thresholds of superquantile runs: a class each, which has its flags and its accounting."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
import dataclasses
import math
from typing import Any, ClassVar

from privacy import checks
from privacy import cohorts
from privacy.noise import tree_mechanism
from privacy.parts import released
from privacy.settings import flag as flag_lib
from privacy.settings import part
from privacy.settings import plugins


@dataclasses.dataclass(frozen=True, kw_only=True)
class Threshold(part.Part):
  """How superquantile weighs the clients by their losses."""

  kind: ClassVar[str]  # Its name: the value of --threshold, in folders of runs and in ledgers.
  # Whether a run names it by --threshold; names of folders leave out what is usual.
  is_explicit: bool = True

  def check(self, cohort: cohorts.Cohort) -> None:
    """Raises a `ValueError` if a run without a budget, with such cohorts, cannot have it."""


class Exact(Threshold):
  """The quantile of the cohort's losses."""

  kind = "exact"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reweighting(Threshold):
  """The paper's exact reweighting."""

  kind: ClassVar[str] = "reweighting"
  smoothing: float = flag_lib.field(
    0.0,
    "nu of the entropic smoothing of --threshold=reweighting.",
    short="smoothing",
    symbol="ν",
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivateThreshold(Threshold, released.ReleasedPart):
  """A threshold with noise, which hides the losses from the server or from readers of releases.

  In a run without a budget its noise has to be given.
  """

  noise_multiplier: float | None = flag_lib.field(
    None,
    "Noise of a private threshold: its standard deviation over the sensitivity.",
    name="threshold_noise_multiplier",
    short="z",
    symbol="z",
  )
  flag: ClassVar[str] = "threshold_noise_multiplier"
  share_flag: ClassVar[str] = "rho_ratio"
  before_training: ClassVar[bool] = True
  seen: ClassVar[str] = "thresholds"
  label: ClassVar[str] = "threshold"
  symbol: ClassVar[str] = "z_q"
  recorded: ClassVar[Mapping[str, tuple[str, Any]]] = {
    "tree": ("mechanism", None),
    "threshold_kind": ("kind", "tree"),
  }
  is_always_said: ClassVar[bool] = True

  def check(self, cohort: cohorts.Cohort) -> None:
    if self.noise_multiplier is None:
      raise ValueError(
        f"Found --threshold={self.kind} without --threshold_noise_multiplier; give the noise's"
        " standard deviation over the sensitivity, for example 1.0."
      )

  @abc.abstractmethod
  def rank_variance(self, theta: float, coefficients: Sequence[float]) -> float:
    """Returns the variance of the threshold's rank among the clients, over z^2."""

  @classmethod
  def of_entries(cls, content: Mapping[str, Any]) -> released.ReleasedPart | None:
    kinds = private_kinds()
    checks.one_of("threshold_kind", content["threshold_kind"], tuple(kinds))
    kind, z, tree = kinds[content["threshold_kind"]], *map(content.get, (cls.flag, "tree"))
    if tree is not None and (z is None or kind is not Tree):
      raise ValueError("Found a tree without a tree threshold's noise multiplier; expected both.")
    if z is None:
      return None
    made = {} if tree is None else dict(num_bins=tree.num_bins, mechanism=tree)
    return kind(noise_multiplier=z, **made)

  def flags(self) -> dict[str, Any]:
    return {**super().flags(), "threshold": self.kind}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tree(PrivateThreshold):
  """A hierarchical histogram of losses, whose noise its clients make.

  A client is in L nodes of the tree before it is replaced, and in L others after that.
  """

  kind: ClassVar[str] = "tree"
  summed: ClassVar[str] = "histograms"
  replace_one_factor: ClassVar[float] = math.sqrt(2.0)
  # b, a power of two. None for noise that is accounted for as if it were continuous; a run then
  # has the flag's default.
  num_bins: int | None = flag_lib.field(
    None,
    "Bins of --threshold=tree, a power of two.",
    flag_default=64,
    most=(2**16, "a client sends two numbers a bin"),
    may_idle=True,
  )
  mechanism: tree_mechanism.TreeMechanism | None = None

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.num_bins is not None:
      object.__setattr__(self, "num_bins", tree_mechanism.check_num_bins(self.num_bins))
    tree = self.mechanism
    if tree is not None:
      # Its noise counts, not the multiplier it was built with, whose sensitivity may be the
      # paper's. More noise than promised is fine.
      sensitivity = tree.scale * math.sqrt(tree.num_levels)
      released.check_delivered(
        self, tree, sensitivity, "a tree whose noise", "a tree with at least that"
      )

  def check(self, cohort: cohorts.Cohort) -> None:
    super().check(cohort)
    if not isinstance(cohort, cohorts.FixedSize):
      raise ValueError(
        f"Found --threshold=tree with --sampling={cohort.sampling} in a run without a"
        " budget; the fewest clients of a round follow from one. Use --sampling=fixed_size."
      )
    self.built(int(cohort.expected), cohort.expected)  # It checks its bins and its noise.

  @property
  def noise_by_server(self) -> bool:
    return False

  def built(self, num_shares: int, expected: float) -> tree_mechanism.TreeMechanism | None:
    if self.num_bins is None:
      return None
    expected_clients = min(max(round(expected), 1), num_shares)
    return tree_mechanism.build_tree_mechanism(
      self.z, self.num_bins, expected_clients, num_shares=num_shares
    )

  def rank_variance(self, theta: float, coefficients: Sequence[float]) -> float:
    """Returns v L, with v the variance of the estimated count of the bins below the threshold."""
    del coefficients  # Its noise is independent between rounds.
    num_bins = self.num_bins or 64
    below = min(max(round((1.0 - theta) * num_bins), 1), num_bins - 1)
    variances = tree_mechanism.cumulative_variances(num_bins)
    return (num_bins.bit_length() - 1) * float(variances[below - 1])

  def words(self, judged: str) -> str:
    maker = "" if self.mechanism is None else f" (made by the clients, {self.num_bins} bins)"
    return f"a histogram of {judged} with noise multiplier {self.z:.4g}{maker}"

  def flags(self) -> dict[str, Any]:
    return {**super().flags(), "num_bins": self.num_bins}

  def columns(self, header: frozenset[str]) -> frozenset[str]:
    always = frozenset({"estimated_cohort_size", "aborted"})
    if "estimated_share_sum" in header:  # Of shares relative to the histogram.
      return always | {"estimated_share_sum"}
    return always | {"threshold", "estimated_tail_size"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class OneBit(PrivateThreshold):
  """A one-bit count of losses, by which a threshold is tracked. A bit of +-1/2 changes its sign."""

  # That of a step: the change of the threshold's rank by that of the fraction of clients below
  # it. It is the step size times a typical density. The tracker averages over rounds: a step
  # leaves g / (2 - g) of the variance z^2 / 4.
  gain: ClassVar[float]

  def rank_variance(self, theta: float, coefficients: Sequence[float]) -> float:
    from privacy.noise import banded  # It loads half of SciPy, which --help needs not.

    del theta
    return banded.tracking_variance(coefficients, self.gain) / 4.0

  def words(self, judged: str) -> str:
    return f"a one-bit count of {judged} with noise multiplier {self.z:.4g}"

  def columns(self, header: frozenset[str]) -> frozenset[str]:
    return frozenset({"threshold", "estimated_tail_size"})


class Geometric(OneBit):
  """A quantile that is tracked with one private bit a client, from B.

  The gain is 0.2 times the density of the losses' logarithm.
  """

  kind = "geometric"
  gain = 0.12


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrimalDual(OneBit):
  """A quantile that moves by a step a round; without noise, in a run without a budget.

  The gain is 0.01 / theta, at theta = 0.25, times the losses' density.
  """

  kind: ClassVar[str] = "primal_dual"
  gain: ClassVar[float] = 0.02
  threshold_step: float = flag_lib.field(
    0.01,
    "Step size of --threshold=primal_dual, in units of the loss.",
    may_idle=True,
    rule=checks.scale,
  )

  def check(self, cohort: cohorts.Cohort) -> None:
    pass


# By the value of --threshold, which names the folders of its runs, too.
_KINDS: tuple[type[Threshold], ...] = (Exact, Reweighting, Tree, Geometric, PrimalDual)
THRESHOLDS = plugins.Registry("threshold", "thresholds", Threshold, {k.kind: k for k in _KINDS})


def is_accounted(kind: type[Threshold]) -> bool:
  """Returns whether a private run may have such a threshold.

  It is one of the project's private ones, or extends one from outside and changes nothing of it but
  how it is built; whether it then releases the same is its author's word.

  Args:
    kind: The threshold's class.

  Returns:
    Whether its cost is accounted for.
  """
  own = next((base for base in kind.__mro__ if base in _KINDS), Exact)
  accounted = (name for name in dir(own) if name[0] != "_" and name != "check")
  return issubclass(own, PrivateThreshold) and not plugins.changed(kind, own, accounted)


def private_kinds() -> dict[str, type[PrivateThreshold]]:
  """Returns the private thresholds by name.

  Returns:
    The classes by the value of --threshold.
  """
  return {name: kind for name, kind in THRESHOLDS.items() if issubclass(kind, PrivateThreshold)}


def choice(kinds: Mapping[str, type[Threshold]], default_kind: part.DefaultKind) -> Any:
  """Returns a method's field of a threshold; `default_kind` names that without --threshold."""
  return part.choice(
    "threshold",
    kinds,
    "How superquantile weighs the clients: exact, by the quantile of the cohort's losses;"
    " reweighting, by the paper's exact reweighting; tree, by the quantile of a private histogram;"
    " geometric, by a quantile tracked with one private bit a client; primal_dual, by one that"
    " moves by --threshold_step a round, in a private run by a bit of each client. None for exact,"
    " or in a private run for geometric.",
    default_kind=default_kind,
    values=THRESHOLDS,
  )
