"""Ditto's own models of a run's test clients, which train beside the shared one."""

from __future__ import annotations

import numpy as np

import tasks
from tff_superquantile import evaluation
from tff_superquantile.experiments.config import personal
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run.hooks import hook
from tff_superquantile.experiments.run.hooks import personalizing

_FILE = "ditto.npz"  # Beside the checkpoints, as it belongs to them.


class DittoTraining(hook.Hook):
  """Takes a turn of all test clients after each --rounds_per_evaluation rounds.

  The own models are written after a round is released and before its checkpoint. A killed run
  repeats the rounds after its checkpoint, with the same shared models: a file that is ahead has
  what the turns that are repeated would make, and these are left out.
  """

  def __init__(self, job: hook.Job):
    super().__init__(job)
    self._path = job.folder / "checkpoints" / _FILE
    self._rounds_per_turn = job.config.rounds_per_evaluation
    self._evaluation: hook.Evaluation | None = None
    self._states: evaluation.ditto.States = ()
    self._round: int | None = None  # That of the last turn, 0 before the first.

  @staticmethod
  def takes_part(config: run_config.RunConfig) -> bool:
    return config.ditto is not None

  @staticmethod
  def check(config: run_config.RunConfig, task: tasks.task.Task) -> None:
    if config.is_private:
      raise ValueError(
        "Found --ditto in a private run, whose files say nothing between the rounds that the"
        " accounting does not cover; leave it out, and use --personalize, which begins when the"
        " rounds have ended."
      )
    if config.rounds_per_evaluation > config.num_rounds:
      raise ValueError(
        f"Found --rounds_per_evaluation={config.rounds_per_evaluation} with --ditto; expected at"
        f" most --num_rounds={config.num_rounds}, or no own model is ever trained."
      )

  def prepare(self) -> None:
    """Reads the own models of an earlier process, and traces their training."""
    job, asked = self.job, self.job.config.ditto
    assert asked is not None  # `takes_part` sees to it.
    personalizing.check_examples(job, personal.DITTO)
    kept = run_files.read_weights(self._path)
    if kept is not None:
      with np.load(self._path) as arrays:
        self._states, self._round = kept.trainable, int(arrays["round"])
    self._ditto = evaluation.DittoTrainer(
      job.model,
      personalizing.split_clients(job.config, job.splits),
      strength=asked.strength,
      learning_rate=asked.learning_rate or job.config.local.learning_rate,
      **personalizing.options(job),
    )

  def on_start(self, round_num: int) -> None:
    of_turn = round_num - round_num % self._rounds_per_turn
    if round_num and (self._round is None or self._round < of_turn):
      raise ValueError(
        f"Found no {self._path} of round {of_turn}, the own models of a run at round {round_num};"
        " bring it back, or choose another --output_dir."
      )

  def on_evaluation(self, evaluation: hook.Evaluation) -> None:
    self._evaluation = evaluation

  def on_round(self, round_num: int, values: hook.Values) -> None:
    evaluated, self._evaluation = self._evaluation, None
    if evaluated is None or round_num % self._rounds_per_turn:
      return
    if self._round is None:
      self._states = self._ditto.start(evaluated.weights)
    elif self._round >= round_num:
      return
    else:
      self._states = self._ditto.turn(self._states, evaluated.weights, round_num)
    self._round = round_num
    self._path.parent.mkdir(mode=0o700, exist_ok=True)
    run_files.write_weights(self._path, run_files.Weights(self._states, ()), round=round_num)

  def complete(self) -> None:
    """Measures own models, and on the same rows the model that the run leaves."""
    asked, outcome = self.job.config.ditto, self.job.outcome
    assert asked is not None
    parts = zip(
      (personal.SHARED, personal.DITTO), self._ditto.measured(self._states, outcome.weights)
    )
    for name, measured in parts:
      outcome.metrics[name] = personalizing.write_part(self.job.folder, name, measured)
    print(f"Ditto's own models: {self.job.folder / 'ditto_clients.csv'}")
