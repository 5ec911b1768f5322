"""The figure of a simulated day: clients that turn up, clients that train, and the error."""

from __future__ import annotations

import math

from matplotlib import figure as mpl_figure
import numpy as np
import pandas as pd

from tff_superquantile.experiments.report import rounds
from tff_superquantile.experiments.report import style
from tff_superquantile.simulation import cohorts

_HOURS = cohorts.ROUNDS_PER_DAY
_PANELS = (
  ("tail_size", "Clients that trained (area: turned up)", 1),
  ("theta", "Tail fraction θ", 1),
  ("p90", "90th percentile of error (%)", 100),
)


def draw(days: pd.DataFrame, num_days: int) -> style.Figure:
  """Draws a day.

  Args:
    days: The columns "method", in the order of `names.Name.order`, "seed", "quantity", "hour" and
      "value" (not NaN); quantities are "cohort_size", "tail_size", "p90" (a fraction) and, for
      methods that have a tail fraction, "theta".
    num_days: The number of days that clients and tail fractions are means over.

  Returns:
    The figure.
  """
  # Hour 24 repeats hour 0, to close the day.
  midnight = days[days["hour"] == 0].assign(hour=_HOURS)
  closed = pd.concat([days, midnight]).groupby(["method", "quantity", "hour"])["value"]
  over_seeds = closed.agg(["mean", "std"])
  methods = list(days["method"].unique())
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
      axes.set_xlim(0, _HOURS)
      axes.set_xticks(np.linspace(0, _HOURS, 5))
      if quantity != "p90":
        axes.set_ylim(bottom=0)
    figure.supxlabel("Hour of the day", fontsize="medium")
    style.add_legend(figure, looks, methods)
    svg = style.to_svg(figure)
  return style.Figure(
    "day",
    "A day",
    f"By the hour, which is the round modulo {_HOURS}, mean over seeds. First the clients that"
    f" turned up for a round and those that trained, mean over the last {num_days} days; then the"
    " tail fraction, over the same days; then the 90th percentile of the test clients’ errors, of"
    " the last evaluations at that hour (two if there are enough, the table has the last one). The"
    " band is one standard deviation over seeds on either side. Look at the error after the hours"
    " with few clients: if it rises then, and falls when clients come back, it is the noise of a"
    " small tail.",
    svg,
  )
