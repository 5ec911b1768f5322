"""Says how a later table differs from that of the run: in its columns, and in its labels.

A model of a run was trained on rows like those of its reference clients, of which an encoding has
kept means, standard deviations and shares. Only what is far from these is remarked on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tasks.own import encoding as encoding_lib
from tasks.own import features as features_lib
from tasks.own import labels as labels_lib

UNKNOWN = "rows of unknown categories"
# The mean of a number has moved by so many of the run's standard deviations: the model then mostly
# reads values that it has rarely seen.
FAR = 1.0
# The mean of labels that are numbers has, or they spread by so much more, or less.
_FAR_LABEL, _SPREAD = 0.5, 1.5
# So many of a hundred rows are of other categories or classes than the run's were.
_OTHER = 0.1
_ERRORS = 3.0  # The same, in what chance alone would give.
_MOST_NAMED = 3


def remarks_on(encoding: encoding_lib.Encoding, raw: np.ndarray) -> dict[str, str]:
  """Returns a remark on each feature of a later table by name, perhaps "".

  `raw` is float64 [rows, features], as `features.read` returns it, NaN where missing.
  """
  remarks = {}
  for feature, values in zip(encoding.features, raw.T):
    if feature.kind == features_lib.CATEGORY:
      unknown = int(np.sum(values < 0))
      said = [f"{unknown} {UNKNOWN}, all zeros to the model"] if unknown else []
      known = np.bincount(values[values >= 0].astype(np.int64), minlength=len(feature.categories))
      said += _of_shares(feature.categories, feature.shares, known, len(values))
      remarks[feature.name] = "; ".join(said)
    else:
      known = values[np.isfinite(values)]
      moved = (known.mean() - feature.mean) / feature.std if len(known) else 0.0
      remarks[feature.name] = _moved(moved) if abs(moved) >= FAR else ""
  return remarks


def remark_on_labels(label: labels_lib.Label, values: np.ndarray) -> str:
  """Returns a remark on labels [rows], as `labels.read` returns them; "" if as those of the run."""
  if label.classes:
    counts = np.bincount(values.astype(np.int64), minlength=len(label.classes))
    return "; ".join(_of_shares(label.classes, label.shares, counts, len(values)))
  if not len(values):
    return ""
  mean, std = float(values.mean(dtype=np.float64)), float(values.std(dtype=np.float64))
  said = []
  if abs(mean) >= _FAR_LABEL:
    said.append(_moved(mean))
  if len(values) > 1 and not 1 / _SPREAD <= std <= _SPREAD:
    said.append(f"a standard deviation {std:.2g} times the run's")
  return "; ".join(said)


def _moved(by: float) -> str:
  """Says how far a mean is from the run's, in its standard deviations."""
  return f"a mean {abs(by):.1f} standard deviations {'above' if by > 0 else 'below'} the run's"


def _of_shares(
  names: Sequence[str], before: Sequence[float], counts: np.ndarray, rows: int
) -> list[str]:
  """Says which shares of categories are far from the run's (empty if unknown), by rows of each.

  The distance is half the sum of the differences, the fraction of rows that are of others.
  """
  if not before or not rows:
    return []
  shares, after = np.array(before), counts / rows
  changes = after - shares
  distance = np.abs(changes).sum() / 2
  by_chance = np.sqrt(shares * (1 - shares) / rows).sum() / 2
  if distance < max(_OTHER, _ERRORS * by_chance):
    return []
  largest = np.argsort(-np.abs(changes), kind="stable")[:_MOST_NAMED]
  named = ", ".join(f"{names[i]} {100 * shares[i]:.1f} % → {100 * after[i]:.1f} %" for i in largest)
  return [f"shares {100 * distance:.0f} % apart from the run's ({named})"]
