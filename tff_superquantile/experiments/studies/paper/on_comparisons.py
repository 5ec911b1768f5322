"""What the paper's text says of its experiments, by our comparisons of all methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import math
from typing import Optional

from tff_superquantile.experiments.report import tables
from tff_superquantile.experiments.studies.paper import evidence as evidence_lib
from tff_superquantile.experiments.studies.paper import rows
from tff_superquantile.experiments.studies.paper import sources

MEAN = "test.error.mean"
_DELTA_FL = "Superquantile"
_VANILLA = ("FedAvg", "FedProx")
# Our comparisons of all methods, and what to call their data; empty for the paper's.
_COMPARISONS = {
  "synthetic": "the synthetic task",
  "emnist_linear": f"{sources.DIGITS} (linear)",
  "emnist_convnet": f"{sources.DIGITS} (ConvNet)",
}


def _rivals(evidence: evidence_lib.Evidence, source: str) -> list[str]:
  """Returns the paper's methods besides its own."""
  families = (*_VANILLA, "q-FFL", "Tilted-ERM", "AFL")
  return [method for method in evidence.methods(source) if method.startswith(families)]


def _plain(evidence: evidence_lib.Evidence, source: str) -> list[str]:
  """Returns the superquantile methods of the paper, by falling theta."""
  found = [m for m in evidence.methods(source, _DELTA_FL) if "," not in m and "θ" in m]
  return sorted(found, key=lambda method: -_theta(method))


def _theta(method: str) -> float:
  return float(method.split("θ = ")[1].split(",")[0])


def _lowest(
  evidence: evidence_lib.Evidence, source: str, methods: Sequence[str], metric: str
) -> tuple[str, evidence_lib.Value]:
  """Returns the method with the lowest mean, and its value."""
  values = {method: evidence.get(source, method, metric) for method in methods}
  known = {method: value for method, value in values.items() if value is not None}
  best = min(known, key=lambda method: known[method].mean)
  return best, known[best]


def _for_each_comparison(
  evidence: evidence_lib.Evidence,
  where: str,
  says: str,
  check: Callable[[str], Optional[tuple[str, bool, str]]],
) -> Iterator[rows.Row]:
  """Yields a row for each comparison that was measured.

  Args:
    evidence: The measurements.
    where: The place in the paper.
    says: The statement.
    check: From a source to (what was found, whether the statement holds, why not); None if the
      source has too little.
  """
  for source, title in _COMPARISONS.items():
    command = sources.SOURCES[source].command
    answer = check(source) if evidence.has(source) else None
    if answer is None:
      yield rows.missing(where, f"{says} ({title})", command)
      continue
    found, holds, why = answer
    yield rows.Row(where, says, f"{found}.", rows.judge(holds), why, title)


def statements(evidence: evidence_lib.Evidence) -> Iterator[rows.Row]:
  """Yields the statements that our comparisons of all methods decide."""

  def smallest_tail(source: str) -> Optional[tuple[str, bool, str]]:
    thetas, rivals = _plain(evidence, source), _rivals(evidence, source)
    if not thetas or not rivals:
      return None
    (ours, tail), (other, rival) = (
      _lowest(evidence, source, methods, tables.P90) for methods in (thetas, rivals)
    )
    # The rival's lead has to be more than chance before the statement fails.
    spread = 0.0 if math.isnan(rival.sd) else rival.sd
    found = f"{ours} {tail.in_percent()}, {other} {rival.in_percent()}"
    return found, tail.mean <= rival.mean + spread, ""

  yield from _for_each_comparison(
    evidence,
    "Section 7.3",
    "Delta-FL has the lowest 90th percentile of all methods (or is within one sd of it)",
    smallest_tail,
  )

  def interpolates(source: str) -> Optional[tuple[str, bool, str]]:
    chain = ["FedAvg", *_plain(evidence, source), *evidence.methods(source, "AFL")]
    values = [evidence.get(source, method, MEAN) for method in chain]
    if len(chain) < 4 or None in values:
      return None
    means = [value.mean for value in values if value is not None]
    found = "Mean error " + ", ".join(
      f"{method.removeprefix('Superquantile ')} {value.in_percent()}"
      for method, value in zip(chain, values)
      if value is not None
    )
    slack = 0.002  # Rounding to a fifth of a point.
    rises = all(later >= earlier - slack for earlier, later in zip(means[1:], means[2:]))
    return found, rises, "" if rises else "The mean does not rise all the way."

  yield from _for_each_comparison(
    evidence,
    "Section 7.3",
    "Delta-FL interpolates between FedAvg (θ to 1) and AFL (θ to 0)",
    interpolates,
  )

  def afl_is_worst(source: str) -> Optional[tuple[str, bool, str]]:
    afl = evidence.best(source, "AFL")
    others = [m for m in (*_rivals(evidence, source), *_plain(evidence, source)) if m != afl]
    if afl is None or not others:
      return None
    found, holds = [], True
    for metric, name in ((MEAN, "mean"), (tables.P90, "p90")):
      values = {method: evidence.get(source, method, metric) for method in (afl, *others)}
      known = {method: value.mean for method, value in values.items() if value is not None}
      highest = max(known, key=known.__getitem__)
      own = values[afl]
      holds &= highest == afl
      found.append(f"{name} {own.in_percent() if own else '–'}, the highest is {highest}")
    return "; ".join(found), holds, "" if holds else "Its tail is among the low ones there."

  yield from _for_each_comparison(
    evidence,
    "Section 7.3",
    "AFL (q-FFL with q = 10) has the highest error in the mean and at the 90th percentile",
    afl_is_worst,
  )

  def fewer_do_not_help(source: str) -> Optional[tuple[str, bool, str]]:
    halves = [
      evidence.get(source, m, tables.P90) for m in ("FedAvg-Sub θ = 0.5", "Superquantile θ = 0.5")
    ]
    if None in halves:
      return None
    sub, tail = (value for value in halves if value is not None)
    found = f"FedAvg-Sub θ = 0.5 {sub.in_percent()}, Superquantile θ = 0.5 {tail.in_percent()}"
    return found, tail.mean < sub.mean, ""

  yield from _for_each_comparison(
    evidence,
    "Section 7.2",
    "It is not the smaller number of clients that helps: FedAvg with as few has a higher tail",
    fewer_do_not_help,
  )

  def mean_is_competitive(source: str) -> Optional[tuple[str, bool, str]]:
    thetas = [m for m in _plain(evidence, source) if _theta(m) >= 0.5]
    own = evidence.get(source, "FedAvg", MEAN)
    if not thetas or own is None:
      return None
    best, value = _lowest(evidence, source, thetas, MEAN)
    found = f"FedAvg {own.in_percent()}, {best} {value.in_percent()}"
    spread = 0.0 if math.isnan(own.sd) else own.sd
    return found, value.mean <= own.mean + spread, ""

  yield from _for_each_comparison(
    evidence,
    "Section 7.3",
    "Delta-FL with θ of 0.5 or more is competitive in the mean error",
    mean_is_competitive,
  )


def on_personalization(evidence: evidence_lib.Evidence) -> Iterator[rows.Row]:
  """Yields the statement on personalization."""
  where = "Section 7.5"
  says = "After personalization FedAvg and Delta-FL are similar, often within one sd"
  source = sources.SOURCES["personalization"]
  values = {
    method: evidence.get("personalization", method, "after.error.p90")
    for method in evidence.methods("personalization")
  }
  own = values.get("FedAvg")
  if own is None:
    yield rows.missing(where, says, source.command)
    return
  known = {method: value for method, value in values.items() if value and _DELTA_FL in method}
  found = "; ".join(f"{m} {v.in_percent()}" for m, v in {"FedAvg": own, **known}.items())
  spread = 0.0 if math.isnan(own.sd) else own.sd
  near = all(abs(value.mean - own.mean) <= max(spread, 0.01) for value in known.values())
  yield rows.Row(where, says, f"90th percentile after: {found}.", rows.judge(near), "", source.data)
