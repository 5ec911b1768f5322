"""Names of runs: those of their folders, and those for people in tables and figures.

A folder's name is the algorithm and its distinctions, words and numbers joined by `_`:
`superquantile_theta_0.5_tree_epsilon_5`. All names are made from a run's config; no name of a
folder is taken apart.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping
import dataclasses
import os
import pathlib
from typing import Any, NamedTuple

from privacy import cohorts
from privacy import parts
from tff_superquantile.experiments.config import methods
from tff_superquantile.experiments.config import privacy as privacy_lib
from tff_superquantile.experiments.config import run_config

FED_AVG = "fed_avg"
# The folder of an experiment's runs of grid searches, below its output directory.
TUNING = "tuning"
# The exponent of q-FFL that the paper calls AFL.
_AFL_Q = 10.0


def folder(config: run_config.RunConfig) -> str:
  """Returns the name of a run's folder; a --run_name must name a folder that is found again."""
  name = config.run_name
  if name:
    if "/" in name or name.startswith(".") or not name.isprintable():
      raise ValueError(
        f"Found --run_name={name!r}; expected the name of one folder, without slashes, characters"
        " that do not print, and a dot in front."
      )
    return name
  return "_".join([folder_text(config.algorithm), *(part.folder for part in of_run(config))])


def task_folder(config: run_config.RunConfig) -> str:
  """Returns the name of the folder of a run's task."""
  return folder_text(config.task.folder) + "".join(part.folder for part in _client_suffixes(config))


def run_path(config: run_config.RunConfig) -> pathlib.Path:
  """Returns the folder of a run."""
  return pathlib.Path(config.output_dir, task_folder(config), folder(config), f"seed_{config.seed}")


def task_title(config: run_config.RunConfig) -> str:
  """Returns the name of a run's task for people."""
  return printable(config.task.title) + "".join(part.title for part in _client_suffixes(config))


def _client_suffixes(config: run_config.RunConfig) -> list[NamePart]:
  """Returns what names of a task tell of the clients that a run takes."""
  task, told = config.task, []
  if task.is_standin:
    told.append(NamePart("_standin", " (stand-in: generated data)"))
  if task.folds:
    title = f", {task.folds}-fold cross-validation over clients"
    told.append(NamePart(f"_folds_{task.folds}", title))
  if share := task.held_out_examples:
    title = f", tested on {share:.0%} of each client’s examples"
    told.append(NamePart(f"_held_out_{share:g}", title))
  return told


def printable(text: str) -> str:
  """Replaces characters that do not print: they could move a terminal's cursor."""
  return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def label(config: run_config.RunConfig) -> str:
  """Returns the name of a run's method for people, not escaped for HTML or Markdown."""
  if config.run_name:
    return printable(config.run_name)
  name = config.method.title
  words = [printable(part.title) for part in of_run(config)]
  # The algorithm's first parameter belongs to its name; the rest follows after commas.
  if of_method(config):
    name = f"{name} {words.pop(0)}"
  if is_afl(config):
    name = f"AFL ({name})"
  return ", ".join([name, *words])


def is_afl(config: run_config.RunConfig) -> bool:
  """Returns whether the method is q-FFL with the exponent that stands for AFL in the paper."""
  return isinstance(config.method, methods.QFedAvg) and config.method.q == _AFL_Q


class Name(str):
  """The name of the folder of a run's method, with its name for people and its place in tables.

  It is a text because tables, CSV files and figures tell methods apart by it. The config is that of
  one of the method's runs; None for a folder whose flags cannot be read.
  """

  config: run_config.RunConfig | None
  label: str

  def __new__(cls, name: str, config: run_config.RunConfig | None = None) -> Name:
    self = super().__new__(cls, name)
    self.config = config
    self.label = printable(name) if config is None else label(config)
    return self

  @property
  def order(self) -> tuple[float, float, tuple[float, ...], str]:
    """A key that sorts methods as the paper's tables do; private ones by budget, at the end."""
    config = self.config
    if config is None or config.run_name:
      return (self.epsilon or 0.0, len(methods.METHODS), (), str(self))
    ranks = {algorithm: float(rank) for rank, algorithm in enumerate(methods.METHODS)}
    # AFL comes after the methods that the paper tunes.
    rank = ranks["tilted_erm"] + 0.5 if is_afl(config) else ranks[config.algorithm]
    numbers = tuple(part.number for part in of_run(config) if part.number is not None)
    return (self.epsilon or 0.0, rank, numbers, str(self))

  @property
  def epsilon(self) -> float | None:
    """The privacy budget; None for methods without."""
    return None if self.config is None else self.config.epsilon

  @property
  def theta(self) -> float | None:
    """The tail fraction, in (0, 1]; None for methods without."""
    method = None if self.config is None else self.config.method
    if isinstance(method, (methods.Superquantile, methods.FedAvgSub)):
      return method.theta
    return None

  @property
  def is_superquantile(self) -> bool:
    """Whether the method averages the tail of each cohort."""
    return self.config is not None and isinstance(self.config.method, methods.Superquantile)

  @property
  def fed_avg(self) -> Name:
    """The name of FedAvg with the same options: server optimizer, start, kept round, privacy."""
    if self.config is None:
      return Name(FED_AVG, run_config.RunConfig(method=methods.FedAvg()))
    privacy = self.config.privacy
    if privacy is not None and not privacy.noise_by_clients:
      # Shares were those of the threshold's noise alone.
      privacy = dataclasses.replace(privacy, shares=cohorts.Complement())
    config = dataclasses.replace(self.config, method=methods.FedAvg(), privacy=privacy, run_name="")
    return Name(folder(config), config)

  @property
  def is_fed_avg(self) -> bool:
    """Whether the method is FedAvg, of whatever options that its name tells."""
    return self == self.fed_avg

  @property
  def without_epsilon(self) -> Name:
    """The name that the method would have without its privacy budget."""
    return self._without_budget()

  def _without_budget(self, keeps_besides: bool = False) -> Name:
    """Returns the name without budget and noise, or also without what private runs have besides."""
    if self.config is None or not isinstance(self.config.privacy, privacy_lib.Budget):
      return self
    fields = (field.name for field in dataclasses.fields(privacy_lib.Privacy))
    shared = {name: getattr(self.config.privacy, name) for name in fields}
    shared["update_noise_multiplier"] = None
    method, changes = self.config.method, dict[str, Any]()
    if isinstance(method.threshold, parts.PrivateThreshold):
      changes["threshold"] = dataclasses.replace(method.threshold, noise_multiplier=None)
    if isinstance(method, methods.OwnLossMethod) and not keeps_besides:
      changes["share_weight"] = None
    if not keeps_besides:
      shared["clip"] = parts.FixedClip()
    method, privacy = dataclasses.replace(method, **changes), privacy_lib.Noise(**shared)
    config = dataclasses.replace(self.config, method=method, privacy=privacy)
    return Name(folder(config), config)


def without_epsilons(compared: Iterable[Name]) -> dict[Name, Name]:
  """Returns the names that methods would have without their privacy budgets, by their names."""
  shorter = {method: method.without_epsilon for method in compared}
  counts = collections.Counter((name, method.epsilon) for method, name in shorter.items())
  shared = {name for (name, _), count in counts.items() if count > 1}
  return {m: m._without_budget(True) if name in shared else name for m, name in shorter.items()}


def baselines(compared: Iterable[Name]) -> dict[Name, Name]:
  """Returns for each method its baseline, FedAvg with the same options, if it is among them."""
  there, of_method = {method: method for method in compared}, {}
  for method in there:
    baseline = there.get(method.fed_avg)
    if baseline is not None and not method.is_fed_avg:
      # A --run_name may hide more than the options.
      own, its = method.config, baseline.config
      if own is None or its is None or not own.run_name or _setting(own) == _setting(its):
        of_method[method] = baseline
  for method in there:
    if method.is_fed_avg and method not in (FED_AVG, *of_method.values()) and FED_AVG in there:
      of_method[method] = there[Name(FED_AVG)]
  return of_method


def fed_avg_phrase(fed_avg: Name) -> str:
  """Returns how a sentence names the FedAvg with which it compares a method."""
  return "FedAvg" if fed_avg == FED_AVG else "FedAvg with the same options"


class NamePart(NamedTuple):
  """A part of a run's name: its text in names of folders, and for people.

  Methods of one budget are sorted by its number; None for others.
  """

  folder: str
  title: str
  number: float | None = None


def folder_text(name: str) -> str:
  """Returns how names of folders tell a name, also one of a part from outside, MODULE:CLASS."""
  return name.replace(":", ".")


def _number(values: Mapping[str, Any], name: str) -> list[NamePart]:
  """Returns the part of a number among the values of flags; none where it has no value."""
  value, flag = values[name], run_config.flags()[name]
  if value is None:
    return []
  # A wide tail comes first.
  key = -float(value) if name == "theta" else float(value)
  return [NamePart(f"{flag.short}_{value:g}", f"{flag.symbol} = {value:g}", key)]


def _setting(config: run_config.RunConfig) -> tuple[Any, ...]:
  return (config.num_rounds, config.cohort.size, config.local, config.server.learning_rate)


def of_method(config: run_config.RunConfig) -> list[NamePart]:
  """Returns the parameters of a run's method."""
  values, own = config.values(), methods.parameters(type(config.method))
  return [part for flag in own for part in _number(values, flag.name)]


def of_run(config: run_config.RunConfig) -> list[NamePart]:
  """Returns the parts that tell a run from others of its algorithm, in the order of its name."""
  of_name, values = of_method(config), config.values()
  if isinstance(config.method, methods.Superquantile):
    threshold = values["threshold"]
    if threshold not in (None, "exact"):
      of_name.append(NamePart(folder_text(threshold), threshold.replace("_", "-")))
  if values["smoothing"]:
    of_name += _number(values, "smoothing")
  if values["averaged_rounds"] > 1:
    of_name += _number(values, "averaged_rounds")
  for name, flag in run_config.flags().items():
    if values.get(name) in flag.words:
      of_name.append(NamePart(values[name], flag.words[values[name]]))
  if config.start is not None:
    start = pathlib.Path(os.path.abspath(config.start.folder)).parent.name  # Its method.
    of_name.append(NamePart(f"from_{start}", f"from {start}"))
  if config.privacy is not None and isinstance(config.privacy.clip, parts.AdaptiveClip):
    of_name.append(NamePart("adaptive_clip", "adaptive clip"))
  of_name += _number(values, "bands")
  if config.epsilon is not None:  # The noise multipliers follow from it.
    (epsilon,) = _number(values, "epsilon")
    return [*of_name, epsilon._replace(number=None)]
  for field in ("threshold_noise_multiplier", "update_noise_multiplier"):
    of_name += _number(values, field)
  return of_name
