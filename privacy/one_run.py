"""Bounds epsilon from below by guesses about canaries in one run, with a confidence.

The game (Steinke, Nasr and Jagielski, "Privacy Auditing with One Training Run", 2023). Each of m
canaries has a secret, fair coin b_i. It is in the run if b_i = 1; if b_i = 0 it is out of it, or
another takes its place. The adversary sees what the run releases, and guesses r of the coins; r is
fixed before. Let v of its guesses be right.

Guarantee. If the run is (epsilon, delta)-differentially private in the relation of these two
states of a canary, whatever the others' coins, then with W of Binomial(r, 1 / (1 + e^-epsilon))

    P(at least v right) <= P(W >= v) + 2 m delta max_{i >= 1} P(v - i <= W < v) / i

(their Theorem 5.2). The canaries need not be independent of each other in what is released. If the
run has a trade-off function f, so that each test of a canary with false positive rate x has a false
negative rate of f(x) at least, `contradicts` has a recursion that holds for all of f (Mahloujifar,
Melis and Chaudhuri, "Auditing f-Differential Privacy in One Run", 2024).

Both allow any dependence of the canaries, and pay for it: the bounds stay far below the truth,
however many there are. Where what is released of one canary tells nothing of another, as of noise
that is independent in directions that share no weight, each canary is a test of its own (as in
Andrew and others, "One-shot Empirical Privacy Estimation for Federated Learning", 2024), and
`rates` bounds its true and false positives by Clopper and Pearson.

What is too unlikely is rejected: a bound is the largest epsilon that is. It is above the truth with
a probability of at most its significance. It proves no privacy: that a run passes says nothing of
stronger adversaries, other data or more canaries.

The module needs NumPy and SciPy only.
"""

from collections.abc import Callable, Mapping
import dataclasses

import numpy as np
from scipy import optimize
from scipy import special
from scipy import stats

from privacy import checks
from privacy.noise import banded

TradeOff = Callable[[float], float]

# Guesses about so many of the canaries, of each coin a half: the surest, chosen before any run.
_SHARES_GUESSED = (1 / 2, 1 / 4)
_PART_THAT_CHOOSES = 10  # One canary of so many chooses a test for the others.
# Beyond, no number of canaries tells an epsilon from infinity in double precision.
_MOST_EPSILON, _MOST_MU = 600.0, 64.0


@dataclasses.dataclass(frozen=True)
class Guesses:
  """What an adversary got right.

  Attributes:
    canaries: m, the number of canaries.
    made: r, the number of its guesses, fixed before it saw anything.
    right: v, how many were right.
  """

  canaries: int
  made: int
  right: int

  def __post_init__(self) -> None:
    if not 0 <= self.right <= self.made <= self.canaries:
      raise ValueError(
        f"Found {self.right} right of {self.made} guesses about {self.canaries} canaries; expected"
        " each to be at most the next."
      )


def numbers_of_guesses(num_canaries: int) -> tuple[int, ...]:
  """Returns the numbers of guesses of an audit, even ones, by its number of canaries alone."""
  halves = {max(1, int(num_canaries * share / 2)) for share in _SHARES_GUESSED}
  return tuple(2 * half for half in sorted(halves, reverse=True))


def guess(coins: np.ndarray, scores: np.ndarray, made: int) -> Guesses:
  """Guesses that the highest scores are of canaries that are in, and the lowest of those out.

  Args:
    coins: Whether each canary is in, bool [m].
    scores: The adversary's score of each, the higher the surer that it is in, float [m].
    made: The number of guesses, even.

  Returns:
    How many of these guesses are right.

  Raises:
    ValueError: If `made` is odd, or more than m.
  """
  if made % 2 or not 0 < made <= len(coins):
    raise ValueError(f"Found {made} guesses about {len(coins)} canaries; expected an even number.")
  order = np.argsort(scores, kind="stable")
  right = np.sum(coins[order[-(made // 2) :]]) + np.sum(~coins[order[: made // 2]])
  return Guesses(len(coins), made, int(right))


def p_value(guesses: Guesses, epsilon: float, delta: float) -> float:
  """Returns a bound on the probability of so many right guesses under (epsilon, delta)."""
  made, right = guesses.made, guesses.right
  at_least = stats.binom.sf(np.arange(right, -1, -1) - 1, made, special.expit(epsilon))
  of_delta = np.max((at_least[1:] - at_least[0]) / np.arange(1, right + 1), initial=0.0)
  return float(min(at_least[0] + 2.0 * guesses.canaries * delta * of_delta, 1.0))


def epsilon_at_least(guesses: Guesses, delta: float, significance: float) -> float:
  """Returns the largest epsilon of which `p_value` is `significance` at most, or 0.

  Args:
    guesses: What the adversary got right.
    delta: The delta at which epsilon is asked for, in [0, 1).
    significance: The most probability of a bound above the truth.

  Returns:
    A lower bound on epsilon at this delta, that needs nothing to be known of the mechanism.
  """
  return _largest(lambda x: significance - p_value(guesses, x, delta), _MOST_EPSILON)


def contradicts(guesses: Guesses, trade_off: TradeOff, significance: float) -> float:
  """Returns a number that is positive if so many right guesses are too unlikely under f.

  Let q_j be the probability of exactly j right guesses, R_i = sum_{j >= i} j q_j / m and H_i =
  sum_{j >= i} (r - j) q_j / m. Then H_i >= f(1 - R_{i + 1}) for each i, and R_0 + H_0 = r / m. If
  P(at least v right) is `significance`, R and H are at least what this makes of them from i = v
  downwards, beginning with all of the probability at v. Where that makes more than r / m for i = 0,
  the probability is less than `significance`.

  Args:
    guesses: What the adversary got right.
    trade_off: f from false positive rates to the least false negative rate, of either coin.
    significance: The probability.

  Returns:
    How much the sums exceed r / m.
  """
  made, right, canaries = guesses.made, guesses.right, guesses.canaries
  correct, wrong = significance * right / canaries, significance * (made - right) / canaries
  for i in range(right - 1, -1, -1):
    least = max(wrong, trade_off(1.0 - correct))
    if least == wrong:
      break  # None of the two moves any more.
    correct = min(correct + i / (made - i) * (least - wrong), 1.0)
    wrong = least
  return correct + wrong - made / canaries


def gaussian_trade_off(mu: float) -> TradeOff:
  """Returns f of two normal variables whose means are mu standard deviations apart."""
  return lambda x: float(special.ndtr(-special.ndtri(x) - mu))


def trade_off_of(epsilons: Mapping[float, float]) -> TradeOff:
  """Returns what all of (epsilon, delta) together say of f, by delta: their least upper bound."""
  deltas = np.array(list(epsilons))
  factors = np.exp(np.array(list(epsilons.values())))

  def trade_off(x: float) -> float:
    steep, flat = 1.0 - deltas - factors * x, (1.0 - deltas - x) / factors
    return float(max(np.max(steep), np.max(flat), 0.0))

  return trade_off


def gaussian_epsilon_at_least(guesses: Guesses, delta: float, significance: float) -> float:
  """Returns a lower bound on epsilon of a run whose trade-off function is a Gaussian's.

  Args:
    guesses: What the adversary got right.
    delta: The delta at which epsilon is asked for, in (0, 1).
    significance: The most probability of a bound above the truth.

  Returns:
    The epsilon of the largest mu that `contradicts` the guesses, or 0.
  """

  def excess(mu: float) -> float:
    return contradicts(guesses, gaussian_trade_off(mu), significance)

  mu = _largest(excess, _MOST_MU)
  return banded.epsilon(1.0 / mu, delta) if mu > 0.0 else 0.0


def _largest(excess: Callable[[float], float], most: float) -> float:
  """Returns where a falling function crosses zero, 0 if it is negative there already."""
  if excess(0.0) <= 0.0:
    return 0.0
  end = 1.0
  while excess(end) > 0.0:
    end *= 2.0
    if end > most:
      return most
  return float(optimize.brentq(excess, 0.0, end, xtol=1e-6))


def rates(coins: np.ndarray, scores: np.ndarray, significance: float) -> tuple[float, float]:
  """Bounds how often a test by independent scores is right, and how often it is wrong.

  The test says "in" above the median of the scores of the first tenth, and is tried on the others.

  Args:
    coins: Whether each canary is in, bool [m].
    scores: The adversary's, float [m].
    significance: The most probability that one of the bounds is wrong.

  Returns:
    A lower bound on the rate of true positives, and an upper one on that of false positives.
  """
  num_choosing = -(-len(coins) // _PART_THAT_CHOOSES)
  said = scores[num_choosing:] > np.median(scores[:num_choosing])
  coins, level = coins[num_choosing:], 1.0 - significance / 2.0
  bounds_of = []
  for its, side in ((coins, "greater"), (~coins, "less")):
    number = int(its.sum())
    if not number:
      return 0.0, 1.0
    test = stats.binomtest(int(said[its].sum()), number, alternative=side)
    bounds_of.append(test.proportion_ci(level, "exact"))
  return float(bounds_of[0].low), float(bounds_of[1].high)


@dataclasses.dataclass(frozen=True)
class Bounds:
  """What is found of a run's epsilon by its canaries; all of it with one confidence.

  Attributes:
    guesses: Of each number of guesses, what was right.
    epsilon: The lower bound on epsilon that assumes nothing about the mechanism.
    gaussian_epsilon: That of a mechanism whose trade-off function is a Gaussian's.
    independent_epsilon: That of such a mechanism whose canaries are independent; None where they
      are not known to be.
    contradicts_claim: Whether the guesses are too good for the claim.
    contradicts_if_independent: Whether they are, or the rates of independent canaries.
  """

  guesses: tuple[Guesses, ...]
  epsilon: float
  gaussian_epsilon: float
  independent_epsilon: float | None
  contradicts_claim: bool
  contradicts_if_independent: bool


def bounds(
  coins: np.ndarray,
  scores: np.ndarray,
  claim: Mapping[float, float],
  confidence: float,
  *,
  are_independent: bool,
) -> Bounds:
  """Bounds epsilon by the scores of canaries, and judges a claim.

  With `confidence` in all, the bounds are below the truth, and a claim that holds is not
  contradicted, where what they assume is so: each of the three methods has a third of the
  significance, and in each all that is tested an equal part of it (Bonferroni).

  Args:
    coins: Whether each canary was in, bool [m], drawn fairly and seen by no score.
    scores: The adversary's, float [m], in an order of chance, the higher the surer that it is in.
    claim: What is claimed, epsilon by delta. The least delta is that of the bounds.
    confidence: In (0, 1).
    are_independent: Whether the scores of canaries are known to be independent.

  Returns:
    The bounds.

  Raises:
    ValueError: If the confidence is none.
  """
  made = numbers_of_guesses(len(coins))
  part = (1.0 - checks.fraction("confidence", confidence)) / 3.0
  guesses = tuple(guess(coins, scores, number) for number in made)
  delta, trade_off = min(claim), trade_off_of(claim)
  one = part / len(made)
  epsilon = max(epsilon_at_least(each, delta, one) for each in guesses)
  gaussian = max(gaussian_epsilon_at_least(each, delta, one / 2.0) for each in guesses)
  contradicted = epsilon > claim[delta] or any(
    contradicts(each, trade_off, one / 2.0) > 0.0 for each in guesses
  )
  found = Bounds(
    guesses=guesses,
    epsilon=epsilon,
    gaussian_epsilon=gaussian,
    independent_epsilon=None,
    contradicts_claim=contradicted,
    contradicts_if_independent=contradicted,
  )
  if not are_independent:
    return found
  true, false = rates(coins, scores, part)
  mu = float(special.ndtri(true) - special.ndtri(false))
  return dataclasses.replace(
    found,
    independent_epsilon=banded.epsilon(1.0 / mu, delta) if mu > 0.0 else 0.0,
    contradicts_if_independent=contradicted or 1.0 - true < trade_off(false),
  )
