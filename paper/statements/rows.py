"""Rows of the page: what the paper says, what was found, and a verdict."""

from __future__ import annotations

from collections.abc import Iterable
import dataclasses
import enum

from tff_superquantile.experiments.report import tables


class Verdict(enum.Enum):
  """What became of a statement."""

  HOLDS = "holds"
  DIFFERS = "differs"
  WRONG = "is wrong"
  DRAWN = "is drawn"
  UNCHECKED = "cannot be checked here"


@dataclasses.dataclass(frozen=True)
class Row:
  """One statement of the paper.

  Attributes:
    where: Its place in the paper.
    says: The statement, in brief.
    found: What was measured, or computed, with its numbers and seeds.
    verdict: The verdict.
    why: How it differs and why, what is true, or what is missing.
    data: The data behind the verdict where they are not the paper's; empty otherwise.
  """

  where: str
  says: str
  found: str
  verdict: Verdict
  why: str = ""
  data: str = ""

  @property
  def judgement(self) -> str:
    """The verdict in words."""
    if self.data and self.verdict in (Verdict.HOLDS, Verdict.DIFFERS):
      return f"{self.verdict.value} on {self.data}"
    return self.verdict.value


def judge(holds: bool, otherwise: Verdict = Verdict.DIFFERS) -> Verdict:
  """Returns HOLDS, or the other verdict."""
  return Verdict.HOLDS if holds else otherwise


def missing(where: str, says: str, command: str) -> Row:
  """Returns the row of a statement whose measurements are not there."""
  return Row(where, says, "No measurement yet.", Verdict.UNCHECKED, f"It needs {command}")


def table(title: str, rows: Iterable[Row]) -> tables.Table:
  """Lays rows out, a line each."""
  laid_out = []
  for row in rows:
    found = row.found + (f" {row.why}" if row.why else "")
    cells = [tables.Cell(row.says), tables.Cell(row.judgement, best=True), tables.Cell(found)]
    laid_out.append(tables.Row(row.where, cells))
  return tables.Table(
    title, ["where", "the paper says", "verdict", "found"], laid_out, kind="words"
  )


_OF_MANY = {
  Verdict.HOLDS: "hold",
  Verdict.DIFFERS: "differ",
  Verdict.WRONG: "are wrong",
  Verdict.DRAWN: "are drawn",
  Verdict.UNCHECKED: "cannot be checked here",
}


def count(rows: Iterable[Row]) -> str:
  """Counts the verdicts in words: "17 hold (3 of them on other data), 2 are wrong"."""
  rows, parts = list(rows), []
  for verdict, words in _OF_MANY.items():
    chosen = [row for row in rows if row.verdict is verdict]
    elsewhere = sum(row.judgement != verdict.value for row in chosen)
    if chosen:
      parts.append(
        f"{len(chosen)} {words}" + (f" ({elsewhere} of them on other data)" if elsewhere else "")
      )
  return ", ".join(parts)
