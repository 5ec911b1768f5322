"""What the paper says of private quantiles."""

from __future__ import annotations

from collections.abc import Iterator
import functools
import itertools
import math

import numpy as np

from paper.statements import measurements
from paper.statements import rows
from privacy.noise import shares
from privacy.noise import tree_mechanism

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
    papers, ours = error("paper", 16, epsilon), error("least_squares", 16, epsilon)
    if papers is None or ours is None:
      yield rows.missing(key, _SOURCE)
      continue
    yield rows.Row(
      key,
      f"{papers:.3f} by the paper’s recipe; {ours:.3f} by ours, at the same privacy.",
      rows.judge(abs(papers - printed) <= 0.15 * printed, rows.Verdict.DIFFERS),
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
      rows.judge(ratios[0] < 1.1 and ratios[1] > 1.5 and ratios[2] > 1.5, rows.Verdict.DIFFERS),
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
    f" {100 * share:.0f} % of the bound’s mean. At {vacuous} of them the bound says nothing: it is"
    f" {_LARGEST_ERROR} or more, as no error can be.",
    rows.judge(share <= 1.0, rows.Verdict.DIFFERS),
    "The probability 1 − δ is not checked. The proof is √2 better than the statement.",
    rule="the mean of errors against the mean of bounds",
    source=_SOURCE,
  )


def lemma_epsilon(sensitivity: float, dimension: float, sigma: float, num_clients: int) -> float:
  """Returns the concentrated epsilon of the lemma on sums of discrete Gaussians.

  The sum, of d entries, has the sensitivity S without noise; sigma is the noise of each of n
  clients.
  """
  psi = shares.sum_slack(sigma, num_clients)
  scale = sensitivity / (math.sqrt(num_clients) * sigma)
  return min(math.sqrt(scale**2 + psi * dimension / 2), scale + psi * math.sqrt(dimension))


def of_theorem() -> Iterator[rows.Row]:
  """Yields the statements around the theorem on private quantiles, and on its histograms."""
  ratio = math.sqrt(math.log2(64))
  yield rows.Row(
    "sensitivity",
    "The proof takes c log₂ b, the sketch of it (line 1258) c. A report has log₂ b ones: its"
    f" Euclidean norm is c √(log₂ b), for b = 64 a share of 1 / {ratio:.2f} of the proof’s.",
    rows.judge(abs(ratio - 1.0) < 1e-9, rows.Verdict.INCONSISTENT),
    "The theorem stands with the larger value, at the price of that much more noise.",
  )
  grid = list(itertools.product((4, 16, 64, 1024), (0.5, 0.7, 1.0, 3.0), (10, 100, 2500)))
  least = min(
    lemma_epsilon(math.log2(bins), 2 * bins, sigma, num)
    / lemma_epsilon(math.sqrt(math.log2(bins)), 2 * bins - 2, sigma, num)
    for bins, sigma, num in grid
  )
  yield rows.Row(
    "theorem_a",
    f"{len(grid)} settings of b, σ and n with c = 1: it is at least {least:.2f} times what the"
    " paper’s lemma gives with the true sensitivity and the true dimension 2 b − 2.",
    rows.judge(least >= 1.0, rows.Verdict.FALSE),
    "The lemma, of Kairouz et al., is not checked here.",
  )
  ratios = [largest_error(bins, 1e-5) / math.log2(bins) ** 2 for bins in (16, 64, 256, 1024)]
  yield rows.Row(
    "log_squared",
    "The bound of theorem (b) at the noise that the paper chooses, δ = 1e-5, is"
    f" {', '.join(f'{ratio:.1f}' for ratio in ratios)} log₂² b / (ε n) for b = 16, 64, 256, 1024.",
    rows.judge(max(ratios) == ratios[0], rows.Verdict.FALSE),
    "The constant falls with b; it hides √log(1 / δ).",
  )
  slopes = []
  for low in (1e3, 1e6):
    moduli = [least_modulus(1.0, math.sqrt(n), n, 64, 1e-5) for n in (low, 1e3 * low)]
    slopes.append(math.log(moduli[1] / moduli[0]) / math.log(1e3))
  yield from _of_modulus()
  yield rows.Row(
    "communication",
    "With σ = 1, c = √n and b = 64 the theorem’s modulus grows as n to the power of"
    f" {slopes[0]:.2f} from 10³ to 10⁶ and {slopes[1]:.2f} from 10⁶ to 10⁹: 3/2. With 2 b − 2"
    " entries of n clients that is O(b n log n) bits.",
    rows.judge(abs(slopes[1] - 1.5) < 0.02, rows.Verdict.FALSE),
    rule="within 0.02 of 3/2",
  )
  yield from _of_histograms()


def largest_error(num_bins: int, delta: float) -> float:
  """Returns theorem (b)'s error without R* at the noise that the paper chooses, times epsilon n.

  sqrt(4 (sigma / c)^2 / n log2 b log(4 b / delta)) with sigma / c = log2 b / (epsilon sqrt(n)).
  """
  levels = math.log2(num_bins)
  return math.sqrt(4 * levels**2 * levels * math.log(4 * num_bins / delta))


def least_modulus(
  sigma: float, scale: float, num_clients: float, num_bins: int, delta: float
) -> float:
  """Returns the theorem's least M, 2 + 2 c n + 2 n sqrt(2 sigma^2 log(16 n b / delta))."""
  noise = math.sqrt(2 * sigma**2 * math.log(16 * num_clients * num_bins / delta))
  return 2 + 2 * scale * num_clients + 2 * num_clients * noise


def wrap_chance(sigma: float, num_clients: int, num_bins: int, delta: float) -> float:
  """Bounds the chance that a sum wraps with the least modulus M of the theorem.

  With c + |xi| <= (M - 2) / (2 n) for each entry of each client, no sum wraps. Each xi, of a
  client's noise sigma, is beyond t = sqrt(2 sigma^2 log(16 n b / delta)) with the probability of a
  discrete Gaussian's tails.
  """
  # That of (M - 2) / (2 n) which is above c.
  least = (least_modulus(sigma, 0.0, num_clients, num_bins, delta) - 2) / (2 * num_clients)
  numbers = np.arange(math.ceil(least + 40 * sigma) + 1)
  masses = np.exp(-(numbers**2) / (2 * sigma**2))
  beyond = 2 * masses[numbers > least].sum() / (2 * masses.sum() - 1)
  return float(num_clients * (2 * num_bins - 2) * beyond)


def _of_modulus() -> Iterator[rows.Row]:
  """Yields whether the modulus of the theorem is enough, and how much less is."""
  grid = list(itertools.product((0.5, 0.7, 1.0, 3.0), (10, 100, 2500), (4, 64, 1024), (0.1, 1e-6)))
  share = max(4 * wrap_chance(*setting) / setting[-1] for setting in grid)
  tree = tree_mechanism.build_tree_mechanism(2.0, num_bins=64, expected_clients=100)
  printed = least_modulus(tree.local_stddev, 5.0, 100, 64, 1e-6)
  yield rows.Row(
    "modulus",
    f"{len(grid)} settings of σ, n, b and δ, by the tails of discrete Gaussians: the chance that a"
    f" sum wraps is at most {100 * share:.0f} % of the δ / 4 that the proof allows.",
    rows.judge(share <= 1.0, rows.Verdict.FALSE),
    "It bounds the noise of each report, while that of the sum grows as √n: with n = 100, b = 64,"
    f" c = 5, σ = {tree.local_stddev:.2f} and δ = 1e-6 it is {printed:.0f}, and"
    f" {tree.modulus} are enough. Sums may be below 0: mod M has to be the remainder nearest"
    " to 0, as in the proof’s event.",
  )


def _of_histograms() -> Iterator[rows.Row]:
  """Yields the statements on the hierarchical histogram and its noise."""
  edges = np.arange(65) / 64
  values = edges[:-1] + 1e-3
  filled = sum(edges[j] <= value < edges[j] for j in range(1, 65) for value in values)
  right = sum(edges[j - 1] <= value < edges[j] for j in range(1, 65) for value in values)
  yield rows.Row(
    "bins",
    "At level r = 0 the two ends are one: of 64 losses, one in each bin,"
    f" {filled} are counted. From l_(2^r (j − 1)) on {right} are.",
    rows.judge(filled == 64, rows.Verdict.MISPRINT if right == 64 else rows.Verdict.FALSE),
    "Also, losses of B or more, and so all that are clipped to B, are in no bin.",
  )
  entries = sum(64 >> level for level in range(6))
  yield rows.Row(
    "dimension",
    f"Levels 0 to log₂ b − 1 of b = 64 bins have {entries} entries; 2 (b − 2) is 124. Line 2737 has"
    " 2 b − 2.",
    rows.judge(entries == 124, rows.Verdict.MISPRINT),
  )
  slack, bound = shares.sum_slack(1.0, 100), 10 * 99 * math.exp(-2 * math.pi**2)
  yield rows.Row(
    "psi",
    f"At σ = 1 and n = 100 the sum is {slack:.0e}, the bound beside it {bound:.0e}: each term has"
    " i / (i + 1) in the exponent, a half at first.",
    rows.judge(slack <= bound, rows.Verdict.FALSE),
    "ε uses the sum, so that no guarantee depends on it.",
  )
  yield rows.Row(
    "no_scale",
    "The noise of Ĥ is ξ / c, as a few lines before; without 1 / c the event E_diff is about"
    " another scale. The theorem has the c.",
    rows.Verdict.MISPRINT,
    by_reading=True,
  )
