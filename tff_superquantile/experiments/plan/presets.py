"""The experiments that `run_experiments.sh` knows by name."""

from collections.abc import Mapping, Sequence
import dataclasses
import itertools
from typing import Any, Optional

from tff_superquantile.experiments.run import thresholds

TRAIN_LOSS = "train.loss.mean"
VALIDATION_P90 = "validation.error.p90"


@dataclasses.dataclass(frozen=True)
class Grid:
  """Values of a method's flag, to be tuned on validation clients.

  Attributes:
    values: The values to try.
    default: The value without tuning.
  """

  values: tuple[float, ...]
  default: float


@dataclasses.dataclass(frozen=True)
class SharedGrid:
  """Values of flags that all methods share, tuned with FedAvg.

  Attributes:
    values: The values to try of each flag, in all combinations.
    criterion: The number of a run's metrics.json that is to be small.
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
    quick_flags: Values of flags of a shortened experiment, which has one seed.
    flags: Values of further flags of a run.
    baselines: Flags of the methods besides FedAvg and superquantile aggregation; a `Grid` where a
      flag is to be tuned.
    variants: Flags of further kinds of superquantile aggregation.
    shared_grids: The grids that are tuned for all methods together, one after the other.
    validation_fraction: The fraction of training clients held out while tuning; 0 for tasks with
      validation clients of their own.
    evaluation: The study of the finished runs besides the comparison, or "" for none.
    epsilons: Privacy budgets, for each of which there are all methods; none for no privacy.
    with_public: Whether there are all methods without privacy, too, if there are budgets.
    private_flags: For private runs, flags by the kind of method: those of FedAvg, and of
      superquantile aggregation with each threshold to be compared.
  """

  task: str
  thetas: Sequence[float]
  seeds: Sequence[int]
  quick_flags: Mapping[str, Any]
  flags: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  baselines: Sequence[Mapping[str, Any]] = ()
  variants: Sequence[Mapping[str, Any]] = ()
  shared_grids: Sequence[SharedGrid] = ()
  validation_fraction: float = 0.5
  evaluation: str = ""
  epsilons: Sequence[float] = ()
  with_public: bool = False
  private_flags: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

  def methods(
    self, thetas: Optional[Sequence[float]] = None, epsilons: Optional[Sequence[float]] = None
  ) -> list[dict[str, Any]]:
    """Returns the flags that tell the methods apart: FedAvg, the baselines, each tail fraction.

    Args:
      thetas: Tail fractions; None for the preset's own.
      epsilons: Privacy budgets; None for the preset's own.

    Returns:
      Flags of a run, for each method; a `Grid` for what is to be tuned.
    """
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
      {**one, **common, **self.private_flags[one["algorithm"]]}
      for one in rivals
      if one["algorithm"] in self.private_flags
    ]
    for theta, threshold in itertools.product(thetas, thresholds.private()):
      if threshold in self.private_flags:
        own = dict(algorithm="superquantile", theta=theta, threshold=threshold)
        listed.append({**own, **common, **self.private_flags[threshold]})
    return listed


_FIVE_SEEDS = (0, 1, 2, 3, 4)
_THETAS_OF_THE_PAPER = (0.8, 0.5, 0.1)
# The paper's grids. The paper runs q-FFL with q = 10 for AFL; agnostic FedAvg is the real one.
_BASELINES = (
  *(dict(algorithm="fed_avg_sub", theta=theta) for theta in _THETAS_OF_THE_PAPER),
  dict(algorithm="fed_prox", proximal_weight=Grid((1.0, 0.1, 0.01, 0.001), default=0.01)),
  dict(algorithm="q_fed_avg", q=Grid((0.001, 0.01, 0.1, 1.0), default=0.1)),
  dict(
    algorithm="tilted_erm",
    temperature=Grid((0.1, 0.5, 1.0, 5.0, 10.0, 50.0, 100.0, 200.0), default=1.0),
  ),
  dict(algorithm="q_fed_avg", q=10.0),
  dict(algorithm="agnostic_fed_avg", ascent_rate=Grid((0.01, 0.1, 1.0), default=0.1)),
)
_L2 = SharedGrid({"l2": (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)}, VALIDATION_P90)
_DECAYS = (0.125, 0.25, 0.5, 1.0)

_FEW_ROUNDS = dict(num_rounds=60, rounds_per_evaluation=20)
_FEWER_ROUNDS = dict(num_rounds=20, rounds_per_evaluation=5)


def _of_the_paper(task: str, quick_flags: Mapping[str, Any], *shared_grids: SharedGrid) -> Preset:
  """Returns the paper's comparison of all methods on a task."""
  return Preset(
    task=task,
    thetas=_THETAS_OF_THE_PAPER,
    seeds=_FIVE_SEEDS,
    quick_flags=quick_flags,
    baselines=_BASELINES,
    shared_grids=shared_grids,
  )


PRESETS: Mapping[str, Preset] = {
  "default": Preset(
    task="synthetic",
    thetas=(0.5, 0.25),
    seeds=(0,),
    flags=dict(num_rounds=500, rounds_per_evaluation=25),
    quick_flags=dict(num_rounds=50, rounds_per_evaluation=10),
  ),
  "synthetic": Preset(
    task="synthetic",
    thetas=(0.8, 0.5, 0.25, 0.1),
    seeds=_FIVE_SEEDS,
    quick_flags=dict(num_rounds=100, rounds_per_evaluation=10),
    # A single local step: FedProx is FedAvg, so there is nothing to tune.
    baselines=(
      dict(algorithm="fed_avg_sub", theta=0.5),
      dict(algorithm="fed_prox", proximal_weight=0.1),
      *(flags for flags in _BASELINES if flags["algorithm"] not in ("fed_avg_sub", "fed_prox")),
    ),
    variants=(
      dict(theta=0.5, threshold="reweighting"),
      dict(theta=0.5, threshold="reweighting", smoothing=0.05),
    ),
    validation_fraction=0.0,
  ),
  "emnist_linear": _of_the_paper(
    "emnist_linear",
    _FEW_ROUNDS,
    SharedGrid({"client_learning_rate": (0.003, 0.01, 0.03, 0.1)}, TRAIN_LOSS),
    _L2,
  ),
  "emnist_convnet": _of_the_paper(
    "emnist_convnet",
    _FEWER_ROUNDS,
    SharedGrid(
      {"client_learning_rate": (0.03, 0.1, 0.3), "learning_rate_decay": _DECAYS}, TRAIN_LOSS
    ),
  ),
  "sent140_linear": _of_the_paper(
    "sent140_linear",
    _FEW_ROUNDS,
    SharedGrid({"client_learning_rate": (0.01, 0.03, 0.1, 0.3)}, TRAIN_LOSS),
    _L2,
  ),
  "sent140_lstm": _of_the_paper(
    "sent140_lstm",
    _FEWER_ROUNDS,
    SharedGrid(
      {"client_learning_rate": (0.5, 1.0, 2.0), "learning_rate_decay": _DECAYS}, TRAIN_LOSS
    ),
  ),
  "personalization": Preset(
    task="emnist_convnet",
    thetas=_THETAS_OF_THE_PAPER,
    seeds=_FIVE_SEEDS,
    quick_flags=_FEWER_ROUNDS,
    evaluation="personalization",
  ),
  "model_family": Preset(
    task="emnist_linear",
    thetas=_THETAS_OF_THE_PAPER,
    seeds=_FIVE_SEEDS,
    quick_flags=_FEW_ROUNDS,
    evaluation="model_family",
  ),
  "availability": Preset(
    task="synthetic",
    thetas=(0.5, 0.25),
    seeds=_FIVE_SEEDS,
    # Few clients and a step that is not small: so the noise of a small tail shows at night.
    # Evaluations every 5 rounds see every hour of the day in turn.
    flags=dict(
      sampling="diurnal", clients_per_round=20, client_learning_rate=0.2, rounds_per_evaluation=5
    ),
    quick_flags=dict(num_rounds=120),
    variants=(dict(wanted_updates=5, min_theta=0.1, max_theta=1.0),),
    evaluation="availability",
  ),
  "private_synthetic": Preset(
    task="synthetic",
    thetas=(0.5, 0.25),
    seeds=_FIVE_SEEDS,
    # The paper's delta and norms of gradients, tuned there at epsilon 5, for all epsilons.
    flags=dict(delta=1 / 2500, clip_unit="gradient"),
    quick_flags=dict(num_rounds=50, rounds_per_evaluation=10),
    epsilons=(3.0, 5.0, 10.0, 15.0, 20.0),
    private_flags=dict(
      fed_avg=dict(clip_norm=1.5),
      geometric=dict(clip_norm=1.3),
      primal_dual=dict(clip_norm=1.3),
      tree=dict(clip_norm=1.3, max_loss=0.9, num_bins=16),
    ),
  ),
}
