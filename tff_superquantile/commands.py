"""All commands of the project: `superquantile NAME`, or `python -m tff_superquantile NAME`.

A command is a module with `define(parser)`, which adds its flags, and `main(args)`, which carries
it out. `python -m MODULE` starts it, too. Importing this imports nothing of them.
"""

from __future__ import annotations

from collections.abc import Sequence
import importlib
import importlib.util
import os
import sys
from typing import NamedTuple

from privacy.settings import command_line
import tff_superquantile
from tff_superquantile import lazy


class Command(NamedTuple):
  """A command: its module, what it does, and what it needs of the extra `training` to start."""

  module: str
  sentence: str
  packages: Sequence[str] = ("tensorflow", "tensorflow_federated")


_EXPERIMENTS = "tff_superquantile.experiments"
COMMANDS = {
  "train": Command(f"{_EXPERIMENTS}.train", "Trains one model: one task, one method, one seed."),
  "sweep": Command(f"{_EXPERIMENTS}.sweep", "Runs an experiment: tunes, trains, reports."),
  "scheduler": Command(
    f"{_EXPERIMENTS}.cluster.scheduler",
    "Shares out the runs of sweeps, or the cohorts of a run, among many machines.",
  ),
  "worker": Command(
    f"{_EXPERIMENTS}.cluster.worker",
    "Carries out runs, and computes blocks of cohorts, for a scheduler.",
  ),
  "describe": Command(f"{_EXPERIMENTS}.describe", "Describes the clients of a task, or a table."),
  "download": Command(f"{_EXPERIMENTS}.download", "Downloads public data sets to the cache."),
  "report": Command(f"{_EXPERIMENTS}.report.__main__", "Compares finished runs in a page."),
  "references": Command(
    f"{_EXPERIMENTS}.references.__main__", "Makes the reference models that runs must beat."
  ),
  "evaluate": Command(f"{_EXPERIMENTS}.evaluate", "Evaluates a run's model on any clients."),
  "private_evaluation": Command(
    f"{_EXPERIMENTS}.private_evaluation.__main__", "Releases clients' errors with a budget."
  ),
  "export": Command(f"{_EXPERIMENTS}.export.__main__", "Exports a run's model, with a model card."),
  "personalize": Command(
    f"{_EXPERIMENTS}.export.personalize",
    "Tunes an export to the rows of one client, and chooses.",
    ["absl"],
  ),
  "account": Command(
    "privacy.account", "Finds noise for a privacy budget and costs of runs; audits claims.", ()
  ),
  "audit_canaries": Command(
    f"{_EXPERIMENTS}.audit_canaries.__main__",
    "Attacks a private configuration by canaries, and bounds its epsilon from below.",
  ),
  "doctor": Command(
    "tff_superquantile.doctor.__main__", "Checks this machine, and says how to mend it.", ()
  ),
  "install_tff": Command(
    "tff_superquantile.install_tff", "Installs TensorFlow Federated into this Python.", ()
  ),
}


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs the command that the first argument names, or lists all; returns the exit code."""
  name, *rest = [*(sys.argv[1:] if arguments is None else arguments)] or ["--help"]
  if name == "help" and rest:
    name, rest = rest[0], ["--help"]
  if name in ("--version", "version"):
    command_line.say(f"tff_superquantile {tff_superquantile.__version__}")
    return 0
  if name in ("--help", "-h", "help"):
    rows = [(command, row.sentence) for command, row in COMMANDS.items()]
    command_line.say(
      "Usage: superquantile COMMAND [--flag=value ...], with these commands:\n\n"
      f"{command_line.table(rows, num_left=2)}\n\n"
      "`superquantile COMMAND --help` describes one, and lists its flags; --version says which this"
      " is."
    )
    return 0
  if name not in COMMANDS:
    nearest = command_line.did_you_mean(name, COMMANDS, cutoff=0.5)
    hint = f"{nearest} (--help lists them.)" if nearest else "expected one that --help lists."
    print(f"Error: Found no command {name!r}; {hint}", file=sys.stderr)
    return command_line.USAGE_ERROR
  if os.getcwd() not in sys.path:
    sys.path.append(os.getcwd())  # For parts of the user's own, as `python -m` does.
  run = command_line.run
  for package in COMMANDS[name].packages:
    if importlib.util.find_spec(package) is None:
      print(f"Error: {lazy.NOT_INSTALLED.format(package)}", file=sys.stderr)
      return command_line.USAGE_ERROR
  if COMMANDS[name].packages:
    from tff_superquantile.experiments import cli

    run = cli.run
  return run(importlib.import_module(COMMANDS[name].module), rest)
