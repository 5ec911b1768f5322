"""Trackers: what they get of a run, once, and that they can neither end nor change it."""

import json
import shutil
import sys
import types

import numpy as np
import pytest

from tff_superquantile.experiments.run import run_config
from tff_superquantile.experiments.run import runner
from tff_superquantile.experiments.run import trackers
from tff_superquantile.experiments.run.trackers import tracking
from tff_superquantile.experiments.run.training import measurements

_SMALL = dict(
  theta=0.5,
  num_train_clients=20,
  num_test_clients=10,
  clients_per_round=6,
  num_rounds=4,
  rounds_per_evaluation=2,
  seconds_per_checkpoint=0.0,
)
_PRIVATE = dict(update_noise_multiplier=1.0, threshold_noise_multiplier=2.0, clip_norm=0.1)


@pytest.fixture(scope="module")
def train(lab):
  """Carries out small runs below the lab's folder."""
  return lambda out, **values: runner.train(
    run_config.of(**{**_SMALL, **lab.places(out), **values})
  )


def _rows(run):
  """{column: {round: value}} of a run's rounds.csv."""
  rounds = dict(run.rounds)
  numbers = rounds.pop("round").astype(int)
  return {
    name: {n: value for n, value in zip(numbers, values) if np.isfinite(value)}
    for name, values in rounds.items()
  }


def _forget_end(run):
  """Makes a finished run one that was killed after round 4, and has the checkpoint of round 3."""
  (run.path / "metrics.json").unlink()
  shutil.rmtree(run.path / "checkpoints" / "program_state_4")


# A tracker of the test's own.


class _Recorder:
  """A tracker that notes what it gets; it fails in the methods that `failing` names."""

  def __init__(self):
    self.subjects, self.known_ids = [], []
    self.rows, self.numbers, self.ends = [], {}, []
    self.failing = set()
    self.id = "recorded"

  def open(self, subject, known_id):
    self._may_fail("open")
    self.subjects.append(subject)
    self.known_ids.append(known_id)
    return self

  def log(self, rows):
    self._may_fail("log")
    self.rows += rows

  def finish(self, numbers, round_num):
    self._may_fail("finish")
    self.numbers = {**numbers, "round": round_num}
    self.ends.append("finished")

  def interrupt(self):
    self.ends.append("interrupted")

  def _may_fail(self, method):
    if method in self.failing:
      raise ConnectionError("the server\nis away")


@pytest.fixture
def recorder(monkeypatch):
  recorder = _Recorder()
  monkeypatch.setitem(trackers.TRACKERS, "recorder", recorder.open)
  return recorder


@pytest.fixture(scope="module")
def plain(train):
  """A run without a tracker."""
  return train("plain")


def _assert_same_model(run, other):
  for weights, others in zip(run.weights, other.weights):
    for array, other_array in zip(weights, others):
      np.testing.assert_array_equal(array, other_array)


def test_a_tracker_gets_flags_rows_and_final_numbers_and_changes_nothing(train, plain, recorder):
  run = train("recorded", tracker="recorder")
  (subject,) = recorder.subjects
  assert subject.name == "superquantile_theta_0.5/seed_0" and subject.params == run.flags
  assert subject.tags == {"task": "synthetic", "method": "superquantile_theta_0.5", "seed": "0"}
  rows = _rows(run)
  assert [round_num for round_num, _ in recorder.rows] == [0, 1, 2, 3, 4]
  for round_num, values in recorder.rows:
    assert values == {name: of[round_num] for name, of in rows.items() if round_num in of}
  assert recorder.numbers == {**run.numbers, "round": 4} and recorder.ends == ["finished"]
  assert "test.error.superquantile_90" in recorder.numbers
  _assert_same_model(run, plain)


def test_a_tracker_that_fails_leaves_the_others_alone(train, recorder, monkeypatch):
  other = _Recorder()
  other.failing = {"log"}
  monkeypatch.setitem(trackers.TRACKERS, "other", other.open)
  train("two", tracker="other,recorder")
  assert [round_num for round_num, _ in recorder.rows] == [0, 1, 2, 3, 4]
  assert recorder.ends == ["finished"] and other.ends == [] and other.rows == []


def test_evaluations_do_not_read_all_rounds_again(train, recorder, monkeypatch):
  reads = []
  read = tracking.Tracking._rows
  monkeypatch.setattr(tracking.Tracking, "_rows", lambda self: reads.append(1) or read(self))
  run = train("read_once", tracker="recorder", rounds_per_evaluation=1)
  # At the first evaluation, when the tracker opens.
  assert len(reads) == 1 and [round_num for round_num, _ in recorder.rows] == [0, 1, 2, 3, 4]
  rows = _rows(run)
  assert dict(recorder.rows)[3] == {name: of[3] for name, of in rows.items() if 3 in of}


@pytest.mark.parametrize("method", ["open", "log", "finish"])
def test_a_failing_tracker_is_one_warning_and_is_made_up_for(
  method, train, plain, recorder, caplog
):
  recorder.failing = {method}
  run = train(f"failing_{method}", tracker="recorder")
  _assert_same_model(run, plain)
  (warning,) = [r.getMessage() for r in caplog.records if "--tracker" in r.getMessage()]
  assert "recorder failed (ConnectionError: the server is away); the run goes on" in warning
  assert recorder.ends == []
  recorder.failing = set()
  train(f"failing_{method}", tracker="recorder")
  assert [round_num for round_num, _ in recorder.rows] == [0, 1, 2, 3, 4]
  assert recorder.ends == ["finished"] and recorder.numbers.items() >= run.numbers.items()


def test_a_finished_run_is_sent_once(train, recorder):
  for _ in range(3):
    train("once", tracker="recorder")
  train("once", num_rounds=6)  # Not to be followed any more.
  assert len(recorder.rows) == 5 and recorder.ends == ["finished"]
  train("once", num_rounds=6, tracker="recorder")
  assert [round_num for round_num, _ in recorder.rows] == [*range(7)]
  assert recorder.known_ids == [None, "recorded"] and recorder.ends == ["finished"] * 2


def test_an_interrupted_run_goes_on_and_repeats_no_step(train, plain, recorder, monkeypatch):
  def evaluate(described):
    if len(recorder.rows) == 3:  # Up to the evaluation after round 2.
      raise KeyboardInterrupt
    return of_test_clients(described)

  of_test_clients = measurements.of_test_clients
  with monkeypatch.context() as patch:
    patch.setattr(measurements, "of_test_clients", evaluate)
    with pytest.raises(KeyboardInterrupt):
      train("interrupted", tracker="recorder")
  assert recorder.ends == ["interrupted"]
  assert [round_num for round_num, _ in recorder.rows] == [0, 1, 2, 3]
  run = train("interrupted", tracker="recorder")
  assert [round_num for round_num, _ in recorder.rows] == [0, 1, 2, 3, 4]
  assert recorder.known_ids == [None, "recorded"] and recorder.ends[-1] == "finished"
  _assert_same_model(run, plain)


def test_a_private_run_is_sent_at_its_end_as_it_is_released(train, recorder):
  def open_at_the_end(subject, known_id):
    assert (subject.folder / "metrics.json").exists()
    return recorder.open(subject, known_id)

  trackers.TRACKERS["recorder"] = open_at_the_end
  run = train("private", tracker="recorder", **_PRIVATE)
  assert recorder.ends == ["finished"], "it was opened before"
  sent = {name for _, values in recorder.rows for name in values}
  assert sent == _rows(run).keys() and "epsilon" in sent
  assert not sent & {"seconds", "cohort_size", "tail_size", "train_loss", "num_excluded"}
  assert not any(name.startswith("train") or "seconds" in name for name in recorder.numbers)


@pytest.mark.parametrize(
  "tracker, said",
  [("aim", "Found --tracker=aim; expected one of mlflow, wandb"), ("mlflow,", "pip install")],
)
def test_a_tracker_that_is_not_there_is_refused_before_work(tracker, said, monkeypatch, tmp_path):
  monkeypatch.setitem(sys.modules, "mlflow", None)
  config = run_config.of(**_SMALL, tracker=tracker, output_dir=str(tmp_path / "none"))
  with pytest.raises(ValueError, match=said):
    runner.train(config)
  assert not (tmp_path / "none").exists()


# MLflow itself, with its store of local files.


@pytest.fixture
def mlflow(monkeypatch):
  mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed: requirements-dev.lock")
  for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"):
    monkeypatch.delenv(name, raising=False)
  return mlflow


def _history(client, run_id):
  """{name: [(step, value)]} of a run at MLflow."""
  names = client.get_run(run_id).data.metrics
  return {n: [(m.step, m.value) for m in client.get_metric_history(run_id, n)] for n in names}


def test_mlflow_has_the_run(mlflow, train, lab):
  run = train("ml", tracker="mlflow")
  client = mlflow.MlflowClient((lab.folder / "ml" / "mlruns").as_uri())
  experiment = client.get_experiment_by_name("synthetic")
  (found,) = client.search_runs([experiment.experiment_id])
  assert found.info.status == "FINISHED"
  assert found.info.run_name == "superquantile_theta_0.5/seed_0"
  assert found.data.tags.items() >= dict(task="synthetic", seed="0").items()
  assert found.data.params == run.flags
  history = _history(client, found.info.run_id)
  expected = {name: list(of.items()) for name, of in _rows(run).items()}
  expected.update((name, [(4, value)]) for name, value in run.numbers.items())
  assert history == expected


def test_mlflow_goes_on_with_the_same_run_even_if_the_folder_lost_the_last_step(mlflow, train, lab):
  run = train("ml_again", tracker="mlflow")
  noted = json.loads((run.path / "trackers.json").read_text())
  _forget_end(run)
  # As if the run had been killed between the sending and the note.
  noted["mlflow"].update(last_round=1, is_final=False)
  (run.path / "trackers.json").write_text(json.dumps(noted))
  run = train("ml_again", tracker="mlflow", num_rounds=6)
  client = mlflow.MlflowClient((lab.folder / "ml_again" / "mlruns").as_uri())
  (experiment,) = client.search_experiments(filter_string="name = 'synthetic'")
  (found,) = client.search_runs([experiment.experiment_id])
  assert found.info.run_id == noted["mlflow"]["id"] and found.info.status == "FINISHED"
  history = _history(client, found.info.run_id)
  assert [step for step, _ in history["train_loss"]] == [1, 2, 3, 4, 5, 6]
  assert history["test_error_mean"] == list(_rows(run)["test_error_mean"].items())
  assert [step for step, _ in history["test.error.mean"]] == [4, 6]


def test_mlflow_without_its_server_does_not_hold_up_the_run(
  mlflow, train, plain, caplog, monkeypatch
):
  monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
  monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
  run = train("ml_away", tracker="mlflow")
  _assert_same_model(run, plain)
  assert len([r for r in caplog.records if "--tracker=mlflow failed" in r.getMessage()]) == 1


# Weights & Biases: a stand-in for its module, as its newest version beside TFF is no light one.


class _FakeWandb(types.ModuleType):
  """The part of the module wandb that is used here; what it is told is kept in its attributes."""

  def __init__(self):
    super().__init__("wandb")
    self.__spec__ = types.SimpleNamespace(origin="fake")
    self.calls, self.logged, self.summary, self.exit_codes = [], [], {}, []
    self.id, self.starting_step = "fake id", 0

  def init(self, **values):
    self.calls.append(values)
    return self

  def log(self, values, step):
    self.logged.append((step, values))

  def finish(self, exit_code=0):
    self.exit_codes.append(exit_code)


def test_wandb_is_told_of_the_run_by_its_api(train, monkeypatch):
  fake = _FakeWandb()
  monkeypatch.setitem(sys.modules, "wandb", fake)
  module = f"{trackers.__name__}.wandb_tracker"
  monkeypatch.delitem(sys.modules, module, raising=False)
  monkeypatch.setenv("WANDB_PROJECT", "mine")
  monkeypatch.delenv("WANDB_DIR", raising=False)
  run = train("wb", tracker="wandb")
  monkeypatch.delitem(sys.modules, module)  # It holds the fake.
  (call,) = fake.calls
  assert call == dict(
    id=None,
    resume="allow",
    name="superquantile_theta_0.5/seed_0",
    group="superquantile_theta_0.5",
    tags=["task: synthetic", "method: superquantile_theta_0.5", "seed: 0"],
    config=run.flags,
    dir=str(run.path),
  )
  assert [step for step, _ in fake.logged] == [0, 1, 2, 3, 4]
  assert fake.logged[4][1]["test_error_mean"] == _rows(run)["test_error_mean"][4]
  assert fake.summary == run.numbers and fake.exit_codes == [0]
