"""What it gains that each test client picks its model from a family, one for each tail fraction.

    python -m tff_superquantile.experiments.model_family --output_dir=DIR --task=TASK

The paper's section "The Delta-FL Framework" trains one model for each tail fraction theta side by
side and "allow[s] each test client to select the best model according to its local data". Here the
family are the finished runs of FedAvg (theta = 1) and of superquantile aggregation with each theta;
each client picks by the error on a half of its examples, and the other half says what that gained
over one theta for all, for the same seeds. Writes

    DIR/TASK/METHOD/seed_S/model_family.csv    one row a client: client_id, num_held_in,
        num_held_out, loss_held_in, error_held_in, loss_held_out, error_held_out
    DIR/TASK/METHOD/seed_S/model_family.json   settings, and how these are distributed
    DIR/TASK/model_family.{html,md,csv}        the comparison, over seeds
    DIR/TASK/model_family_clients.csv          seed, client_id, num_held_in, num_held_out, method,
        error_held_out, error_of_tuned_single: what each client picked, and got

Models whose results are there already, with the same settings, are not evaluated again. Errors are
fractions in files and percent in tables.
"""

from __future__ import annotations

from collections.abc import Mapping
import os
import pathlib
from typing import Any

from absl import flags

from tff_superquantile.experiments import cli
from tff_superquantile.experiments import finished_models
from tff_superquantile.experiments import model_family_choice
from tff_superquantile.experiments import model_family_report
from tff_superquantile.experiments import run_folder


def _evaluate(
  run: run_folder.Run,
  loader: finished_models.Loader,
  results: finished_models.Results,
) -> None:
  """Evaluates one run's model on both parts of the test clients' examples, and writes that."""
  from tff_superquantile import evaluation

  material = loader.load(run)
  columns: dict[str, Any] = {"client_id": material.examples.held_in.client_ids}
  described: dict[str, Any] = {"num_left_out": material.examples.num_left_out}
  values: dict[str, Any] = {}
  for part in model_family_choice.PARTS:
    metrics = evaluation.build_evaluator(material.model, getattr(material.examples, part))(
      material.weights
    )
    columns[f"num_{part}"] = metrics.num_examples
    values.update({f"loss_{part}": metrics.loss, f"error_{part}": metrics.error})
    described[part] = {
      "loss": evaluation.describe(metrics.loss),
      "error": evaluation.describe(metrics.error),
    }
  results.write(run, {**columns, **values}, described)


_DEFAULTS = model_family_choice.Settings()


def run(
  output_dir: str | os.PathLike,
  task: str,
  settings: model_family_choice.Settings | None = None,
  overrides: Mapping[str, str] | None = None,
) -> dict[str, pathlib.Path]:
  """Evaluates the family's models where that is not done yet, and reports what choice gains.

  Args:
    output_dir: The directory that holds `TASK/METHOD/seed_S/` folders.
    task: Name of the task.
    settings: Who is in the family, and how clients choose.
    overrides: Values in place of the runs' own, of `finished_models.WHERE_DATA_IS`.

  Returns:
    The files of the report: "html", "md" and "csv".

  Raises:
    ValueError: If there are not two methods with finished runs of one seed, one has no weights, or
      the data is not what it was.
  """
  settings = settings or model_family_choice.Settings()
  family = model_family_choice.find_family(output_dir, task, settings)
  runs = [run for of_method in family.runs.values() for run in of_method.values()]
  finished_models.check_weights(runs)
  results = finished_models.Results(
    model_family_choice.NAME, {"held_in_fraction": settings.held_in_fraction}
  )
  loader = finished_models.Loader(settings.held_in_fraction, overrides)
  finished_models.for_each(
    results.missing(runs),
    "model family",
    lambda one, on_client: _evaluate(one, loader, results),
  )
  return model_family_report.write_report(output_dir, task, settings)


def run_and_describe(
  output_dir: str | os.PathLike,
  task: str,
  settings: model_family_choice.Settings = _DEFAULTS,
  overrides: Mapping[str, Any] | None = None,
) -> str:
  """As `run`; returns what there is to say about it in a terminal."""
  paths = run(output_dir, task, settings, overrides)
  return model_family_report.terminal_text(output_dir, task, paths, settings)


def main() -> None:
  output_dir, task, overrides = finished_models.task_of_flags()
  settings = model_family_choice.Settings(flags.FLAGS.held_in_fraction, tuple(flags.FLAGS.methods))
  print(run_and_describe(output_dir, task, settings, overrides))


if __name__ == "__main__":
  # Defined here and not on import, as a sweep imports this module.
  flags.adopt_module_key_flags(finished_models)
  flags.DEFINE_float(
    "held_in_fraction",
    model_family_choice.Settings.held_in_fraction,
    "Fraction of a test client's examples to choose on; the others measure.",
  )
  flags.DEFINE_list(
    "methods",
    [],
    "Folder names of the methods that make the family; empty for fed_avg and those called"
    " superquantile_theta_... by their tail fraction alone.",
  )
  cli.run(main)
