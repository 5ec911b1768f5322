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

from privacy.settings import part
from tff_superquantile import atomic_files
from tff_superquantile.experiments.config import kept
from tff_superquantile.experiments.config import methods
from tff_superquantile.experiments.config import names
from tff_superquantile.experiments.config import personal
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.plan import logs
from tff_superquantile.experiments.plan import preset as preset_lib
from tff_superquantile.experiments.run import run_folder

FILE_NAME = "tuning.json"


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
  """A grid of runs of a method, of which the one with the smallest criterion is chosen.

  The method's name is without the tuned parameters. The criterion is a name in
  `run_folder.Run.numbers`; `preset_lib.VALIDATION_P90` stands for the 90th percentile of the runs'
  --metric, which may follow from their data.
  """

  method: names.Name
  criterion: str
  candidates: Sequence[Candidate]

  def measured(self) -> str:
    """Returns the criterion as the runs that are finished have it."""
    if self.criterion != preset_lib.VALIDATION_P90:
      return self.criterion
    runs = (run_folder.of_config(candidate.config) for candidate in self.candidates)
    configs = (run.config for run in runs if run.finished)
    metrics = (config.metric for config in configs if config is not None)
    return kept.best_by(next(metrics, None))

  def results(self) -> list[float]:
    """Returns the criterion of each candidate; infinite where its run failed or diverged."""
    results, criterion = [], self.measured()
    for candidate in self.candidates:
      run = run_folder.of_config(candidate.config)
      value = run.numbers.get(criterion, math.inf)
      results.append(value if math.isfinite(value) else math.inf)
    return results

  def choose(self) -> Mapping[str, float]:
    """Returns the values of the best candidate, the first of equals; one must have a result."""
    results = self.results()
    if not math.isfinite(min(results)):
      raise RuntimeError(
        f"Found no run of {self.method.label} with a finite {self.measured()}"
        f" among {len(results)} that were to tune it; see their logs, such as"
        f" {logs.path(self.candidates[0].config)}, or failed.txt."
      )
    return self.candidates[results.index(min(results))].values

  def describe(self) -> dict[str, Any]:
    """Returns the tried and the chosen values, for people and for tuning.json."""
    return {
      "method": self.method,
      "criterion": self.measured(),
      "tried": [
        {**candidate.values, "result": result if math.isfinite(result) else None}
        for candidate, result in zip(self.candidates, self.results())
      ],
      "chosen": dict(self.choose()),
    }


def with_held_out(settings: Settings, preset: preset_lib.Preset) -> dict[str, Any]:
  """Returns the settings of a run that holds out the clients by whom tuning chooses."""
  fraction = settings["validation_fraction"] or preset.validation_fraction
  return {**settings, "validation_fraction": fraction}


def _candidates(
  grids: Mapping[str, Sequence[float]], settings: Settings, preset: preset_lib.Preset
) -> list[Candidate]:
  """Returns the runs of all combinations of the values of some flags, in a folder apart."""
  output_dir = os.path.join(settings["output_dir"], names.TUNING)
  idle = (personal.Personalization, personal.Ditto)  # Nothing is chosen by these.
  flags = (flag for kind in idle for flag in part.flags_by_field(kind).values())
  without = {flag.name: flag.default for flag in flags}
  common = {**with_held_out(settings, preset), **without, "output_dir": output_dir}
  candidates = []
  for combination in itertools.product(*grids.values()):
    values = dict(zip(grids, combination))
    config = run_config.from_values(**{**common, **values})
    of_method = part.flags_by_field(type(config.method))
    others = [f"{flag}_{value:g}" for flag, value in values.items() if flag not in of_method]
    run_name = "_".join([names.folder(config), *others]) if others else ""
    candidates.append(Candidate(values, dataclasses.replace(config, run_name=run_name)))
  return candidates


def shared_search(
  grid: preset_lib.SharedGrid, preset: preset_lib.Preset, settings: Settings
) -> Search:
  """Builds the search for shared values from FedAvg's settings with earlier searches' choices."""
  settings = with_defaults(settings)
  fed_avg = run_config.from_values(**settings)
  method = names.Name(names.folder(fed_avg), fed_avg)
  return Search(method, grid.criterion, _candidates(grid.values, settings, preset))


def method_search(preset: preset_lib.Preset, settings: Settings) -> Search:
  """Builds the search over a method's `preset_lib.Grid`s; without any it has one candidate."""
  grids = {n: grid.values for n, grid in settings.items() if isinstance(grid, preset_lib.Grid)}
  in_names = grids.keys() & part.flags_by_field(methods.METHODS[settings["algorithm"]]).keys()
  without = run_config.from_values(**{**with_defaults(settings), **dict.fromkeys(in_names)})
  method = names.Name(names.folder(without), without)
  candidates = _candidates(grids, settings, preset)
  return Search(method, preset_lib.VALIDATION_P90, candidates)


def with_defaults(settings: Settings, tune: str = "none") -> dict[str, Any]:
  """Returns the settings of a run, with defaults for the grids that `--tune` does not search."""
  searched = {"none": (), "methods": ("methods",), "all": ("methods", "all")}[tune]
  return {
    name: value.default
    if isinstance(value, preset_lib.Grid) and value.tune not in searched
    else value
    for name, value in settings.items()
  }


def budget_warning(searches: Sequence[Search], planned: Sequence[Settings]) -> str:
  """Says what private runs that tune cost together with the comparison; empty if none is private.

  All protect the same clients, so that epsilons add up, as do deltas (basic composition).
  """
  configs = [candidate.config for search in searches for candidate in search.candidates]
  tried = [config.epsilon for config in configs if config.is_private]
  if not tried:
    return ""
  compared = [settings["epsilon"] for settings in planned if settings["epsilon"] is not None]
  total = math.fsum(epsilon or math.inf for epsilon in [*tried, *compared])
  return (
    f"Warning: {len(tried)} private runs tune on the clients to be protected, whom {len(compared)}"
    f" runs of the comparison protect, too. Each ledger has its own run alone: for one client, all"
    f" together are (epsilon, delta)-differentially private with at most the sum of their epsilons,"
    f" {total:g}, and of their deltas. Where that matters, tune on public data, or take the stated"
    " values with --tune=none."
  )


def is_tuned(settings: Settings) -> bool:
  """Returns whether a parameter of the method is to be tuned."""
  return any(isinstance(value, preset_lib.Grid) for value in settings.values())


def write(folder: pathlib.Path, searches: Sequence[Search]) -> None:
  """Writes the tried and the chosen values beside the results."""
  folder.mkdir(parents=True, exist_ok=True)
  atomic_files.write_json(folder / FILE_NAME, [search.describe() for search in searches])
