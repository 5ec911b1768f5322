"""How commands begin, and how they end where a user's own code fails."""

import gc

import pytest

from tff_superquantile.experiments import cli


def test_the_garbage_collector_works_again_and_spares_what_was_imported():
  frozen = gc.get_freeze_count()
  with cli.starting_tensorflow():
    assert not gc.isenabled()
    kept = [[i] for i in range(1000)]  # As modules would be.
  assert gc.isenabled()
  assert gc.get_freeze_count() >= frozen + len(kept)
  with pytest.raises(ImportError), cli.starting_tensorflow():
    raise ImportError
  assert gc.isenabled()


# A task of a user's own, with a mistake for each seed.
_TASK = """
import numpy as np
import tensorflow as tf
from tasks import models, task
from tff_superquantile.simulation import client_files

def _load(*, cache_dir, seed):
  if seed == 1:
    raise ValueError("no rain in this file")  # Mistake 1.
  clients = [(f"c{i}", np.ones([4, 3], np.float32), np.ones(4, np.int32)) for i in range(30)]
  pool = client_files.open_or_write_client_files(f"{cache_dir}/weather", lambda: clients)
  return {"train": pool, "test": pool}

@tf.function
def _logits(weights, x):
  return x @ tf.ones([4, 2])  # Mistake 3.

def _build_model(seed):
  spec = tf.TensorSpec([None, 3], tf.float32), tf.TensorSpec([None], tf.int32)
  if seed == 2:
    return spec.weather  # Mistake 2.
  return models.build_classifier([np.zeros([3, 2], np.float32)], _logits, spec)

DEFAULTS = dict(num_rounds=3, clients_per_round=5, client_learning_rate=0.1, batch_size=0,
                local_epochs=1, l2=0.0, client_weighting="uniform", learning_rate_decay=1.0,
                rounds_per_decay=1, rounds_per_evaluation=5, max_loss=2.0)
TASKS = (task.Task("weather", _build_model, _load, DEFAULTS),)
"""
_SCRIPT = """
import sys
import tasks
tasks.__path__.append(sys.argv.pop(1))
from tff_superquantile.experiments import cli, train
cli.run(train.main)
"""
# What the task does wrong for a seed.
_MISTAKES = {
  1: "in _load, raised ValueError: no rain in this file;",
  2: "in _build_model, raised AttributeError: 'tuple' object has no attribute 'weather';",
  3: "in _logits, raised ValueError: ",  # TensorFlow's.
}


@pytest.fixture(scope="module")
def failed(lab):
  """{seed: how the command ended}."""
  (lab.folder / "weather.py").write_text(_TASK)
  flags = ("--task=weather", f"--cache_dir={lab.folder}", "--output_dir=failed")
  started = {
    seed: lab.python("-c", _SCRIPT, str(lab.folder), *flags, f"--seed={seed}")
    for seed in _MISTAKES
  }
  return {seed: command.wait() for seed, command in started.items()}


@pytest.mark.parametrize("seed", _MISTAKES)
def test_an_error_in_a_users_task_says_where_it_is(failed, lab, seed):
  result = failed[seed]
  assert result.code == 1, result.err
  (line,) = result.errors()
  number = [f"# Mistake {seed}." in text for text in _TASK.splitlines()].index(True) + 1
  assert f"Found that {lab.folder / 'weather.py'}, line {number}, {_MISTAKES[seed]}" in line
  assert result.err.startswith("Traceback") and result.err.endswith(line + "\n")
  assert not list((lab.folder / "failed").rglob("lock"))


def test_a_flag_that_a_task_does_not_take_is_refused(failed, lab):
  del failed  # Its task is there.
  flags = ("--task=weather", f"--cache_dir={lab.folder}", "--num_train_clients=7")
  result = lab.python("-c", _SCRIPT, str(lab.folder), *flags).wait()
  result.assert_refused("Found --num_train_clients=7 for weather, which has no use for it")
