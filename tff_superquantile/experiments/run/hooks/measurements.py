"""The measurements of a run: rows of rounds.csv, statistics and the results of every client."""

from collections.abc import Mapping
import datetime
import os
from typing import Any

from absl import logging
import numpy as np

from tff_superquantile import evaluation
from tff_superquantile.experiments.run import evaluation_files
from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run.hooks import hook
from tff_superquantile.simulation import training_loop

# Names of a threshold's measurements in rounds.csv, where they differ.
_COLUMNS = {"loss_mean": "cohort_loss_mean", "loss_superquantile": "cohort_loss_superquantile"}
# Statistics of the test clients in the rows of rounds.csv, for plots against rounds.
_RELEASED_STATISTICS = ("mean", "p90", "superquantile_90")

# So many times the loss before training are worth a word, or end the run.
_SUSPICIOUS_GROWTH, _LARGEST_GROWTH = 10.0, 1e6
_REMEDY = "; expected it to fall: lower --client_learning_rate."


class Growth(hook.Hook):
  """Ends a run whose loss grows without bound, after the release of a round that shows it.

  It compares the median loss of the test clients, which such a round releases, so that its message
  is no further release of a private run. A single client with absurd inputs may have any loss. The
  state of the round before is the last that is saved, so that a resumed run ends likewise.
  """

  def before(self) -> None:
    """Reads the mean loss of the test clients before training; None if the run has not begun."""
    losses = self.job.earlier.rounds.get("test_loss_mean", ())
    self._initial: float | None = next(iter(losses), None)
    self._loss: Mapping[str, float] | None = None

  def evaluated(self, results: hook.Results, described: hook.Described) -> hook.Values:
    self._loss = described["test"]["loss"]
    return {}

  async def release(self, value: Any, key: int) -> None:
    loss, self._loss = self._loss, None
    if loss is None:
      return
    if self._initial is None:
      self._initial = loss["mean"]
    if sentence := self._complaint(loss, _LARGEST_GROWTH):
      raise training_loop.DivergedError(f"{sentence} in round {key}{_REMEDY}")

  def finish(self) -> None:
    """Warns if the loss of the model that is left is far above that before training."""
    if sentence := self._complaint(self.job.metrics["test"]["loss"], _SUSPICIOUS_GROWTH):
      logging.warning("%s", sentence + _REMEDY)

  def _complaint(self, loss: Mapping[str, float], growth: float) -> str:
    if self._initial is None or loss["p50"] <= growth * self._initial:
      return ""
    return (
      f"Found that the test clients' loss has grown from {self._initial:.3g} before training to a"
      f" median of {loss['p50']:.3g}"
    )


class ClientResults(hook.Hook):
  """Writes the results of an evaluation as one file, when its round is released.

  Files that are later than the first round that a process releases were left by one that was
  killed, and go then; in a private run, whose releases are final, they stay. There all files have
  the time at which the run started, as times of writing would tell the sizes of its cohorts.
  """

  def begin(self) -> None:
    self._folder = self.job.folder / run_files.CLIENTS
    self._removes_later = not self.job.config.is_private
    self._results: hook.Results = {}

  def evaluated(self, results: hook.Results, described: hook.Described) -> hook.Values:
    self._results = results
    return {}

  async def release(self, value: Any, key: int) -> None:
    """Writes the file of round `key`, from 0, if it was evaluated; `value` has its own file."""
    if self._removes_later:
      for round_num, path in evaluation_files.find(self._folder).items():
        if round_num >= key:
          path.unlink()
      self._removes_later = False
    if self._results:
      columns = {split: results.columns() for split, results in self._results.items()}
      path = evaluation_files.write(self._folder, key, columns)
      if self.job.config.is_private:
        started = datetime.datetime.fromisoformat(self.job.manifest["started"])
        os.utime(path, (started.timestamp(), started.timestamp()))
    self._results = {}


def of_round(metrics: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the values of a row of rounds.csv by name, from the metrics of a round."""
  client_work = metrics["client_work"] or {}  # It is empty where nothing is measured.
  threshold = client_work.get("threshold") or {}
  aggregator = metrics["aggregator"] or {}
  named = {
    "threshold": threshold.get("threshold"),
    **client_work.get("cohort", {}),
    "estimated_share_sum": None,  # Its place, whichever part measures it.
    **{_COLUMNS.get(name, name): value for name, value in threshold.items()},
    **aggregator,
    "train_loss": client_work.get("train", {}).get("loss"),
  }
  return {name: value for name, value in named.items() if value is not None}


def describe(metrics: evaluation.ClientMetrics, weighted: bool = False) -> dict[str, Any]:
  """Returns {"loss" | "error" | measure: {statistic: number}} of clients."""
  weights = metrics.num_examples if weighted else None
  return {
    "loss": evaluation.describe(metrics.loss, weights),
    "error": evaluation.describe(metrics.error, weights),
    **{
      name: {**evaluation.describe(values, weights), "num_clients": int(np.isfinite(values).sum())}
      for name, values in metrics.measures.items()
    },
  }


def of_test_clients(described: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
  """Returns the values of a row of rounds.csv by name, from `describe`."""
  return {
    f"test_{quantity}_{name}": described[quantity][name]
    for quantity in dict.fromkeys(("error", "loss", *described))
    for name in _RELEASED_STATISTICS
  }
