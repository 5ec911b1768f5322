"""Whatever the commands do to one experiment, nobody is protected and measured exactly in it."""

import collections

from helpers import experiment_histories
import pytest

from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.pages import page
from tff_superquantile.experiments.run import runner

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
  counted = _live(tmp_path, cache_dir, range(6), num_steps=3)
  assert {outcome for _, outcome in counted} == {"done", "refused"}


@pytest.mark.parametrize(
  "first, second", [("private", "without privacy"), ("without privacy", "private")]
)
def test_the_same_clients_are_told_in_disguise(tmp_path, cache_dir, first, second):
  history = experiment_histories.History(tmp_path / "own", cache_dir, "own", seed=1)
  history.step(first)
  for disguise in history.DISGUISES:
    flags = dict(data_dir=str(history.same_clients(disguise)), seed=1)
    with pytest.raises(ValueError, match="Found [0-9]+ clients? who are to be"):
      history.STEPS[second](history, **flags)
    with pytest.raises(ValueError, match="Found [0-9]+ clients? who are to be"):
      history.STEPS[second](history, **flags, run_name="other")
  # Behind a link, too, by either name.
  [task] = history.output_dir.glob("own_*")
  for link in (*task.iterdir(), task):
    link.rename(place := tmp_path / f"disk_{link.name}")
    link.symlink_to(place)
    with pytest.raises(ValueError, match="Found [0-9]+ clients? who are to be"):
      history.STEPS[second](history)


def test_a_run_that_is_refused_late_leaves_no_entry(tmp_path, cache_dir):
  history = experiment_histories.History(tmp_path / "own", cache_dir, "own", seed=0)
  same = dict(data_dir=str(history.data), model="linear", validation_fraction=0.0, split_seed=0)
  history.STEPS["private"](history, **same)
  [key] = history.output_dir.rglob("noise_key")
  register = history.output_dir / "checkpoints/clients.json"
  before = history.contents(), register.read_bytes()
  with pytest.raises(ValueError, match="Found the noise key of the run in"):
    history.STEPS["private"](history, **same, noise_key_file=str(key), run_name="again")
  assert (history.contents(), register.read_bytes()) == before


_HOSPITAL = """
import numpy as np
import tensorflow as tf
from tasks import models, task
from tff_superquantile.simulation import client_files

_SPEC = (tf.TensorSpec([None, 2], tf.float32), tf.TensorSpec([None], tf.int32))

def _patients():
  for i in range(40):
    x = np.random.default_rng(i).normal(size=[4, 2]).astype(np.float32)
    yield f"patient {i}", x, (x[:, 0] > 0).astype(np.int32)

def _task(name):
  return task.Task(
    name=name,
    build_model=lambda seed: models.build_linear_classifier(_SPEC, 2, intercept=True),
    open_clients=lambda request: [
      client_files.open_or_write_client_files(f"{request.cache_dir}/hospital", _patients)
    ],
    defaults=dict(num_rounds=1, clients_per_round=3, client_learning_rate=0.1, batch_size=1,
                  rounds_per_evaluation=1, max_loss=1.0))

LINEAR, DEEP = _task("linear"), _task("deep")
"""


def test_two_tasks_of_one_module_have_the_same_clients(tmp_path, monkeypatch):
  (tmp_path / "hospital_tasks.py").write_text(_HOSPITAL)
  monkeypatch.syspath_prepend(str(tmp_path))
  folders = dict(output_dir=str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))

  def train(name, **flags):
    task = f"hospital_tasks:{name}"
    run_config.import_plugins({"task": task})
    runner.train(run_config.from_values(task=task, algorithm="fed_avg", **{**folders, **flags}))

  train("LINEAR", epsilon=8.0, delta=1e-3, clip_norm=1.0)
  with pytest.raises(ValueError, match="Found [0-9]+ clients who are to be measured exactly"):
    train("DEEP")
  train("DEEP", output_dir=str(tmp_path / "elsewhere"))


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
