"""Compares fixed tail fractions with an adaptive one over a simulated day.

    python -m paper.studies availability --output_dir=DIR --task=TASK

Reads the rounds.csv of a task's finished runs, all of --sampling=diurnal, and trains nothing. A
model is at its worst after hours with few clients, and the last round of training need not show
this. So a method is judged by its last 24 evaluations: by their mean, and by the worst of them.
They see every hour once if --rounds_per_evaluation is coprime to 24. Writes

    DIR/TASK/availability.{html,md,csv}    methods compared, over seeds

Errors are fractions in files and percent in tables.
"""

from __future__ import annotations

from collections.abc import Mapping
import math
import os

import pandas as pd

from paper.studies import by_seed
from paper.studies import day
from paper.studies import finished_models
from tff_superquantile.experiments import finished_run
from tff_superquantile.experiments.report import grouped
from tff_superquantile.experiments.report import page
from tff_superquantile.experiments.report import provenance
from tff_superquantile.experiments.report import style
from tff_superquantile.experiments.report import tables
from tff_superquantile.experiments.run import names
from tff_superquantile.experiments.run import run_folder

_NAME = "availability"
_MEAN_ERROR = "error.mean.average"
_WORST_P90 = "error.p90.worst_hour"
_UPDATES = "updates.mean"
_ERROR_COLUMNS = tuple(
  tables.Column(f"error.{statistic}.{over}", title + suffix, decimals=2)
  for statistic, title in day.STATISTICS.items()
  for over, suffix in (("average", ""), ("worst_hour", ", worst hour"))
)
_CLIENT_COLUMNS = tuple(
  tables.Column(metric, title, factor=1.0, contest=False) for metric, title in day.COUNTS.items()
)
_ERROR_NOTE = (
  "Misclassification error of the test clients in %, {}: their mean, and the worst of them (worst"
  " hour), for mean, 90th percentile (p90) and mean of the worst 10 % of the clients. Entries are"
  " means, and ± the standard deviation, over seeds; the lowest of a column is bold."
)
_CLIENT_NOTE = (
  f"Over the rounds of the last {day.NUM_DAYS} days: clients whose updates were averaged, mean,"
  " least and most of a round, and clients that turned up. A smaller learning rate and larger"
  " cohorts are rival remedies against the noise of rounds with few updates: try them before an"
  " adaptive θ."
)


def report(output_dir: str | os.PathLike, task: str) -> page.Page:
  """Compares the finished runs of a task over a day.

  It refuses runs of another --sampling than diurnal or without their evaluations, and labels that
  are numbers.
  """
  runs = finished_models.find(output_dir, task)
  strange = [run for run in runs if run.flags.get("sampling") != "diurnal"]
  if strange:
    raise ValueError(
      f"Found --sampling={strange[0].flags.get('sampling', '')} in {strange[0].path}, and in all"
      f" {len(strange)} of {len(runs)} finished runs without hours of the day; expected diurnal in"
      " every one: pass an --output_dir that has no others."
    )
  finished_run.check_classes(runs[0])
  groups = grouped.by_method(runs)
  measured = {run: day.measure(run) for run in runs}
  windows = pd.DataFrame([one.window for one in measured.values()])
  results = tables.of_values((run.method, run.seed, one.metrics) for run, one in measured.items())
  labels: dict[str, str] = {method: method.label for method in groups}
  return page.Page(
    _NAME,
    f"{runs[0].task_title}, availability",
    "what if θ adapts to the number of clients?",
    f"{tables.plural(len(groups), 'method')}, {tables.plural(len(runs), 'run')}, cohorts that"
    " follow the hour of the day",
    _summarize(groups, results, windows),
    [
      tables.of_seeds(
        results,
        _ERROR_COLUMNS,
        labels,
        title="Error over a day",
        note=_ERROR_NOTE.format(_span(windows)),
        focus=_WORST_P90,
        lead=f"Error of the test clients in %, {_span(windows)}, mean ± sd over seeds:",
      ),
      *map(page.Text, [*provenance.different_seeds(groups), *_notes(windows)]),
      tables.of_seeds(
        results,
        _CLIENT_COLUMNS,
        labels,
        title="Clients of a round",
        note=_CLIENT_NOTE,
        lead=f"Clients of a round, last {day.NUM_DAYS} days:",
      ),
      _draw(groups, measured),
    ],
    tables.to_csv(task, results),
  )


def _draw(groups: grouped.Grouped, measured: Mapping[run_folder.Run, day.Day]) -> style.Figure:
  """Draws the figure; of many methods, those that can be told apart and those that adapt."""
  shown = groups.contenders
  methods = [m for m in groups if m in shown or (m.is_superquantile and m.theta is None)]
  days = [
    measured[run].day.assign(method=method, seed=run.seed)
    for method in methods
    for run in groups[method]
  ]
  return day.draw(pd.concat(days), methods)


def _span(windows: pd.DataFrame) -> str:
  """Says which evaluations the errors are means and maxima of."""
  least, most = windows["number"].min(), windows["number"].max()
  number = tables.plural(most, "evaluation") if least == most else f"{least} to {most} evaluations"
  differ = least > 1 and (windows["hours"] == windows["number"]).all()
  hours = ", each at another hour of the day" if differ else ""
  return f"last {number} (rounds {windows['first'].min()} to {windows['last'].max()}){hours}"


def _starts_early(windows: pd.DataFrame) -> pd.DataFrame:
  """Returns the windows that begin in the first half of the training."""
  return windows[windows["first"] <= windows["num_rounds"] / 2]


def _summarize(groups: run_folder.Groups, results: pd.DataFrame, windows: pd.DataFrame) -> str:
  """Says whether adapting theta helps, against each fixed tail fraction, seed by seed."""
  tails = [method for method in groups if method.is_superquantile]
  adaptive = [method for method in tails if method.theta is None]
  fixed = [method for method in tails if method.theta is not None]
  if not adaptive or not fixed:
    lacking = "a fixed θ" if adaptive else "an adaptive θ (--wanted_updates)"
    return f"No method has {lacking}, so there is nothing to compare."
  clauses = {method: [_clause(results, method, rival) for rival in fixed] for method in adaptive}
  texts = (
    f"{method.label} {'; it '.join(text for text, _ in found)}" for method, found in clauses.items()
  )
  text = f"At the worst hour, {'; '.join(texts)}."
  if any(num_seeds == 1 for found in clauses.values() for _, num_seeds in found):
    text += " One seed cannot tell an effect from chance."
  if not _starts_early(windows).empty:
    text += " The runs are too short to judge by: errors of early training are among these."
  return text


def _clause(results: pd.DataFrame, method: names.Name, rival: names.Name) -> tuple[str, int]:
  """Returns the changes of a method against another in words, and the number of seeds."""
  name = rival.label
  worst, mean, updates = (
    by_seed.change(results, metric, rival, method) for metric in (_WORST_P90, _MEAN_ERROR, _UPDATES)
  )
  num_seeds = len(worst)
  if not num_seeds:
    return f"shares no seed with {name}, so that they cannot be compared", 0
  level = by_seed.of_seed(results, rival, _UPDATES)[updates.index].mean()
  share = tables.number(100 * updates.mean() / level if level else math.nan, 0, sign=True)
  unsure = by_seed.is_unsure(worst)
  if unsure or not worst.mean():
    verdict = "makes no sure difference"
  elif num_seeds == 1:
    verdict = "seems to help" if worst.mean() < 0 else "seems to do harm"
  else:
    verdict = "helps" if worst.mean() < 0 else "does harm"
  caution = ", no larger than its standard deviation over seeds" if unsure else ""
  return (
    f"{verdict} against {name} (p90 there {by_seed.points(worst)} points{caution}; mean error"
    f" over the day {by_seed.points(mean)}; updates {share} %;"
    f" {tables.plural(num_seeds, 'seed')})",
    num_seeds,
  )


def _notes(windows: pd.DataFrame) -> list[str]:
  """Returns caveats on the runs' evaluations."""
  notes = []
  fewest, hours, shortest = windows[["number", "hours", "num_rounds"]].min()
  if fewest < day.HOURS:
    notes.append(
      f"Found as few as {tables.plural(fewest, 'evaluation')} in a run; expected"
      f" {day.HOURS}, so the worst hour is that of what there is, {hours} of the {day.HOURS}"
      " hours."
    )
  elif hours < day.HOURS:
    notes.append(
      f"The last {day.HOURS} evaluations see as few as {hours} of the {day.HOURS} hours, which"
      f" a --rounds_per_evaluation that is coprime to {day.HOURS} mends."
    )
  for early in _starts_early(windows).head(1).itertuples():
    notes.append(
      f"The evaluations begin at round {early.first} of {early.num_rounds}: errors from early in"
      " training are among them, and the worst hour may be one of those."
    )
  if shortest < day.NUM_ROUNDS:
    notes.append(
      f"Found runs of {shortest} rounds; expected {day.NUM_ROUNDS} for {day.NUM_DAYS} days, so"
      " clients are counted over what there is."
    )
  return notes
