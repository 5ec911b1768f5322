"""Compares the flags of a run with its ledger, and the noise of its clients with its numbers."""

import dataclasses
import math
import pathlib
from typing import Any

import numpy as np

from privacy import cohorts
from privacy import ledger as ledger_lib
from privacy import parts
from privacy.audit import results as results_lib
from privacy.noise import banded
from privacy.settings import command_line
from privacy.settings import versions

# Recomputing gives the same number up to another version's rounding.
TOLERANCE = 1e-6
# Numbers in flags.txt may have been written with fewer digits.
_FLAG_TOLERANCE = 1e-5
# Another version of SciPy ends its search at other coefficients; with up to 200 bands and other
# tolerances of the search their sensitivity was within 1e-5.
_COEFFICIENTS_TOLERANCE, _SENSITIVITY_TOLERANCE = 1e-3, 2e-5
_EMPTY = ("", "None")
# Every private run has these besides those that the ledger has, too.
_REQUIRED = ("algorithm", "num_rounds", "seed", "clip_unit")
# No private run tests on clients that it protects, or on those that follow from them.
_REFUSED = {"folds": ("0",), "held_out_examples": ("0", "0.0"), "client_split": ("by_id",)}


def _shares_of_budget() -> set[str]:
  return {kind.share_flag for kind in parts.kinds() if kind.share_flag}


def read(folder: pathlib.Path) -> dict[str, str]:
  """Reads the `flags.txt` of a run's folder: values by name; empty ones are left out."""
  flags = command_line.read_flags(results_lib.read_text(folder, "flags.txt"))
  versions.check(flags, folder)
  return {name: value for name, value in flags.items() if value not in _EMPTY}


def _entries(ledger: ledger_lib.Ledger) -> dict[str, Any]:
  """Returns what the flags of a run are by its ledger; None for those that are not there."""
  release = ledger.release
  expected: dict[str, Any] = {
    "epsilon": ledger.claim["epsilon"],
    "delta": ledger.claim["delta"],
    "accounting": ledger.accounting,
    "clients_per_round": release.cohort.expected,
    "sampling": release.cohort.sampling,
    "relation": release.relation,
    "clip_norm": ledger.clip_norm,
    "noise_shares": release.noise.protocol,
    "contacted_clients": release.contacted if release.has_coin else None,
    **{name: release.cohort.entries().get(name) for name in cohorts.own_flags()},
    "bands": len(release.coefficients) if release.cohort.is_one_mechanism else None,
    # Flags of parts are empty without them.
    **dict.fromkeys(("threshold", "num_bins", *_shares_of_budget())),
    **dict.fromkeys(kind.flag for kind in parts.kinds()),
    "update_sum": "central",
  }
  for part in release.parts:
    expected.update(part.flags())
  expected.update(release.shares_of_budget)
  if ledger.clip_norm is None and release.find(parts.AdaptiveClip) is not None:
    expected["clip_norm"] = "adaptive"
  return expected


def contradictions(flags: dict[str, str], ledger: ledger_lib.Ledger) -> list[str]:
  """Returns sentences on flags with other values than the ledger's, and on missing ones."""
  release = ledger.release
  flags, required = dict(flags), set(_REQUIRED)
  if flags.get("clip_unit") == "gradient" and flags.get("clip_norm", "adaptive") != "adaptive":
    # The ledger has the norm of updates, the learning rate times that of gradients.
    rate, norm = (to_number(flags.get(name, "")) for name in ("client_learning_rate", "clip_norm"))
    required.add("client_learning_rate")
    if rate is not None and norm is not None:
      flags["clip_norm"] = repr(rate * norm)
  entries = _entries(ledger)
  is_own = flags.get("threshold") in (None, *parts.THRESHOLDS.own)
  if not is_own and entries["threshold"] is not None:  # `statements.from_outside` names it.
    flags["threshold"] = entries["threshold"]
  if flags.get("threshold") != parts.Tree.kind:
    flags.pop("num_bins", None)  # Its default means nothing to other thresholds.
  required |= {name for name, entry in entries.items() if entry is not None}
  required.discard("bands")  # The default follows from the cohorts.
  if ledger.claim["epsilon"] is None:
    required -= _shares_of_budget()  # Without a budget nothing divides it.
  sentences = [f"flags.txt has no --{name}." for name in sorted(required - set(flags))]
  for name, entry in entries.items():
    if name not in flags or flags[name] == entry:
      continue
    number = to_number(flags[name])
    if isinstance(entry, (int, float)) and number is not None:
      if math.isclose(number, entry, rel_tol=_FLAG_TOLERANCE):
        continue
    text = "none" if entry is None else f"{entry:.6g}" if isinstance(entry, float) else str(entry)
    sentences.append(f"flags.txt has --{name}={flags[name]} and the ledger {text}.")
  sentences += [
    f"flags.txt has --{name}={flags[name]}, with which no private run begins: it would measure"
    " clients that it protects."
    for name, allowed in _REFUSED.items()
    if flags.get(name, allowed[0]) not in allowed
  ]
  start = flags.get("initial_weights_fingerprint")
  if start != (ledger.starts[0].fingerprint if ledger.starts else None):
    sentences.append("flags.txt and the ledger do not name the same initial weights.")
  rounds = to_number(flags.get("num_rounds", ""))
  if rounds is not None and rounds > ledger.num_rounds_planned:
    sentences.append(
      f"flags.txt has --num_rounds={rounds:g} and the ledger {ledger.num_rounds_planned} planned"
      " rounds."
    )
  # A larger population than the real one would mean a smaller sampling probability.
  clients = to_number(flags.get("num_train_clients", ""))
  population = release.cohort.population
  if clients and population > clients:
    sentences.append(
      f"flags.txt has --num_train_clients={clients:g} and the ledger a population of {population}."
    )
  return sentences


def wrong_coefficients(flags: dict[str, str], ledger: ledger_lib.Ledger) -> list[str]:
  """Returns the difference between the noise over rounds of a ledger and of its run's flags.

  Smaller coefficients would mean a smaller sensitivity than that of the noise that was added.
  """
  cohort, coefficients = ledger.release.cohort, np.array(ledger.release.coefficients)
  num_rounds = ledger.num_rounds_planned
  participation = cohort.participation(num_rounds)
  if participation is None:
    return []
  if to_number(flags.get("num_rounds", "")) != num_rounds:
    return [f"flags.txt has not the {num_rounds} rounds for which the ledger's noise is made."]
  # Where the flags have another number of bands than the ledger, `contradictions` says so.
  bands = coefficients.size if "bands" in flags else participation.bands()
  expected = banded.optimal(bands, participation)
  if coefficients.shape == expected.shape and np.allclose(
    coefficients, expected, 0.0, _COEFFICIENTS_TOLERANCE
  ):
    least = banded.sensitivity(expected, participation) * (1.0 - _SENSITIVITY_TOLERANCE)
    if banded.sensitivity(coefficients, participation) >= least:
      return []
  return [
    "The ledger's coefficients of the noise over rounds are not those of"
    f" {num_rounds} rounds and {bands} bands."
  ]


def wrong_mechanisms(ledger: ledger_lib.Ledger) -> list[str]:
  """Returns differences between the clients' noise and that of the ledger's own numbers."""
  release, sentences = ledger.release, []
  for part in release.parts:
    mechanism = part.mechanism
    if mechanism is None:
      continue
    bare = dataclasses.replace(part, mechanism=None)
    if isinstance(bare, parts.UpdateSum) and ledger.clip_norm is not None:
      bare = dataclasses.replace(bare, clip_norm=ledger.clip_norm)
    expected = bare.built(release.limit, release.cohort.expected)
    name = next(name for name, entry in part.entries().items() if entry is mechanism)
    for field in dataclasses.fields(mechanism):
      has, derived = getattr(mechanism, field.name), getattr(expected, field.name)
      same = has == derived
      if isinstance(derived, float):
        same = math.isclose(has, derived, rel_tol=TOLERANCE)
      if not same:
        sentences.append(
          f"The ledger's {name} has {field.name} = {has}; the noise multiplier and the clients of a"
          f" round ask for {derived}."
        )
  return sentences


def to_number(text: str) -> float | None:
  """Returns the number that a text is; None if it is none."""
  try:
    return float(text)
  except ValueError:
    return None
