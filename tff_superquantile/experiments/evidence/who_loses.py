"""Who loses: what the rows of the worst-off tenth of the test clients share, and clients' changes.

A client's profile is the mean of each input of the model over its rows, the share of each class or
the mean label, and the number of rows. Clients are few and profiles are many, so that no model of
who is worst off is fitted: each entry's rank correlation with clients' errors is tested by itself
(Spearman), corrected for the number of entries (Holm).
"""

from __future__ import annotations

import math

from matplotlib import figure as mpl_figure
import numpy as np
import pandas as pd
from scipy import special

from tff_superquantile.experiments.config import names
from tff_superquantile.experiments.evidence import bootstrap
from tff_superquantile.experiments.evidence import evidence
from tff_superquantile.experiments.evidence import paired
from tff_superquantile.experiments.pages import page
from tff_superquantile.experiments.pages import style
from tff_superquantile.experiments.pages import tables

_STANDING_OUT = 3  # Entries of a client that are named.
_MOST_NAMED = 20  # Clients of the table, and of each end of the figure.
_NOTE = (
  "The entries of a client’s profile that are farthest from those of the other test clients, in"
  " standard deviations over these: means of the model’s inputs and of labels, or shares of"
  " categories and classes. With many entries some stand out by chance. "
)


def table(e: evidence.Evidence) -> tables.Table | None:
  """Lays out what stands out in the rows of the worst-off tenth; nothing beside private runs."""
  profiles = e.references.profiles
  if not e.levels:  # Nobody has the measure.
    return None
  method = next((method for method in e.levels if method.is_fed_avg), None) or e.best
  errors = e.of_clients(method)
  profiles = profiles[profiles.index.isin(errors.index)]
  profiles = profiles.loc[:, profiles.std() > 0]
  if profiles.empty or len(profiles) < paired.FEW_CLIENTS:
    return None
  errors = errors[profiles.index]
  scores = (profiles - profiles.mean()) / profiles.std()
  rows = []
  for client in errors.nlargest(min(math.ceil(len(errors) / 10), _MOST_NAMED)).index:
    its = scores.loc[client]
    most = its[its.abs().sort_values(ascending=False).index[:_STANDING_OUT]]
    entries = ", ".join(f"{name} {tables.number(score, sign=True)}" for name, score in most.items())
    cells = map(tables.Cell, (e.unit.number(errors[client]), entries))
    rows.append(tables.Row(names.printable(str(client)), [*cells]))
  headings = ["client", f"{e.groups.leading.words}, {e.unit.symbol}", "stands out, sd"]
  title = f"What the worst-off tenth with {method.label} share"
  return tables.Table(title, headings, rows, _NOTE + _shared(profiles, errors), kind="words")


def _shared(profiles: pd.DataFrame, errors: pd.Series) -> str:
  """Says which entries go with larger errors, beyond chance."""
  from scipy import stats  # It takes half a second to import.

  tests = [stats.spearmanr(profiles[name], errors) for name in profiles]
  corrected = bootstrap.holm([test.pvalue for test in tests])
  detected = [
    f"{'larger' if test.statistic > 0 else 'smaller'} {name} (rank correlation"
    f" {tables.number(test.statistic, 2, sign=True)})"
    for name, test, p in sorted(
      zip(profiles, tests, corrected), key=lambda entry: -abs(entry[1].statistic)
    )
    if p < 1 - bootstrap.LEVEL
  ]
  if not detected:
    return (
      f"Over all {len(errors)} test clients, none of the {len(tests)} entries goes with"
      " larger errors beyond chance (Spearman, Holm)."
    )
  return (
    f"Over all {len(errors)} test clients, beyond chance (Spearman, Holm over {len(tests)}"
    f" entries) larger errors go with {', '.join(detected[:5])}."
  )


def figure(e: evidence.Evidence) -> style.Figure:
  """Draws what each test client gains or loses by the chosen method, with intervals.

  The share of n examples that are missed changes from a to b with a variance of at most (min(a + b,
  2 - a - b) - (b - a)^2) / n. To the number that change, two are added, as of none there would be
  no interval.
  """
  clients = _changes(e)
  if clients.empty:
    raise style.NothingToDraw
  method, baseline, _ = e.chosen
  leading, unit = e.groups.leading, e.unit
  shown = clients
  if len(clients) > 2 * _MOST_NAMED:
    shown = pd.concat([clients.head(_MOST_NAMED), clients.tail(_MOST_NAMED)])
  is_share = leading.name == "error" and unit.change != ""
  with style.theme():
    drawn = mpl_figure.Figure((style.WIDTH, 1.0 + 0.2 * len(shown)))
    axes = drawn.add_subplot()
    spread = None
    if is_share:
      sizes = e.of_clients(baseline, "num_examples")[shown.index]
      both = shown["before"] + shown["after"]
      variance = (np.minimum(both, 2 - both) - shown["change"] ** 2 + 2 / sizes) / sizes
      spread = unit.factor * special.ndtri((1 + bootstrap.LEVEL) / 2) * np.sqrt(variance)
    look = style.palette([baseline, method])[method]
    axes.errorbar(
      unit.factor * shown["change"],
      np.arange(len(shown)),
      xerr=spread,
      fmt="o",
      markersize=4,
      color=look.color,
      elinewidth=1.0,
    )
    axes.axvline(0.0, color=style.INK, linestyle=(0, (1, 2)), linewidth=1)
    axes.set_xlabel(f"Change of {leading.words} ({unit.change.strip() or unit.symbol})")
    style.name_rows(axes, [style.label(str(client), 24) for client in shown.index])
    svg = style.to_svg(drawn)
  left_out = len(clients) - len(shown)
  return style.Figure(
    "clients-changes",
    f"What clients gain and lose: {method.label} against {names.fed_avg_phrase(baseline)}",
    f"Change of each test client’s {leading.words}, the largest gain first; left is better."
    + (f" {left_out} clients between the two ends are left out." if left_out else "")
    + (
      " Bars are 95 % intervals over the client’s own examples, as wide as its errors allow: few"
      " examples tell little, and of many clients some are far out by chance."
      if is_share
      else " There are no intervals, as runs keep one number a client."
    ),
    svg,
  )


def _changes(e: evidence.Evidence) -> pd.DataFrame:
  """Returns "before", "after" and "change" of clients by the chosen method, largest gain first."""
  if not e.ranked:
    return pd.DataFrame()
  method, baseline, _ = e.chosen
  clients = e.pairs(baseline, method, e.groups.leading.name).rename_axis("client")
  clients["change"] = clients["after"] - clients["before"]
  return clients.sort_values(["change", "client"])


def named(e: evidence.Evidence) -> list[page.Block]:
  """Lists the test clients with their changes, the largest gain first, to sort and filter."""
  clients = _changes(e)
  if clients.empty:
    return []
  method, baseline, _ = e.chosen
  unit, rows = e.unit, []
  for row in clients.itertuples():
    levels = unit.number(row.before), unit.number(row.after)
    cells = map(tables.Cell, (unit.number(row.change, sign=True), *levels))
    rows.append(tables.Row(names.printable(str(row.Index)), [*cells]))
  headings = ["client", "change", names.fed_avg_phrase(baseline), method.label]
  note = (
    f"{unit.quantity} in {unit.name}, mean over the seeds in which the client is a test client. The"
    " ends of many clients are far apart by chance alone, most of all where clients have few"
    " examples."
  )
  everybody = tables.Table("", headings, rows, note, focus="change", is_sortable=True)
  title = f"Each test client: {method.label} against {names.fed_avg_phrase(baseline)}"
  return [page.Details(title, [everybody])]
