"""Tables of the test clients by name: the error of each, and its change against FedAvg."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from tff_superquantile.experiments.report import grouped
from tff_superquantile.experiments.report import page
from tff_superquantile.experiments.report import paired
from tff_superquantile.experiments.report import tables
from tff_superquantile.experiments.report import units
from tff_superquantile.experiments.run import names
from tff_superquantile.experiments.run import run_folder

_NUM_NAMED = 5


def by_client(
  before: Sequence[run_folder.Run], after: Sequence[run_folder.Run], measure: str = "error"
) -> pd.DataFrame:
  """Compares a baseline and a method client by client, by a column of the clients' results.

  There is a row for each test client that both have, by its id, the largest gain first: the columns
  "before" and "after", means over the seeds with this test client, "change", and "seeds".
  """
  pairs = paired.clients_of_both(before, after, measure)
  if not pairs:
    return pd.DataFrame(columns=["before", "after", "change", "seeds"])
  together = pd.concat(pairs.values())
  clients = together.groupby(level=0).mean()
  clients["change"] = clients["after"] - clients["before"]
  clients["seeds"] = together.groupby(level=0).size()
  return clients.rename_axis("client").sort_values(["change", "client"])


def named(groups: grouped.Grouped, method: names.Name, baseline: names.Name) -> list[page.Block]:
  """Lists the test clients that gain and lose most by a method, and all, to sort and filter.

  It is empty where there are no clients that both have.
  """
  clients = by_client(groups[baseline], groups[method], groups.leading.name)
  if clients.empty:
    return []
  unit = groups.leading.unit
  headings = ["client", "change", names.said_of(baseline), method.label, "seeds"]
  gains = clients[clients["change"] < 0].head(_NUM_NAMED)
  losses = clients[clients["change"] > 0].iloc[::-1].head(_NUM_NAMED)
  note = (
    f"{unit.quantity} in {unit.name}, mean over the seeds in which the client is a test client. The"
    " ends of many clients are far apart by chance alone, most of all where clients have few"
    " examples."
  )
  ends = pd.concat([gains, losses.iloc[::-1]])
  everybody = tables.Table("", headings, _rows(clients, unit), focus="change", is_sortable=True)
  title = f"Each test client: {method.label} against {names.said_of(baseline)}"
  blocks: list[page.Block] = [page.Details(title, [everybody], is_open=True)]
  if len(ends):
    title = "Largest gains and losses by client"
    blocks.insert(0, tables.Table(title, headings, _rows(ends, unit), note, focus="change"))
  return blocks


def _rows(clients: pd.DataFrame, unit: units.Unit) -> list[tables.Row]:
  """Lays out a row for each client."""
  rows = []
  for row in clients.itertuples():
    levels = unit.number(row.before), unit.number(row.after)
    cells = map(tables.Cell, (unit.number(row.change, sign=True), *levels, str(row.seeds)))
    rows.append(tables.Row(names.printable(str(row.Index)), [*cells]))
  return rows
