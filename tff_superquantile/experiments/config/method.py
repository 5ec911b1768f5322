"""The bases of methods, which need no table: files of others' methods import them from here."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar

from privacy import cohorts
from privacy import parts
from privacy.parts import thresholds as threshold_parts
from privacy.settings import flag
from privacy.settings import part
import tff_superquantile
from tff_superquantile.experiments.config import privacy
from tff_superquantile.experiments.config import thresholds

tsq: Any = tff_superquantile  # Its names are loaded on first use.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method(part.Part, abc.ABC):
  """A method. The first of its parameters belongs to its name; the others follow it.

  Attributes:
    title: The method's name for people; that of its class unless it says another.
    weighted_updates: Whether a private round sums updates with weights, and the weights, too, as
      in `privacy.parts.UpdateSum`.
  """

  title: ClassVar[str]
  weighted_updates: ClassVar[bool] = False

  def __init_subclass__(cls, **kwargs: Any) -> None:
    super().__init_subclass__(**kwargs)
    cls.title = vars(cls).get("title", cls.__name__)

  @property
  def threshold(self) -> parts.Threshold | None:
    """What the server makes of the losses; None where it makes nothing."""
    return None

  @property
  def judges_gaps(self) -> bool:
    """Whether clients are judged by loss gaps, F_i(w) less the loss of their own models."""
    return False

  @abc.abstractmethod
  def build(self, inputs: thresholds.BuildInputs) -> Any:
    """Builds its `tff.learning.templates.LearningProcess`."""

  def num_trained(self, clients_per_round: int) -> int | None:
    """Returns how many clients of a cohort train, if that is not the whole cohort."""
    return None

  def check(self, is_private: bool, cohort: cohorts.Cohort) -> None:
    """Raises a `ValueError` if the method contradicts itself, or the rest of its run."""


class PrivateMethod(Method):
  """A method that has private runs, too. What they release is accounted for by classes of ours.

  So one from outside says how a client weighs, by `OwnLossMethod` or `RelativeMethod`, and inherits
  `RELEASED`.
  """

  RELEASED: ClassVar[tuple[str, ...]] = ("build", "build_private", "threshold", "weighted_updates")

  def build_private(self, inputs: thresholds.BuildInputs) -> Any:
    """Builds the process of a private run; the noise of the updates is in `inputs.work`."""
    return self.build(inputs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnLossMethod(PrivateMethod):
  """A method that weighs a client by a function of its own loss and constants, also privately."""

  RELEASED: ClassVar[tuple[str, ...]] = ("build_private", "threshold", "weighted_updates")
  weighted_updates: ClassVar[bool] = True
  share_weight: float | None = flag.field(
    None,
    "k in (0, 1), of private runs of q_fed_avg, tilted_erm and prop_fair: the part of the clip norm"
    " that carries a client's weight, of whose noisy sum the divisor is made; None for 0.3.",
    short="k",
    symbol="k",
  )

  @abc.abstractmethod
  def share(self, max_loss: float) -> Any:
    """Returns the function from a loss, a float32 [] tensor, to a client's share in [0, 1]."""

  def build(self, inputs: thresholds.BuildInputs) -> Any:
    weighting = tsq.threshold.build_own_loss_weighting(self.share(inputs.max_loss))
    return tsq.build_weighted_fed_avg(weighting=weighting, **inputs.work)

  def check(self, is_private: bool, cohort: cohorts.Cohort) -> None:
    if self.share_weight is not None and not is_private:
      raise ValueError(
        f"Found --share_weight={self.share_weight} in a run that is not private; give --epsilon,"
        " too, or leave it out."
      )

  def build_private(self, inputs: thresholds.BuildInputs) -> Any:
    return OwnLossMethod.build(self, inputs)  # Of methods that are built otherwise in public, too.


@dataclasses.dataclass(frozen=True, kw_only=True)
class RelativeMethod(PrivateMethod):
  """A method that weighs a client relative to the losses, privately to a histogram of them."""

  threshold: parts.Tree | None = threshold_parts.choice(
    {"tree": parts.Tree}, lambda flags: "tree" if privacy.is_private(flags) else None
  )

  @abc.abstractmethod
  def relative_share(self) -> Any:
    """Returns the `tff_superquantile.threshold.RelativeShare`."""

  def build(self, inputs: thresholds.BuildInputs) -> Any:
    if inputs.threshold is None:
      weighting = tsq.threshold.build_relative_weighting(self.relative_share())
    else:
      histogram = thresholds.histogram(inputs)
      weighting = tsq.threshold.build_histogram_weighting(self.relative_share(), **histogram)
    return tsq.build_weighted_fed_avg(weighting=weighting, **inputs.work)

  def check(self, is_private: bool, cohort: cohorts.Cohort) -> None:
    if self.threshold is not None and not is_private:
      raise ValueError(
        "Found --threshold=tree in a run that is not private, whose losses the server sees; leave"
        " it out."
      )
