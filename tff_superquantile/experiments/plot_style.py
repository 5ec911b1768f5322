"""How figures look: one colour a method, light and dark themes, SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import contextlib
import dataclasses
import io
from typing import Union

import matplotlib
from matplotlib import figure as mpl_figure

from tff_superquantile.experiments.run import names

# The colours of Okabe and Ito, which stay apart for colour-blind readers, as (light, dark) theme.
_FED_AVG_COLOR = ("#4a4a4a", "#c9c9c9")
_COLORS = (
  ("#0072b2", "#56a8e8"),
  ("#d55e00", "#ff8a3d"),
  ("#009e73", "#2fc79a"),
  ("#c05f98", "#e79ac6"),
  ("#c88a00", "#f0b93a"),
  ("#56b4e9", "#a6dcfa"),
)
Dash = Union[str, tuple[int, tuple[float, ...]]]  # As matplotlib has it.
# From the seventh method on colours repeat, with another dash.
DASHES: tuple[Dash, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
_PALE = ("#a9afb6", "#6b737c")
_INK = ("#22262b", "#e4e7ea")
_FAINT = ("#d9dce0", "#3a4048")


WIDTH = 9.2  # Inches; a page shows this at its full text width.


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


@dataclasses.dataclass(frozen=True)
class Look:
  """How a method is drawn: (light, dark) colours and a line style."""

  colors: tuple[str, str]
  dash: Dash


def palette(methods: Sequence[str], coloured: Sequence[str] | None = None) -> dict[str, Look]:
  """Gives each method its look.

  Args:
    methods: Folder names in the order of `names.order`.
    coloured: Those of them that get colours, the others being pale; None for all.

  Returns:
    FedAvg in grey, the others in colours that differ up to six methods, and in dashes beyond. A
    method looks the same at every privacy budget.
  """
  looks = {}
  if coloured is not None:
    pale = dict.fromkeys(methods, Look(_PALE, "-"))
    return {**pale, **palette(coloured)}
  families = {method: names.without_epsilon(method) for method in methods}
  others = [name for name in dict.fromkeys(families.values()) if name != names.FED_AVG]
  for index, method in enumerate(others):
    dash = DASHES[index // len(_COLORS) % len(DASHES)]
    looks[method] = Look(_COLORS[index % len(_COLORS)], dash)
  grey = Look(_FED_AVG_COLOR, "-")
  return {method: looks.get(family, grey) for method, family in families.items()}


@contextlib.contextmanager
def theme(dark: bool) -> Iterator[str]:
  """Context in which figures get the project's style; yields the colour of text."""
  ink, faint = _INK[dark], _FAINT[dark]
  style = {
    "font.size": 9.5,
    "axes.titlesize": 10,
    "axes.labelsize": 9.5,
    "legend.fontsize": 9.5,
    "axes.titlelocation": "left",
    "axes.titlepad": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": faint,
    "axes.grid": True,
    "grid.color": faint,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "text.color": ink,
    "axes.labelcolor": ink,
    "figure.constrained_layout.w_pad": 0.08,
    "figure.constrained_layout.h_pad": 0.07,
    "xtick.color": faint,
    "ytick.color": faint,
    "xtick.labelcolor": ink,
    "ytick.labelcolor": ink,
    "legend.frameon": False,
    "legend.borderaxespad": 0,
    # Text as paths looks the same on every machine, and a fixed salt makes equal files of equal
    # data.
    "svg.fonttype": "path",
    "svg.hashsalt": "tff_superquantile",
  }
  with matplotlib.rc_context(style):
    yield ink


def to_svg(figure: mpl_figure.Figure) -> bytes:
  buffer = io.BytesIO()
  figure.savefig(buffer, format="svg", transparent=True, dpi=200, metadata={"Date": None})
  return buffer.getvalue()
