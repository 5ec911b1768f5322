"""Compares what a private run has left with its ledger and its flags."""

from collections.abc import Mapping
import dataclasses
import re
from typing import Any

from privacy import accounting
from privacy import ledger as ledger_lib
from privacy import parts
from privacy import releases
from privacy.audit import flags as flags_lib
from privacy.audit import results as results_lib

# Columns of rounds.csv on the clients of other splits, who are outside of the guarantee.
_OF_OTHER_CLIENTS = r"(test|validation)_({})_(mean|std|p\d+|superquantile_\d+|best_10)"
# Entries of manifest.json that bind a run.
_BINDING = {"flags": "SHA-256 of flags.txt", "commitments": "commitments to key and clients"}


def contradictions(
  ledger: ledger_lib.Ledger, flags: Mapping[str, str], results: results_lib.RunRecords
) -> list[str]:
  """Returns the contradictions between a run's ledger, its flags and its results, in sentences."""
  sentences = [
    f"{name} is in the folder, which holds exact numbers of training clients or times of rounds: no"
    " private run writes it."
    for name in results.spare
  ]
  if "train" in (results.metrics or {}):
    sentences.append(
      "metrics.json has the training clients, of whom a private run releases nothing."
    )
  return [
    *sentences,
    *_of_manifest(ledger, flags, results),
    *_of_rounds(ledger, flags, results),
    *_of_columns(ledger.release, flags, results.rounds),
    *_of_epsilons(ledger, results.rounds),
    *_of_model(ledger.release, results.num_parameters),
  ]


def _of_manifest(
  ledger: ledger_lib.Ledger, flags: Mapping[str, str], results: results_lib.RunRecords
) -> list[str]:
  manifest = results.manifest
  if manifest is None:
    return ["There is no manifest.json, which a run writes before its ledger."]
  sentences = []
  clients = results_lib.num_clients(manifest).get("train")
  if clients is None:
    sentences.append("manifest.json does not say how many training clients there are.")
  elif clients != ledger.release.cohort.population:
    sentences.append(
      f"manifest.json has {clients} training clients and the ledger a population of"
      f" {ledger.release.cohort.population}."
    )
  if str(manifest.get("seed")) != flags.get("seed"):
    sentences.append("manifest.json and flags.txt do not have the same seed.")
  if manifest.get("starts", []) != [dataclasses.asdict(start) for start in ledger.starts]:
    sentences.append("manifest.json and the ledger do not have the same starts.")
  if manifest.get("flags", results.flags_digest) != results.flags_digest:
    sentences.append("flags.txt is not the file whose SHA-256 is in manifest.json.")
  sentences += [
    f"manifest.json has no {words}." for name, words in _BINDING.items() if not manifest.get(name)
  ]
  for name in ("data", "seconds_per_round"):
    if manifest.get(name) is not None:
      sentences.append(f"manifest.json has {name}, which would tell something of training clients.")
  return sentences


def _of_rounds(
  ledger: ledger_lib.Ledger, flags: Mapping[str, str], results: results_lib.RunRecords
) -> list[str]:
  manifest = results.manifest or {}
  numbers = {
    "rounds.csv": results.rounds.done,
    "manifest.json": results.manifest_rounds or 0,
    "clients/": results.last_evaluated,
  }
  sentences = [
    f"{name} has {number} rounds and the ledger {ledger.rounds_done}: something was released that"
    " was not accounted for."
    for name, number in numbers.items()
    if number > ledger.rounds_done
  ]
  if "finished" not in manifest and results.metrics is None:
    if "rounds_done" in manifest or "kept_round" in manifest:
      sentences.append("manifest.json has the end of a run that has not finished.")
    return sentences
  left = {
    "the time of its end in manifest.json": "finished" in manifest,
    "metrics.json": bool(results.metrics),
    "weights.npz": results.num_parameters is not None,
  }
  sentences += [
    f"The run has finished and left no {name}; if it was killed at its very end, run it again."
    for name, is_there in left.items()
    if not is_there
  ]
  ends: dict[str, Any] = {
    "rounds.csv": results.rounds.done,
    "manifest.json": manifest.get("rounds_done"),
  }
  kept = manifest.get("kept_round")
  is_last = kept == results.manifest_rounds
  is_earlier = isinstance(kept, int) and 0 <= kept < (results.manifest_rounds or 0)
  if not (is_last or flags.get("keep") == "best" and is_earlier):
    sentences.append(f"manifest.json has the model of round {kept}, which is not that of the run.")
  if "patience" not in flags:
    ends["flags.txt"] = flags_lib.to_number(flags.get("num_rounds", ""))
  sentences += [
    f"The run has finished after {number} rounds by {name} and {ledger.rounds_done} by its ledger."
    for name, number in ends.items()
    if number != ledger.rounds_done
  ]
  return sentences


def _of_epsilons(ledger: ledger_lib.Ledger, rounds: results_lib.Rounds) -> list[str]:
  """Compares the column epsilon of rounds.csv with the costs of its rounds."""
  meter = accounting.Accountant(ledger.release, ledger.claim["delta"], ledger.accounting)
  for number, epsilon in rounds.epsilons:
    spent = meter.epsilon_at_most(number, ledger.num_rounds_planned)
    if not epsilon >= spent * (1.0 - flags_lib.TOLERANCE):
      return [f"rounds.csv has epsilon = {epsilon:.6g} in round {number}; it is {spent:.6g}."]
  return []


def _of_columns(
  release: releases.Release, flags: Mapping[str, str], rounds: results_lib.Rounds
) -> list[str]:
  """Compares the columns of rounds.csv with those that follow from a round's releases."""
  if not rounds.done:
    return []
  expected = {"epsilon"}.union(*(part.columns(rounds.columns) for part in release.parts))
  # A run writes its losses and errors, and the measures by which it is judged.
  measures = {"loss", "error", flags.get("metric", "error"), *flags.get("best_by", "").split(".")}
  other = re.compile(_OF_OTHER_CLIENTS.format("|".join(map(re.escape, measures - {""}))))
  columns = {name for name in rounds.columns if not other.fullmatch(name)}
  return [
    *(
      f"rounds.csv has the column {name}, which does not follow from the ledger's releases."
      for name in sorted(columns - expected)
    ),
    *(
      f"rounds.csv has no column {name}, which follows from the ledger's releases."
      for name in sorted(expected - columns)
    ),
  ]


def _of_model(release: releases.Release, num_parameters: int | None) -> list[str]:
  updates = release.find(parts.UpdateSum)
  summed = None if updates is None else updates.mechanism
  # Beside the numbers of an update there is that of its weight.
  if num_parameters is None or updates is None or summed is None:
    return []
  if summed.num_entries == num_parameters + updates.is_weighted:
    return []
  besides = " and a weight" if updates.is_weighted else ""
  return [
    f"weights.npz has {num_parameters} numbers{besides} and the ledger noise on"
    f" {summed.num_entries}."
  ]
