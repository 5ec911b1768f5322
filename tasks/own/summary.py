"""Describes a table: what its columns became, what was put right in it, and what looks wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import dataclasses

import numpy as np

from privacy.settings import command_line
from tasks import splits
from tasks.own import doubts
from tasks.own import encoding as encoding_lib
from tasks.own import labels as labels_lib
from tasks.own import reading
from tasks.own import user_table
from tasks.own import values

_ROWS_AT_ONCE = 1 << 14
_MOST_LINES = 30  # Of columns that differ.
_MOST_CLASSES = 12  # Listed with their share.
_MOST_CHARACTERS = 200  # Of a cell.
_LARGEST_SHARE = 0.8  # Of a class, up to which errors tell how well all classes are served.


@dataclasses.dataclass(frozen=True)
class ColumnSummary:
  """A column of the table that is a feature, or is not used.

  `kind` is "number", "boolean", "category", or "dropped"; `missing` the number of rows without a
  value, `width` that of the model's inputs; `remark` says such as why it was dropped.
  """

  name: str
  kind: str
  missing: int
  width: int
  remark: str


@dataclasses.dataclass(frozen=True)
class Summary:
  """What was found in a table; all are values of JSON."""

  digest: str  # Identifies the table and its columns.
  client_column: str  # The column of clients.
  # Number of rows that are described: of the clients with enough examples, and in a private run
  # of those that are not trained on.
  rows: int
  clients: int  # Number of these clients.
  whose: str  # Words for these clients.
  num_dropped: int  # Number of clients with too few examples.
  min_examples: int  # The least number of examples.
  num_train: int  # Number of training clients.
  rows_of_classes: Sequence[int]  # Number of rows of each class; empty for labels that are numbers.
  encoding: encoding_lib.Encoding  # What the columns became.
  columns: Sequence[ColumnSummary]  # The columns besides clients and labels.
  # The largest mean of |(x, 1)|^2, with the model's inputs x, over the rows of a client; of the
  # clients whose statistics `encoding` has.
  largest_mean_square: float
  # Where the columns are read as those of an earlier table were, a remark on the labels, perhaps
  # ""; else None.
  later_labels: str | None = None
  remarks: Sequence[str] = ()  # What was put right in the table, and what looks wrong in it.

  def text(self) -> str:
    """Returns lines for people."""
    return "\n".join(self._lines())

  @property
  def drift(self) -> list[str]:
    """Returns a line for each column of a later table, or its labels, that are not as the run's.

    It is about the rows that are described: categories that the model does not know, and numbers
    and shares of categories that are far from those of the run.
    """
    if self.later_labels is None:
      return []
    remarks = {column.name: column.remark for column in self.columns if column.kind != "dropped"}
    by_place = {f"Column {_printable(name)}": remark for name, remark in remarks.items()}
    by_place[f"Label {_printable(self.encoding.label.name)}"] = self.later_labels
    described = f"among the {self.rows} examples of {self.clients} {self.whose}"
    return [f"{what}: {remark}, {described}." for what, remark in by_place.items() if remark]

  def _lines(self) -> Iterator[str]:
    yield f"{self.rows} examples of {self.clients} {self.whose} ({self.client_column})"
    if self.num_dropped:
      yield f"dropped: {self.num_dropped} clients with {splits.too_few(self.min_examples)}"
    yield self._label()
    num_used = len(self.encoding.features)
    dropped = len(self.columns) - num_used
    yield (
      f"{num_used} features, {self.encoding.num_inputs} inputs of the model"
      + (f"; {dropped} columns dropped" if dropped else "")
    )
    alike: dict[tuple, list[str]] = {}
    for c in self.columns:
      alike.setdefault((c.kind, c.missing, c.width, c.remark), []).append(c.name)
    cells = [["column", "kind", "missing", "inputs", ""]]
    cells += [[_list(names), *map(str, facts)] for facts, names in alike.items()]
    if len(cells) > _MOST_LINES:
      cells[_MOST_LINES - 1 :] = [["...", f"{len(cells) - _MOST_LINES + 1} lines more", "", "", ""]]
    yield command_line.table([[_printable(cell) for cell in row] for row in cells], num_left=5)
    yield from map(_on_a_line, self.remarks)

  def _label(self) -> str:
    label = self.encoding.label
    text = f"label {label.name}:"
    if not label.classes:
      unit = f" in {label.unit}" if label.unit else ""
      return f"{text} numbers{unit}, mean {label.mean:.6g}, standard deviation {label.std:.6g}"
    counted = zip(label.classes, self.rows_of_classes)
    shares = [
      f"{_printable(name)} {100 * rows / max(1, self.rows):.1f} %" for name, rows in counted
    ]
    text = f"{text} {len(shares)} classes: {_list(shares, _MOST_CLASSES)}"
    if hint := labels_lib.hint(label.classes):
      text += f"\n{hint}"
    if not self.is_skewed:
      return text
    share = max(self.rows_of_classes) / self.rows
    return (
      f"{text}\nmetric: balanced_error, as always answering with the largest class has an error of"
      f" {100 * (1 - share):.1f} % (--metric=error for the error)"
    )

  @property
  def is_skewed(self) -> bool:
    """Whether one class has so many of the rows that errors say little of the others."""
    return max(self.rows_of_classes, default=0) > _LARGEST_SHARE * self.rows


def _list(names: Sequence[str], most: int = 4) -> str:
  """Returns names separated by commas, without the last where they are many."""
  more = len(names) - most
  return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def _printable(text: str) -> str:
  shown = text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."
  return _on_a_line(shown)


def _on_a_line(text: str) -> str:
  return "".join(c if c.isprintable() else "?" for c in text)


def summarise(
  table: user_table.UserTable, digest: str, put_right: Sequence[str], others: Sequence[str]
) -> Summary:
  """Returns what was found; of training clients in a private run nothing but their number.

  `put_right` is what was put right in the files, and `others` are those that are no tables.
  """
  is_private, names = table.request.is_private, table.encoding.label.classes
  labels = table.labels[table.shown]
  counts = np.bincount(labels.astype(np.int64), minlength=len(names)).tolist() if names else []
  remarks = [] if is_private else [*put_right]  # Training clients' rows may be among those.
  left_out = {"label": table.num_unlabelled, "client": table.num_unowned}
  for what, number in left_out.items():
    if number and not is_private:
      remarks.append(f"{number} rows without a {what} are left out.")
  if others:
    remarks.append(f"Files left out: {values.listed(others, most=20)}.")
  return Summary(
    digest=digest,
    client_column=table.flags.partition or table.columns.client or reading.FILE_NAME,
    rows=len(labels),
    clients=table.num_reference if is_private else len(table.ids),
    whose="clients that are not trained on"
    if is_private
    else f"{'simulated ' * bool(table.flags.partition)}clients",
    num_dropped=table.num_dropped,
    min_examples=table.request.min_examples_per_client,
    num_train=table.num_train,
    rows_of_classes=counts,
    encoding=table.encoding,
    columns=_columns(table),
    largest_mean_square=_largest_mean_square(table),
    later_labels=table.later_labels,
    remarks=[*remarks, *_doubts(table)],
  )


def _columns(table: user_table.UserTable) -> list[ColumnSummary]:
  """Describes each column that was to be a feature, or is one."""
  places = {feature.name: i for i, feature in enumerate(table.encoding.features)}
  described = []
  for name in dict.fromkeys((*table.columns.features, *places)):
    if name in places:
      feature, raw = table.encoding.features[places[name]], table.raw[table.shown, places[name]]
      missing, remark = int(np.isnan(raw).sum()), table.remarks.get(name, "")
      codes = doubts.on_codes(raw) if feature.kind == "number" else ""
      remark = "; ".join(filter(None, (remark, codes)))
      described.append(ColumnSummary(name, feature.kind, missing, feature.width, remark))
    elif name in table.rows.columns:
      missing = int(np.sum(table.rows.columns[name].codes[table.shown] < 0))
      reason = table.encoding.dropped.get(name, "not among the columns of the model")
      described.append(ColumnSummary(name, "dropped", missing, 0, reason))
  return described


def _doubts(table: user_table.UserTable) -> Iterator[str]:
  """Yields what looks wrong among the rows that are described."""
  rows, raw = table.rows[table.shown], table.raw[table.shown]
  yield from doubts.on_clients([table.ids[owner] for owner in np.unique(rows.owners)])
  yield from doubts.on_quotes(rows.columns.values())
  for name in (table.encoding.label.name, *(feature.name for feature in table.encoding.features)):
    if powers := rows.columns[name].powers:
      yield (
        f"Values of column {name} such as {values.listed(powers[:1])} are read as powers of ten: if"
        " they are codes, write them with another letter."
      )
  places = [i for i, feature in enumerate(table.encoding.features) if feature.kind == "number"]
  columns = [rows.columns[table.encoding.features[i].name] for i in places]
  yield from doubts.on_odd_clients(rows.owners, table.ids, raw[:, places], columns)
  label = table.encoding.label
  of_columns = {f"values of column {table.encoding.features[i].name}": raw[:, i] for i in places}
  if not label.classes:
    numbers = table.labels[table.shown].astype(np.float64) * label.std + label.mean
    numbers = np.round(numbers, 4 - int(np.log10(label.std)))
    codes = doubts.on_codes(numbers)
    yield from [f"Of label {label.name}, {codes}."] * bool(codes)
    of_columns = {f"labels {label.name}": numbers, **of_columns}
  for what, numbers in of_columns.items():
    is_far = doubts.are_far(numbers)
    if is_far.any() and not doubts.on_codes(numbers):
      remark = doubts.on_far(is_far, numbers, table.ids[rows.owners], what)
      yield f"{remark}: if these are errors, mend them."


def _largest_mean_square(table: user_table.UserTable) -> float:
  """Returns what the summary has of this name."""
  rows = np.flatnonzero(table.rows.is_reference)
  owners = table.rows.owners[rows]
  squares = [
    np.square(table.encoding.encode(table.raw[part]), dtype=np.float64).sum(axis=1)
    for part in np.split(rows, range(_ROWS_AT_ONCE, len(rows), _ROWS_AT_ONCE))
  ]
  sums = np.bincount(owners, np.concatenate(squares))
  return 1.0 + float(np.max(sums / np.maximum(np.bincount(owners), 1), initial=0.0))
