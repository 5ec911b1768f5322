"""What the paper says of quantile and superquantile, by brute force over small cases."""

from __future__ import annotations

from collections.abc import Iterator
import functools
import itertools
import math

import numpy as np
from scipy import optimize
from scipy import special

from paper import smoothed
from paper.statements import rows
from tff_superquantile import superquantile

_NUM_DRAWS = 200
# Rounding differs from machine to machine, and what the page says of it does not.
_EXACT = 1e-9
_NEARLY_EXACT = 1e-6


def _draws() -> Iterator[tuple[np.ndarray, float]]:
  """Yields losses without ties in [0, 1], B = 1, and tail fractions; theta n is often whole."""
  rng = np.random.default_rng(0)
  for _ in range(_NUM_DRAWS):
    losses = rng.uniform(size=int(rng.integers(2, 13)))
    n = len(losses)
    whole = float(rng.integers(1, n + 1) / n)
    yield losses, float(rng.choice([whole, rng.uniform(1 / n, 1.0)]))


def _lower_quantile(losses: np.ndarray, theta: float) -> float:
  """Returns inf{eta: P(Z > eta) <= theta}, the paper's definition."""
  candidates = np.sort(losses)
  above = np.array([np.mean(losses > eta) for eta in candidates])
  return float(candidates[above <= theta + _EXACT][0])


def _upper_quantile(losses: np.ndarray, theta: float) -> float:
  """Returns the least loss l with #{losses <= l} > (1 - theta) n, the paper's other definition."""
  candidates = np.sort(losses)
  below = np.array([np.sum(losses <= eta) for eta in candidates])
  return float(candidates[below > (1 - theta) * len(losses) + _EXACT][0])


def _linear_program(losses: np.ndarray, theta: float) -> float:
  """Returns max pi' losses over the simplex with pi_i <= 1 / (theta n)."""
  n = len(losses)
  cap = min(1.0, 1 / (theta * n))
  solution = optimize.linprog(-losses, A_eq=np.ones((1, n)), b_eq=[1.0], bounds=(0.0, cap))
  return -solution.fun


def _integral(losses: np.ndarray, theta: float) -> float:
  """Returns the mean of the quantiles Q_alpha over alpha in (0, theta), the paper's definition."""
  n = len(losses)
  descending = np.sort(losses)[::-1]
  widths = np.clip(theta - np.arange(n) / n, 0.0, 1 / n)
  return float(descending @ widths / theta)


def _size(difference: float) -> str:
  """Says how large a difference is that is zero but for rounding."""
  bounds = [bound for bound in (_EXACT, _NEARLY_EXACT) if difference < bound]
  if not bounds:
    return f"{difference:.2g}"
  return f"less than 10^−{round(-math.log10(bounds[0]))}"


def _is_whole(number: float) -> bool:
  return abs(number - round(number)) < _EXACT


def of_superquantile() -> Iterator[rows.Row]:
  """Yields the statements on quantile and superquantile, each for many random losses."""
  draws = list(_draws())
  worst = max(
    max(abs(_linear_program(z, t) - superquantile.superquantile(z, t)),
        abs(_integral(z, t) - superquantile.superquantile(z, t)))
    for z, t in draws
  )  # fmt: skip
  tried = f"{len(draws)} random sets of 2 to 12 losses"
  yield rows.Row(
    "integral",
    f"{tried}: the integral, a linear program and the code differ by {_size(worst)}.",
    rows.judge(worst < _NEARLY_EXACT, rows.Verdict.FALSE),
  )
  ends = max(
    max(abs(superquantile.superquantile(z, 1.0) - z.mean()),
        abs(superquantile.superquantile(z, 1e-9) - z.max()))
    for z, _ in draws
  )  # fmt: skip
  yield rows.Row(
    "ends",
    f"{tried}: differences from the mean at θ = 1 and from the maximum at θ to 0 are"
    f" {_size(ends)}.",
    rows.judge(ends < _EXACT, rows.Verdict.FALSE),
  )
  yield from _of_thresholds(draws)


def _of_thresholds(draws: list[tuple[np.ndarray, float]]) -> Iterator[rows.Row]:
  """Yields the statements of the proposition on hard thresholds."""
  as_printed = right = 0
  for losses, theta in draws:
    ascending, n = np.sort(losses), len(losses)
    quantile = _lower_quantile(losses, theta)
    as_printed += quantile == ascending[max(math.ceil(theta * n - _EXACT), 1) - 1]
    right += quantile == ascending[max(math.ceil((1 - theta) * n - _EXACT), 1) - 1]
  yield rows.Row(
    "quantile",
    f"With i* = ⌈θ n⌉, as printed, true for {as_printed} of {len(draws)} random sets of losses in"
    f" rising order. i* = ⌈(1 − θ) n⌉ is true for {right}, and the proof’s sum needs it.",
    rows.judge(
      as_printed == len(draws), rows.Verdict.MISPRINT if right == len(draws) else rows.Verdict.FALSE
    ),
  )
  whole = [
    (losses, theta) for losses, theta in draws if _is_whole(theta * len(losses)) and theta < 1
  ]
  passing = {int(np.sum(z >= _lower_quantile(z, t)) - round(t * len(z))) for z, t in whole}
  gap = max(
    abs(superquantile.tail_weights(z, t) - superquantile.dual_weights(z, t)).max() for z, t in whole
  )
  yield rows.Row(
    "threshold",
    f"{len(whole)} random sets: at or above the quantile of Section 3.3, inf{{η: P(Z > η) ≤ θ}},"
    f" are θ n + {', '.join(map(str, sorted(passing)))} clients; the maximiser has θ n. With the"
    f" quantile of Section 4.2, the least with H > (1 − θ) m, weights differ by {_size(gap)}.",
    rows.judge(passing == {0}, rows.Verdict.FALSE),
    "It is true with that quantile, which this project takes, or with a strict comparison.",
  )
  excesses = []
  for losses, theta in draws:
    if not _is_whole(theta * len(losses)):
      kept = superquantile.tail_weights(losses, theta) @ losses
      excesses.append((superquantile.superquantile(losses, theta) - kept) * theta * len(losses))
  yield rows.Row(
    "not_whole",
    f"{len(excesses)} random sets: θ n / B times the difference is between {min(excesses):.2f} and"
    f" {max(excesses):.2f}.",
    rows.judge(min(excesses) >= -_EXACT and max(excesses) <= 1 + _EXACT, rows.Verdict.FALSE),
  )
  counts = {
    int(np.sum(superquantile.dual_weights(z, t) > _EXACT) - math.ceil(t * len(z) - _EXACT))
    for z, t in draws
  }
  yield rows.Row(
    "filtering",
    f"{len(draws)} random sets: the number differs by {', '.join(map(str, sorted(counts)))}.",
    rows.judge(counts == {0}, rows.Verdict.FALSE),
  )
  apart = sum(_lower_quantile(z, t) != _upper_quantile(z, t) for z, t in whole)
  others = sum(_lower_quantile(z, t) != _upper_quantile(z, t) for z, t in draws) - apart
  yield rows.Row(
    "two_quantiles",
    f"Section 3.3 has inf{{η: P(Z > η) ≤ θ}}. The two differ in {apart} of {len(whole)} random sets"
    f" with whole θ n, by one loss, and in {others} of the other {len(draws) - len(whole)}.",
    rows.judge(not apart and not others, rows.Verdict.INCONSISTENT),
    "Proposition (c) depends on which it is.",
  )


def of_formulas() -> Iterator[rows.Row]:
  """Yields the formulas whose print is not what is meant."""
  rng = np.random.default_rng(0)
  targets, point = rng.normal(size=(7, 3)), rng.normal(size=3)

  def objective(w: np.ndarray) -> float:
    return superquantile.superquantile(np.sum((targets - w) ** 2, axis=1), 3 / 7)

  steps = 1e-6 * np.eye(3)
  numeric = np.array([(objective(point + h) - objective(point - h)) / 2e-6 for h in steps])
  pi = superquantile.dual_weights(np.sum((targets - point) ** 2, axis=1), 3 / 7)
  error = np.max(np.abs(numeric - pi @ (2 * (point - targets))))
  yield rows.Row(
    "subgradient",
    "As printed it adds a number to a vector. With ∇F_i in place of F_i, as in the proof, it"
    f" differs from finite differences by {_size(max(error, _EXACT))}.",
    rows.judge(error < _NEARLY_EXACT, rows.Verdict.FALSE, rows.Verdict.MISPRINT),
    "Three places lack the ∇ (lines 321, 829 and 939).",
  )
  regular = objective(point) + 0.05 * float(point @ point)
  with_term = float(pi @ np.sum((targets - point) ** 2, axis=1)) + 0.05 * float(point @ point)
  yield rows.Row(
    "duality",
    "The right-hand side lacks λ / 2 ‖w‖², which the equation before it has. At a random point with"
    f" λ = 0.1 it is {regular - with_term + 0.05 * float(point @ point):.2f} short, with the term"
    f" {_size(abs(regular - with_term))}.",
    rows.judge(abs(regular - with_term) < _EXACT, rows.Verdict.FALSE, rows.Verdict.MISPRINT),
  )
  losses, nu = rng.uniform(size=10), 0.3
  as_printed = np.mean(np.exp(nu * losses)) / nu
  meant = (special.logsumexp(nu * losses) - math.log(10)) / nu
  yield rows.Row(
    "entropic",
    f"It lacks the logarithm: for ten losses with mean {losses.mean():.2f} and ν = 0.3 it is"
    f" {as_printed:.2f}, with the logarithm {meant:.2f}; the objective below it has the logarithm.",
    rows.judge(bool(losses.min() <= as_printed <= losses.max()), rows.Verdict.MISPRINT),
  )
  yield from _of_temperatures()


def _of_temperatures() -> Iterator[rows.Row]:
  """Yields the convention of nu in the tilted loss: one slip behind two statements."""
  rng = np.random.default_rng(1)
  losses = rng.uniform(size=10)

  def tilted(nu: float) -> float:
    return float((special.logsumexp(nu * losses) - math.log(len(losses))) / nu)

  printed, inverse = [], []
  for n, nu in itertools.product((3, 10, 50), (0.1, 10.0)):
    losses_of = rng.uniform(size=n)
    weights = smoothed.dual_weights(losses_of, 1 / n, nu)
    printed.append(abs(weights - special.softmax(nu * losses_of)).max())
    inverse.append(abs(weights - special.softmax(losses_of / nu)).max())
  largest = float(np.max(losses))
  far, near = abs(tilted(1e-4) - largest), abs(tilted(1e4) - largest)
  yield rows.Row(
    "tilted",
    f"F_ent^ν of Section 6 is {tilted(1e-4):.3f} at ν = 1e-4 and {tilted(1e4):.3f} at ν = 1e4, of"
    f" ten losses with mean {losses.mean():.3f} and maximum {largest:.3f}. And F_ent^ν is said to"
    " be the limit of F_θ^ν as θ goes to 0: the weights of the two differ by up to"
    f" {max(printed):.2f}.",
    rows.judge(
      far < 1e-2 and max(printed) < _EXACT,
      rows.Verdict.MISPRINT if near < 1e-2 and max(inverse) < _NEARLY_EXACT else rows.Verdict.FALSE,
    ),
    "With 1 / ν for ν in F_ent both are true: the weights differ by"
    f" {_size(max(inverse))}, from θ = 1 / n on.",
  )


@functools.cache
def _smoothing_gaps() -> tuple[float, float]:
  """Returns the largest (F - F^nu) / (nu log n) and / (nu log 1 / theta) over random losses."""
  of_n, of_theta = 0.0, 0.0
  for losses, theta in _draws():
    for nu in (1e-3, 1e-1, 1.0, 10.0):
      pi = smoothed.dual_weights(losses, theta, nu)
      divergence = float(np.sum(special.xlogy(pi, pi * len(losses))))
      gap = superquantile.superquantile(losses, theta) - (pi @ losses - nu * divergence)
      of_n = max(of_n, gap / (nu * math.log(len(losses))))
      if theta < 1 - _EXACT:
        of_theta = max(of_theta, gap / (nu * math.log(1 / theta)))
  return of_n, of_theta


def of_smoothing() -> Iterator[rows.Row]:
  """Yields the statements on the smoothed objective."""
  of_n, of_theta = _smoothing_gaps()
  yield rows.Row(
    "smoothing",
    f"The difference is at most {of_n:.2f} ν log n, and {of_theta:.2f} ν log(1 / θ).",
    rows.judge(of_n <= 2.0, rows.Verdict.FALSE),
    "The bound ν log(1 / θ), the largest divergence in the polytope, does not grow with n.",
  )
