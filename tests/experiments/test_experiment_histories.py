"""Whatever the commands do to one experiment, nobody is protected and measured exactly in it."""

import collections

import experiment_histories
import pytest
import tensorflow_federated as tff


@pytest.fixture(autouse=True)
def still(monkeypatch):
  old = tff.framework.get_context_stack().current
  experiment_histories.stand_still(monkeypatch)
  yield
  tff.framework.set_default_context(old)


def _live(tmp_path, cache_dir, seeds, num_steps):
  """Lets histories happen; prints how often each step was done or refused."""
  counted = collections.Counter()
  for seed in seeds:
    task = "emnist_linear" if seed % 4 == 3 else "own"
    history = experiment_histories.History(tmp_path / str(seed), cache_dir, task, seed)
    history.live(num_steps)
    counted.update(history.steps)
  for (step, outcome), number in sorted(counted.items()):
    print(f"{step:26}{outcome:10}{number}")
  return counted


def test_histories(tmp_path, cache_dir):
  counted = _live(tmp_path, cache_dir, range(20), num_steps=3)
  assert {outcome for _, outcome in counted} == {"done", "refused"}


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 400, 25))
def test_many_histories(tmp_path, cache_dir, first):
  _live(tmp_path, cache_dir, range(first, first + 25), num_steps=6)
