"""Tables 6 to 8 on real people: each printed change against FedAvg, beside ours and its interval.

Our runs test each of EMNIST's writers and of Sent140's users once, so that changes have intervals
over clients, and a printed change can be contradicted.
"""

from __future__ import annotations

from collections.abc import Iterator

from paper.statements import measurements
from paper.statements import printed
from tff_superquantile.experiments.pages import tables

# The tables, and the measurements of them.
_TABLES = {
  "ext_comp_emnist_linear": "writers_linear",
  "ext_comp_emnist_convnet": "people_convnet",
  "ext_comp_sent140_linear": "users_linear",
}
_METRICS = {"mean": "test.error.mean", "p90": tables.P90}
_NOTE = (
  "Points against FedAvg: printed → ours with its 95 % interval over clients. It holds beyond"
  " chance, holds in direction (zero is inside), is contradicted beyond chance, or is not seen (the"
  " other direction, zero inside); no claim is a printed change within one sd over seeds. Methods"
  " are not corrected for their number."
)


def verdict(told: float, spread: float, change: measurements.Change) -> str:
  """Says what our change makes of a printed one, `told`, whose sd over seeds is `spread`."""
  if abs(told) <= spread:
    return "no claim"
  if (change.value < 0) == (told < 0):
    return "holds" if change.is_sure else "holds in direction"
  return "contradicted" if change.is_sure else "not seen"


def _cell(
  evidence: measurements.Evidence, name: str, method: str, column: str
) -> tables.Cell | None:
  """Lays out a printed change, ours, and the verdict; None where nothing was measured."""
  known = printed.values(name, column)
  own, baseline = known[method], known["FedAvg"]
  source = _TABLES[name]
  ours = printed.measured_method(evidence, source, method)
  change = evidence.change(source, "FedAvg", ours, _METRICS[column]) if ours else None
  if change is None:
    return None
  told = own.mean - baseline.mean
  said = verdict(told, max(own.spread, baseline.spread), change)
  text = f"{tables.number(100 * told, 1, sign=True)} → {change.in_points()}: {said}"
  return tables.Cell(text)


def grids(evidence: measurements.Evidence) -> Iterator[tables.Table]:
  """Yields the tables of changes of which something was measured; the first has a note."""
  is_said = False
  for name, source in _TABLES.items():
    place = printed.TABLES[name]
    laid_out = []
    for method in printed.values(name, "mean"):
      cells = [_cell(evidence, name, method, column) for column in _METRICS]
      if method != "FedAvg" and all(cells):
        other = printed.other_parameter(evidence, source, method)
        laid_out.append(tables.Row(f"{method}{other}", [cell for cell in cells if cell]))
    if laid_out:
      title = f"{place.number} against FedAvg: {place.title}"
      note, is_said = "" if is_said else _NOTE, True
      yield tables.Table(title, ["method", *_METRICS], laid_out, note)
