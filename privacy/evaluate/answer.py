"""The answer of the command: a table of estimates and what they cost, or one JSON object."""

from collections.abc import Sequence
import dataclasses
import json

from privacy import ledger as ledger_lib
from privacy.command import answers
from privacy.evaluate import entries

_ROW = "  {:<14}{:>10}{:>18}"


@dataclasses.dataclass(frozen=True)
class Answer:
  """The last of a run's evaluations.

  Attributes:
    folder: The run's folder.
    evaluations: All evaluations of the run.
    ledger: The ledger of a private run; None of any other.
  """

  folder: str
  evaluations: Sequence[entries.Evaluation]
  ledger: ledger_lib.Ledger | None

  def to_json(self) -> str:
    """Returns the answer for programs."""
    found = {
      "folder": self.folder,
      **self.evaluations[-1].to_dict(),
      "costs": entries.describe_costs(self.evaluations, self.ledger),
    }
    return json.dumps(found, indent=2, allow_nan=False)

  def to_text(self) -> str:
    """Returns the answer for people."""
    last = self.evaluations[-1]
    query = last.query
    lines = [
      f"{self.folder}: {last.metric} of the {last.split} clients, epsilon = {query.epsilon:g},"
      f" delta = {query.delta:.3g}.",
      _ROW.format("", "estimate", "± standard error"),
    ]
    for name, numbers in last.estimates.items():
      shown = [
        "none" if x is None else f"{x:.1f}" if name == "clients" else f"{x:.4f}" for x in numbers
      ]
      lines.append(_ROW.format(name, *shown))
    lines += answers.paragraphs(
      "What it cost:", entries.describe_costs(self.evaluations, self.ledger)
    )
    lines += answers.paragraphs("What epsilon is about:", query.guarantee)
    return "\n".join(lines)
