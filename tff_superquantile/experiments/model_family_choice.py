"""The models of a family, evaluated by `model_family`, and what the clients choose among them."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import os
import pathlib
import re
from typing import Any

import numpy as np

from tff_superquantile.experiments import finished_models
from tff_superquantile.experiments import method_names
from tff_superquantile.experiments import run_folder

NAME = "model_family"
_PLAIN_SUPERQUANTILE = re.compile(r"superquantile_theta_[^_]+")
PARTS = ("held_in", "held_out")
# Of the error over clients, and what tables call them.
STATISTICS = {"mean": "mean", "p90": "p90", "superquantile_90": "worst 10 %"}


@dataclasses.dataclass(frozen=True)
class Settings:
  """Who is in the family, and how clients choose.

  Attributes:
    held_in_fraction: Fraction of a client's examples to choose on, in (0, 1).
    methods: Folder names of the family; none for FedAvg and the exact superquantiles without
      privacy.
  """

  held_in_fraction: float = 0.5
  methods: Sequence[str] = ()

  def __post_init__(self) -> None:
    if not 0.0 < self.held_in_fraction < 1.0:
      raise ValueError(
        f"Found held_in_fraction = {self.held_in_fraction}; expected a number between 0 and 1."
      )


@dataclasses.dataclass(frozen=True)
class Family:
  """The family's runs: {method: {seed: run}}, all with the same seeds; seeds that one lacks."""

  runs: dict[str, dict[int, run_folder.Run]]
  seeds: list[int]
  incomplete_seeds: list[int]


def find_family(output_dir: str | os.PathLike, task: str, settings: Settings) -> Family:
  """Finds the runs that make the family.

  Args:
    output_dir: The directory that holds `TASK/METHOD/seed_S/` folders.
    task: Name of the task.
    settings: Who is in the family.

  Returns:
    The family, of at least two methods and one seed.

  Raises:
    ValueError: If there is none.
  """
  groups = run_folder.group_by_method(finished_models.find(output_dir, task))
  if settings.methods:
    unknown = [method for method in settings.methods if method not in groups]
    if unknown:
      raise ValueError(
        f"Found no finished run of {', '.join(unknown)} in {pathlib.Path(output_dir, task)}; there"
        f" are {', '.join(groups)}."
      )
    names = [method for method in groups if method in settings.methods]
  else:
    names = [
      method
      for method in groups
      if method == method_names.FED_AVG or _PLAIN_SUPERQUANTILE.fullmatch(method)
    ]
  if len(names) < 2:
    raise ValueError(
      f"Found {len(names)} of the methods that make the family (fed_avg and"
      f" superquantile_theta_...) among the finished runs of {task!r}, which are of"
      f" {', '.join(groups)}; expected at least two: run more tail fractions, or name others by"
      " --methods."
    )
  runs = {method: {run.seed: run for run in groups[method]} for method in names}
  everywhere = set.intersection(*(set(of_method) for of_method in runs.values()))
  if not everywhere:
    raise ValueError(
      f"Found no seed that all of {', '.join(names)} ran with; expected at least one: run them with"
      " the same seeds."
    )
  anywhere = set.union(*(set(of_method) for of_method in runs.values()))
  complete = {
    method: {seed: of_method[seed] for seed in sorted(everywhere)}
    for method, of_method in runs.items()
  }
  return Family(complete, sorted(everywhere), sorted(anywhere - everywhere))


@dataclasses.dataclass(frozen=True)
class Choice:
  """What the family's clients chose and got, over seeds.

  Attributes:
    family: Its runs.
    clients: {seed: columns of the clients, of any of the seed's models}.
    errors: {seed: held-out errors [models, clients]}.
    comparisons: {seed: `evaluation.model_family.Comparison`}.
    values: {way to give clients a model: {metric: {seed: value}}}.
    num_left_out: The most clients of a seed that have fewer than two examples.
  """

  family: Family
  clients: dict[int, dict[str, np.ndarray]]
  errors: dict[int, np.ndarray]
  comparisons: dict[int, Any]
  values: dict[str, dict[str, dict[int, float]]]
  num_left_out: int


def choose(output_dir: str | os.PathLike, task: str, settings: Settings) -> Choice:
  """Lets the clients of every seed choose, from what `model_family.run` left in the runs' folders.

  Args:
    output_dir: As in `find_family`.
    task: As in `find_family`.
    settings: As in `find_family`.

  Returns:
    The choice. Its metrics are "error.STATISTIC" and "loss.STATISTIC" on held-out examples,
    "gain.STATISTIC", by how much the error is lower with the clients' own choice, and for models
    the "share" of clients that choose it.

  Raises:
    ValueError: If there is no family, a model was not evaluated, or the clients of models differ.
  """
  from tff_superquantile.evaluation import model_family
  from tff_superquantile.simulation import seeds

  family = find_family(output_dir, task, settings)
  reader = finished_models.Results(NAME, {})
  methods = list(family.runs)
  choice = Choice(family, {}, {}, {}, {}, 0)
  left_out = 0
  for seed in family.seeds:
    of_models = []
    for method in methods:
      one = family.runs[method][seed]
      if not reader.read(one):
        raise ValueError(f"Found nothing of the model family in {one.path}; call `run` first.")
      of_models.append(reader.read_clients(one))
      left_out = max(left_out, reader.read(one)["num_left_out"])
    first = of_models[0]
    for method, other in zip(methods, of_models):
      if list(other["client_id"]) != list(first["client_id"]):
        raise ValueError(
          f"Found other test clients with {method} than with {methods[0]}, both of seed {seed};"
          " expected the same data: run both with the same --data_dir and numbers of clients."
        )
    held_in, held_out = (
      model_family.PartMetrics(
        *(np.stack([m[f"{quantity}_{part}"] for m in of_models]) for quantity in ("loss", "error"))
      )
      for part in PARTS
    )
    rng = seeds.generator(seed, "shuffled choices")
    result = model_family.compare(methods, held_in, held_out, rng)
    choice.clients[seed] = first
    choice.errors[seed] = held_out.error
    choice.comparisons[seed] = result
    for name in _row_order(methods):
      numbers = run_folder.flatten(result.statistics[name])
      for statistic in STATISTICS:
        metric = f"error.{statistic}"
        numbers[f"gain.{statistic}"] = (
          numbers[metric] - result.statistics[model_family.BY_ERROR]["error"][statistic]
        )
      if name in result.shares:
        numbers["share"] = result.shares[name]
      for metric, value in numbers.items():
        choice.values.setdefault(name, {}).setdefault(metric, {})[seed] = float(value)
  return dataclasses.replace(choice, num_left_out=left_out)


def _row_order(methods: Sequence[str]) -> list[str]:
  from tff_superquantile.evaluation import model_family

  return [
    *methods,
    model_family.TUNED_SINGLE,
    model_family.BY_ERROR,
    model_family.BY_LOSS,
    model_family.SHUFFLED,
    model_family.HINDSIGHT_SINGLE,
    model_family.ORACLE,
  ]


def names(methods: Sequence[str]) -> dict[str, str]:
  """What to call the ways to give clients a model."""
  from tff_superquantile.evaluation import model_family

  return {
    **{
      method: method_names.display_name(method)
      + (" (θ = 1)" if method == method_names.FED_AVG else "")
      for method in methods
    },
    model_family.TUNED_SINGLE: "One for all, by held-in p90",
    model_family.BY_ERROR: "Family: own choice, by error",
    model_family.BY_LOSS: "Family: own choice, by loss",
    model_family.SHUFFLED: "Choices dealt at random",
    model_family.HINDSIGHT_SINGLE: "One for all, in hindsight",
    model_family.ORACLE: "Own choice, in hindsight",
  }
