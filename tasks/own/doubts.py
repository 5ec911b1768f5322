"""Says what looks wrong among the rows of a table that may be described; nothing is changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
import re

import numpy as np
from pyarrow import compute

from tasks.own import values

_MOST_CODES, _FEWEST_OTHERS = 3, 5  # Different numbers that may be codes, and that are none.
_ROWS_OF_CODE = 3  # At least, unless it is all nines.
_MOST_GAPS = 10.0  # Median distances between neighbours that are still near.
_NINES = re.compile(r"-?9{2,}")
# Robust deviations from the median: what is far, and what would make it the end of a long tail.
_FAR, _NEAR = 20.0, 5.0
_MOST_FAR = 0.1  # Of all rows; more are a kind of their own.
_OF_MAD = 1.4826  # A standard deviation over the median absolute deviation, of a normal variable.
_ROW = re.compile(r"\S[,;\t|]\S")


def on_clients(names: Sequence[str]) -> Iterator[str]:
  """Yields a remark on clients whose names are `values.alike`."""
  groups = values.alike(names)
  if groups:
    fewer = len(names) - sum(len(group) - 1 for group in groups)
    yield (
      f"{len(names)} names of clients are {fewer} but for how they are written, such as"
      f" {values.listed_alike(groups[0])}: write them alike, so that no client is both trained and"
      " tested on."
    )


def on_quotes(columns: Iterable[values.Column]) -> Iterator[str]:
  """Yields a remark on values that have whole rows, as stray quotation marks make them."""
  for column in columns:
    lines = column.texts.filter(compute.match_substring_regex(column.texts, "[\n\r]"))
    rows = [sum(map(bool, map(_ROW.search, t.splitlines()[1:]))) for t in lines.to_pylist()]
    if any(rows):
      yield (
        f"A value of column {column.name} has {sum(rows)} lines that look like rows: look for a"
        " quotation mark too many, or too few."
      )


def on_codes(numbers: np.ndarray) -> str:
  """Returns a remark on a few numbers that are frequent, and far from all others; "" if none is."""
  known = numbers[~np.isnan(numbers)]
  different, counts = np.unique(known, return_counts=True)
  most = min(_MOST_CODES, len(different) - _FEWEST_OTHERS)
  if most < 1:
    return ""
  gaps = np.diff(different)
  first, last = int(np.argmax(gaps[:most])) + 1, len(gaps) - int(np.argmax(gaps[::-1][:most]))
  if last - first < _FEWEST_OTHERS:  # There are too few for codes at both ends.
    first, last = (first, len(different)) if gaps[first - 1] > gaps[last - 1] else (0, last)
  others, codes = slice(first, last), []
  least = different[first]
  ends = ((slice(0, first), gaps[first - 1]), (slice(last, None), gaps[min(last, len(gaps)) - 1]))
  for part, gap in ends:
    rows = counts[part].sum()
    is_far = gap > np.ptp(different[others])
    # Or else there are many of it, or it alone is negative, and nothing is near.
    is_own = (
      rows >= _ROWS_OF_CODE * counts[others].max()
      or different[part].max(initial=-np.inf) < 0.0 <= least
    )
    is_apart = is_own and gap > _MOST_GAPS * np.median(gaps)
    is_nines = len(different[part]) == 1 and _NINES.fullmatch(f"{different[part][0]:.12g}")
    is_frequent = rows >= _ROWS_OF_CODE * len(different[part]) or is_nines
    if rows and is_frequent and (is_far or is_apart):
      codes += different[part].tolist()
  if not codes:
    return ""
  listed = ",".join(f"{code:.12g}" for code in codes)
  share = 100 * float(np.isin(known, codes).mean())
  return (
    f"{share:.1f} % are {listed.replace(',', ' or ')}, far from all others: if that stands for"
    f" missing, pass --missing={listed}"
  )


def are_far(numbers: np.ndarray) -> np.ndarray:
  """Returns which of some numbers are far from all others, bool; NaN is not.

  They are more than 20 robust deviations from the median, with fewer between there and 5: of a long
  tail, such as incomes', there are more the nearer they are. Without a deviation, as more than half
  are equal, nothing is far, as nothing is where a tenth would be.
  """
  known = numbers[np.isfinite(numbers)]
  if not len(known):
    return np.zeros(len(numbers), bool)
  scale = _OF_MAD * np.median(np.abs(known - np.median(known)))
  distance = np.nan_to_num(np.abs(numbers - np.median(known)), nan=0.0)
  is_far = (distance > _FAR * scale) & (scale > 0)
  num_between = np.sum(distance > _NEAR * scale) - is_far.sum()
  return is_far & (num_between < is_far.sum() <= _MOST_FAR * len(known))


def on_far(is_far: np.ndarray, numbers: np.ndarray, clients: np.ndarray, what: str) -> str:
  """Returns a remark on numbers of a column, those that `are_far`, by the rows' clients."""
  places = np.flatnonzero(is_far)
  first = places[np.argsort(clients[places], kind="stable")[0]]  # Of clients in order.
  count = len(places)
  share = 100 * count / len(numbers)
  return (
    f"{count:,} of {len(numbers):,} {what} ({share:.1g} %) are far from all others (more than"
    f" {_FAR:g} robust deviations), the first {numbers[first]:.6g} of client"
    f" {values.listed([str(clients[first])])}"
  )


def on_odd_clients(
  owners: np.ndarray, ids: np.ndarray, raw: np.ndarray, columns: Sequence[values.Column]
) -> Iterator[str]:
  """Yields a remark on clients that have nothing but rows like those of headers and totals.

  `owners`, int [rows], are the rows' clients, `raw` the numbers, [rows, columns], of `columns`.
  """
  if not columns:
    return
  is_single = np.bincount(owners)[owners] == 1
  rest = np.where(np.isnan(raw), 0.0, raw)[~is_single]
  if not len(rest):
    return
  low, high = rest.min(axis=0), rest.max(axis=0)
  is_strange = np.isnan(raw) & (np.array([column.codes for column in columns]).T >= 0)
  is_far = (raw > 2 * high - low) | (raw < 2 * low - high)  # NaN is not.
  is_odd = 2 * (is_strange | is_far & is_single[:, None]).sum(axis=1) >= len(columns)
  odd = sorted(set(owners[is_odd]) - set(owners[~is_odd]))
  if odd and 2 * is_odd.sum() < len(owners):
    yield (
      f"All rows of {values.listed(ids[odd])} ({len(odd)} of {len(ids)} clients) have texts in the"
      " place of numbers, or numbers far from all others: if they are further headers or totals,"
      " delete them."
    )
