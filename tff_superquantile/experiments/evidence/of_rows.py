"""Sentences of a decision that are about the clients' rows, not about methods."""

from __future__ import annotations

from collections.abc import Iterator
import math

from tff_superquantile.experiments.evidence import boxes
from tff_superquantile.experiments.evidence import evidence
from tff_superquantile.experiments.pages import answer
from tff_superquantile.experiments.pages import tables
from tff_superquantile.experiments.pages import units
from tff_superquantile.experiments.references import kept
from tff_superquantile.measures import measure

_MOST_OF_LEAD = 0.8  # Of own models before the best shared one.


def gross(e: evidence.Evidence) -> answer.Answer:
  """Advises to mend gross errors that decide the errors."""
  text = next(column["text"] for column in e.facts("gross") if column["decides"])
  words = "Mend gross errors first: they decide the errors of all methods."
  return answer.Answer(words, (f"{text}.", "Mend them, and compare again."))


def not_learned(e: evidence.Evidence) -> answer.Answer:
  """Says which feature tells the label by its ranks, where no method has learned any."""
  rank = e.facts("ranks")[0]
  correlation = tables.number(rank["correlation"], 2, sign=True)
  learned = "no method has learned it"
  if e.constant[e.best].value < 0:
    learned = "it is not shown that a method has learned it"
  return answer.Answer(
    f"The features tell the label, but {learned}.",
    (
      f"{rank['name']} has a rank correlation of {correlation} with it {rank['where']} clients.",
      "Look for wrong values, or try --model=mlp.",
    ),
    boxes.of_constant(e),
  )


def how_clients_differ(e: evidence.Evidence) -> str:
  """Says why own models serve clients better: by other labels, or by other rules.

  It is labels, and perhaps nothing else, where clients' own constant answers have most of the lead.
  """
  change = e.change(kept.LOCAL, kept.OWN_CONSTANT, e.measure_of_rows)
  shared = e.own[e.best][0].after if e.best in e.own else math.nan
  if change is None or not (shared - change.after >= _MOST_OF_LEAD * (shared - change.before) > 0):
    return "One rule does not fit these clients."
  text = units.of_measure(e.measure_of_rows, e.groups.task_units).text(change.after)
  if e.groups.runs[0].error_kind == measure.NUMBERS:
    return f"They differ in the level of their labels: their own mean has {text}."
  words = f"their own most frequent class has {text}"
  if e.facts("labels"):
    return f"They differ in which labels they have: {words}."
  return f"Without a model, {words}; it is not shown that they differ in which labels they have."


def caveats(e: evidence.Evidence, is_said: bool) -> Iterator[str]:
  """Yields gross errors, those that decide unless they are said, and what was not tried."""
  for column in e.facts("gross"):
    if not (is_said and column["decides"]):
      yield f"{column['text']}."
  if not (e.own or e.personal) and (why := e.references.left_out(kept.LOCAL)):
    yield f"Own models were not tried, as {why}: --personalize tells."
