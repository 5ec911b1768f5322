"""What the paper says of private quantiles."""

from __future__ import annotations

from collections.abc import Iterator
import functools

from paper.statements import measurements
from paper.statements import rows

# The mean over theta of max(theta, 1 - theta), which no error exceeds.
_LARGEST_ERROR = 0.72
_SOURCE = "private_quantile"
_FIGURE = rows.Figure(
  "private-quantile-error",
  "Figure 5 with its bound and with our recipe: the error of private quantiles against ε.",
)


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
  error = functools.partial(_error, evidence)
  for epsilon, printed in ((1.0, 0.14), (5.0, 0.03)):
    key = f"quantile_{epsilon:g}"
    found, ours = error("paper", 16, epsilon), error("least_squares", 16, epsilon)
    if found is None or ours is None:
      yield rows.missing(key, _SOURCE)
      continue
    yield rows.Row(
      key,
      f"{found:.3f} by the paper’s recipe; {ours:.3f} by ours, at the same privacy.",
      rows.judge(abs(found - printed) <= 0.15 * printed, rows.Verdict.DIFFERS),
      rule="within 15 %",
      source=_SOURCE,
      figure=_FIGURE if epsilon == 1.0 else None,
    )
  pairs = [
    (error("paper", 10, epsilon), error("paper", 16, epsilon)) for epsilon in (2.0, 5.0, 10.0)
  ]
  if any(value is None for pair in pairs for value in pair):
    yield rows.missing("wraps", _SOURCE)
  else:
    ratios = [few / many for few, many in pairs if few is not None and many]
    yield rows.Row(
      "wraps",
      "With 10 bits the error is "
      + ", ".join(f"{ratio:.1f}" for ratio in ratios)
      + " times that with 16 at ε = 2, 5 and 10.",
      rows.judge(
        ratios[0] < 1.1 and ratios[1] > 1.5 and ratios[2] > 1.5, rows.Verdict.DIFFERS
      ),
      rule="below 1.1 times at ε = 2, above 1.5 times from 5 on; the paper does not give its c",
      source=_SOURCE,
    )
  yield from _of_other_settings(evidence)


def _of_other_settings(evidence: measurements.Evidence) -> Iterator[rows.Row]:
  """Yields the statements on other distributions and more bins."""
  error = functools.partial(_error, evidence)
  pairs = [
    (error("paper", 16, epsilon), error("paper", 16, epsilon, distribution="chi2(4)"))
    for epsilon in (0.5, 1.0, 5.0)
  ]
  known = [(first, second) for first, second in pairs if first is not None and second is not None]
  if len(known) < len(pairs):
    yield rows.missing("similar", _SOURCE)
  else:
    texts = (f"{first:.3f} and {second:.3f}" for first, second in known)
    yield rows.Row(
      "similar",
      f"Uniform and χ² at ε = 0.5, 1 and 5: {'; '.join(texts)}.",
      rows.judge(
        all(abs(second - first) <= 0.15 * first for first, second in known), rows.Verdict.DIFFERS
      ),
      rule="within 15 % of each other",
      source=_SOURCE,
    )
  few, many = error("paper", 16, 1.0), error("paper", 20, 1.0, 1024)
  ours_few, ours_many = error("least_squares", 16, 1.0), error("least_squares", 20, 1.0, 1024)
  if few is None or many is None or ours_few is None or ours_many is None:
    yield rows.missing("more_bins", _SOURCE)
  else:
    yield rows.Row(
      "more_bins",
      f"At ε = 1: {few:.3f} with 64 bins, {many:.3f} with 1024; by our recipe {ours_few:.3f} and"
      f" {ours_many:.3f}.",
      rows.judge(many > few, rows.Verdict.DIFFERS),
      source=_SOURCE,
    )


def of_bounds(evidence: measurements.Evidence) -> Iterator[rows.Row]:
  """Yields the statement of the theorem on the quantile's error."""
  # More bits than are enough change nothing.
  points: dict[tuple[float, float], None] = {}
  for point in evidence.methods("private_quantile"):
    error, bound = (evidence.get("private_quantile", point, name) for name in ("error", "bound"))
    if point.endswith(" paper") and error is not None and bound is not None:
      points[error.mean, bound.mean] = None
  if not points:
    yield rows.missing("theorem_b", _SOURCE)
    return
  share = max(error / bound for error, bound in points)
  vacuous = sum(bound >= _LARGEST_ERROR for _, bound in points)
  yield rows.Row(
    "theorem_b",
    f"{len(points)} points of the paper’s recipe with enough bits: the mean error is at most"
    f" {100 * share:.0f} % of the bound’s mean, which is {_LARGEST_ERROR} or more, as no error can"
    f" be, and so says nothing, at {vacuous} of them.",
    rows.judge(share <= 1.0, rows.Verdict.DIFFERS),
    "Means say nothing of the probability 1 − δ that the theorem names. The proof is √2 better than"
    " the statement.",
    rule="the mean of errors against the mean of bounds",
    source=_SOURCE,
  )
