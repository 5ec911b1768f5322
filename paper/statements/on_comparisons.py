"""What the paper's text says of its experiments, by our comparisons of all methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import math

from paper.statements import measurements
from paper.statements import rows
from tff_superquantile.experiments.pages import tables

MEAN = "test.error.mean"
_DELTA_FL = "Superquantile"
_VANILLA = ("FedAvg", "FedProx")
# From a source to (what was found, the verdict, why not); None if the source has too little.
_Answer = tuple[str, rows.Verdict, str] | None
_Check = Callable[[measurements.Evidence, str], _Answer]
_DIFFERS, _ELSEWHERE = rows.Verdict.DIFFERS, rows.Verdict.ELSEWHERE
# Our comparisons of all methods.
_COMPARISONS = {
  "synthetic": "the synthetic task", "emnist_linear": "digits, linear",
  "emnist_convnet": "digits, ConvNet", "writers_linear": "EMNIST’s writers, linear",
  "users_linear": "Sent140’s users, linear",
}  # fmt: skip
# Whoever guesses has the logarithm of the number of classes as loss.
_NUM_CLASSES = {"writers_linear": 62, "users_linear": 2}


def _rivals(evidence: measurements.Evidence, source: str) -> list[str]:
  """Returns the paper's methods besides its own."""
  families = (*_VANILLA, "q-FFL", "Tilted-ERM", "AFL")
  return [method for method in evidence.methods(source) if method.startswith(families)]


def _listed(known: Mapping[str, measurements.Value]) -> str:
  texts = (f"{m.removeprefix('Superquantile ')}: {v.in_percent()}" for m, v in known.items())
  return ", ".join(texts)


def _plain(evidence: measurements.Evidence, source: str) -> list[str]:
  """Returns the superquantile methods of the paper, by falling theta."""
  plain = [m for m in evidence.methods(source, _DELTA_FL) if "," not in m and "θ" in m]
  return sorted(plain, key=lambda method: -_theta(method))


def _theta(method: str) -> float:
  return float(method.split("θ = ")[1].split(",")[0])


def _apart(first: measurements.Value, second: measurements.Value) -> str:
  """Says how far two means are apart, and whether that is more than seeds differ."""
  gap = abs(first.mean - second.mean)
  spread = max(first.spread, second.spread)
  size = f"{tables.number(100 * gap, 1)} points apart"
  if min(first.num_seeds, second.num_seeds) == 1:
    return f"{size} with one seed"
  return f"{size}, {'more' if gap > spread else 'less'} than one sd"


def _lowest(
  evidence: measurements.Evidence, source: str, methods: Sequence[str], metric: str
) -> tuple[str, measurements.Value]:
  """Returns the method with the lowest mean, and its value."""
  known = evidence.get_all(source, methods, metric)
  best = min(known, key=lambda method: known[method].mean)
  return best, known[best]


def _for_each_comparison(
  evidence: measurements.Evidence, key: str, about: str, rule: str, check: _Check
) -> Iterator[rows.Row]:
  """Yields a row for each comparison that was measured, for a quotation's key or our own question.

  `about` is that question, empty for a quotation; `check` decides `rule` by one source.
  """
  for source, short in _COMPARISONS.items():
    place = f"{about} By {short}" if about else short
    answer = check(evidence, source) if evidence.has(source) else None
    # Turns are told by the spread over seeds. What was not measured of people is no gap.
    if source in _NUM_CLASSES and (answer is None or check is _interpolates):
      continue
    if answer is None:
      yield rows.missing(key, source, place)
      continue
    outcome, verdict, why = answer
    of_fed_avg = evidence.get(source, "FedAvg", MEAN)
    has_seeds = of_fed_avg is not None and not evidence.is_paired(source)
    over = f" ({tables.plural(of_fed_avg.num_seeds, 'seed')})" if of_fed_avg and has_seeds else ""
    yield rows.Row(key, f"{outcome}{over}.", verdict, why, rule, source, place)


def by_interval(change: measurements.Change) -> tuple[rows.Verdict, str]:
  """Judges a change that is said to be below 0 by its interval over clients, and says why."""
  if change.is_sure:
    return rows.judge(change.value < 0, _DIFFERS, _ELSEWHERE), ""
  why = "It holds in direction, not beyond chance." if change.value < 0 else "A tie."
  return rows.Verdict.UNCHECKED, why


def _smallest_tail(evidence: measurements.Evidence, source: str) -> _Answer:
  thetas, rivals = _plain(evidence, source), _rivals(evidence, source)
  if not thetas or not rivals:
    return None
  (ours, tail), (other, rival) = (
    _lowest(evidence, source, methods, tables.P90) for methods in (thetas, rivals)
  )
  outcome = f"{ours}: {tail.in_percent()}, {other}: {rival.in_percent()}"
  change = evidence.change(source, other, ours, tables.P90)
  if change is not None:
    return f"{outcome}; {change.in_points()}", *by_interval(change)
  outcome += f"; {_apart(tail, rival)}"
  if abs(tail.mean - rival.mean) <= max(tail.spread, rival.spread):
    return outcome, rows.Verdict.UNCHECKED, "A tie."
  return outcome, rows.judge(tail.mean < rival.mean, _DIFFERS, _ELSEWHERE), ""


def _interpolates(evidence: measurements.Evidence, source: str) -> _Answer:
  chain = ["FedAvg", *_plain(evidence, source), *evidence.methods(source, "AFL")]
  if len(chain) < 4:
    return None
  outcomes, turning = [], []
  for metric, name in ((MEAN, "Mean error"), (tables.P90, "90th percentile")):
    known = evidence.get_all(source, chain, metric)
    if len(known) < len(chain):
      return None
    ends = (f"{known[m].in_percent()} ({m})" for m in (chain[0], chain[-1]))
    outcomes.append(f"{name} from {' to '.join(ends)}")
    if not measurements.is_monotone(list(known.values())):
      turning.append(name.lower())
  why = "They do, up to one sd."
  if turning:
    why = f"On the way there is a turn of more than one sd: {', '.join(turning)}."
  return ". ".join(outcomes), rows.Verdict.OURS, why + _unconverged(evidence, source)


def _unconverged(evidence: measurements.Evidence, source: str) -> str:
  """Says that AFL has not converged, where its training loss is near that of guessing."""
  afl, own = (
    evidence.get(source, method, "train.loss.mean")
    for method in (evidence.best(source, "AFL") or "", "FedAvg")
  )
  guessing = math.log(_NUM_CLASSES.get(source, 10))
  if afl is None or afl.mean < 0.9 * guessing:
    return ""
  return f" AFL has not converged: training loss {afl.mean:.2f} (guessing {guessing:.2f}" + (
    f", FedAvg {own.mean:.2f})." if own else ")."
  )


def _afl_is_worst(evidence: measurements.Evidence, source: str) -> _Answer:
  afl = evidence.best(source, "AFL")
  others = [m for m in (*_rivals(evidence, source), *_plain(evidence, source)) if m != afl]
  if afl is None or not others:
    return None
  outcomes, holds = [], True
  for metric, name in ((MEAN, "mean"), (tables.P90, "p90")):
    known = evidence.get_all(source, (afl, *others), metric)
    highest = max(known, key=lambda method: known[method].mean)
    own = known.get(afl)
    holds &= highest == afl
    outcomes.append(f"{name} {own.in_percent() if own else '–'}, highest: {highest}")
  unconverged = _unconverged(evidence, source)
  if unconverged:
    return "; ".join(outcomes), rows.Verdict.UNCHECKED, unconverged.strip()
  return (
    "; ".join(outcomes),
    rows.judge(holds, _DIFFERS, _ELSEWHERE),
    ("Its tail is among the low ones there." * (not holds)),
  )


def _fewer_do_not_help(evidence: measurements.Evidence, source: str) -> _Answer:
  outcomes, failing = [], []
  for method in _plain(evidence, source):
    theta = f"θ = {_theta(method):g}"
    sub = evidence.get(source, f"FedAvg-Sub {theta}", tables.P90)
    tail = evidence.get(source, method, tables.P90)
    if sub is not None and tail is not None:
      outcomes.append(f"{theta}: {sub.in_percent()} against {tail.in_percent()}")
      failing += [theta] * (tail.mean >= sub.mean)
  why = f"With {' and '.join(failing)} as few clients are as good." if failing else "It is."
  return (f"FedAvg-Sub at {'; '.join(outcomes)}", rows.Verdict.OURS, why) if outcomes else None


def _mean_is_competitive(evidence: measurements.Evidence, source: str) -> _Answer:
  thetas = [method for method in _plain(evidence, source) if _theta(method) >= 0.5]
  known = evidence.get_all(source, ("FedAvg", *thetas), MEAN)
  if "FedAvg" not in known or len(known) < 2:
    return None
  own = known["FedAvg"]
  if evidence.is_paired(source):
    changes = {m: evidence.change(source, "FedAvg", m, MEAN) for m in thetas}
    sure = {m: change for m, change in changes.items() if change is not None and change.is_sure}
    above = [f"{m} by {change.in_points()}" for m, change in sure.items() if change.value > 0]
    why = f"Above FedAvg beyond chance: {'; '.join(above)}." if above else ""
    return _listed(known), rows.judge(not above, _DIFFERS, _ELSEWHERE), why
  holds = all(value.mean <= own.mean + own.spread for value in known.values())
  return _listed(known), rows.judge(holds, _DIFFERS, _ELSEWHERE), ""


def _clients_vary_less(evidence: measurements.Evidence, source: str) -> _Answer:
  methods = ("FedAvg", *_plain(evidence, source))
  known = evidence.get_all(source, methods, "test.error.std")
  if "FedAvg" not in known or len(known) < 2:
    return None
  own = known["FedAvg"]
  gaps = {m: v.mean - own.mean for m, v in known.items() if m != "FedAvg"}
  clear = [m for m in gaps if abs(gaps[m]) > max(own.spread, known[m].spread)]
  outcome = f"Sd over clients of {_listed(known)}"
  if not clear:
    return outcome, rows.Verdict.UNCHECKED, "A tie: no θ is more than one sd from FedAvg."
  lower = [m for m, gap in gaps.items() if gap < 0]
  return outcome, rows.judge(2 * len(lower) > len(gaps), _DIFFERS, _ELSEWHERE), ""


# The quotation, or else our question; the criterion; and what checks it.
_STATEMENTS: Sequence[tuple[str, str, str, _Check]] = (
  (
    "smallest", "", "smallest by more than one sd over seeds, the larger of the two, or, of writers"
    " and users, beyond chance; less is a tie",
    _smallest_tail,
  ),
  (
    "", "Do errors go from FedAvg over falling θ to AFL without a turn?",
    "a turn is one of more than one sd", _interpolates,
  ),
  (
    "afl", "", "AFL is q-FFL with q = 10; a training loss above 0.9 of that of guessing has not"
    " converged", _afl_is_worst,
  ),
  ("", "Is the tail of FedAvg with as few clients (FedAvg-Sub) higher?", "means over seeds",
   _fewer_do_not_help),
  (
    "competitive", "", "within one sd of FedAvg or below for each θ of 0.5 or more; of writers and"
    " users, not above it beyond chance", _mean_is_competitive,
  ),
  (
    "vary", "",
    "lower in more than half of the cases; a tie if none is more than one sd over seeds away",
    _clients_vary_less,
  ),
)  # fmt: skip


def statements(evidence: measurements.Evidence) -> Iterator[rows.Row]:
  """Yields the statements that our comparisons of all methods decide."""
  for key, about, rule, check in _STATEMENTS:
    yield from _for_each_comparison(evidence, key, about, rule, check)


def on_personalization(evidence: measurements.Evidence) -> Iterator[rows.Row]:
  """Yields the statement on personalization: how many pairs are near, of mean and p90 together."""
  name = "personalization"
  outcomes, near, total, num_seeds = [], 0, 0, 0
  for metric, title in (("mean", "Mean"), ("p90", "p90")):
    methods = ("FedAvg", *evidence.methods(name, _DELTA_FL))
    known = evidence.get_all(name, methods, f"personal.error.{metric}")
    if "FedAvg" not in known or len(known) < 2:
      yield rows.missing("personal", name, "digits, ConvNet")
      return
    own = known.pop("FedAvg")
    num_seeds, total = own.num_seeds, total + len(known)
    near += sum(abs(v.mean - own.mean) <= max(v.spread, own.spread) for v in known.values())
    texts = (f"{m}: {v.in_percent()}" for m, v in known.items())
    outcomes.append(f"{title} of FedAvg: {own.in_percent()}; {'; '.join(texts)}")
  yield rows.Row(
    "personal",
    f"{'. '.join(outcomes)} ({tables.plural(num_seeds, 'seed')}). {near} of {total} pairs are"
    " within one sd.",
    rows.judge(2 * near >= total, _DIFFERS, _ELSEWHERE),
    "" if num_seeds > 1 else "One seed has no sd.",
    "often is at least half of the pairs of FedAvg and a θ, by the larger sd of the two",
    name,
    "digits, ConvNet",
  )
