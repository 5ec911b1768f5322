"""Compares fixed tail fractions with an adaptive one over a simulated day.

    python -m tff_superquantile.experiments.study availability --output_dir=DIR --task=TASK

Reads the rounds.csv of a task's finished runs, all of --sampling=diurnal, and trains nothing. A
model is at its worst after hours with few clients, and the last round of training need not show
this. So a method is judged by its last 24 evaluations: by their mean, and by the worst of them.
They see every hour once if --rounds_per_evaluation is coprime to 24. Writes

    DIR/TASK/availability.{html,md,csv}    methods compared, over seeds

Errors are fractions in files and percent in tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import math
import os
import pathlib

from absl import flags
import numpy as np
import pandas as pd

from tff_superquantile.experiments.report import day
from tff_superquantile.experiments.report import page
from tff_superquantile.experiments.report import provenance
from tff_superquantile.experiments.report import style
from tff_superquantile.experiments.report import summary
from tff_superquantile.experiments.report import tables
from tff_superquantile.experiments.run import names
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.experiments.studies import finished_models
from tff_superquantile.simulation import cohorts

_NAME = "availability"
_HOURS = cohorts.ROUNDS_PER_DAY
# A method is judged by so many evaluations: one for each hour of the day.
_NUM_EVALUATIONS = _HOURS
# The figure averages more evaluations, where there are more.
_EVALUATIONS_PER_HOUR = 2
_NUM_DAYS = 10  # Clients are counted over the last days.
_NUM_ROUNDS = _NUM_DAYS * _HOURS
_STATISTICS = {"mean": "mean", "p90": "p90", "superquantile_90": "worst 10 %"}
_MEAN_ERROR = "error.mean.average"
_WORST_P90 = "error.p90.worst_hour"
_UPDATES = "updates.mean"
_ERROR_COLUMNS = tuple(
  tables.Column(f"error.{statistic}.{over}", title + suffix, decimals=2)
  for statistic, title in _STATISTICS.items()
  for over, suffix in (("average", ""), ("worst_hour", ", worst hour"))
)
_CLIENT_COLUMNS = tuple(
  tables.Column(metric, title, factor=1.0, contest=False)
  for metric, title in (
    (_UPDATES, "updates a round"),
    ("updates.least", "least"),
    ("updates.most", "most"),
    ("cohort.least", "turned up, least"),
    ("cohort.most", "turned up, most"),
  )
)


_ERROR_NOTE = (
  "Misclassification error of the test clients in %, {}: their mean, and the worst of them (worst"
  " hour), for mean, 90th percentile (p90) and mean of the worst 10 % of the clients. Entries are"
  " means, and ± the standard deviation, over seeds; the lowest of a column is bold."
)
_CLIENT_NOTE = (
  f"Over the rounds of the last {_NUM_DAYS} days: clients whose updates were averaged, mean, least"
  " and most of a round, and clients that turned up. A smaller learning rate and larger cohorts are"
  " rival remedies against the noise of rounds with few updates: try them before an adaptive θ."
)


@dataclasses.dataclass(frozen=True)
class _Measured:
  """Measurements of a run.

  Attributes:
    metrics: The numbers of the tables.
    day: The columns "quantity", "hour" and "value".
    rounds: The rounds after which the last evaluations took place, at most 24.
    last_round: The last round of training.
  """

  metrics: dict[str, float]
  day: pd.DataFrame
  rounds: np.ndarray
  last_round: int

  @property
  def num_hours(self) -> int:
    """The number of hours of the day that the last evaluations see."""
    return len({*(self.rounds % _HOURS)})

  @property
  def starts_early(self) -> bool:
    """Whether evaluations of the first half of the training are among the last ones."""
    return bool(self.rounds[0] <= self.last_round / 2)


def report(output_dir: str | os.PathLike, task: str) -> page.Page:
  """Compares the finished runs of a task over a day.

  Args:
    output_dir: The directory that holds `TASK/METHOD/seed_S/` folders.
    task: Name of the task.

  Returns:
    The page.

  Raises:
    ValueError: If there is no finished run, one has another --sampling than diurnal, or one lacks
      its evaluations.
  """
  runs = finished_models.find(output_dir, task)
  strange = [run for run in runs if run.flags.get("sampling") != "diurnal"]
  if strange:
    raise ValueError(
      f"Found --sampling={strange[0].flags.get('sampling', '')} in {strange[0].path}, and in all"
      f" {len(strange)} of {len(runs)} finished runs without hours of the day; expected diurnal in"
      " every one: pass an --output_dir that has no others."
    )
  groups = run_folder.group_by_method(runs)
  measured = {run: _measure(run) for run in runs}
  windows = list(measured.values())
  results = tables.of_values((run.method, run.seed, one.metrics) for run, one in measured.items())
  labels: dict[str, str] = {method: method.label for method in groups}
  looks = style.palette(list(groups))
  colors: dict[str, str] = {method: look.color for method, look in looks.items()}
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
        colors=colors,
        title="Error over a day",
        note=_ERROR_NOTE.format(_span(windows)),
        focus=_WORST_P90,
        lead=f"Error of the test clients in %, {_span(windows)}, mean ± sd over seeds:",
      ),
      *map(page.Text, provenance.different_seeds(groups)),
      *map(page.Text, _notes(windows)),
      tables.of_seeds(
        results,
        _CLIENT_COLUMNS,
        labels,
        colors=colors,
        title="Clients of a round",
        note=_CLIENT_NOTE,
        lead=f"Clients of a round, last {_NUM_DAYS} days:",
      ),
      _draw(groups, measured),
    ],
    tables.to_csv(task, results),
  )


def _rows(run: run_folder.Run, columns: Sequence[str]) -> pd.DataFrame:
  """Returns the rows of rounds.csv, from round 1 on, that have a number in all of these columns."""
  rounds = run.rounds
  missing = [column for column in ("round", *columns) if column not in rounds]
  if missing:
    raise ValueError(
      f"Found no column {missing[0]} in {run.path / 'rounds.csv'}; expected what a run with"
      " --sampling=diurnal leaves there."
    )
  table = pd.DataFrame({column: rounds[column] for column in ("round", *columns)})
  # Round 0 is the model before training.
  table = table[(table["round"] > 0) & np.isfinite(table).all(axis=1)]
  if table.empty:
    raise ValueError(
      f"Found no round with a number of {' and '.join(columns)} in {run.path / 'rounds.csv'};"
      " expected at least one."
    )
  return table.assign(hour=table["round"].astype(int) % _HOURS)


def _measure(run: run_folder.Run) -> _Measured:
  """Measures a run by its last evaluations, and by the hour."""
  evaluations = _rows(run, [f"test_error_{statistic}" for statistic in _STATISTICS])
  counts = _rows(run, ["cohort_size", "tail_size", *(["theta"] if _is_adaptive(run) else [])])
  counts = counts[counts["round"] > counts["round"].iloc[-1] - _NUM_ROUNDS]

  metrics = {}
  last = evaluations.tail(_NUM_EVALUATIONS)
  for statistic in _STATISTICS:
    errors = last[f"test_error_{statistic}"].to_numpy()
    metrics[f"error.{statistic}.average"] = float(errors.mean())
    metrics[f"error.{statistic}.worst_hour"] = float(errors.max())
  metrics[_UPDATES] = float(counts["tail_size"].to_numpy().mean())
  for name, column in (("updates", "tail_size"), ("cohort", "cohort_size")):
    metrics[f"{name}.least"] = float(counts[column].min())
    metrics[f"{name}.most"] = float(counts[column].max())

  # Whole passes through the day, so that no hour counts more.
  passes = min(_EVALUATIONS_PER_HOUR, max(1, len(evaluations) // _NUM_EVALUATIONS))
  recent = evaluations.tail(passes * _NUM_EVALUATIONS)
  by_hour = counts.drop(columns="round").groupby("hour").mean()
  by_hour = by_hour.join(recent.groupby("hour")["test_error_p90"].mean().rename("p90"), how="outer")
  if _is_fixed(run):
    by_hour["theta"] = float(run.flags["theta"])
  long = by_hour.rename_axis("hour").reset_index().melt("hour", var_name="quantity").dropna()
  return _Measured(metrics, long, last["round"].to_numpy(), int(run.rounds["round"][-1]))


def _is_superquantile(run: run_folder.Run) -> bool:
  return run.flags.get("algorithm") == "superquantile"


def _is_adaptive(run: run_folder.Run) -> bool:
  return _is_superquantile(run) and "wanted_updates" in run.flags


def _is_fixed(run: run_folder.Run) -> bool:
  return _is_superquantile(run) and "wanted_updates" not in run.flags and "theta" in run.flags


def _methods(groups: run_folder.Groups, kind: Callable[[run_folder.Run], bool]) -> list[names.Name]:
  return [method for method, runs in groups.items() if all(map(kind, runs))]


def _draw(groups: run_folder.Groups, measured: Mapping[run_folder.Run, _Measured]) -> style.Figure:
  """Draws the figure; of many methods, those that can be told apart and those that adapt."""
  shown = {*summary.contenders(groups), *_methods(groups, _is_adaptive)}
  days = [
    measured[run].day.assign(method=method, seed=run.seed)
    for method, runs in groups.items()
    if method in shown
    for run in runs
  ]
  return day.draw(pd.concat(days), _NUM_DAYS)


def _span(measured: Sequence[_Measured]) -> str:
  """Says which evaluations the errors are means and maxima of."""
  sizes = sorted({run.rounds.size for run in measured})
  number = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
  first = min(run.rounds[0] for run in measured)
  last = max(run.rounds[-1] for run in measured)
  hours = (
    ", each at another hour of the day"
    if all(run.num_hours == run.rounds.size > 1 for run in measured)
    else ""
  )
  return (
    f"last {number} evaluation{'' if sizes == [1] else 's'} (rounds {first:g} to {last:g}){hours}"
  )


def _summarize(
  groups: run_folder.Groups, results: pd.DataFrame, measured: Sequence[_Measured]
) -> str:
  """Says whether adapting theta helps, against each fixed tail fraction, seed by seed."""
  adaptive, fixed = _methods(groups, _is_adaptive), _methods(groups, _is_fixed)
  if not adaptive or not fixed:
    lacking = "a fixed θ" if adaptive else "an adaptive θ (--wanted_updates)"
    return f"No method has {lacking}, so there is nothing to compare."
  texts, nums_seeds = [], set()
  for method in adaptive:
    clauses = [_clause(results, method, rival) for rival in fixed]
    name = method.label
    texts.append(f"{name} {'; it '.join(text for text, _ in clauses)}")
    nums_seeds |= {num_seeds for _, num_seeds in clauses}
  text = f"At the worst hour, {'; '.join(texts)}."
  if 1 in nums_seeds:
    text += " One seed cannot tell an effect from chance."
  if any(run.starts_early for run in measured):
    text += " The runs are too short to judge by: errors of early training are among these."
  return text


def _clause(results: pd.DataFrame, method: names.Name, rival: names.Name) -> tuple[str, int]:
  """Returns the changes of a method against another in words, and the number of seeds."""
  name = rival.label
  worst, mean, updates = (
    tables.change(results, metric, rival, method) for metric in (_WORST_P90, _MEAN_ERROR, _UPDATES)
  )
  num_seeds = len(worst)
  if not num_seeds:
    return f"shares no seed with {name}, so that they cannot be compared", 0
  level = tables.of_seed(results, rival, _UPDATES)[updates.index].mean()
  share = tables.number(100 * updates.mean() / level if level else math.nan, 0, sign=True)
  unsure = tables.is_unsure(worst)
  if unsure or not worst.mean():
    verdict = "makes no sure difference"
  elif num_seeds == 1:
    verdict = "seems to help" if worst.mean() < 0 else "seems to do harm"
  else:
    verdict = "helps" if worst.mean() < 0 else "does harm"
  caution = ", no larger than its standard deviation over seeds" if unsure else ""
  return (
    f"{verdict} against {name} (p90 there {tables.points(worst)} points{caution}; mean error over"
    f" the day {tables.points(mean)}; updates {share} %; {tables.plural(num_seeds, 'seed')})",
    num_seeds,
  )


def _notes(measured: Sequence[_Measured]) -> list[str]:
  """Returns caveats on the runs' evaluations."""
  notes = []
  fewest = min(run.rounds.size for run in measured)
  hours = min(run.num_hours for run in measured)
  if fewest < _NUM_EVALUATIONS:
    notes.append(
      f"Found as few as {tables.plural(fewest, 'evaluation')} in a run; expected"
      f" {_NUM_EVALUATIONS}, so the worst hour is that of what there is, {hours} of the {_HOURS}"
      " hours."
    )
  elif hours < _HOURS:
    notes.append(
      f"The last {_NUM_EVALUATIONS} evaluations see as few as {hours} of the {_HOURS} hours, which"
      f" a --rounds_per_evaluation that is coprime to {_HOURS} mends."
    )
  early = next((run for run in measured if run.starts_early), None)
  if early:
    notes.append(
      f"The evaluations begin at round {early.rounds[0]:g} of {early.last_round}: errors from early"
      " in training are among them, and the worst hour may be one of those."
    )
  shortest = min(run.last_round for run in measured)
  if shortest < _NUM_ROUNDS:
    notes.append(
      f"Found runs of {shortest} rounds; expected {_NUM_ROUNDS} for {_NUM_DAYS} days, so clients"
      " are counted over what there is."
    )
  return notes


def define_flags() -> None:
  for name in ("output_dir", "task"):
    flags.declare_key_flag(name)


def main() -> None:
  output_dir, task, overrides = finished_models.task_of_flags()
  if overrides:
    raise ValueError(
      f"Found --{next(iter(overrides))}, which this command does not take; it reads no data."
    )
  print(page.publish(report(output_dir, task), pathlib.Path(output_dir, task)))
