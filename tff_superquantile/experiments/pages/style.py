"""The look of figures: one colour a method, drawn once in light colours and recoloured for dark."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
import contextlib
import dataclasses
import functools
import io
import math
import re
from typing import Any, Literal, TypeAlias

import matplotlib
from matplotlib import axes as mpl_axes
from matplotlib import axis as mpl_axis
from matplotlib import colors as mpl_colors
from matplotlib import figure as mpl_figure
from matplotlib import image as mpl_image
from matplotlib import lines as mpl_lines
from matplotlib import ticker
from matplotlib import typing as mpl_typing
from matplotlib.backends import backend_svg
import numpy as np

from tff_superquantile.experiments.config import names

GREY = "#4a4a4a"  # FedAvg.
# The colours of Okabe and Ito, which stay apart for colour-blind readers.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#c05f98", "#c88a00", "#56b4e9")
PALE, INK, FAINT = "#a9afb6", "#22262b", "#d9dce0"
# The colour on a dark background in place of each light one.
_DARK = {
  GREY: "#c9c9c9",
  **dict(zip(COLORS, ("#56a8e8", "#ff8a3d", "#2fc79a", "#e79ac6", "#f0b93a", "#a6dcfa"))),
  PALE: "#6b737c",
  INK: "#e4e7ea",
  FAINT: "#3a4048",
}
Dash: TypeAlias = mpl_typing.LineStyleType
# From the seventh method on, colours repeat with another dash.
DASHES: tuple[Dash, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
WIDTH = 9.2  # Inches; a page shows this at its full text width.

_STYLE: Any = {
  "font.size": 9.5,
  "font.sans-serif": ["Arial", "DejaVu Sans", "Liberation Sans", "sans-serif"],
  "axes.titlesize": 10,
  "axes.labelsize": 9.5,
  "legend.fontsize": 9.5,
  "axes.titlelocation": "left",
  "axes.titlepad": 7,
  "axes.titlecolor": INK,
  "axes.labelcolor": INK,
  "axes.edgecolor": FAINT,
  "axes.linewidth": 0.8,
  "axes.grid": True,
  "axes.axisbelow": True,
  "axes.spines.top": False,
  "axes.spines.right": False,
  "lines.solid_capstyle": "round",
  "patch.edgecolor": "w",
  "grid.color": FAINT,
  "grid.linewidth": 0.6,
  "text.color": INK,
  "figure.constrained_layout.use": True,
  "figure.constrained_layout.w_pad": 0.08,
  "figure.constrained_layout.h_pad": 0.07,
  "xtick.color": FAINT,
  "ytick.color": FAINT,
  "xtick.labelcolor": INK,
  "ytick.labelcolor": INK,
  "xtick.bottom": True,
  "ytick.left": True,
  "legend.frameon": False,
  "legend.borderaxespad": 0,
  # Text as paths looks the same on every machine, and a fixed salt makes equal files of equal data.
  "svg.fonttype": "path",
  "svg.hashsalt": "tff_superquantile",
}


class NothingToDraw(ValueError):
  """The runs lack the data of a figure."""


@dataclasses.dataclass(frozen=True)
class Figure:
  """A drawn figure, with a name that is fit for an HTML id or a file name.

  `shows` says in numbers what it shows, for those who do not see it.
  """

  name: str
  title: str
  caption: str
  light: bytes
  shows: str = ""

  @property
  def alt(self) -> str:
    """What stands for the picture where it is not seen."""
    return f"{self.title}. {self.shows}" if self.shows else self.title

  @functools.cached_property
  def dark(self) -> bytes:
    """The SVG for a dark background."""
    svg = re.sub(rb"#[0-9a-f]{6}", lambda match: dark(match[0].decode()).encode(), self.light)
    return re.sub(rb"(?<=data:image/png;base64,)[^\"]+", _recolor_bitmap, svg)


@dataclasses.dataclass(frozen=True)
class Look:
  """The look of a method."""

  color: str
  dash: Dash


def dark(color: str) -> str:
  """Returns the colour on a dark background in place of one of the figures'; others stay."""
  return _DARK.get(color, color)


def _recolor_bitmap(match: re.Match[bytes]) -> bytes:
  """Recolours a PNG in base64 for a dark background; its points are all of one colour."""
  pixels = mpl_image.imread(io.BytesIO(base64.b64decode(match[0])), format="png")
  flat = pixels.reshape(-1, 4)
  mean = np.average(flat[:, :3], axis=0, weights=flat[:, 3] + 1e-9)
  nearest = min(_DARK, key=lambda color: float(np.abs(mean - mpl_colors.to_rgb(color)).sum()))
  pixels[..., :3] = mpl_colors.to_rgb(dark(nearest))
  buffer = io.BytesIO()
  mpl_image.imsave(buffer, pixels, format="png")
  return base64.b64encode(buffer.getvalue())


def palette(
  methods: Sequence[names.Name], coloured: Sequence[names.Name] | None = None
) -> dict[str, Look]:
  """Gives each method its look, at every budget; only `coloured` ones, None for all, stand out."""
  if coloured is not None:
    return {**dict.fromkeys(methods, Look(PALE, "-")), **palette(coloured)}
  families = names.without_epsilons(methods)
  fed_avgs = [name for name in dict.fromkeys(families.values()) if name.is_fed_avg]
  others = [name for name in dict.fromkeys(families.values()) if not name.is_fed_avg]
  looks = {
    method: Look(COLORS[index % len(COLORS)], DASHES[index // len(COLORS) % len(DASHES)])
    for index, method in enumerate(others)
  }
  looks.update(
    (method, Look(GREY, DASHES[index % len(DASHES)])) for index, method in enumerate(fed_avgs)
  )
  return {method: looks[family] for method, family in families.items()}


def grid(
  num_panels: int, height: float, common_axes: bool = True
) -> tuple[mpl_figure.Figure, list[mpl_axes.Axes]]:
  """Makes a figure of panels, `height` inches a row, with common axes or with axes of their own."""
  num_columns = 2 if num_panels in (2, 4) else min(3, num_panels)
  num_rows = math.ceil(num_panels / num_columns)
  figure = mpl_figure.Figure((WIDTH, 0.5 + height * num_rows))
  panels = figure.subplots(
    num_rows, num_columns, sharex=common_axes, sharey=common_axes, squeeze=False
  ).flat
  for index, axes in enumerate(panels):
    if index >= num_panels:
      axes.remove()
    if common_axes:
      axes.tick_params(labelbottom=index + num_columns >= num_panels)
  return figure, list(panels[:num_panels])


def label(title: str, longest: int = 36) -> str:
  """Returns a method's title, fit for a figure."""
  return plain(title if len(title) <= longest else title[: longest - 1] + "…")


def plain(text: str) -> str:
  """Keeps matplotlib from reading markup in a text."""
  # A pair of dollars would start a formula, a leading underscore hides a legend's entry.
  return (" " if text.startswith("_") else "") + text.replace("$", r"\$")


def add_legend(
  figure: mpl_figure.Figure, looks: Mapping[str, Look], methods: Sequence[names.Name]
) -> None:
  """Names the methods above the panels, where no data can be covered."""
  lines = [
    mpl_lines.Line2D([], [], color=looks[method].color, linewidth=2, linestyle=looks[method].dash)
    for method in methods
  ]
  labels = [label(method.label) for method in methods]
  # As many columns as fit, 13.6 letters an inch, with eight for each line and gap.
  columns = int(13.6 * figure.get_figwidth()) // (max(map(len, labels)) + 8)
  figure.legend(
    lines, labels, loc="outside upper left", ncols=max(1, min(4, columns, len(methods)))
  )


def add_line_legend(figure: mpl_figure.Figure, lines: Mapping[str, Mapping[str, Any]]) -> None:
  """Names kinds of lines above the panels, by the properties of each in matplotlib's words."""
  figure.legend(
    [mpl_lines.Line2D([], [], **properties) for properties in lines.values()],
    list(lines),
    loc="outside upper left",
    ncols=2,
  )


def name_rows(axes: mpl_axes.Axes, names: Sequence[str]) -> None:
  """Names the rows of a figure, the first above; panels that share the axis have them, too."""
  axes.set_yticks(range(len(names)), names)
  axes.set_ylim(len(names) - 0.4, -0.6)


def widen(axes: mpl_axes.Axes, least: float, axis: Literal["x", "y"] = "x") -> None:
  """Gives an axis of positive values at least this span, about what it shows."""
  low, high = axes.get_xlim() if axis == "x" else axes.get_ylim()
  if high - low < least:
    low = max(0.0, (low + high - least) / 2)
    axes.set(**{f"{axis}lim": (low, low + least)})


def share(panels: Sequence[mpl_axes.Axes], axis: Literal["x", "y"]) -> None:
  """Gives panels of one quantity the same range, that of all of them."""
  ends = np.array([getattr(axes, f"get_{axis}lim")() for axes in panels])
  for axes in panels:
    axes.set(**{f"{axis}lim": (ends[:, 0].min(), ends[:, 1].max())})


def mark(axis: mpl_axis.Axis, ticks: ticker.Locator | Sequence[float]) -> None:
  """Marks these values of a logarithmic axis, as plain numbers, and no others."""
  axis.set_major_locator(ticks if isinstance(ticks, ticker.Locator) else ticker.FixedLocator(ticks))
  axis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
  axis.set_minor_locator(ticker.NullLocator())


def theme() -> contextlib.AbstractContextManager[None]:
  """Gives figures the project's style, as a context."""
  return matplotlib.rc_context(_STYLE)


def to_svg(figure: mpl_figure.Figure) -> bytes:
  """Returns the figure as an SVG with a transparent background."""
  # The layout by itself, as `savefig` would draw all of the figure for it.
  backend_svg.FigureCanvasSVG(figure)
  figure.set_dpi(72)  # That of SVGs.
  layout = figure.get_layout_engine()
  assert layout is not None
  layout.execute(figure)
  with matplotlib.rc_context({"figure.constrained_layout.use": False}):
    figure.set_layout_engine()
  buffer = io.BytesIO()
  figure.savefig(buffer, format="svg", transparent=True, dpi=200, metadata={"Date": None})
  return buffer.getvalue()
