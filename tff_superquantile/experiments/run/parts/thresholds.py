"""The thresholds of superquantile runs.

A private threshold has a class in `privacy.parts.THRESHOLDS`, too, which says how its release is
accounted for. Importing this starts no TensorFlow.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
import dataclasses
import functools
from typing import Any, ClassVar

from privacy import checks
from privacy.settings import flag
from privacy.settings import part
from privacy.settings import plugins
import tff_superquantile
from tff_superquantile.experiments.run.parts import ingredients

tsq: Any = tff_superquantile  # Its names are loaded on first use.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Threshold(part.Part, abc.ABC):
  """How superquantile weighs the clients by their losses.

  Attributes:
    is_private: Whether its noise hides the losses from the server, or from readers of its releases.
    is_asked: Whether a run names it by --threshold; names of folders leave out what is usual.
  """

  is_private: ClassVar[bool] = False
  is_asked: bool = True

  @property
  def noise_multiplier(self) -> float | None:
    """The noise's standard deviation over the sensitivity; None without noise."""
    return None

  @abc.abstractmethod
  def build(self, run: ingredients.Ingredients) -> Any:
    """Returns the threshold for `build_superquantile_fed_avg`."""

  def check(self) -> None:
    """Raises a `ValueError` if a run without a budget cannot have it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exact(Threshold):
  """The quantile of the cohort's losses."""

  def build(self, run: ingredients.Ingredients) -> Any:
    return "exact"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reweighting(Threshold):
  """The paper's exact reweighting."""

  smoothing: float = flag.field(
    0.0,
    "nu of the entropic smoothing of --threshold=reweighting.",
    short="smoothing",
    symbol="ν",
  )

  def build(self, run: ingredients.Ingredients) -> Any:
    return functools.partial(tsq.threshold.build_exact_reweighting, smoothing=self.smoothing)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Private(Threshold):
  """A threshold with noise. In a run without a budget, it has to be given."""

  is_private: ClassVar[bool] = True
  noise_multiplier: float | None = flag.field(
    None,
    "Noise of a private threshold: its standard deviation over the sensitivity.",
    name="threshold_noise_multiplier",
    short="z",
    symbol="z",
  )

  def check(self) -> None:
    self.noise()

  def noise(self) -> float:
    """Returns the noise multiplier; raises a `ValueError` where none was given."""
    if self.noise_multiplier is None:
      raise ValueError(
        f"Found --threshold={name_of(self)} without --threshold_noise_multiplier; give the noise's"
        " standard deviation over the sensitivity, for example 1.0."
      )
    return self.noise_multiplier


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tree(Private):
  """The quantile of a private histogram of the losses."""

  num_bins: int = flag.field(
    64,
    "Bins of --threshold=tree, a power of two.",
    most=(2**16, "a client sends two numbers a bin"),
    may_idle=True,
  )
  secure_sum: str = flag.field(
    "modular",
    "Secure sum of --threshold=tree: modulo M (modular), or of integers that never wrap (integer).",
    choices=("modular", "integer"),
    may_idle=True,
  )

  def histogram(self, run: ingredients.Ingredients) -> dict[str, Any]:
    """Returns the keywords of all that is built on the private histogram."""
    return dict(
      mechanism=run.tree or self.mechanism(round(run.clients_per_round)),
      max_loss=run.max_loss,
      secure_sum=self.secure_sum,
      noise_key=run.noise_key,
    )

  def mechanism(self, clients_per_round: int) -> Any:
    """Returns the noise of a run without a budget, which has no release.

    Raises:
      ValueError: If there cannot be so many bins, or such noise.
    """
    from privacy.noise import tree_mechanism  # --help needs no accountant.

    return tree_mechanism.build_tree_mechanism(self.noise(), self.num_bins, clients_per_round)

  def build(self, run: ingredients.Ingredients) -> Any:
    return functools.partial(tsq.build_tree_quantile, **self.histogram(run))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Geometric(Private):
  """A quantile that is tracked with one private bit a client, from B."""

  def build(self, run: ingredients.Ingredients) -> Any:
    return functools.partial(
      tsq.build_geometric_quantile,
      noise_multiplier=self.noise_multiplier,
      expected_clients=run.clients_per_round,
      initial_estimate=run.max_loss,
      noise_key=run.noise_key,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrimalDual(Private):
  """A quantile that moves by a step a round; without noise, in a run without a budget."""

  threshold_step: float = flag.field(
    0.01,
    "Step size of --threshold=primal_dual, in units of the loss.",
    may_idle=True,
    before="0.01",
    rule=checks.scale,
  )

  def check(self) -> None:
    pass

  def build(self, run: ingredients.Ingredients) -> Any:
    if self.noise_multiplier is None:
      return functools.partial(tsq.build_primal_dual_quantile, step=self.threshold_step)
    return functools.partial(
      tsq.build_private_primal_dual_quantile,
      noise_multiplier=self.noise_multiplier,
      expected_clients=run.clients_per_round,
      step=self.threshold_step,
      noise_key=run.noise_key,
    )


# By the value of --threshold, which names the folders of its runs, too.
_OWN: dict[str, type[Threshold]] = {
  "exact": Exact,
  "reweighting": Reweighting,
  "tree": Tree,
  "geometric": Geometric,
  "primal_dual": PrimalDual,
}
THRESHOLDS = plugins.Table("threshold", "thresholds", Threshold, _OWN)


def name_of(threshold: Threshold | None) -> str | None:
  """Returns the value of --threshold; None for none."""
  return None if threshold is None else part.key(THRESHOLDS, threshold)


def released_as(threshold: Threshold) -> str | None:
  """Returns which of the project's thresholds one is, or extends; None for another one."""
  return next((name for name, kind in _OWN.items() if isinstance(threshold, kind)), None)


def private() -> tuple[str, ...]:
  """Returns the names of the private thresholds."""
  return tuple(name for name, threshold in THRESHOLDS.items() if threshold.is_private)


def choice(kinds: Mapping[str, type[Threshold]], usual: part.Usual) -> Any:
  """Returns a method's field of a threshold among `kinds`; `usual` names it without --threshold."""
  return part.choice(
    "threshold",
    kinds,
    "How superquantile weighs the clients: exact, by the quantile of the cohort's losses;"
    " reweighting, by the paper's exact reweighting; tree, by the quantile of a private histogram;"
    " geometric, by a quantile tracked with one private bit a client; primal_dual, by one that"
    " moves by --threshold_step a round, in a private run by a bit of each client. None for exact,"
    " or in a private run for geometric.",
    usual=usual,
    values=THRESHOLDS,
  )
