"""Errors of clients by their number of examples, in a figure and tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
import dataclasses
import math

from matplotlib import axes as mpl_axes
from matplotlib import ticker
import numpy as np
from numpy import typing as npt
import pandas as pd

from tff_superquantile import superquantile
from tff_superquantile.experiments.report import grouped
from tff_superquantile.experiments.report import style
from tff_superquantile.experiments.report import tables
from tff_superquantile.experiments.report import units
from tff_superquantile.experiments.run import names

# Percentiles that are drawn as curves, and their line styles.
_PERCENTILES: dict[int, style.Dash] = {50: "-", 90: (0, (3, 1.5))}


_THIRDS = ("smallest", "middle", "largest")
_NOTE = (
  "Mean {measure}, standard deviation over the clients of the third (sd) and 90th percentile (p90),"
  " in {unit}. Less FedAvg’s: the mean over clients of the {measure} less that of the same"
  " client with FedAvg, of the same seed{budget}. {entries}."
)


def terciles(sizes: npt.ArrayLike, everybody: npt.ArrayLike) -> np.ndarray:
  """Returns the tercile of clients' sizes [n] among everybody's [m], 0 for the smallest."""
  bounds = np.quantile(np.asarray(everybody), [1 / 3, 2 / 3])
  return np.searchsorted(bounds, np.asarray(sizes), side="left")


def span(sizes: npt.ArrayLike) -> str:
  """Formats the least and the most of some sizes, "12 to 87"."""
  least, most = (f"{size:.0f}" for size in np.quantile(np.asarray(sizes), [0, 1]))
  return least if least == most else f"{least} to {most}"


@dataclasses.dataclass(frozen=True)
class ErrorBySize:
  """The test clients' error, or leading measure, by tercile of their number of examples."""

  results: pd.DataFrame
  titles: Mapping[str, str]
  leading: units.Leading

  def columns(self, third: str) -> list[tables.Column]:
    """Returns the columns of the table of a third."""
    of_third, unit = f"test.{third}_third", self.leading.unit
    metric = f"{of_third}.{self.leading.name}"
    return [
      unit.column(f"{metric}.mean", "mean"),
      unit.column(f"{metric}.change", "less FedAvg’s", sign=True),
      unit.column(f"{metric}.p90", "p90"),
      unit.column(f"{metric}.std", "sd"),
      tables.Column(f"{of_third}.num_clients", "clients", 1.0, 0, contest=False),
    ]

  def note(self, is_private: bool) -> str:
    """Returns a hint on reading the tables."""
    return _NOTE.format(
      measure=self.leading.words,
      unit=self.leading.unit.name,
      budget=" and budget" if is_private else "",
      entries=tables.entries(self.results["seed"].nunique() == 1),
    )

  def compared(self, methods: Iterable[names.Name]) -> list[names.Name]:
    """Returns those of some methods that have changes against FedAvg."""
    compared = set(self.results[self.results["metric"].str.endswith(".change")]["method"])
    return [method for method in methods if method in compared]

  def sentence(self, method: names.Name) -> str:
    """Says what a method of `compared` changes for the smallest and for the largest clients."""
    effects, num_seeds, measure = [], 0, self.leading
    for third, subject in (
      (_THIRDS[0], f"the mean {measure.words} of the smallest third of the test clients"),
      (_THIRDS[-1], "that of the largest third"),
    ):
      if third in self.titles:
        changes = tables.of_seed(self.results, method, f"test.{third}_third.{measure.name}.change")
        effects.append(self.leading.unit.effect(changes, subject))
        num_seeds = len(changes)
    text = f"By number of examples, {method.label} {' and '.join(effects)} against FedAvg"
    return text + tables.over(num_seeds)


def error_by_size(groups: grouped.Grouped) -> ErrorBySize:
  """Measures the error of small, middling and large test clients, in terciles of all seeds."""
  pooled, column = groups.clients, groups.leading.name
  subject = f"No table of {units.words(column)} by number of examples"
  if not pooled or not all("num_examples" in clients for clients in pooled.values()):
    raise style.NothingToDraw(f"{subject}: the runs have no such data of test clients.")
  everybody = pd.concat(pooled.values()).drop_duplicates(["seed", "client_id"])["num_examples"]
  if everybody.min() == everybody.max():
    raise style.NothingToDraw(
      f"{subject}: every test client holds {everybody.iloc[0]:.0f}, and thirds would be arbitrary."
    )
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
  thirds = pd.Series(terciles(everybody, everybody))
  titles = {
    _THIRDS[third]: f"The {_THIRDS[third]} third of the test clients: {span(own)} examples"
    for third, own in everybody.groupby(thirds.to_numpy())
  }
  return ErrorBySize(tables.of_values(rows), titles, groups.leading)


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
  """Draws the leading measure of each test client against its number of examples."""
  return style.Figure(
    "error-against-size",
    f"{groups.leading.title} against the number of examples",
    "Each point is a test client, the clients of all seeds together. Look at the left end of the"
    " dashed line: it shows whether clients with few examples are the ones served badly.",
    _against_size(groups),
  )


def _against_size(groups: grouped.Grouped) -> bytes:
  """Draws clients' leading measure by their number of examples, with median and p90, by method."""
  points = {
    method: clients[np.isfinite(clients["num_examples"])]
    for method, clients in groups.clients.items()
    if "num_examples" in clients
  }
  no_figure = f"No figure of {groups.leading.words} against the number of examples"
  if not any(map(len, points.values())):
    raise style.NothingToDraw(f"{no_figure}: the runs have no such data of test clients.")
  sizes = pd.concat([clients["num_examples"] for clients in points.values()])
  if sizes.min() == sizes.max():
    raise style.NothingToDraw(f"{no_figure}: every test client holds {sizes.iloc[0]:.0f}.")
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
    style.from_zero(panels[0])  # The axis of all panels: not before all are drawn.
    figure.supxlabel("Examples of the client", fontsize="medium")
    figure.supylabel(
      groups.leading.unit.axis(f"{groups.leading.title} of a test client"), fontsize="medium"
    )
    titles = ("median of clients of similar size", "90th percentile")
    dashes = (dict(color=style.INK, linestyle=dash) for dash in _PERCENTILES.values())
    style.add_line_legend(figure, dict(zip(titles, dashes)))
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
