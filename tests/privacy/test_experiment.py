"""Audits of several folders: who is measured by one run and protected by another, and the sum."""

import dataclasses
import json
import shutil

import flat
import pytest
import run_folders

from privacy import account
from privacy import accounting
from privacy.audit import experiment
from privacy.evaluation import entries
from privacy.evaluation import query as query_lib

_ROUNDS = 6
_RELEASE = flat.release(40, 8, None, 3.0)


def _change(path, **values):
  path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def _write_clients(folder, split, names):
  lines = ["client_id,num_examples,loss,error", *(f"{name},3,0.1,0.2" for name in names)]
  (folder / f"{split}_clients.csv").write_text("\n".join(lines) + "\n")


def _run(path, key, test=("a", "b"), validation=(), release=_RELEASE, task="own", delta=1e-3):
  """A private run that tests on some clients and trains on 40 others."""
  entry = run_folders.ledger_of(release, _ROUNDS, delta=delta)
  run_folders.write(path, entry, _ROUNDS, task=task)
  held_out = {"test": test, "validation": validation}
  for split, names in held_out.items():
    _write_clients(path, split, names)
  _change(
    path / "manifest.json",
    num_clients={"train": 40, **{split: len(names) for split, names in held_out.items()}},
    commitments={"noise_key": key, "clients": f"of {key}"},
  )
  return path


def _public(path, test=("a", "b")):
  """A run without privacy."""
  _run(path, "", test)
  (path / "privacy.json").unlink()
  return path


def _compose(folder):
  (members,) = experiment.read([folder]).populations.values()
  return experiment.compose(members)


def _epsilon(rounds, release=_RELEASE):
  return accounting.epsilon(release, rounds, 1e-3, "pld").epsilon


def test_seeds_with_one_split_add_up(tmp_path):
  for seed in range(3):
    _run(tmp_path / f"own/m/seed_{seed}", f"key {seed}")
  found = _compose(tmp_path)
  assert (found.failures, found.measured, len(found.members)) == ((), frozenset(), 3)
  assert found.spent.epsilon == pytest.approx(_epsilon(3 * _ROUNDS))
  assert found.sentence().endswith("for one client of all 3 private runs together.")


@pytest.mark.parametrize("split", ["test", "validation"])
def test_who_is_protected_by_one_run_and_measured_by_another(tmp_path, split):
  _run(tmp_path / "seed_0", "0", ("a", "b"))
  _run(tmp_path / "seed_1", "1", **{"test": ("a", "b"), split: ("b", "c")})
  found = _compose(tmp_path)
  expected = {"test": {"a", "c"}, "validation": {"c"}}[split]
  assert found.measured == expected
  assert found.sentence().startswith(f"NO finite epsilon for {len(expected)} clients; epsilon = ")
  assert any("seed_1 has exact numbers of 1 clients, such as c" in one for one in found.failures)


def test_runs_without_privacy_protect_nobody(tmp_path):
  _run(tmp_path / "own/private/seed_0", "0")
  _public(tmp_path / "own/public/seed_0")
  (failure,) = _compose(tmp_path).failures
  assert "public/seed_0 has trained without privacy" in failure
  _public(tmp_path / "own/public/seed_1", ("a", "z"))
  failures = _compose(tmp_path).failures
  assert any("such as z, whom 1 of the other private runs may train on" in one for one in failures)
  assert failures[-1].startswith("Each of 2 runs, such as ")


def test_where_it_cannot_be_told_runs_overlap(tmp_path):
  first = _run(tmp_path / "seed_0", "0")
  _run(tmp_path / "seed_1", "1")
  (first / "test_clients.csv").unlink()  # As where a run has not finished.
  found = _compose(tmp_path)
  assert found.measured == {"a", "b"}
  assert any("not named all clients that it measures" in one for one in found.failures)
  shutil.rmtree(tmp_path / "seed_1")
  assert _compose(tmp_path).failures == ()  # A run by itself is what its own audit says.


def test_data_sets_that_are_known_to_be_others_are_apart(tmp_path):
  for task in ("emnist_linear", "emnist_convnet", "sent140_linear", "own", "clinic"):
    _run(tmp_path / task / "m/seed_0", task, (task,) if task == "sent140_linear" else (), task=task)
  found = {name: len(members) for name, members in experiment.read([tmp_path]).populations.items()}
  assert found == {"emnist": 2, "sent140": 1, "other data": 2}


def test_one_key_for_two_runs_has_no_bound_and_a_copy_costs_nothing(tmp_path):
  first = _run(tmp_path / "seed_0", "same")
  shutil.copytree(first, tmp_path / "copy")
  found = _compose(tmp_path)
  assert found.failures == () and "is a copy of another run" in found.notes[0]
  assert found.spent.epsilon == pytest.approx(_epsilon(_ROUNDS), rel=2e-2)
  # A link to it, or its folder given twice, is the same folder.
  assert len(next(iter(experiment.read([tmp_path, first]).populations.values()))) == 2
  _run(tmp_path / "other", "same", release=flat.release(40, 8, None, 4.0))
  (failure,) = _compose(tmp_path).failures
  assert "have one key" in failure and failure.endswith("has no bound.")


def test_evaluations_of_training_clients_count(tmp_path):
  folder = _run(tmp_path / "seed_0", "0")
  query = query_lib.Query(40, 1.0, 1e-4, num_bins=4)
  z = query.release.effective_noise_multiplier
  new = entries.Evaluation("now", "m", "train", "error", query, z, (1.0,) * 4, {"mean": (0.5, 0.1)})
  held_out = dataclasses.replace(new, split="test")
  for content, is_more in ([held_out], False), ([new], True), ([held_out, new], True):
    (folder / entries.FILE_NAME).write_text(entries.to_json([one.to_dict() for one in content]))
    assert (_compose(tmp_path).spent.epsilon > 1.05 * _epsilon(_ROUNDS)) == is_more


def test_claims_in_different_relations(tmp_path):
  _run(tmp_path / "a", "0")
  stronger = flat.changed(_RELEASE, relation="replace_one")
  _run(tmp_path / "b", "1", release=stronger)
  found = _compose(tmp_path)
  assert any("different neighbouring relations" in note for note in found.notes)
  assert found.spent.epsilon == pytest.approx(_epsilon(2 * _ROUNDS, stronger))


def test_the_command(tmp_path, capsys):
  for seed in range(2):
    _run(tmp_path / f"own/m/seed_{seed}", f"key {seed}")
  assert account.run(["audit", str(tmp_path)]) == 0
  lines = capsys.readouterr().out.splitlines()
  own, both = _epsilon(_ROUNDS), _epsilon(2 * _ROUNDS)
  assert lines[0] == (
    f"{tmp_path} (other data): epsilon = {both:.4g} at delta = 0.001 for one client of all 2"
    " private runs together."
  )
  assert lines[1].split() == [f"{own:.5g}", "holds", str(tmp_path / "own/m/seed_0")]
  assert account.run(["audit", str(tmp_path), "--json"]) == 0
  (found,) = json.loads(capsys.readouterr().out)["populations"]
  assert found["epsilon"] == pytest.approx(both) and len(found["runs"]) == 2
  # Two folders, one of which claims too little.
  _change(tmp_path / "own/m/seed_1/privacy.json", epsilon_spent=0.1)
  folders = [str(tmp_path / f"own/m/seed_{seed}") for seed in range(2)]
  assert account.run(["audit", *folders]) == 1
  printed = " ".join(capsys.readouterr().out.split())
  assert "(other data): 1 of the claims do NOT hold; epsilon = " in printed
  assert (
    f"does NOT hold {folders[1]}" in printed
    and "The ledger says that 6 rounds spent epsilon" in printed
  )
  _public(tmp_path / "own/fed_avg/seed_0")
  assert account.run(["audit", str(tmp_path / "own")]) == 1
  assert "NO finite epsilon for some clients" in capsys.readouterr().out


@pytest.mark.parametrize("content", [None, "public"])
def test_folders_without_private_runs_are_refused(tmp_path, capsys, content):
  if content:
    _public(tmp_path / "own/m/seed_0")
  assert account.run(["audit", str(tmp_path)]) == 2
  assert "Found no privacy.json in or below" in capsys.readouterr().err
