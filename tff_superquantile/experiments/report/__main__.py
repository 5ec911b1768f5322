"""Compares the finished runs of each task in a page, a Markdown table and a CSV file.

    superquantile report --output_dir=DIR

reads `DIR/TASK/METHOD/seed_S/` (see `run_folder`) and writes, for each task with a finished run,

    DIR/TASK/report.html   one self-contained page: summary, table, figures, how it was run
    DIR/TASK/report.md     summary and table
    DIR/TASK/report.csv    one row for each method and metric, with the columns
        task, method   folder names
        metric         `SPLIT.loss.STATISTIC` (nats), `SPLIT.error.STATISTIC` (fraction, not
                       percent; of numbers in standard deviations of the labels), everything in the
                       runs' metrics.json, and `seconds_per_round`
        mean, sd       over seeds; sd has the divisor n - 1 and is blank for one seed
        num_seeds      the number n of runs that have the metric
        decision       the page's summary, in the first row

Unfinished runs are listed and otherwise left out; where all diverged, the page says so alone.
`--figures_dir=DIR` writes the figures as files, too. The command needs no TensorFlow.
"""

import argparse
import pathlib
import sys

from privacy.settings import command_line
from tff_superquantile import atomic_files
from tff_superquantile.experiments import cli
from tff_superquantile.experiments.run import run_folder


def define(parser: command_line.Parser) -> None:
  output_dir = "Directory with the runs, TASK/METHOD/seed_S/."
  command_line.add_flag(parser, "output_dir", str, "results", output_dir)
  figures_dir = "Directory for the figures as SVG files; empty for none."
  command_line.add_flag(parser, "figures_dir", str, "", figures_dir)


def main(args: argparse.Namespace) -> None:
  # They import matplotlib, which is slow.
  from tff_superquantile.experiments.pages import page
  from tff_superquantile.experiments.pages import tables
  from tff_superquantile.experiments.report import comparison

  runs = run_folder.find_runs(args.output_dir)
  tasks = sorted({run.task for run in runs if run.finished or run.diverged})
  if not tasks:
    unfinished = f" but {tables.plural(len(runs), 'unfinished one')}" if runs else ""
    raise ValueError(
      f"Found no finished run in {args.output_dir}{unfinished}; run ./run_experiments.sh first or"
      " pass --output_dir."
    )
  if args.figures_dir:
    atomic_files.make_folder("figures_dir", pathlib.Path(args.figures_dir))
  for task in tasks:
    print(f"Drawing the report of {task}", file=sys.stderr, flush=True)
    content = comparison.report(args.output_dir, task)
    print(page.publish(content, pathlib.Path(args.output_dir, task)))
    if args.figures_dir:
      paths = page.write_figures(content, pathlib.Path(args.figures_dir), f"{task}-")
      print("Figures:", *paths, sep="\n  ")
    print()


if __name__ == "__main__":
  sys.exit(cli.run(sys.modules[__name__]))
