"""The experiments that `run_experiments.sh` knows by name."""

from collections.abc import Mapping, Sequence
import dataclasses
import itertools
from typing import Any, Optional

from tff_superquantile.experiments import train_flags

_THETAS_OF_THE_PAPER = (0.8, 0.5, 0.1)


@dataclasses.dataclass(frozen=True)
class Preset:
  """A comparison of FedAvg with superquantile aggregation on one task.

  Attributes:
    task: The task; its defaults are the paper's setting.
    thetas: The tail fractions to compare with FedAvg.
    seeds: One run of each method a seed.
    flags: Values of further flags of a run.
    quick_flags: Those of a shortened experiment, which has one seed.
    epsilons: Privacy budgets, for each of which there are all methods; none for no privacy.
    private_flags: For private runs, flags by the kind of method: those of FedAvg, and of
      superquantile aggregation with each threshold to be compared.
  """

  task: str
  thetas: Sequence[float]
  seeds: Sequence[int]
  quick_flags: Mapping[str, Any]
  flags: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  epsilons: Sequence[float] = ()
  private_flags: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

  def methods(
    self, thetas: Optional[Sequence[float]] = None, epsilons: Optional[Sequence[float]] = None
  ) -> list[dict[str, Any]]:
    """The flags that tell the methods apart: FedAvg, and each tail fraction.

    Args:
      thetas: Tail fractions; None for the preset's own.
      epsilons: Privacy budgets; None for the preset's own.

    Returns:
      Flags of a run, for each method.
    """
    thetas = self.thetas if thetas is None else thetas
    epsilons = self.epsilons if epsilons is None else epsilons
    if not epsilons:
      tail_methods = [dict(algorithm="superquantile", theta=theta) for theta in thetas]
      return [dict(algorithm="fed_avg"), *tail_methods]
    listed = []
    for epsilon in epsilons:
      listed.append(dict(algorithm="fed_avg", epsilon=epsilon, **self.private_flags["fed_avg"]))
      for theta, threshold in itertools.product(thetas, train_flags.PRIVATE_THRESHOLDS):
        if threshold in self.private_flags:
          own = dict(algorithm="superquantile", theta=theta, epsilon=epsilon, threshold=threshold)
          listed.append({**own, **self.private_flags[threshold]})
    return listed


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
    thetas=(0.5, 0.25),
    seeds=(0, 1, 2, 3, 4),
    quick_flags=dict(num_rounds=100, rounds_per_evaluation=10),
  ),
  "emnist_linear": Preset(
    task="emnist_linear",
    thetas=_THETAS_OF_THE_PAPER,
    seeds=(0, 1, 2, 3, 4),
    quick_flags=dict(num_rounds=60, rounds_per_evaluation=20),
  ),
  "emnist_convnet": Preset(
    task="emnist_convnet",
    thetas=_THETAS_OF_THE_PAPER,
    seeds=(0, 1, 2, 3, 4),
    quick_flags=dict(num_rounds=20, rounds_per_evaluation=5),
  ),
  "private_synthetic": Preset(
    task="synthetic",
    thetas=(0.5, 0.25),
    seeds=(0, 1, 2, 3, 4),
    # The paper's delta, and norms of gradients. What it tuned at epsilon 5, for all epsilons.
    flags=dict(delta=1 / 2500, clip_unit="gradient"),
    quick_flags=dict(num_rounds=50, rounds_per_evaluation=10),
    epsilons=(3.0, 5.0, 10.0, 15.0, 20.0),
    private_flags=dict(
      fed_avg=dict(clip_norm=1.5),
      geometric=dict(clip_norm=1.3),
      tree=dict(clip_norm=1.3, rho_ratio=0.25, max_loss=0.9, num_bins=16),
    ),
  ),
}
