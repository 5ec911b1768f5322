"""The evaluations of a run: of its clients during the rounds, and of all at its end."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import tasks
from tff_superquantile import evaluation
from tff_superquantile import measures
from tff_superquantile.experiments.run import hook
from tff_superquantile.experiments.run import run_config
from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run.parts import engines
from tff_superquantile.experiments.run.training import measurements


class Evaluating(hook.Hook):
  """Evaluates the test clients, and other splits for hooks that ask for it.

  A private run evaluates no training clients, whose losses its accounting does not cover.
  """

  @staticmethod
  def defaults(config: run_config.RunConfig, task: tasks.task.Task) -> hook.Values:
    metric = config.metric or task.metric
    measures.check(metric or "error", task.error, config.task.name)
    return {"metric": metric}

  @staticmethod
  def check(config: run_config.RunConfig, task: tasks.task.Task) -> None:
    measurements.taken(config, task)

  def before(self) -> None:
    job = self.job
    self._evaluators = evaluation.build_evaluators(
      job.model,
      {s: files for s, files in job.splits.items() if job.secret is None or s != "train"},
      federated=isinstance(job.config.engine, engines.Ray),
      error=job.task.error,
    )
    asked = [("test", job.config.metric)]
    asked += [item for each in job.hooks for item in each.measured.items()]
    self._splits = list(dict.fromkeys(split for split, _ in asked))
    self._measures = [name for name in measures.MEASURES if name in {name for _, name in asked}]

  def begin(self) -> None:
    (self.job.folder / "metrics.json").unlink(missing_ok=True)

  def evaluate(self, weights: Any) -> hook.Values:
    results = {
      split: self._measured(split, weights, self._measures).of_clients for split in self._splits
    }
    described = {split: measurements.describe(of_split) for split, of_split in results.items()}
    values = measurements.of_test_clients(described["test"])
    for each in self.job.hooks:
      values.update(each.evaluated(results, described))
    return values

  def _measured(
    self, split: str, weights: Any, names: Collection[str] | None = None
  ) -> evaluation.Measured:
    """Returns loss, error and measures, None for all; a cluster returns the first two."""
    evaluator = self._evaluators[split]
    if isinstance(evaluator, evaluation.Evaluator) and (names is None or names):
      return evaluator.measure(weights, names)
    return evaluation.Measured(evaluator(weights), {})

  def finish(self) -> None:
    job = self.job
    for split in self._evaluators:
      is_train = split == "train"
      result = self._measured(split, job.weights, () if is_train else None)
      run_files.write_clients(job.folder / f"{split}_clients.csv", result.of_clients.columns())
      job.metrics[split] = measurements.describe(result.of_clients, weighted=is_train)
      job.metrics[split].update({"pooled": result.pooled} if result.pooled else {})
