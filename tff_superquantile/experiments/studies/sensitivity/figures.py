"""The figure of the sensitivity study: mean and tail of the error against each setting."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib import figure as mpl_figure
from matplotlib import ticker

from tff_superquantile.experiments.report import rounds
from tff_superquantile.experiments.report import style
from tff_superquantile.experiments.report import tables
from tff_superquantile.experiments.report import units
from tff_superquantile.experiments.studies.sensitivity import curves as curves_lib

_TITLES = {"p90": "90th percentile", "mean": "Mean"}
_CAPTION = (
  "Above the 90th percentile of the test clients’ errors, below their mean; means over seeds, the"
  " band is one standard deviation over seeds on either side. Horizontal axes are logarithmic, and"
  " all settings but that of the axis are the same. Look whether the gap to FedAvg stays where"
  " local epochs or cohorts change, and where θ is so small that the mean rises without the tail"
  " falling."
)


def draw(curves: Sequence[curves_lib.Curve], unit: units.Unit) -> style.Figure:
  """Draws the curves.

  Args:
    curves: As `curves.find` returns them.
    unit: The unit of the errors.

  Returns:
    The figure: a column for each setting.
  """
  lines = dict.fromkeys(line for curve in curves for line in curve.lines)
  methods = [line for line in lines if line != curves_lib.OF_THETAS]
  looks = style.palette(methods)
  with style.theme():
    figure = mpl_figure.Figure((style.WIDTH, 4.8))
    panels = figure.subplots(2, len(curves), sharex="col", sharey="row", squeeze=False)
    for column, curve in zip(panels.T, curves):
      entries = tables.over_seeds(curve.results)
      for axes, metric in zip(column, _TITLES):
        for line in curve.lines:
          points = entries.xs(f"{line}.{metric}", level="metric")[["mean", "sd"]] * unit.factor
          points.index = points.index.astype(float)
          points = points.rename(columns={"sd": "std"}).sort_index()
          look = looks.get(line, style.Look(style.INK, "-"))
          rounds.add_curve(axes, points, look, 0.12, "o" if len(points) < 12 else "")
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(ticker.FixedLocator(curve.values))
        axes.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
        axes.xaxis.set_minor_locator(ticker.NullLocator())
      column[-1].set_xlabel(curve.setting.title)
    for axes, title in zip(panels[:, 0], _TITLES.values()):
      axes.set_ylabel(unit.axis(title))
    if methods:
      style.add_legend(figure, looks, methods)
    svg = style.to_svg(figure)
  return style.Figure("sensitivity", "Error against local epochs, cohorts and θ", _CAPTION, svg)
