"""The decision of a comparison: what to do, then the numbers behind it, then what they leave open.

`VERDICTS` lists what a report may advise; the first whose condition holds is its first sentence.
An experiment of
the paper asks for its comparison, and has no other first sentence. Of all else they are asked in
the order in which one makes the next meaningless: a client that outweighs all
others, or values that do, clients that need models tuned to them, or of their own, numbers that
were taken for classes, a rare class that ranks tell already, models that are not trained, too few
clients to tell, labels that ranks tell and models do not, or that nothing tells; only then do
differences between methods count. `evidence` says when a difference is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
from typing import Any, NamedTuple

from tff_superquantile.experiments.config import names
from tff_superquantile.experiments.evidence import bootstrap
from tff_superquantile.experiments.evidence import boxes
from tff_superquantile.experiments.evidence import evidence
from tff_superquantile.experiments.evidence import grouped
from tff_superquantile.experiments.evidence import in_reports
from tff_superquantile.experiments.evidence import of_rows
from tff_superquantile.experiments.evidence import of_the_paper
from tff_superquantile.experiments.evidence import paired
from tff_superquantile.experiments.evidence import personal
from tff_superquantile.experiments.evidence import wording
from tff_superquantile.experiments.pages import answer
from tff_superquantile.experiments.pages import tables
from tff_superquantile.experiments.pages import units
from tff_superquantile.experiments.references import kept
from tff_superquantile.experiments.run import asked
from tff_superquantile.experiments.run import cross_validation

_LITTLE = 0.05  # Of the constant answer's mean.


class Decision(NamedTuple):
  """What a report says first.

  Attributes:
    key: That of its verdict in `VERDICTS`; of several budgets that of the first.
    answers: That of each budget.
    evidence: That of the first budget at which a method is compared; of the first if none is.
  """

  key: str
  answers: Sequence[answer.Answer]
  evidence: evidence.Evidence

  @property
  def text(self) -> str:
    """All sentences; a line begins with each decision, and one with what is behind it."""
    return "\n".join(said.text for said in self.answers)


def _are_far_ahead(changes_of: Mapping[Any, Sequence[paired.Change]]) -> bool:
  """Returns whether models are far ahead of each rival in mean or tail, and never behind."""
  return bool(changes_of) and all(
    any(map(evidence.is_far_ahead, changes)) and not any(change.high < 0 for change in changes)
    for changes in changes_of.values()
  )


def _is_too_short(e: evidence.Evidence) -> bool:
  """Returns whether more rounds may change the decision.

  Near the pooled fit that is so only where methods differ of which one was not trained to its end.
  """
  if e.pooled is None or not e.pooled.has_interval:
    return bool(e.unfinished)
  differ = e.chosen[:2] if e.ranked and e.effects[True] else ()
  return evidence.is_far_ahead(e.pooled) or any(method in e.unfinished for method in differ)


def _misses_the_rare(e: evidence.Evidence) -> bool:
  """Returns whether ranks tell rare classes, or those of trained models, twice as well."""
  lead = e.groups.leading.name
  weights = {run.flags.get("class_weights", "none") for run in e.groups.runs}
  ranks, answers = _ranks(e), e.constant.get(e.best)
  is_asked = lead == "balanced_error" or (
    lead == "error" and not e.learned and not _is_too_short(e)
  )
  if not is_asked or weights != {"none"} or not ranks or not answers:
    return False
  # Clients without an example of one of the classes have no ranks.
  told = ranks.value / ranks.after
  return evidence.is_far_ahead(ranks) and told > 2 * max(0.0, -answers.value / answers.before)


def _ranks(e: evidence.Evidence) -> paired.Change | None:
  return e.change(e.best, kept.CONSTANT, "ranking_error")


class Verdict(NamedTuple):
  """A decision: when it holds, and what it says. Each takes an `Evidence` that has a mean."""

  holds: Callable[[evidence.Evidence], bool]
  say: Callable[[evidence.Evidence], answer.Answer]


VERDICTS = {
  "paper": Verdict(of_the_paper.is_asked, of_the_paper.say),
  "far client": Verdict(lambda e: e.far is not None, wording.far),
  "gross errors": Verdict(lambda e: any(one["decides"] for one in e.facts("gross")), of_rows.gross),
  "personalise": Verdict(
    lambda e: e.halves_decide and _are_far_ahead(e.personal), wording.personalise
  ),
  "own models": Verdict(lambda e: e.halves_decide and _are_far_ahead(e.own), wording.own_models),
  "quantity": Verdict(
    lambda e: bool(e.best in e.constant and not e.learned and wording.hint(e)), wording.quantity
  ),
  "rare class": Verdict(_misses_the_rare, wording.rare),
  "train longer": Verdict(_is_too_short, wording.train),
  "few clients": Verdict(lambda e: 0 < e.num_clients < bootstrap.FEWEST, wording.more_clients),
  "not learned": Verdict(
    lambda e: bool(e.best in e.constant and not e.learned and e.facts("ranks")), of_rows.not_learned
  ),
  "nothing learned": Verdict(lambda e: e.best in e.constant and not e.learned, wording.nothing),
  "no comparison": Verdict(lambda e: not e.ranked, wording.without_comparison),
  "more seeds": Verdict(lambda e: bool(e.effects[True]) and not e.is_repeated, wording.more_seeds),
  "trade-off": Verdict(lambda e: bool(e.effects[True] and e.effects[False]), wording.trade),
  "take": Verdict(lambda e: bool(e.effects[True]), wording.take),
  "keep": Verdict(lambda e: True, wording.keep),
}


def decide(groups: grouped.Grouped) -> Decision:
  """Decides what finished runs of a task say: of one budget, and also without privacy."""
  references = in_reports.find(groups.runs)
  chosen, epsilon = groups.at_one_budget
  public = groups.without_privacy
  several = [chosen, *([public] if epsilon is not None and len(public) > 1 else [])]
  decisions = [_of_one_budget(evidence.Evidence(its, references)) for its in several]
  first, compared_at = decisions[0], (d.evidence for d in decisions if d.evidence.ranked)
  starts = ("" if epsilon is None else f"At ε = {epsilon:g}: ", "Without privacy: ")
  answers = [
    dataclasses.replace(said, words=f"{start}{said.words}")
    for start, decided in zip(starts, decisions)
    for said in decided.answers
  ]
  return Decision(first.key, answers, next(compared_at, first.evidence))


def _of_one_budget(e: evidence.Evidence) -> Decision:
  """Decides what runs that can be compared with each other say."""
  if not e.levels:
    return Decision("no comparison", [wording.without_comparison(e)], e)
  key, verdict = next(entry for entry in VERDICTS.items() if entry[1].holds(e))
  said = verdict.say(e)
  whole = dataclasses.replace(
    said,
    box=said.box or boxes.of_methods(e),
    command=said.command or _next(e),
    caveats=(*_numbers(e, key), *_caveats(e, key)),
  )
  return Decision(key, [whole], e)


def _next(e: evidence.Evidence) -> str:
  """Returns the command that makes a result surer: whole runs, or more seeds; "" if it is sure."""
  run = e.groups.runs[0]
  is_one = bool(e.ranked) and e.groups.has_one_seed and not cross_validation.num_folds(run)
  return asked.again(run, "quick") or (asked.again(run, seeds=range(3)) if is_one else "")


def _numbers(e: evidence.Evidence, key: str) -> Iterator[str]:
  """Yields what changes from the baseline to the chosen method, with intervals."""
  if e.ranked:
    method, baseline, own = e.chosen
    effects = ", ".join(e.effect(change, with_interval=True) for change in own.values())
    first, _, last = effects.rpartition(", " if len(own) > 1 else "\0")
    yield (
      f"Against {names.fed_avg_phrase(baseline)}, {method.label}"
      f" {f'{first} and ' if first else ''}{last},"
      f" {_extent(own[e.groups.first], e)}."
    )
  if e.personal and key != "personalise":
    yield f"Personal models: {personal.sentence(e)}"


def _caveats(e: evidence.Evidence, key: str) -> Iterator[str]:
  """Yields what the numbers leave open."""
  if (missing := e.groups.measure_of_nobody) and e.levels:
    yield f"No test client has a {units.words(missing)}; the report leads with the error."
  if key != "quantity" and (hint := wording.hint(e)):
    yield hint
  yield from of_rows.caveats(e, is_said=key == "gross errors")
  if e.ended_first:
    who = ", ".join(method.label for method in e.ended_first)
    yield f"Stopped at the first allowed round, as level: {who} (--num_rounds=1000 goes on)."
  if key != "train longer" and e.unfinished:
    who = ", ".join(f"{m.label} after {rounds} rounds" for m, rounds in e.unfinished.items())
    yield f"Not converged yet: {who} (--num_rounds)."
  worse = e.worse_than_constant
  if worse and key != "few clients":
    levels = [f"{m.label} ({e.unit.text(e.constant[m].after)})" for m in worse]
    constant = e.unit.text(e.constant[worse[0]].before)
    yield f"Worse than the constant answer ({constant}), beyond chance: {', '.join(levels)}."
  told = {*e.learned, *worse}
  failed = [m for m, change in e.constant.items() if m not in told and change.has_interval]
  if key not in ("nothing learned", "not learned", "few clients") and failed:
    who = ", ".join(method.label for method in failed)
    yield f"Not told from the constant answer on average: {who}."
  best = e.constant.get(e.best)
  if best is not None and e.best in e.learned and -best.value < _LITTLE * best.before:
    yield f"The features tell little: the constant answer is hardly worse {_levels(e, best)}."
  if not e.ranked:
    return
  method, baseline, own = e.chosen
  left_out = [other.label for other in e.finite if other not in e.ranked]
  if left_out:
    fed_avg = names.fed_avg_phrase(baseline)
    yield f"Fewer seeds are shared with {fed_avg} by {', '.join(left_out)}, which this leaves out."
  if len(e.ranked) > 1:
    yield f"It is the best of {len(e.ranked)} methods; “beyond chance” counts them all (Holm)."
  first = own[e.groups.first]
  if first.num_seeds == 1:
    is_open = any(change.has_interval for change in own.values())
    yield (
      "This is one seed: intervals hold for these trained models only, and other seeds may turn the"
      " result."
      if is_open
      else tables.ONE_SEED
    )


def _levels(e: evidence.Evidence, change: paired.Change) -> str:
  levels = f"{e.unit.text(change.after)} against {e.unit.text(change.before)}"
  return f"(mean {e.groups.leading.words} of {e.best.label} {levels})"


def _extent(change: paired.Change, e: evidence.Evidence) -> str:
  """Says of how many clients and seeds a change is."""
  seeds = tables.plural(change.num_seeds, "seed")
  if not change.num_clients:
    return f"over {seeds}, whose runs have no results of each client and so no interval"
  few, offer = "", cross_validation.offer(e.groups.runs[0])
  if e.groups.are_few():
    few = ", too few for percentiles" + (f" ({offer})" if offer else "")
  return f"of {tables.plural(change.num_clients, 'test client')}{few}, over {seeds}"
