"""When runs end: the rule on the curve of the training loss, and who has it."""

import asyncio

import finished_runs
import numpy as np
import pytest

import tasks
from tff_superquantile.experiments.run import hook
from tff_superquantile.experiments.run import run_config
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.experiments.run.training import convergence

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
    (0.2 + 0.5 * np.exp(-_T / 60), 400, 700),
    (0.2 + 0.5 * np.exp(-_T / 60) + _NOISE, 400, 700),
    (0.7 - 0.0004 * _T, None, None),  # It falls by less than 1 % in twenty rounds, but goes on.
    (1 / _T, 100, 500),  # What is left of it is next to nothing.
  ],
)
def test_a_run_ends_when_its_loss_has_stopped_falling(losses, least, most):
  end = _end(losses)
  assert end is None if least is None else least <= end <= most


def test_losses_that_are_not_known_do_not_count():
  losses = np.concatenate([[np.nan], np.full(59, 0.7)])
  assert not convergence.has_converged(losses)
  assert convergence.has_converged(np.append(losses, 0.7))


def test_a_resumed_run_ends_where_an_uninterrupted_one_does(tmp_path):
  losses = 0.2 + 0.5 * np.exp(-_T / 20)
  folder = finished_runs.write_folder(tmp_path / "seed_0", {"seed": 0}, ())
  config = run_config.of(stop="converged", rounds_per_evaluation=10)

  def end(start):
    ending = convergence.Ending(hook.Job(config, None, run_folder.Run(folder, 0)))
    ending.before()
    for round_num in range(start + 1, 401):
      asyncio.run(ending.release({"train_loss": losses[round_num - 1]}, round_num))
      if ending.is_over(round_num):
        return round_num
    return None

  whole = end(0)
  assert whole == _end(losses) and 60 < whole < 400
  # It was killed after the 75th round; the last checkpoint is of the 70th.
  rows = [f"{1 + i},{loss!r}" for i, loss in enumerate(losses[:75].tolist())]
  (folder / "rounds.csv").write_text("\n".join(["round,train_loss", "0,", *rows]) + "\n")
  assert end(70) == whole


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
  config = run_config.of(task="own", **flags)
  found = convergence.Ending.defaults(config, tasks.get_task("own"))
  assert (found["stop"], config.num_rounds or found.get("num_rounds")) == (stop, num_rounds)
  synthetic = convergence.Ending.defaults(run_config.of(), tasks.get_task("synthetic"))
  assert synthetic == {"stop": "never"}


def test_private_runs_cannot_end_by_their_losses():
  config = run_config.of(epsilon=5.0, clip_norm=1.0, threshold="tree", stop="converged")
  with pytest.raises(ValueError, match="fixed beforehand; leave it out"):
    convergence.Ending.defaults(config, tasks.get_task("synthetic"))


def test_a_run_that_has_converged_goes_on_if_all_rounds_are_asked_for():
  converged = {"num_rounds": "2000", "stop": "converged"}
  assert run_config.ends_as(converged, run_config.of(num_rounds=2000, stop="converged"))
  assert not run_config.ends_as(converged, run_config.of(num_rounds=2000, stop="never"))
  assert run_config.ends_as({"num_rounds": "30"}, run_config.of(num_rounds=30, stop="converged"))
