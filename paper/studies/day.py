"""A simulated day: clients that turn up, clients that train, and the error, measured and drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import math
from typing import Any, NamedTuple

from matplotlib import figure as mpl_figure
import numpy as np
import pandas as pd

from tff_superquantile.experiments.report import rounds
from tff_superquantile.experiments.report import style
from tff_superquantile.experiments.run import names
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.simulation import cohorts

# A method is judged by as many evaluations, one for each hour.
HOURS = cohorts.ROUNDS_PER_DAY
# The figure averages more of them, where there are more.
_EVALUATIONS_PER_HOUR = 2
NUM_DAYS = 10  # Over which rounds are counted, the last ones.
NUM_ROUNDS = NUM_DAYS * HOURS
# Of the errors that are measured, and the numbers of clients, with their titles.
STATISTICS = {"mean": "mean", "p90": "p90", "superquantile_90": "worst 10 %"}
COUNTS = {
  "updates.mean": "updates a round",
  "updates.least": "least",
  "updates.most": "most",
  "cohort.least": "turned up, least",
  "cohort.most": "turned up, most",
}
_COLUMNS = {"updates": "tail_size", "cohort": "cohort_size"}
_AGGREGATES: dict[str, Callable[[np.ndarray], Any]] = {
  "average": np.mean,
  "worst_hour": np.max,
  "mean": np.mean,
  "least": np.min,
  "most": np.max,
}
_PANELS = (
  ("tail_size", "Clients that trained (area: turned up)", 1),
  ("theta", "Tail fraction θ", 1),
  ("p90", "90th percentile of error (%)", 100),
)


class Day(NamedTuple):
  """Measurements of a run: errors over the last 24 evaluations, `COUNTS` over the last days.

  `day` has the columns "quantity", "hour" and "value". `window` has of those evaluations their
  "number", the number of "hours" of the day that they see, the "first" and the "last" round that
  they follow; and the run's "num_rounds".
  """

  metrics: dict[str, float]
  day: pd.DataFrame
  window: dict[str, int | None]


def measure(run: run_folder.Run) -> Day:
  """Measures a run with --sampling=diurnal by its last evaluations, and by the hour."""
  is_adaptive = run.method.is_superquantile and run.method.theta is None
  evaluations = _rows(run, [f"test_error_{statistic}" for statistic in STATISTICS])
  counts = _rows(run, ["cohort_size", "tail_size", *(["theta"] if is_adaptive else [])])
  counts = counts[counts["round"] > counts["round"].iloc[-1] - NUM_ROUNDS]
  last = evaluations.tail(HOURS)
  values = {
    **{
      f"error.{statistic}.{over}": last[f"test_error_{statistic}"]
      for statistic in STATISTICS
      for over in ("average", "worst_hour")
    },
    **{metric: counts[_COLUMNS[metric.split(".")[0]]] for metric in COUNTS},
  }
  metrics = {
    metric: float(_AGGREGATES[metric.split(".")[-1]](column.to_numpy()))
    for metric, column in values.items()
  }
  # Whole passes through the day, so that no hour counts more.
  passes = min(_EVALUATIONS_PER_HOUR, max(1, len(evaluations) // HOURS))
  recent = evaluations.tail(passes * HOURS)
  by_hour = counts.drop(columns="round").groupby("hour").mean()
  by_hour = by_hour.join(recent.groupby("hour")["test_error_p90"].mean().rename("p90"), how="outer")
  if run.method.is_superquantile and not is_adaptive:
    by_hour["theta"] = run.method.theta
  long = by_hour.rename_axis("hour").reset_index().melt("hour", var_name="quantity").dropna()
  rounds = last["round"].astype(int)
  window = {
    "number": len(rounds),
    "hours": last["hour"].nunique(),
    "first": rounds.iloc[0],
    "last": rounds.iloc[-1],
    "num_rounds": run.last_round,
  }
  return Day(metrics, long, window)


def _rows(run: run_folder.Run, columns: Sequence[str]) -> pd.DataFrame:
  """Returns the rows of rounds.csv, from round 1 on, that have a number in all of these columns."""
  table = pd.DataFrame(run.rounds)
  missing = [column for column in ("round", *columns) if column not in table]
  if missing:
    raise ValueError(
      f"Found no column {missing[0]} in {run.path / 'rounds.csv'}; expected what a run with"
      " --sampling=diurnal leaves there."
    )
  # Round 0 is the model before training.
  table = table.loc[table["round"] > 0, ["round", *columns]]
  table = table[np.isfinite(table).all(axis=1)]
  if table.empty:
    raise ValueError(
      f"Found no round with a number of {' and '.join(columns)} in {run.path / 'rounds.csv'};"
      " expected at least one."
    )
  return table.assign(hour=table["round"].astype(int) % HOURS)


def draw(days: pd.DataFrame, methods: Sequence[names.Name]) -> style.Figure:
  """Draws a day.

  `days` has the columns "method", "seed", "quantity", "hour" and "value" (not NaN); quantities are
  "cohort_size", "tail_size", "p90" (a fraction) and, for methods that have a tail fraction,
  "theta".
  """
  # Hour 24 repeats hour 0, to close the day.
  midnight = days[days["hour"] == 0].assign(hour=HOURS)
  closed = pd.concat([days, midnight]).groupby(["method", "quantity", "hour"])["value"]
  over_seeds = closed.agg(["mean", "std"])
  looks = style.palette(methods)
  found = set(days["quantity"])
  panels = [panel for panel in _PANELS if panel[0] in found]
  with style.theme():
    figure = mpl_figure.Figure((style.WIDTH, 3.4))
    grid = figure.subplots(1, len(panels), squeeze=False)
    for axes, (quantity, title, factor) in zip(grid[0], panels):
      if quantity == "tail_size":
        # A seed draws the same cohorts with every method.
        turned_up = over_seeds.loc[(methods[0], "cohort_size"), "mean"]
        axes.fill_between(turned_up.index, turned_up, color=style.INK, alpha=0.13, linewidth=0)
      for method in methods:
        if (method, quantity) in over_seeds.index.droplevel("hour"):
          curve = factor * over_seeds.loc[(method, quantity)]
          if quantity != "p90":
            curve = curve.assign(std=math.nan)
          # Evaluations are fewer than rounds.
          rounds.add_curve(axes, curve, looks[method], 0.12, "." if quantity == "p90" else "")
      axes.set_title(title)
      axes.set_xlim(0, HOURS)
      axes.set_xticks(np.linspace(0, HOURS, 5))
      if quantity != "p90":
        axes.set_ylim(bottom=0)
    figure.supxlabel("Hour of the day", fontsize="medium")
    style.add_legend(figure, looks, methods)
    svg = style.to_svg(figure)
  return style.Figure(
    "day",
    "A day",
    f"By the hour, which is the round modulo {HOURS}, mean over seeds. First the clients that"
    f" turned up for a round and those that trained, mean over the last {NUM_DAYS} days; then the"
    " tail fraction, over the same days; then the 90th percentile of the test clients’ errors, of"
    " the last evaluations at that hour (two if there are enough, the table has the last one). The"
    " band is one standard deviation over seeds on either side. Look at the error after the hours"
    " with few clients: if it rises then, and falls when clients come back, it is the noise of a"
    " small tail.",
    svg,
  )
