"""What the paper's text says of its experiments, by our comparisons of all methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from paper.statements import measurements
from paper.statements import rows
from paper.statements import sources
from tff_superquantile.experiments.report import tables

MEAN = "test.error.mean"
_DELTA_FL = "Superquantile"
_VANILLA = ("FedAvg", "FedProx")
# From a source to (what was found, whether the statement holds, why not); None if the source has
# too little.
_Answer = tuple[str, bool, str] | None
_Check = Callable[[measurements.Evidence, str], _Answer]
# Our comparisons of all methods, and what to call their data; empty for the paper's.
_COMPARISONS = {
  "synthetic": "the synthetic task",
  "emnist_linear": f"{sources.DIGITS} (linear)",
  "emnist_convnet": f"{sources.DIGITS} (ConvNet)",
}


def _rivals(evidence: measurements.Evidence, source: str) -> list[str]:
  """Returns the paper's methods besides its own."""
  families = (*_VANILLA, "q-FFL", "Tilted-ERM", "AFL")
  return [method for method in evidence.methods(source) if method.startswith(families)]


def _plain(evidence: measurements.Evidence, source: str) -> list[str]:
  """Returns the superquantile methods of the paper, by falling theta."""
  found = [m for m in evidence.methods(source, _DELTA_FL) if "," not in m and "θ" in m]
  return sorted(found, key=lambda method: -_theta(method))


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
  evidence: measurements.Evidence,
  where: str,
  says: str,
  check: _Check,
) -> Iterator[rows.Row]:
  """Yields a row for each comparison that was measured.

  Args:
    evidence: The measurements.
    where: The place in the paper.
    says: The statement.
    check: Decides it by one source.
  """
  for source, title in _COMPARISONS.items():
    command = sources.SOURCES[source].command
    answer = check(evidence, source) if evidence.has(source) else None
    if answer is None:
      yield rows.missing(where, f"{says} ({title})", command)
      continue
    found, holds, why = answer
    of_fed_avg = evidence.get(source, "FedAvg", MEAN)
    over = f" ({tables.plural(of_fed_avg.num_seeds, 'seed')})" if of_fed_avg else ""
    yield rows.Row(where, says, f"{found}{over}.", rows.judge(holds), why, title)


def _smallest_tail(evidence: measurements.Evidence, source: str) -> _Answer:
  thetas, rivals = _plain(evidence, source), _rivals(evidence, source)
  if not thetas or not rivals:
    return None
  (ours, tail), (other, rival) = (
    _lowest(evidence, source, methods, tables.P90) for methods in (thetas, rivals)
  )
  found = f"{ours} {tail.in_percent()}, {other} {rival.in_percent()}; {_apart(tail, rival)}"
  # The rival's lead has to be more than chance before the statement fails.
  return found, tail.mean <= rival.mean + rival.spread, ""


def _interpolates(evidence: measurements.Evidence, source: str) -> _Answer:
  chain = ["FedAvg", *_plain(evidence, source), *evidence.methods(source, "AFL")]
  if len(chain) < 4:
    return None
  found, turning = [], []
  for metric, name in ((MEAN, "Mean error"), (tables.P90, "90th percentile")):
    known = evidence.get_all(source, chain, metric)
    if len(known) < len(chain):
      return None
    texts = (f"{m.removeprefix('Superquantile ')} {v.in_percent()}" for m, v in known.items())
    found.append(f"{name}: {', '.join(texts)}")
    if not measurements.is_monotone(list(known.values())):
      turning.append(name.lower())
  why = f"On the way there is a turn of more than one sd: {', '.join(turning)}." * bool(turning)
  return ". ".join(found), not turning, why


def _afl_is_worst(evidence: measurements.Evidence, source: str) -> _Answer:
  afl = evidence.best(source, "AFL")
  others = [m for m in (*_rivals(evidence, source), *_plain(evidence, source)) if m != afl]
  if afl is None or not others:
    return None
  found, holds = [], True
  for metric, name in ((MEAN, "mean"), (tables.P90, "p90")):
    known = evidence.get_all(source, (afl, *others), metric)
    highest = max(known, key=lambda method: known[method].mean)
    own = known.get(afl)
    holds &= highest == afl
    found.append(f"{name} {own.in_percent() if own else '–'}, the highest is {highest}")
  return "; ".join(found), holds, "" if holds else "Its tail is among the low ones there."


def _fewer_do_not_help(evidence: measurements.Evidence, source: str) -> _Answer:
  found, failing = [], []
  for method in _plain(evidence, source):
    theta = f"θ = {_theta(method):g}"
    sub = evidence.get(source, f"FedAvg-Sub {theta}", tables.P90)
    tail = evidence.get(source, method, tables.P90)
    if sub is not None and tail is not None:
      found.append(f"{theta}: {sub.in_percent()} against {tail.in_percent()}")
      failing += [theta] * (tail.mean >= sub.mean)
  why = f"With {' and '.join(failing)} as few clients are as good." * bool(failing)
  return (f"FedAvg-Sub at {'; '.join(found)}", not failing, why) if found else None


def _mean_is_competitive(evidence: measurements.Evidence, source: str) -> _Answer:
  thetas = [method for method in _plain(evidence, source) if _theta(method) >= 0.5]
  known = evidence.get_all(source, ("FedAvg", *thetas), MEAN)
  if "FedAvg" not in known or len(known) < 2:
    return None
  own = known["FedAvg"]
  holds = all(value.mean <= own.mean + own.spread for value in known.values())
  return ", ".join(f"{m} {v.in_percent()}" for m, v in known.items()), holds, ""


def _clients_vary_less(evidence: measurements.Evidence, source: str) -> _Answer:
  methods = ("FedAvg", *_plain(evidence, source))
  known = evidence.get_all(source, methods, "test.error.std")
  if "FedAvg" not in known or len(known) < 2:
    return None
  lower = [m for m, v in known.items() if v.mean < known["FedAvg"].mean]
  found = ", ".join(f"{m} {v.in_percent()}" for m, v in known.items())
  return f"Sd over clients: {found}", 2 * len(lower) > len(known) - 1, ""


# The place in the paper, the statement, and what checks it.
_STATEMENTS: Sequence[tuple[str, str, _Check]] = (
  (
    "Section 7.3",
    "Delta-FL has the lowest 90th percentile of all methods, or is within one sd of it",
    _smallest_tail,
  ),
  ("Section 7.3", "Delta-FL interpolates between FedAvg (θ to 1) and AFL (θ to 0)", _interpolates),
  (
    "Section 7.3",
    "AFL (q-FFL with q = 10) has the highest error in the mean and at the 90th percentile",
    _afl_is_worst,
  ),
  (
    "Section 7.2, what FedAvg-Sub is for",
    "It is not the smaller number of clients that helps: FedAvg with as few has a higher tail",
    _fewer_do_not_help,
  ),
  (
    "Section 7.3",
    "Delta-FL with θ of 0.5 or more is competitive in the mean error: within one sd of FedAvg",
    _mean_is_competitive,
  ),
  (
    "Appendix C",
    "The errors of Delta-FL’s clients vary less than FedAvg’s in most cases",
    _clients_vary_less,
  ),
)


def statements(evidence: measurements.Evidence) -> Iterator[rows.Row]:
  """Yields the statements that our comparisons of all methods decide."""
  for where, says, check in _STATEMENTS:
    yield from _for_each_comparison(evidence, where, says, check)


def on_personalization(evidence: measurements.Evidence) -> Iterator[rows.Row]:
  """Yields the statements on personalization."""
  where = "Section 7.5"
  source = sources.SOURCES["personalization"]
  for metric, name in (("mean", "Mean error"), ("p90", "90th percentile")):
    says = f"After personalization FedAvg and Delta-FL are similar, often within one sd: {name}"
    methods = ("FedAvg", *evidence.methods("personalization", _DELTA_FL))
    known = evidence.get_all("personalization", methods, f"after.error.{metric}")
    if "FedAvg" not in known or len(known) < 2:
      yield rows.missing(where, says, source.command)
      continue
    own = known["FedAvg"]
    near = [
      abs(v.mean - own.mean) <= max(v.spread, own.spread) for m, v in known.items() if m != "FedAvg"
    ]
    found = "; ".join(f"{method} {value.in_percent()}" for method, value in known.items())
    yield rows.Row(
      where,
      says,
      f"{found} ({tables.plural(own.num_seeds, 'seed')}). {sum(near)} of {len(near)} are within one"
      " sd of FedAvg.",
      rows.judge(2 * sum(near) >= len(near)),
      "" if own.num_seeds > 1 else "One seed has no sd.",
      source.data,
    )
