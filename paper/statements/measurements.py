"""What was measured: the numbers of finished runs and studies, and where they come from.

`measured/SOURCE.csv` keeps the measurements behind the page, one row a method and metric, with the
columns of `sources.COLUMNS`. `keep` takes them anew from a directory of results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import configparser
import datetime
import math
import os
import pathlib
from typing import NamedTuple

import pandas as pd

from paper.statements import sources
from tff_superquantile import atomic_files
from tff_superquantile.experiments.pages import tables


class Value(NamedTuple):
  """A mean over seeds, with its standard deviation, NaN for one seed; errors are fractions."""

  mean: float
  sd: float
  num_seeds: int

  @property
  def spread(self) -> float:
    """The standard deviation over seeds; 0 for one seed."""
    return 0.0 if math.isnan(self.sd) else self.sd

  def in_percent(self, decimals: int = 1) -> str:
    """Returns a fraction as "48.2 ± 1.3"."""
    text = tables.number(100 * self.mean, decimals)
    return text if math.isnan(self.sd) else f"{text} ± {tables.number(100 * self.sd, decimals)}"


class Change(NamedTuple):
  """A change of errors between two methods, with its 95 % interval over clients, as fractions."""

  value: float
  low: float
  high: float

  @property
  def is_sure(self) -> bool:
    """Whether zero is outside of the interval."""
    return self.low > 0 or self.high < 0

  def in_points(self) -> str:
    """Returns it in percentage points, "−2.5 (−3.8 to −0.1)"."""
    value, low, high = (tables.number(100 * number, 1, sign=True) for number in self)
    return f"{value} ({low} to {high})"


def is_monotone(values: Sequence[Value]) -> bool:
  """Returns whether means go from the first to the last without turning by more than one sd."""
  sign = 1.0 if values[-1].mean >= values[0].mean else -1.0
  return all(
    sign * (after.mean - before.mean) >= -max(before.spread, after.spread)
    for before, after in zip(values, values[1:])
  )


class Evidence:
  """All measurements, by source."""

  def __init__(self, frames: Mapping[str, pd.DataFrame]):
    self._frames = {
      name: frame.set_index(["method", "metric"]).sort_index(kind="stable")
      for name, frame in frames.items()
      if len(frame)
    }

  def has(self, source: str) -> bool:
    """Returns whether there are measurements of a source."""
    return source in self._frames

  def methods(self, source: str, prefix: str = "") -> list[str]:
    """Returns the methods of a source whose labels begin so."""
    if not self.has(source):
      return []
    names = self._frames[source].index.get_level_values("method").unique()
    return [name for name in names if name.startswith(prefix) and not sources.is_between(name)]

  def get(self, source: str, method: str, metric: str) -> Value | None:
    """Returns a measurement; None if it is not there."""
    if not self.has(source) or (method, metric) not in self._frames[source].index:
      return None
    row = self._frames[source].loc[(method, metric)]
    return Value(float(row["mean"]), float(row["sd"]), int(row["num_seeds"]))

  def is_paired(self, source: str) -> bool:
    """Returns whether changes of each client were kept: of cross-validations."""
    names = self._frames[source].index.get_level_values("method") if self.has(source) else ()
    return any(map(sources.is_between, names))

  def change(self, source: str, before: str, after: str, metric: str) -> Change | None:
    """Returns the change of a metric from one method to another; None if it was not kept."""
    method = sources.between(before, after)
    known = self.get_all(source, [method], metric)
    ends = [self.get(source, method, f"{metric}.{end}") for end in ("low", "high")]
    low, high = (math.nan if end is None else end.mean for end in ends)
    return Change(known[method].mean, low, high) if known else None

  def get_all(self, source: str, methods: Iterable[str], metric: str) -> dict[str, Value]:
    """Returns the measurements of those methods that have one, in their order."""
    values = {method: self.get(source, method, metric) for method in methods}
    return {method: value for method, value in values.items() if value is not None}

  def best(self, source: str, prefix: str, metric: str = tables.P90) -> str | None:
    """Returns the method with the lowest metric among those whose labels begin so."""
    known = self.get_all(source, self.methods(source, prefix), metric)
    return min(known, key=lambda method: known[method].mean) if known else None


def _kept(name: str) -> pd.DataFrame:
  """Returns the measurements of a source that the project keeps."""
  path = sources.MEASURED / f"{name}.csv"
  if not path.exists():
    return pd.DataFrame(columns=list(sources.COLUMNS))
  return pd.read_csv(path, float_precision="round_trip")


def _of_one_length(frame: pd.DataFrame) -> tuple[pd.DataFrame, float]:
  """Returns the methods of a comparison with as many rounds as most of them, and that number.

  Measurements without rounds come back as they are, with 0.
  """
  rounds = frame[frame["metric"] == "rounds"].set_index("method")["mean"]
  if not len(rounds):
    return frame, 0.0
  usual = float(rounds.mode().max())
  of_others = {method for method, number in rounds.items() if number != usual}
  is_other = frame["method"].map(lambda name: bool(of_others & {*sources.methods_of(name)}))
  return frame[~is_other], usual


def _merged(kept: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
  """Returns the measurements that were found, and those kept of methods that are not better there.

  Methods are compared after as many rounds. So of two comparisons of different lengths the one with
  more methods counts alone, or else the longer one. In one of the same length, a method's
  measurement over at least as many seeds takes the other's place.
  """
  if not len(kept) or not len(new):
    return new if len(new) else kept
  (kept, length), (new, new_length) = _of_one_length(kept), _of_one_length(new)
  if length != new_length:
    is_better = (new["method"].nunique(), new_length) > (kept["method"].nunique(), length)
    return new if is_better else kept
  before, now = (frame.groupby("method")["num_seeds"].max() for frame in (kept, new))
  better = now[now >= before.reindex(now.index, fill_value=0)].index
  parts = [kept[~kept["method"].isin(better)], new[new["method"].isin(better)]]
  return pd.concat(parts, ignore_index=True)[list(sources.COLUMNS)]


def load(output_dir: str | os.PathLike | None = None) -> Evidence:
  """Returns the measurements that are kept, and the better ones of a directory of results."""
  frames = {}
  for name, source in sources.SOURCES.items():
    frames[name] = _kept(name)
    if output_dir is not None:
      frames[name] = _merged(frames[name], source.read(pathlib.Path(output_dir)))
  return Evidence(frames)


def _version() -> str:
  """Returns the project's version: paper/ is in clones alone, beside setup.cfg."""
  parser = configparser.ConfigParser()
  parser.read(pathlib.Path(__file__).resolve().parents[2] / "setup.cfg", encoding="utf-8")
  return parser["metadata"]["version"]


def keep(output_dir: str | os.PathLike) -> list[pathlib.Path]:
  """Keeps what a directory of results has: writes it to `measured/`, and to made.csv by whom.

  It returns the files that were written.
  """
  paths, made = [], sources.read_made()
  for name, source in sources.SOURCES.items():
    measured = source.read(pathlib.Path(output_dir))
    if len(measured):
      path = sources.MEASURED / f"{name}.csv"
      kept = _kept(name)
      rows = _merged(kept, measured)[list(sources.COLUMNS)]
      if rows.equals(kept):
        continue
      # Unrounded: a number that is read again is the same number.
      atomic_files.write(path, rows.to_csv(index=False, lineterminator="\n"))
      paths.append(path)
      is_new = len(rows.merge(measured)) == len(rows)
      made[name] = {
        "source": name,
        "version": _version(),
        "date": datetime.date.today().isoformat(),
        "digits": "all digits" if is_new else "all digits of what is new",
      }
  if paths:
    table = pd.DataFrame(list(made.values()), columns=list(sources.MADE))
    atomic_files.write(
      sources.MEASURED / "made.csv", table.to_csv(index=False, lineterminator="\n")
    )
  return paths
