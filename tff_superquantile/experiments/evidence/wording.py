"""What each verdict of `decision` says: few words, why, a box of numbers, and what to run next."""

from __future__ import annotations

from tff_superquantile.experiments.config import names
from tff_superquantile.experiments.config import personal as parts
from tff_superquantile.experiments.evidence import bootstrap
from tff_superquantile.experiments.evidence import boxes
from tff_superquantile.experiments.evidence import evidence
from tff_superquantile.experiments.evidence import of_rows
from tff_superquantile.experiments.evidence import personal
from tff_superquantile.experiments.pages import answer
from tff_superquantile.experiments.pages import tables
from tff_superquantile.experiments.pages import units
from tff_superquantile.experiments.references import kept
from tff_superquantile.experiments.run import asked
from tff_superquantile.experiments.run import cross_validation


def hint(e: evidence.Evidence) -> str:
  """Returns what may be wrong with classes of a table's labels, whose kind nobody has named."""
  run = e.groups.runs[0]
  are_numbers = all(name.lstrip("-").isdecimal() for name in run.classes or ("",))
  if "label_kind" in run.flags or not are_numbers:
    return ""
  from tasks.own import labels  # It imports TensorFlow, which takes longer than a report.

  return labels.hint(run.classes)


def far(e: evidence.Evidence) -> answer.Answer:
  assert e.far is not None
  client, share, number = e.far
  who = f"client {names.printable(client)}"
  losses = f"it has {units.PERCENT.text(share)} of the losses of all {number} clients"
  why = "So it decides the mean, the tail and what training looks for."
  return answer.Answer(
    f"Look at {who} first: {losses}.", (f"{why} Mend its rows or leave it out, and compare again.",)
  )


def personalise(e: evidence.Evidence) -> answer.Answer:
  method = e.chosen[1] if e.ranked else e.best
  return answer.Answer(
    "Personalise: clients differ, and what each keeps of the shared model and its own serves it far"
    " better than the shared one.",
    (_capitalised(personal.sentence(e)), of_rows.how_clients_differ(e)),
    boxes.of_personal(e, method),
  )


def own_models(e: evidence.Evidence) -> answer.Answer:
  advice = "Do not federate" if e.personal else "Personalise (--personalize), or do not federate"
  return answer.Answer(
    f"{advice}: clients’ own models are far ahead of the best shared one.",
    (of_rows.how_clients_differ(e),),
    boxes.of_own(e),
    "" if e.personal else asked.again(e.groups.runs[0], personalize=parts.CHOSEN),
  )


def train(e: evidence.Evidence) -> answer.Answer:
  run = e.groups.runs[0]
  config = next((run.config for run in e.groups.runs if run.config is not None), None)
  rounds = max((run.last_round or 0 for run in cross_validation.single(e.groups.runs)), default=0)
  is_own = config is not None and config.task.name == "own" and config.stop != "converged"
  flag = f"Pass --num_rounds={4 * rounds}, say."
  command = asked.again(run, "quick", num_rounds=4 * rounds)
  if is_own:
    flag = "Leave out --num_rounds and --quick, and runs go on until they have converged."
    command = asked.again(run, "quick", "num_rounds")
  elif e.pooled is not None and not e.unfinished:
    flag = "Its training loss has settled, so try another --client_learning_rate."
    command = ""
  if not evidence.is_far_ahead(e.pooled):
    who = " and ".join(method.label for method in list(e.unfinished)[:2])
    words = f"Train longer before you compare: after {rounds} rounds {who} still improved."
    return answer.Answer(words, (flag,), command=command)
  words = (
    f"Train longer before you compare: after {rounds} rounds {e.best.label} is far behind a fit of"
    " all examples in one place."
  )
  models = {"all examples in one place": kept.POOLED, e.best.label: e.best}
  return answer.Answer(words, (flag,), boxes.of_models(e, models), command)


def more_clients(e: evidence.Evidence) -> answer.Answer:
  run = e.groups.runs[0]
  offer = cross_validation.offer(run)
  flag = f"{offer}." if offer else "More --seeds draw others."
  return answer.Answer(
    f"Test on more clients: {tables.plural(e.num_clients, 'test client')} cannot tell methods"
    f" apart, as fewer than {bootstrap.FEWEST} could not even if all changed alike.",
    (flag, "So few cannot tell a method from the constant answer, either."),
    boxes.of_constant(e) if e.best in e.constant else None,
    asked.again(run, folds=5) if offer else "",
  )


def quantity(e: evidence.Evidence) -> answer.Answer:
  return answer.Answer(
    "Say first what the labels are: so far no method is better than the constant answer.",
    (hint(e),),
    boxes.of_constant(e),
    asked.again(e.groups.runs[0], label_kind="number"),
  )


def rare(e: evidence.Evidence) -> answer.Answer:
  leading, flags = e.groups.leading, {"class_weights": "balanced"}
  if leading.name != "balanced_error":
    flags["metric"] = "balanced_error"
  typed = " ".join(f"--{name}={value}" for name, value in flags.items())
  return answer.Answer(
    f"Train with {typed}: the ranking error shows that the features tell the rarer class, but"
    f" {e.best.label} hardly answers it.",
    (),
    boxes.of_constant(e, "ranking_error", leading.name),
    asked.again(e.groups.runs[0], **flags),
  )


def nothing(e: evidence.Evidence) -> answer.Answer:
  why = (f"That answer is {e.references.description(kept.CONSTANT)}.",)
  if e.constant[e.best].value < 0:
    what = "anything is learned at this budget" if e.is_private else "the features tell the label"
    of_whom = f"with {tables.plural(e.num_clients, 'test client')}, {e.best.label}"
    words = f"It is not shown that {what}: {of_whom} cannot be told from the constant answer."
    return answer.Answer(words, why, boxes.of_constant(e))
  start = "The features do not tell the label"
  if e.is_private:
    start = "Nothing is learned at this budget"
  words = f"{start}: no method is better than the constant answer."
  return answer.Answer(words, why, boxes.of_constant(e))


def take(e: evidence.Evidence) -> answer.Answer:
  method, baseline, own = e.chosen
  metric = e.effects[True][0]
  effect = e.unit.effect(own[metric].value, evidence.short_name(metric))
  return answer.Answer(
    f"Take {method.label}: against {names.fed_avg_phrase(baseline)} it {effect}, beyond chance, and"
    " no rise of 2 % or more is."
  )


def more_seeds(e: evidence.Evidence) -> answer.Answer:
  method, baseline, own = e.chosen
  metric = e.effects[True][0]
  effect = e.unit.effect(own[metric].value, evidence.short_name(metric))
  return answer.Answer(
    f"Keep {names.fed_avg_phrase(baseline)}, but run more seeds: {method.label} {effect}, beyond"
    " chance, in a single seed.",
    ("--seeds=0,1,2 repeats it on other clients.",),
    command=asked.again(e.groups.runs[0], seeds=range(3)),
  )


def trade(e: evidence.Evidence) -> answer.Answer:
  method, baseline, _ = e.chosen
  lower, higher = (" and ".join(map(evidence.short_name, e.effects[k])) for k in (True, False))
  return answer.Answer(
    f"Choose what counts: against {names.fed_avg_phrase(baseline)}, {method.label} lowers {lower}"
    f" and raises {higher}, beyond chance."
  )


def keep(e: evidence.Evidence) -> answer.Answer:
  method, baseline, own = e.chosen
  text = f"Keep {names.fed_avg_phrase(baseline)}"
  if e.effects[False]:
    higher = " and ".join(map(evidence.short_name, e.effects[False]))
    return answer.Answer(
      f"{text}: {method.label} lowers nothing beyond chance, and raises {higher}."
    )
  tested = next((change for change in own.values() if change.has_interval), None)
  if tested is None:
    return answer.Answer(f"{text}: no difference can be detected, as none has an interval.")
  small = [metric for metric, change in own.items() if change.is_detected]
  if small:
    what = " and ".join(map(evidence.short_name, small))
    return answer.Answer(
      f"{text}: {method.label} changes {what} by too little, or not in each seed."
    )
  text += f": no detectable difference in {evidence.short_name(tested.metric)}."
  more = tested.enough() if tested.value < 0 else None
  if more is None:
    width = f"{e.unit.number((tested.high - tested.low) / 2)}{e.unit.change}"
    clients = tables.plural(e.num_clients, "test client")
    return answer.Answer(text, (f"{clients} show a change of {width} or more.",))
  number, noun = more
  count = "more than a thousand" if number > 1000 else f"about {number}"
  why = f"Detecting a change as large as the one seen takes {count} {noun}s (80 % power)."
  return answer.Answer(text, (why,))


def without_comparison(e: evidence.Evidence) -> answer.Answer:
  """Says the tail of the best method, and what is missing for a comparison."""
  leading = e.groups.leading
  unit, lead = leading.unit, leading.p90
  tails = e.groups.lowest_means(lead)
  if not tails:
    return answer.Answer(f"No method reports {evidence.metric_name(lead)}.")
  baselines = names.baselines(tails)
  rivals = [method for method in tails if method in baselines]
  others = (method for method in tails if not method.is_fed_avg)
  best = rivals[0] if rivals else next(others, next(iter(tails)))
  level = f"With {best.label}, {evidence.short_name(lead)} is {unit.text(tails[best])}"
  if rivals:
    fed_avg = names.fed_avg_phrase(baselines[best])
    before = unit.text(tails[baselines[best]])
    why = "Without a shared seed there is no comparison that the seeds do not spoil."
    return answer.Answer(f"{level}, and with {fed_avg} {before}; the two share no seed.", (why,))
  missing = "another method" if best.is_fed_avg else names.fed_avg_phrase(best.fed_avg)
  words = f"{level}; there is no result of {missing} to compare with."
  return answer.Answer(words, (), boxes.of_constant(e) if best in e.constant else None)


def _capitalised(text: str) -> str:
  return text[:1].upper() + text[1:]
