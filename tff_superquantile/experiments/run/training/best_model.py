"""The model that a run leaves: the last one, or the best by an evaluation of validation clients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import math
import pathlib
from typing import Any

import numpy as np

from tff_superquantile import evaluation
from tff_superquantile.experiments.run import run_config
from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run.parts import kept

SPLIT = "validation"  # Whose clients tell the best model.
_FILE = "best_model.npz"  # Beside the checkpoints, as it belongs to them.


def check(config: run_config.RunConfig, quantities: Sequence[str]) -> None:
  """Checks the model that a resolved run keeps; `quantities` are the measures of its task.

  Raises:
    ValueError: If no trained model is evaluated, or --best_by names no number of `metrics.json`.
  """
  if not isinstance(config.keep, kept.Best):
    return
  best_by = config.keep.best_by
  assert best_by is not None  # `build.resolve` sees to it.
  names = [f"{SPLIT}.{quantity}.{s}" for quantity in quantities for s in _statistics()]
  if best_by not in names:
    raise ValueError(f"Found --best_by={best_by}; expected one of {', '.join(names)}.")
  if config.rounds_per_evaluation > config.num_rounds:
    raise ValueError(
      f"Found --rounds_per_evaluation={config.rounds_per_evaluation} with --keep=best; expected"
      f" at most --num_rounds={config.num_rounds}, or no trained model is evaluated."
    )


def _statistics() -> Iterable[str]:
  return evaluation.describe([0.0])


def check_splits(config: run_config.RunConfig, splits: Iterable[str]) -> None:
  """Raises a `ValueError` if a run is to keep the best model and has no clients to tell it by."""
  if isinstance(config.keep, kept.Best) and SPLIT not in splits:
    raise ValueError(
      f"Found --keep=best for {config.task.name}, which has no validation clients; hold out some of"
      " the training clients, for example by --validation_fraction=0.2."
    )


class BestModel:
  """Keeps the first model with the least value of --best_by, and counts evaluations without one.

  Evaluations are those of rounds that --rounds_per_evaluation divides. The file is written after a
  round is released and before its checkpoint. A killed run repeats the rounds after its checkpoint,
  with the same values: then a file that is ahead of the checkpoint has the model that wins anyway.

  Attributes:
    round_num: The round of the best model; None before the first evaluation.
    weights: Its weights; None before the first evaluation.
    quantity: The measure of the validation clients that tells it.
  """

  def __init__(self, keep: kept.Best, rounds_per_evaluation: int, folder: pathlib.Path):
    """Reads what an earlier process has kept in the run's folder.

    Raises:
      ValueError: If the file is damaged.
    """
    self._path = folder / "checkpoints" / _FILE
    self._rounds_per_evaluation = rounds_per_evaluation
    self._patience = keep.patience
    assert keep.best_by is not None  # As in `check`.
    _, self.quantity, self._statistic = keep.best_by.split(".")
    self.round_num: int | None = None
    self._value = math.inf
    self.weights = run_files.read_weights(self._path)
    if self.weights is not None:
      with np.load(self._path) as arrays:
        self.round_num, self._value = int(arrays["round"]), float(arrays["value"])

  def measure(self, described: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Returns the value of a row of rounds.csv by name, from `measurements.describe`."""
    return {self._column: described[self.quantity][self._statistic]}

  @property
  def _column(self) -> str:
    return f"{SPLIT}_{self.quantity}_{self._statistic}"

  def consider(self, weights: Any, values: Mapping[str, float], round_num: int) -> None:
    """Keeps a model if it is better than all before; NaN is no better than infinity."""
    if round_num % self._rounds_per_evaluation:
      return
    value = values[self._column]
    value = math.inf if math.isnan(value) else value
    if self.round_num is not None and not value < self._value:
      return
    self._path.parent.mkdir(mode=0o700, exist_ok=True)
    run_files.write_weights(self._path, weights, round=round_num, value=value)
    self.round_num, self._value = round_num, value
    self.weights = run_files.read_weights(self._path)

  def is_over(self, round_num: int) -> bool:
    """Returns whether --patience evaluations up to a round have brought no better model.

    Raises:
      ValueError: If the file is missing although the run has begun.
    """
    if round_num and self.round_num is None:
      raise ValueError(
        f"Found no {self._path}, the best model of a run at round {round_num}; bring it back, or"
        " choose another --output_dir."
      )
    if self._patience is None or self.round_num is None:
      return False
    return (round_num - self.round_num) // self._rounds_per_evaluation >= self._patience


def of_run(config: run_config.RunConfig, folder: pathlib.Path) -> BestModel | None:
  """Returns what keeps the best model of a run in a folder; None where the last one is kept."""
  if not isinstance(config.keep, kept.Best):
    return None
  return BestModel(config.keep, config.rounds_per_evaluation, folder)
