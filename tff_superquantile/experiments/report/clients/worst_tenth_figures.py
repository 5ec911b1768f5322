"""Figures of the worst-off tenth of the test clients over the rounds."""

from __future__ import annotations

from matplotlib import figure as mpl_figure
from matplotlib import ticker
import numpy as np

from tff_superquantile.experiments.report import grouped
from tff_superquantile.experiments.report import rounds
from tff_superquantile.experiments.report import style
from tff_superquantile.experiments.report.clients import worst_tenth

# The groups of clients whose mean error is followed, with their titles and dashes.
_GROUPS: dict[str, tuple[str, style.Dash]] = {
  "now": ("worst tenth at that round", "-"),
  "first": ("worst tenth at the first evaluation", (0, (3, 1.5))),
  "last": ("worst tenth at the last evaluation", (0, (1.5, 1.2))),
}
_EVERYBODY = "all test clients"


def error_by_round(groups: grouped.Grouped) -> style.Figure:
  """Draws how the error of the worst tenth moved, a panel a method."""
  histories = _histories(groups, "of the worst tenth against rounds")
  looks, leading = style.palette(list(groups)), groups.leading_by_round
  unit = leading.unit
  with style.theme():
    figure, grid = style.grid(len(histories), 2.7)
    for axes, (method, of_runs) in zip(grid, histories.items()):
      color = looks[method].color
      for group, dash, ink in (
        ("all", "-", style.PALE),
        *((group, dash, color) for group, (_, dash) in _GROUPS.items()),
      ):
        curve = rounds.over_seeds([unit.factor * found[group] for found in of_runs.values()])
        rounds.add_curve(axes, curve, style.Look(ink, dash), 0.12 if group == "now" else 0.0)
      axes.set_title(style.label(method.label, 28), color=color)
      axes.xaxis.set_major_locator(ticker.MaxNLocator(5, integer=True))
    style.from_zero(grid[0])  # The panels have one axis, whose range follows from all of them.
    figure.supxlabel("Round", fontsize="medium")
    figure.supylabel(unit.axis(f"Mean {leading.words}"), fontsize="medium")
    lines = {title: dict(color=style.INK, linestyle=dash) for title, dash in _GROUPS.values()}
    style.add_line_legend(figure, {**lines, _EVERYBODY: dict(color=style.PALE, linestyle="-")})
    svg = style.to_svg(figure)
  return style.Figure(
    "worst-tenth-by-round",
    "How the worst-off tenth moved",
    f"Mean {leading.words} of the worst-off tenth of the test clients at each evaluation of a"
    " trained model, mean over seeds, the band is one standard deviation over seeds; beside it the"
    " clients who were the worst tenth at the first evaluation, and those who are it at the last."
    " Where the dashed line falls below the solid one, others have taken their place; where the"
    " dotted line rises, some clients were served better before.",
    svg,
  )


def overlap_by_round(groups: grouped.Grouped) -> style.Figure:
  """Draws the share of each evaluation's worst tenth that is in the last one's."""
  histories = _histories(groups, "of the members of the worst tenth against rounds")
  looks = style.palette(list(groups))
  with style.theme():
    figure = mpl_figure.Figure((style.WIDTH, 3.6))
    axes = figure.add_subplot()
    for method, of_runs in histories.items():
      # The last one's own is all of it.
      curve = rounds.over_seeds([100 * found["overlap"].iloc[:-1] for found in of_runs.values()])
      rounds.add_curve(axes, curve, looks[method], 0.1, "." if len(curve) < 25 else "")
    chance = np.mean([f["chance"].iloc[0] for one in histories.values() for f in one.values()])
    axes.axhline(100 * chance, color=style.INK, linestyle=(0, (1, 2)), linewidth=1.2)
    axes.annotate(
      "chance alone",
      (1, 100 * chance),
      (-4, 3),
      axes.get_yaxis_transform(),
      textcoords="offset points",
      ha="right",
      fontsize=9,
    )
    axes.set(xlabel="Round", ylabel="In the last worst tenth, too (%)", ylim=(0, 104))
    axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    style.add_legend(figure, looks, list(histories))
    svg = style.to_svg(figure)
  return style.Figure(
    "worst-tenth-overlap",
    "Is it always the same clients?",
    "Share of the worst-off tenth of the test clients at each evaluation that is in the worst tenth"
    " of the last evaluation, too; mean over seeds, the band is one standard deviation over seeds."
    " The dotted line is what clients drawn at random would give. A curve that is high from the"
    " beginning means that a method serves the same clients badly throughout.",
    svg,
  )


def _histories(groups: grouped.Grouped, subject: str) -> worst_tenth.Histories:
  """Returns the histories of runs; raises a `NothingToDraw` if no run has one."""
  if not groups.histories:
    raise style.NothingToDraw(
      f"No figure {subject}: no run has results of each client at two evaluations after round 0."
    )
  return groups.histories
