"""The experiments that `run_experiments.sh` knows by name."""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

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
  """

  task: str
  thetas: Sequence[float]
  seeds: Sequence[int]
  quick_flags: Mapping[str, Any]
  flags: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def methods(self) -> list[dict[str, Any]]:
    """The flags that tell the methods apart."""
    return methods(self.thetas)


def methods(thetas: Sequence[float]) -> list[dict[str, Any]]:
  """FedAvg, and superquantile aggregation at each tail fraction."""
  tail_methods = [dict(algorithm="superquantile", theta=theta) for theta in thetas]
  return [dict(algorithm="fed_avg"), *tail_methods]


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
}
