"""Reading and writing folders of runs, whatever state they are in."""

import csv
import json
import os
import threading
import time

from helpers import fabricated_runs
import numpy as np
import pytest

from tff_superquantile import atomic_files
from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run import run_folder


def test_reading_tolerates_a_run_in_progress(tmp_path):
  fabricated_runs.fabricate(
    tmp_path, fabricated_runs.SUPERQUANTILE, 4, finished=False, num_rounds=3
  )
  (run,) = run_folder.find_runs(tmp_path)
  assert (run.task, run.method, run.seed, run.finished) == (
    "synthetic",
    fabricated_runs.SUPERQUANTILE,
    4,
    False,
  )
  rounds = run.path / "rounds.csv"
  # A torn row in the middle, a round again after resuming, and a last line that is not complete.
  lines = rounds.read_text().splitlines()
  blanks = "," * (lines[0].count(",") - 1)
  lines += ["4,0.1", f"3,7.5{blanks}", f"4,0.2{blanks}0.1"]
  rounds.write_text("\n".join(lines))
  (run.path / "metrics.json").write_text('{"test": {"err')
  (run,) = run_folder.find_runs(tmp_path)
  assert not run.finished and run.last_round == 3
  assert run.rounds["round"].tolist() == [0, 1, 2, 3]
  assert run.rounds["threshold"][3] == 7.5
  assert np.isnan(run.rounds["threshold"][0]) and np.isnan(run.rounds["train_loss"][3])
  assert run.clients("validation") == {}
  assert run.clients("test")["client_id"][1] == "client_1"


def test_empty_and_foreign_folders_are_no_runs(tmp_path):
  assert run_folder.find_runs(tmp_path / "nowhere") == []
  (tmp_path / "task" / "method" / "seed_x").mkdir(parents=True)
  (tmp_path / "task" / ".cache" / "seed_1").mkdir(parents=True)
  assert run_folder.find_runs(tmp_path) == []
  (tmp_path / "task" / "method" / "seed_12").mkdir()
  (run,) = run_folder.find_runs(tmp_path)
  assert run.rounds == {} and run.flags == {} and run.last_round is None and not run.finished


def test_a_lock_waits_for_one_who_is_about_to_end(tmp_path):
  held, released = threading.Event(), []

  def hold(seconds):
    with run_folder.lock(tmp_path):
      held.set()
      time.sleep(seconds)
      released.append(seconds)

  holder = threading.Thread(target=hold, args=(0.3,))
  holder.start()
  held.wait()
  with run_folder.lock(tmp_path, patience=60.0):
    assert released
    with pytest.raises(run_folder.OccupiedError, match="another process is at work"):
      with run_folder.lock(tmp_path, patience=0.2):
        pass
  holder.join()


def test_write_atomically_replaces_and_leaves_nothing_else(tmp_path):
  path = tmp_path / "metrics.json"
  atomic_files.write_json(path, {"a": np.float64(0.5), "b": np.arange(2)})
  assert json.loads(path.read_text()) == {"a": 0.5, "b": [0, 1]}
  with pytest.raises(TypeError, match="Found"):
    atomic_files.write_json(path, {"a": object()})
  assert json.loads(path.read_text())["a"] == 0.5
  with pytest.raises(OSError):
    atomic_files.write(tmp_path / "nowhere" / "file", "text")
  assert os.listdir(tmp_path) == ["metrics.json"]


_IDS = (
  *("=cmd()", "+1", "-2", "@x", "\tx", "\rx", "\nx", "a\r\nb"),
  *("'=x", "''-x", "'x", "x=1", 'a,"b', "é"),
)


def test_ids_are_no_formulas_and_are_read_as_they_were(tmp_path):
  run = run_folder.Run(tmp_path, 0)
  columns = {"client_id": _IDS, "loss": np.arange(-3.0, len(_IDS) - 3)}
  run_files.write_clients(tmp_path / "test_clients.csv", columns)
  with open(tmp_path / "test_clients.csv", newline="", encoding="utf-8") as file:
    header, *rows = list(csv.reader(file))
  assert header == ["client_id", "loss"]
  assert [row[0] for row in rows[:3]] == ["'=cmd()", "'+1", "'-2"]
  assert not [row[0] for row in rows if row[0][0] in "=+-@\t\r\n"]
  assert [float(row[1]) for row in rows] == columns["loss"].tolist()
  assert tuple(run.clients("test")["client_id"]) == _IDS
  np.testing.assert_array_equal(run.clients("test")["loss"], columns["loss"])
