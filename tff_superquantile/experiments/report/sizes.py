"""Errors of clients by their number of examples, in a figure and a table."""

from __future__ import annotations

from collections.abc import Iterator
import math

from matplotlib import axes as mpl_axes
from matplotlib import ticker
import numpy as np
from numpy import typing as npt
import pandas as pd

from tff_superquantile import superquantile
from tff_superquantile.experiments.config import names
from tff_superquantile.experiments.evidence import grouped
from tff_superquantile.experiments.pages import style
from tff_superquantile.experiments.pages import tables
from tff_superquantile.experiments.pages import units

# Percentiles that are drawn as curves, and their line styles.
_PERCENTILES: dict[int, style.Dash] = {50: "-", 90: (0, (3, 1.5))}
_THIRDS = ("smallest", "middle", "largest")
TITLE = "Thirds of the test clients by number of examples"
NOTE = (
  "Mean {measure} in {unit}. Minus FedAvg: the mean over clients of the {measure} minus that of the"
  " same client with FedAvg, of the same seed and options. {entries}."
)


def terciles(sizes: npt.ArrayLike, everybody: npt.ArrayLike) -> np.ndarray:
  """Returns the tercile of clients' sizes [n] among everybody's [m], 0 for the smallest."""
  bounds = np.quantile(np.asarray(everybody), [1 / 3, 2 / 3])
  return np.searchsorted(bounds, np.asarray(sizes), side="left")


def span(sizes: npt.ArrayLike) -> str:
  """Formats the least and the most of some sizes, "12 to 87"."""
  least, most = (f"{size:.0f}" for size in np.quantile(np.asarray(sizes), [0, 1]))
  return least if least == most else f"{least} to {most}"


def columns(results: pd.DataFrame, leading: units.Leading) -> Iterator[tables.Column]:
  """Yields the columns of the table of `error_by_size`."""
  for third in _THIRDS:
    of_third = f"test.{third}_third"
    is_end = results["metric"].isin([f"{of_third}.examples.{end}" for end in ("least", "most")])
    if is_end.any():
      title = f"{third} ({span(results['value'][is_end])})"
      metric = f"{of_third}.{leading.name}"
      yield leading.unit.column(f"{metric}.mean", title)
      yield leading.unit.column(f"{metric}.change", "minus FedAvg", contest=False, sign=True)


def error_by_size(groups: grouped.Grouped) -> pd.DataFrame:
  """Measures the leading measure of test clients, in terciles of all seeds.

  The results are those of `tables.of_values`, as `test.smallest_third.error.mean`; none where sizes
  are unknown or all equal, so that thirds would be arbitrary.
  """
  pooled, column = groups.clients, groups.leading.name
  if not pooled or not all("num_examples" in clients for clients in pooled.values()):
    return tables.of_values([])
  everybody = pd.concat(pooled.values()).drop_duplicates(["seed", "client_id"])["num_examples"]
  if everybody.min() == everybody.max():
    return tables.of_values([])
  baselines = names.baselines(pooled)
  rows = []
  for method, clients in pooled.items():
    baseline = baselines.get(method)
    if baseline is not None:
      other = pooled[baseline].set_index(["seed", "client_id"])[column].rename("other")
      clients = clients.join(other, on=["seed", "client_id"])
    clients = clients.assign(third=terciles(clients["num_examples"], everybody))
    for (seed, third), own in clients.groupby(["seed", "third"]):
      metrics = _describe(own, column)
      name = f"test.{_THIRDS[third]}_third"
      rows.append((method, seed, {f"{name}.{key}": value for key, value in metrics.items()}))
  return tables.of_values(rows)


def _describe(clients: pd.DataFrame, column: str) -> dict[str, float]:
  """Describes the clients of a third under one run."""
  values, size = clients[column].to_numpy(), clients["num_examples"]
  metrics = {
    "num_clients": len(values),
    "examples.least": size.min(),
    "examples.most": size.max(),
    f"{column}.mean": values.mean(),
    f"{column}.std": values.std(),
    f"{column}.p90": superquantile.percentile(values, 90),
  }
  if "other" in clients and clients["other"].notna().any():
    # Of the clients that both runs have.
    metrics[f"{column}.change"] = (clients[column] - clients["other"]).mean()
  return metrics


def error_against_size(groups: grouped.Grouped) -> style.Figure:
  """Draws clients' leading measure by their number of examples, with median and p90, by method."""
  points = {
    method: clients[np.isfinite(clients["num_examples"])]
    for method, clients in groups.clients.items()
    if "num_examples" in clients
  }
  if not any(map(len, points.values())):
    raise style.NothingToDraw
  sizes = pd.concat([clients["num_examples"] for clients in points.values()])
  if sizes.min() == sizes.max():
    raise style.NothingToDraw
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
    # The axis of all panels: not before all are drawn.
    panels[0].set_ylim(0.0, 1.06 * panels[0].get_ylim()[1])
    figure.supxlabel("Examples of the client", fontsize="medium")
    figure.supylabel(
      groups.leading.unit.axis(f"{groups.leading.title} of a test client"), fontsize="medium"
    )
    titles = ("median of clients of similar size", "90th percentile")
    dashes = (dict(color=style.INK, linestyle=dash) for dash in _PERCENTILES.values())
    style.add_line_legend(figure, dict(zip(titles, dashes)))
    svg = style.to_svg(figure)
  return style.Figure(
    "error-against-size",
    f"{groups.leading.title} against the number of examples",
    "Each point is a test client, the clients of all seeds together. Look at the left end of the"
    " dashed line: it shows whether clients with few examples are the ones served badly.",
    svg,
  )


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
