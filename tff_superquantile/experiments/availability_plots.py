"""A figure of a simulated day: who turned up, who trained, and what it did to the error."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib import axes as mpl_axes
from matplotlib import figure as mpl_figure
import numpy as np

from tff_superquantile.experiments import plot_style
from tff_superquantile.experiments import plots
from tff_superquantile.simulation import cohorts

# {method: {quantity: float [number of seeds, 24]}}, NaN where nothing is known of an hour;
# quantities are "cohort_size", "tail_size", "p90" (a fraction) and, for methods that have a tail
# fraction, "theta".
Days = Mapping[str, Mapping[str, np.ndarray]]

_HOURS = cohorts.ROUNDS_PER_DAY
_PANELS = (
  ("tail_size", "Clients that trained (area: turned up)", 1),
  ("theta", "Tail fraction θ", 1),
  ("p90", "90th percentile of error (%)", 100),
)


def draw(days: Days, num_days: int) -> plots.Figure:
  """Draws the day, for both themes.

  Args:
    days: What was measured, by method in the order of `method_names.order`.
    num_days: How many days clients and tail fractions are means over.

  Returns:
    The figure.
  """
  caption = (
    f"By the hour, which is the round modulo {_HOURS}, mean over seeds. First the clients that"
    f" turned up for a round and those that trained, mean over the last {num_days} days; then the"
    " tail fraction, over the same days; then the 90th percentile of the test clients’ errors, of"
    " the last evaluations at that hour (two where there are enough, the table has the last one);"
    " the band is one standard deviation over seeds on either side. Look at the error after the"
    " hours in which few turn up: where it rises then, and falls when clients come back, it is the"
    " noise of a small tail."
  )
  light, dark = (_draw(days, dark) for dark in (False, True))
  return plots.Figure("day", "A day", caption, light, dark)


def _draw(days: Days, dark: bool) -> bytes:
  looks = plot_style.palette(list(days))
  panels = [panel for panel in _PANELS if any(panel[0] in day for day in days.values())]
  with plot_style.theme(dark) as ink:
    figure = mpl_figure.Figure((plot_style.WIDTH, 3.4), layout="constrained")
    grid = figure.subplots(1, len(panels), squeeze=False)
    for axes, (quantity, title, factor) in zip(grid[0], panels):
      if quantity == "tail_size":
        # The same seed has the same cohorts with every method.
        hours, turned_up, _ = _over_seeds(next(iter(days.values()))["cohort_size"])
        axes.fill_between(hours, turned_up, color=ink, alpha=0.13, linewidth=0)
      for method, day in days.items():
        if quantity in day:
          _add_curve(axes, factor * day[quantity], looks[method], dark, quantity == "p90")
      axes.set_title(title, color=ink)
      axes.set_xlim(0, _HOURS)
      axes.set_xticks(np.linspace(0, _HOURS, 5))
      if quantity != "p90":
        axes.set_ylim(bottom=0)
    figure.supxlabel("Hour of the day", fontsize="medium")
    plot_style.add_legend(figure, looks, list(days), dark)
    return plot_style.to_svg(figure)


def _over_seeds(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Hours of which something is known, and over the seeds that know it mean and sd (0 for one).

  Hour 24 repeats hour 0, to close the day.

  Args:
    values: Of shape [number of seeds, 24].

  Returns:
    Three arrays of the same length.
  """
  values = np.concatenate([values, values[:, :1]], axis=1)
  hours = np.flatnonzero(np.isfinite(values).any(axis=0))
  values = values[:, hours]
  count = np.isfinite(values).sum(axis=0)
  mean = np.nansum(values, axis=0) / count
  squares = np.nansum((values - mean) ** 2, axis=0)
  return hours, mean, np.sqrt(squares / np.maximum(count - 1, 1))


def _add_curve(
  axes: mpl_axes.Axes, values: np.ndarray, look: plot_style.Look, dark: bool, with_band: bool
) -> None:
  hours, mean, sd = _over_seeds(values)
  color = look.colors[dark]
  marker = "." if with_band else ""  # Evaluations are fewer than rounds.
  axes.plot(hours, mean, color=color, linestyle=look.dash, linewidth=1.7, marker=marker)
  if with_band and sd.any():
    axes.fill_between(hours, mean - sd, mean + sd, color=color, alpha=0.12, linewidth=0)
