"""The flags of a run, one for each field of `RunConfig`. Importing this starts no TensorFlow."""

import argparse
from collections.abc import Sequence
import sys
from typing import Any

from privacy.settings import command_line
from privacy.settings import part
from tff_superquantile.experiments.config import privacy
from tff_superquantile.experiments.config import run_config

# Flags of a run that a command about finished runs may override, as data may have moved.
WHERE_DATA_IS = ("data_dir", "glove", "cache_dir")
# Those by which it may read its rows otherwise; not --client_column, as a private run protects the
# clients of its own.
OF_ROWS = ("label_column", "missing", "rows_without_label", "separator")
TITLE_OF_ROWS = "of a table's rows; without a value as the run"


def define(parser: command_line.Parser) -> None:
  """Adds the flags of a run, also of the parts from outside that the arguments name."""
  parser.read_files()
  texts = parser.arguments
  named = {}
  for text, following in zip(texts, [*texts[1:], ""]):
    name, equals, value = text.partition("=")
    named[name] = value if equals else following
  run_config.import_plugins({name: named.get(f"--{name}") for name in run_config.TABLES})
  add(parser, list(run_config.flags()))
  command_line.add_flag(  # It stands for others, and flags.txt has these.
    parser,
    "secure",
    bool,
    argparse.SUPPRESS,
    "Clients make the noise of a private run in secure sums of integers, as in the paper:"
    " --threshold=tree where there is a threshold, and --update_sum=distributed.",
  )


def add(group: Any, names: Sequence[str]) -> None:
  """Adds flags of a run to a parser or a group of it; those that nobody gives have no value."""
  for name in names:
    flag = run_config.flags()[name]
    text = flag.help if flag.default in (None, "") else f"{flag.help} (default: {flag.default})"
    kind = str if flag.word else flag.kind
    metavar = "|".join(flag.choices) or flag.kind.__name__.upper()
    bare: dict[str, Any] = dict(nargs="?", const=flag.word) if flag.is_usual_word else {}
    command_line.add_flag(
      group,
      name,
      kind,
      argparse.SUPPRESS,
      text,
      metavar=f"{metavar}|{flag.word}" if flag.word else metavar,
      **bare,
    )


def values(args: argparse.Namespace) -> dict[str, Any]:
  """Returns the values of a run's flags that are on the command line, by name; also `secure`."""
  flags = run_config.flags()
  values = {name: getattr(args, name) for name in [*flags, "secure"] if name in args}
  for name in (name for name in values if name in flags and flags[name].word):
    values[name] = flags[name].parse(values[name])
  return values


def config(args: argparse.Namespace) -> run_config.RunConfig:
  """Returns the config that the command line asks for; refuses flags for which it has no use.

  Of a file with a budget, such as the flags.txt of a private run, the noise is not what was asked:
  it followed from the budget, and does so anew, which is said on the error stream. Its delta and
  rho_ratio may have been asked for, and stay.
  """
  given = values(args)
  of_files: frozenset[str] = getattr(args, command_line.OF_FILES, frozenset())
  asked = run_config.from_values(**given)
  if isinstance(asked.privacy, privacy.Budget):
    multipliers = asked.privacy.noise_multipliers(asked.method.threshold)
    noise = of_files & {name for name, z in multipliers.items() if z is not None}
    if noise:
      names = ", ".join(f"--{name}" for name in sorted(noise))
      print(f"Note: {names} in the file of flags follow from --epsilon anew.", file=sys.stderr)
    given = {name: value for name, value in given.items() if name not in noise}
    asked = run_config.from_values(**given)
  # Files of flags, such as flags.txt, also have those for which a run has no use.
  others = {"secure", *of_files}
  part.check_used(asked, {name: given[name] for name in given if name not in others})
  return asked
