"""Recomputes the budget that a finished or running experiment has really spent.

The audit reads `privacy.json` (see `ledger`), `rounds.csv` (one row a round, with its number in the
first column `round`, 0 for the initial model; a column `aborted` is optional), `flags.txt`
(`--name=value` a line) and, if they exist, `manifest.json` (the number of training clients),
`weights.npz` (the numbers of a model) and `evaluations.json` (see `evaluate.entries`). It believes
none of them: the budget follows from the parameters and from the larger number of rounds in the
files; the sums to which clients add noise are derived anew from noise multipliers and numbers of
clients; and the files must agree.
"""

from collections.abc import Sequence
import csv
import dataclasses
import io
import json
import math
import os
import pathlib
from typing import Any, Optional, Union

import numpy as np

from privacy import accounting
from privacy import calibration
from privacy import ledger as ledger_lib
from privacy import releases
from privacy import server as server_lib
from privacy import statements
from privacy.evaluate import entries

# Recomputing gives the same number up to another version's rounding.
_TOLERANCE = 1e-6
# Numbers in flags.txt may have been written with fewer digits.
_FLAG_TOLERANCE = 1e-5
_EMPTY = ("", "None")
_FALSE = (*_EMPTY, "0", "0.0", "False", "false")


@dataclasses.dataclass(frozen=True)
class Rounds:
  """The content of `rounds.csv`.

  Attributes:
    done: The number of rounds: different numbers, or the largest if rows are missing.
    repeated: The number of rows of rounds that have another row.
    aborted: The number of rounds without a result; None without such a column.
  """

  done: int
  repeated: int
  aborted: Optional[int]


@dataclasses.dataclass(frozen=True)
class Audit:
  """The findings of an audit.

  Attributes:
    ledger: The folder's ledger.
    rounds: The content of `rounds.csv`.
    num_rounds: The number of rounds that is accounted for.
    spent: The cost of these rounds.
    epsilon_rdp: Their cost by RDP; None where that does not apply.
    server: Their cost for a client against the server.
    epsilon_planned: The cost of all planned rounds.
    failures: Sentences that contradict the claim; empty if it holds.
    notes: Further remarks, in sentences.
  """

  ledger: ledger_lib.Ledger
  rounds: Rounds
  num_rounds: int
  spent: accounting.Spent
  epsilon_rdp: Optional[float]
  server: server_lib.ServerSpent
  epsilon_planned: float
  failures: tuple[str, ...]
  notes: tuple[str, ...]

  @property
  def holds(self) -> bool:
    """Whether the claim holds."""
    return not self.failures


def _read(folder: pathlib.Path, name: str) -> str:
  try:
    with open(folder / name, encoding="utf-8", errors="replace", newline="") as stream:
      return stream.read()
  except FileNotFoundError:
    raise ValueError(
      f"Found no {name} in {os.fspath(folder)!r}; expected the folder of a private run."
    ) from None


def read_rounds(text: str) -> Rounds:
  """Reads `rounds.csv`.

  Args:
    text: Its content. A last line without an end is one that its writer has not finished.

  Returns:
    The content.

  Raises:
    ValueError: If its first column isn't `round`, or a round has no number.
  """
  rows = list(csv.reader(io.StringIO(text[: text.rfind("\n") + 1])))
  rows = [row for row in rows if row]
  if not rows or rows[0][0] != "round":
    raise ValueError("Found a rounds.csv without the column round; expected it to be the first.")
  header, rows = rows[0], rows[1:]
  numbers = []
  for row in rows:
    try:
      number = float(row[0])
    except ValueError:
      number = math.nan
    if not (number >= 0 and number == int(number)):
      raise ValueError(f"Found round {row[0]!r} in rounds.csv; expected a whole number.")
    numbers.append(int(number))
  done = {number for number in numbers if number > 0}  # Round 0 evaluates the initial model.
  aborted = None
  if "aborted" in header:
    column = header.index("aborted")
    aborted = len(
      {
        number
        for number, row in zip(numbers, rows)
        if number > 0 and len(row) > column and row[column].strip() not in _FALSE
      }
    )
  repeated = sum(number > 0 for number in numbers) - len(done)
  return Rounds(max(len(done), max(done, default=0)), repeated, aborted)


def read_flags(text: str) -> dict[str, str]:
  """Reads `flags.txt`: values by name, of lines like `--name=value`."""
  found = {}
  for line in text.splitlines():
    if line.startswith("-"):
      name, equals, value = line.lstrip("-").partition("=")
      found[name.strip()] = value.strip() if equals else "true"
  return found


def _contradictions(flags: dict[str, str], ledger: ledger_lib.Ledger) -> list[str]:
  """Returns the contradictions between the flags of a run and its ledger."""
  release = ledger.release
  z_q, z_w, z_b = release.noise_multipliers
  flags = {name: value for name, value in flags.items() if value not in _EMPTY}
  if flags.get("clip_unit") == "gradient" and flags.get("clip_norm", "adaptive") != "adaptive":
    # The ledger has the norm of updates, the learning rate times that of gradients.
    rate, norm = (_to_number(flags.get(name, "")) for name in ("client_learning_rate", "clip_norm"))
    del flags["clip_norm"]
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
    "population": release.population,
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
  found = []
  for name, entry in entries.items():
    if name not in flags or flags[name] == entry:
      continue
    number = _to_number(flags[name])
    if isinstance(entry, (int, float)) and number is not None:
      if math.isclose(number, entry, rel_tol=_FLAG_TOLERANCE):
        continue
    said = "none" if entry is None else f"{entry:.6g}" if isinstance(entry, float) else str(entry)
    found.append(f"flags.txt has --{name}={flags[name]} and the ledger {said}.")
  start = flags.get("initial_weights_fingerprint")
  if start != (ledger.starts[0].fingerprint if ledger.starts else None):
    found.append("flags.txt and the ledger do not name the same initial weights.")
  rounds = _to_number(flags.get("num_rounds", ""))
  if rounds is not None and rounds > ledger.num_rounds_planned:
    found.append(
      f"flags.txt has --num_rounds={rounds:g} and the ledger {ledger.num_rounds_planned} planned"
      " rounds."
    )
  # A larger population than the real one would mean a smaller sampling probability.
  clients = _to_number(flags.get("num_train_clients", ""))
  if clients and release.population > clients:
    found.append(
      f"flags.txt has --num_train_clients={clients:g} and the ledger a population of"
      f" {release.population}."
    )
  return found


def _wrong_mechanisms(ledger: ledger_lib.Ledger) -> list[str]:
  """Returns differences between the clients' noise and that of the ledger's own numbers."""
  release = ledger.release
  if ledger.accounting == ledger_lib.PAPER:
    return []  # It has other sensitivities; its claim is compared with the noise itself.
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
        same = math.isclose(has, wanted, rel_tol=_TOLERANCE)
      if not same:
        found.append(
          f"The ledger's {name} has {field.name} = {has}; the noise multiplier and the clients of a"
          f" round ask for {wanted}."
        )
  return found


def _wrong_numbers(
  release: releases.Release, num_clients: Optional[int], num_parameters: Optional[int]
) -> list[str]:
  """Returns differences between the ledger's population and model and those of the run."""
  found = []
  if num_clients is not None and release.population != num_clients:
    found.append(
      f"manifest.json has {num_clients} training clients and the ledger a population of"
      f" {release.population}."
    )
  summed = release.update_sum
  if num_parameters is not None and summed is not None:
    # Beside the numbers of an update there is that of its weight.
    if summed.num_entries != num_parameters + release.weighted_updates:
      besides = " and a weight" if release.weighted_updates else ""
      found.append(
        f"weights.npz has {num_parameters} numbers{besides} and the ledger noise on"
        f" {summed.num_entries}."
      )
  return found


def _to_number(text: str) -> Optional[float]:
  try:
    return float(text)
  except ValueError:
    return None


def audit_folder(folder: Union[str, os.PathLike]) -> Audit:
  """Recomputes the budget of a run from its folder.

  Args:
    folder: The folder of the run, finished or not.

  Returns:
    The findings.

  Raises:
    ValueError: If it isn't the folder of a private run, or a file cannot be read.
  """
  folder = pathlib.Path(folder)
  if not folder.is_dir():
    raise ValueError(f"Found no folder {os.fspath(folder)!r}; expected that of a private run.")
  ledger = ledger_lib.Ledger.from_json(_read(folder, ledger_lib.FILE_NAME))
  if ledger.rounds_done == 0 and not (folder / "rounds.csv").exists():
    rounds = Rounds(0, 0, None)
  else:
    rounds = read_rounds(_read(folder, "rounds.csv"))
  flags = read_flags(_read(folder, "flags.txt"))
  found = [*_contradictions(flags, ledger), *_wrong_mechanisms(ledger)]
  found += _wrong_numbers(ledger.release, _num_clients(folder), _num_parameters(folder))
  wrong_evaluations, costs = entries.audit(folder, ledger)
  audited = _audit(ledger, rounds, [*found, *wrong_evaluations])
  return dataclasses.replace(audited, notes=(*audited.notes, *costs))


def _num_clients(folder: pathlib.Path) -> Optional[int]:
  """Returns the number of training clients in the run's manifest; None without one."""
  try:
    found = json.loads(_read(folder, "manifest.json")).get("num_clients", {}).get("train")
  except (ValueError, AttributeError):
    return None
  return found if isinstance(found, int) else None


def _num_parameters(folder: pathlib.Path) -> Optional[int]:
  """Returns the number of trained weights; None before the run's end."""
  try:
    with np.load(folder / "weights.npz") as arrays:
      return sum(arrays[name].size for name in arrays if name.startswith("trainable"))
  except (OSError, ValueError):
    return None


def _audit(ledger: ledger_lib.Ledger, rounds: Rounds, contradictions: Sequence[str]) -> Audit:
  release, delta, claim = ledger.release, ledger.claim["delta"], ledger.claim["epsilon"]
  num_rounds = max(rounds.done, ledger.rounds_done)
  # The paper's accounting is no guarantee; its claim is compared with the cost of its noise.
  accountant = ledger.accounting
  if accountant == ledger_lib.PAPER:
    accountant = accounting.TIGHTEST
  meter = accounting.Meter(release, delta, accountant)
  spent = meter.spent(num_rounds)
  planned = max(num_rounds, ledger.num_rounds_planned)
  epsilon_planned = meter.epsilon(planned)

  failures = []
  if rounds.done > ledger.rounds_done:
    failures.append(
      f"rounds.csv has {rounds.done} rounds and the ledger {ledger.rounds_done}: something was"
      " released that was not accounted for."
    )
  if claim is not None and spent.epsilon > claim * (1.0 + _TOLERANCE):
    failures.append(
      f"{num_rounds} rounds cost epsilon = {spent.epsilon:.6g}, more than the claimed {claim:.6g}."
    )
  recorded = ledger_lib.spent(release, ledger.rounds_done, delta, ledger.accounting)
  if ledger.epsilon_spent < recorded * (1.0 - _TOLERANCE):
    failures.append(
      f"The ledger says that {ledger.rounds_done} rounds spent epsilon ="
      f" {ledger.epsilon_spent:.6g}; it is {recorded:.6g}."
    )
  server = server_lib.server_epsilon(release, ledger.num_rounds_planned, delta).epsilon
  of_server = ledger.epsilon_server
  if of_server is not None and (server is None or of_server < server * (1.0 - _TOLERANCE)):
    failures.append(
      f"The ledger says that the run costs epsilon = {of_server:.6g} against the server; it is"
      f" {'without any' if server is None else f'{server:.6g}'}."
    )
  said = ledger_lib.sentences(release, ledger.num_rounds_planned, delta, ledger.accounting)
  if (ledger.guarantee, ledger.not_covered) != (said, statements.not_covered(ledger.starts)):
    failures.append("The ledger's sentences are not those that follow from its numbers.")
  failures.extend(contradictions)

  notes = []
  if ledger.accounting == ledger_lib.PAPER:
    notes.extend(statements.paper_caveat(release, max(1, num_rounds), delta))
  if claim is None:
    notes.append("The run claims no limit on epsilon.")
  elif spent.epsilon <= claim * (1.0 + _TOLERANCE) < epsilon_planned:
    notes.append(
      f"All {planned} planned rounds would cost epsilon = {epsilon_planned:.6g}, more than the"
      f" claimed {claim:.6g}."
    )
  if rounds.repeated:
    notes.append(
      f"{rounds.repeated} rows of rounds.csv repeat a round after a resumption. They count once,"
      " since the same noise key draws the same cohort and noise."
    )
  if rounds.aborted:
    notes.append(f"{rounds.aborted} rounds were aborted. They count as the others do.")
  warning = accounting.delta_warning(delta, release.population)
  if warning is not None:
    notes.append(warning)
  return Audit(
    ledger=ledger,
    rounds=rounds,
    num_rounds=num_rounds,
    spent=spent,
    epsilon_rdp=accounting.epsilon_or_none(release, num_rounds, delta, accounting.RDP),
    server=server_lib.server_epsilon(release, num_rounds, delta),
    epsilon_planned=epsilon_planned,
    failures=tuple(failures),
    notes=tuple(notes),
  )
