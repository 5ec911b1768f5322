"""The methods of runs. `METHODS` is the only place that knows a method's parameters.

A row makes the value of `--algorithm`, the flags of the method's parameters, the folder and the
title of its runs, its place in tables, the checks of its flags, and its learning process.
Importing this starts no TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
import dataclasses
import math
from typing import Any

import tff_superquantile

tsq: Any = tff_superquantile  # Its names are loaded on first use.
Config = Any  # A `RunConfig`, whose fields are made from the parameters here.


@dataclasses.dataclass(frozen=True)
class Parameter:
  """A parameter of a method: a field of `RunConfig`, and a flag.

  Attributes:
    name: The name of the field and of the flag.
    help: Its text in `--help`.
    short: Its name in the names of folders; empty for a parameter that they leave out.
    symbol: Its name for people.
    kind: Its type.
    default: Its default. A default of None means that the parameter belongs to its methods alone.
    is_required: Whether its methods need a value.
    least: Its least value, if there is one.
  """

  name: str
  help: str
  short: str = ""
  symbol: str = ""
  kind: type = float
  default: float | None = None
  is_required: bool = False
  least: float | None = None


@dataclasses.dataclass(frozen=True)
class Ingredients:
  """The values from which a method builds its learning process.

  Attributes:
    config: The resolved config.
    work: Keywords of every builder: the model, the optimizer, and the work of a client. In a
      private run also the noise of the updates.
    threshold: The threshold for `build_superquantile_fed_avg`; None in a run without.
    histogram: Keywords of `threshold.build_histogram_weighting`; None in a run without a private
      histogram.
    num_clients: The number of training clients.
    seed_fn: Reads a client's seed.
    index_fn: Reads a client's number.
  """

  config: Config
  work: Mapping[str, Any]
  threshold: Any
  histogram: Mapping[str, Any] | None
  num_clients: int
  seed_fn: Callable[[Any], Any]
  index_fn: Callable[[Any], Any]


Builder = Callable[[Ingredients], Any]


@dataclasses.dataclass(frozen=True)
class Method:
  """A row of `METHODS`.

  Attributes:
    title: The method's name for people.
    build: Builds its `tff.learning.templates.LearningProcess`.
    parameters: Its parameters. The first belongs to the method's name; the others follow it.
    build_private: Builds the process of a private run; None for a method that has none.
    weighted_updates: Whether a private round sums updates with weights, and the weights, too, as
      in `privacy.releases.Release`.
    has_threshold: Whether `--threshold` and its flags apply.
    private_threshold: What a private round releases of the losses, a private row of
      `thresholds.THRESHOLDS`; None where it releases nothing of them, or `--threshold` says it.
    num_trained: Returns how many clients of a cohort train, if that is not the whole cohort.
    check: Raises a `ValueError` if a config of this method contradicts itself.
  """

  title: str
  build: Builder
  parameters: tuple[Parameter, ...] = ()
  build_private: Builder | None = None
  weighted_updates: bool = False
  has_threshold: bool = False
  private_threshold: str | None = None
  num_trained: Callable[[Config], int] | None = None
  check: Callable[[Config], None] = lambda config: None


def theta_of(config: Config) -> Any:
  """Returns the tail fraction, or the `AdaptiveTheta` that makes it follow the cohort's size.

  Raises:
    ValueError: If theta is outside (0, 1], or no `AdaptiveTheta` has these numbers.
  """
  if config.wanted_updates is None:
    return tsq.superquantile.check_theta(config.theta)
  return tsq.AdaptiveTheta(config.wanted_updates, config.min_theta, config.max_theta)


def _num_in_tail(config: Config) -> int:
  """Returns the number of clients of the tail: superquantile aggregation trains as many."""
  tail = config.theta * config.clients_per_round * (1 - tsq.superquantile.TAIL_MASS_TOLERANCE)
  return math.ceil(tail)


def _check_fed_avg_sub(config: Config) -> None:
  tsq.superquantile.check_theta(config.theta)
  if config.sampling not in (None, "fixed_size"):
    raise ValueError(
      f"Found --algorithm=fed_avg_sub with --sampling={config.sampling}; it trains a fraction"
      " of cohorts of fixed size."
    )


def _check_tilted_erm(config: Config) -> None:
  if config.is_private and config.moving_average_rate is not None:
    raise ValueError(
      f"Found --moving_average_rate={config.moving_average_rate} in a private run, which divides by"
      " its own estimate of the weights' sum; leave it out."
    )


def _private_weighted(share: Callable[[Config], Any]) -> Builder:
  """Returns the builder of private runs by a share of a client's own loss and constants."""

  def build(run: Ingredients) -> Any:
    weight = run.config.share_weight
    given: dict[str, Any] = {} if weight is None else dict(share_weight=weight)
    return tsq.build_private_weighted_fed_avg(share_fn=share(run.config), **given, **run.work)

  return build


def _private_relative(share: Callable[[Config], Any]) -> Builder:
  """Returns the builder of private runs by a share that is relative to a histogram."""

  def build(run: Ingredients) -> Any:
    if run.histogram is None:  # Its defaults are those of a run without privacy.
      raise ValueError(
        "Found a private run without a private histogram; expected --threshold=tree."
      )
    return tsq.build_private_fed_avg(
      threshold=tsq.threshold.build_histogram_weighting(share(run.config), **run.histogram),
      expected_clients=run.config.clients_per_round,
      **run.work,
    )

  return build


_THETA = Parameter(
  "theta",
  "Tail fraction in (0, 1], for superquantile; 1 averages all clients. For fed_avg_sub: the"
  " fraction of each cohort that trains, drawn at random.",
  short="theta",
  symbol="θ",
  default=0.5,
)

_SHARE_WEIGHT = Parameter(
  "share_weight",
  "k in (0, 1), of private runs of q_fed_avg, tilted_erm and prop_fair: the part of the clip norm"
  " that carries a client's weight, of whose noisy sum the divisor is made; None for 0.3.",
  short="k",
  symbol="k",
)

# The rows are in the order of the paper's tables.
METHODS: dict[str, Method] = {
  "fed_avg": Method(
    "FedAvg",
    lambda run: tsq.build_fed_avg(**run.work),
    build_private=lambda run: tsq.build_private_superquantile_fed_avg(
      theta=1.0, threshold=None, expected_clients=run.config.clients_per_round, **run.work
    ),
  ),
  "fed_avg_sub": Method(
    "FedAvg-Sub",
    lambda run: tsq.build_fed_avg(**run.work),
    (_THETA,),
    num_trained=_num_in_tail,
    check=_check_fed_avg_sub,
  ),
  "fed_prox": Method(
    "FedProx",
    lambda run: tsq.build_fed_prox(proximal_strength=run.config.proximal_weight, **run.work),
    (
      Parameter(
        "proximal_weight",
        "mu of fed_prox: mu / 2 |w - w0|^2 at each client.",
        short="mu",
        symbol="μ",
        is_required=True,
      ),
    ),
  ),
  "q_fed_avg": Method(
    "q-FFL",
    lambda run: tsq.build_q_fed_avg(q=run.config.q, **run.work),
    (
      Parameter(
        "q",
        "Exponent of q_fed_avg (q-FFL); 10 stands for AFL in the paper.",
        short="q",
        symbol="q",
        is_required=True,
      ),
      _SHARE_WEIGHT,
    ),
    build_private=_private_weighted(
      lambda config: tsq.threshold.build_power_share(config.q, config.max_loss)
    ),
    weighted_updates=True,
  ),
  "tilted_erm": Method(
    "Tilted-ERM",
    lambda run: tsq.build_tilted_erm(
      temperature=run.config.temperature,
      moving_average_rate=run.config.moving_average_rate or 0.0,
      **run.work,
    ),
    (
      Parameter(
        "temperature",
        "t of tilted_erm: weights proportional to exp(t loss).",
        short="t",
        symbol="t",
        is_required=True,
      ),
      Parameter(
        "moving_average_rate",
        "tilted_erm normalises by a moving average over rounds, as its authors do; None for"
        " each round by itself, which is stable.",
        short="average",
        symbol="moving average",
      ),
      _SHARE_WEIGHT,
    ),
    build_private=_private_weighted(
      lambda config: tsq.threshold.build_tilted_share(config.temperature, config.max_loss)
    ),
    weighted_updates=True,
    check=_check_tilted_erm,
  ),
  "agnostic_fed_avg": Method(
    "Agnostic FedAvg",
    lambda run: tsq.build_agnostic_fed_avg(
      ascent_rate=run.config.ascent_rate,
      num_clients=run.num_clients,
      index_fn=run.index_fn,
      **run.work,
    ),
    (
      Parameter(
        "ascent_rate",
        "Step size on the client weights of agnostic_fed_avg.",
        short="rate",
        symbol="rate",
        is_required=True,
      ),
    ),
  ),
  "prop_fair": Method(
    "PropFair",
    lambda run: tsq.build_prop_fair(
      utility_bound=run.config.utility_bound, max_loss=run.config.max_loss, **run.work
    ),
    (
      Parameter(
        "utility_bound",
        "M of prop_fair, above --max_loss: a client weighs by 1 / (M - loss).",
        short="M",
        symbol="M",
        is_required=True,
      ),
      _SHARE_WEIGHT,
    ),
    build_private=_private_weighted(
      lambda config: tsq.threshold.build_proportional_share(config.utility_bound, config.max_loss)
    ),
    weighted_updates=True,
  ),
  "semi_vred": Method(
    "Semi-VRed",
    lambda run: tsq.build_semi_vred(beta=run.config.beta, **run.work),
    (
      Parameter(
        "beta",
        "Coefficient of the semi-variance in the objective of semi_vred: a client weighs by"
        " 1 + 2 beta (loss - mean)_+.",
        short="beta",
        symbol="β",
        is_required=True,
      ),
    ),
    build_private=_private_relative(
      lambda config: tsq.threshold.build_semi_variance_share(config.beta)
    ),
    private_threshold="tree",
  ),
  "gifair": Method(
    "GIFAIR",
    lambda run: tsq.build_gifair(fairness_strength=run.config.fairness_strength, **run.work),
    (
      Parameter(
        "fairness_strength",
        "lambda of gifair, from 0 to 1: a client weighs by 1 + lambda (the fraction of clients"
        " with smaller losses - that with larger ones).",
        short="lambda",
        symbol="λ",
        is_required=True,
      ),
    ),
    build_private=_private_relative(
      lambda config: tsq.threshold.build_rank_share(config.fairness_strength)
    ),
    private_threshold="tree",
  ),
  "aaggff": Method(
    "AAggFF-D",
    lambda run: tsq.build_aaggff(
      decision_step=1.0 if run.config.decision_step is None else run.config.decision_step,
      num_clients=run.num_clients,
      index_fn=run.index_fn,
      **run.work,
    ),
    (
      Parameter(
        "decision_step",
        "Factor on the step of aaggff's mixing coefficients; None for 1, its authors' step.",
        short="step",
        symbol="step",
      ),
    ),
  ),
  "superquantile": Method(
    "Superquantile",
    lambda run: tsq.build_superquantile_fed_avg(
      theta=theta_of(run.config), threshold=run.threshold, seed_fn=run.seed_fn, **run.work
    ),
    (
      _THETA,
      Parameter(
        "wanted_updates",
        "For superquantile, in place of --theta: the number of clients that should train in a"
        " round; theta adapts to the cohort's size within --min_theta and --max_theta.",
        short="updates",
        symbol="updates",
        kind=int,
        least=1,
      ),
      Parameter("min_theta", "Least tail fraction of --wanted_updates.", default=0.1),
      Parameter("max_theta", "Largest tail fraction of --wanted_updates.", default=1.0),
    ),
    build_private=lambda run: tsq.build_private_superquantile_fed_avg(
      theta=theta_of(run.config),
      threshold=run.threshold,
      expected_clients=run.config.clients_per_round,
      **run.work,
    ),
    has_threshold=True,
  ),
}


def parameters() -> dict[str, Parameter]:
  """Returns the parameters of all methods by name."""
  return {one.name: one for method in METHODS.values() for one in method.parameters}


def check(config: Config) -> None:
  """Checks that a method has its own parameters, and none of another's.

  Args:
    config: The config that was asked for; None where the task decides.

  Raises:
    ValueError: If a parameter is missing, or belongs to another method.
  """
  algorithm = config.algorithm
  method = METHODS[algorithm]
  for name, parameter in sorted(parameters().items()):
    value = getattr(config, name)
    if parameter in method.parameters:
      if value is None and parameter.is_required:
        raise ValueError(f"Found --algorithm={algorithm} without --{name}; give one.")
    elif value is not None and parameter.default is None:
      owners = [found for found, other in METHODS.items() if parameter in other.parameters]
      raise ValueError(
        f"Found --{name}={value} with --algorithm={algorithm}; it belongs to {', '.join(owners)}."
      )
  method.check(config)
  if not method.has_threshold and not config.is_private:  # `private.resolve` checks the others.
    for name in ("threshold", "smoothing", "threshold_noise_multiplier"):
      if getattr(config, name):
        raise ValueError(
          f"Found --{name}={getattr(config, name)} with --algorithm={algorithm}; it belongs to"
          f" {', '.join(name for name, other in METHODS.items() if other.has_threshold)}."
        )
  private = [name for name, other in METHODS.items() if other.build_private is not None]
  if config.is_private and algorithm not in private:
    raise ValueError(
      f"Found --algorithm={algorithm} in a private run; use one of {', '.join(private)}."
    )
