"""Personal models of a finished run's test clients: what each gains by a model of its own."""

from __future__ import annotations

from collections.abc import Mapping
import pathlib
from typing import Any

import numpy as np
import tensorflow_federated as tff
import tqdm

from tff_superquantile import atomic_files
from tff_superquantile import evaluation
from tff_superquantile.experiments.config import personal
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run import measurements
from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.experiments.run.hooks import class_weights
from tff_superquantile.experiments.run.hooks import hook
from tff_superquantile.simulation import client_files

_HELD_IN = 0.5


def split_clients(
  config: run_config.RunConfig, splits: Mapping[str, client_files.ClientFiles], split: str = "test"
) -> evaluation.SplitExamples:
  """Splits the examples of a split's clients in those to fine-tune on and those to measure on.

  With --held_out_examples the first of test clients are those that they train on.
  """
  examples = evaluation.examples_of_files(splits[split])
  if split != "test" or not config.task.held_out_examples:
    return evaluation.split_examples(examples, _HELD_IN, config.seed)
  train = evaluation.examples_of_files(splits["train"])
  places = {client_id: i for i, client_id in enumerate(train.client_ids)}
  return evaluation.SplitExamples(
    train.take([places[client_id] for client_id in examples.client_ids]), examples, 0
  )


def check_examples(job: hook.Job, name: str) -> None:
  """Refuses a run in which no client has examples for tuning and measuring; --NAME asks for it."""
  most = max(job.splits["test"].num_examples, default=0)
  if most < 2 and not job.config.task.held_out_examples:
    raise ValueError(
      f"Found --{name} for test clients with at most {most} example; expected one with two, to"
      " fine-tune on one and to measure on the other: leave it out."
    )


def options(job: hook.Job) -> dict[str, Any]:
  """Returns what own models of each kind have of their run, but for their rate and their pull."""
  config = job.config
  of_classes = class_weights.of_run(config, job.splits)
  return dict(
    seed=config.seed,
    batch_size=config.local.batch_size,
    l2=config.local.l2,
    trained=job.model if of_classes is None else class_weights.weighted(job.model, of_classes),
    error=job.task.error,
  )


def write_part(
  folder: pathlib.Path, name: str, measured: evaluation.Measured, **columns: Any
) -> dict[str, Any]:
  """Writes one of `personal.ALL_PARTS`, with further columns; returns its entry of the metrics."""
  run_files.write_clients(
    folder / f"{name}_clients.csv", {**measured.of_clients.columns(), **columns}
  )
  return {**measurements.describe(measured.of_clients), "pooled": measured.pooled}


class Personalizing(hook.Hook):
  """Fine-tunes the model of a finished run for each test client, also of one finished before.

  Privacy: it reads test clients alone, who are outside of a private run's guarantee and of whom it
  writes the same exact numbers as evaluations do (with --held_out_examples the
  clients are those of training, which private runs refuse). No personal model is written.
  """

  @staticmethod
  def takes_part(config: run_config.RunConfig) -> bool:
    return config.personalization is not None

  def prepare(self) -> None:
    check_examples(self.job, "personalize")

  def on_finished(self) -> None:
    job, asked = self.job, self.job.config.personalization
    assert asked is not None  # `takes_part` sees to it.
    run = job.read()
    if asked.is_done(run.metrics):
      return
    run.check_clients("test", job.splits["test"].client_ids)
    self.prepare()  # Of a run that was finished before, nobody has.
    weights = run.weights_for(job.model)
    with tqdm.tqdm(desc="personal models", unit="client", delay=2.0, disable=None) as bar:
      results = self._personalizer()(weights, asked.passes, bar.update, asked.choices)
    self._write(run, results)

  def _personalizer(self) -> evaluation.Personalizer:
    job, config, asked = self.job, self.job.config, self.job.config.personalization
    assert asked is not None
    return evaluation.Personalizer(
      job.model,
      split_clients(config, job.splits),
      tff.learning.optimizers.build_sgdm(asked.learning_rate or config.final_learning_rate),
      proximal_strength=asked.proximal_weight,
      **options(job),
    )

  def _write(self, run: run_folder.Run, results: evaluation.Personalized) -> None:
    """Writes the results of each client, and then their statistics, which say that these exist."""
    metrics = dict(run.metrics)
    for name in personal.PARTS:
      is_chosen = name == personal.CHOSEN
      columns = dict(is_personal=results.is_personal.astype(int), epochs=results.epochs)
      further = columns if is_chosen else {}
      metrics[name] = write_part(run.path, name, getattr(results, name), **further)
    asked = self.job.config.personalization
    assert asked is not None
    metrics[personal.PERSONAL].update(
      asked=asked.asked,
      share_kept=float(np.mean(results.is_personal)),
      num_diverged=int(results.diverged.sum()),
    )
    atomic_files.write_json(run.path / "metrics.json", metrics)
    print(f"Personal models: {run.path / 'chosen_clients.csv'}")
