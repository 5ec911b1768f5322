"""Figures that compare the finished runs of a task, method against method.

Every figure is a function of the runs and a theme that returns an SVG, drawn on a transparent
ground so that a page can show the light or the dark one. Thousands of points are embedded in it
as a bitmap, text and axes stay crisp. A method has one colour in all figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
import dataclasses
import math

from matplotlib import axes as mpl_axes
from matplotlib import figure as mpl_figure
from matplotlib import lines as mpl_lines
from matplotlib import ticker
import numpy as np

from tff_superquantile.experiments import plot_style
from tff_superquantile.experiments import run_folder

# Rounds, mean and sd over seeds (NaN for one seed), each of shape [number of points].
_Curve = tuple[np.ndarray, np.ndarray, np.ndarray]

WIDTH = 9.2  # Inches; a page shows this at its full text width.


class NothingToDraw(ValueError):
  """The runs lack what a figure shows; the message is a sentence that says what."""


@dataclasses.dataclass(frozen=True)
class Figure:
  """A drawn figure.

  Attributes:
    name: Identifier, fit for an HTML id or a file name.
    title: Heading.
    caption: What is drawn and what to look for, plain text.
    light: The SVG for a light background.
    dark: The SVG for a dark background.
  """

  name: str
  title: str
  caption: str
  light: bytes
  dark: bytes


def draw_all(groups: run_folder.Groups) -> tuple[list[Figure], list[str]]:
  """Draws every figure that the runs have the data for.

  Args:
    groups: Finished runs by method.

  Returns:
    The figures, and for each that is left out a sentence that says why.
  """
  figures, omitted = [], []
  chosen, epsilon = run_folder.at_one_epsilon(groups)
  for draw, title, caption in _FIGURES:
    if epsilon is not None:
      title = f"{title}, ε = {epsilon:g}"
    try:
      light, dark = draw(chosen, False), draw(chosen, True)
    except NothingToDraw as reason:
      omitted.append(str(reason))
    else:
      name = draw.__name__.strip("_").replace("_", "-")
      figures.append(Figure(name, title, caption, light, dark))
  if len({run_folder.epsilon_of(method) for method in groups} - {None}) > 1:
    light, dark = (_error_by_epsilon(groups, dark) for dark in (False, True))
    figures.insert(
      0, Figure("error-by-epsilon", _BY_EPSILON_TITLE, _BY_EPSILON_CAPTION, light, dark)
    )
  return figures, omitted


def _error_by_epsilon(groups: run_folder.Groups, dark: bool) -> bytes:
  """Draws mean and 90th percentile of the test error against the privacy budget."""
  families: dict[str, dict[float, Sequence[run_folder.Run]]] = {}
  for method, runs in groups.items():
    epsilon = run_folder.epsilon_of(method)
    if epsilon is not None:
      families.setdefault(run_folder.without_epsilon(method), {})[epsilon] = runs
  methods = sorted(families, key=run_folder.method_order)
  looks = plot_style.palette(methods)
  with plot_style.theme(dark):
    figure = mpl_figure.Figure((WIDTH, 3.6), layout="constrained")
    panels = figure.subplots(1, 2)
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
          x, y, sd = zip(*points)
          axes.errorbar(
            x,
            y,
            yerr=sd,
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


_BY_EPSILON_TITLE = "Error against the privacy budget"
_BY_EPSILON_CAPTION = (
  "Mean over seeds of the mean and of the 90th percentile of the test clients’ errors; bars are "
  "standard deviations over seeds. Each curve is a method, each point a budget for all that its "
  "server releases. Look at how fast a method loses to the left, where there is more noise."
)


def _error_histogram(groups: run_folder.Groups, dark: bool) -> bytes:
  """Draws the distribution of the test clients' errors, the clients of all seeds together.

  Above the histogram stand each method's mean and 90th percentile as its runs report them.
  """
  errors = {method: _pooled(runs, "error") * 100 for method, runs in groups.items()}
  errors = {method: values for method, values in errors.items() if values.size}
  if not errors:
    raise NothingToDraw("No histogram of errors: the runs have no errors of test clients.")
  largest = max(values.max() for values in errors.values())
  width = next(step for step in (0.1, 0.2, 0.5, 1, 2, 4, 5) if largest <= 25 * step or step == 5)
  edges = np.arange(0, largest + 1.5 * width, width)
  filled = next(iter(errors))
  looks = plot_style.palette(list(groups))
  with plot_style.theme(dark):
    figure = mpl_figure.Figure((WIDTH, 3.7 + 0.22 * len(errors)), layout="constrained")
    strip, axes = figure.subplots(2, sharex=True, height_ratios=[0.22 * len(errors) + 0.1, 3.1])
    for row, (method, values) in enumerate(errors.items()):
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
        linewidth=1.8 if len(errors) <= 4 else 1.2,
      )
      mean, p90 = (
        _reported(groups[method], name, fallback) * 100
        for name, fallback in (
          ("test.error.mean", np.mean),
          ("test.error.p90", lambda error: np.percentile(error, 90)),
        )
      )
      strip.plot([mean, p90], [row, row], color=color, linestyle=looks[method].dash, linewidth=1.6)
      for value, marker, name, side in ((mean, "o", "mean", -1), (p90, "D", "p90", 1)):
        strip.plot(value, row, marker=marker, color=color, markersize=5)
        strip.annotate(
          f"{name} {value:.1f} %",
          (value, row),
          (side * 8, 0),
          va="center",
          ha="left" if side > 0 else "right",
          color=color,
          fontsize=9,
          textcoords="offset points",
          annotation_clip=False,
        )
      if len(errors) <= 4:
        axes.axvline(p90, color=color, linestyle=(0, (2, 2)), linewidth=1.2)
    strip.set_ylim(len(errors) - 0.4, -0.6)
    strip.axis("off")
    axes.set_xlim(0, edges[-1])
    axes.set_xlabel("Error of a test client (%)")
    axes.set_ylabel("Test clients (%)")
    plot_style.add_legend(figure, looks, list(errors), dark)
    return plot_style.to_svg(figure)


def _error_against_size(groups: run_folder.Groups, dark: bool) -> bytes:
  """Draws each test client's error against its number of examples, a panel for each method.

  Lines join the median and the 90th percentile of the clients in bins of equal number of clients.
  """
  points = {
    method: (_pooled(runs, "num_examples", "error"), _pooled(runs, "error", "num_examples"))
    for method, runs in groups.items()
  }
  points = {method: pair for method, pair in points.items() if pair[0].size}
  if not points:
    raise NothingToDraw("No figure of error against examples: the runs have no such data.")
  sizes = np.concatenate([pair[0] for pair in points.values()])
  if np.ptp(sizes) == 0:
    raise NothingToDraw(
      f"No figure of error against the number of examples: every test client holds {sizes[0]:.0f}."
    )
  num_columns = min(3, len(points))
  num_rows = math.ceil(len(points) / num_columns)
  with plot_style.theme(dark) as ink:
    figure = mpl_figure.Figure((WIDTH, 0.5 + 2.7 * num_rows), layout="constrained")
    grid = figure.subplots(num_rows, num_columns, sharex=True, sharey=True, squeeze=False)
    for index, (axes, (method, (size, error))) in enumerate(zip(grid.flat, points.items())):
      color = plot_style.palette(list(groups))[method].colors[dark]
      axes.scatter(
        size,
        error * 100,
        s=7,
        color=color,
        alpha=min(0.5, 30 / math.sqrt(size.size)),
        linewidths=0,
        rasterized=True,
      )
      bins = np.array_split(np.argsort(size, kind="stable"), min(10, max(1, size.size // 20)))
      centers = [np.median(size[members]) for members in bins]
      for percentile, style in ((50, "-"), (90, (0, (3, 1.5)))):
        axes.plot(
          centers,
          [np.percentile(error[members] * 100, percentile) for members in bins],
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
    figure.supxlabel("Examples of the test client", fontsize="medium")
    figure.supylabel("Error (%)", fontsize="medium")
    figure.legend(
      [mpl_lines.Line2D([], [], color=ink, linestyle=style) for style in ("-", (0, (3, 1.5)))],
      ["median of clients of similar size", "90th percentile"],
      loc="outside upper left",
      ncols=2,
    )
    return plot_style.to_svg(figure)


def _error_by_round(groups: run_folder.Groups, dark: bool) -> bytes:
  """Draws mean and tail of the test clients' error against rounds, averaged over seeds."""
  return _panels(
    groups,
    dark,
    "error against rounds",
    (
      ("test_error_mean", "Mean error (%)", 100, False),
      ("test_error_p90", "90th percentile of error (%)", 100, False),
      ("test_error_superquantile_90", "Error of worst 10 % (%)", 100, False),
    ),
  )


def _selection_by_round(groups: run_folder.Groups, dark: bool) -> bytes:
  """Draws how many clients trained, and from which loss on, against rounds, averaged over seeds."""
  return _panels(
    groups,
    dark,
    "selected clients against rounds",
    (
      ("tail_size", "Clients that trained", 1, True),
      ("threshold", "Threshold (loss, nats)", 1, True),
    ),
  )


def _loss_by_round(groups: run_folder.Groups, dark: bool) -> bytes:
  """Draws the losses of training, cohort and test clients against rounds, averaged over seeds."""
  return _panels(
    groups,
    dark,
    "loss against rounds",
    (
      ("train_loss", "Clients that trained, mean loss", 1, True),
      ("cohort_loss_superquantile", "Cohort, superquantile of loss", 1, True),
      ("test_loss_mean", "Test clients, mean loss", 1, False),
      ("test_loss_superquantile_90", "Worst 10 % of test clients, loss", 1, False),
    ),
  )


_FIGURES: tuple[tuple[Callable[..., bytes], str, str], ...] = (
  (
    _error_histogram,
    "Who is served badly",
    "Share of the test clients at each error, the clients of all seeds together. Above, a dot "
    "marks each method’s mean and a diamond its 90th percentile (mean over seeds). Look at the "
    "right end: a method that serves the worst-off clients has less there, and pays for it, if "
    "at all, by having less at the left end.",
  ),
  (
    _error_against_size,
    "Error against the number of examples",
    "Each point is a test client, the clients of all seeds together. Look at the left end of the "
    "dashed line: it shows whether clients with few examples are the ones served badly.",
  ),
  (
    _error_by_round,
    "Error against rounds",
    "Test clients, mean over seeds; the band is one standard deviation over seeds on either "
    "side. The first rounds may lie above the axis. Look whether the tail falls further than "
    "FedAvg’s while the mean stays close, and whether the curves are level at the end: a gap "
    "between curves that still fall may yet change.",
  ),
  (
    _selection_by_round,
    "Selected clients and threshold",
    "How many clients of the cohort were at or above the threshold and trained, and the "
    "threshold itself; moving means over a fiftieth of the rounds, band as above. Look for a "
    "number of clients near θ times the cohort (dotted, where θ is known) and a threshold that "
    "settles; a private threshold is noisier.",
  ),
  (
    _loss_by_round,
    "Loss against rounds",
    "Cross-entropy in nats, mean over seeds, band as above; training and cohort losses are "
    "moving means over a fiftieth of the rounds. Look for a loss that still falls (train longer) "
    "or that rises (a smaller learning rate).",
  ),
)


def _panels(
  groups: run_folder.Groups, dark: bool, what: str, panels: Sequence[tuple[str, str, float, bool]]
) -> bytes:
  """Draws columns of `rounds.csv` against rounds, one panel a column that has data.

  Args:
    groups: Finished runs by method.
    dark: Whether for a dark background.
    what: What the figure is of, for the error.
    panels: (column, title, factor to the unit of the title, whether to take moving means).

  Returns:
    An SVG.

  Raises:
    NothingToDraw: If no column has data.
  """
  looks = plot_style.palette(list(groups))
  drawn = []
  for column, title, factor, smooth in panels:
    curves = {method: _over_seeds(runs, column, factor, smooth) for method, runs in groups.items()}
    curves = {method: curve for method, curve in curves.items() if curve[0].size}
    if curves:
      drawn.append((column, title, curves))
  if not drawn:
    raise NothingToDraw(f"No figure of {what}: the runs have no such columns.")
  num_columns = 2 if len(drawn) in (2, 4) else min(3, len(drawn))
  num_rows = math.ceil(len(drawn) / num_columns)
  with plot_style.theme(dark) as ink:
    figure = mpl_figure.Figure((WIDTH, 0.5 + 2.6 * num_rows), layout="constrained")
    grid = figure.subplots(num_rows, num_columns, squeeze=False)
    for axes, (column, title, curves) in zip(grid.flat, drawn):
      for method, (rounds, mean, deviation) in curves.items():
        look = looks[method]
        axes.plot(rounds, mean, color=look.colors[dark], linestyle=look.dash, linewidth=1.7)
        if np.isfinite(deviation).any():
          axes.fill_between(
            rounds,
            mean - deviation,
            mean + deviation,
            color=look.colors[dark],
            alpha=0.16 if len(curves) <= 4 else 0.08,
            linewidth=0,
          )
        if column == "tail_size":
          _mark_expected_size(axes, groups[method], method, look.colors[dark])
      axes.set_title(title, color=ink)
      axes.set_xlabel("Round")
      axes.xaxis.set_major_locator(ticker.MaxNLocator(5, integer=True))
      axes.set_xlim(0, max(curve[0][-1] for curve in curves.values()) or 1)
      axes.set_ylim(*_limits(curves.values(), from_zero=column == "tail_size"))
    for axes in grid.flat[len(drawn) :]:
      axes.remove()
    shown = [method for method in groups if any(method in curves for _, _, curves in drawn)]
    plot_style.add_legend(figure, looks, shown, dark)
    return plot_style.to_svg(figure)


def _over_seeds(runs: Sequence[run_folder.Run], column: str, factor: float, smooth: bool) -> _Curve:
  """Returns a column's curve; empty if no run has the column."""
  curves = []
  for run in runs:
    values = run.rounds.get(column, np.empty(0)) * factor
    keep = np.isfinite(values)
    if keep.any():
      rounds, values = run.rounds["round"][keep], values[keep]
      curves.append((rounds, _moving_mean(values) if smooth else values))
  if not curves:
    return np.empty(0), np.empty(0), np.empty(0)
  # Seeds may lack different rounds (a round without a tail has no threshold), so align them.
  rounds = np.unique(np.concatenate([curve[0] for curve in curves]))
  table = np.full((len(curves), rounds.size), np.nan)
  for row, (own_rounds, values) in zip(table, curves):
    row[np.searchsorted(rounds, own_rounds)] = values
  # More points than pixels only make the page heavy.
  kept = np.unique(np.append(np.arange(0, rounds.size, 1 + rounds.size // 400), rounds.size - 1))
  table, rounds = table[:, kept], rounds[kept]
  count = np.isfinite(table).sum(axis=0)
  keep = count > 0
  table, rounds, count = table[:, keep], rounds[keep], count[keep]
  mean = np.nansum(table, axis=0) / count
  squares = np.nansum((table - mean) ** 2, axis=0)
  return rounds, mean, np.where(count > 1, np.sqrt(squares / np.maximum(count - 1, 1)), np.nan)


def _moving_mean(values: np.ndarray) -> np.ndarray:
  """Averages over a centred window of a fiftieth of the points, shorter at the ends."""
  window = np.ones(2 * (values.size // 100) + 1)
  return np.convolve(values, window, "same") / np.convolve(np.ones(values.size), window, "same")


def _limits(curves: Iterable[_Curve], from_zero: bool) -> tuple[float, float]:
  """Chooses the vertical range by the curves after their first tenth.

  An untrained model's error would otherwise squeeze the differences of interest into a line.

  Args:
    curves: The curves of the methods in one panel.
    from_zero: Whether the range starts at zero.

  Returns:
    Lower and upper limit.
  """
  settled = []
  for rounds, mean, deviation in curves:
    late = rounds >= 0.1 * rounds[-1]
    settled += [(mean - np.nan_to_num(deviation))[late], (mean + np.nan_to_num(deviation))[late]]
  values = np.concatenate(settled)
  low, high = (0.0 if from_zero else values.min()), values.max()
  margin = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
  return (0.0 if from_zero else low - margin), high + margin


def _mark_expected_size(
  axes: mpl_axes.Axes, runs: Sequence[run_folder.Run], method: str, color: str
) -> None:
  """Draws a dotted line at theta times the mean cohort size."""
  theta = run_folder.theta_of(method)
  sizes = np.concatenate([run.rounds.get("cohort_size", np.empty(0)) for run in runs])
  if theta is not None and np.isfinite(sizes).any():
    axes.axhline(theta * np.nanmean(sizes), color=color, linestyle=(0, (1, 2)), linewidth=1.2)


def _pooled(runs: Sequence[run_folder.Run], column: str, other: str | None = None) -> np.ndarray:
  """Joins a column of the test clients of several runs, finite in it and in the other column."""
  parts = [np.empty(0)]
  for run in runs:
    clients = run.test_clients
    if column in clients and (other is None or other in clients):
      keep = np.isfinite(clients[column]) & np.isfinite(clients[other or column])
      parts.append(clients[column][keep])
  return np.concatenate(parts)


def _reported(
  runs: Sequence[run_folder.Run], name: str, fallback: Callable[[np.ndarray], float]
) -> float:
  """A metric of the test error as the table has it, or else computed from all clients."""
  aggregates = run_folder.aggregate(runs)
  return aggregates[name].mean if name in aggregates else fallback(_pooled(runs, "error"))
