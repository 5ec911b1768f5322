"""What the paper says of private quantiles."""

from __future__ import annotations

from collections.abc import Iterator
import functools

from paper.statements import measurements
from paper.statements import rows
from paper.statements import sources

# The mean over theta of max(theta, 1 - theta), which no error exceeds.
_LARGEST_ERROR = 0.72
_WHERE = "Section 7.6"


def _error(
  evidence: measurements.Evidence,
  recipe: str,
  bits: int,
  epsilon: float,
  num_bins: int = 64,
  distribution: str = "uniform",
) -> float | None:
  """Returns the mean error that was measured, or None."""
  name = f"{distribution} {num_bins} {bits} {epsilon} {recipe}"
  value = evidence.get("private_quantile", name, "error")
  return None if value is None else value.mean


def of_quantiles(evidence: measurements.Evidence) -> Iterator[rows.Row]:
  """Yields the statements on private quantiles."""
  where, command = _WHERE, sources.SOURCES["private_quantile"].command

  error = functools.partial(_error, evidence)
  for epsilon, printed in ((1.0, 0.14), (5.0, 0.03)):
    says = f"The error is {printed:g} at ε = {epsilon:g} for 256 uniform values and 64 bins"
    found, ours = error("paper", 16, epsilon), error("least_squares", 16, epsilon)
    if found is None or ours is None:
      yield rows.missing(where, says, command)
      continue
    yield rows.Row(
      where,
      says,
      f"{found:.3f} by the paper’s recipe; {ours:.3f} by ours, at the same privacy.",
      rows.judge(abs(found - printed) <= 0.15 * printed),
    )
  says = "With 10 bits the sums wrap at ε of 5 and more"
  pairs = [
    (error("paper", 10, epsilon), error("paper", 16, epsilon)) for epsilon in (2.0, 5.0, 10.0)
  ]
  if any(value is None for pair in pairs for value in pair):
    yield rows.missing(where, says, command)
  else:
    ratios = [few / many for few, many in pairs if few is not None and many]
    yield rows.Row(
      where,
      says,
      "With 10 bits the error is "
      + ", ".join(f"{ratio:.1f}" for ratio in ratios)
      + " times that with 16 at ε = 2, 5 and 10.",
      rows.judge(ratios[0] < 1.1 and ratios[1] > 1.5 and ratios[2] > 1.5),
    )
  yield from _of_other_settings(evidence)


def _of_other_settings(evidence: measurements.Evidence) -> Iterator[rows.Row]:
  """Yields the statements on other distributions and more bins."""
  where, command = _WHERE, sources.SOURCES["private_quantile"].command
  error = functools.partial(_error, evidence)
  says = "The results are similar for the other settings, such as the χ² distribution"
  pairs = [
    (error("paper", 16, epsilon), error("paper", 16, epsilon, distribution="chi2(4)"))
    for epsilon in (0.5, 1.0, 5.0)
  ]
  known = [(first, second) for first, second in pairs if first is not None and second is not None]
  if len(known) < len(pairs):
    yield rows.missing(where, says, command)
  else:
    texts = (f"{first:.3f} and {second:.3f}" for first, second in known)
    yield rows.Row(
      where,
      says,
      f"Uniform and χ² at ε = 0.5, 1 and 5: {'; '.join(texts)}.",
      rows.judge(all(abs(second - first) <= 0.15 * first for first, second in known)),
    )
  says = "The error is higher with more bins than values"
  few, many = error("paper", 16, 1.0), error("paper", 20, 1.0, 1024)
  ours_few, ours_many = error("least_squares", 16, 1.0), error("least_squares", 20, 1.0, 1024)
  if few is None or many is None or ours_few is None or ours_many is None:
    yield rows.missing(where, says, command)
  else:
    yield rows.Row(
      where,
      says,
      f"At ε = 1: {few:.3f} with 64 bins, {many:.3f} with 1024; by our recipe {ours_few:.3f} and"
      f" {ours_many:.3f}.",
      rows.judge(many > few),
    )


def of_bounds(evidence: measurements.Evidence) -> Iterator[rows.Row]:
  """Yields the statement of the theorem on the quantile's error."""
  where, says = "Section 5.2, theorem (b)", "The quantile’s error is at most its bound"
  # More bits than are enough change nothing.
  points: dict[tuple[float, float], None] = {}
  for point in evidence.methods("private_quantile"):
    error, bound = (evidence.get("private_quantile", point, name) for name in ("error", "bound"))
    if point.endswith(" paper") and error is not None and bound is not None:
      points[error.mean, bound.mean] = None
  if not points:
    yield rows.missing(where, says, sources.SOURCES["private_quantile"].command)
    return
  share = max(error / bound for error, bound in points)
  vacuous = sum(bound >= _LARGEST_ERROR for _, bound in points)
  yield rows.Row(
    where,
    says,
    f"{len(points)} points of the paper’s recipe with enough bits: the mean error is at most"
    f" {100 * share:.0f} % of the bound’s mean, which is {_LARGEST_ERROR} or more, as no error can"
    f" be, and so says nothing, at {vacuous} of them.",
    rows.judge(share <= 1.0),
    "Means say nothing of the probability 1 − δ that the theorem names. The proof is √2 better than"
    " the statement.",
  )
