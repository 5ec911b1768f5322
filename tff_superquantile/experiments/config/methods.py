"""The methods of runs: a class each, whose fields are the method's parameters.

A class and its row of `METHODS` make the value of `--algorithm`, the flags of the method's
parameters, the folder and the title of its runs, its place in tables, the checks of its flags, and
its learning process. Importing this starts no TensorFlow.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import math
from typing import Any, ClassVar

from privacy import cohorts
from privacy import parts
from privacy.parts import thresholds as threshold_parts
from privacy.settings import flag
from privacy.settings import part
from privacy.settings import plugins
import tff_superquantile
from tff_superquantile.experiments.config import privacy
from tff_superquantile.experiments.config import thresholds
from tff_superquantile.experiments.config.method import Method as Method
from tff_superquantile.experiments.config.method import OwnLossMethod as OwnLossMethod
from tff_superquantile.experiments.config.method import PrivateMethod as PrivateMethod
from tff_superquantile.experiments.config.method import RelativeMethod as RelativeMethod

tsq: Any = tff_superquantile  # Its names are loaded on first use.


_THETA = 0.5  # The default of both methods that have a theta.


def tail_fraction(name: str, theta: float) -> None:
  """The rule of theta: raises a `ValueError` unless it is in (0, 1].

  Args:
    name: The flag's name, which is not used.
    theta: The tail fraction.

  Raises:
    TypeError: If theta is no real number.
    ValueError: If theta is outside (0, 1].
  """
  del name
  tsq.superquantile.check_theta(theta)


def _theta() -> Any:
  return flag.field(
    _THETA,
    "Tail fraction in (0, 1], for superquantile; 1 averages all clients. Usual: 0.5, of 0.25 to"
    " 0.8. For fed_avg_sub: the fraction of each cohort that trains, drawn at random.",
    short="theta",
    symbol="θ",
    may_idle=True,
    rule=tail_fraction,
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FedAvg(PrivateMethod):
  """The average of all clients (McMahan et al. 2017)."""

  title: ClassVar[str] = "FedAvg"

  def build(self, inputs: thresholds.BuildInputs) -> Any:
    return tsq.build_fed_avg(**inputs.work)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FedAvgSub(Method):
  """FedAvg on as many clients, drawn at random, as superquantile aggregation trains."""

  title: ClassVar[str] = "FedAvg-Sub"
  theta: float = _theta()

  def build(self, inputs: thresholds.BuildInputs) -> Any:
    return tsq.build_fed_avg(**inputs.work)

  def num_trained(self, clients_per_round: int) -> int | None:
    tail: float = self.theta * clients_per_round * (1 - tsq.superquantile.TAIL_MASS_TOLERANCE)
    return math.ceil(tail)

  def check(self, is_private: bool, cohort: cohorts.Cohort) -> None:
    if cohort.is_explicit and not isinstance(cohort, cohorts.FixedSize):
      raise ValueError(
        f"Found --algorithm=fed_avg_sub with --sampling={cohort.sampling}; it trains a"
        " fraction of cohorts of fixed size."
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FedProx(Method):
  """FedAvg with a proximal term (Li et al. 2020)."""

  title: ClassVar[str] = "FedProx"
  proximal_weight: float = flag.field(
    ...,
    "mu of fed_prox: mu / 2 |w - w0|^2 at each client. Usual: 0.01, of 0.001 to 1.",
    short="mu",
    symbol="μ",
  )

  def build(self, inputs: thresholds.BuildInputs) -> Any:
    return tsq.build_fed_prox(proximal_strength=self.proximal_weight, **inputs.work)


@dataclasses.dataclass(frozen=True, kw_only=True)
class QFedAvg(OwnLossMethod):
  """q-FFL: a client weighs by its loss to the power of q (Li et al. 2020)."""

  title: ClassVar[str] = "q-FFL"
  q: float = flag.field(
    ...,
    "Exponent of q_fed_avg (q-FFL); 10 stands for AFL in the paper. Usual: 0.1, of 0.001 to 1.",
    short="q",
    symbol="q",
  )

  def build(self, inputs: thresholds.BuildInputs) -> Any:
    return tsq.build_q_fed_avg(q=self.q, **inputs.work)

  def share(self, max_loss: float) -> Any:
    return tsq.threshold.build_power_share(self.q, max_loss)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TiltedErm(OwnLossMethod):
  """A client weighs by exp(t loss) (Li et al. 2021)."""

  title: ClassVar[str] = "Tilted-ERM"
  temperature: float = flag.field(
    ...,
    "t of tilted_erm: weights proportional to exp(t loss). Usual: 1, of 0.1 to 10.",
    short="t",
    symbol="t",
  )
  moving_average_rate: float | None = flag.field(
    None,
    "tilted_erm normalises by a moving average over rounds, as its authors do; None for"
    " each round by itself, which is stable.",
    short="average",
    symbol="moving average",
  )

  def build(self, inputs: thresholds.BuildInputs) -> Any:
    return tsq.build_tilted_erm(
      temperature=self.temperature,
      moving_average_rate=self.moving_average_rate or 0.0,
      **inputs.work,
    )

  def share(self, max_loss: float) -> Any:
    return tsq.threshold.build_tilted_share(self.temperature, max_loss)

  def check(self, is_private: bool, cohort: cohorts.Cohort) -> None:
    super().check(is_private, cohort)
    if is_private and self.moving_average_rate is not None:
      raise ValueError(
        f"Found --moving_average_rate={self.moving_average_rate} in a private run, which divides by"
        " its own estimate of the weights' sum; leave it out."
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class AgnosticFedAvg(Method):
  """The worst mixture of clients (Mohri et al. 2019; Ro et al. 2021)."""

  title: ClassVar[str] = "Agnostic FedAvg"
  ascent_rate: float = flag.field(
    ...,
    "Step size on the client weights of agnostic_fed_avg. Usual: 0.1, of 0.01 to 1.",
    short="rate",
    symbol="rate",
  )

  def build(self, inputs: thresholds.BuildInputs) -> Any:
    return tsq.build_agnostic_fed_avg(
      ascent_rate=self.ascent_rate,
      num_clients=inputs.num_clients,
      index_fn=inputs.index_fn,
      **inputs.work,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PropFair(OwnLossMethod):
  """Proportional fairness (Zhang et al. 2022)."""

  title: ClassVar[str] = "PropFair"
  utility_bound: float = flag.field(
    ...,
    "M of prop_fair, above --max_loss: a client weighs by 1 / (M - loss). Usual: 1.4 times"
    " --max_loss, of 1.1 to 2 times; the least leans most towards the worst-off.",
    short="M",
    symbol="M",
  )

  def share(self, max_loss: float) -> Any:
    return tsq.threshold.build_proportional_share(self.utility_bound, max_loss)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SemiVRed(RelativeMethod):
  """The mean and the semi-variance of the losses."""

  title: ClassVar[str] = "Semi-VRed"
  beta: float = flag.field(
    ...,
    "Coefficient of the semi-variance in the objective of semi_vred: a client weighs by"
    " 1 + 2 beta (loss - mean)_+. Usual: 3, of 1 to 10.",
    short="beta",
    symbol="β",
  )

  def relative_share(self) -> Any:
    return tsq.threshold.build_semi_variance_share(self.beta)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gifair(RelativeMethod):
  """A client weighs by the rank of its loss (Yue et al. 2021)."""

  title: ClassVar[str] = "GIFAIR"
  fairness_strength: float = flag.field(
    ...,
    "lambda of gifair, from 0 to 1: a client weighs by 1 + lambda (the fraction of clients"
    " with smaller losses - that with larger ones). Usual: 1, of 0.3 to 1.",
    short="lambda",
    symbol="λ",
  )

  def relative_share(self) -> Any:
    return tsq.threshold.build_rank_share(self.fairness_strength)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Eagle(RelativeMethod):
  """The mean of the losses and the variance of the loss gaps (Erraji et al. 2026)."""

  title: ClassVar[str] = "EAGLE"
  gap_strength: float = flag.field(
    ...,
    "lambda of eagle, the coefficient of the variance of the loss gaps: a client weighs by (1 + 2"
    " lambda (gap - mean))_+, with its gap F_i(w) - F_i* to the loss of its own model. Usual: 3, of"
    " 1 to 10.",
    short="lambda",
    symbol="λ",
  )

  @property
  def judges_gaps(self) -> bool:
    return True

  def relative_share(self) -> Any:
    return tsq.threshold.build_variance_share(self.gap_strength)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Aaggff(Method):
  """Online convex optimization of the clients' weights (Hahn et al. 2024)."""

  title: ClassVar[str] = "AAggFF-D"
  decision_step: float | None = flag.field(
    None,
    "Factor on the step of aaggff's mixing coefficients; None for 1, its authors' step.",
    short="step",
    symbol="step",
  )

  def build(self, inputs: thresholds.BuildInputs) -> Any:
    return tsq.build_aaggff(
      decision_step=1.0 if self.decision_step is None else self.decision_step,
      num_clients=inputs.num_clients,
      index_fn=inputs.index_fn,
      **inputs.work,
    )


def _usual_threshold(flags: Mapping[str, Any]) -> str | None:
  if not privacy.is_private(flags):
    return "exact"
  return "geometric" if (flags.get("theta") or _THETA) < 1.0 else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Superquantile(PrivateMethod):
  """The average of the tail: of the clients whose losses are above the (1 - theta)-quantile."""

  title: ClassVar[str] = "Superquantile"
  theta: float = _theta()
  threshold: parts.Threshold | None = threshold_parts.choice(parts.THRESHOLDS, _usual_threshold)
  tail_by: str | None = flag.field(
    None,
    "Of superquantile: whose clients are the tail, those with the largest losses, or those with the"
    " largest loss gaps to their own models (gap), as in eagle; the model is linear then. None for"
    " loss.",
    choices=("loss", "gap"),
    words={"gap": "by loss gap"},
  )

  @property
  def judges_gaps(self) -> bool:
    return self.tail_by == "gap"

  def build(self, inputs: thresholds.BuildInputs) -> Any:
    work = {**inputs.work, "seed_fn": inputs.seed_fn}
    return tsq.build_superquantile_fed_avg(
      theta=self.theta, threshold=thresholds.build(inputs), **work
    )


# By the value of --algorithm, in the order of the paper's tables.
METHODS = plugins.Registry(
  "algorithm",
  "methods",
  Method,
  {
    "fed_avg": FedAvg,
    "fed_avg_sub": FedAvgSub,
    "fed_prox": FedProx,
    "q_fed_avg": QFedAvg,
    "tilted_erm": TiltedErm,
    "agnostic_fed_avg": AgnosticFedAvg,
    "prop_fair": PropFair,
    "semi_vred": SemiVRed,
    "gifair": Gifair,
    "eagle": Eagle,
    "aaggff": Aaggff,
    "superquantile": Superquantile,
  },
)


def parameters(kind: type[Method]) -> list[flag.Flag]:
  """Returns the parameters of a method that its name tells, in their order.

  Args:
    kind: The method's class.

  Returns:
    Flags, those that are required first.
  """
  named = [parameter for parameter in part.flags_by_field(kind).values() if parameter.short]
  return sorted(named, key=lambda parameter: not parameter.is_required)


def check(method: Method, is_private: bool, cohort: cohorts.Cohort) -> None:
  """Refuses a method whose parameters are missing or contradict each other or its run.

  Args:
    method: The method.
    is_private: Whether the run is private.
    cohort: The run's cohorts.

  Raises:
    ValueError: If the method lacks a parameter, or does not go with the run.
  """
  algorithm = METHODS.name_of(type(method))
  for name, parameter in part.flags_by_field(type(method)).items():
    if parameter.is_required and getattr(method, name) is None:
      raise ValueError(f"Found --algorithm={algorithm} without --{parameter.name}; give one.")
  method.check(is_private, cohort)
  if is_private and not isinstance(method, PrivateMethod):
    private = [name for name, kind in METHODS.items() if issubclass(kind, PrivateMethod)]
    raise ValueError(
      f"Found --algorithm={algorithm} in a private run; use one of {', '.join(private)}."
    )
  # What is released is the word of the project's class from which the method descends.
  ours = (PrivateMethod, OwnLossMethod, RelativeMethod, *map(METHODS.get, METHODS.own))
  bases = (base for base in type(method).__mro__ if base in ours)
  own = next((base for base in bases if issubclass(base, PrivateMethod)), PrivateMethod)
  changed = plugins.changed(type(method), own, own.RELEASED) if is_private else []
  if changed:
    raise ValueError(
      f"Found --algorithm={algorithm} in a private run with {changed[0]} of its own, which nothing"
      " accounts for; expected a method that leaves this to OwnLossMethod or RelativeMethod."
    )
