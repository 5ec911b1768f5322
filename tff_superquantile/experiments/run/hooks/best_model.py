"""The model that a run leaves: the last one, or the best by an evaluation of validation clients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from privacy.settings import part
import tasks
from tff_superquantile import evaluation
from tff_superquantile import measures
from tff_superquantile.experiments.config import kept
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run.hooks import hook

SPLIT = "validation"  # Whose clients tell the best model.
_FILE = "best_model.npz"  # Beside the checkpoints, as it belongs to them.


class BestModel(hook.Hook):
  """Keeps the first model with the least value of --best_by, and counts evaluations without one.

  Evaluations are those of rounds that --rounds_per_evaluation divides. The file is written after a
  round is released and before its checkpoint. A killed run repeats the rounds after its checkpoint,
  with the same values: then a file that is ahead of the checkpoint has the model that wins anyway.

  Attributes:
    round_num: The round of the best model; None before the first evaluation.
    weights: Its weights; None before the first evaluation.
  """

  def __init__(self, job: hook.Job):
    super().__init__(job)
    keep = job.config.keep
    assert isinstance(keep, kept.Best) and keep.best_by is not None  # `resolve` sees to it.
    self._path = job.folder / "checkpoints" / _FILE
    self._rounds_per_evaluation = job.config.rounds_per_evaluation
    self._patience = keep.patience
    self._column = keep.best_by.replace(".", "_")
    _, self._quantity, self._statistic = keep.best_by.split(".")
    self.measured = {SPLIT: self._quantity}
    self.round_num: int | None = None
    self._value = math.inf
    self._evaluation: hook.Evaluation | None = None

  @staticmethod
  def resolve(config: run_config.RunConfig, task: tasks.task.Task) -> run_config.RunConfig:
    best_by = kept.best_by(config.metric or task.metric)
    return part.fill(config, {"best_by": best_by})

  @staticmethod
  def takes_part(config: run_config.RunConfig) -> bool:
    return isinstance(config.keep, kept.Best)

  @staticmethod
  def check(config: run_config.RunConfig, task: tasks.task.Task) -> None:
    quantities, best_by = measures.of_kind(task.error), config.values()["best_by"]
    statistics = evaluation.describe([0.0])
    names = [f"{SPLIT}.{quantity}.{s}" for quantity in quantities for s in statistics]
    if best_by not in names:
      raise ValueError(f"Found --best_by={best_by}; expected one of {', '.join(names)}.")
    if config.rounds_per_evaluation > config.num_rounds:
      raise ValueError(
        f"Found --rounds_per_evaluation={config.rounds_per_evaluation} with --keep=best; expected"
        f" at most --num_rounds={config.num_rounds}, or no trained model is evaluated."
      )

  def prepare(self) -> None:
    """Reads what an earlier process has kept; refuses a run without validation clients."""
    if SPLIT not in self.job.splits:
      raise ValueError(
        f"Found --keep=best for {self.job.config.task.name}, which has no validation clients; hold"
        " out some of the training clients, for example by --validation_fraction=0.2."
      )
    self.weights = run_files.read_weights(self._path)
    if self.weights is not None:
      with np.load(self._path) as arrays:
        self.round_num, self._value = int(arrays["round"]), float(arrays["value"])

  def on_start(self, round_num: int) -> bool:
    if round_num and self.round_num is None:
      raise ValueError(
        f"Found no {self._path}, the best model of a run at round {round_num}; bring it back, or"
        " choose another --output_dir."
      )
    return self._is_over(round_num)

  def on_evaluation(self, evaluation: hook.Evaluation) -> hook.Values:
    self._evaluation = evaluation
    return {self._column: self._value_of(evaluation)}

  def on_round(self, round_num: int, values: hook.Values) -> bool:
    """Keeps the round's model if it is better than all before; NaN is no better than infinity."""
    evaluation, self._evaluation = self._evaluation, None
    if evaluation is not None and round_num % self._rounds_per_evaluation == 0:
      value = self._value_of(evaluation)
      value = math.inf if math.isnan(value) else value
      if self.round_num is None or value < self._value:
        self._keep(evaluation.weights, value, round_num)
    return self._is_over(round_num)

  def on_rounds_end(self, is_whole: bool) -> None:
    if is_whole:
      outcome = self.job.outcome
      outcome.manifest["kept_round"], outcome.weights = self.round_num, self.weights

  def _value_of(self, evaluation: hook.Evaluation) -> float:
    return float(evaluation.statistics[SPLIT][self._quantity][self._statistic])

  def _keep(self, weights: Any, value: float, round_num: int) -> None:
    self._path.parent.mkdir(mode=0o700, exist_ok=True)
    run_files.write_weights(self._path, weights, round=round_num, value=value)
    self.round_num, self._value = round_num, value
    self.weights = run_files.read_weights(self._path)

  def _is_over(self, round_num: int) -> bool:
    """Returns whether --patience evaluations up to a round have brought no better model."""
    if self._patience is None or self.round_num is None:
      return False
    return (round_num - self.round_num) // self._rounds_per_evaluation >= self._patience
