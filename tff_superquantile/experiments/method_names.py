"""Names of methods: the folder of a run, made from its flags, and what people read.

A folder's name is the algorithm and what sets it apart, words and numbers joined by `_`:
`superquantile_theta_0.5_tree_epsilon_5`. `folder` makes it, everything else reads it.
"""

from __future__ import annotations

import pathlib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # Which names its methods by what is here.
  from tff_superquantile.experiments import run_config

FED_AVG = "fed_avg"

# Algorithms in the order of the paper's tables: what people call them, and their own flags.
_NAMES = {
  FED_AVG: "FedAvg",
  "fed_avg_sub": "FedAvg-Sub",
  "fed_prox": "FedProx",
  "q_fed_avg": "q-FFL",
  "tilted_erm": "Tilted-ERM",
  "agnostic_fed_avg": "Agnostic FedAvg",
  "superquantile": "Superquantile",
}
PARAMETERS = {
  "fed_avg_sub": ("theta",),
  "fed_prox": ("proximal_weight",),
  "q_fed_avg": ("q",),
  "tilted_erm": ("temperature", "moving_average_rate"),
  "agnostic_fed_avg": ("ascent_rate",),
  "superquantile": ("theta", "wanted_updates"),
}
ALGORITHMS = tuple(_NAMES)
PRIVATE_ALGORITHMS = (FED_AVG, "superquantile")
PRIVATE_THRESHOLDS = ("tree", "geometric")
# Flag: (its name in a folder, its symbol for people).
_NUMBERS = {
  "theta": ("theta", "θ"),
  "wanted_updates": ("updates", "updates"),
  "proximal_weight": ("mu", "μ"),
  "q": ("q", "q"),
  "temperature": ("t", "t"),
  "moving_average_rate": ("average", "moving average"),
  "ascent_rate": ("rate", "rate"),
  "smoothing": ("smoothing", "ν"),
  "epsilon": ("epsilon", "ε"),
  "threshold_noise_multiplier": ("z", "z"),
  "update_noise_multiplier": ("update_z", "update z"),
}
_SYMBOLS = dict(_NUMBERS.values())
_WORDS = {
  "reweighting": "reweighting",
  "tree": "tree",
  "geometric": "geometric",
  "distributed": "distributed noise",
  "helpers": "helpers",
  "private_coin": "private coin",
  "replace_one": "replace one",
}
_NUMBER = r"\d+(?:\.\d+)?(?:e[-+]?\d+)?"
# Longer names first, or update_z would read as z.
_SHORT_NAMES = "|".join(sorted(_SYMBOLS, key=len, reverse=True))
_PART = re.compile(
  rf"_(?:(?P<word>{'|'.join(_WORDS)})|(?P<name>{_SHORT_NAMES})_(?P<number>{_NUMBER}))"
)
_FOLDER = re.compile(
  rf"(?P<algorithm>{'|'.join(sorted(_NAMES, key=len, reverse=True))})"
  rf"(?P<parts>(?:_(?:{'|'.join(_WORDS)})|_(?:{_SHORT_NAMES})_{_NUMBER})*)"
)
# Suffix of a task's folder: the flag, its value, and what a title says.
_APART = {
  "_standin": ("data", "standin", "stand-in: generated data"),
  "_diurnal": ("sampling", "diurnal", "clients come and go by the hour"),
}
# What the paper calls AFL.
_AFL_Q = 10.0


def folder(config: run_config.RunConfig) -> str:
  """The folder of a run's method, from the flags as given.

  Raises:
    ValueError: If --run_name does not name a folder, or would not be found again.
  """
  name = config.run_name
  if name:
    if "/" in name or name.startswith(".") or not name.isprintable():
      raise ValueError(
        f"Found --run_name={name!r}; expected the name of one folder, without slashes, characters"
        " that do not print, and a dot in front."
      )
    return name
  algorithm = config.algorithm
  parts = [algorithm]

  def add_number(flag: str) -> None:
    if getattr(config, flag) is not None:
      parts.append(f"{_NUMBERS[flag][0]}_{getattr(config, flag):g}")

  for flag in PARAMETERS.get(algorithm, ()):
    if flag != "theta" or config.wanted_updates is None:  # Which decides theta instead.
      add_number(flag)
  if algorithm == "superquantile":
    if config.threshold is not None and config.threshold != "exact":
      parts.append(config.threshold)
    if config.smoothing:
      add_number("smoothing")
  if config.update_sum == "distributed":
    parts.append("distributed")
  for flag, usual in (("noise_shares", "complement"), ("relation", "zero_out")):
    if getattr(config, flag) != usual:
      parts.append(getattr(config, flag))
  for flag in ("epsilon", "threshold_noise_multiplier", "update_noise_multiplier"):
    add_number(flag)
  return "_".join(parts)


def task_folder(config: run_config.RunConfig) -> str:
  """The folder of a run's task: what cannot be compared with other runs of it is apart."""
  suffixes = [
    suffix for suffix, (flag, value, _) in _APART.items() if getattr(config, flag) == value
  ]
  return config.task + "".join(suffixes)


def run_path(config: run_config.RunConfig) -> pathlib.Path:
  """The folder of a run, from the flags as given."""
  return pathlib.Path(config.output_dir, task_folder(config), folder(config), f"seed_{config.seed}")


def task_title(folder_name: str) -> str:
  """The name of a task for people, from its folder."""
  remarks = []
  for suffix, (_, _, remark) in reversed(_APART.items()):
    if folder_name.endswith(suffix):
      folder_name = folder_name.removesuffix(suffix)
      remarks.append(f" ({remark})")
  return display_name(folder_name) + "".join(reversed(remarks))


def _parse(method: str) -> tuple[str, list[tuple[str, str]]] | None:
  """(algorithm, [(word or short name, number or "")]); None if `folder` makes no such name."""
  match = _FOLDER.fullmatch(method)
  if match is None:
    return None
  parts = [
    (part["word"] or part["name"], part["number"] or "") for part in _PART.finditer(match["parts"])
  ]
  return match["algorithm"], parts


def _number(method: str, short_name: str) -> float | None:
  parsed = _parse(method)
  values = dict(parsed[1]) if parsed else {}
  return float(values[short_name]) if short_name in values else None


def theta_of(method: str) -> float | None:
  """The tail fraction theta, in (0, 1], of a method's folder name; None for other methods."""
  return _number(method, "theta")


def epsilon_of(method: str) -> float | None:
  """The privacy budget in a method's folder name; None for methods without."""
  return _number(method, "epsilon")


def without_epsilon(method: str) -> str:
  """The folder name that a method would have without its privacy budget."""
  return re.sub(rf"_epsilon_{_NUMBER}(?=_|$)", "", method)


def order(method: str) -> tuple:
  """Sorting key: as in the paper's tables, superquantiles from the widest tail down, others last.

  Private methods by their budgets, after those without.

  Args:
    method: Folder name of a method.

  Returns:
    A key to sort by.
  """
  parsed = _parse(method)
  if parsed is None:
    return (0.0, len(ALGORITHMS), (), method)
  algorithm, parts = parsed
  rank = float(ALGORITHMS.index(algorithm))
  if is_afl(method):  # After the methods that the paper tunes.
    rank = ALGORITHMS.index("tilted_erm") + 0.5
  numbers = tuple(
    -float(number) if name == "theta" else float(number)
    for name, number in parts
    if number and name != "epsilon"
  )
  return (epsilon_of(method) or 0.0, rank, numbers, method)


def is_superquantile(method: str) -> bool:
  """Whether the method averages the tail of each cohort, theta or its number of clients given."""
  parsed = _parse(method)
  return parsed is not None and parsed[0] == "superquantile"


def is_afl(method: str) -> bool:
  """Whether the method is q-FFL with the exponent that stands for AFL in the paper."""
  return method.startswith("q_fed_avg") and _number(method, "q") == _AFL_Q


def display_name(method: str) -> str:
  """The name of a method for people.

  Args:
    method: Folder name of a method; may hold any characters. Not escaped for HTML or Markdown.

  Returns:
    "FedAvg", "Superquantile θ = 0.5", "FedAvg, ε = 5", or the folder name itself, where characters
    that do not print (they could move a terminal's cursor) are replaced.
  """
  parsed = _parse(method)
  if parsed is None:
    return "".join(
      letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in method
    )
  algorithm, parts = parsed
  name = _NAMES[algorithm]
  own = {_NUMBERS[flag][0] for flag in PARAMETERS.get(algorithm, ())}
  words = [f"{_SYMBOLS[part]} = {number}" if number else _WORDS[part] for part, number in parts]
  # The algorithm's first parameter belongs to its name, the rest is said after commas.
  if parts and parts[0][0] in own:
    name = f"{name} {words.pop(0)}"
  if is_afl(method):
    name = f"AFL ({name})"
  return ", ".join([name, *words])
