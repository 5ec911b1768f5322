"""Figures of a model family: which models clients pick, and what that gains."""

from __future__ import annotations

from matplotlib import axes as mpl_axes
from matplotlib import figure as mpl_figure
import numpy as np

from tff_superquantile.experiments import model_family_choice
from tff_superquantile.experiments import plot_style
from tff_superquantile.experiments import plots

_SHARES_CAPTION = (
  "Share of the test clients that pick each model by its error on their held-in examples; mean "
  "over seeds, the bar is a standard deviation over seeds, dots are seeds. Equal shares say that "
  "no model suits all, or that clients cannot tell the models apart: the next figure shows which."
)
_GAINS_CAPTION = (
  "How much lower the error is where each client picks its own model than where clients get theirs "
  "as named on the left, in percentage points, seed by seed (dots), with mean and standard "
  "deviation. To the right of the line, choice gains. “Choices dealt at random” keeps the shares "
  "of the models but not who has which: a gain on it is what clients know of themselves. The rows "
  "“in hindsight” look at the examples that measure, which flatters them."
)


def draw_all(choice: model_family_choice.Choice) -> list[plots.Figure]:
  """Draws the figures."""
  return [
    plots.Figure(name, title, caption, *(draw(choice, dark) for dark in (False, True)))
    for name, title, caption, draw in (
      ("choice-shares", "Who picks which model", _SHARES_CAPTION, _draw_shares),
      ("choice-gains", "What the choice gains", _GAINS_CAPTION, _draw_gains),
    )
  ]


def _draw_shares(choice: model_family_choice.Choice, dark: bool) -> bytes:
  """Draws the share of clients that pick each model."""
  methods = list(choice.family.runs)
  looks = plot_style.palette(methods)
  names = model_family_choice.names(methods)
  with plot_style.theme(dark) as ink:
    figure = mpl_figure.Figure((plot_style.WIDTH, 0.9 + 0.34 * len(methods)), layout="constrained")
    axes = figure.add_subplot()
    for row, method in enumerate(methods):
      shares = 100 * np.array(list(choice.values[method]["share"].values()))
      color = looks[method].colors[dark]
      axes.barh(row, shares.mean(), 0.62, color=color, alpha=0.35)
      _draw_seeds(axes, row, shares, color, ink)
    axes.set_xlim(left=0)
    axes.set_xlabel("Test clients (%)")
    axes.grid(axis="y", visible=False)
    axes.set_yticks(range(len(methods)), [names[method].replace("$", r"\$") for method in methods])
    axes.set_ylim(len(methods) - 0.4, -0.6)
    return plot_style.to_svg(figure)


def _draw_gains(choice: model_family_choice.Choice, dark: bool) -> bytes:
  """Draws what the family gains over every other way to give clients a model."""
  from tff_superquantile.evaluation import model_family

  methods = list(choice.family.runs)
  looks = plot_style.palette(methods)
  names = model_family_choice.names(methods)
  ways = [way for way in choice.values if way not in (model_family.BY_ERROR, model_family.BY_LOSS)]
  with plot_style.theme(dark) as ink:
    figure = mpl_figure.Figure((plot_style.WIDTH, 0.9 + 0.34 * len(ways)), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True, squeeze=False)[0]
    for axes, statistic, title in zip(
      panels, ("mean", "p90"), ("Mean error (points lower)", "90th percentile (points lower)")
    ):
      axes.axvline(0, color=ink, linewidth=0.9)
      for row, way in enumerate(ways):
        gains = 100 * np.array(list(choice.values[way][f"gain.{statistic}"].values()))
        _draw_seeds(axes, row, gains, looks[way].colors[dark] if way in looks else ink, ink)
      axes.set_title(title, color=ink)
      axes.grid(axis="y", visible=False)
    panels[0].set_yticks(range(len(ways)), [names[way].replace("$", r"\$") for way in ways])
    panels[0].set_ylim(len(ways) - 0.4, -0.6)
    return plot_style.to_svg(figure)


def _draw_seeds(axes: mpl_axes.Axes, row: int, values: np.ndarray, color: str, ink: str) -> None:
  """Draws one row: a dot a seed, the mean and the standard deviation."""
  if values.size > 1:
    offsets = np.linspace(-0.18, 0.18, values.size)
    axes.plot(values, row + offsets, ".", color=color, markersize=4, alpha=0.75)
    sd = values.std(ddof=1)
    axes.errorbar(values.mean(), row, xerr=sd, color=ink, elinewidth=1.1, capsize=3)
  axes.plot(values.mean(), row, "D", color=color, markersize=5.5, markeredgecolor=ink)
