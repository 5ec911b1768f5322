"""What a tail fraction that follows who turns up changes, by the hour of the simulated day.

    python -m tff_superquantile.experiments.availability --output_dir=DIR --task=TASK

Reads the rounds.csv of a task's finished runs, all of --sampling=diurnal, and trains nothing. After
the hours in which few clients turn up a model is at its worst, which the last round of training
need not show. So a method is judged by its last 24 evaluations, which see every hour once where
--rounds_per_evaluation is coprime to 24: by their mean, and by the worst of them. Writes

    DIR/TASK/availability.{html,md,csv}    methods compared, over seeds

Errors are fractions in files and percent in tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import datetime
import os
import pathlib

from absl import flags
import markupsafe
import numpy as np

from tff_superquantile.experiments import availability_plots
from tff_superquantile.experiments import cli
from tff_superquantile.experiments import comparison
from tff_superquantile.experiments import finished_models
from tff_superquantile.experiments import method_names
from tff_superquantile.experiments import pages
from tff_superquantile.experiments import plot_style
from tff_superquantile.experiments import plots
from tff_superquantile.experiments import run_folder
from tff_superquantile.experiments import seed_tables
from tff_superquantile.simulation import cohorts

_NAME = "availability"
_HOURS = cohorts.ROUNDS_PER_DAY
# By which a method is judged: one for each hour of the day.
_NUM_EVALUATIONS = _HOURS
# The figure averages more of them, where there are more.
_EVALUATIONS_PER_HOUR = 2
_NUM_DAYS = 10  # Over which rounds are counted, the last ones.
_NUM_ROUNDS = _NUM_DAYS * _HOURS
_STATISTICS = {"mean": "mean", "p90": "p90", "superquantile_90": "worst 10 %"}
_MEAN_ERROR = "error.mean.average"
_WORST_P90 = "error.p90.worst_hour"
_UPDATES = "updates.mean"
_ERROR_COLUMNS = tuple(
  comparison.Column(f"error.{statistic}.{over}", title + suffix, decimals=2)
  for statistic, title in _STATISTICS.items()
  for over, suffix in (("average", ""), ("worst_hour", ", worst hour"))
)
_CLIENT_COLUMNS = tuple(
  comparison.Column(metric, title, factor=1.0, contest=False)
  for metric, title in (
    (_UPDATES, "updates a round"),
    ("updates.least", "least"),
    ("updates.most", "most"),
    ("cohort.least", "turned up, least"),
    ("cohort.most", "turned up, most"),
  )
)


@dataclasses.dataclass(frozen=True)
class _Window:
  """What a run is judged by.

  Attributes:
    rounds: The rounds after which the last evaluations took place, at most 24.
    num_hours: How many hours of the day they see.
    last_round: The last round of training.
  """

  rounds: np.ndarray
  num_hours: int
  last_round: int


@dataclasses.dataclass(frozen=True)
class _Done:
  """What was found of a task.

  Attributes:
    task: Name of the task.
    groups: Finished runs by method.
    values: {method: {metric: {seed: value}}}.
    days: As `availability_plots.draw` takes them.
    windows: Of every run.
  """

  task: str
  groups: run_folder.Groups
  values: seed_tables.Results
  days: availability_plots.Days
  windows: list[_Window]

  @property
  def names(self) -> dict[str, str]:
    return {method: method_names.display_name(method) for method in self.groups}


def _rows(run: run_folder.Run, columns: Sequence[str]) -> dict[str, np.ndarray]:
  """The rows of rounds.csv, from round 1 on, that have a number in all of these columns."""
  rounds = run.rounds
  missing = [column for column in ("round", *columns) if column not in rounds]
  if missing:
    raise ValueError(
      f"Found no column {missing[0]} in {run.path / 'rounds.csv'}; expected what a run with"
      " --sampling=diurnal leaves there."
    )
  # Round 0 is the model before training.
  keep = rounds["round"] > 0
  for column in columns:
    keep &= np.isfinite(rounds[column])
  if not keep.any():
    raise ValueError(
      f"Found no round with a number of {' and '.join(columns)} in {run.path / 'rounds.csv'};"
      " expected at least one."
    )
  return {column: rounds[column][keep] for column in ("round", *columns)}


def _by_hour(rounds: np.ndarray, values: np.ndarray) -> np.ndarray:
  """Means over the rounds of each hour of the day, of shape [24]; NaN for an hour without any."""
  hours = rounds.astype(int) % _HOURS
  counts = np.bincount(hours, minlength=_HOURS)
  sums = np.bincount(hours, values, minlength=_HOURS)
  return np.divide(sums, counts, out=np.full(_HOURS, np.nan), where=counts > 0)


def _measure(run: run_folder.Run) -> tuple[dict[str, float], dict[str, np.ndarray], _Window]:
  """A run's metrics, its quantities by hour, and what it is judged by."""
  evaluations = _rows(run, [f"test_error_{statistic}" for statistic in _STATISTICS])
  counts = _rows(run, ["cohort_size", "tail_size", *(["theta"] if _is_adaptive(run) else [])])
  late = counts["round"] > counts["round"][-1] - _NUM_ROUNDS
  counts = {column: values[late] for column, values in counts.items()}

  metrics = {}
  for statistic in _STATISTICS:
    errors = evaluations[f"test_error_{statistic}"][-_NUM_EVALUATIONS:]
    metrics[f"error.{statistic}.average"] = float(errors.mean())
    metrics[f"error.{statistic}.worst_hour"] = float(errors.max())
  metrics[_UPDATES] = float(counts["tail_size"].mean())
  for name, column in (("updates", "tail_size"), ("cohort", "cohort_size")):
    metrics[f"{name}.least"] = float(counts[column].min())
    metrics[f"{name}.most"] = float(counts[column].max())

  seen = evaluations["round"][-_NUM_EVALUATIONS:]
  # Whole passes through the day, so that no hour counts more.
  passes = min(_EVALUATIONS_PER_HOUR, max(1, evaluations["round"].size // _NUM_EVALUATIONS))
  recent = {name: values[-passes * _NUM_EVALUATIONS :] for name, values in evaluations.items()}
  day = {name: _by_hour(counts["round"], values) for name, values in counts.items()}
  del day["round"]
  day["p90"] = _by_hour(recent["round"], recent["test_error_p90"])
  if _is_fixed(run):
    day["theta"] = np.full(_HOURS, float(run.flags["theta"]))
  return metrics, day, _Window(seen, len({*(seen % _HOURS)}), int(run.rounds["round"][-1]))


def _is_superquantile(run: run_folder.Run) -> bool:
  return run.flags.get("algorithm") == "superquantile"


def _is_adaptive(run: run_folder.Run) -> bool:
  return _is_superquantile(run) and "wanted_updates" in run.flags


def _is_fixed(run: run_folder.Run) -> bool:
  return _is_superquantile(run) and "wanted_updates" not in run.flags and "theta" in run.flags


def _read(output_dir: str | os.PathLike, task: str) -> _Done:
  runs = finished_models.find(output_dir, task)
  strange = [run for run in runs if run.flags.get("sampling") != "diurnal"]
  if strange:
    raise ValueError(
      f"Found --sampling={strange[0].flags.get('sampling', '')} in {strange[0].path}, and in all"
      f" {len(strange)} of {len(runs)} finished runs without hours of the day; expected diurnal in"
      " every one: pass an --output_dir that has no others."
    )
  groups = run_folder.group_by_method(runs)
  values: dict[str, dict[str, dict[int, float]]] = {}
  days: dict[str, dict[str, np.ndarray]] = {}
  windows = []
  for method, of_method in groups.items():
    measured = [_measure(run) for run in of_method]
    windows += [window for _, _, window in measured]
    metrics = values.setdefault(method, {})
    for run, (numbers, _, _) in zip(of_method, measured):
      for metric, value in numbers.items():
        metrics.setdefault(metric, {})[run.seed] = value
    days[method] = {
      quantity: np.stack([day[quantity] for _, day, _ in measured if quantity in day])
      for quantity in dict.fromkeys(name for _, day, _ in measured for name in day)
    }
  return _Done(task, groups, values, days, windows)


def _methods(done: _Done, kind: Callable[[run_folder.Run], bool]) -> list[str]:
  return [method for method, runs in done.groups.items() if all(map(kind, runs))]


def run_and_describe(output_dir: str | os.PathLike, task: str) -> str:
  """Writes the report of a task's finished runs, replacing an earlier one.

  Args:
    output_dir: The directory that holds `TASK/METHOD/seed_S/` folders.
    task: Name of the task.

  Returns:
    What there is to say about it in a terminal: the summary, the tables, where the report is.

  Raises:
    ValueError: If there is no finished run, one has another --sampling than diurnal, or one lacks
      its evaluations.
  """
  done = _read(output_dir, task)
  tables = {
    "errors": seed_tables.rows(_ERROR_COLUMNS, done.values, done.names),
    "clients": seed_tables.rows(_CLIENT_COLUMNS, done.values, done.names),
  }
  content = dict(
    task=method_names.task_title(task),
    summary=_summary(done),
    span=_span(done),
    num_days=_NUM_DAYS,
    notes=_notes(done),
  )
  page = pages.render(
    "availability.html.j2",
    **content,
    **tables,
    error_columns=_ERROR_COLUMNS,
    client_columns=_CLIENT_COLUMNS,
    focus=_WORST_P90,
    looks=plot_style.palette(list(done.groups)),
    figure=_draw(done),
    today=datetime.date.today().isoformat(),
  )
  in_markdown = {
    name: markupsafe.Markup(comparison.markdown_table(columns, tables[name]))
    for name, columns in (("errors", _ERROR_COLUMNS), ("clients", _CLIENT_COLUMNS))
  }
  paths = finished_models.write_reports(
    output_dir,
    task,
    _NAME,
    {
      "html": page,
      "md": pages.render("availability.md.j2", **content, **in_markdown),
      "csv": seed_tables.csv_text(task, "method", done.values),
    },
  )
  return _terminal_text(done, tables, paths)


def _draw(done: _Done) -> plots.Figure:
  """Draws the figure; of many methods, those that can be told apart and those that adapt."""
  shown = {*comparison.contenders(done.groups), *_methods(done, _is_adaptive)}
  return availability_plots.draw(
    {method: day for method, day in done.days.items() if method in shown}, _NUM_DAYS
  )


def _terminal_text(
  done: _Done,
  tables: Mapping[str, list[comparison.Row]],
  paths: Mapping[str, pathlib.Path],
) -> str:
  lines = [
    f"{method_names.task_title(done.task)}, availability: {_summary(done)}",
    "",
    f"Error of the test clients in %, {_span(done)}, mean ± sd over seeds:",
    "",
    comparison.markdown_table(_ERROR_COLUMNS, tables["errors"], mark=False),
    "",
    f"Clients of a round, last {_NUM_DAYS} days:",
    "",
    comparison.markdown_table(_CLIENT_COLUMNS, tables["clients"], mark=False),
    "",
    *_notes(done),
  ]
  return "\n".join([*lines, "Report:", *[f"  {path}" for path in paths.values()]])


def _span(done: _Done) -> str:
  """What the errors are means and maxima of."""
  sizes = sorted({window.rounds.size for window in done.windows})
  number = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
  first = min(window.rounds[0] for window in done.windows)
  last = max(window.rounds[-1] for window in done.windows)
  plural = "" if sizes == [1] else "s"
  hours = (
    ", each at another hour of the day"
    if all(window.num_hours == window.rounds.size > 1 for window in done.windows)
    else ""
  )
  return f"last {number} evaluation{plural} (rounds {first:g} to {last:g}){hours}"


def _summary(done: _Done) -> str:
  """Whether following who turns up helps, against each fixed tail fraction, seed by seed."""
  adaptive, fixed = _methods(done, _is_adaptive), _methods(done, _is_fixed)
  if not adaptive or not fixed:
    lacking = "a fixed θ" if adaptive else "a θ that follows who turns up (--wanted_updates)"
    return f"No method has {lacking}, so there is nothing to compare."
  texts, nums_seeds = [], set()
  for method in adaptive:
    clauses = [_clause(done, method, rival) for rival in fixed]
    texts.append(f"{done.names[method]} {'; it '.join(text for text, _ in clauses)}")
    nums_seeds |= {num_seeds for _, num_seeds in clauses}
  text = f"At the worst hour, {'; '.join(texts)}."
  if 1 in nums_seeds:
    text += " One seed cannot tell an effect from chance."
  if any(map(_starts_early, done.windows)):
    text += " The runs are too short to judge by: these errors are of the start of training, too."
  return text


def _starts_early(window: _Window) -> bool:
  """Whether evaluations of the first half of the training are among the last ones."""
  return bool(window.rounds[0] <= window.last_round / 2)


def _clause(done: _Done, method: str, rival: str) -> tuple[str, int]:
  """What a method changes against another, and over how many seeds."""
  before, after = done.values[rival], done.values[method]
  name = done.names[rival]
  worst, mean, updates = (
    seed_tables.change(before[metric], after[metric])
    for metric in (_WORST_P90, _MEAN_ERROR, _UPDATES)
  )
  if worst is None or mean is None or updates is None:
    return f"shares no seed with {name}, so that they cannot be compared", 0
  shared = before[_UPDATES].keys() & after[_UPDATES].keys()
  level = float(np.mean([before[_UPDATES][seed] for seed in shared]))
  share = seed_tables.number(
    updates.mean / level if level else np.nan, comparison.Column("", "", decimals=0)
  )
  share = share if share.startswith(("−", "NaN")) or share == "0" else f"+{share}"
  unsure = worst.num_seeds > 1 and abs(worst.mean) <= worst.sd
  if unsure or not worst.mean:
    verdict = "makes no sure difference"
  elif worst.num_seeds == 1:
    verdict = "seems to help" if worst.mean < 0 else "seems to do harm"
  else:
    verdict = "helps" if worst.mean < 0 else "does harm"
  caution = ", no larger than its standard deviation over seeds" if unsure else ""
  return (
    f"{verdict} against {name} (p90 there {seed_tables.points(worst)} points{caution}; mean error"
    f" over the day {seed_tables.points(mean)}; updates {share} %;"
    f" {worst.num_seeds} seed{'' if worst.num_seeds == 1 else 's'})",
    worst.num_seeds,
  )


def _notes(done: _Done) -> list[str]:
  notes = []
  seeds = {frozenset(run.seed for run in runs) for runs in done.groups.values()}
  if len(seeds) > 1:
    notes.append("The methods ran with different seeds, so compare rows with care.")
  fewest = min(window.rounds.size for window in done.windows)
  hours = min(window.num_hours for window in done.windows)
  if fewest < _NUM_EVALUATIONS:
    notes.append(
      f"Found as few as {fewest} evaluation{'' if fewest == 1 else 's'} in a run; expected"
      f" {_NUM_EVALUATIONS}, so the worst hour is that of what there is, {hours} of the {_HOURS}"
      " hours."
    )
  elif hours < _HOURS:
    notes.append(
      f"The last {_NUM_EVALUATIONS} evaluations see as few as {hours} of the {_HOURS} hours, which"
      f" a --rounds_per_evaluation that is coprime to {_HOURS} mends."
    )
  early = next(filter(_starts_early, done.windows), None)
  if early:
    notes.append(
      f"The evaluations begin at round {early.rounds[0]:g} of {early.last_round}: errors from early"
      " in training are among them, and the worst hour may be one of those."
    )
  shortest = min(window.last_round for window in done.windows)
  if shortest < _NUM_ROUNDS:
    notes.append(
      f"Found runs of {shortest} rounds; expected {_NUM_ROUNDS} for {_NUM_DAYS} days, so clients"
      " are counted over what there is."
    )
  return notes


def main() -> None:
  output_dir, task, overrides = finished_models.task_of_flags()
  if overrides:
    raise ValueError(
      f"Found --{next(iter(overrides))}, which this command does not take; it reads no data."
    )
  print(run_and_describe(output_dir, task))


if __name__ == "__main__":
  # Here and not on import, as a sweep imports this module.
  for _flag in ("output_dir", "task"):
    flags.declare_key_flag(_flag)
  cli.run(main)
