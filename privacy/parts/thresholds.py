"""The parts that release a threshold: a histogram of losses, and one-bit counts."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
import dataclasses
import math
from typing import Any, ClassVar

from privacy import checks
from privacy.noise import tree_mechanism
from privacy.parts import part


@dataclasses.dataclass(frozen=True, kw_only=True)
class Threshold(part.Part):
  """A private threshold's release.

  Attributes:
    kind: Its name, as in --threshold.
  """

  kind: ClassVar[str]
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
  is_recent: ClassVar[bool] = False

  @abc.abstractmethod
  def rank_variance(self, theta: float, coefficients: Sequence[float]) -> float:
    """Returns the variance of the threshold's rank among the clients, over z^2."""

  @classmethod
  def of_entries(cls, found: Mapping[str, Any]) -> part.Part | None:
    checks.one_of("threshold_kind", found["threshold_kind"], tuple(THRESHOLDS))
    kind, z, tree = THRESHOLDS[found["threshold_kind"]], *map(found.get, (cls.flag, "tree"))
    if tree is not None and (z is None or kind is not Histogram):
      raise ValueError("Found a tree without a tree threshold's noise multiplier; expected both.")
    if z is None:
      return None
    return kind(noise_multiplier=z) if tree is None else Histogram.of_mechanism(z, tree)

  def flags(self) -> dict[str, Any]:
    return {**super().flags(), "threshold": self.kind}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Histogram(part.ByClients, Threshold):
  """A hierarchical histogram of losses, whose noise its clients make.

  A client is in L nodes of the tree before it is replaced, and in L others after that.

  Attributes:
    bins: b, a power of two. None for noise that is accounted for as if it were continuous.
    scale: c, the factor of the counts; None for the smallest that will do.
    tree: Its parameters, which follow.
  """

  kind: ClassVar[str] = "tree"
  summed: ClassVar[str] = "histograms"
  made_by: ClassVar[str] = "tree"
  replace_one_factor: ClassVar[float] = math.sqrt(2.0)
  bins: int | None = None
  scale: int | None = None
  tree: tree_mechanism.TreeMechanism | None = None

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.bins is not None:
      object.__setattr__(self, "bins", tree_mechanism.check_num_bins(self.bins))
    if self.bins is None and self.scale is not None:
      raise ValueError("Found scale without bins; expected both or neither.")
    tree = self.tree
    if tree is not None:
      # Its noise counts, not the multiplier it was built with, whose sensitivity may be the
      # paper's. More noise than promised is fine.
      sensitivity = tree.scale * math.sqrt(tree.num_levels)
      part.check_delivered(
        self, tree, sensitivity, "a tree whose noise", "a tree with at least that"
      )

  @classmethod
  def of_mechanism(
    cls, noise_multiplier: float | None, tree: tree_mechanism.TreeMechanism
  ) -> Histogram:
    """Returns the histogram with the parameters of a tree."""
    return cls(noise_multiplier=noise_multiplier, bins=tree.num_bins, tree=tree)

  @property
  def noise_by_server(self) -> bool:
    return False

  @property
  def num_sums(self) -> int:
    return 0 if self.tree is None else self.tree.num_nodes

  def built(self, num_shares: int, expected: float) -> tree_mechanism.TreeMechanism | None:
    if self.bins is None:
      return None
    return tree_mechanism.build_tree_mechanism(
      self.z,
      self.bins,
      min(max(round(expected), 1), num_shares),
      num_shares=num_shares,
      scale=self.scale,
    )

  def derived(self, num_shares: int, expected: float, clip_norm: float | None) -> Any:
    assert self.tree is not None  # It is asked of parts with a mechanism.
    again = Histogram(noise_multiplier=self.z, bins=self.bins, scale=self.tree.scale)
    return again.built(num_shares, expected)

  def rank_variance(self, theta: float, coefficients: Sequence[float]) -> float:
    """Returns v L, with v the variance of the estimated count of the bins below the threshold."""
    del coefficients  # Its noise is independent between rounds.
    num_bins = self.bins or 64
    below = min(max(round((1.0 - theta) * num_bins), 1), num_bins - 1)
    variances = tree_mechanism.cumulative_variances(num_bins)
    return (num_bins.bit_length() - 1) * float(variances[below - 1])

  def words(self) -> str:
    maker = "" if self.tree is None else f" (made by the clients, {self.tree.num_bins} bins)"
    return f"a histogram of losses with noise multiplier {self.z:.4g}{maker}"

  def flags(self) -> dict[str, Any]:
    return {**super().flags(), "num_bins": self.bins}

  def columns(self, given: frozenset[str]) -> tuple[frozenset[str], frozenset[str]]:
    always = frozenset({"estimated_cohort_size", "aborted"})
    if "estimated_share_sum" in given:  # Of shares relative to the histogram.
      return always | {"estimated_share_sum"}, frozenset()
    # theta may adapt to the histogram.
    return always | {"threshold", "estimated_tail_size"}, frozenset({"theta"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class OneBit(Threshold):
  """A one-bit count of losses, by which a threshold is tracked. A bit of +-1/2 changes its sign.

  Attributes:
    gain: That of a step: the change of the threshold's rank by that of the fraction of clients
      below it. It is the step size times a typical density. The tracker averages over rounds: a
      step leaves g / (2 - g) of the variance z^2 / 4.
    released: The release, in words.
  """

  gain: ClassVar[float]
  released: ClassVar[str] = "a one-bit count of losses"

  def rank_variance(self, theta: float, coefficients: Sequence[float]) -> float:
    from privacy.noise import banded  # It loads half of SciPy, which --help needs not.

    del theta
    return banded.tracking_variance(coefficients, self.gain) / 4.0

  def words(self) -> str:
    return f"{self.released} with noise multiplier {self.z:.4g}"

  def columns(self, given: frozenset[str]) -> tuple[frozenset[str], frozenset[str]]:
    return frozenset({"threshold", "estimated_tail_size"}), frozenset()


class Geometric(OneBit):
  """The count of `build_geometric_quantile`: 0.2 times the density of the losses' logarithm."""

  kind: ClassVar[str] = "geometric"
  gain: ClassVar[float] = 0.12


class PrimalDual(OneBit):
  """The count of primal-dual steps: 0.01 / theta, at theta = 0.25, times the losses' density."""

  kind: ClassVar[str] = "primal_dual"
  gain: ClassVar[float] = 0.02


# The private thresholds by --threshold; the library and `tff_superquantile.experiments.run.parts`
# build them.
THRESHOLDS: dict[str, type[Threshold]] = {
  kind.kind: kind for kind in (Histogram, Geometric, PrimalDual)
}
