"""The results of every client at each evaluation, in the folder of a run."""

import csv

from helpers import commands
import numpy as np
import pandas as pd
import pytest

from tff_superquantile import evaluation
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run import evaluation_files
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.experiments.run.hooks import hook
from tff_superquantile.experiments.run.hooks import outputs

_COLUMNS = ["round", "split", "client_id", "num_examples", "loss", "error"]
_NUM_CLIENTS = 500


def _results(seed, ids=None):
  ids = [f"=writer {i}" for i in range(_NUM_CLIENTS)] if ids is None else ids
  rng = np.random.default_rng(seed)
  sizes = rng.integers(1, 400, len(ids))
  return evaluation.ClientMetrics(ids, sizes, rng.random(len(ids)), rng.random(len(ids)))


def _manager(folder, **flags):
  folder.mkdir(exist_ok=True)
  job = hook.Job(run_config.from_values(**flags), None, run_folder.Run(folder, 0))
  job.outcome.manifest["started"] = "2017-07-14T02:40:00+00:00"
  clients = outputs.ClientResults(job)
  clients.prepare()
  return clients


def _release(manager, round_num, **results):
  if results:
    manager.on_evaluation(hook.Evaluation(None, results, {}))
  manager.on_round(round_num, {})


def test_a_run_keeps_every_client_at_every_evaluation(base):
  table = pd.read_parquet(base.path / "clients")
  assert list(table) == _COLUMNS
  rows = {int(row["round"]): row for row in commands.rows(base.path) if row["test_error_mean"]}
  assert sorted(set(table["round"])) == list(rows) == [0, 10, 20, 30]
  assert set(table["split"]) == {"test"}  # The run measures no other clients as it goes.
  for number, row in rows.items():
    of_round = table[table["round"] == number]
    for quantity in ("error", "loss"):
      for name, expected in (
        ("mean", of_round[quantity].mean()),
        ("p90", np.percentile(of_round[quantity], 90)),
      ):
        assert float(row[f"test_{quantity}_{name}"]) == pytest.approx(expected, rel=1e-12)
  with open(base.path / "test_clients.csv", newline="") as file:
    last = list(csv.DictReader(file))
  columns = ["client_id", "num_examples", "loss", "error"]
  found = table.loc[table["round"] == 30, columns]
  shared = [{name: row[name] for name in columns} for row in last]
  assert found.astype(str).to_dict("records") == shared


def test_validation_clients_are_kept_where_they_choose_the_model(lab):
  flags = ("--num_rounds=4", "--rounds_per_evaluation=2", "--keep=best", "--run_name=best")
  result = lab.train("--output_dir=best", *flags)
  assert result.code == 0, result.err
  run = run_folder.Run(lab.folder / "best" / "synthetic" / "best" / "seed_0", 0)
  sizes = pd.read_parquet(run.path / "clients").groupby(["round", "split"]).size()
  assert sizes.to_dict() == {
    (number, split): size
    for number in (0, 2, 4)
    for split, size in (("test", 15), ("validation", 500))
  }
  for split in ("test", "validation"):
    found, last = run.evaluations(split), run.clients(split)
    kept = found["round"] == run.manifest["kept_round"]
    for name in ("client_id", "num_examples", "loss", "error"):
      np.testing.assert_array_equal(found[name][kept], last[name])
  assert run.evaluations("train") == {}


def test_no_file_is_written_twice_and_all_are_read_in_order(tmp_path):
  manager = _manager(tmp_path)
  facts = []
  for number in range(4):
    _release(manager, number, test=_results(number))
    facts.append((tmp_path / "clients" / f"round_{number:07d}.parquet").stat())
  paths = evaluation_files.find(tmp_path / "clients")
  # A file that had been written anew would be another.
  assert [(p.stat().st_ino, p.stat().st_mtime_ns) for p in paths.values()] == [
    (fact.st_ino, fact.st_mtime_ns) for fact in facts
  ]
  assert max(fact.st_size for fact in facts) < 60 * _NUM_CLIENTS
  # Files in the making are not read.
  (tmp_path / "clients" / ".round_0000010.parquet.0123abcd.tmp").write_bytes(b"PAR1")
  found = run_folder.Run(tmp_path, 0).evaluations("test")
  assert list(found) == [name for name in _COLUMNS if name != "split"]
  np.testing.assert_array_equal(found["round"], np.repeat(np.arange(4), _NUM_CLIENTS))
  expected = np.concatenate([_results(number).error for number in range(4)])
  np.testing.assert_array_equal(found["error"], expected)
  assert found["client_id"][0] == "=writer 0"  # No spreadsheet computes what is in Parquet.
  assert len(pd.read_parquet(tmp_path / "clients")) == 4 * _NUM_CLIENTS


def test_a_resumed_run_has_the_files_of_an_uninterrupted_one(tmp_path):
  whole = _manager(tmp_path / "whole")
  for number in range(7):
    _release(whole, number, **({"test": _results(number)} if number % 2 == 0 else {}))
  killed = _manager(tmp_path / "killed")
  for number in range(5):
    _release(killed, number, **({"test": _results(number)} if number % 2 == 0 else {}))
  # The last round of a run of five rounds is evaluated; its checkpoint was not written yet.
  _release(killed, 5, test=_results(5))
  (tmp_path / "killed" / "clients" / "round_0000004.parquet").write_bytes(b"PAR1")
  resumed = _manager(tmp_path / "killed")
  for number in range(3, 7):
    _release(resumed, number, **({"test": _results(number)} if number % 2 == 0 else {}))
  assert commands.contents(tmp_path / "killed") == commands.contents(tmp_path / "whole")


def test_what_a_killed_process_left_goes_and_nothing_else(tmp_path):
  killed = _manager(tmp_path)
  for number in (2, 4, 6):
    _release(killed, number, test=_results(number))
  resumed = _manager(tmp_path)

  _release(resumed, 4)  # A round that is no longer evaluated, and has no results of another.
  assert list(evaluation_files.find(tmp_path / "clients")) == [2]
  _release(resumed, 6, test=_results(6))
  _release(resumed, 5, test=_results(5))  # Only the first release tells where the process began.
  assert list(evaluation_files.find(tmp_path / "clients")) == [2, 5, 6]


def test_files_of_a_private_run_have_its_time_and_stay(tmp_path):
  for numbers in ((0, 2, 4), (2,)):
    manager = _manager(tmp_path, epsilon=3.0, threshold="tree")
    for number in numbers:
      _release(manager, number, test=_results(number))
  files = evaluation_files.find(tmp_path / "clients")
  assert list(files) == [0, 2, 4]
  assert {path.stat().st_mtime for path in files.values()} == {1.5e9}


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" * 50])
def test_a_damaged_file_is_named(tmp_path, content):
  (tmp_path / "clients").mkdir()
  path = tmp_path / "clients" / "round_0000010.parquet"
  path.write_bytes(content)
  with pytest.raises(ValueError, match=f"Found that {path} is damaged; expected .* remove it"):
    run_folder.Run(tmp_path, 0).evaluations("test")
