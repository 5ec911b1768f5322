"""Whatever the commands do to one experiment, nobody is protected and measured exactly in it."""

import collections

import experiment_histories
import pytest

from tff_superquantile.experiments.report import page

_publish = page.publish


@pytest.fixture(autouse=True)
def still(monkeypatch, restored_context):
  experiment_histories.stand_still(monkeypatch)


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
  counted = _live(tmp_path, cache_dir, range(12), num_steps=3)
  assert {outcome for _, outcome in counted} == {"done", "refused"}


def test_a_report_names_nobody_who_is_protected(tmp_path, cache_dir, monkeypatch):
  monkeypatch.setattr(page, "publish", _publish)
  history = experiment_histories.History(tmp_path / "own", cache_dir, "own", seed=0)
  history.step("sweep")
  assert history.steps == [("sweep", "done")]
  pages = sorted(history.output_dir.rglob("report.*"))
  assert [path.suffix for path in pages] == [".csv", ".html", ".md"]
  protected, _ = experiment_histories.read(history.output_dir, history.names)
  for path in pages:  # Its reader would have seen one.
    path.write_text(f"{path.read_text()}\n{min(protected)}\n")
  _, where = experiment_histories.read(history.output_dir, history.names)
  assert sorted(where) == pages


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 400, 25))
def test_many_histories(tmp_path, cache_dir, first):
  _live(tmp_path, cache_dir, range(first, first + 25), num_steps=6)
