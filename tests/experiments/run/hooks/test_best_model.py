"""The model that a run leaves, without runs."""

import math
import pathlib

import numpy as np
import pytest

import tasks
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.experiments.run.hooks import best_model
from tff_superquantile.experiments.run.hooks import hook


def test_file_ahead_of_the_checkpoint_and_values_that_are_no_numbers(tmp_path):
  flags = dict(keep="best", best_by="validation.loss.mean", patience=2, rounds_per_evaluation=3)
  run = run_folder.Run(tmp_path, 0)
  clients = {"validation": None}
  job = hook.Job(
    run_config.from_values(**flags), tasks.get_task("synthetic"), run, lambda: (None, clients)
  )
  over = {}

  def kept(values):
    model = best_model.BestModel(job)
    model.prepare()
    over.clear()
    for round_num in range(max(values, default=-1) + 1):
      if round_num in values:
        weights = run_files.Weights((np.full(2, round_num, np.float32),), ())
        statistics = {"validation": {"loss": {"mean": values[round_num]}}}
        model.on_evaluation(hook.Evaluation(weights, {}, statistics))
      over[round_num] = model.on_round(round_num, {})
    return model

  values = {0: math.nan, 3: 2.0, 6: 1.0, 7: 0.5, 9: 1.0, 12: 1.5}
  assert kept({0: math.nan}).round_num == 0
  whole = kept(values)
  assert (whole.round_num, whole.weights.trainable[0].tolist()) == (6, [6.0, 6.0])
  assert [round_num for round_num, is_over in over.items() if is_over] == [12]
  again = kept({3: 2.0, 6: 1.0})  # Another process repeats rounds.
  assert again.round_num == 6 and [again.on_start(r) for r in (6, 11, 12)] == [False, False, True]
  (tmp_path / "checkpoints" / "best_model.npz").write_bytes(b"torn")
  with pytest.raises(ValueError, match="best_model.npz is damaged"):
    kept({})
  (tmp_path / "checkpoints" / "best_model.npz").unlink()
  with pytest.raises(ValueError, match="the best model of a run at round 3; bring it back"):
    kept({}).on_start(3)


def test_task_without_validation_clients_is_refused():
  config = run_config.from_values(keep="best", best_by="validation.loss.mean")
  job = hook.Job(config, tasks.get_task("synthetic"), run_folder.Run(pathlib.Path("none"), 0))
  with pytest.raises(ValueError, match="no validation clients; .* --validation_fraction=0.2"):
    best_model.BestModel(job).prepare()
