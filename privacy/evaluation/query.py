"""A query for the distribution of one number a client: its noise, its guarantee and its cost.

The mechanism. Each of at most n clients holds one number, or none (NaN). It reports x_i, the binary
hierarchical histogram of its number over b bins between two public ends: a one on each of L = log2
b levels, all of weight 1, and nothing but zeros for NaN. Clients add noise in shares, and a secure
sum releases sum_i x_i with Gaussian noise (see `privacy.noise.tree_mechanism`).

Sensitivity. Zero-out replaces one x_i by zeros; add-or-remove adds or removes one x_i, and neither
data set has more than n clients. Either way the sum changes by one x_i, which has at most L ones:
by at most sqrt(L) in l2 norm, and by exactly that for a client with a number.

Guarantee. There is one release and no sampling, so that it is the Gaussian mechanism of noise
multiplier z once, up to the slack of discrete noise, which is accounted for. Everything else, such
as quantiles and their standard errors, is computed from the release. n, the ends and b are public:
whoever chooses them by the clients' numbers releases something more.
"""

import dataclasses

import numpy as np

from privacy import accounting
from privacy import calibration
from privacy import checks
from privacy import cohorts
from privacy import parts
from privacy import releases
from privacy import statements
from privacy.noise import tree_mechanism


@dataclasses.dataclass(frozen=True)
class Query:
  """A query for the distribution of one number a client, with a privacy budget of its own.

  Attributes:
    num_clients: n, the number of clients that are asked, and the most that may report; public.
    epsilon: The budget.
    delta: The budget's delta; None for `accounting.default_delta`.
    lower: The lower end of the numbers; those below count as it.
    upper: The upper end of the numbers; those above count as it.
    num_bins: b, a power of two.
    release: The release with its noise, which follows from the above.
  """

  num_clients: int
  epsilon: float
  delta: float | None = None
  lower: float = 0.0
  upper: float = 1.0
  num_bins: int = 64
  release: releases.Release = dataclasses.field(init=False)

  def __post_init__(self) -> None:
    n = checks.whole("num_clients", self.num_clients, 1)
    delta = accounting.default_delta(n) if self.delta is None else self.delta
    values = dict(
      num_clients=n,
      epsilon=checks.positive("epsilon", self.epsilon),
      delta=checks.fraction("delta", delta),
      lower=checks.number("lower", self.lower),
      upper=checks.number("upper", self.upper),
      num_bins=tree_mechanism.check_num_bins(self.num_bins),
    )
    for name, value in values.items():
      object.__setattr__(self, name, value)
    if not self.lower < self.upper:
      raise ValueError(
        f"Found lower = {self.lower:g} and upper = {self.upper:g}; expected lower < upper."
      )
    if not np.all(np.diff(self.edges.astype(np.float32)) > 0):
      raise ValueError(
        f"Found {self.num_bins} bins between lower = {self.lower:g} and upper = {self.upper:g},"
        " which are too narrow for float32; expected fewer bins or ends farther apart."
      )
    bare = releases.Release(
      cohort=cohorts.Everybody(n, n), parts=(parts.Tree(num_bins=self.num_bins),)
    )
    release = calibration.calibrate(bare, self.epsilon, values["delta"], num_rounds=1)
    object.__setattr__(self, "release", release)

  @property
  def mechanism(self) -> tree_mechanism.TreeMechanism:
    """The parameters of the histogram."""
    histogram = self.release.find(parts.Tree)
    assert histogram is not None and histogram.mechanism is not None  # The release is made of it.
    return histogram.mechanism

  @property
  def edges(self) -> np.ndarray:
    """The edges of the bins, float64 [b + 1], from `lower` to `upper`."""
    return np.linspace(self.lower, self.upper, self.num_bins + 1)

  @property
  def guarantee(self) -> tuple[str, ...]:
    """The guarantee of the release, in sentences."""
    tree = self.mechanism
    return (
      f"The release is ({self.epsilon:.4g}, {self.delta:.3g})-differentially private.",
      f"Gaussian mechanism: one hierarchical histogram of {tree.num_bins} bins with noise"
      f" multiplier {tree.noise_multiplier:.4g}. A client is a one on each of {tree.num_levels}"
      f" levels, so that the l2 sensitivity is {tree.num_levels}^(1/2) = {tree.num_levels**0.5:.4g}"
      f" clients; the noise of a node has a standard deviation of {tree.count_stddev:.4g} clients.",
      statements.neighboring(self.release),
      f"Noise of {tree.num_shares} clients, however many report: each makes its share, and the"
      " server makes those that are lacking.",
      "Released: the noisy histogram, and what is computed from it alone. No exact number is.",
      "Adversary: whoever sees the release, also who knows which clients were asked.",
    )
