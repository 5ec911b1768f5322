"""The bootstrap of differences between two methods, over clients and seeds.

The interval is that of the percentiles of a bootstrap of two factors. Clients are drawn with
replacement; a client counts as often in every seed and for both methods. One client fewer is drawn
than there are, so that the variance of a mean is s^2 / n (Rao and Wu, 1988), and the interval is
widened as Student's is wider than a normal one, which counts for few clients. Seeds are clusters of
clients. There are too few to draw them: of two or three with equal signs, resamples would never
reach zero. So their mean is drawn from Student's distribution, s t_{S - 1} / sqrt(S) around that
of the clients that were drawn, with the standard deviation s of S seeds. That counts the clients'
part of s twice: intervals are rather too wide than too narrow. With one seed, only clients are
drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
import math

import numpy as np
import pandas as pd
from scipy import special

LEVEL = 0.95
FEWEST = (
  6  # Clients of which a difference may be told from chance: five agree once in sixteen times.
)
_NUM_DRAWS = 1000
_SEED = 20  # Any constant: the same runs give the same report.


def statistic(name: str, ordered: np.ndarray, counts: np.ndarray) -> np.ndarray:
  """Computes a `statistic` of resamples, [draws].

  `ordered` are [n] finite values, the least first; `counts`, [draws, n], say how often each is in.
  """
  totals = counts.sum(axis=1)
  kind, _, percent = name.partition("_") if "_" in name else (name[:1], "", name[1:])
  with np.errstate(invalid="ignore", divide="ignore"):
    if name == "mean":
      return counts @ ordered / totals
    if name == "max":
      last = counts.shape[1] - 1 - np.argmax(counts[:, ::-1] > 0, axis=1)
      return np.where(totals > 0, ordered[last], np.nan)
    if kind not in ("p", "superquantile") or not percent.isdecimal():
      raise ValueError(
        f"Found the statistic {name!r}; expected mean, max, p90 or superquantile_90, or another"
        " percentage of these."
      )
    up_to = np.cumsum(counts, axis=1)
    if kind == "p":
      position = int(percent) / 100 * (totals - 1)
      below = np.floor(position)
      # The k-th of a resample, from zero, is the first value with more than k at or below it.
      at, after = (
        np.minimum((up_to <= k[:, None]).sum(axis=1), len(ordered) - 1)
        for k in (below, np.minimum(below + 1, totals - 1))
      )
      values = ordered[at] + (position - below) * (ordered[after] - ordered[at])
      return np.where(totals > 0, values, np.nan)
    tail = totals * (1 - int(percent) / 100)
    above = totals[:, None] - up_to
    taken = np.clip(tail[:, None] - above, 0, counts)
    return taken @ ordered / tail


def levels(name: str, pair: pd.DataFrame) -> np.ndarray:
  """Returns a `statistic` of "before" and of "after", [2]."""
  columns = (np.sort(pair[column].to_numpy()) for column in ("before", "after"))
  return np.array([statistic(name, its, np.ones((1, len(its)), int))[0] for its in columns])


def differences(
  name: str, pairs: Sequence[pd.DataFrame], num_draws: int = _NUM_DRAWS
) -> tuple[np.ndarray, np.ndarray]:
  """Resamples the mean over seeds of the difference of a `statistic` between two methods."""
  generator = np.random.default_rng(_SEED)
  ids = pd.Index(np.unique(np.concatenate([pair.index.to_numpy() for pair in pairs])))
  # How often each is among one draw fewer, at least one: [num_draws, clients].
  counts = generator.multinomial(max(1, len(ids) - 1), np.full(len(ids), 1 / len(ids)), num_draws)
  of_pairs, resampled = [], []
  for pair in pairs:
    places = ids.get_indexer(pair.index)
    for column in ("before", "after"):
      order = np.argsort(pair[column].to_numpy(), kind="stable")
      ordered = pair[column].to_numpy()[order]
      of_pairs.append(statistic(name, ordered, np.ones((1, len(order)), int))[0])
      resampled.append(statistic(name, ordered, counts[:, places[order]]))
  levels = np.reshape(of_pairs, (len(pairs), 2))
  of_seeds = np.reshape(resampled, (len(pairs), 2, num_draws))
  changes = of_seeds[:, 1] - of_seeds[:, 0]
  # A seed without any client that was drawn counts by its own value.
  own = levels[:, 1] - levels[:, 0]
  drawn = np.where(np.isfinite(changes), changes, own[:, None]).mean(axis=0)
  if len(pairs) > 1:
    # Equal steps of probability in random order: no chance in the far tails of few seeds.
    steps = (generator.permutation(num_draws) + 0.5) / num_draws
    spread = np.std(own, ddof=1) / math.sqrt(len(pairs))
    drawn = drawn + spread * special.stdtrit(len(pairs) - 1, steps)
  return levels, drawn


def interval(name: str, pairs: Sequence[pd.DataFrame]) -> tuple[np.ndarray, float, float]:
  """Returns the means of a `statistic` before and after, and their difference's interval.

  Of fewer than `FEWEST` clients there is none, as of the largest value; its ends are NaN.
  """
  levels, drawn = differences(name, pairs)
  means = levels.mean(axis=0)
  num_clients = len(set().union(*(pair.index for pair in pairs)))
  if num_clients < FEWEST or name == "max":
    return means, math.nan, math.nan
  change, up_to = means[1] - means[0], (1 + LEVEL) / 2
  # Student's interval is wider than a normal one: 1.31 times for 6 clients.
  widening = special.stdtrit(num_clients - 1, up_to) / special.ndtri(up_to)
  low, high = change + widening * (np.quantile(drawn, [(1 - LEVEL) / 2, up_to]) - change)
  return means, float(low), float(high)


def p_value(change: float, low: float, high: float, num_clients: int) -> float:
  """Returns the two-sided p-value of a difference with the 95 % interval [low, high]; NaN without.

  It is Student's, with the distance to the end on the side of zero in place of q s: p is below 0.05
  where zero is outside of the interval alone. Where that end is the difference, the other counts.
  """
  ends = (high - change, change - low)
  if not all(map(math.isfinite, ends)) or num_clients < 2:
    return math.nan
  half = max(0.0, ends[0] if change < 0 else ends[1]) or max(0.0, *ends)
  if half == 0.0:
    return 1.0 if change == 0 else 0.0
  quantile = special.stdtrit(num_clients - 1, (1 + LEVEL) / 2)
  return float(2 * special.stdtr(num_clients - 1, -abs(change) / half * quantile))


def holm(p_values: Sequence[float]) -> np.ndarray:
  """Corrects p-values for their number (Holm 1979), in the same order; NaN for none."""
  values = np.asarray(p_values, float)
  order = np.argsort(values, kind="stable")[: np.isfinite(values).sum()]
  factors = len(order) - np.arange(len(order))
  corrected = np.full(len(values), np.nan)
  corrected[order] = np.minimum(1.0, np.maximum.accumulate(values[order] * factors))
  return corrected
