"""Folders of private runs as an audit reads them, made of a ledger."""

import csv
import hashlib
import json

import numpy as np

from helpers import flat
from privacy import accounting
from privacy import ledger


def flags_of(entry, **changes):
  """The flags of the run of a ledger, with changes; None for a flag that is not there."""
  release = entry.release
  z_q, z_w, z_b = flat.of(release).noise_multipliers
  has_budget = entry.claim["epsilon"] is not None
  rho_q, rho_w, rho_b = (0.0 if z is None else z**-2 for z in (z_q, z_w, z_b))
  values = dict(
    algorithm="superquantile",
    seed=0,
    num_rounds=entry.num_rounds_planned,
    **entry.claim,
    accounting=entry.accounting,
    clients_per_round=f"{flat.of(release).clients_per_round:g}",
    num_train_clients=0,
    sampling=flat.of(release).sampling,
    relation=release.relation,
    threshold=None if z_q is None else flat.of(release).threshold_kind,
    threshold_noise_multiplier=z_q,
    update_noise_multiplier=z_w,
    clip_count_noise_multiplier=z_b,
    num_bins=None if flat.of(release).tree is None else flat.of(release).tree.num_bins,
    rho_ratio=f"{rho_q / (rho_w + rho_b):.6g}" if has_budget and z_q else None,
    clip_rho_ratio=rho_b / rho_w if has_budget and z_b else None,
    clip_norm=entry.clip_norm or "adaptive",
    clip_unit="update",
    update_sum="central" if flat.of(release).update_sum is None else "distributed",
    noise_shares=flat.of(release).protocol,
    contacted_clients=flat.of(release).contacted,
    exact_siblings="refused",
    output_dir="results",
  )
  return {name: value for name, value in {**values, **changes}.items() if value is not None}


def ledger_of(
  release,
  rounds,
  *,
  done=None,
  claim=None,
  delta=1e-3,
  accountant="tightest",
  clip_norm=0.5,
  **entries,
):
  """The ledger of a run of so many rounds, of which all or some are done."""
  return ledger.build_ledger(
    accounting.Accountant(release, delta, accountant),
    claim_epsilon=claim,
    clip_norm=clip_norm,
    num_rounds_planned=rounds,
    rounds_done=rounds if done is None else done,
    **entries,
  )


def columns_of(release):
  """The columns of rounds.csv of a superquantile, or of an average weighted by losses."""
  z_q, _, z_b = flat.of(release).noise_multipliers
  columns = ["round", "test_error_p90", "epsilon"]
  if z_q is not None:
    columns += ["threshold", "estimated_tail_size"]
    if flat.of(release).threshold_kind == "tree":
      columns += ["estimated_cohort_size", "aborted"]
  return (
    columns
    + ["estimated_share_sum"] * flat.of(release).weighted_updates
    + ["clip_norm"] * bool(z_b)
  )


def write_json(path, value):
  path.write_text(json.dumps(value))


def write(folder, entry, rounds, *, of=None, columns=None, aborted=(), is_finished=True, **flags):
  """Writes the folder of a run of a ledger, or of a text in its place; returns its path.

  All else is that of the ledger `of`, which is `entry` if that is one. `rounds` is their number, or
  the numbers of the rows, and None is a flag without a value.
  """
  of = entry if of is None else of
  columns = columns_of(of.release) if columns is None else columns
  flags = {**flags_of(of), **flags}
  folder.mkdir(exist_ok=True, parents=True)
  (folder / "privacy.json").write_text(entry if isinstance(entry, str) else entry.to_json())
  numbers = list(range(rounds + 1)) if isinstance(rounds, int) else list(rounds)
  with open(folder / "rounds.csv", "w", newline="") as stream:
    writer = csv.writer(stream)
    writer.writerow(columns)
    for number in numbers:
      values = {"round": number, "aborted": int(number in aborted), "epsilon": 1e9}
      writer.writerow([values.get(name, 0.1) for name in columns])
  (folder / "clients").mkdir(exist_ok=True)
  for number in {0, max(numbers)}:
    (folder / "clients" / f"round_{number:07d}.parquet").write_bytes(b"")
  lines = [f"--{name}" + ("" if v is None else f"={v}") for name, v in flags.items()]
  write_flags(folder, lines)
  manifest = {
    "seed": 0,
    "data": None,
    "num_clients": {"train": of.release.cohort.population, "test": 9},
    "commitments": {"noise_key": "00", "clients": "11"},
    "flags": hashlib.sha256((folder / "flags.txt").read_bytes()).hexdigest(),
  }
  if is_finished:
    manifest.update(finished="now", rounds_done=max(numbers), kept_round=max(numbers))
    write_json(folder / "metrics.json", {"test": {"error": {"p90": 0.1}}})
    write_weights(folder, 24)
  write_json(folder / "manifest.json", manifest)
  return folder


def write_flags(folder, lines):
  (folder / "flags.txt").write_text("".join(f"{line}\n" for line in lines))


def write_weights(folder, num_parameters):
  """Writes a model of so many numbers, and a few that are not trained."""
  trainable = np.zeros(num_parameters, np.int8)
  np.savez(folder / "weights.npz", trainable_0=trainable, non_trainable_0=np.ones(3))
