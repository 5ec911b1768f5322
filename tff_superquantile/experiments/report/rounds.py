"""Figures of the rounds: error, loss, threshold and tail against rounds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from matplotlib import axes as mpl_axes
from matplotlib import ticker
import numpy as np
import pandas as pd

from tff_superquantile.experiments.config import names
from tff_superquantile.experiments.evidence import grouped
from tff_superquantile.experiments.pages import style
from tff_superquantile.experiments.run import run_folder

# More points than pixels only make the page heavy.
_MAX_POINTS = 400
_WORST = "max"  # Runs have no number of it: it follows from the clients.


class _Panel(NamedTuple):
  """A column of `rounds.csv`, with the factor to the unit of its title."""

  column: str
  title: str
  factor: float = 1.0
  is_smooth: bool = False  # True draws moving means.
  least_span: float = 0.0  # Of the vertical axis.


def error_by_round(groups: grouped.Grouped) -> style.Figure:
  """Draws mean and tail of the test clients' error against rounds, averaged over seeds."""
  leading = groups.leading_by_round
  of_it, unit, column = leading.words, leading.unit, f"test_{leading.name}"
  titles = {"mean": f"Mean {of_it}"}
  if groups.are_few():
    titles[_WORST] = f"{leading.title} of the worst client"
  else:
    titles["p90"] = f"90th percentile of {of_it}"
    titles["superquantile_90"] = f"{leading.title} of worst 10 %"
  caption = (
    "Test clients, mean over seeds; the band is one standard deviation over seeds on either side."
    " The first rounds may lie above the axis. Look whether the tail falls further than FedAvg’s"
    " while the mean stays close, and whether the curves are level at the end: a gap between curves"
    " that still fall may yet change."
  )
  if leading.name != groups.leading.name:
    caption += f" It is the {of_it}, as the evaluations of these runs have no other measure."
  panels = [
    _Panel(f"{column}_{statistic}", unit.axis(title), unit.factor, least_span=unit.least_span)
    for statistic, title in titles.items()
  ]
  drawn = _panels(groups, panels, share=True)
  return style.Figure("error-by-round", f"{leading.title} against rounds", caption, drawn)


def selection_by_round(groups: grouped.Grouped) -> style.Figure:
  """Draws the number of clients that trained, and the threshold, against rounds."""
  unit = groups.task_units.loss
  return style.Figure(
    "selection-by-round",
    "Selected clients and threshold",
    "The number of clients at or above the threshold, which therefore trained, and the threshold"
    " itself; moving means over a fiftieth of the rounds, band as above. Look for a number of"
    " clients near θ times the cohort (dotted, where θ is known) and a threshold that settles; a"
    " private threshold is noisier.",
    _panels(
      groups,
      (
        _Panel("tail_size", "Clients that trained", is_smooth=True),
        _Panel("threshold", f"Threshold (loss, {unit.symbol})", is_smooth=True),
      ),
    ),
  )


def loss_by_round(groups: grouped.Grouped) -> style.Figure:
  """Draws the losses of training, cohort and test clients against rounds, averaged over seeds."""
  unit = groups.task_units.loss
  of_tail = "test_loss_superquantile_90", "Worst 10 % of test clients, loss"
  if groups.are_few():
    of_tail = f"test_loss_{_WORST}", "Worst test client, loss"
  return style.Figure(
    "loss-by-round",
    "Loss against rounds",
    f"{unit.quantity} in {unit.name}, mean over seeds, band as above; training and cohort losses"
    " are moving means over a fiftieth of the rounds. Look for a loss that still falls (train"
    " longer) or that rises (a smaller learning rate).",
    _panels(
      groups,
      (
        _Panel("train_loss", "Clients that trained, mean loss", is_smooth=True),
        _Panel("cohort_loss_superquantile", "Cohort, superquantile of loss", is_smooth=True),
        _Panel("test_loss_mean", "Test clients, mean loss"),
        _Panel(*of_tail),
      ),
    ),
  )


def _panels(groups: grouped.Grouped, panels: Sequence[_Panel], share: bool = False) -> bytes:
  """Draws columns of `rounds.csv`, a panel each that has data, perhaps on one vertical axis."""
  looks = style.palette(list(groups))
  drawn = []
  for panel in panels:
    curves = {method: _of_runs(runs, panel) for method, runs in groups.items()}
    curves = {method: curve for method, curve in curves.items() if not curve.empty}
    if curves:
      drawn.append((panel, curves))
  if not drawn:
    raise style.NothingToDraw
  with style.theme():
    figure, grid = style.grid(len(drawn), 2.6, common_axes=False)
    for axes, (panel, curves) in zip(grid, drawn):
      for method, curve in curves.items():
        add_curve(axes, curve, looks[method], 0.16 if len(curves) <= 4 else 0.08)
        if panel.column == "tail_size":
          _mark_expected_size(axes, groups[method], method, looks[method].color)
      axes.set(title=panel.title, xlabel="Round")
      axes.xaxis.set_major_locator(ticker.MaxNLocator(5, integer=True))
      axes.set_xlim(0, max(curve.index[-1] for curve in curves.values()) or 1)
      axes.set_ylim(*_limits(curves.values(), from_zero=panel.column == "tail_size"))
      style.widen(axes, panel.least_span, "y")
    if share:
      style.share(grid, "y")
    shown = [method for method in groups if any(method in curves for _, curves in drawn)]
    style.add_legend(figure, looks, shown)
    return style.to_svg(figure)


def add_curve(
  axes: mpl_axes.Axes, curve: pd.DataFrame, look: style.Look, alpha: float, marker: str = ""
) -> None:
  """Draws "mean" by the index as a line in a look, and "std" (NaN for none) as a band around it."""
  axes.plot(
    curve.index, curve["mean"], color=look.color, ls=look.dash, linewidth=1.7, marker=marker
  )
  if curve["std"].notna().any():
    low, high = curve["mean"] - curve["std"], curve["mean"] + curve["std"]
    axes.fill_between(curve.index, low, high, color=look.color, alpha=alpha, linewidth=0)


def over_seeds(curves: Sequence[pd.Series]) -> pd.DataFrame:
  """Averages curves over seeds, which may lack different rounds: "mean" and "std" by round."""
  table = pd.concat(curves, axis=1).sort_index()
  kept = np.append(np.arange(0, len(table), 1 + len(table) // _MAX_POINTS), len(table) - 1)
  table = table.iloc[np.unique(kept)] if len(table) else table
  return pd.DataFrame({"mean": table.mean(axis=1), "std": table.std(axis=1)})


def _of_runs(runs: Sequence[run_folder.Run], panel: _Panel) -> pd.DataFrame:
  """Averages a column of runs over seeds; empty if no run has it."""
  curves = []
  for run in runs:
    rounds = run.rounds
    values = pd.Series(rounds.get(panel.column, np.nan), rounds.get("round", ()), dtype=float)
    if panel.column.endswith(f"_{_WORST}"):
      values = _of_worst_client(run, panel.column.removeprefix("test_").removesuffix(f"_{_WORST}"))
    values = values[np.isfinite(values)] * panel.factor
    if panel.is_smooth:
      window = 2 * (len(values) // 100) + 1
      values = values.rolling(window, center=True, min_periods=1).mean()
    curves.append(values)
  return over_seeds(curves)  # A round without a tail has no threshold.


def _of_worst_client(run: run_folder.Run, measure: str) -> pd.Series:
  """Returns the largest value of a measure of a test client at each evaluation, by round."""
  clients = pd.DataFrame(run.evaluations("test"))
  if measure not in clients:
    return pd.Series(dtype=float)
  return clients.groupby("round")[measure].max()


def _limits(curves: Iterable[pd.DataFrame], from_zero: bool) -> tuple[float, float]:
  """Chooses the vertical range by a panel's curves, without the first tenth of untrained models."""
  settled = pd.concat([curve[curve.index >= 0.1 * curve.index[-1]] for curve in curves])
  deviation = settled["std"].fillna(0.0)
  low = 0.0 if from_zero else (settled["mean"] - deviation).min()
  high = (settled["mean"] + deviation).max()
  margin = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
  return (0.0 if from_zero else low - margin), high + margin


def _mark_expected_size(
  axes: mpl_axes.Axes, runs: Sequence[run_folder.Run], method: names.Name, color: str
) -> None:
  """Draws a dotted line at theta times the mean cohort size."""
  theta = method.theta
  sizes = pd.concat([pd.Series(run.rounds.get("cohort_size", ()), dtype=float) for run in runs])
  if theta is not None and sizes.notna().any():
    axes.axhline(theta * sizes.mean(), color=color, linestyle=(0, (1, 2)), linewidth=1.2)
