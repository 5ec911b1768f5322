"""Ledgers: written, read again, and audited against the folders that they are found in."""

import csv
import dataclasses
import json
import time

import pytest

from privacy import accounting
from privacy import audit
from privacy import ledger
from privacy import statements
from privacy import sum_mechanism

_DELTA = 1e-5
_PLANNED = 50
_RELEASE = accounting.calibrate(
  3,
  _DELTA,
  population=600,
  clients_per_round=60,
  num_rounds=_PLANNED,
  rho_ratio=0.5,
  num_bins=64,
)
_GEOMETRIC = accounting.Release(600, 60, 8.0, 1.0, threshold_kind="geometric")


def _ledger(release=_RELEASE, rounds_done=_PLANNED, claim=3.0, **kwargs):
  return ledger.build_ledger(
    release,
    claim_epsilon=claim,
    delta=_DELTA,
    clip_norm=0.5,
    num_rounds_planned=_PLANNED,
    rounds_done=rounds_done,
    **kwargs,
  )


def _folder(path, entry=None, rounds=_PLANNED, flags=None, aborted=None):
  """A run's folder."""
  entry = _ledger() if entry is None else entry
  path.mkdir(exist_ok=True)
  (path / "privacy.json").write_text(entry.to_json() if hasattr(entry, "to_json") else entry)
  with open(path / "rounds.csv", "w", newline="") as stream:
    writer = csv.writer(stream)
    writer.writerow(["round", "seconds"] + ([] if aborted is None else ["aborted"]))
    for number in range(rounds + 1) if isinstance(rounds, int) else rounds:
      row = [number, 0.1]
      if aborted is not None:
        row.append(int(number in aborted))
      writer.writerow(row)
  values = dict(
    epsilon=3.0,
    delta=_DELTA,
    clients_per_round=60,
    num_rounds=_PLANNED,
    sampling="poisson",
    threshold="tree",
    num_bins=64,
    rho_ratio=0.5,
    clip_norm=0.5,
    clip_unit="update",
    threshold_noise_multiplier=_RELEASE.threshold_noise_multiplier,
    update_noise_multiplier=_RELEASE.update_noise_multiplier,
    num_train_clients=0,
    noprivate=None,
  )
  values.update(flags or {})
  (path / "flags.txt").write_text(
    "".join(
      f"--{name}" + ("" if value is None else f"={value}") + "\n" for name, value in values.items()
    )
  )
  return path


@pytest.mark.parametrize(
  "entry",
  [
    _ledger(),
    _ledger(rounds_done=0),
    _ledger(_GEOMETRIC, claim=None),
    _ledger(accountant="paper"),
    _ledger(accountant="pld", rounds_done=3),
  ],
)
def test_round_trip(entry):
  found = ledger.Ledger.from_json(entry.to_json())
  assert found == entry
  assert found.release.tree == entry.release.tree
  assert json.loads(entry.to_json())["release"]["population"] == 600


def test_contents():
  entry = _ledger(rounds_done=10)
  assert entry.epsilon_spent == accounting.epsilon(_RELEASE, 10, _DELTA).epsilon
  assert entry.epsilon_server == accounting.server_epsilon(_RELEASE, 10, _DELTA).epsilon
  assert entry.claim == {"epsilon": 3.0, "delta": _DELTA}
  said = " ".join(entry.guarantee)
  for words in (
    "Gaussian mechanism",
    "zero-out",
    "Poisson",
    "probability 0.1",
    "Adversary",
    f"fewer than {_RELEASE.tree.min_clients}",
  ):
    assert words in said
  not_covered = " ".join(entry.not_covered)
  for words in ("hyperparameters", "held-out clients", "seed", "secret"):
    assert words in not_covered
  assert _ledger(_GEOMETRIC).epsilon_server is None
  assert "one-bit" in _ledger(_GEOMETRIC).guarantee[0]
  assert "NOT a guarantee" in _ledger(accountant="paper").guarantee[0]


def test_quick_enough_for_every_round():
  meter = accounting.Meter(_RELEASE, _DELTA)
  _ledger(meter=meter)
  start = time.process_time()
  for rounds in range(20):
    _ledger(rounds_done=rounds, meter=meter)
  assert (time.process_time() - start) / 20 < 0.1


def test_meter_of_something_else():
  with pytest.raises(ValueError, match="meter"):
    _ledger(meter=accounting.Meter(_RELEASE, 1e-6))
  with pytest.raises(ValueError, match="rdp, pld, paper"):
    _ledger(accountant="zcdp")


@pytest.mark.parametrize(
  "change,message",
  [
    (lambda e: "{", "not JSON"),
    (lambda e: "[]", "no JSON object"),
    (lambda e: e.pop("claim"), "differ.*claim"),
    (lambda e: e.update(spare=1), "differ.*spare"),
    (lambda e: e.update(accounting="magic"), "magic"),
    (lambda e: e.update(rounds_done=-1), "rounds_done = -1"),
    (lambda e: e.update(rounds_done=2.5), "rounds_done = 2.5"),
    (lambda e: e.update(epsilon_spent=None), "epsilon_spent"),
    (lambda e: e.update(epsilon_spent="1"), "epsilon_spent"),
    (lambda e: e.update(claim=3), "claim"),
    (lambda e: e["claim"].update(delta=2), "delta = 2"),
    (lambda e: e["claim"].update(delta="x"), "delta = 'x'"),
    (lambda e: e.update(guarantee="fine"), "guarantee"),
    (lambda e: e.update(release=None), "release"),
    (lambda e: e["release"].pop("sampling"), "sampling"),
    (lambda e: e["release"].update(update_noise_multiplier=-1), "update_noise_multiplier = -1"),
    (lambda e: e["release"].update(tree=7), "tree that is no JSON object"),
    (lambda e: e["release"]["tree"].pop("scale"), "scale"),
    (lambda e: e["release"]["tree"].update(local_stddev="x"), "cannot be read"),
  ],
)
def test_bad_ledgers(tmp_path, change, message):
  entry = json.loads(_ledger().to_json())
  text = change(entry)
  text = text if isinstance(text, str) and text in ("{", "[]") else json.dumps(entry)
  with pytest.raises(ValueError, match=message):
    ledger.Ledger.from_json(text)
  with pytest.raises(ValueError, match=message):
    audit.audit_folder(_folder(tmp_path / "run", text))


def test_good_folders(tmp_path):
  found = audit.audit_folder(_folder(tmp_path))
  assert found.holds
  assert found.failures == found.notes == ()
  assert found.num_rounds == _PLANNED
  assert 2.99 < found.spent.epsilon <= 3.0
  assert found.epsilon_pld < found.spent.epsilon
  assert found.rounds.aborted is None


def test_a_running_run(tmp_path):
  folder = _folder(tmp_path, _ledger(rounds_done=20), rounds=18)
  with open(folder / "rounds.csv", "a") as stream:
    stream.write("19,0")  # Not written to its end yet.
  found = audit.audit_folder(folder)
  assert found.holds
  assert (found.num_rounds, found.rounds.done) == (20, 18)
  assert found.spent.epsilon == accounting.epsilon(_RELEASE, 20, _DELTA).epsilon


def test_a_run_before_its_first_round(tmp_path):
  folder = _folder(tmp_path, _ledger(rounds_done=0))
  (folder / "rounds.csv").unlink()
  found = audit.audit_folder(folder)
  assert found.holds
  assert found.spent.epsilon == 0.0


def test_an_audit_fails_where_noise_shows_the_size_of_the_cohorts(tmp_path):
  limits = accounting.cohort_bounds(
    _GEOMETRIC.population, _GEOMETRIC.clients_per_round, _PLANNED, _DELTA
  )
  failed = []
  for num_entries in (7200, 7201):  # 2 m^2 with 60 clients a round, and one more.
    update_sum = sum_mechanism.build_sum_mechanism(
      _GEOMETRIC.update_noise_multiplier,
      0.5,
      num_entries,
      min_clients=limits[0],
      max_clients=limits[1],
    )
    release = dataclasses.replace(_GEOMETRIC, update_sum=update_sum)
    folder = _folder(tmp_path / str(num_entries), _ledger(release, claim=None))
    failed.append(any("NOT a guarantee" in text for text in audit.audit_folder(folder).failures))
  assert failed == [False, True]


def test_repeated_and_aborted_rounds(tmp_path):
  rounds = [*range(30), *range(20, _PLANNED + 1)]
  found = audit.audit_folder(_folder(tmp_path, rounds=rounds, aborted={7, 25}))
  assert found.holds
  assert (found.rounds.done, found.rounds.repeated, found.rounds.aborted) == (_PLANNED, 10, 2)
  assert "10 rows" in found.notes[0] and "2 rounds were aborted" in found.notes[1]


def test_rows_that_were_removed(tmp_path):
  entry = _ledger(rounds_done=10)
  found = audit.audit_folder(_folder(tmp_path, entry, rounds=[1, 2, _PLANNED]))
  assert not found.holds
  assert found.num_rounds == _PLANNED


def test_more_rounds_than_the_ledger_has(tmp_path):
  found = audit.audit_folder(_folder(tmp_path, _ledger(rounds_done=40)))
  assert not found.holds
  assert found.failures[0].startswith(f"rounds.csv has {_PLANNED} rounds and the ledger 40")


def test_overspent(tmp_path):
  entry = _ledger(rounds_done=_PLANNED + 5)
  found = audit.audit_folder(_folder(tmp_path, entry))
  assert not found.holds
  assert "more than the claimed 3" in found.failures[0]


def test_plans_that_go_too_far(tmp_path):
  entry = dataclasses.replace(_ledger(rounds_done=40), num_rounds_planned=100)
  found = audit.audit_folder(_folder(tmp_path, entry, rounds=40))
  assert found.holds
  assert "All 100 planned rounds would cost" in found.notes[0]


def test_a_ledger_that_says_too_little(tmp_path):
  found = audit.audit_folder(_folder(tmp_path, dataclasses.replace(_ledger(), epsilon_spent=2.0)))
  assert not found.holds
  assert "The ledger says" in found.failures[0]


@pytest.mark.parametrize(
  "flags,holds",
  [
    (dict(update_noise_multiplier=0.5), False),
    (dict(threshold_noise_multiplier=1.0), False),
    (dict(clients_per_round=120), False),
    (dict(epsilon=8), False),
    (dict(delta=1e-3), False),
    (dict(sampling="fixed_size"), False),
    (dict(sampling="none"), False),
    (dict(threshold="geometric"), False),
    (dict(num_bins=32), False),
    (dict(rho_ratio=0.1), False),
    (dict(clip_norm=5), False),
    (dict(clip_norm="five"), False),
    (dict(num_rounds=_PLANNED + 1), False),
    (dict(num_rounds=_PLANNED - 1), True),
    (dict(num_train_clients=300), False),
    (dict(num_train_clients=700), True),
    (dict(population=300), False),
    (dict(clip_norm=5, clip_unit="gradient", client_learning_rate=0.1), True),
    (dict(clip_norm=0.5, clip_unit="gradient", client_learning_rate=0.1), False),
    (dict(rho_ratio="", epsilon="None"), True),
    (dict(task="synthetic"), True),
  ],
)
def test_flags_against_the_ledger(tmp_path, flags, holds):
  found = audit.audit_folder(_folder(tmp_path, flags=flags))
  assert found.holds is holds, found.failures
  if not holds:
    assert len(found.failures) == 1
    assert "flags.txt has --" in found.failures[0]


def test_a_run_without_a_claim(tmp_path):
  entry = _ledger(claim=None)
  found = audit.audit_folder(_folder(tmp_path, entry, flags=dict(epsilon="")))
  assert found.holds
  assert "no limit" in found.notes[0]
  assert not audit.audit_folder(_folder(tmp_path, entry)).holds


def test_a_claim_by_the_papers_accounting_is_held_against_the_truth(tmp_path):
  release = dataclasses.replace(_GEOMETRIC, threshold_noise_multiplier=None, sampling="fixed_size")
  entry = _ledger(release, accountant="paper")
  entry = dataclasses.replace(entry, claim={"epsilon": entry.epsilon_spent, "delta": _DELTA})
  folder = _folder(tmp_path, entry)
  (folder / "flags.txt").write_text("--sampling=fixed_size\n")
  found = audit.audit_folder(folder)
  assert not found.holds
  assert "NOT a guarantee" in found.notes[0]


def test_bad_folders(tmp_path):
  with pytest.raises(ValueError, match="no folder"):
    audit.audit_folder(tmp_path / "nowhere")
  for name in ("privacy.json", "rounds.csv", "flags.txt"):
    folder = _folder(tmp_path / name)
    (folder / name).unlink()
    with pytest.raises(ValueError, match=f"no {name}"):
      audit.audit_folder(folder)
  folder = _folder(tmp_path / "run")
  for text, message in (
    ("", "column round"),
    ("number\n1\n", "column round"),
    ("round\nx\n", "round 'x'"),
    ("round\n-1\n", "round '-1'"),
    ("round\n1.5\n", "round '1.5'"),
  ):
    (folder / "rounds.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
      audit.audit_folder(folder)


def test_a_large_delta_is_mentioned(tmp_path):
  entry = ledger.build_ledger(
    _GEOMETRIC,
    claim_epsilon=None,
    delta=0.01,
    clip_norm=0.5,
    num_rounds_planned=5,
    rounds_done=5,
  )
  folder = _folder(tmp_path, entry, rounds=5)
  (folder / "flags.txt").write_text("")
  assert "one client chosen at random" in audit.audit_folder(folder).notes[-1]


def test_sentences():
  fixed = statements.guarantee(accounting.Release(600, 60, 3, None, "fixed_size"))
  assert "replace one client" in fixed[1] and "60 of 600 clients" in fixed[2]
  assert "thresholds of all rounds" in fixed[3] and "models" not in fixed[3]
  none = statements.guarantee(accounting.Release(600, 60, None, 2, "none"))
  assert "none that counts" in none[2] and "and the cohorts" in none[3]
