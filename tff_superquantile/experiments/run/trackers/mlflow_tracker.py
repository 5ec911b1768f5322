"""Runs at MLflow. Importing this imports MLflow."""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import fcntl
import os
import pathlib
import time

# A server that is away must not hold up a run for the four minutes of MLflow's own defaults.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
# A store of plain files, as the runs are, which MLflow reads and writes only if it is told to.
os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")

import mlflow  # noqa: E402  It reads the variables.
from mlflow import entities  # noqa: E402

from tff_superquantile.experiments.run.trackers import tracker  # noqa: E402

# The most that one request may hold.
_MOST_METRICS, _MOST_PARAMS = 1000, 100


class MlflowTracker(tracker.Tracker):
  """A run at MLflow.

  MLflow's variables say where: MLFLOW_TRACKING_URI, else OUTPUT_DIR/mlruns, where one program shows
  all runs; MLFLOW_EXPERIMENT_NAME or MLFLOW_EXPERIMENT_ID, else the experiment has the task's name.
  """

  def __init__(self, subject: tracker.Subject, known_id: str | None):
    store = None if mlflow.is_tracking_uri_set() else subject.output_dir.absolute() / "mlruns"
    self._client = mlflow.MlflowClient(tracking_uri=store and store.as_uri())
    self._last_steps: dict[str, int] = {}  # Of what has arrived before.
    if known_id is not None:
      self._client.update_run(known_id, status="RUNNING")
      self.id = known_id
      for name in self._client.get_run(known_id).data.metrics:
        history = self._client.get_metric_history(known_id, name)
        self._last_steps[name] = max(metric.step for metric in history)
      return
    experiment_id = os.environ.get("MLFLOW_EXPERIMENT_ID")
    if experiment_id is None:
      with _locked(store):
        experiment_id = self._experiment(
          os.environ.get("MLFLOW_EXPERIMENT_NAME") or subject.tags["task"]
        )
    made = self._client.create_run(
      experiment_id, run_name=subject.name, tags=dict(subject.tags), start_time=_now()
    )
    self.id = made.info.run_id
    params = [entities.Param(name, text) for name, text in subject.params.items()]
    for start in range(0, len(params), _MOST_PARAMS):
      self._client.log_batch(self.id, params=params[start : start + _MOST_PARAMS])

  def _experiment(self, name: str) -> str:
    """Returns the id of an experiment, which is made if it is not there."""
    known = self._client.get_experiment_by_name(name)
    return str(self._client.create_experiment(name) if known is None else known.experiment_id)

  def log(self, rows: Sequence[tracker.Row]) -> None:
    now = _now()
    metrics = [
      entities.Metric(name, value, now, round_num)
      for round_num, values in rows
      for name, value in values.items()
      if round_num > self._last_steps.get(name, -1)
    ]
    for start in range(0, len(metrics), _MOST_METRICS):
      self._client.log_batch(self.id, metrics=metrics[start : start + _MOST_METRICS])

  def finish(self, numbers: Mapping[str, float], round_num: int) -> None:
    self.log([(round_num, numbers)])
    self._client.set_terminated(self.id)

  def interrupt(self) -> None:
    self._client.set_terminated(self.id, status="KILLED")


def _now() -> int:
  return round(1000 * time.time())


@contextlib.contextmanager
def _locked(store: pathlib.Path | None) -> Iterator[None]:
  """Keeps other runs of a sweep from making the same experiment; None for a store of a server."""
  if store is None:
    yield
    return
  store.mkdir(parents=True, exist_ok=True)
  descriptor = os.open(store, os.O_RDONLY | os.O_DIRECTORY)
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield
  finally:
    os.close(descriptor)
