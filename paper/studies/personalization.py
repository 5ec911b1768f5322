"""Fine-tunes the models of finished runs on each test client's data; compares the errors.

    python -m paper.studies personalization --output_dir=DIR --task=TASK

The paper's section "Delta-FL and Model Personalization": half of a test client's examples are for
fine-tuning, ten epochs at the learning rate with which the run's training ended; error is measured
on the other half, before and after. All methods of a seed have the same halves.
--proximal_strength=LAMBDA keeps a client near the model that it was handed, as Ditto does. Writes

    DIR/TASK/METHOD/seed_S/personalization.csv    one row a client: client_id, num_held_in,
        num_held_out, loss_before, error_before, loss_after, error_after, diverged (0 or 1)
    DIR/TASK/METHOD/seed_S/personalization.json   settings, and statistics over clients
    DIR/TASK/personalization.{html,md,csv}        methods compared, over seeds

Runs whose results are there already, with the same settings and for the same model, are skipped.
Errors are fractions in files and percent in tables.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import os
import pathlib
from typing import Any

import pandas as pd

from paper.studies import finished_models
from privacy import checks
from privacy.settings import command_line
from tff_superquantile.experiments import train_flags
from tff_superquantile.experiments.report import fine_tuning
from tff_superquantile.experiments.report import grouped
from tff_superquantile.experiments.report import page
from tff_superquantile.experiments.report import provenance
from tff_superquantile.experiments.report import style
from tff_superquantile.experiments.report import tables
from tff_superquantile.experiments.report import units
from tff_superquantile.experiments.run import names

_NAME = "personalization"
_COLUMNS = tuple(
  tables.Column(f"{when}.error.{statistic}", f"{statistic}, {when}", decimals=2)
  for statistic in ("mean", "p90")
  for when in fine_tuning.WHEN
)


@dataclasses.dataclass(frozen=True)
class Settings:
  """How to personalize.

  Attributes:
    epochs: Passes over a client's held-in examples, at least 1.
    held_in_fraction: Fraction of a client's examples to fine-tune on, in (0, 1).
    proximal_strength: Ditto's lambda; 0 for fine-tuning without a proximal term.
  """

  epochs: int = 10
  held_in_fraction: float = finished_models.HELD_IN_FRACTION
  proximal_strength: float = 0.0

  def __post_init__(self) -> None:
    checks.not_negative("proximal_strength", self.proximal_strength)
    if self.epochs < 1:
      raise ValueError(f"Found epochs = {self.epochs}; expected at least 1.")
    finished_models.check_fraction(self.held_in_fraction)


def report(
  output_dir: str | os.PathLike,
  task: str,
  settings: Settings = Settings(),
  overrides: Mapping[str, str] | None = None,
) -> page.Page:
  """Personalizes the models of all finished runs of a task that were not yet, and reports.

  It refuses data that have changed. The overrides replace the runs' own values of
  `train_flags.WHERE_DATA_IS`.
  """
  runs = finished_models.find(output_dir, task)
  files = finished_models.ModelResults(_NAME, dataclasses.asdict(settings), fine_tuning.WHEN)
  files.measure(runs, functools.partial(_personalize, settings), overrides)
  described = pd.DataFrame([files.read(run) for run in runs])
  all_groups = grouped.by_method(runs)
  groups, epsilon = all_groups.at_one_budget
  # Methods are compared by their names without a budget: then FedAvg of the budget is found.
  results, compared = (
    tables.of_values(
      (method, run.seed, files.numbers(run)) for method, members in some.items() for run in members
    )
    for some in (all_groups, groups)
  )
  pooled = {
    method: pd.concat([pd.DataFrame(files.read_clients(run)) for run in members])
    for method, members in groups.contenders.items()
  }
  figures = [fine_tuning.arrows(compared, list(groups)), fine_tuning.histograms(pooled)]
  budget = "" if epsilon is None else f"At ε = {epsilon:g}: "
  return page.Page(
    _NAME,
    f"{runs[0].task_title}, personalized",
    "what does a client’s own model change?",
    f"{tables.plural(len(all_groups), 'method')}, {tables.plural(len(runs), 'run')}, every test"
    " client fine-tunes",
    budget + _summarize(compared, list(groups)),
    [
      tables.of_seeds(
        results,
        _COLUMNS,
        {method: method.label for method in all_groups},
        title="Results",
        note=_note(settings, described),
        focus="after.error.p90",
        lead="Error of the test clients on their held-out examples in %, mean ± sd over seeds:",
      ),
      *map(page.Text, provenance.different_seeds(all_groups)),
      *map(page.Text, [*files.left_out(runs), *_diverged(described)]),
      *(style.at_epsilon(figure, epsilon) for figure in figures),
    ],
    tables.to_csv(task, results),
  )


def _personalize(
  settings: Settings, material: finished_models.Material, on_client: Callable[[], None]
) -> tuple[dict[str, Sequence], dict[str, Any]]:
  """Fine-tunes one run's model for all its test clients; returns columns and a description."""
  import tensorflow_federated as tff

  from tff_superquantile import evaluation
  from tff_superquantile.engine import context

  learning_rate = material.config.final_learning_rate
  personalize = evaluation.build_personalizer(
    material.model,
    material.examples,
    tff.learning.optimizers.build_sgdm(learning_rate),
    seed=material.run.seed,
    batch_size=material.config.local.batch_size,
    epochs=settings.epochs,
    l2=material.config.local.l2,
    proximal_strength=settings.proximal_strength,
    num_threads=context.num_cores(),
  )
  metrics = personalize(material.weights, on_client)
  columns = metrics._replace(diverged=metrics.diverged.astype(int))._asdict()
  return {"client_id": columns.pop("client_ids"), **columns}, {
    "learning_rate": learning_rate,
    "batch_size": material.config.local.batch_size,
    "num_clients": len(metrics.client_ids),
    "num_left_out": material.examples.num_left_out,
    "num_diverged": int(metrics.diverged.sum()),
  }


def _summarize(results: pd.DataFrame, methods: Sequence[names.Name]) -> str:
  """Says how fine-tuning changes the errors, and the lead over FedAvg that is left."""
  aggregates = tables.over_seeds(results)
  unit, baselines = units.PERCENT, names.baselines(methods)
  best = next(iter(tables.lowest_means(aggregates, "before.error.p90", list(baselines))), None)
  fed_avgs = [baselines[best]] if best is not None else [m for m in methods if m.is_fed_avg]
  first = next(iter(fed_avgs), methods[0])
  levels = {metric: unit.text(mean) for metric, mean in aggregates["mean"][first].items()}
  text = (
    f"Fine-tuning takes the mean error with {first.label} from"
    f" {levels['before.error.mean']} to {levels['after.error.mean']} and the 90th percentile from"
    f" {levels['before.error.p90']} to {levels['after.error.p90']}."
  )
  if best is None:
    return text
  name, fed_avg = best.label, names.said_of(first)
  changes = {
    when: tables.change(results, f"{when}.error.p90", first, best) for when in fine_tuning.WHEN
  }
  num_seeds = len(changes["before"])
  if not num_seeds:
    return f"{text} {fed_avg} and {name} share no seed, so their difference may be the seeds’."
  text += (
    f" At the 90th percentile, {name} differs from {fed_avg} by {unit.points(changes['before'])}"
    f" points before fine-tuning and by {unit.points(changes['after'])} after it"
  )
  unsure = [when for when in fine_tuning.WHEN if tables.is_unsure(changes[when])]
  caution = (
    f" {' and '.join(unsure).capitalize()} fine-tuning, the difference is no larger than its"
    " standard deviation over seeds."
  )
  return text + tables.over(num_seeds, caution if unsure else "")


def _note(settings: Settings, described: pd.DataFrame) -> str:
  """Says how to read the table, and how clients fine-tuned."""
  rates = ", ".join(f"{rate:g}" for rate in sorted(described["learning_rate"].unique()))
  sizes = sorted(described["batch_size"].unique())
  batches = ", ".join(str(size) if size else "all examples" for size in sizes)
  strength = settings.proximal_strength
  ditto = f", with Ditto’s proximal term of λ = {strength:g}" if strength else ""
  return (
    "Misclassification error of the test clients on their held-out examples in %, each client"
    " counted once: mean and 90th percentile (p90). Each test client fine-tunes on"
    f" {100 * settings.held_in_fraction:g} % of its examples for"
    f" {tables.plural(settings.epochs, 'epoch')}, shuffled anew for each, with batches of {batches}"
    f" and the learning rate of the last round ({rates}){ditto}. Errors are those on its other"
    " examples, before and after, the same for all methods of a seed. Entries are means, and ± the"
    " standard deviation, over seeds; the lowest of a column is bold. Errors before fine-tuning"
    " differ a little from those of the main report: they are measured on a part of the examples,"
    " and fewer examples a client spread its error, and so the percentiles, further."
  )


def _diverged(described: pd.DataFrame) -> list[str]:
  """Returns a sentence about clients whose fine-tuning diverged, if there are any."""
  diverged, clients = described[["num_diverged", "num_clients"]].sum()
  sentence = (
    f"Fine-tuning diverged for {diverged} of {clients} clients (over all methods and seeds); they"
    " keep the model that they were handed."
  )
  return [sentence] if diverged else []


def define(parser: command_line.Parser) -> None:
  finished_models.define(parser, "fine-tune")
  epochs = "Passes over the examples of fine-tuning."
  command_line.add_flag(parser, "epochs", int, Settings.epochs, epochs)
  command_line.add_flag(
    parser,
    "proximal_strength",
    float,
    Settings.proximal_strength,
    "lambda of Ditto: a client fine-tunes on its loss + lambda / 2 |v - w|^2, with w the model that"
    " it was handed.",
  )


def main(args: argparse.Namespace) -> None:
  output_dir, task, overrides = train_flags.finished_task(args)
  settings = Settings(args.epochs, args.held_in_fraction, args.proximal_strength)
  content = report(output_dir, task, settings, overrides)
  print(page.publish(content, pathlib.Path(output_dir, task)))
