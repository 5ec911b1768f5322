"""Figures of the clients: how loss and error are distributed, and whom they hit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import math

from matplotlib import figure as mpl_figure
from matplotlib import lines as mpl_lines
from matplotlib import ticker
import numpy as np

from tff_superquantile.experiments import plot_style
from tff_superquantile.experiments import run_folder


@dataclasses.dataclass(frozen=True)
class Quantity:
  """What is drawn of each client.

  Attributes:
    split: Which clients, "test" or "train".
    column: "error" or "loss".
    factor: From the unit of the runs' files to the axis' unit.
    title: What it is, as an axis says it.
    unit: For single numbers, with the space before it.
    clients: What an axis that counts clients says.
    decimals: Of single numbers.
  """

  split: str
  column: str
  factor: float
  title: str
  unit: str
  clients: str
  decimals: int

  def metric(self, statistic: str) -> str:
    """The name of a statistic in the runs' metrics."""
    return f"{self.split}.{self.column}.{statistic}"


TEST_ERROR = Quantity(
  "test", "error", 100, "Error of a test client (%)", " %", "Test clients (%)", 1
)
TRAIN_LOSS = Quantity(
  "train", "loss", 1, "Loss of a training client (nats)", "", "Training clients (%)", 2
)

# Percentiles that are drawn as curves, and their line styles.
_PERCENTILES: dict[int, plot_style.Dash] = {50: "-", 90: (0, (3, 1.5))}


def histogram(groups: run_folder.Groups, dark: bool, quantity: Quantity) -> bytes:
  """Draws the distribution of a quantity over clients, those of all seeds together.

  Above the histogram stand each method's mean and 90th percentile as its runs report them.
  """
  values_of = {method: _pooled(runs, quantity) * quantity.factor for method, runs in groups.items()}
  values_of = {method: values for method, values in values_of.items() if values.size}
  if not values_of:
    raise plot_style.NothingToDraw(
      f"No histogram of the {quantity.column}: the runs have none of {quantity.split} clients."
    )
  # A few clients with enormous losses would leave the others no room.
  largest = max(values.max() for values in values_of.values())
  if quantity.column == "loss":
    largest = min(largest, 1.5 * max(np.percentile(values, 99) for values in values_of.values()))
    values_of = {method: np.minimum(values, largest) for method, values in values_of.items()}
  steps = [mantissa * 10.0**power for power in range(-4, 4) for mantissa in (1, 2, 4, 5)]
  width = next(step for step in steps if largest <= 25 * step)
  edges = np.arange(0, largest + 1.5 * width, width)
  filled = next(iter(values_of))
  looks = plot_style.palette(list(groups))
  with plot_style.theme(dark):
    figure = mpl_figure.Figure(
      (plot_style.WIDTH, 3.7 + 0.22 * len(values_of)), layout="constrained"
    )
    strip, axes = figure.subplots(
      2, 1, sharex=True, squeeze=False, height_ratios=[0.22 * len(values_of) + 0.1, 3.1]
    )[:, 0]
    for row, (method, values) in enumerate(values_of.items()):
      color = looks[method].colors[dark]
      # Weights in the unit of the axis; rounding keeps 28.999999 out of the bin below 29.
      histogram = {
        "x": np.round(values, 6),
        "bins": edges,
        "color": color,
        "weights": np.full(values.shape, 100 / values.size),
      }
      if method == filled:
        axes.hist(**histogram, alpha=0.18)
      axes.hist(
        **histogram,
        histtype="step",
        linestyle=looks[method].dash,
        linewidth=1.8 if len(values_of) <= 4 else 1.2,
      )
      mean, p90 = (
        _reported(groups[method], quantity, name, fallback) * quantity.factor
        for name, fallback in (
          ("mean", _mean),
          ("p90", _p90),
        )
      )
      strip.plot([mean, p90], [row, row], color=color, linestyle=looks[method].dash, linewidth=1.6)
      for value, marker, name, side in ((mean, "o", "mean", -1), (p90, "D", "p90", 1)):
        strip.plot(value, row, marker=marker, color=color, markersize=5)
        strip.annotate(
          f"{name} {value:.{quantity.decimals}f}{quantity.unit}",
          (value, row),
          (side * 8, 0),
          va="center",
          ha="left" if side > 0 else "right",
          color=color,
          fontsize=9,
          textcoords="offset points",
          annotation_clip=False,
        )
      if len(values_of) <= 4:
        axes.axvline(p90, color=color, linestyle=(0, (2, 2)), linewidth=1.2)
    strip.set_ylim(len(values_of) - 0.4, -0.6)
    strip.axis("off")
    axes.set_xlim(0, edges[-1])
    axes.set_xlabel(quantity.title)
    axes.set_ylabel(quantity.clients)
    plot_style.add_legend(figure, looks, list(values_of), dark)
    return plot_style.to_svg(figure)


def against_size(groups: run_folder.Groups, dark: bool, quantity: Quantity) -> bytes:
  """Draws each client's quantity against its number of examples, a panel for each method.

  Lines join the median and the 90th percentile of the clients in bins of equal number of clients.
  """
  points = {
    method: (
      _pooled(runs, quantity, "num_examples"),
      _pooled(runs, quantity) * quantity.factor,
    )
    for method, runs in groups.items()
  }
  points = {method: pair for method, pair in points.items() if pair[0].size}
  if not points:
    raise plot_style.NothingToDraw(
      f"No figure of {quantity.column} against the number of examples: the runs have no such data"
      f" of {quantity.split} clients."
    )
  sizes = np.concatenate([pair[0] for pair in points.values()])
  if np.ptp(sizes) == 0:
    raise plot_style.NothingToDraw(
      f"No figure of {quantity.column} against the number of examples: every {quantity.split}"
      f" client holds {sizes[0]:.0f}."
    )
  num_columns = min(3, len(points))
  num_rows = math.ceil(len(points) / num_columns)
  with plot_style.theme(dark) as ink:
    figure = mpl_figure.Figure((plot_style.WIDTH, 0.5 + 2.7 * num_rows), layout="constrained")
    grid = figure.subplots(num_rows, num_columns, sharex=True, sharey=True, squeeze=False)
    for index, (axes, (method, (size, error))) in enumerate(zip(grid.flat, points.items())):
      color = plot_style.palette(list(groups))[method].colors[dark]
      axes.scatter(
        size,
        error,
        s=7,
        color=color,
        alpha=min(0.5, 30 / math.sqrt(size.size)),
        linewidths=0,
        rasterized=True,
      )
      bins = np.array_split(np.argsort(size, kind="stable"), min(10, max(1, size.size // 20)))
      centers = [np.median(size[members]) for members in bins]
      for percentile, style in _PERCENTILES.items():
        axes.plot(
          centers,
          [np.percentile(error[members], percentile) for members in bins],
          color=ink,
          linewidth=1.5,
          linestyle=style,
        )
      axes.set_title(plot_style.label(method, 28), color=color)
      if sizes.min() > 0 and sizes.max() > 8 * sizes.min():
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
        axes.xaxis.set_minor_formatter(ticker.NullFormatter())
      axes.set_ylim(bottom=0)
      axes.tick_params(labelbottom=index + num_columns >= len(points))
    for axes in grid.flat[len(points) :]:
      axes.remove()
    figure.supxlabel("Examples of the client", fontsize="medium")
    figure.supylabel(quantity.title, fontsize="medium")
    figure.legend(
      [mpl_lines.Line2D([], [], color=ink, linestyle=style) for style in _PERCENTILES.values()],
      ["median of clients of similar size", "90th percentile"],
      loc="outside upper left",
      ncols=2,
    )
    return plot_style.to_svg(figure)


def _pooled(
  runs: Sequence[run_folder.Run], quantity: Quantity, column: str | None = None
) -> np.ndarray:
  """Joins a column of the clients of several runs, where it and the quantity are finite."""
  parts = [np.empty(0)]
  column = column or quantity.column
  for run in runs:
    clients = run.clients(quantity.split)
    if column in clients and quantity.column in clients:
      keep = np.isfinite(clients[column]) & np.isfinite(clients[quantity.column])
      parts.append(clients[column][keep])
  return np.concatenate(parts)


def _mean(values: np.ndarray) -> float:
  return float(np.mean(values))


def _p90(values: np.ndarray) -> float:
  return float(np.percentile(values, 90))


def _reported(
  runs: Sequence[run_folder.Run],
  quantity: Quantity,
  statistic: str,
  fallback: Callable[[np.ndarray], float],
) -> float:
  """A statistic as the table has it, or else computed from all clients."""
  aggregates = run_folder.aggregate(runs)
  name = quantity.metric(statistic)
  return aggregates[name].mean if name in aggregates else fallback(_pooled(runs, quantity))
