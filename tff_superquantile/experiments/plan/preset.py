"""A comparison of methods on one task, and the grids on which it tunes them."""

from collections.abc import Mapping, Sequence
import dataclasses
import itertools
from typing import Any

from privacy import parts

TRAIN_LOSS = "train.loss.mean"
VALIDATION_P90 = "validation.error.p90"  # Of another --metric where a run has one.

# What experiments share.
FIVE_SEEDS = (0, 1, 2, 3, 4)
# The synthetic task has validation clients of its own.
SYNTHETIC: Mapping[str, Any] = dict(task="synthetic", validation_fraction=0.0)
FEW_ROUNDS = dict(num_rounds=60, rounds_per_evaluation=20)
FEWER_ROUNDS = dict(num_rounds=20, rounds_per_evaluation=5)


@dataclasses.dataclass(frozen=True)
class Grid:
  """Values of a method's flag, to be tuned on validation clients.

  The default is the value without tuning, None for the flag's own. The grid is searched by
  --tune=methods, which is usual, or by "all" if it takes hours.
  """

  values: tuple[float, ...]
  default: float | None
  tune: str = "methods"


@dataclasses.dataclass(frozen=True)
class SharedGrid:
  """Values of flags that all methods share; all combinations are tried with FedAvg.

  The criterion is the number of a run's metrics.json that is to be small.
  """

  values: Mapping[str, tuple[float, ...]]
  criterion: str


@dataclasses.dataclass(frozen=True)
class Preset:
  """A comparison of methods on one task.

  Attributes:
    task: The task; its defaults are the paper's setting.
    thetas: The tail fractions of superquantile aggregation.
    seeds: One run of each method a seed.
    quick_flags: Flags of a shortened experiment, which has one seed.
    flags: Further flags of all runs.
    data_flags: Those that choose among the clients of real data, which a stand-in has no use for.
    baselines: Flags of the methods besides FedAvg and superquantile; a `Grid` for what is tuned.
    variants: Flags of further kinds of superquantile aggregation.
    shared_grids: The grids that are tuned for all methods together, one after the other.
    validation_fraction: The fraction of training clients held out while tuning; 0 for tasks with
      validation clients of their own.
    evaluation: The module whose `report` makes a page of the finished runs besides the comparison,
      or "" for none.
    epsilons: Privacy budgets, for each of which there are all methods; none for no privacy.
    with_public: Whether there are all methods without privacy, too, if there are budgets.
    describes_data: Whether what was found in the user's data is shown before the runs.
    private_flags: Flags of private runs by the kind of method: FedAvg's, and those of superquantile
      aggregation with each threshold to be compared.
  """

  task: str
  thetas: Sequence[float]
  seeds: Sequence[int]
  quick_flags: Mapping[str, Any]
  flags: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  data_flags: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  baselines: Sequence[Mapping[str, Any]] = ()
  variants: Sequence[Mapping[str, Any]] = ()
  shared_grids: Sequence[SharedGrid] = ()
  validation_fraction: float = 0.5
  evaluation: str = ""
  epsilons: Sequence[float] = ()
  with_public: bool = False
  describes_data: bool = False
  private_flags: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

  @property
  def tried(self) -> list[str]:
    """The flags of which methods with a `run_name` have a value of their own, as its name says."""
    named = (method for method in (*self.baselines, *self.variants) if method.get("run_name"))
    return sorted({flag for method in named for flag in method})

  def methods(
    self, thetas: Sequence[float] | None = None, epsilons: Sequence[float] | None = None
  ) -> list[dict[str, Any]]:
    """Returns the flags that tell the methods apart; a flag that is to be tuned has a `Grid`."""
    thetas = self.thetas if thetas is None else thetas
    listed = [] if self.epsilons and not self.with_public else self._public(thetas)
    for epsilon in self.epsilons if epsilons is None else epsilons:
      listed += self._private(thetas, epsilon)
    return listed

  def _public(self, thetas: Sequence[float]) -> list[dict[str, Any]]:
    """Returns the methods without privacy."""
    tail_methods = [dict(algorithm="superquantile", theta=theta) for theta in thetas]
    variants = [dict(algorithm="superquantile", **flags) for flags in self.variants]
    return [dict(algorithm="fed_avg"), *map(dict, self.baselines), *tail_methods, *variants]

  def _private(self, thetas: Sequence[float], epsilon: float) -> list[dict[str, Any]]:
    """Returns the methods with a budget: those that have flags of their own for it."""
    common = dict(epsilon=epsilon)
    rivals = [dict(algorithm="fed_avg"), *map(dict, self.baselines)]
    listed = [
      {**rival, **common, **self.private_flags[rival["algorithm"]]}
      for rival in rivals
      if rival["algorithm"] in self.private_flags
    ]
    for theta, threshold in itertools.product(thetas, parts.private_kinds()):
      if threshold in self.private_flags:
        own = dict(algorithm="superquantile", theta=theta, threshold=threshold)
        listed.append({**own, **common, **self.private_flags[threshold]})
    return listed
