"""The figures of `convergence`: error against rounds, and what sampling clients costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib import figure as mpl_figure
from matplotlib import lines as mpl_lines
from matplotlib import ticker
import numpy as np

from tff_superquantile.experiments import convergence_study
from tff_superquantile.experiments import plot_style

_ROUNDS_TITLE = "Error of the averaged iterate against rounds"
_ROUNDS_CAPTION = (
  "F_θ at the averaged iterate less its minimum, mean over runs; both axes are logarithmic. Every"
  " point is runs of its own with the learning rate and smoothing of the theorem for that T."
  " Grey, dashed: 1 / T. Dotted: the floor where cohorts of m clients level off in the end,"
  " computed exactly. Triangles: the theorem's term for it, B / √(θ m). At θ = 1 there is no bias"
  " and nothing to smooth; θ = 1 / n is the worst case."
)
_BIAS_TITLE = "What sampling m of n clients costs"
_BIAS_CAPTION = (
  "Exact, by the hypergeometric distribution. Left: how far the mean over cohorts is from F_θ, at"
  " the minimum of F_θ (lines) and at the worst of random points (crosses). Right: F_θ at the"
  " minimum of that mean, less its own minimum (lines), and what the algorithm had reached after"
  " the most rounds (circles). Dashed: the bound B / √(θ m), which both lie below; the"
  " dash-dotted guide falls as 1 / (θ m)."
)


def draw(
  points: Sequence[convergence_study.Point],
  biases: Sequence[convergence_study.Bias],
  num_clients: int,
) -> list[plot_style.Figure]:
  """Draws both figures, for a light and for a dark background.

  Args:
    points: Of all settings.
    biases: Of the cohort sizes of the points, and others between.
    num_clients: n.

  Returns:
    The figures.
  """
  rounds = [_draw_rounds(points, biases, num_clients, dark) for dark in (False, True)]
  bias = [_draw_bias(points, biases, num_clients, dark) for dark in (False, True)]
  return [
    plot_style.Figure("error-by-rounds", _ROUNDS_TITLE, _ROUNDS_CAPTION, *rounds),
    plot_style.Figure("sampling-bias", _BIAS_TITLE, _BIAS_CAPTION, *bias),
  ]


def _colors(count: int, dark: bool) -> tuple[str, list[str]]:
  """Grey, and as many colours."""
  names = [f"{i}" for i in range(count)]
  looks = plot_style.palette([names.FED_AVG, *names])
  return looks[names.FED_AVG].colors[dark], [looks[name].colors[dark] for name in names]


def _theta_label(theta: float, num_clients: int) -> str:
  special = {1.0: ", FedAvg"}
  if num_clients:
    special[1.0 / num_clients] = " = 1 / n, the worst case"
  return f"θ = {theta:g}{special.get(theta, '')}"


def _draw_rounds(
  points: Sequence[convergence_study.Point],
  biases: Sequence[convergence_study.Bias],
  num_clients: int,
  dark: bool,
) -> bytes:
  thetas = sorted({point.theta for point in points}, reverse=True)
  sizes = sorted({point.cohort_size for point in points}, reverse=True)
  grey, colors = _colors(len(sizes), dark)
  found = {(bias.theta, bias.cohort_size): bias for bias in biases}
  all_rounds = sorted({point.num_rounds for point in points})
  with plot_style.theme(dark):
    num_rows = -(-len(thetas) // 2)
    figure = mpl_figure.Figure((plot_style.WIDTH, 0.6 + 2.7 * num_rows), layout="constrained")
    panels = figure.subplots(num_rows, 2, sharex=True, sharey="row", squeeze=False)
    for axes, theta in zip(panels.flat, thetas):
      for color, size in zip(colors, sizes):
        here = sorted(
          (p.num_rounds, p.error) for p in points if (p.theta, p.cohort_size) == (theta, size)
        )
        axes.plot(*zip(*here), color=color, linewidth=1.6, marker="o", markersize=2.5)
        bias = found[theta, size]
        axes.plot([all_rounds[-1] * 1.5], [bias.bound], color=color, marker="v", markersize=5)
        if size < num_clients and bias.floor > 1e-9:
          axes.axhline(bias.floor, color=color, linestyle=":", linewidth=1.1)
      first = max(p.error for p in points if (p.theta, p.num_rounds) == (theta, all_rounds[0]))
      reference = 3.0 * first * all_rounds[0] / np.array(all_rounds)
      axes.plot(all_rounds, reference, color=grey, linestyle=(0, (5, 2)), linewidth=1.1)
      axes.set_title(_theta_label(theta, num_clients))
      axes.set(xscale="log", yscale="log")
      axes.xaxis.set_major_locator(ticker.LogLocator(2, numticks=20))
      axes.xaxis.set_major_formatter(
        ticker.FuncFormatter(
          lambda x, _: f"{x:g}" if np.log2(x) % 3 == 1 and x <= all_rounds[-1] else ""
        )
      )
      axes.xaxis.set_minor_locator(ticker.NullLocator())
      axes.yaxis.set_major_locator(ticker.LogLocator(10, numticks=20))
      axes.yaxis.set_minor_locator(ticker.NullLocator())
    for axes in panels[-1]:
      axes.set_xlabel("Rounds T")
    for axes in panels[:, 0]:
      axes.set_ylabel("F(averaged iterate) - min F")
    legend: dict[str, dict[str, Any]] = {
      f"m = {size}" + (", everyone" if size == num_clients else ""): dict(color=color, linewidth=2)
      for color, size in zip(colors, sizes)
    }
    legend["1 / T"] = dict(color=grey, linestyle=(0, (5, 2)))
    legend["floor of m"] = dict(color=grey, linestyle=":")
    legend["B / √(θ m)"] = dict(color=grey, linestyle="none", marker="v", markersize=5)
    _add_legend(figure, legend)
    return plot_style.to_svg(figure)


def _draw_bias(
  points: Sequence[convergence_study.Point],
  biases: Sequence[convergence_study.Bias],
  num_clients: int,
  dark: bool,
) -> bytes:
  biases = [bias for bias in biases if bias.cohort_size < num_clients and bias.theta < 1.0]
  thetas = sorted({bias.theta for bias in biases}, reverse=True)
  grey, colors = _colors(len(thetas), dark)
  most = max(point.num_rounds for point in points)
  masses = np.array(sorted({bias.theta * bias.cohort_size for bias in biases}))
  # B from any of the bounds.
  max_loss = biases[0].bound * np.sqrt(biases[0].theta * biases[0].cohort_size)
  with plot_style.theme(dark):
    figure = mpl_figure.Figure((plot_style.WIDTH, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2, sharex=True, sharey=True, squeeze=False)[0]
    for color, theta in zip(colors, thetas):
      here = sorted((b for b in biases if b.theta == theta), key=lambda b: b.cohort_size)
      x = [b.theta * b.cohort_size for b in here]
      left.plot(x, [b.at_optimum for b in here], color=color, linewidth=1.6)
      left.plot(
        x, [b.largest for b in here], color=color, linestyle="none", marker="x", markersize=4
      )
      right.plot(x, [b.floor for b in here], color=color, linewidth=1.6)
      reached = [
        (p.theta * p.cohort_size, p.error)
        for p in points
        if p.theta == theta and p.num_rounds == most and p.cohort_size < num_clients
      ]
      right.plot(*zip(*reached), color=color, linestyle="none", marker="o", markersize=4.5)
    for axes, title in ((left, "F less its mean over cohorts"), (right, "Floor of the error")):
      axes.plot(
        masses, max_loss / np.sqrt(masses), color=grey, linestyle=(0, (5, 2)), linewidth=1.2
      )
      guide = masses[masses >= 0.5]
      axes.plot(guide, 0.03 / guide, color=grey, linestyle=(0, (6, 2, 1.5, 2)), linewidth=1.0)
      axes.set(xscale="log", yscale="log", xlabel="θ m")
      axes.set_title(title)
      axes.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
      axes.xaxis.set_minor_locator(ticker.NullLocator())
      axes.yaxis.set_major_locator(ticker.LogLocator(10, numticks=20))
      axes.yaxis.set_minor_locator(ticker.NullLocator())
    left.set_ylabel("In units of the loss")
    legend: dict[str, dict[str, Any]] = {
      _theta_label(theta, 0): dict(color=color, linewidth=2) for color, theta in zip(colors, thetas)
    }
    legend["B / √(θ m)"] = dict(color=grey, linestyle=(0, (5, 2)))
    legend["1 / (θ m)"] = dict(color=grey, linestyle=(0, (6, 2, 1.5, 2)))
    _add_legend(figure, legend)
    return plot_style.to_svg(figure)


def _add_legend(figure: mpl_figure.Figure, looks: Mapping[str, Mapping[str, Any]]) -> None:
  lines = [mpl_lines.Line2D([], [], **look) for look in looks.values()]
  figure.legend(lines, list(looks), loc="outside upper left", ncols=len(lines), columnspacing=1.2)
