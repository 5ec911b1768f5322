"""The release of a round of a private run: its parts, their cohort and the source of their noise.

A round releases for example a threshold (a noisy histogram of losses or a noisy one-bit count), the
noisy sum of clipped updates, and if the clip norm adapts a noisy one-bit count of the updates
within it. All are computed on the SAME cohort, so that a round is one subsampled mechanism,
subsample(compose(threshold, update, count)), and not the composition of subsampled ones, which
would cost less than the truth. All are Gaussian, so that only

    z_eff = (sum_i z_i^-2)^(-1/2)

counts, where z_i are the standard deviations over the l2-sensitivities of one client's data. With
cohorts that all may know, the noise may be correlated over rounds (`noise.banded`): z_i then is
that of the independent noise from which it is made.

    release = Release(
      cohort=cohorts.Poisson(2500, 100),
      parts=(parts.Tree(num_bins=64, share=0.5), parts.UpdateSum()),
      noise=cohorts.Helpers(),
    )
    calibration.calibrate(release, epsilon=3, delta=1e-5, num_rounds=1000)
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import math
from typing import Any, TypeVar

from privacy import checks
from privacy import cohorts
from privacy import parts as parts_lib
from privacy.noise import banded
from privacy.noise import dominating_pairs
from privacy.noise import shares

ZERO_OUT = "zero_out"
REPLACE_ONE = "replace_one"
RELATIONS = (ZERO_OUT, REPLACE_ONE)

_Part = TypeVar("_Part", bound=parts_lib.ReleasedPart)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Release:
  """A round's release, and how the round's cohort is sampled.

  Attributes:
    cohort: The sampling of a round's clients.
    parts: What is released, at least one, in the order of `parts.kinds()`. Parts with noise get the
      mechanisms by which clients make it.
    noise: The source of the shares of noise that a cohort lacks, where clients make noise.
    relation: The neighbouring data sets: "zero_out", one client's data removed, or "replace_one",
      one client's data replaced by any other.
    coefficients: c of the noise over rounds, c_0 = 1; others than (1,) only with cohorts whose
      rounds are one mechanism.
  """

  cohort: cohorts.Cohort
  parts: tuple[parts_lib.ReleasedPart, ...]
  noise: cohorts.Complement = cohorts.Complement()
  relation: str = ZERO_OUT
  coefficients: tuple[float, ...] = banded.INDEPENDENT

  def __post_init__(self) -> None:
    checks.one_of("relation", self.relation, RELATIONS)
    checks.whole("population", self.cohort.population, 1)
    self._check_noise()
    if not self.parts:
      raise ValueError(
        "Found neither threshold_noise_multiplier nor update_noise_multiplier; expected at least"
        " one release to account for."
      )
    if len({part.flag for part in self.parts}) < len(self.parts):
      raise ValueError("Found two parts of one kind in a release; expected one of each.")
    if self.is_calibrated:
      most, expected = self.limit, self.cohort.expected
      completed = (part.completed(most, expected) for part in self.parts)
      # Nothing is divided any more.
      object.__setattr__(
        self, "parts", tuple(dataclasses.replace(part, share=None) for part in completed)
      )
    self._check_numbers()
    self._check_num_shares()
    self._check_coefficients()

  def _check_coefficients(self) -> None:
    object.__setattr__(self, "coefficients", banded.checked(self.coefficients))
    if not self.cohort.is_one_mechanism:
      if len(self.coefficients) > 1:
        raise ValueError(
          f"Found noise that is correlated over rounds with {self.cohort.sampling} sampling;"
          f" expected {cohorts.of_one_mechanism()}."
        )
      return
    for part in self.parts:
      if not part.noise_by_server:
        raise ValueError(
          f"Found {self.cohort.sampling} cohorts with {part.flag} of noise that clients make;"
          " expected noise that the server makes: an update_sum by it alone, and a one-bit"
          " threshold such as primal_dual."
        )

  def _check_noise(self) -> None:
    if self.noise.protocol not in self.cohort.protocols:
      raise ValueError(
        f"Found the protocol {self.noise.protocol} with {self.cohort.sampling} sampling; expected"
        f" {cohorts.with_protocol(self.noise.protocol)} sampling, whose cohorts may lack shares of"
        " noise and whose accounting knows the protocol."
      )
    if not self.cohort.expected <= self.contacted <= self.cohort.population:
      raise ValueError(
        f"Found contacted = {self.contacted:g} with clients_per_round ="
        f" {self.cohort.expected:g} and population = {self.cohort.population}; expected a number"
        " between these, both included."
      )

  def _check_numbers(self) -> None:
    number, updates = self.find(parts_lib.AdaptiveClip), self.find(parts_lib.UpdateSum)
    if number is None:
      return
    if updates is None:
      raise ValueError(f"Found {number.flag} without {parts_lib.UpdateSum.flag}; expected both.")
    if not updates.noise_by_server:
      raise ValueError(
        f"Found {number.flag} with an update_sum, whose modulus follows from a fixed clip norm;"
        " expected one of them."
      )

  def _check_num_shares(self) -> None:
    for part in self.parts:
      if part.mechanism is not None and part.mechanism.num_shares > self.cohort.population:
        raise ValueError(
          f"Found {part.mechanism.num_shares} shares of noise and a population of"
          f" {self.cohort.population}; expected at most a share of each client."
        )
    if self.num_shares is not None and not self.cohort.size_varies:
      if self.cohort.expected > self.num_shares:
        raise ValueError(
          f"Found {self.num_shares} shares of noise and cohorts of {self.cohort.expected:g};"
          " expected as many shares as clients."
        )

  def find(self, kind: type[_Part]) -> _Part | None:
    """Returns the part of a class; None where there is none.

    Args:
      kind: The class, one of `parts.kinds()` or above some of them.

    Returns:
      The first such part, or None.
    """
    return next((part for part in self.parts if isinstance(part, kind)), None)

  @property
  def is_calibrated(self) -> bool:
    """Whether all parts have noise."""
    return all(part.noise_multiplier is not None for part in self.parts)

  @property
  def ranked(self) -> tuple[parts_lib.ReleasedPart, ...]:
    """The parts, first those of the training: by this order a budget is divided."""
    return tuple(sorted(self.parts, key=lambda part: part.before_training))

  @property
  def shares_of_budget(self) -> dict[str, float]:
    """The parts' `share`, by `share_flag`, as their noise has it."""
    shares_of_budget, total = {}, 0.0
    for part in self.ranked:
      rho = part.z**-2  # Without the half.
      if part.share_flag and total:
        shares_of_budget[part.share_flag] = rho / total
      total += rho
    return shares_of_budget

  def with_noise(self, effective_noise_multiplier: float) -> Release:
    """Divides a round's budget between the parts, by their `share`.

    z_eff of all together becomes z_i = z_eff sqrt(w / w_i), where w_i is the share of a part times
    the sum of those before it in `ranked`, and w that of all.
    """
    z = checks.positive("effective_noise_multiplier", effective_noise_multiplier)
    weights: dict[str, float] = {}
    for part in self.ranked:
      total = sum(weights.values())
      share = part.usual_share if part.share is None else part.share
      share = checks.scale(part.share_flag or "share", share)
      weights[part.flag] = share * total if total else 1.0
    total = sum(weights.values())
    noisy = (part.with_noise(z * math.sqrt(total / weights[part.flag])) for part in self.parts)
    return dataclasses.replace(self, parts=tuple(noisy))

  def without_mechanisms(self) -> Release:
    """Returns the release as if all noise were continuous."""
    return dataclasses.replace(self, parts=tuple(part.without_mechanism() for part in self.parts))

  @property
  def contacted(self) -> float:
    """The expected number of clients that report in a round, with their data or without."""
    return getattr(self.noise, "contacted", self.cohort.expected)

  @property
  def limit(self) -> int:
    """K, the most clients of a round; each sum has the noise of K shares."""
    return self.cohort.limit(self.contacted)

  @property
  def num_shares(self) -> int | None:
    """K: the most clients of a round; None where the server makes all noise."""
    return min(
      (p.mechanism.num_shares for p in self.parts if p.mechanism is not None), default=None
    )

  @property
  def noise_multipliers(self) -> dict[str, float]:
    """The noise of the parts, by its name."""
    return {part.flag: part.z for part in self.parts}

  @property
  def effective_noise_multiplier(self) -> float:
    """z_eff of all that a round releases, relative to removing one client's data."""
    return 1.0 / math.hypot(*(1.0 / part.z for part in self.parts))

  @property
  def neighboring_relation(self) -> str:
    """The pair of data sets that the guarantee makes hard to tell apart, in words."""
    if self.relation == REPLACE_ONE:
      return "replace one client's data"
    return self.cohort.neighbors

  @property
  def has_coin(self) -> bool:
    """Whether clients decide by a coin of their own whether their data count."""
    return isinstance(self.noise, cohorts.PrivateCoin)

  @property
  def contact_probability(self) -> float:
    """The chance that a given client reports in a given round, with its data or without."""
    return self.contacted / self.cohort.population if self.has_coin else self.cohort.probability

  @property
  def overflow_probability(self) -> float:
    """The chance that the others fill a round's cohort, so that a client takes one's place."""
    if self.num_shares is None:
      return 0.0
    return self.cohort.overflow_probability(self.contact_probability, self.num_shares)

  def gaussian(self, probability: float, growth: float = 1.0) -> dominating_pairs.SampledGaussian:
    """Describes a round as a Gaussian mechanism on a Poisson sample, in the release's relation.

    Args:
      probability: That with which a client is in the sample.
      growth: The squared noise multiplier over that of the noise that is there; 1 where none is
        missing.

    Returns:
      The mechanism.
    """
    replaced = math.hypot(*(part.replace_one_factor / part.z for part in self.parts))
    return dominating_pairs.SampledGaussian(
      probability=probability,
      removed=math.sqrt(growth) / self.effective_noise_multiplier,
      replaced=math.sqrt(growth) * replaced,
      replace_one=self.relation == REPLACE_ONE,
    )

  def norm_of_run(self, num_rounds: int) -> float:
    """Returns the norm of a client's part in T rounds that are one mechanism, over the noise.

    The run is a Gaussian mechanism whose noise multiplier is 1 over it: see `noise.banded`.

    Args:
      num_rounds: T.

    Returns:
      The norm, the l2-sensitivity of all rounds together over the standard deviation.
    """
    participation = self.cohort.participation(num_rounds)
    assert participation is not None
    return self.gaussian(1.0).distance * banded.sensitivity(
      self.coefficients[:num_rounds], participation
    )

  def mixture(self) -> dominating_pairs.Mixture:
    """Describes a round as Gaussian mechanisms on samples of clients, with probabilities."""
    self.check_sampled()
    return self.cohort.mixture(self.gaussian(self.cohort.probability), self.overflow_probability)

  def runs(self, num_rounds: int) -> cohorts.Runs:
    """Describes T rounds as mechanisms that compose, and how often each is there."""
    self.check_sampled()
    pair = self.gaussian(self.cohort.probability)
    return self.cohort.runs(num_rounds, pair, self.overflow_probability)

  def check_sampled(self) -> None:
    """Raises a `ValueError` for cohorts whose rounds do not compose one by one."""
    if self.cohort.is_one_mechanism:
      raise ValueError(
        f"Found accounting by rdp or pld with {self.cohort.sampling} cohorts, whose rounds together"
        " are one Gaussian mechanism; expected 'tightest', which is exact."
      )

  def entries(self) -> dict[str, Any]:
    """Returns the release as a ledger has it: one flat record, with an entry for each fact."""
    content: dict[str, Any] = dict(
      **self.cohort.entries(),
      relation=self.relation,
      protocol=self.noise.protocol,
      contacted=getattr(self.noise, "contacted", None),
    )
    if self.cohort.is_one_mechanism:
      content["coefficients"] = list(self.coefficients)
    for kind in parts_lib.kinds():
      content.update(kind.blank())
    for part in self.parts:
      content.update(part.entries())
    return content

  @classmethod
  def of_entries(cls, content: Mapping[str, Any]) -> Release:
    """Returns the release of a flat record, the inverse of `entries`.

    Args:
      content: Values by their names; missing ones are those of a release without them.

    Returns:
      The release.

    Raises:
      ValueError: If the values describe no release.
    """
    blanks = {name: blank for kind in parts_lib.kinds() for name, blank in kind.blank().items()}
    content = {**blanks, **content}
    sampling = content.get("sampling", cohorts.Poisson.sampling)
    own = {name: content.get(name) for name in cohorts.own_flags()}
    cohort = cohorts.of(sampling, content["population"], content["clients_per_round"], **own)
    read = (kind.of_entries(content) for kind in parts_lib.kinds())
    return cls(
      cohort=cohort,
      parts=tuple(part for part in read if part is not None),
      noise=cohorts.source(content.get("protocol", shares.COMPLEMENT), content.get("contacted")),
      relation=content.get("relation", ZERO_OUT),
      coefficients=tuple(content.get("coefficients") or banded.INDEPENDENT),
    )
