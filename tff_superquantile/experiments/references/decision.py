"""The decision of a comparison: what to do, then the numbers behind it, then what they leave open.

`VERDICTS` lists what a report may advise; the first whose condition holds is its first sentence.
They are asked in the order in which one makes the next meaningless: a client that outweighs all
others, or values that do, clients that need models tuned to them, or of their own, numbers that
were taken for classes, a rare class that ranks tell already, models that are not trained, too few
clients to tell, labels that ranks tell and models do not, or that nothing tells; only then do
differences between methods count. `evidence` says when a difference is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tff_superquantile.experiments.references import evidence
from tff_superquantile.experiments.references import in_reports
from tff_superquantile.experiments.references import kept
from tff_superquantile.experiments.references import of_rows
from tff_superquantile.experiments.references import personal
from tff_superquantile.experiments.report import grouped
from tff_superquantile.experiments.report import paired
from tff_superquantile.experiments.report import tables
from tff_superquantile.experiments.report import units
from tff_superquantile.experiments.run import cross_validation
from tff_superquantile.experiments.run import names

_LITTLE = 0.05  # Of the constant answer's mean.


class Decision(NamedTuple):
  """What a report says first.

  Attributes:
    key: That of its verdict in `VERDICTS`; of several budgets that of the first.
    text: Sentences: the decision, the numbers, the caveats.
    evidence: That of the first budget at which a method is compared; of the first if none is.
  """

  key: str
  text: str
  evidence: evidence.Evidence


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
  if e.pooled is None or e.pooled.num_clients < evidence.FEWEST:
    return bool(e.unfinished)
  differ = e.chosen[:2] if e.ranked and e.effects[True] else ()
  return evidence.is_far_ahead(e.pooled) or any(method in e.unfinished for method in differ)


def _hint(e: evidence.Evidence) -> str:
  """Returns what may be wrong with classes of a table's labels, whose kind nobody has named."""
  run = e.groups.runs[0]
  are_numbers = all(name.lstrip("-").isdecimal() for name in run.classes or ("",))
  if "label_kind" in run.flags or not are_numbers:
    return ""
  from tasks.own import labels  # It imports TensorFlow, which takes longer than a report.

  return labels.hint(run.classes)


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


def _own_models(e: evidence.Evidence) -> str:
  mean, *tail = e.own[e.best]
  measure = e.measure_of_rows
  unit, words = units.of_measure(measure, e.groups.task_units), units.words(measure)

  def levels(changes: Sequence[paired.Change]) -> str:
    return " and ".join(unit.text(change.after) for change in changes)

  pooled = e.own.get(kept.POOLED)
  also = "" if pooled is None else f", all examples in one place {levels(pooled)}"
  if mean.num_clients < e.num_clients:
    also += f" (each on {mean.num_clients} of the {e.num_clients} test clients)"
  of_tail = "".join(f" and {unit.text(worst.before)} in the worst tenth" for worst in tail)
  advice = "Do not federate" if e.personal else "Personalise (--personalize), or do not federate"
  return (
    f"{advice}: a model of a client’s own, fitted to half of its examples, has a mean {words} of"
    f" {unit.text(mean.before)} on the other half{of_tail}; the best shared one ({e.best.label})"
    f" has {levels(e.own[e.best])}{also}. {of_rows.how_clients_differ(e)}"
  )


def _train(e: evidence.Evidence) -> str:
  config = next((run.config for run in e.groups.runs if run.config is not None), None)
  rounds = max((run.last_round or 0 for run in cross_validation.single(e.groups.runs)), default=0)
  is_own = config is not None and config.task.name == "own" and config.stop != "converged"
  flag = f"pass --num_rounds={4 * rounds}, say"
  if is_own:
    flag = "leave out --num_rounds and --quick, and runs go on until they have converged"
  elif e.pooled is not None and not e.unfinished:
    flag = "its training loss has settled, so try another --client_learning_rate"
  if not evidence.is_far_ahead(e.pooled):
    who = " and ".join(method.label for method in list(e.unfinished)[:3])
    return f"Train longer before you compare: after {rounds} rounds {who} still improved; {flag}."
  assert e.pooled is not None
  return (
    f"Train longer before you compare: after {rounds} rounds the mean {e.groups.leading.words} of"
    f" {e.best.label} is {e.unit.text(e.pooled.after)}, where a fit of all examples in one place"
    f" has {e.unit.text(e.pooled.before)}; {flag}."
  )


def _more_clients(e: evidence.Evidence) -> str:
  flag = cross_validation.offer(e.groups.runs[0]) or "more --seeds draw others"
  told, constant = "", e.constant.get(e.best)
  if constant is not None:
    levels = f"{e.unit.text(constant.after)}, and {e.unit.text(constant.before)} with the constant"
    told = f" So far the mean {e.groups.leading.words} of {e.best.label} is {levels} answer."
  return (
    f"Test on more clients: {tables.plural(e.num_clients, 'test client')} cannot tell methods"
    f" apart, as fewer than {evidence.FEWEST} could not even if all changed alike; {flag}.{told}"
  )


def _quantity(e: evidence.Evidence) -> str:
  return (
    "Say first what the labels are: so far no method is better than the constant answer"
    f" {_levels(e, e.constant[e.best])}. {_hint(e)}"
  )


def _rare(e: evidence.Evidence) -> str:
  ranks, answers, leading = _ranks(e), e.constant[e.best], e.groups.leading
  assert ranks is not None
  measure = "" if leading.name == "balanced_error" else " --metric=balanced_error"
  return (
    f"Train with --class_weights=balanced{measure}: the features tell the rarer class, as the"
    f" ranking error is {units.PERCENT.text(ranks.before)} and chance has"
    f" {units.PERCENT.text(ranks.after)}, but {e.best.label} hardly answers it: its {leading.words}"
    f" is {units.PERCENT.text(answers.after)}, and {units.PERCENT.text(answers.before)} with the"
    " constant answer."
  )


def _nothing(e: evidence.Evidence) -> str:
  constant = e.constant[e.best]
  model = next(iter(e.references.of_seed.values())).models[kept.CONSTANT]
  answer = f"the constant answer, {model.description} {_levels(e, constant)}."
  if constant.value < 0:
    what = "anything is learned at this budget" if e.is_private else "the features tell the label"
    of_whom = f"with {tables.plural(e.num_clients, 'test client')}, {e.best.label}"
    return f"It is not shown that {what}: {of_whom} cannot be told from {answer}"
  start = "The features do not tell the label"
  if e.is_private:
    start = "Nothing is learned at this budget"
  return f"{start}: no method is better than {answer}"


def _take(e: evidence.Evidence) -> str:
  method, baseline, own = e.chosen
  metric = e.effects[True][0]
  return (
    f"Take {method.label}: against {names.said_of(baseline)} it"
    f" {e.effect(own[metric])}, beyond chance, and raises no measure by 2 % or more."
  )


def _more_seeds(e: evidence.Evidence) -> str:
  method, baseline, own = e.chosen
  flag = "--seeds=0,1,2 repeats it on other clients"
  return (
    f"Keep {names.said_of(baseline)}, but run more seeds ({flag}): {method.label}"
    f" {e.effect(own[e.effects[True][0]])}, beyond chance, in a single seed."
  )


def _trade(e: evidence.Evidence) -> str:
  method, baseline, own = e.chosen
  lower, higher = (" and ".join(map(evidence.metric_name, e.effects[k])) for k in (True, False))
  return (
    f"Choose what counts: against {names.said_of(baseline)}, {method.label} lowers {lower} and"
    f" raises {higher}, beyond chance."
  )


def _keep(e: evidence.Evidence) -> str:
  method, baseline, own = e.chosen
  text = f"Keep {names.said_of(baseline)}"
  if e.effects[False]:
    higher = " and ".join(map(evidence.metric_name, e.effects[False]))
    return f"{text}: {method.label} lowers nothing beyond chance, and raises {higher}."
  tested = next((change for change in own.values() if change.has_interval), None)
  if tested is None:
    return f"{text}: no difference can be detected, as a single worst client has no interval."
  small = [metric for metric, change in own.items() if change.is_detected]
  if small:
    what = " and ".join(map(evidence.metric_name, small))
    return f"{text}: {method.label} changes {what} by too little, or not in each seed."
  text += f": no detectable difference in {evidence.metric_name(tested.metric)}"
  more = tested.enough() if tested.value < 0 else None
  if more is None:
    width = e.unit.number((tested.high - tested.low) / 2)
    return f"{text}; {e.num_clients} test clients show a change of {width}{e.unit.change} or more."
  number, noun = more
  count = "more than a thousand" if number > 1000 else f"about {number}"
  return f"{text}; detecting a change as large as the one seen takes {count} {noun}s (80 % power)."


def _without_comparison(e: evidence.Evidence) -> str:
  """Says the tail of the best method, and what is missing for a comparison."""
  leading = e.groups.leading
  unit, lead = leading.unit, leading.p90
  tails = e.groups.lowest_means(lead)
  if not tails:
    return f"No method reports {evidence.metric_name(lead)}."
  baselines = names.baselines(tails)
  rivals = [method for method in tails if method in baselines]
  others = (method for method in tails if not method.is_fed_avg)
  best = rivals[0] if rivals else next(others, next(iter(tails)))
  level = f"With {best.label}, {evidence.metric_name(lead)} is {unit.text(tails[best])}"
  if rivals:
    fed_avg = names.said_of(baselines[best])
    before = unit.text(tails[baselines[best]])
    return (
      f"{level}, and with {fed_avg} {before}; the two share no seed, so there is no comparison that"
      " the seeds do not spoil."
    )
  missing = "another method" if best.is_fed_avg else names.said_of(best.fed_avg)
  return f"{level}; there is no result of {missing} to compare with."


class Verdict(NamedTuple):
  """A decision: when it holds, and its sentence. Each takes an `Evidence` that has a mean."""

  holds: Callable[[evidence.Evidence], bool]
  say: Callable[[evidence.Evidence], str]


VERDICTS = {
  "far client": Verdict(lambda e: e.far is not None, of_rows.far),
  "gross errors": Verdict(lambda e: any(one["decides"] for one in e.facts("gross")), of_rows.gross),
  "personalise": Verdict(
    lambda e: _are_far_ahead(e.personal),
    lambda e: f"Personalise, as these clients differ: {personal.sentence(e)}",
  ),
  "own models": Verdict(lambda e: _are_far_ahead(e.own), _own_models),
  "quantity": Verdict(
    lambda e: bool(e.best in e.constant and not e.learned and _hint(e)), _quantity
  ),
  "rare class": Verdict(_misses_the_rare, _rare),
  "train longer": Verdict(_is_too_short, _train),
  "few clients": Verdict(lambda e: 0 < e.num_clients < evidence.FEWEST, _more_clients),
  "not learned": Verdict(
    lambda e: bool(e.best in e.constant and not e.learned and e.facts("ranks")), of_rows.not_learned
  ),
  "nothing learned": Verdict(lambda e: e.best in e.constant and not e.learned, _nothing),
  "no comparison": Verdict(lambda e: not e.ranked, _without_comparison),
  "more seeds": Verdict(lambda e: bool(e.effects[True]) and not e.is_repeated, _more_seeds),
  "trade-off": Verdict(lambda e: bool(e.effects[True] and e.effects[False]), _trade),
  "take": Verdict(lambda e: bool(e.effects[True]), _take),
  "keep": Verdict(lambda e: True, _keep),
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
  text = "\n".join(f"{start}{decided.text}" for start, decided in zip(starts, decisions))
  return Decision(first.key, text, next(compared_at, first.evidence))


def _of_one_budget(e: evidence.Evidence) -> Decision:
  """Decides what runs that can be compared with each other say."""
  if not e.levels:
    return Decision("no comparison", _without_comparison(e), e)
  key, verdict = next(entry for entry in VERDICTS.items() if entry[1].holds(e))
  rest = " ".join([*_numbers(e, key), *_caveats(e, key)])
  return Decision(key, f"{verdict.say(e)}\n{rest}".strip(), e)


def _numbers(e: evidence.Evidence, key: str) -> Iterator[str]:
  """Yields what changes from the baseline to the chosen method, with intervals."""
  if e.ranked:
    method, baseline, own = e.chosen
    effects = ", ".join(e.effect(change, with_interval=True) for change in own.values())
    first, _, last = effects.rpartition(", " if len(own) > 1 else "\0")
    yield (
      f"Against {names.said_of(baseline)}, {method.label} {f'{first} and ' if first else ''}{last},"
      f" {_extent(own[e.groups.first], e)}."
    )
  if e.personal and key != "personalise":
    yield f"Personal models: {personal.sentence(e)}"
  if key == "personalise":
    yield of_rows.how_clients_differ(e)


def _caveats(e: evidence.Evidence, key: str) -> Iterator[str]:
  """Yields what the numbers leave open."""
  if (missing := e.groups.measure_of_nobody) and e.levels:
    yield f"No test client has a {units.words(missing)}; the report leads with the error."
  if key != "quantity" and (hint := _hint(e)):
    yield hint
  yield from of_rows.caveats(e, is_said=key == "gross errors")
  if e.ended_first:
    who = ", ".join(method.label for method in e.ended_first)
    yield f"Stopped at the first allowed round, as level: {who} (--num_rounds=1000 goes on)."
  if key != "train longer" and e.unfinished:
    who = ", ".join(f"{m.label} after {rounds} rounds" for m, rounds in e.unfinished.items())
    yield f"Not converged yet: {who} (--num_rounds)."
  worse = {m: c for m, c in e.constant.items() if c.is_detected and c.value > 0}
  failed = [
    m for m, c in e.constant.items() if m not in e.learned and m not in worse and c.has_interval
  ]
  if key not in ("nothing learned", "not learned", "few clients") and failed:
    who = ", ".join(method.label for method in failed)
    yield f"Not told from the constant answer on average: {who}."
  if worse and key != "few clients":
    levels = [f"{m.label} ({e.unit.text(c.after)})" for m, c in worse.items()]
    constant = e.unit.text(next(iter(worse.values())).before)
    yield f"Worse than the constant answer ({constant}), beyond chance: {', '.join(levels)}."
  best = e.constant.get(e.best)
  if best is not None and e.best in e.learned and -best.value < _LITTLE * best.before:
    yield f"The features tell little: the constant answer is hardly worse {_levels(e, best)}."
  if not e.ranked:
    return
  method, baseline, own = e.chosen
  left_out = [other.label for other in e.finite if other not in e.ranked]
  if left_out:
    fed_avg = names.said_of(baseline)
    yield f"Fewer seeds are shared with {fed_avg} by {', '.join(left_out)}, which this leaves out."
  if len(e.ranked) > 1:
    yield f"It is the best of {len(e.ranked)} methods; “beyond chance” counts them all (Holm)."
  first = own[e.groups.first]
  if first.num_seeds == 1:
    is_open = first.num_clients > 1
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
