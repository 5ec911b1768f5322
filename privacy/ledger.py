"""The ledger of a private run, `privacy.json` in its folder: its claim and its spent budget.

A run writes its ledger AHEAD: a round is entered before anything that it released is written, so
that a folder never holds more rounds than its ledger. Rounds that a resumed run repeats from its
seed draw the same cohort and noise again: they release nothing new and count once.
"""

from collections.abc import Mapping
import dataclasses
import json
import math
import sys
import typing
from typing import Any, TypedDict

from privacy import accounting
from privacy import checks
from privacy import cohorts
from privacy import parts
from privacy import releases
from privacy import server
from privacy import statements
from privacy.noise import sum_mechanism
from privacy.noise import tree_mechanism
from privacy.settings import versions

FILE_NAME = "privacy.json"
VERSION = 3  # Of the mechanisms. Earlier ones are of versions that `versions.older` names.

# The entries of a release that are those of no part, and those that known cohorts alone have.
_OF_COHORT = ("population", "clients_per_round", "sampling", "relation", "protocol", "contacted")
_OF_KNOWN = {"coefficients", *cohorts.own_flags()}


class Claim(TypedDict):
  """The claim of a run: `epsilon` of the whole run, None if it has no limit, and `delta`."""

  epsilon: float | None
  delta: float


@dataclasses.dataclass(frozen=True)
class Ledger:
  """The claim, the releases and the spent budget of a run.

  Attributes:
    version: The version of the mechanisms, `VERSION`.
    accounting: "tightest", "pld" or "rdp".
    claim: The budget of the whole run.
    release: The releases of each round.
    clip_norm: C, of the updates as they are summed; None if no updates are released, or if it
      adapts.
    num_rounds_planned: After how many rounds the run ends.
    rounds_done: Rounds that were begun, aborted ones included.
    epsilon_spent: A bound on their cost against an adversary that sees all their releases.
    epsilon_server: The cost of all planned rounds against the server; None where no noise
      protects it.
    wording: The version of the sentences' wording, `statements.WORDING` of the run's version.
    guarantee: The meaning of `epsilon_spent`, in sentences by name.
    not_covered: The limits of the guarantee, in sentences by name.
    starts: The run from whose model it starts, that from which this one did, and so on.
  """

  version: int
  accounting: str
  claim: Claim
  release: releases.Release
  clip_norm: float | None
  num_rounds_planned: int
  rounds_done: int
  epsilon_spent: float
  epsilon_server: float | None
  wording: int
  guarantee: Mapping[str, str]
  not_covered: Mapping[str, str]
  starts: tuple[statements.StartingModel, ...]

  def to_json(self) -> str:
    """Returns the ledger as the text of its file."""
    content = {**dataclasses.asdict(self), "release": self.release.entries()}
    return json.dumps(content, indent=2, allow_nan=False, default=dataclasses.asdict) + "\n"

  @classmethod
  def from_json(cls, text: str) -> "Ledger":
    """Reads the text of `to_json`; anything else is a `ValueError` with a sentence."""
    try:
      content = json.loads(text)
    except ValueError as error:
      raise ValueError(f"Found a ledger that is not JSON ({error}); expected a run's.") from None
    # The first ledgers had no version.
    if isinstance(content, dict) and "release" in content and content.get("version", 1) in (1, 2):
      raise versions.older()
    content = _fields(cls, content, "ledger")
    if content["version"] != VERSION:
      raise ValueError(
        f"Found version = {content['version']!r} in the ledger; expected {VERSION}, which this"
        " version of tff_superquantile reads."
      )
    checks.one_of("accounting", content["accounting"], accounting.ACCOUNTANTS)
    content["release"] = _read_release(content["release"])
    claim = _entries({"epsilon", "delta"}, content["claim"], "claim")
    content["claim"] = {
      "epsilon": _typed("claim.epsilon", claim["epsilon"], float | None),
      "delta": checks.fraction("delta", claim["delta"]),
    }
    if content["wording"] not in range(1, statements.WORDING + 1):
      raise ValueError(
        f"Found wording = {content['wording']} in the ledger; expected 1 to {statements.WORDING},"
        " which this version of tff_superquantile reads."
      )
    for name in ("guarantee", "not_covered"):
      content[name] = {
        key: _typed(f"{name}.{key}", text, str) for key, text in content[name].items()
      }
    content["starts"] = tuple(map(_read_start, content["starts"]))
    return cls(**content)


def _read_start(content: Any) -> statements.StartingModel:
  content = _fields(statements.StartingModel, content, "start in the ledger")
  if (content["epsilon"] is None) != (content["delta"] is None):
    raise ValueError("Found a start in the ledger with one of epsilon and delta; expected both.")
  return statements.StartingModel(**content)


# What values of JSON are, by the types of fields.
_JSON: dict[Any, tuple[Any, str]] = {
  str: (str, "a text"),
  bool: (bool, "true or false"),
  int: (int, "a whole number of at least 0"),
  float: ((int, float), "0 or a positive number"),
  tuple: (list, "a list"),
  Mapping: (dict, "an object"),
}


def _typed(name: str, value: Any, hint: Any) -> Any:
  """Returns a value of JSON in the type of its field, or raises a `ValueError`."""
  if hint == float | None:
    if value is None:
      return None
    hint = float
  hint = typing.get_origin(hint) or hint
  if hint not in _JSON:
    return value  # It is read elsewhere.
  types, expected = _JSON[hint]
  is_good = isinstance(value, types) and isinstance(value, bool) == (hint is bool)
  if not is_good or hint in (int, float) and not 0 <= value <= sys.float_info.max:
    raise ValueError(f"Found {name} = {value!r} in the ledger; expected {expected}.")
  return float(value) if hint is float else value


def _fields(kind: type, content: Any, name: str) -> dict[str, Any]:
  """Returns the JSON object of a dataclass if it has all its fields, typed, and no others."""
  hints = {field.name: field.type for field in dataclasses.fields(kind)}
  content = _entries(set(hints), content, name)
  return {field: _typed(field, content[field], hint) for field, hint in hints.items()}


def _entries(expected: set[str], content: Any, name: str) -> dict[str, Any]:
  """Returns a JSON object if it has all the expected entries and no others."""
  if not isinstance(content, dict):
    raise ValueError(f"Found a {name} that is no JSON object; expected one.")
  if set(content) != expected:
    wrong = sorted(expected ^ set(content))
    raise ValueError(
      f"Found a {name} whose fields differ from the expected ones: {', '.join(wrong)}."
    )
  return dict(content)


def _read_release(content: Any) -> releases.Release:
  names = {name for kind in parts.kinds() for name in kind.blank()}
  of_known = _OF_KNOWN.intersection(content if isinstance(content, dict) else ())
  content = _entries({*_OF_COHORT, *names, *of_known}, content, "release")
  mechanisms = {
    "tree": tree_mechanism.TreeMechanism,
    "update_sum": sum_mechanism.SumMechanism,
  }
  for name, kind in mechanisms.items():
    if content[name] is not None:
      content[name] = kind(**_fields(kind, content[name], name))
  try:
    release = releases.Release.of_entries(content)
  except (TypeError, ArithmeticError) as error:
    raise ValueError(f"Found a release in the ledger that cannot be read: {error}.") from None
  _entries(set(release.entries()), content, "release")
  return release


def build_ledger(
  meter: accounting.Accountant,
  *,
  claim_epsilon: float | None,
  clip_norm: float | None,
  num_rounds_planned: int,
  rounds_done: int,
  starts: tuple[statements.StartingModel, ...] = (),
  flags: Mapping[str, str] | None = None,
) -> Ledger:
  """Builds the ledger of a run after some rounds, quickly enough for every round.

  Args:
    meter: The run's account.
    claim_epsilon: The epsilon that was asked for; None where the noise was.
    clip_norm: C, of the updates as they are summed; None if no updates are released, or if it
      adapts.
    num_rounds_planned: The rounds for which the noise is.
    rounds_done: The rounds so far, at most those planned.
    starts: The models from which the run starts, the latest first.
    flags: The run's flags, texts by name, from which some sentences follow; None without a run.

  Returns:
    The ledger.

  Raises:
    ValueError: If the rounds have no finite epsilon.
  """
  release = meter.release
  epsilon = meter.epsilon_at_most(rounds_done, num_rounds_planned)
  if not math.isfinite(epsilon):
    raise ValueError(
      f"Found that {rounds_done} rounds have no finite epsilon; expected more noise."
    )
  return Ledger(
    version=VERSION,
    accounting=meter.accountant,
    claim={"epsilon": claim_epsilon, "delta": meter.delta},
    release=release,
    clip_norm=clip_norm,
    num_rounds_planned=num_rounds_planned,
    rounds_done=rounds_done,
    epsilon_spent=epsilon,
    epsilon_server=server.server_epsilon(release, num_rounds_planned, meter.delta).epsilon,
    wording=statements.WORDING,
    guarantee=statements.guarantee(release, flags),
    not_covered=statements.not_covered(release, starts, flags),
    starts=starts,
  )
