"""Describes a table: what its columns became, what was put right in it, and what looks wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tasks.own import columns as columns_lib
from tasks.own import doubts
from tasks.own import reading
from tasks.own import summary
from tasks.own import user_table

_ROWS_AT_ONCE = 1 << 14


def summarise(
  table: user_table.UserTable, digest: str, put_right: Sequence[str], others: Sequence[str]
) -> summary.Summary:
  """Returns what was found; of training clients in a private run nothing but their number.

  `put_right` is what was put right in the files, and `others` are those that are no tables.
  """
  is_private, names = table.request.is_private, table.encoding.label.classes
  labels = table.labels[table.shown]
  counts = np.bincount(labels.astype(np.int64), minlength=len(names)).tolist() if names else []
  remarks = [] if is_private else [*put_right]  # Training clients' rows may be among those.
  if table.num_unlabelled and not is_private:
    remarks.append(f"{table.num_unlabelled} rows without a label are left out.")
  if others:
    remarks.append(f"Files left out: {columns_lib.listed(others)}.")
  return summary.Summary(
    digest=digest,
    client_column=table.columns.client or reading.FILE_NAME,
    rows=len(labels),
    clients=table.num_reference if is_private else len(table.ids),
    whose="clients that are not trained on" if is_private else "clients",
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


def _columns(table: user_table.UserTable) -> list[summary.ColumnSummary]:
  """Describes each column that was to be a feature, or is one."""
  places = {feature.name: i for i, feature in enumerate(table.encoding.features)}
  described = []
  for name in dict.fromkeys((*table.columns.features, *places)):
    if name in places:
      feature, raw = table.encoding.features[places[name]], table.raw[table.shown, places[name]]
      missing, remark = int(np.isnan(raw).sum()), table.remarks.get(name, "")
      codes = doubts.on_codes(raw) if feature.kind == "number" else ""
      remark = "; ".join(filter(None, (remark, codes)))
      described.append(summary.ColumnSummary(name, feature.kind, missing, feature.width, remark))
    elif name in table.rows.columns:
      missing = int(np.sum(table.rows.columns[name].codes[table.shown] < 0))
      reason = table.encoding.dropped.get(name, "not among the columns of the model")
      described.append(summary.ColumnSummary(name, "dropped", missing, 0, reason))
  return described


def _doubts(table: user_table.UserTable) -> Iterator[str]:
  """Yields what looks wrong among the rows that are described."""
  rows, raw = table.rows[table.shown], table.raw[table.shown]
  yield from doubts.on_clients([table.ids[owner] for owner in np.unique(rows.owners)])
  yield from doubts.on_quotes(rows.columns.values())
  places = [i for i, one in enumerate(table.encoding.features) if one.kind == "number"]
  columns = [rows.columns[table.encoding.features[i].name] for i in places]
  yield from doubts.on_odd_clients(rows.owners, table.ids, raw[:, places], columns)
  label = table.encoding.label
  if not label.classes:
    numbers = table.labels[table.shown].astype(np.float64) * label.std + label.mean
    codes = doubts.on_codes(np.round(numbers, 4 - int(np.log10(label.std))))
    yield from [f"Of label {label.name}, {codes}."] * bool(codes)


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
