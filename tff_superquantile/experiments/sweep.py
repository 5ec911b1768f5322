"""Runs an experiment: tunes its methods, runs each with every seed, then writes the report.

    superquantile sweep --experiment=default [flags of train]

Several runs are at work at once when there are cores for them. Finished runs are skipped,
interrupted ones continue. A failed run does not stop the others.

`--scheduler=FILE` has workers on many machines carry them out (docs/how_to/cluster.md). Without
Dask, `--print_commands` prints the runs that can go now, one command a line, in place of carrying
them out: those of the next grid search, or, when all is tuned, those of the comparison.
Runs that failed as such commands are left out. Without it the same command then makes the report.
"""

import argparse
from collections.abc import Container, Mapping, Sequence
import dataclasses
import functools
import importlib
import itertools
import math
import sys
import types
from typing import Any

from privacy.settings import command_line
from privacy.settings import part
from tff_superquantile.experiments import cli
from tff_superquantile.experiments import describe
from tff_superquantile.experiments import download
from tff_superquantile.experiments.config import flags as train_flags
from tff_superquantile.experiments.config import methods
from tff_superquantile.experiments.config import names
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.plan import preset as preset_lib
from tff_superquantile.experiments.plan import presets
from tff_superquantile.experiments.plan import stages as stages_lib
from tff_superquantile.experiments.plan import tuning
from tff_superquantile.experiments.references import making
from tff_superquantile.experiments.run import asked
from tff_superquantile.experiments.run import run_folder

# A fifth of so many clients are too few to test on. Fifteen runs of 1,000 rounds, the most of a
# cross-validation, take up to five minutes of a core: 10 ms a round, and 3 ms for 1e5 inputs.
_FEWEST_TO_FOLD, _MOST_TO_FOLD, _FOLDS = 20, 100, 5
_MOST_INPUTS = 2.5e5  # Of all examples.
_OF_CLIENTS = (  # Flags that choose the clients of the runs.
  *("folds", "seeds", "held_out_examples", "num_train_clients", "num_test_clients"),
  *("validation_fraction", "client_split", "initial_weights", "tune"),
)

_OF_A_SWEEP = ("quick", "seeds", "thetas", "epsilons", "tune", "num_workers")
_NOT_OF_A_SWEEP = {  # The experiment decides these: they tell its runs apart.
  "theta": "--thetas",
  "epsilon": "--epsilons",
  "seed": "--seeds",
  "algorithm": "--experiment",
  "run_name": "",
  "noise_key_file": "",  # A key serves one run.
  **{
    name: "--experiment"
    for kind in methods.METHODS.values()
    for name, flag in part.flags_by_field(kind).items()
    if flag.default is None
  },
}


def define(parser: command_line.Parser) -> None:
  add = functools.partial(command_line.add_flag, parser)
  add("experiment", str, "default", "See run_experiments.sh --help.")
  add("quick", bool, False, "Few rounds and one seed, to see that all works.")
  own = "None for the experiment's own."
  add("seeds", int, None, f"Seeds; {own}", least=0, are_several=True)
  add("thetas", float, None, f"Tail fractions to compare with FedAvg; {own}", are_several=True)
  add("epsilons", float, None, f"Privacy budgets; {own}", are_several=True)
  add(
    "tune",
    str,
    None,
    "Grid searches before the comparison: for the methods' own parameters (methods); also for what"
    " they share, learning rate and l2 or, in private experiments, B, b, C and r (all); or none."
    " None for methods, or with --quick for none.",
    choices=("none", "methods", "all"),
  )
  add("print_commands", bool, False, "Prints the runs that can start now, and runs nothing.")
  add("retry_failed", bool, False, "With --print_commands: prints also the runs that failed.")
  at_once = "Runs at once; None for one a core, or all below two a core."
  add("num_workers", int, None, at_once, least=1)
  add("scheduler", str, None, stages_lib.SCHEDULER)
  train_flags.define(parser)


def _preset(name: str) -> preset_lib.Preset:
  if name not in presets.PRESETS:
    nearest = command_line.did_you_mean(name, presets.PRESETS)
    raise ValueError(
      f"Found no experiment {name!r}; {nearest} ./run_experiments.sh --help lists them."
    )
  return presets.PRESETS[name]


def _usual_folds(args: argparse.Namespace, config: run_config.RunConfig) -> int:
  """Returns the --folds of a table whose fifth of clients is too few to test on; 0 for none."""
  is_chosen = any(getattr(args, name, None) is not None for name in _OF_CLIENTS)
  if args.quick or config.is_private or is_chosen:
    return 0
  num_clients, num_inputs = describe.clients_and_inputs(config)
  if not _FEWEST_TO_FOLD <= num_clients <= _MOST_TO_FOLD or num_inputs > _MOST_INPUTS:
    return 0
  print(
    f"Cross-validation: each of {num_clients} clients is a test client once, of {_FOLDS} runs a"
    " method (--folds=0: a fifth of the clients, once)"
  )
  return _FOLDS


def plan(args: argparse.Namespace, usual_folds: int = 0) -> list[tuning.Settings]:
  """Returns the settings of every run: the preset's, then the flags on the command line."""
  preset, asked = _preset(args.experiment), train_flags.values(args)
  added = _added(asked)
  for name, instead in {**dict.fromkeys(preset.tried, ""), **_NOT_OF_A_SWEEP}.items():
    if name in asked and name not in added:
      hint = f"use {instead}, or " if instead else ""
      raise ValueError(f"Found --{name} for an experiment of several runs; {hint}train one run.")
  thetas, epsilons = args.thetas, args.epsilons
  flags = {name: value for name, value in asked.items() if name not in added}
  is_secure = flags.pop("secure", False)
  for name, is_given in (("epsilons", epsilons is not None), ("secure", is_secure)):
    if is_given and not preset.epsilons:
      raise ValueError(
        f"Found --{name} for {args.experiment}, which is not private; use private_synthetic."
      )
  for theta in thetas or ():
    methods.tail_fraction("thetas", theta)
  for name, numbers in (("thetas", thetas or ()), ("epsilons", epsilons or ())):
    texts = {f"{number:g}" for number in numbers}
    if len(texts) < len(numbers) or not all(0.0 < number < math.inf for number in numbers):
      values = ",".join(f"{number:.12g}" for number in numbers)
      raise ValueError(
        f"Found --{name}={values}; expected positive numbers that differ in their first six digits,"
        " which name their folders."
      )
  if epsilons is None and args.quick:
    epsilons = preset.epsilons[::2][:2]  # Two are enough for a curve.
  seeds = preset.seeds
  if args.seeds is not None:
    seeds = args.seeds
  elif folds := flags.get("folds") or usual_folds:
    seeds = range(folds)  # Each client is a test client once.
  elif args.quick:
    seeds = seeds[:1]
  defaults = {**run_config.defaults(), "folds": usual_folds}
  is_standin = run_config.from_values(data={**defaults, **flags}["data"]).task.is_standin
  of_data = {} if is_standin else preset.data_flags
  common = {**preset.flags, **of_data, **(preset.quick_flags if args.quick else {})}
  compared = preset.methods(thetas, epsilons)
  if added:  # In the settings of each FedAvg.
    compared += [{**method, **added} for method in compared if method["algorithm"] == names.FED_AVG]
  if is_secure:
    del defaults["update_sum"]
    compared = [
      {**method, "secure": "epsilon" in method} for method in compared if not _by_server(method)
    ]
  return [
    {**defaults, "task": preset.task, **common, **method, "seed": seed, **flags}
    for seed, method in itertools.product(seeds, compared)
  ]


def _added(flags: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the flags of a method from outside that the experiment compares, too."""
  algorithm = flags.get("algorithm")
  if algorithm is None or algorithm in methods.METHODS.own:
    return {}
  own = {
    "algorithm",
    *(flag.name for flag in part.flags_by_field(methods.METHODS[algorithm]).values()),
  }
  return {name: value for name, value in flags.items() if name in own}


def _by_server(method: tuning.Settings) -> bool:
  """Returns whether a method is private and its threshold has noise that the server makes."""
  return "epsilon" in method and method.get("threshold") not in (None, "tree")


def _tune(
  stages: stages_lib.Stages,
  preset: preset_lib.Preset,
  plan: Sequence[tuning.Settings],
  tune: str,
  fixed: Container[str] = (),
) -> list[tuning.Settings]:
  """Returns the runs of the comparison with values of grid searches but for `fixed` flags."""
  plan = [tuning.with_defaults(settings, tune) for settings in plan]
  if tune == "all":
    for grid in preset.shared_grids:
      free = {flag: values for flag, values in grid.values.items() if flag not in fixed}
      if not free:
        continue
      grid = dataclasses.replace(grid, values=free)
      what = f"tuning {' and '.join(f'--{flag}' for flag in grid.values)} with FedAvg"
      (chosen,) = stages.search(what, [tuning.shared_search(grid, preset, plan[0])])
      plan = [{**settings, **chosen} for settings in plan]
  tuned = [s for s in plan if s["seed"] == plan[0]["seed"] and tuning.is_tuned(s)]
  if not tuned:
    return list(plan)
  searches = [tuning.method_search(preset, settings) for settings in tuned]
  if warning := tuning.budget_warning(searches, plan):
    print(warning, file=sys.stderr, flush=True)
  values = stages.search("tuning each method on validation clients", searches)
  by_method = {stages_lib.key(settings): chosen for settings, chosen in zip(tuned, values)}
  plan = [{**settings, **by_method.get(stages_lib.key(settings), {})} for settings in plan]
  # Whose exact results choose the values of private runs cannot be protected by the comparison.
  return [tuning.with_held_out(settings, preset) if warning else settings for settings in plan]


def _study(experiment: str, name: str) -> types.ModuleType | None:
  """Imports the study of a preset, which is beside the library, in a clone of the project alone."""
  if not name:
    return None
  try:
    return importlib.import_module(name)
  except ModuleNotFoundError as error:
    if not name.startswith(f"{error.name}"):
      raise
    raise ValueError(
      f"Found no module {name}, which makes a page of --experiment={experiment}; expected a"
      " clone of the project, where it is beside the library."
    ) from None


def _typed(args: argparse.Namespace) -> dict[str, Any]:
  """Returns the flags that are on the command line, but for the experiment, by name."""
  own = {name: getattr(args, name) for name in _OF_A_SWEEP if getattr(args, name) is not None}
  of_runs = {name: getattr(args, name) for name in train_flags.values(args)}
  return {**of_runs, **{name: value for name, value in own.items() if value is not False}}


def main(args: argparse.Namespace) -> None:
  if args.retry_failed and not args.print_commands:
    raise ValueError(
      "Found --retry_failed without --print_commands; expected both, as a sweep that carries out"
      " runs tries those that failed again anyway."
    )
  planned, preset = plan(args), _preset(args.experiment)
  study = _study(args.experiment, preset.evaluation)
  first = run_config.from_values(**tuning.with_defaults(planned[0]))
  if preset.describes_data:
    if first.task.data_dir:  # Without it, an error says what to name.
      print(f"Reading {first.task.data_dir}", file=sys.stderr, flush=True)
    planned = plan(args, _usual_folds(args, first))
    first = run_config.from_values(**tuning.with_defaults(planned[0]))
  folder = names.run_path(first).parents[1]
  stages = stages_lib.Stages(
    args.num_workers, args.print_commands, args.retry_failed, args.scheduler
  )
  if preset.describes_data and not args.print_commands:
    describe.print_description(first)
  if not args.print_commands:
    print(f"Experiment {args.experiment} into {folder}", flush=True)
    download.for_run(first)
  tune = args.tune or ("none" if args.quick else "methods")
  try:
    planned = _tune(stages, preset, planned, tune, train_flags.values(args))
    if stages.searches:
      tuning.write(folder, stages.searches)
  except RuntimeError as error:
    cli.fail(str(error), cli.FAILED)
  configs = [run_config.from_values(**settings) for settings in planned]
  failed = stages.carry_out("every method with every seed", configs)
  if args.print_commands and failed:
    cli.fail(
      f"{len(failed)} of {len(configs)} runs failed, and no other is left: {', '.join(failed)}. The"
      " same command with --retry_failed prints them again; without --print_commands it tries them"
      " here, and reports.",
      cli.FAILED,
    )
  if args.print_commands:
    print("All runs are done; the same command without --print_commands reports.", file=sys.stderr)
    return

  # They import matplotlib, which is slow.
  from tff_superquantile.experiments.pages import page
  from tff_superquantile.experiments.report import comparison

  runs = [run for run in run_folder.find_runs(folder.parent) if run.task == folder.name]
  if any(run.finished or run.diverged for run in runs):
    asked.write(folder, args.experiment, _typed(args))
    making.make(runs)
    print("Drawing the report", file=sys.stderr, flush=True)
    reports = [comparison.report]
    if study is not None and any(run.finished for run in runs):
      reports.append(study.report)
    for report in reports:
      print(page.publish(report(folder.parent, folder.name), folder))
  if failed:
    cli.fail(f"{len(failed)} of {len(configs)} runs failed: {', '.join(failed)}.", cli.FAILED)


if __name__ == "__main__":
  sys.exit(cli.run(sys.modules[__name__]))
