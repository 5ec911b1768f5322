"""The second audit's attacks on what happens around a round; each one worked on version 0.2."""

import csv
import json
import shutil

from helpers import histories
import pytest

from privacy import audit


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
  """A run that was killed after some rounds, without a checkpoint of them."""
  folder = tmp_path_factory.mktemp("killed") / "run"
  history = histories.History(folder, folder.with_name("cache"), "geometric")
  history.command("--noise_key_file=key", kind="kill", count=72).wait()
  assert 3 <= _last_round(history.run) < histories.NUM_ROUNDS
  shutil.copytree(history.run, folder.with_name("copy"))
  return history


@pytest.fixture
def copy(killed):
  """The killed run, as it was."""
  shutil.rmtree(killed.run)
  shutil.copytree(killed.folder.with_name("copy"), killed.run)
  killed.write_table()
  return killed


def _last_round(run):
  with open(run / "rounds.csv", newline="") as file:
    return max(int(row["round"]) for row in csv.DictReader(file))


def _rounds_done(run):
  return json.loads((run / "privacy.json").read_text())["rounds_done"]


@pytest.mark.parametrize("change", ["changed", "removed", "added"])
def test_a_killed_run_takes_no_other_data(copy, change):
  """B1: the difference of a round that is repeated on other data has no noise."""
  before = copy.public()
  copy.write_table(**{change: [3] if change != "added" else ["new"]})
  copy.whole().assert_fails_with_a_sentence(2, "Found other clients, or other examples")
  assert copy.public() == before


@pytest.mark.parametrize("with_checkpoints", [False, True])
def test_a_run_takes_no_other_key(copy, with_checkpoints):
  """B4: rounds that are released again with other noise cost again."""
  (copy.folder / "other").write_text("6" * 32)
  if not with_checkpoints:
    shutil.rmtree(copy.run / "checkpoints")
  before = copy.public()
  result = copy.whole("--noise_key_file=other")
  result.assert_fails_with_a_sentence(2, "Found another", "key")
  assert copy.public() == before


def test_the_ledger_never_falls_behind(copy):
  """B5: neither while rounds are repeated that are in the folder, nor if the ledger is lost."""
  last = _last_round(copy.run)
  shutil.rmtree(copy.run / "checkpoints")
  (copy.run / "privacy.json").unlink()
  # It is killed once more, as it repeats its first round.
  copy.command("--noise_key_file=key", kind="kill", count=30).wait()
  assert _rounds_done(copy.run) >= last and _last_round(copy.run) == last
  found = audit.audit_folder(copy.run)
  assert found.holds and found.num_rounds >= last


def test_a_round_that_does_not_repeat_itself_ends_the_run(copy):
  """As it would after an update of TensorFlow, say: the noise has been used."""
  path = copy.run / "rounds.csv"
  lines = path.read_text().splitlines()
  name = lines[0].split(",").index("threshold")
  cells = lines[3].split(",")
  cells[name] = str(float(cells[name]) + 1e-6)
  path.write_text("\n".join([*lines[:3], ",".join(cells), *lines[4:]]) + "\n")
  shutil.rmtree(copy.run / "checkpoints")
  before = copy.public()
  result = copy.whole("--noise_key_file=key")
  result.assert_fails_with_a_sentence(2, "repeated after an interruption", "in round 2")
  after = copy.public()
  assert {name for name in before if before[name] != after[name]} <= {"privacy.json"}


@pytest.mark.parametrize("name", ["flags.txt", "manifest.json"])
def test_without_what_binds_it_a_run_does_not_go_on(copy, name):
  (copy.run / name).unlink()
  before = copy.public()
  copy.whole().assert_fails_with_a_sentence(2, f"no {name}")
  assert copy.public() == before


def test_a_row_that_was_released_is_needed_to_repeat_its_round(copy):
  path = copy.run / "rounds.csv"
  lines = path.read_text().splitlines()
  path.write_text("\n".join(lines[:3]) + "\n")
  before = copy.public()
  # The checkpoint is further on, but the row would be missing for ever.
  result = copy.whole("--noise_key_file=key")
  result.assert_fails_with_a_sentence(2, "Found no row of round 2")
  shutil.rmtree(copy.run / "checkpoints")
  result = copy.whole("--noise_key_file=key")
  result.assert_fails_with_a_sentence(2, "Found no row of round 2")
  assert copy.public() == before
