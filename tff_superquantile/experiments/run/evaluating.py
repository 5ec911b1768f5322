"""The evaluations of a run: of its clients during the rounds, and of all at its end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tasks
from tff_superquantile import evaluation
from tff_superquantile import measures
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run import measurements
from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run.hooks import hook


def metric(config: run_config.RunConfig, task: tasks.task.Task) -> str | None:
  """Returns the metric of a run, which may be the task's; a `ValueError` if it has none such."""
  name = config.metric or task.metric
  measures.check(name or "error", task.error, config.task.name)
  return name


class RunEvaluator:
  """Evaluates the test clients, and other splits for whoever asks for them.

  A private run evaluates no training clients, whose losses its accounting does not cover.
  """

  def __init__(self, job: hook.Job, measured: Iterable[tuple[str, str]]):
    """Prepares evaluations; `measured` are further splits, and the measure that is asked of each.

    Raises:
      ValueError: If a split is none that the run evaluates.
    """
    self._folder = job.folder
    self._evaluators = evaluation.build_evaluators(
      job.model,
      {s: files for s, files in job.splits.items() if job.secret is None or s != "train"},
      error=job.task.error,
    )
    asked = [("test", job.config.metric), *measured]
    self._splits = list(dict.fromkeys(split for split, _ in asked))
    if unknown := [split for split in self._splits if split not in self._evaluators]:
      raise ValueError(
        f"Found a hook that measures the clients of {unknown[0]!r}; expected one of"
        f" {', '.join(self._evaluators)}."
      )
    self._measures = [name for name in measures.MEASURES if name in {name for _, name in asked}]

  def evaluate(self, weights: Any) -> hook.Evaluation:
    """Evaluates a model in the course of the rounds."""
    results = {}
    for split in self._splits:
      evaluator = self._evaluators[split]
      if self._measures:
        results[split] = evaluator.measure(weights, self._measures).of_clients
      else:
        results[split] = evaluator(weights)
    statistics = {split: measurements.describe(of_split) for split, of_split in results.items()}
    return hook.Evaluation(weights, results, statistics)

  def finish(self, weights: Any) -> dict[str, Any]:
    """Evaluates the model that a run leaves on all clients, writes each, and returns metrics."""
    metrics = {}
    for split, evaluator in self._evaluators.items():
      is_train = split == "train"
      of_clients, pooled = (evaluator(weights), None) if is_train else evaluator.measure(weights)
      run_files.write_clients(self._folder / f"{split}_clients.csv", of_clients.columns())
      metrics[split] = measurements.describe(of_clients, weighted=is_train)
      metrics[split].update({"pooled": pooled} if pooled else {})
    return metrics
