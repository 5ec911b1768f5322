"""The figures of the non-convex theorem's study: the gradient against rounds, and the drift."""

from __future__ import annotations

from matplotlib import figure as mpl_figure
import numpy as np
import pandas as pd

from paper import theory
from tff_superquantile.experiments.pages import style

_ROUNDS_CAPTION = (
  "Mean over rounds of |∇Φ|², the squared gradient of the Moreau envelope at μ = 2 L, and over"
  " runs; both axes are logarithmic. Every point is runs of its own with the theorem’s learning"
  " rate for that T. Dashed: the bound of the theorem’s proof, with its constants. Grey,"
  " dash-dotted: 1 / √T."
)
_DRIFT_CAPTION = (
  "θ = 0.5, everyone, τ local steps. Left: |∇Φ|² as above with the learning rate γ = 1 / (40 L) for"
  " every τ (lines), and with γ = 1 / (4 τ L), whose rounds take the same step for every τ"
  " (crosses); dashed: the bound for the lines. Right: the drift of a round, the mean over rounds"
  " of Σᵢ πᵢ Σₖ |wᵢₖ − w|², for the most rounds, with γ = 1 / (40 L). Grey: what the lengths of the"
  " steps allow (dash-dotted), and the paper’s bound (dashed)."
)


def gradient_by_rounds(points: pd.DataFrame, num_clients: int) -> style.Figure:
  """Draws |grad Phi|^2 of `measurement.measure` against rounds, a panel for each tail fraction."""
  thetas, sizes = theory.descending(points["theta"]), theory.descending(points["cohort_size"])
  colors = dict(zip(sizes, style.COLORS))
  all_rounds = np.unique(points["num_rounds"])
  with style.theme():
    figure = mpl_figure.Figure((style.WIDTH, 3.8))
    panels = figure.subplots(1, len(thetas), sharex=True, sharey=True, squeeze=False)[0]
    for axes, theta in zip(panels, thetas):
      here = points[points["theta"] == theta]
      for size, color in colors.items():
        curve = here[here["cohort_size"] == size]
        marker, width = ("o-", 1.6) if size == num_clients else ("s:", 1.3)
        axes.plot(
          "num_rounds",
          "squared_norm",
          marker,
          data=curve,
          color=color,
          linewidth=width,
          markersize=3,
        )
      bound = here[here["cohort_size"] == num_clients]
      axes.plot(
        "num_rounds", "bound", data=bound, color=colors[num_clients], linestyle=theory.DASHED
      )
      guide = 2.0 * here["squared_norm"].iloc[-1] * np.sqrt(all_rounds[-1] / all_rounds)
      axes.plot(all_rounds, guide, color=style.GREY, linestyle=theory.DASH_DOTTED, linewidth=1.1)
      axes.set(title=f"θ = {theta:g}" + ", FedAvg" * bool(theta == 1.0), xlabel="Rounds T")
      theory.scale_logarithmically(axes)
      theory.mark_rounds(axes, list(all_rounds))
    panels[0].set_ylabel("Mean of |∇Φ|²")
    names = {size: f"m = {size}" + ", everyone" * bool(size == num_clients) for size in sizes}
    theory.add_legend(
      figure,
      {
        **{names[size]: dict(color=color, linewidth=2) for size, color in colors.items()},
        "bound": dict(color=colors[num_clients], linestyle=theory.DASHED),
        "1 / √T": dict(linestyle=theory.DASH_DOTTED),
      },
    )
    svg = style.to_svg(figure)
  title = "Gradient of the Moreau envelope against rounds"
  return style.Figure("gradient-by-rounds", title, _ROUNDS_CAPTION, svg)


def client_drift(drifts: pd.DataFrame) -> style.Figure:
  """Draws the effect of local steps on |grad Phi|^2, and the drift against their number."""
  all_steps = sorted(drifts["local_steps"].unique())
  colors = dict(zip(all_steps, style.COLORS))
  with style.theme():
    figure = mpl_figure.Figure((style.WIDTH, 4.0))
    left, right = figure.subplots(1, 2, squeeze=False)[0]
    for steps, color in colors.items():
      here = drifts[drifts["local_steps"] == steps]
      of_rate = here[here["schedule"] == "rate"]
      of_step = here[here["schedule"] == "step"]
      left.plot("num_rounds", "squared_norm", "o-", data=of_rate, color=color, markersize=3)
      left.plot("num_rounds", "squared_norm", "x", data=of_step, color=color, markersize=5)
      left.plot("num_rounds", "bound", data=of_rate, color=color, linestyle=theory.DASHED)
    theory.scale_logarithmically(left)
    left.set(title="Gradient of the Moreau envelope", xlabel="Rounds T", ylabel="Mean of |∇Φ|²")
    theory.mark_rounds(left, list(np.unique(drifts["num_rounds"])))
    longest = drifts[drifts["num_rounds"] == drifts["num_rounds"].max()]
    here = longest[(longest["schedule"] == "rate") & (longest["local_steps"] > 1)]
    for name, dash in (("plain_drift_bound", theory.DASH_DOTTED), ("drift_bound", theory.DASHED)):
      right.plot("local_steps", name, data=here, color=style.GREY, linestyle=dash)
    right.plot("local_steps", "drift", data=here, color=style.GREY, linewidth=1.2)
    for steps, drift in zip(here["local_steps"], here["drift"]):
      right.plot(steps, drift, "o", color=colors[steps], markersize=5)
    theory.scale_logarithmically(right)
    right.set(title="Drift of a round", xlabel="Local steps τ")
    right.set_xticks(here["local_steps"])
    theory.add_legend(
      figure,
      {
        **{f"τ = {steps}": dict(color=color, linewidth=2) for steps, color in colors.items()},
        "the same step": dict(linestyle="none", marker="x", markersize=5),
        "bound": dict(linestyle=theory.DASHED),
        "lengths of the steps": dict(linestyle=theory.DASH_DOTTED),
      },
    )
    svg = style.to_svg(figure)
  return style.Figure("client-drift", "What local steps change", _DRIFT_CAPTION, svg)
