"""Fine-tunes the models of finished runs on each test client's own data: error before and after.

    python -m tff_superquantile.experiments.personalization --output_dir=DIR --task=TASK

The paper's section "Delta-FL and Model Personalization": half of a test client's examples are for
fine-tuning, ten epochs at the learning rate with which the run's training ended; the other half is
what error is measured on, before and after. All methods of a seed have the same halves. Writes

    DIR/TASK/METHOD/seed_S/personalization.csv    one row a client: client_id, num_held_in,
        num_held_out, loss_before, error_before, loss_after, error_after, diverged (0 or 1)
    DIR/TASK/METHOD/seed_S/personalization.json   settings, and how these are distributed
    DIR/TASK/personalization.{html,md,csv}        methods compared, over seeds

Runs whose results are there already, with the same settings and for the same model, are skipped.
Errors are fractions in files and percent in tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
import dataclasses
import os
import pathlib
from typing import Any

from absl import flags

from tff_superquantile.experiments import cli
from tff_superquantile.experiments import finished_models
from tff_superquantile.experiments import personalization_report
from tff_superquantile.experiments import run_config
from tff_superquantile.experiments import run_folder


@dataclasses.dataclass(frozen=True)
class Settings:
  """How to personalize.

  Attributes:
    epochs: Passes over what a client holds in, at least 1.
    held_in_fraction: Fraction of a client's examples to fine-tune on, in (0, 1).
  """

  epochs: int = 10
  held_in_fraction: float = 0.5

  def __post_init__(self) -> None:
    if self.epochs < 1:
      raise ValueError(f"Found epochs = {self.epochs}; expected at least 1.")
    if not 0.0 < self.held_in_fraction < 1.0:
      raise ValueError(
        f"Found held_in_fraction = {self.held_in_fraction}; expected a number between 0 and 1."
      )


def final_learning_rate(config: run_config.RunConfig) -> float:
  """The local learning rate of a run's last round, gamma_0 c^floor((T - 1) / t_0).

  Args:
    config: Values of the run's flags.

  Returns:
    The rate.
  """
  decays = (config.num_rounds - 1) // config.rounds_per_decay
  return config.client_learning_rate * config.learning_rate_decay**decays


def _describe(metrics: Any) -> dict[str, Any]:
  from tff_superquantile import evaluation

  return {
    when: {
      quantity: evaluation.describe(getattr(metrics, f"{quantity}_{when}"))
      for quantity in ("loss", "error")
    }
    for when in ("before", "after")
  }


def _personalize(
  run: run_folder.Run,
  loader: finished_models.Loader,
  settings: Settings,
  results: finished_models.Results,
  on_client: Callable[[], None],
) -> None:
  """Fine-tunes one run's model for all its test clients and writes what came of it."""
  import tensorflow_federated as tff

  from tff_superquantile.evaluation import personalization
  from tff_superquantile.simulation import context

  material = loader.load(run)
  learning_rate = final_learning_rate(material.config)
  personalize = personalization.build_personalizer(
    material.model,
    material.examples,
    tff.learning.optimizers.build_sgdm(learning_rate),
    seed=run.seed,
    batch_size=material.config.batch_size,
    epochs=settings.epochs,
    l2=material.config.l2,
    num_threads=context.num_cores(),
  )
  metrics = personalize(material.weights, on_client)
  columns = metrics._replace(diverged=metrics.diverged.astype(int))._asdict()
  results.write(
    run,
    {"client_id": columns.pop("client_ids"), **columns},
    {
      "learning_rate": learning_rate,
      "batch_size": material.config.batch_size,
      "num_clients": len(metrics.client_ids),
      "num_left_out": material.examples.num_left_out,
      "num_diverged": int(metrics.diverged.sum()),
      **_describe(metrics),
    },
  )


def run(
  output_dir: str | os.PathLike,
  task: str,
  settings: Settings | None = None,
  overrides: Mapping[str, str] | None = None,
) -> dict[str, pathlib.Path]:
  """Personalizes the models of all finished runs of a task that were not yet, and reports.

  Args:
    output_dir: The directory that holds `TASK/METHOD/seed_S/` folders.
    task: Name of the task.
    settings: How.
    overrides: Values in place of the runs' own, of `finished_models.WHERE_DATA_IS`.

  Returns:
    The files of the report: "html", "md" and "csv".

  Raises:
    ValueError: If there is no finished run, one has no weights, or the data is not what it was.
  """
  settings = settings or Settings()
  runs = finished_models.find(output_dir, task)
  finished_models.check_weights(runs)
  results = finished_models.Results(personalization_report.NAME, dataclasses.asdict(settings))
  loader = finished_models.Loader(settings.held_in_fraction, overrides)
  finished_models.for_each(
    results.missing(runs),
    "personalization",
    lambda one, on_client: _personalize(one, loader, settings, results, on_client),
  )
  return personalization_report.write_report(output_dir, task)


def run_and_describe(
  output_dir: str | os.PathLike,
  task: str,
  settings: Settings = Settings(),
  overrides: Mapping[str, Any] | None = None,
) -> str:
  """As `run`; returns what there is to say about it in a terminal."""
  paths = run(output_dir, task, settings, overrides)
  return personalization_report.terminal_text(output_dir, task, paths)


def main() -> None:
  output_dir, task, overrides = finished_models.task_of_flags()
  settings = Settings(flags.FLAGS.epochs, flags.FLAGS.held_in_fraction)
  print(run_and_describe(output_dir, task, settings, overrides))


if __name__ == "__main__":
  # Defined here and not on import, as a sweep imports this module.
  flags.adopt_module_key_flags(finished_models)
  flags.DEFINE_integer("epochs", Settings.epochs, "Passes over what a client fine-tunes on.")
  flags.DEFINE_float(
    "held_in_fraction",
    Settings.held_in_fraction,
    "Fraction of a test client's examples to fine-tune on; the others measure.",
  )
  cli.run(main)
