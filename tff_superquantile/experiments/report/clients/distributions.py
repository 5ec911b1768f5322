"""Figures of the clients: the distributions of loss and error, and the clients that they hit."""

from __future__ import annotations

import dataclasses
import math

from matplotlib import axes as mpl_axes
from matplotlib import figure as mpl_figure
from matplotlib import lines as mpl_lines
from matplotlib import ticker
import numpy as np
import pandas as pd
import seaborn as sns

from tff_superquantile.experiments.report import style
from tff_superquantile.experiments.report import tables
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.experiments.run.names import Name


@dataclasses.dataclass(frozen=True)
class Quantity:
  """A quantity of each client.

  Attributes:
    split: The clients, "test" or "train".
    column: "error" or "loss".
    factor: From the unit of the runs' files to the axis' unit.
    title: The title of an axis of it.
    unit: For single numbers, with the space before it.
    clients: The title of an axis that counts clients.
    decimals: The decimals of single numbers.
  """

  split: str
  column: str
  factor: float
  title: str
  unit: str
  clients: str
  decimals: int


_TEST_ERROR = Quantity(
  "test", "error", 100, "Error of a test client (%)", " %", "Test clients (%)", 1
)
_TRAIN_LOSS = Quantity(
  "train", "loss", 1, "Loss of a training client (nats)", "", "Training clients (%)", 2
)
# Percentiles that are drawn as curves, and their line styles.
_PERCENTILES: dict[int, style.Dash] = {50: "-", 90: (0, (3, 1.5))}


def error_histogram(groups: run_folder.Groups) -> style.Figure:
  """Draws the distribution of the test clients' error."""
  return style.Figure(
    "error-histogram",
    "Badly served clients",
    "Share of the test clients at each error, the clients of all seeds together. Above, a dot"
    " marks each method’s mean and a diamond its 90th percentile (mean over seeds). Look at the"
    " right end: a method that serves the worst-off clients has less there, and pays for it, if"
    " at all, by having less at the left end.",
    _histogram(groups, _TEST_ERROR),
  )


def loss_histogram(groups: run_folder.Groups) -> style.Figure:
  """Draws the distribution of the training clients' loss."""
  return style.Figure(
    "loss-histogram",
    "Losses of the training clients",
    "Share of the training clients at each loss at the end of training, the clients of all seeds"
    " together, each counted once; the marks above weigh them by their examples, as the table does."
    " This is the distribution whose tail superquantile aggregation minimises.",
    _histogram(groups, _TRAIN_LOSS),
  )


def error_against_size(groups: run_folder.Groups) -> style.Figure:
  """Draws each test client's error against its number of examples."""
  return style.Figure(
    "error-against-size",
    "Error against the number of examples",
    "Each point is a test client, the clients of all seeds together. Look at the left end of the"
    " dashed line: it shows whether clients with few examples are the ones served badly.",
    _against_size(groups, _TEST_ERROR),
  )


def loss_against_size(groups: run_folder.Groups) -> style.Figure:
  """Draws each training client's loss against its number of examples."""
  return style.Figure(
    "loss-against-size",
    "Training loss against the number of examples",
    "Each point is a training client at the end of training, the clients of all seeds together.",
    _against_size(groups, _TRAIN_LOSS),
  )


def bin_edges(largest: float) -> np.ndarray:
  """Returns the edges of at most 25 bins of a round width, from zero to beyond `largest`."""
  steps = [mantissa * 10.0**power for power in range(-4, 4) for mantissa in (1, 2, 4, 5)]
  width = next(step for step in steps if largest <= 25 * step)
  return np.arange(0, largest + 1.5 * width, width)


def _pooled(groups: run_folder.Groups, quantity: Quantity) -> dict[Name, pd.DataFrame]:
  """Returns "num_examples" and "value" of the clients of all seeds, by method that has any."""
  pooled = {}
  for method, runs in groups.items():
    frames = [pd.DataFrame(run.clients(quantity.split)) for run in runs]
    clients = pd.concat([frame for frame in frames if quantity.column in frame] or [pd.DataFrame()])
    if quantity.column in clients:
      clients = clients.assign(value=clients[quantity.column] * quantity.factor)
      clients = clients[np.isfinite(clients["value"])]
    if not clients.empty:
      pooled[method] = clients
  return pooled


def _histogram(groups: run_folder.Groups, quantity: Quantity) -> bytes:
  """Draws the distribution of a quantity over the clients of all seeds.

  Above the histogram stand each method's mean and 90th percentile as its runs report them.
  """
  values_of = {method: clients["value"] for method, clients in _pooled(groups, quantity).items()}
  if not values_of:
    raise style.NothingToDraw(
      f"No histogram of the {quantity.column}: the runs have none of {quantity.split} clients."
    )
  largest = max(values.max() for values in values_of.values())
  if quantity.column == "loss":
    # A few clients with enormous losses would leave the others no room.
    largest = min(largest, 1.5 * max(np.percentile(values, 99) for values in values_of.values()))
  edges = bin_edges(largest)
  reported = tables.over_seeds(tables.of_groups(groups))["mean"]
  looks = style.palette(list(groups))
  few = len(values_of) <= 4
  with style.theme():
    figure = mpl_figure.Figure((style.WIDTH, 3.7 + 0.22 * len(values_of)))
    heights = [0.22 * len(values_of) + 0.1, 3.1]
    panels = figure.subplots(2, 1, sharex=True, squeeze=False, height_ratios=heights)
    strip, axes = panels[:, 0]
    for row, (method, values) in enumerate(values_of.items()):
      color = looks[method].color
      # Rounding keeps 28.999999 out of the bin below 29.
      sns.histplot(
        x=np.round(np.minimum(values, largest), 6),
        bins=edges,
        stat="percent",
        element="step",
        fill=row == 0,
        alpha=0.18 if row == 0 else 1.0,
        color=color,
        linestyle=looks[method].dash,
        linewidth=1.8 if few else 1.2,
        ax=axes,
      )
      metric = f"{quantity.split}.{quantity.column}"
      mean, p90 = (
        reported.get((method, f"{metric}.{statistic}"), default / quantity.factor) * quantity.factor
        for statistic, default in (("mean", values.mean()), ("p90", np.percentile(values, 90)))
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
      if few:
        axes.axvline(p90, color=color, linestyle=(0, (2, 2)), linewidth=1.2)
    strip.set_ylim(len(values_of) - 0.4, -0.6)
    strip.axis("off")
    axes.set(xlim=(0, edges[-1]), xlabel=quantity.title, ylabel=quantity.clients)
    style.add_legend(figure, looks, list(values_of))
    return style.to_svg(figure)


def _against_size(groups: run_folder.Groups, quantity: Quantity) -> bytes:
  """Draws each client's quantity against its number of examples, a panel for each method.

  Lines join the median and the 90th percentile of the clients in bins of equal number of clients.
  """
  pooled = _pooled(groups, quantity)
  points = {
    method: clients[np.isfinite(clients["num_examples"])]
    for method, clients in pooled.items()
    if "num_examples" in clients
  }
  no_figure = f"No figure of {quantity.column} against the number of examples"
  if not any(map(len, points.values())):
    raise style.NothingToDraw(
      f"{no_figure}: the runs have no such data of {quantity.split} clients."
    )
  sizes = pd.concat([clients["num_examples"] for clients in points.values()])
  if sizes.min() == sizes.max():
    raise style.NothingToDraw(
      f"{no_figure}: every {quantity.split} client holds {sizes.iloc[0]:.0f}."
    )
  with style.theme():
    figure, panels = style.grid(len(points), 2.7)
    for axes, (method, clients) in zip(panels, points.items()):
      color = style.palette(list(groups))[method].color
      _draw_points(axes, clients, color)
      axes.set_title(style.label(method.label, 28), color=color)
      if sizes.min() > 0 and sizes.max() > 8 * sizes.min():
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
        axes.xaxis.set_minor_formatter(ticker.NullFormatter())
      axes.set_ylim(bottom=0)
    figure.supxlabel("Examples of the client", fontsize="medium")
    figure.supylabel(quantity.title, fontsize="medium")
    figure.legend(
      [mpl_lines.Line2D([], [], color=style.INK, linestyle=d) for d in _PERCENTILES.values()],
      ["median of clients of similar size", "90th percentile"],
      loc="outside upper left",
      ncols=2,
    )
    return style.to_svg(figure)


def _draw_points(axes: mpl_axes.Axes, clients: pd.DataFrame, color: str) -> None:
  """Draws clients as points, and percentiles of clients of similar size as lines."""
  axes.scatter(
    clients["num_examples"],
    clients["value"],
    s=7,
    color=color,
    alpha=min(0.5, 30 / math.sqrt(len(clients))),
    linewidths=0,
    rasterized=True,  # Thousands of points would make the page heavy.
  )
  ranks = clients["num_examples"].rank(method="first")
  bins = clients.groupby(pd.qcut(ranks, min(10, max(1, len(clients) // 20)), labels=False))
  for percentile, dash in _PERCENTILES.items():
    values = bins["value"].quantile(percentile / 100)
    axes.plot(bins["num_examples"].median(), values, color=style.INK, linewidth=1.5, linestyle=dash)
