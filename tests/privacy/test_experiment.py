"""Audits of several folders: who is measured by one run and protected by another, and the sum."""

import dataclasses
import hashlib
import json
import os
import shutil
import sys

from helpers import client_tables
from helpers import flat
from helpers import run_folders
import pyarrow as pa
from pyarrow import parquet
import pytest

from privacy import account
from privacy import accounting
from privacy import statements
from privacy import tables
from privacy.audit import experiment
from privacy.audit import members as members_lib
from privacy.evaluation import entries
from privacy.evaluation import query as query_lib

_ROUNDS = 6
_RELEASE = flat.release(40, 8, None, 3.0)


def _change(path, **values):
  path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def _write_clients(folder, split, names):
  lines = ["client_id,num_examples,loss,error", *(f"{name},3,0.1,0.2" for name in names)]
  (folder / f"{split}_clients.csv").write_text("\n".join(lines) + "\n")


def _run(
  path, key, test=("a", "b"), validation=(), release=_RELEASE, task="own", starts=(), **flags
):
  """A private run that tests on some clients and trains on 40 others."""
  entry = run_folders.ledger_of(release, _ROUNDS, starts=starts)
  run_folders.write(path, entry, _ROUNDS, task=task, **flags)
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


def _compose(*folders):
  found = members_lib.read(folders)
  (members,) = found.populations.values()
  return experiment.compose(members, found.unread)


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
  found = {name: len(members) for name, members in members_lib.read([tmp_path]).populations.items()}
  assert found == {"emnist": 2, "sent140": 1, "other data": 2}
  # One from outside with such a name may have anybody's clients.
  _run(tmp_path / "mine/m/seed_0", "mine", task="emnist_mine:TASK")
  populations = members_lib.read([tmp_path]).populations
  found = {name: len(members) for name, members in populations.items()}
  assert found == {"emnist": 3, "sent140": 2, "other data": 3}


def test_one_key_for_two_runs_has_no_bound_and_a_copy_costs_nothing(tmp_path):
  first = _run(tmp_path / "seed_0", "same")
  shutil.copytree(first, tmp_path / "copy")
  found = _compose(tmp_path)
  assert found.failures == () and "is a copy of another run" in found.notes[0]
  assert found.spent.epsilon == pytest.approx(_epsilon(_ROUNDS), rel=2e-2)
  # A link to it, or its folder given twice, is the same folder.
  assert len(next(iter(members_lib.read([tmp_path, first]).populations.values()))) == 2
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


def test_a_copy_has_evaluations_of_its_own(tmp_path):
  query = query_lib.Query(40, 1.0, 1e-4, num_bins=4)
  z = query.release.effective_noise_multiplier
  numbers = [(float(n),) * 4 for n in range(3)]
  first, second, third = (
    entries.Evaluation("now", "m", "train", "error", query, z, counts, {}).to_dict()
    for counts in numbers
  )
  original = _run(tmp_path / "seed_0", "0")
  (original / entries.FILE_NAME).write_text(json.dumps([first]))
  one = _compose(tmp_path).spent.epsilon
  shutil.copytree(original, tmp_path / "copy")
  assert _compose(tmp_path).spent.epsilon == one
  (tmp_path / "copy" / entries.FILE_NAME).write_text(json.dumps([first, second]))
  two = _compose(tmp_path).spent.epsilon
  (original / entries.FILE_NAME).write_text(json.dumps([first, third]))
  assert one < two < _compose(tmp_path).spent.epsilon


def test_compose_counts_what_the_audit_counts(tmp_path, capsys):
  def epsilon(command, *paths):
    assert account.run([command, *map(str, paths), "--json"]) in (0, 1)
    answer = json.loads(capsys.readouterr().out)
    return answer["epsilon"] if command == "compose" else answer["populations"][0]["epsilon"]

  folder = _run(tmp_path / "seed_0", "0")
  query = query_lib.Query(40, 1.0, 1e-4, num_bins=4)
  z = query.release.effective_noise_multiplier
  new = entries.Evaluation("now", "m", "train", "error", query, z, (1.0,) * 4, {"mean": (0.5, 0.1)})
  (folder / entries.FILE_NAME).write_text(entries.to_json([new.to_dict(), new.to_dict()]))
  one = epsilon("audit", tmp_path)
  # Its ledger lies beside its evaluations; by itself it says nothing of them.
  assert epsilon("compose", folder) == epsilon("compose", folder / "privacy.json") == one
  (tmp_path / "alone.json").write_text((folder / "privacy.json").read_text())
  assert epsilon("compose", tmp_path / "alone.json") == _epsilon(_ROUNDS) < one
  _run(tmp_path / "seed_1", "1")
  assert epsilon("compose", tmp_path) == epsilon("audit", tmp_path) > one
  _run(tmp_path / "other", "1", release=flat.release(40, 8, None, 4.0))
  assert account.run(["compose", str(tmp_path)]) == account.USAGE_ERROR
  assert "have one key" in capsys.readouterr().err


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


# Tables of clients wherever they are.


@pytest.mark.parametrize(
  "kind, place",
  [
    *((kind, "") for kind in client_tables.KINDS),
    *(("commas", f"own/m{below}") for below in ("/..", "", "/seed_0", "/seed_0/clients")),
    ("commas", "x/y"),
  ],
)
def test_a_table_counts_wherever_it_lies_and_whatever_it_is_called(tmp_path, kind, place):
  _run(tmp_path / "own/m/seed_0", "0")
  folder = tmp_path / place
  folder.mkdir(parents=True, exist_ok=True)
  for name, encoding in (("later.csv", "utf-8"), ("notes.txt", "utf-8-sig"), (".it", "utf-16")):
    (folder / name).write_text(client_tables.KINDS[kind], encoding=encoding)
    found = _compose(tmp_path)
    assert found.measured == {"z"}, name
    (failure,) = found.failures
    assert "exact numbers of 1 clients, such as z," in failure
    (folder / name).unlink()
  (folder / "later.csv").write_text("client_id,loss\nb,0.1\n")  # Of a test client alone.
  (folder / "README").write_text("About a column client_id.\nz,0.1\n")
  (folder / "other.json").write_text('[{"client_ids": ["z"], "site": "client_id z"}]')
  (folder / "other.csv").write_text("site,client_ids\nz,z\n\nclient_id,loss\nz,0.2\n")
  assert _compose(tmp_path).failures == ()


def test_the_audit_of_a_run_reads_the_tables_in_its_folder(tmp_path, capsys):
  run = _run(tmp_path / "own/m/seed_0", "0")
  assert account.run(["audit", str(run)]) == 0
  (run / "more").mkdir()
  # Its one entry lies across what is read at once.
  text = json.dumps(["x" * (tables._HEAD - 11), {"client_id": "z"}])
  assert tables._HEAD - 9 < text.index("client_id") < tables._HEAD
  (run / "more/all.json").write_text(text)
  for folder in (run, run.parent):
    assert account.run(["audit", str(folder)]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert f"{run} has exact numbers of 1 clients, such as z, in a table beside those of" in said


def test_a_table_is_a_row_of_the_answer(tmp_path, capsys):
  _run(tmp_path / "own/m/seed_0", "0")
  (tmp_path / "later").write_text(client_tables.KINDS["commas"])
  assert account.run(["audit", str(tmp_path)]) == 1
  printed = capsys.readouterr().out
  assert "NO finite epsilon for 1 clients" in printed
  assert f"  {'table of clients':<26}{tmp_path / 'later'}\n" in printed
  # It may be about the clients of any run.
  _run(tmp_path / "sent140_linear/m/seed_0", "1", task="sent140_linear")
  assert account.run(["audit", "--json", str(tmp_path)]) == 1
  found = json.loads(capsys.readouterr().out)["populations"]
  assert {entry["population"]: entry["measured"] for entry in found} == {
    "other data": ["z"],
    "sent140": ["z"],
  }


def test_parquet_counts_and_what_cannot_be_read_is_said(tmp_path, monkeypatch):
  run = _run(tmp_path / "own/m/seed_0", "0")
  table = {"split": ["test", "train"], "client_id": ["a", "z"]}
  parquet.write_table(pa.table(table), tmp_path / "later")
  assert _compose(tmp_path).measured == {"z"}
  # A finished run evaluates whom it names; before it has finished, nobody knows better.
  shutil.move(tmp_path / "later", run / "clients/round_0000006.parquet")
  assert _compose(tmp_path).measured == {"z"}
  (run / "test_clients.csv").unlink()
  assert _compose(tmp_path).measured == frozenset()
  _write_clients(run, "test", ("a", "b"))
  monkeypatch.setitem(sys.modules, "pyarrow", None)
  (tmp_path / "numbers.bin").write_bytes(b"client_id\0a")
  os.symlink(tmp_path / "nowhere", tmp_path / "lost.csv")
  os.mkfifo(tmp_path / "pipe")
  found = _compose(tmp_path)
  assert found.failures == ()
  (note,) = (note for note in found.notes if note.startswith("Not read: "))
  assert note.startswith("Not read: 4 files, such as ")  # And not weights.npz.


@pytest.mark.parametrize(
  "name, other", [("-5", "-5.0"), ("7", "007"), ("=x", "=x"), ("é", "e\u0301")]
)
def test_a_client_is_one_in_all_spellings(tmp_path, name, other):
  run = _run(tmp_path / "own/m/seed_0", "0", ())
  (run / "test_clients.csv").write_text(f"client_id\n{tables.escape(name)}\n", "utf-8")
  _change(run / "manifest.json", num_clients={"train": 40, "test": 1})
  for text in (f'[{{"client_id": "{other}"}}]', f"client_id\n{other}\n"):
    (tmp_path / "later").write_text(text, "utf-8")
    assert _compose(tmp_path).failures == ()
  (tmp_path / "later").write_text(f"client_id\n{other}1\n", "utf-8")
  assert len(_compose(tmp_path).measured) == 1


def test_a_column_of_numbers_and_files_cut_short(tmp_path):
  run = _run(tmp_path / "own/m/seed_0", "0", ("1", "2"))
  parquet.write_table(pa.table({"CLIENT_ID": [1, 3]}), tmp_path / "t.parquet")
  assert _compose(run, tmp_path).measured == {"3"}
  (tmp_path / "t.parquet").write_bytes((tmp_path / "t.parquet").read_bytes()[:50])
  found = _compose(tmp_path)
  assert found.failures == () and any(note.startswith("Not read: 1 files") for note in found.notes)


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_links_are_followed(tmp_path, depth):
  """To OUT, a task's folder, a method's, and a run's."""
  out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
  _run(out / "own/m/seed_0", "0")
  public = _public(out / "own/fed_avg/seed_0", ("a", "b"))
  _write_clients(public, "train", ("z",))
  expected = _compose(out)
  assert expected.measured == {"z"} and len(expected.members) == 2
  target = [out, *list(public.parents)[2::-1][1:], public][depth]
  shutil.move(target, elsewhere)
  os.symlink(elsewhere, target)
  os.symlink(out, elsewhere / "loop")
  os.symlink("..", elsewhere / "up")  # A loop, and all that is beside it.
  os.symlink("itself", elsewhere / "itself")
  for folders in ([out], [out, elsewhere], [out, out]):
    found = _compose(*folders)
    assert (found.measured, len(found.members)) == (expected.measured, 2)
    assert len(found.failures) == len(expected.failures)


# Runs that start from others.


def _start(run, fingerprint, epsilon=20.0, task="own"):
  delta = None if epsilon is None else 1e-3
  return statements.StartingModel(run, task, True, fingerprint, epsilon, delta)


def test_a_start_is_there_if_its_weights_are(tmp_path):
  first = _run(tmp_path / "b/T/M/seed_0", "0")
  fingerprint = hashlib.sha256((first / "weights.npz").read_bytes()).hexdigest()[:16]
  for number, (run, weights, is_there) in enumerate(
    [
      ("T/M/seed_0", fingerprint, True),
      ("other/name/seed_7", fingerprint, True),  # It was moved.
      ("T/M/seed_0", "0123456789abcdef", False),  # As a/T/M/seed_0, with the name of one here.
      ("", "", False),
    ]
  ):
    later = _run(tmp_path / "b/later/M/seed_0", "1", starts=(_start(run, weights),))
    notes = [note for note in _compose(tmp_path / "b").notes if note.startswith("Not included: ")]
    assert len(notes) == (not is_there), number
    assert all(note.endswith("epsilon = 20 at delta = 0.001 comes on top.") for note in notes)
    shutil.rmtree(later)


@pytest.mark.parametrize("task, is_other", [("own", False), ("emnist_linear", True)])
def test_a_start_without_privacy_fails_inside_and_outside_of_the_folder(tmp_path, task, is_other):
  start = _start(f"{task}/fed_avg/seed_0", "0123", None, task)
  start = dataclasses.replace(start, same_population=not is_other)
  later = _run(tmp_path / "own/m/seed_0", "0", starts=(start,))
  for _ in range(2):
    found = _compose(tmp_path)
    said = [text for text in found.failures if f"{task}/fed_avg/seed_0, from whose" in text]
    assert len(said) == (not is_other)
    assert all(f"{later} started" in text and "may be the same clients" in text for text in said)
    notes = [note for note in found.notes if "was trained without privacy." in note]
    assert len(notes) == is_other
    _public(tmp_path / task / "fed_avg/seed_0")
    if is_other:
      flags = tmp_path / task / "fed_avg/seed_0/flags.txt"
      flags.write_text(flags.read_text().replace("--task=own", f"--task={task}"))


# What runs are by their flags.


def test_the_flags_of_a_private_run_limit_its_guarantee(tmp_path, capsys):
  for seed in range(2):
    flags = {"task": "hosp:LINEAR", "algorithm": "plug:Peek", "exact_siblings": "allowed"}
    _run(tmp_path / f"own/m/seed_{seed}", str(seed), **flags)
  found = _compose(tmp_path)
  assert [limit.partition(": ")[0] for limit in found.limits] == [
    f"Outside the guarantee of {tmp_path / 'own/m/seed_0'} and 1 more"
  ] * 2
  assert "--algorithm=plug:Peek, --task=hosp:LINEAR" in found.limits[0]
  assert "--exact_siblings=allowed" in found.limits[1] and set(found.limits) <= set(found.notes)
  # With that flag there still is no epsilon for whom another run measures.
  _public(tmp_path / "own/fed_avg/seed_0", ("z",))
  found = _compose(tmp_path)
  assert found.measured == {"z"} and len(found.limits) == 2
  account.run(["audit", str(tmp_path)])
  assert "NO finite epsilon for 1 clients" in capsys.readouterr().out


def test_a_run_that_lost_its_flags(tmp_path, capsys):
  for task in ("own", "sent140_linear"):
    _run(tmp_path / f"{task}/m/seed_0", task, task=task)
  public = _public(tmp_path / "own/fed_avg/seed_0")
  (public / "flags.txt").unlink()  # Of whatever clients it may be.
  populations = members_lib.read([tmp_path]).populations
  assert [len(members) for members in populations.values()] == [2, 2]
  assert all(experiment.compose(members).failures for members in populations.values())
  (tmp_path / "own/m/seed_0/flags.txt").unlink()
  assert account.run(["audit", str(tmp_path)]) == 2
  assert "Error: Found no flags.txt in '" in capsys.readouterr().err
