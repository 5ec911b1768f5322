"""A study as somebody adds it: how many rounds did each method train? One file."""

import pandas as pd

from tff_superquantile.experiments.report import page
from tff_superquantile.experiments.report import tables
from tff_superquantile.experiments.run import run_folder


def report(output_dir, task):
  """Lists the rounds of the finished runs of a task."""
  runs = [run for run in run_folder.find_runs(output_dir) if run.task == task and run.finished]
  groups = run_folder.group_by_method(runs)
  results = tables.of_values((run.method, run.seed, {"rounds": run.last_round}) for run in runs)
  return page.Page(
    "lengths",
    runs[0].task_title,
    "how long did each method train?",
    f"{len(runs)} runs",
    f"The longest run took {results['value'].max():g} rounds.",
    [
      tables.of_seeds(
        results,
        [tables.Column("rounds", "rounds", factor=1.0, decimals=0)],
        {method: method.label for method in groups},
        title="Rounds",
      )
    ],
    tables.to_csv(task, pd.DataFrame(results)),
  )
