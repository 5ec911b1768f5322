"""What rows say without any model: values far off, ranks that tell the label, clients' classes.

A mean of squares is decided by a few gross errors, such as slipped decimals, and then no model is
better than a constant. Medians and ranks are not, and so say whether there was something to learn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tff_superquantile.experiments.evidence import bootstrap

_MOST_CLIENTS = 2000  # Whose ranks are looked at.
_FEWEST_ROWS = 3  # Of a client, for ranks within it.
_FEWEST_CLIENTS = 6  # For ranks between them.
_SURE = 0.01  # The level, after Holm, at which ranks tell.
_NUM_TABLES = 99  # Of 100 alike clients' tables one is the largest by chance.
_HALF = 0.5  # Of the squares, which gross errors decide beyond it.


class Rank(NamedTuple):
  """The strongest rank correlation of an input with the label that is beyond chance.

  Attributes:
    name: That of the input.
    correlation: Spearman's; of classes with being of one, which follows from its AUC.
    where: "within" clients, or "between" their means.
  """

  name: str
  correlation: float
  where: str


class Gross(NamedTuple):
  """A column some of whose values are far from all others.

  Attributes:
    text: A sentence that says which.
    decides: Whether they have most of the squares of the label, or of an input that ranks say tells
      it, so that means of squares say little of all other rows.
  """

  text: str
  decides: bool


def ranks(x: np.ndarray, y: np.ndarray, offsets: np.ndarray, names: Sequence[str]) -> list[Rank]:
  """Returns the inputs whose ranks go with those of the label beyond chance, the strongest first.

  Within clients the sum of (n - 1) r over clients of n rows, whose permutations give r a variance
  of 1 / (n - 1) whatever ties there are, is compared with a normal variable. Between clients it is
  Spearman's test of their means. Each input is tested as it is, and by its distance from its median
  ("... away from its median"), which tells what rises on both sides.

  Args:
    x: The inputs [rows, inputs], one client after the other.
    y: The label [rows, columns]: numbers, or whether a row is of a class.
    offsets: Where clients begin and end, [clients + 1].
    names: The names of the inputs.
  """
  from scipy import stats  # It takes half a second to import.

  folded = np.abs(x - np.median(x, axis=0)) if len(x) else x
  names = [*names, *(f"{name} away from its median" for name in names)]
  values = np.column_stack([x, folded, np.reshape(y, [len(x), -1])]).astype(np.float64)
  num_inputs, num_clients = len(names), min(len(offsets) - 1, _MOST_CLIENTS)
  total, weight, means = 0.0, np.zeros([num_inputs, values.shape[1] - num_inputs]), []
  for start, end in zip(offsets[:num_clients], offsets[1 : num_clients + 1]):
    if start == end:
      continue
    means.append(values[start:end].mean(axis=0))
    if end - start < _FEWEST_ROWS:
      continue
    ranked = stats.rankdata(values[start:end], axis=0)
    spread = ranked.std(axis=0)
    scores = (ranked - ranked.mean(axis=0)) / np.where(spread > 0, spread, np.inf)
    its = scores[:, :num_inputs].T @ scores[:, num_inputs:] / (end - start)
    is_known = np.outer(spread[:num_inputs] > 0, spread[num_inputs:] > 0)
    total = total + (end - start - 1) * its
    weight += (end - start - 1) * is_known
  within = total / np.where(weight > 0, weight, np.inf)
  p_within = np.where(weight > 0, 2 * stats.norm.sf(np.abs(within) * np.sqrt(weight)), np.nan)
  between, p_between = np.zeros_like(weight), np.full_like(weight, np.nan)
  if len(means) >= _FEWEST_CLIENTS:
    of_clients = np.array(means)
    for place in np.ndindex(*weight.shape):
      pair = of_clients[:, [place[0], num_inputs + place[1]]]
      if (np.ptp(pair, axis=0) > 0).all():
        test = stats.spearmanr(pair)
        between[place], p_between[place] = test.statistic, test.pvalue
  found = [
    Rank(names[i], float(r), where)
    for where, correlations, p in _corrected(within, p_within, between, p_between)
    for (i, _), r in np.ndenumerate(correlations)
    if p[i, _] < _SURE
  ]
  return sorted(found, key=lambda rank: -abs(rank.correlation))


def _corrected(
  within: np.ndarray, p_within: np.ndarray, between: np.ndarray, p_between: np.ndarray
) -> list[tuple[str, np.ndarray, np.ndarray]]:
  """Returns both kinds of correlations with p-values that Holm corrects for all of them."""
  p = bootstrap.holm(np.concatenate([p_within.ravel(), p_between.ravel()]).tolist())
  first, second = np.split(p, 2)
  return [
    ("within", within, first.reshape(within.shape)),
    ("between", between, second.reshape(within.shape)),
  ]


def gross(
  values: np.ndarray, shown: np.ndarray, clients: np.ndarray, what: str, tells: bool
) -> Gross | None:
  """Returns what is said of a column [rows] with gross errors; None for one without.

  Args:
    values: Its values.
    shown: The same in the table's unit.
    clients: The name of the client of each row.
    what: Names the column, "values of column age".
    tells: Whether it is the label, or tells that by its ranks.
  """
  from tasks.own import doubts

  is_far = doubts.are_far(values)
  if not is_far.any():
    return None
  squares = np.square(values - np.nanmedian(values))
  decides = tells and squares[is_far].sum() > _HALF * np.nansum(squares)
  return Gross(doubts.on_far(is_far, shown, clients, what), bool(decides))


def do_labels_differ(y: np.ndarray, offsets: np.ndarray) -> bool:
  """Returns whether clients differ in which classes they have, beyond chance.

  The chi-squared statistic of the table of clients and classes is compared with those of random
  tables of the same sums, as few rows a client have no known law: it is larger than 99 of them.

  Args:
    y: Whether a row is of a class [rows, classes], each row of one at most.
    offsets: Where clients begin and end, [clients + 1].
  """
  from scipy import stats  # It takes half a second to import.

  sums = np.concatenate([np.zeros([1, y.shape[1]]), np.cumsum(y, axis=0)])[offsets]
  counts, sizes = np.diff(sums, axis=0)[:_MOST_CLIENTS], np.diff(offsets)[:_MOST_CLIENTS]
  counts = np.column_stack([counts, sizes - counts.sum(axis=1)]).round().astype(int)
  counts = counts[sizes > 0][:, counts.sum(axis=0) > 0]
  if min(counts.shape) < 2:
    return False
  rows, columns = counts.sum(axis=1), counts.sum(axis=0)
  expected = np.outer(rows, columns) / counts.sum()
  tables = stats.random_table(rows, columns, seed=0)

  def statistic(table: np.ndarray) -> float:
    return float((table**2 / expected).sum())

  least = statistic(counts) * (1 - 1e-9)  # Of equal tables sums in another order may differ.
  return all(statistic(tables.rvs()) < least for _ in range(_NUM_TABLES))


def facts(ranks: Sequence[Rank], gross: Sequence[Gross], labels_differ: bool) -> dict[str, Any]:
  """Returns all of them as values of JSON."""
  return {
    "ranks": [rank._asdict() for rank in ranks[:1]],
    "gross": [column._asdict() for column in gross],
    "labels": [{"differ": True}] * labels_differ,
  }
