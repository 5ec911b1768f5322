"""Shows the findings of the doctor's checks: lines for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import json

OK, NOTE, FAIL, SKIP = "ok", "note", "FAIL", "skip"

_STATUS_WIDTH = 4
_COLOURS = {OK: "\33[32m", NOTE: "\33[33m", FAIL: "\33[1;31m", SKIP: "\33[2m"}
_NO_COLOUR = "\33[0m"


@dataclasses.dataclass(frozen=True)
class Finding:
  """The finding of one check.

  Attributes:
    status: `OK`; `NOTE`, worth knowing, but nothing fails for it; `FAIL`; or `SKIP`, not checked.
    found: The state of things, in a few words; a sentence if it is a problem.
    remedy: The steps to mend it, a line each; "" if there is nothing to do.
    name: The name of the check; `carry_out` fills this in, and the next.
    seconds: The time that it took.
  """

  status: str
  found: str
  remedy: str = ""
  name: str = ""
  seconds: float = 0.0

  @property
  def usable(self) -> bool:
    """Tells whether checks that need this can go on."""
    return self.status in (OK, NOTE)


def ok(found: str) -> Finding:
  """Returns a finding that all is well."""
  return Finding(OK, found)


def note(found: str, remedy: str = "") -> Finding:
  """Returns a finding that is worth knowing, and for which nothing fails."""
  return Finding(NOTE, found, remedy)


def fail(found: str, remedy: str) -> Finding:
  """Returns a finding that something does not work; the remedy says how to mend it."""
  return Finding(FAIL, found, remedy)


class Layout:
  """Lays out findings as lines, in columns: status, name, state, and the remedy below it."""

  def __init__(self, names: Sequence[str], *, colour: bool):
    """Initializes the layout.

    Args:
      names: The names of all checks; the longest one sets the width of its column.
      colour: Whether to colour the status, for a terminal.
    """
    self._name_width = max(map(len, names))
    self._colour = colour

  def lines(self, finding: Finding) -> str:
    """Returns the line of a finding, and those of its remedy."""
    status = finding.status.ljust(_STATUS_WIDTH)
    if self._colour:
      status = f"{_COLOURS[finding.status]}{status}{_NO_COLOUR}"
    name = finding.name.ljust(self._name_width)
    indent = " " * (_STATUS_WIDTH + self._name_width + 4)
    remedies = [indent + _printable(line) for line in finding.remedy.splitlines()]
    return "\n".join([f"{status}  {name}  {_printable(finding.found)}", *remedies])


def _printable(text: str) -> str:
  """Removes characters that could move a terminal's cursor, as the names of files may."""
  return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def _count(number: int, noun: str) -> str:
  return f"{number} {noun}{'' if number == 1 else 's'}"


def summary(findings: Sequence[Finding]) -> str:
  """Sums all findings up in one sentence."""
  numbers = {s: sum(f.status == s for f in findings) for s in (OK, NOTE, FAIL, SKIP)}
  checks = _count(len(findings), "check")
  if numbers[FAIL]:
    skipped = f", {numbers[SKIP]} skipped" if numbers[SKIP] else ""
    return f"{numbers[FAIL]} of {checks} failed{skipped}: do what is said below each, run it again."
  notes = f", {_count(numbers[NOTE], 'note')}" if numbers[NOTE] else ""
  return f"All is well: {checks}{notes}."


def has_failed(findings: Sequence[Finding]) -> bool:
  """Tells whether anything is wrong."""
  return any(finding.status == FAIL for finding in findings)


def to_json(findings: Sequence[Finding]) -> str:
  """Returns {"ok": bool, "findings": [{name, status, found, remedy, seconds}, ...]}."""
  content = [dict(dataclasses.asdict(f), seconds=round(f.seconds, 3)) for f in findings]
  return json.dumps({"ok": not has_failed(findings), "findings": content}, indent=2)
