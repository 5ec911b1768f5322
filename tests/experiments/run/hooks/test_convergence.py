"""When runs end: the rule on the curve of the training loss, and who has it."""

import pathlib

from helpers import finished_runs
import numpy as np
import pytest

import tasks
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.experiments.run.hooks import convergence
from tff_superquantile.experiments.run.hooks import hook

_T = np.arange(1, 901)
_NOISE = 0.03 * np.random.default_rng(0).normal(size=900)


def _end(losses):
  """The first round, of every tenth, at which a run with these losses ends; None for none."""
  ends = range(10, len(losses) + 1, 10)
  return next((end for end in ends if convergence.has_converged(losses[:end])), None)


@pytest.mark.parametrize(
  "losses, least, most",
  [
    (np.full(900, 0.7), 60, 60),
    (0.7 + _NOISE, 60, 90),  # There is nothing to learn.
    (0.2 + 0.5 * np.exp(-_T / 5), 60, 60),
    (0.6 + 0.08 * np.exp(-_T / 15) + 0.015 * np.exp(-_T / 150), 100, 300),  # At 60 it still falls.
    (0.2 + 0.5 * np.exp(-_T / 60), 400, 800),
    (0.2 + 0.5 * np.exp(-_T / 60) + _NOISE, 400, 700),
    (0.7 - 0.0004 * _T, None, None),  # It falls by less than 1 % in twenty rounds, but goes on.
    (1 / _T, 100, 900),  # What is left of it is next to nothing.
  ],
)
def test_a_run_ends_when_its_loss_has_stopped_falling(losses, least, most):
  end = _end(losses)
  assert end is None if least is None else least <= end <= most


def test_losses_that_are_not_known_do_not_count():
  losses = np.concatenate([[np.nan], np.full(59, 0.7)])
  assert not convergence.has_converged(losses)
  assert convergence.has_converged(np.append(losses, 0.7))


def test_the_whole_cohort_counts_beside_the_clients_that_train():
  """The loss of a tail that is drawn anew each round is level, and that of all clients falls."""
  level, falling = np.full(90, 0.7), 0.2 + 0.5 * np.exp(-_T[:90] / 60)
  finished = {"train_loss": level, "cohort_loss_mean": level}
  for curves, has_ended in (
    (finished, True),
    ({**finished, "cohort_loss_mean": falling}, False),
    ({**finished, "train_loss": falling}, False),
    ({"train_loss": level}, True),
    ({**finished, "cohort_loss_mean": np.full(90, np.nan)}, True),
  ):
    config = run_config.from_values(stop="converged", rounds_per_evaluation=10)
    job = hook.Job(config, None, run_folder.Run(pathlib.Path("none"), 0))
    ending = convergence.StopWhenConverged(job)
    ending.prepare()
    assert not ending.on_start(0)
    over = [ending.on_round(i + 1, {n: its[i] for n, its in curves.items()}) for i in range(90)]
    assert over[-1] == has_ended


@pytest.mark.parametrize(
  "stop, rounds, is_first",
  [
    ("converged", 60, True),
    ("converged", 69, True),
    ("converged", 70, False),
    ("never", 60, False),
    ("converged", 30, False),
  ],
)
def test_a_run_that_ended_as_soon_as_it_might_is_known(tmp_path, stop, rounds, is_first):
  flags = {"seed": 0, "stop": stop, "rounds_per_evaluation": 10, "exact_siblings": "refused"}
  folder = finished_runs.write_folder(tmp_path / "seed_0", flags, ())
  rows = ["round,train_loss", *(f"{i},0.5" for i in range(rounds + 1))]
  (folder / "rounds.csv").write_text("\n".join(rows) + "\n")
  assert convergence.ended_first(run_folder.Run(folder, 0)) == is_first


def test_a_resumed_run_ends_where_an_uninterrupted_one_does(tmp_path):
  losses = 0.2 + 0.5 * np.exp(-_T / 20)
  folder = finished_runs.write_folder(tmp_path / "seed_0", {"seed": 0}, ())
  config = run_config.from_values(stop="converged", rounds_per_evaluation=10)

  def end(start):
    ending = convergence.StopWhenConverged(hook.Job(config, None, run_folder.Run(folder, 0)))
    ending.prepare()
    if ending.on_start(start):
      return start
    for round_num in range(start + 1, 401):
      if ending.on_round(round_num, {"train_loss": losses[round_num - 1]}):
        return round_num
    return None

  whole = end(0)
  assert whole == _end(losses) and 60 < whole < 400
  # It was killed after the 75th round; the last checkpoint is of the 70th.
  rows = [f"{1 + i},{loss!r}" for i, loss in enumerate(losses[:75].tolist())]
  (folder / "rounds.csv").write_text("\n".join(["round,train_loss", "0,", *rows]) + "\n")
  assert end(70) == whole
  # It was killed between its last checkpoint and its end.
  rows = [f"{1 + i},{loss!r}" for i, loss in enumerate(losses[:whole].tolist())]
  (folder / "rounds.csv").write_text("\n".join(["round,train_loss", "0,", *rows]) + "\n")
  assert end(whole) == whole and end(whole - 10) == whole


@pytest.mark.parametrize(
  "flags, stop, num_rounds",
  [
    ({}, "converged", 2000),
    ({"folds": 5}, "converged", 1000),
    ({"num_rounds": 30}, "never", 30),
    ({"num_rounds": 30, "stop": "converged"}, "converged", 30),
    ({"epsilon": 5.0, "clip_norm": 1.0, "threshold": "tree"}, "never", None),
    ({"learning_rate_schedule": "cosine"}, "never", None),
  ],
)
def test_rounds_of_a_table_follow_from_convergence_unless_they_are_given(flags, stop, num_rounds):
  config = run_config.from_values(task="own", **flags)
  resolved = convergence.StopWhenConverged.resolve(config, tasks.get_task("own"))
  assert (resolved.stop, resolved.num_rounds) == (stop, num_rounds)
  resolved = convergence.StopWhenConverged.resolve(
    run_config.from_values(), tasks.get_task("synthetic")
  )
  assert (resolved.stop, resolved.num_rounds) == ("never", None)


def test_private_runs_cannot_end_by_their_losses():
  config = run_config.from_values(epsilon=5.0, clip_norm=1.0, threshold="tree", stop="converged")
  with pytest.raises(ValueError, match="fixed beforehand; leave it out"):
    convergence.StopWhenConverged.resolve(config, tasks.get_task("synthetic"))


def test_a_run_that_has_converged_goes_on_if_all_rounds_are_asked_for():
  converged = {"num_rounds": "2000", "stop": "converged"}
  assert run_config.is_done_by(converged, run_config.from_values(num_rounds=2000, stop="converged"))
  assert not run_config.is_done_by(converged, run_config.from_values(num_rounds=2000, stop="never"))
  assert run_config.is_done_by(
    {"num_rounds": "30"}, run_config.from_values(num_rounds=30, stop="converged")
  )
