"""The figures of the convergence study: error against rounds, and the cost of cohorts."""

from __future__ import annotations

from matplotlib import figure as mpl_figure
import numpy as np
import pandas as pd

from paper import theory
from tff_superquantile.experiments.pages import style

_ROUNDS_CAPTION = (
  "F_θ at the averaged iterate less its minimum, mean over runs; both axes are logarithmic. Every"
  " point is runs of its own with the learning rate and smoothing of the theorem for that T."
  " Grey, dashed: 1 / T. Dotted: the floor where cohorts of m clients level off in the end,"
  " computed exactly. Triangles: the theorem’s term for it, B / √(θ m). At θ = 1 there is no bias"
  " and nothing to smooth; θ = 1 / n is the worst case."
)
_SMOOTHING_CAPTION = (
  "Everyone, smoothing with ν; both axes are logarithmic. Circles: the error of the averaged"
  " iterate, with the theorem’s learning rate for that ν; diamond: the theorem’s own ν. Line: F_θ"
  " at the minimum of the smoothed objective, less its own minimum, which is left after any number"
  " of rounds. Dashed: ν log(1 / θ), which bounds it."
)
_BIAS_CAPTION = (
  "Exact, by the hypergeometric distribution. Left: how far the mean over cohorts is from F_θ, at"
  " the minimum of F_θ (lines) and at the worst of random points (crosses). Right: F_θ at the"
  " minimum of that mean, less its own minimum (lines), and what the algorithm had reached after"
  " the most rounds (circles), also with the primal-dual threshold (squares). Dashed: the bound"
  " B / √(θ m), which both lie below; the dash-dotted guide falls as 1 / (θ m)."
)


def error_by_rounds(points: pd.DataFrame, biases: pd.DataFrame, num_clients: int) -> style.Figure:
  """Draws errors of `algorithm.measure` against rounds, with biases, for four tail fractions."""
  thetas, sizes = theory.descending(points["theta"]), theory.descending(points["cohort_size"])
  colors = dict(zip(sizes, style.COLORS))
  of_setting = biases.set_index(["theta", "cohort_size"])
  all_rounds = np.unique(points["num_rounds"])
  special = {1.0: ", FedAvg", 1.0 / num_clients: " = 1 / n, the worst case"}
  with style.theme():
    figure = mpl_figure.Figure((style.WIDTH, 6.0))
    panels = figure.subplots(2, 2, sharex=True, sharey="row", squeeze=False)
    for axes, theta in zip(panels.flat, thetas):
      here = points[points["theta"] == theta]
      for size, color in colors.items():
        curve = here[here["cohort_size"] == size]
        x, y = curve["num_rounds"], curve["error"]
        axes.plot(x, y, "o-", color=color, linewidth=1.6, markersize=2.5)
        bias = of_setting.loc[(theta, size)]
        axes.plot(all_rounds[-1] * 1.5, bias["bound"], "v", color=color, markersize=5)
        if bias["floor"] > 1e-9:
          axes.axhline(bias["floor"], color=color, linestyle=":", linewidth=1.1)
      first = here.loc[here["num_rounds"] == all_rounds[0], "error"].max()
      guide = 3.0 * first * all_rounds[0] / all_rounds
      axes.plot(all_rounds, guide, color=style.GREY, linestyle=theory.DASHED, linewidth=1.1)
      axes.set_title(f"θ = {theta:g}{special.get(theta, '')}")
      theory.scale_logarithmically(axes)
      theory.mark_rounds(axes, list(all_rounds))
    for axes in panels[-1]:
      axes.set_xlabel("Rounds T")
    for axes in panels[:, 0]:
      axes.set_ylabel("F(averaged iterate) - min F")
    names = {size: f"m = {size}" + ", everyone" * bool(size == num_clients) for size in sizes}
    theory.add_legend(
      figure,
      {
        **{names[size]: dict(color=color, linewidth=2) for size, color in colors.items()},
        "1 / T": dict(linestyle=theory.DASHED),
        "floor of m": dict(linestyle=":"),
        "B / √(θ m)": dict(linestyle="none", marker="v", markersize=5),
      },
    )
    svg = style.to_svg(figure)
  title = "Error of the averaged iterate against rounds"
  return style.Figure("error-by-rounds", title, _ROUNDS_CAPTION, svg)


def sampling_bias(
  points: pd.DataFrame, duals: pd.DataFrame, biases: pd.DataFrame, num_clients: int
) -> style.Figure:
  """Draws the bias of cohorts, and the error that it leaves, against theta m.

  `duals` are as the points, with the primal-dual threshold, for the most rounds.
  """
  some = f"cohort_size < {num_clients} and theta < 1"
  biases = biases.query(some).assign(mass=lambda frame: frame["theta"] * frame["cohort_size"])
  reached = points.query(some)[lambda frame: frame["num_rounds"] == frame["num_rounds"].max()]
  bounds = biases.sort_values("mass")
  guide = bounds.loc[bounds["mass"] >= 0.5, "mass"]
  colors = dict(zip(theory.descending(biases["theta"]), style.COLORS))
  with style.theme():
    figure = mpl_figure.Figure((style.WIDTH, 4.0))
    left, right = figure.subplots(1, 2, sharex=True, sharey=True, squeeze=False)[0]
    for theta, color in colors.items():
      here = biases[biases["theta"] == theta]
      left.plot("mass", "at_optimum", data=here, color=color, linewidth=1.6)
      left.plot("mass", "largest", "x", data=here, color=color, markersize=4)
      right.plot("mass", "floor", data=here, color=color, linewidth=1.6)
      errors = reached[reached["theta"] == theta]
      right.plot(theta * errors["cohort_size"], errors["error"], "o", color=color, markersize=4.5)
      errors = duals[duals["theta"] == theta]
      right.plot(theta * errors["cohort_size"], errors["error"], "s", color=color, markersize=3.5)
    for axes, title in ((left, "F less its mean over cohorts"), (right, "Floor of the error")):
      grey = dict(color=style.GREY, linewidth=1.1)
      axes.plot("mass", "bound", data=bounds, linestyle=theory.DASHED, **grey)
      axes.plot(guide, 0.03 / guide, linestyle=theory.DASH_DOTTED, **grey)
      axes.set(xlabel="θ m", title=title)
      theory.scale_logarithmically(axes)
    left.set_ylabel("In units of the loss")
    theory.add_legend(
      figure,
      {
        **{f"θ = {theta:g}": dict(color=color, linewidth=2) for theta, color in colors.items()},
        "B / √(θ m)": dict(linestyle=theory.DASHED),
        "1 / (θ m)": dict(linestyle=theory.DASH_DOTTED),
      },
    )
    svg = style.to_svg(figure)
  return style.Figure("sampling-bias", "What sampling m of n clients costs", _BIAS_CAPTION, svg)


def smoothing_error(smoothings: pd.DataFrame) -> style.Figure:
  """Draws the error of `smoothing.measure` against nu, a panel for each tail fraction."""
  thetas = theory.descending(smoothings["theta"])
  color, of_theorem = style.COLORS[0], style.COLORS[1]
  with style.theme():
    figure = mpl_figure.Figure((style.WIDTH, 3.6))
    panels = figure.subplots(1, len(thetas), sharex=True, sharey=True, squeeze=False)[0]
    for axes, theta in zip(panels, thetas):
      here = smoothings[smoothings["theta"] == theta]
      others, own = here[~here["is_theorems"]], here[here["is_theorems"]]
      axes.plot("smoothing", "floor", data=here, color=style.GREY, linewidth=1.2)
      axes.plot("smoothing", "bound", data=here, color=style.GREY, linestyle=theory.DASHED)
      axes.plot("smoothing", "error", "o-", data=others, color=color, markersize=4)
      axes.plot("smoothing", "error", "D", data=own, color=of_theorem, markersize=7)
      axes.set(title=f"θ = {theta:g}", xlabel="ν")
      theory.scale_logarithmically(axes)
    panels[0].set_ylabel("F(averaged iterate) - min F")
    theory.add_legend(
      figure,
      {
        "error": dict(color=color, marker="o", markersize=4),
        "the theorem’s ν": dict(color=of_theorem, linestyle="none", marker="D", markersize=7),
        "floor": dict(),
        "ν log(1 / θ)": dict(linestyle=theory.DASHED),
      },
    )
    svg = style.to_svg(figure)
  return style.Figure("smoothing", "Error against the smoothing ν", _SMOOTHING_CAPTION, svg)
