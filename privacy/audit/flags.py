"""Compares the flags of a run with its ledger, and the noise of its clients with its numbers."""

import dataclasses
import math
from typing import Any

from privacy import calibration
from privacy import ledger as ledger_lib
from privacy import releases

# Recomputing gives the same number up to another version's rounding.
TOLERANCE = 1e-6
# Numbers in flags.txt may have been written with fewer digits.
_FLAG_TOLERANCE = 1e-5
_EMPTY = ("", "None")
# Every private run has these besides those that the ledger has, too.
_REQUIRED = ("algorithm", "num_rounds", "seed", "clip_unit")


def read(text: str) -> dict[str, str]:
  """Reads `flags.txt`: values by name, of lines like `--name=value`; empty ones are left out."""
  found = {}
  for line in text.splitlines():
    if line.startswith("-"):
      name, equals, value = line.lstrip("-").partition("=")
      found[name.strip()] = value.strip() if equals else "true"
  return {name: value for name, value in found.items() if value not in _EMPTY}


def contradictions(flags: dict[str, str], ledger: ledger_lib.Ledger) -> list[str]:
  """Returns the contradictions between the flags of a run and its ledger.

  Args:
    flags: From `read`.
    ledger: The ledger.

  Returns:
    Sentences: of flags with other values than the ledger's, and of those that are missing.
  """
  release = ledger.release
  z_q, z_w, z_b = release.noise_multipliers
  flags, required = dict(flags), set(_REQUIRED)
  if flags.get("clip_unit") == "gradient" and flags.get("clip_norm", "adaptive") != "adaptive":
    # The ledger has the norm of updates, the learning rate times that of gradients.
    rate, norm = (to_number(flags.get(name, "")) for name in ("client_learning_rate", "clip_norm"))
    required.add("client_learning_rate")
    if rate is not None and norm is not None:
      flags["clip_norm"] = repr(rate * norm)
  if flags.get("threshold") != releases.TREE:
    flags.pop("num_bins", None)  # Its default means nothing to other thresholds.
  # rho = 1 / (2 z^2), without the half.
  rho_q, rho_w, rho_b = (0.0 if z is None else z**-2 for z in release.noise_multipliers)
  entries: dict[str, Any] = {
    "epsilon": ledger.claim["epsilon"],
    "delta": ledger.claim["delta"],
    "accounting": ledger.accounting,
    "clients_per_round": release.clients_per_round,
    "sampling": release.sampling,
    "relation": release.relation,
    "threshold": None if z_q is None else release.threshold_kind,
    "threshold_noise_multiplier": z_q,
    "update_noise_multiplier": z_w,
    "clip_norm": "adaptive" if z_b is not None and ledger.clip_norm is None else ledger.clip_norm,
    "clip_count_noise_multiplier": z_b,
    "num_bins": None if release.tree is None else release.tree.num_bins,
    "update_sum": "central" if release.update_sum is None else "distributed",
    "noise_shares": release.protocol,
    "contacted_clients": release.contacted,
    "rho_ratio": None if z_q is None or z_w is None else rho_q / (rho_w + rho_b),
    "clip_rho_ratio": None if z_b is None else rho_b / rho_w,
  }
  required |= {name for name, entry in entries.items() if entry is not None}
  if ledger.claim["epsilon"] is None:
    required -= {"rho_ratio", "clip_rho_ratio"}  # Without a budget nothing divides it.
  found = [f"flags.txt has no --{name}." for name in sorted(required - set(flags))]
  for name, entry in entries.items():
    if name not in flags or flags[name] == entry:
      continue
    number = to_number(flags[name])
    if isinstance(entry, (int, float)) and number is not None:
      if math.isclose(number, entry, rel_tol=_FLAG_TOLERANCE):
        continue
    said = "none" if entry is None else f"{entry:.6g}" if isinstance(entry, float) else str(entry)
    found.append(f"flags.txt has --{name}={flags[name]} and the ledger {said}.")
  start = flags.get("initial_weights_fingerprint")
  if start != (ledger.starts[0].fingerprint if ledger.starts else None):
    found.append("flags.txt and the ledger do not name the same initial weights.")
  rounds = to_number(flags.get("num_rounds", ""))
  if rounds is not None and rounds > ledger.num_rounds_planned:
    found.append(
      f"flags.txt has --num_rounds={rounds:g} and the ledger {ledger.num_rounds_planned} planned"
      " rounds."
    )
  # A larger population than the real one would mean a smaller sampling probability.
  clients = to_number(flags.get("num_train_clients", ""))
  if clients and release.population > clients:
    found.append(
      f"flags.txt has --num_train_clients={clients:g} and the ledger a population of"
      f" {release.population}."
    )
  return found


def wrong_mechanisms(ledger: ledger_lib.Ledger) -> list[str]:
  """Returns differences between the clients' noise and that of the ledger's own numbers."""
  release = ledger.release
  derived: list[tuple[str, Any, Any]] = []
  if release.tree is not None:
    tree = release.tree
    expected = calibration.tree_for(release, tree.num_bins, tree.scale)
    derived.append(("tree", tree, expected))
  if release.update_sum is not None:
    summed = release.update_sum
    norm = summed.clip_norm if ledger.clip_norm is None else ledger.clip_norm
    num_parameters = summed.num_entries - release.weighted_updates
    expected_sum = calibration.sum_for(release, norm, num_parameters)
    derived.append(("update_sum", summed, expected_sum))
  found = []
  for name, mechanism, expected in derived:
    for field in dataclasses.fields(mechanism):
      has, wanted = getattr(mechanism, field.name), getattr(expected, field.name)
      same = has == wanted
      if isinstance(wanted, float):
        same = math.isclose(has, wanted, rel_tol=TOLERANCE)
      if not same:
        found.append(
          f"The ledger's {name} has {field.name} = {has}; the noise multiplier and the clients of a"
          f" round ask for {wanted}."
        )
  return found


def to_number(text: str) -> float | None:
  """Returns the number that a text is; None if it is none."""
  try:
    return float(text)
  except ValueError:
    return None
