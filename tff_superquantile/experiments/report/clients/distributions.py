"""The figure of the distribution of the leading measure over clients."""

from __future__ import annotations

from matplotlib import figure as mpl_figure
from matplotlib import ticker
import numpy as np

from tff_superquantile.experiments.report import grouped
from tff_superquantile.experiments.report import style


def error_histogram(groups: grouped.Grouped) -> style.Figure:
  """Draws the share of the test clients at each level of the leading measure."""
  leading, unit = groups.leading, groups.leading.unit
  values_of = {method: clients["value"] for method, clients in groups.clients.items()}
  if not values_of or groups.are_few():  # Few are each in the figure of clients' changes.
    raise style.NothingToDraw
  largest = max(values.max() for values in values_of.values())
  if leading.name == "loss":
    # A few clients with enormous losses would leave the others no room.
    largest = min(largest, 1.5 * max(np.percentile(values, 99) for values in values_of.values()))
  edges = ticker.MaxNLocator(25, steps=(1, 2, 4, 5, 10)).tick_values(0.0, largest)
  looks = style.palette(list(groups))
  is_wide = len(values_of) <= 4
  with style.theme():
    figure = mpl_figure.Figure((style.WIDTH, 3.7))
    axes = figure.add_subplot()
    for method, values in values_of.items():
      look = looks[method]
      # Rounding keeps 28.999999 out of the bin below 29.
      counts, _ = np.histogram(np.round(np.minimum(values, largest), 6), edges)
      axes.stairs(
        100 * counts / len(values),
        edges,
        color=look.color,
        linestyle=look.dash,
        linewidth=1.8 if is_wide else 1.2,
      )
      if is_wide:
        axes.axvline(
          np.percentile(values, 90), color=look.color, linestyle=(0, (2, 2)), linewidth=1.2
        )
    axes.set(xlim=(0, edges[-1]), xlabel=unit.axis(f"{leading.title} of a test client"))
    axes.set_ylabel("Test clients (%)")
    style.add_legend(figure, looks, list(values_of))
    svg = style.to_svg(figure)
  return style.Figure(
    "error-histogram",
    "Badly served clients",
    f"Share of the test clients at each {leading.words}, the clients of all seeds together; of up"
    " to four methods, a dotted line is their 90th percentile. A method that serves the worst-off"
    " clients has less at the right end, and pays for it, if at all, by less at the left end.",
    svg,
  )
