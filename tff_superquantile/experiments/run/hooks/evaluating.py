"""The evaluations of a run: of its clients during the rounds, and of all at its end."""

from __future__ import annotations

from typing import Any

import tasks
from tff_superquantile import evaluation
from tff_superquantile import measures
from tff_superquantile.experiments.run import run_config
from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run.hooks import hook
from tff_superquantile.experiments.run.hooks import measurements


class Evaluating(hook.Hook):
  """Evaluates the test clients, and other splits for hooks that ask for it.

  A private run evaluates no training clients, whose losses its accounting does not cover.
  """

  @staticmethod
  def defaults(config: run_config.RunConfig, task: tasks.task.Task) -> hook.Values:
    metric = config.metric or task.metric
    measures.check(metric or "error", task.error, config.task.name)
    return {"metric": metric}

  def before(self) -> None:
    job = self.job
    self._evaluators = evaluation.build_evaluators(
      job.model,
      {s: files for s, files in job.splits.items() if job.secret is None or s != "train"},
      error=job.task.error,
    )
    asked = [("test", job.config.metric)]
    asked += [item for each in job.hooks for item in each.measured.items()]
    self._splits = list(dict.fromkeys(split for split, _ in asked))
    self._measures = [name for name in measures.MEASURES if name in {name for _, name in asked}]

  def begin(self) -> None:
    (self.job.folder / "metrics.json").unlink(missing_ok=True)

  def evaluate(self, weights: Any) -> hook.Values:
    results = {}
    for split in self._splits:
      evaluator = self._evaluators[split]
      if self._measures:
        results[split] = evaluator.measure(weights, self._measures).of_clients
      else:
        results[split] = evaluator(weights)
    described = {split: measurements.describe(of_split) for split, of_split in results.items()}
    values = measurements.of_test_clients(described["test"])
    for each in self.job.hooks:
      values.update(each.evaluated(results, described))
    return values

  def finish(self) -> None:
    job = self.job
    for split, evaluator in self._evaluators.items():
      is_train = split == "train"
      weights = job.weights
      of_clients, pooled = (evaluator(weights), None) if is_train else evaluator.measure(weights)
      run_files.write_clients(job.folder / f"{split}_clients.csv", of_clients.columns())
      job.metrics[split] = measurements.describe(of_clients, weighted=is_train)
      job.metrics[split].update({"pooled": pooled} if pooled else {})
