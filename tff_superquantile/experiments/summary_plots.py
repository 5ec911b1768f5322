"""Figures of the numbers of the tables: method beside method, and against the privacy budget."""

from __future__ import annotations

from collections.abc import Sequence
import math

from matplotlib import figure as mpl_figure
from matplotlib import ticker

from tff_superquantile.experiments import comparison
from tff_superquantile.experiments import method_names
from tff_superquantile.experiments import plot_style
from tff_superquantile.experiments import run_folder


def error_by_method(groups: run_folder.Groups, dark: bool) -> bytes:
  """Draws mean and tail of the test error of every method, a row for each as in the table."""
  methods = list(groups)
  aggregates = {method: run_folder.aggregate(runs) for method, runs in groups.items()}
  panels = [
    (metric, title)
    for metric, title in (
      ("test.error.mean", "Mean error (%)"),
      ("test.error.p90", "90th percentile (%)"),
      ("test.error.superquantile_90", "Worst 10 % (%)"),
    )
    if any(metric in aggregate for aggregate in aggregates.values())
  ]
  if len(methods) < 2 or not panels:
    raise plot_style.NothingToDraw("No figure of all methods: there are not two to compare.")
  looks = plot_style.palette(methods, list(comparison.contenders(groups)))
  with plot_style.theme(dark) as ink:
    size = (plot_style.WIDTH, 0.7 + 0.27 * len(methods))
    figure = mpl_figure.Figure(size, layout="constrained")
    grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (metric, title) in zip(grid, panels):
      for row, method in enumerate(methods):
        entry = aggregates[method].get(metric)
        if entry is None or not math.isfinite(entry.mean):
          continue
        if method == method_names.FED_AVG:
          axes.axvline(100 * entry.mean, color=ink, linestyle=(0, (1, 2)), linewidth=1)
        axes.errorbar(
          100 * entry.mean,
          row,
          xerr=0.0 if math.isnan(entry.sd) else 100 * entry.sd,
          color=looks[method].colors[dark],
          marker="o",
          markersize=5,
          elinewidth=1.4,
        )
      axes.set_title(title, color=ink)
      axes.xaxis.set_major_locator(ticker.MaxNLocator(5))
    grid[0].set_yticks(range(len(methods)), [plot_style.label(method, 48) for method in methods])
    grid[0].set_ylim(len(methods) - 0.4, -0.6)
    return plot_style.to_svg(figure)


def error_by_epsilon(groups: run_folder.Groups, dark: bool) -> bytes:
  """Draws mean and 90th percentile of the test error against the privacy budget."""
  families: dict[str, dict[float, Sequence[run_folder.Run]]] = {}
  for method, runs in groups.items():
    epsilon = method_names.epsilon_of(method)
    if epsilon is not None:
      families.setdefault(method_names.without_epsilon(method), {})[epsilon] = runs
  methods = sorted(families, key=method_names.order)
  looks = plot_style.palette(methods)
  with plot_style.theme(dark):
    figure = mpl_figure.Figure((plot_style.WIDTH, 3.6), layout="constrained")
    panels = figure.subplots(1, 2, squeeze=False)[0]
    for axes, metric, title in zip(
      panels, ("test.error.mean", "test.error.p90"), ("Mean error", "90th percentile of the error")
    ):
      for index, method in enumerate(methods):
        points = []
        for epsilon, runs in sorted(families[method].items()):
          found = run_folder.aggregate(runs).get(metric)
          if found is not None:
            sd = 0.0 if math.isnan(found.sd) else found.sd
            # Side by side, so that the bars of methods do not hide each other.
            points.append((epsilon * (1.0 + 0.012 * index), found.mean * 100, sd * 100))
        if points:
          x, y, sds = zip(*points)
          axes.errorbar(
            x,
            y,
            yerr=sds,
            color=looks[method].colors[dark],
            linestyle=looks[method].dash,
            marker="o",
            markersize=4,
            linewidth=1.6,
            elinewidth=1.0,
            capsize=2.5,
          )
      axes.set(title=title, xlabel="ε", xscale="log")
      epsilons = sorted({epsilon for family in families.values() for epsilon in family})
      axes.xaxis.set_major_locator(ticker.FixedLocator(epsilons))
      axes.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
      axes.xaxis.set_minor_locator(ticker.NullLocator())
    panels[0].set_ylabel("Error of the test clients (%)")
    plot_style.add_legend(figure, looks, methods, dark)
    return plot_style.to_svg(figure)
