"""The members of a model family, and the clients' choices among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import os
import pathlib
from typing import Any

import numpy as np

from paper.studies import choosing
from paper.studies import finished_models
from tff_superquantile.experiments.config import names
from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run import run_folder

NAME = "model_family"
PARTS = ("held_in", "held_out")
# Statistics of the error over clients, with their headings.
STATISTICS = {"mean": "mean", "p90": "p90", "superquantile_90": "worst 10 %"}


@dataclasses.dataclass(frozen=True)
class Settings:
  """The members of the family, and how clients choose on a fraction of their examples, in (0, 1).

  No `methods`, which are names of folders, are FedAvg and the exact superquantiles without privacy.
  """

  held_in_fraction: float = finished_models.HELD_IN_FRACTION
  methods: Sequence[str] = ()

  def __post_init__(self) -> None:
    finished_models.check_fraction(self.held_in_fraction)


@dataclasses.dataclass(frozen=True)
class Family:
  """The family's runs: {method: {seed: run}}, all with the same seeds; seeds that one lacks."""

  runs: dict[names.Name, dict[int, run_folder.Run]]
  seeds: list[int]
  incomplete_seeds: list[int]


def _is_plain(method: names.Name) -> bool:
  """Returns whether nothing but its own parameters tells a method from FedAvg with its options."""
  config, of_fed_avg = method.config, method.fed_avg.config
  if config is None or config.run_name or of_fed_avg is None:
    return False
  return names.of_run(config) == [*names.of_method(config), *names.of_run(of_fed_avg)]


def find_family(output_dir: str | os.PathLike, task: str, settings: Settings) -> Family:
  """Finds the runs that make the family, of at least two methods and one seed."""
  groups = run_folder.group_by_method(finished_models.find(output_dir, task))
  if settings.methods:
    unknown = [method for method in settings.methods if method not in groups]
    if unknown:
      raise ValueError(
        f"Found no finished run of {', '.join(unknown)} in {pathlib.Path(output_dir, task)}; there"
        f" are {', '.join(groups)}."
      )
    chosen = [method for method in groups if method in settings.methods]
  else:
    fed_avgs = [method for method in groups if method.is_fed_avg and method.epsilon is None]
    fed_avg = str(fed_avgs[0]) if fed_avgs else names.FED_AVG
    chosen = [
      method
      for method in groups
      if method.fed_avg == fed_avg
      and (method.is_fed_avg or _is_plain(method) and method.is_superquantile and method.theta)
    ]
  if len(chosen) < 2:
    raise ValueError(
      f"Found {len(chosen)} of the methods that make the family (fed_avg and"
      f" superquantile_theta_...) among the finished runs of {task!r}, which are of"
      f" {', '.join(groups)}; expected at least two: run more tail fractions, or name others by"
      " --methods."
    )
  runs = {method: {run.seed: run for run in groups[method]} for method in chosen}
  everywhere = set.intersection(*(set(of_method) for of_method in runs.values()))
  if not everywhere:
    raise ValueError(
      f"Found no seed that all of {', '.join(chosen)} ran with; expected at least one: run them"
      " with the same seeds."
    )
  anywhere = set.union(*(set(of_method) for of_method in runs.values()))
  complete = {
    method: {seed: of_method[seed] for seed in sorted(everywhere)}
    for method, of_method in runs.items()
  }
  return Family(complete, sorted(everywhere), sorted(anywhere - everywhere))


@dataclasses.dataclass(frozen=True)
class ModelChoice:
  """The choices of one seed's clients, with held-out errors [models, clients].

  The comparison is a `choosing.FamilyComparison`.
  """

  clients: Mapping[str, np.ndarray]
  errors: np.ndarray
  comparison: choosing.FamilyComparison

  def metrics(self, way: str) -> dict[str, float]:
    """Returns the error, its gain by the clients' own choice, and the share of a way."""
    statistics = self.comparison.statistics
    numbers = run_files.flatten(statistics[way])
    for name in STATISTICS:
      family = statistics[choosing.BY_ERROR]["error"][name]
      numbers[f"gain.{name}"] = numbers[f"error.{name}"] - family
    if way in self.comparison.shares:
      numbers["share"] = self.comparison.shares[way]
    return numbers


def evaluate(
  material: finished_models.Material, on_client: Callable[[], None]
) -> tuple[dict[str, Sequence], dict[str, Any]]:
  """Evaluates one run's model on both parts of the test clients' examples, all clients at once.

  It returns columns of the clients, and how many were left out; it does not call `on_client`.
  """
  from tff_superquantile import evaluation

  columns: dict[str, Any] = {"client_id": material.examples.held_in.client_ids}
  values: dict[str, Any] = {}
  for part in PARTS:
    metrics = evaluation.build_evaluator(material.model, getattr(material.examples, part))(
      material.weights
    )
    columns[f"num_{part}"] = metrics.num_examples
    values |= {f"loss_{part}": metrics.loss, f"error_{part}": metrics.error}
  return columns | values, {"num_left_out": material.examples.num_left_out}


def choose(family: Family, files: finished_models.ModelResults, seed: int) -> ModelChoice:
  """Lets the clients of a seed choose; all models must have the same clients."""
  from tff_superquantile.simulation import seeds

  columns = {
    method: runs[seed].read_columns(f"{files.name}.csv") for method, runs in family.runs.items()
  }
  first, clients = next(iter(columns.items()))
  for method, other in columns.items():
    if list(other["client_id"]) != list(clients["client_id"]):
      raise ValueError(
        f"Found other test clients with {method} than with {first}, both of seed {seed};"
        " expected the same data: run both with the same --data_dir and numbers of clients."
      )
  held_in, held_out = (
    choosing.PartMetrics(
      *(
        np.stack([of_model[f"{quantity}_{part}"] for of_model in columns.values()])
        for quantity in ("loss", "error")
      )
    )
    for part in PARTS
  )
  rng = seeds.generator(seed, "shuffled choices")
  result = choosing.compare(list(columns), held_in, held_out, rng)
  return ModelChoice(clients, held_out.error, result)


def clients_csv(methods: Sequence[str], chosen: Mapping[int, ModelChoice]) -> str:
  """Returns the content of model_family_clients.csv, as the module's docstring describes it."""
  columns = ("client_id", *(f"num_{part}" for part in PARTS), "method", "error_held_out")
  rows = []
  for seed, choice in chosen.items():
    errors, own = choice.errors.tolist(), choice.comparison.choice
    single = methods.index(choice.comparison.tuned_single)
    for i, client_id in enumerate(choice.clients["client_id"]):
      sizes = [int(choice.clients[f"num_{part}"][i]) for part in PARTS]
      model = own[i]
      rows.append([seed, client_id, *sizes, methods[model], errors[model][i], errors[single][i]])
  return run_files.csv_text(("seed", *columns, "error_of_tuned_single"), rows)
