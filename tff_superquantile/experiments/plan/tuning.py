"""Tunes by grid search, as the paper does: plans the runs and chooses the best values.

First, the parameters of all methods are tuned with FedAvg, one after the other (learning rate, then
l2), and then each method's own parameter. Runs hold out a part of the training clients, and the
criteria look at these or at the training loss, never at test clients; the paper chose q of q-FFL
and the temperature of Tilted-ERM by the error of test clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import itertools
import math
import os
import pathlib
from typing import Any

from tff_superquantile import atomic_files
from tff_superquantile.experiments.plan import preset as preset_lib
from tff_superquantile.experiments.run import names
from tff_superquantile.experiments.run import run_config
from tff_superquantile.experiments.run import run_folder

FILE_NAME = "tuning.json"
_FOLDER = "tuning"


# A run before it is tuned: values of fields of `RunConfig`, and a `preset_lib.Grid` for each field
# that is to be tuned.
Settings = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Candidate:
  """One combination of values of a search, and the run that tries it."""

  values: Mapping[str, float]
  config: run_config.RunConfig


@dataclasses.dataclass(frozen=True)
class Search:
  """A grid of runs, of which the one with the smallest criterion is chosen.

  Attributes:
    method: The name of the method without the tuned parameters.
    criterion: A name in `run_folder.Run.numbers`.
    candidates: The runs.
  """

  method: names.Name
  criterion: str
  candidates: Sequence[Candidate]

  def results(self) -> list[float]:
    """Returns the criterion of each candidate; infinite where its run failed or diverged."""
    results = []
    for candidate in self.candidates:
      run = run_folder.of_config(candidate.config)
      value = run.numbers.get(self.criterion, math.inf)
      results.append(value if math.isfinite(value) else math.inf)
    return results

  def choose(self) -> Mapping[str, float]:
    """Returns the values of the best candidate; the first of equals.

    Raises:
      RuntimeError: If none has a result.
    """
    results = self.results()
    if not math.isfinite(min(results)):
      raise RuntimeError(
        f"Found no run of {self.method.label} with a finite {self.criterion}"
        f" among {len(results)} that were to tune it; see the log.txt of these runs."
      )
    return self.candidates[results.index(min(results))].values

  def describe(self) -> dict[str, Any]:
    """Returns the tried and the chosen values, for people and for tuning.json."""
    return {
      "method": self.method,
      "criterion": self.criterion,
      "tried": [
        {**candidate.values, "result": result if math.isfinite(result) else None}
        for candidate, result in zip(self.candidates, self.results())
      ],
      "chosen": dict(self.choose()),
    }


def _settings_of_tuning(settings: Settings, preset: preset_lib.Preset) -> dict[str, Any]:
  """Returns the settings of a tuning run: in a folder apart, with clients held out."""
  return {
    **settings,
    "output_dir": os.path.join(settings["output_dir"], _FOLDER),
    "validation_fraction": settings["validation_fraction"] or preset.validation_fraction,
  }


def shared_search(
  grid: preset_lib.SharedGrid, preset: preset_lib.Preset, settings: Settings
) -> Search:
  """Builds the search for values that all methods share.

  Args:
    grid: The values to try.
    preset: The experiment.
    settings: Those of a run of FedAvg, with the choices of earlier searches.

  Returns:
    The search.
  """
  fed_avg = run_config.RunConfig(**settings)
  method = names.Name(names.folder(fed_avg), fed_avg)
  candidates = []
  for combination in itertools.product(*grid.values.values()):
    values = dict(zip(grid.values, combination))
    # Shared values are no part of a method's name, so the run's name tells these runs apart.
    suffix = "_".join(f"{flag}_{value:g}" for flag, value in values.items())
    own = {**_settings_of_tuning(settings, preset), **values}
    own["run_name"] = f"{method}_{suffix}"
    candidates.append(Candidate(values, run_config.RunConfig(**own)))
  return Search(method, grid.criterion, candidates)


def method_search(preset: preset_lib.Preset, settings: Settings) -> Search:
  """Builds the search for the parameters of one method.

  Args:
    preset: The experiment.
    settings: Those of a run, with a `preset_lib.Grid` for each one to be tuned.

  Returns:
    The search; it has a single candidate if there is nothing to tune.
  """
  grids = {name: value for name, value in settings.items() if isinstance(value, preset_lib.Grid)}
  candidates = []
  for combination in itertools.product(*(grid.values for grid in grids.values())):
    values = dict(zip(grids, combination))
    own = {**_settings_of_tuning(settings, preset), **values}
    candidates.append(Candidate(values, run_config.RunConfig(**own)))
  without = run_config.RunConfig(**{**settings, **dict.fromkeys(grids)})
  method = names.Name(names.folder(without), without)
  return Search(method, preset_lib.VALIDATION_P90, candidates)


def with_defaults(settings: Settings) -> dict[str, Any]:
  """Returns the settings of a run that goes without tuning."""
  return {
    name: value.default if isinstance(value, preset_lib.Grid) else value
    for name, value in settings.items()
  }


def is_tuned(settings: Settings) -> bool:
  """Returns whether a parameter of the method is to be tuned."""
  return any(isinstance(value, preset_lib.Grid) for value in settings.values())


def write(folder: pathlib.Path, searches: Sequence[Search]) -> None:
  """Writes the tried and the chosen values beside the results."""
  folder.mkdir(parents=True, exist_ok=True)
  atomic_files.write_json(folder / FILE_NAME, [search.describe() for search in searches])
