"""What clients that nobody has seen do not exceed, in a sentence and a figure.

The bands of all methods hold at once, so that readers may choose one by them. They are of one
seed's models: each seed has its own, and so has each fold of a cross-validation.
"""

from __future__ import annotations

from collections.abc import Mapping
import math
from typing import NamedTuple

from matplotlib import figure as mpl_figure
import numpy as np

from tff_superquantile import distribution
from tff_superquantile.experiments.config import names
from tff_superquantile.experiments.evidence import grouped
from tff_superquantile.experiments.pages import style
from tff_superquantile.experiments.pages import tables
from tff_superquantile.experiments.run import cross_validation

_CONFIDENCE = 0.95
_SHARES = (0.95, 0.9, 0.8, 0.7, 0.6, 0.5)  # Of new clients, for the sentence.
_MOST_WITH_MEASURED = 4  # Methods; of more the bands alone are drawn.


class _Bands(NamedTuple):
  """Bands by method, in the unit of the leading measure, and whose models they are about."""

  of_methods: Mapping[names.Name, distribution.UpperBand]
  whose: str

  @property
  def fewest(self) -> distribution.UpperBand:
    """That of the fewest test clients, which says least."""
    return min(self.of_methods.values(), key=lambda band: band.largest_share)


def _find(groups: grouped.Grouped) -> _Bands | None:
  """Returns the bands of the methods at one budget; None where there is nothing to be said of.

  A run that tests on examples of the clients that it trains on (--held_out_examples) has measured
  no client that its model has not seen.
  """
  shown, leading = groups.at_one_budget[0], groups.leading
  by_seed = {m: {r.seed: r for r in cross_validation.single(runs)} for m, runs in shown.items()}
  seeds = [set(of_method) for of_method in by_seed.values()]
  seed = min(set.intersection(*seeds) or set.union(*seeds))
  runs = {method: of_method[seed] for method, of_method in by_seed.items() if seed in of_method}
  if any(run.config is None or run.config.task.held_out_examples for run in runs.values()):
    return None
  values = {m: run.clients("test").get(leading.name, np.array([])) for m, run in runs.items()}
  values = {method: own for method, own in values.items() if not np.isnan(own).all()}
  if not values:
    return None
  # Whoever reads them may choose any of the methods.
  confidence = 1 - (1 - _CONFIDENCE) / len(shown)
  bands = {
    method: distribution.upper_band(leading.unit.factor * own, confidence)
    for method, own in values.items()
  }
  is_fold = any(map(cross_validation.num_folds, runs.values()))
  of_fold = ", of one fold of the cross-validation, each of which has its own" if is_fold else ""
  epsilon = groups.at_one_budget[1]
  at = "" if epsilon is None else f" at ε = {epsilon:g}"
  return _Bands(bands, f"the models of seed {seed}{at}{of_fold}")


def sentences(groups: grouped.Grouped) -> list[str]:
  """Says what new clients do not exceed, and of how many nothing can be said."""
  found = _find(groups)
  if found is None:
    return []
  few = found.fewest
  number = tables.plural(few.num_clients, "test client")
  share = next((share for share in _SHARES if few.bound(share) < math.inf), None)
  more = min(s for s in (*_SHARES, 0.99, 1.0) if share is None or s > share)
  # Never more than it is.
  limit = f"f more than {math.floor(100 * few.largest_share)} % of new clients {number} can say"
  limit += " nothing"
  if more < 1.0:
    least = distribution.fewest_clients(more, few.confidence)
    limit += f"; what {_percent(more)} do not exceed takes {least} test clients"
  if share is None:
    return [f"With {_percent(_CONFIDENCE)} confidence, o{limit}."]
  return [f"{_bounds(groups, found, share, number)} O{limit}.{_of_private(groups)}"]


def _bounds(groups: grouped.Grouped, found: _Bands, share: float, number: str) -> str:
  """Says what a share of new clients does not exceed with each method, and what that supposes."""
  unit, words = groups.leading.unit, groups.leading.words
  named = groups.at_one_budget[0].contenders
  bounds = [
    f"{unit.text(band.bound(share) / unit.factor)} with {method.label}"
    for method, band in found.of_methods.items()
    if method in named
  ]
  return (
    f"With {_percent(_CONFIDENCE)} confidence at least {_percent(share)} of new clients drawn like"
    f" these {number} have {'an' if words[0] in 'aeiou' else 'a'} {words} of at most"
    f" {', '.join(bounds)}{'' if unit.suffix else f', in {unit.name}'}: all of it at once, of"
    f" {found.whose}. It supposes that new clients are drawn as the test clients were,"
    " independently of them, with as many examples."
  )


def _percent(share: float) -> str:
  return f"{100 * share:.0f} %"


def _of_private(groups: grouped.Grouped) -> str:
  if not any(run.config is not None and run.config.is_private for run in groups.runs):
    return ""
  return (
    " It is computed of the exact errors of the test clients, who are public in private runs: no"
    " budget is spent on it, and no guarantee covers it."
  )


def upper_bands(groups: grouped.Grouped) -> style.Figure:
  """Draws the share of new clients that, at least, do not exceed each level of the measure."""
  found, leading = _find(groups.whole), groups.leading
  bands = {m: band for m, band in (found.of_methods if found else {}).items() if m in groups}
  finite = [band.values[np.isfinite(band.values)] for band in bands.values()]
  if found is None or groups.are_few() or not any(map(len, finite)):
    raise style.NothingToDraw
  looks = style.palette(list(groups))
  end = 1.02 * max(values.max() for values in finite if len(values)) or 1.0
  with style.theme():
    figure = mpl_figure.Figure((style.WIDTH, 3.7))
    axes = figure.add_subplot()
    for method, band in bands.items():
      look, edges = looks[method], np.append(np.minimum(band.values, end), end)
      lines = [(band.shares, 1.8, 1.0)]
      lines += [(band.measured, 0.8, 0.6)] if len(bands) <= _MOST_WITH_MEASURED else []
      for shares, width, alpha in lines:
        axes.stairs(
          100 * shares,
          edges,
          baseline=None,
          color=look.color,
          linestyle=look.dash,
          linewidth=width,
          alpha=alpha,
        )
    axes.set(xlim=(0, end), ylim=(0, 101))
    axes.set_xlabel(leading.unit.axis(f"{leading.title} of at most"))
    axes.set_ylabel("New clients, at least (%)")
    style.add_legend(figure, looks, list(bands))
    svg = style.to_svg(figure)
  return style.Figure(
    "new-clients",
    "What new clients can expect",
    f"Bold: the share of clients that nobody has seen which, at least, has at most each"
    f" {leading.words}, with {_percent(_CONFIDENCE)} confidence for all levels and methods at once"
    f" ({found.whose}). Thin: the share of the test clients. The gap between them is what"
    f" {tables.plural(found.fewest.num_clients, 'test client')} cannot tell.",
    svg,
  )
