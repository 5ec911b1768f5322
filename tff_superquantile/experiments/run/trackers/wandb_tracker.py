"""Runs at Weights & Biases. Importing this imports wandb."""

from collections.abc import Mapping, Sequence
import os

import wandb

from tff_superquantile.experiments.run.trackers import tracker


class WandbTracker(tracker.Tracker):
  """A run at Weights & Biases.

  Its variables say where: WANDB_MODE, WANDB_PROJECT, else the project has the task's name, and
  WANDB_DIR, else its local files are in the run's folder.
  """

  def __init__(self, subject: tracker.Subject, known_id: str | None):
    # An argument would win over its variable.
    own = {"WANDB_PROJECT": ("project", subject.tags["task"]), "WANDB_DIR": ("dir", subject.folder)}
    places = {name: str(value) for key, (name, value) in own.items() if key not in os.environ}
    self._run = wandb.init(
      id=known_id,
      resume="allow",
      name=subject.name,
      group=subject.tags["method"],
      tags=[f"{name}: {value}"[:64] for name, value in subject.tags.items()],  # The longest tag.
      # A resumed run keeps its own: another number of rounds would be refused.
      config=dict(subject.params) if known_id is None else None,
      **places,
    )
    self.id = self._run.id
    self._first_step = self._run.starting_step  # After what has arrived before.

  def log(self, rows: Sequence[tracker.Row]) -> None:
    for round_num, values in rows:
      if round_num >= self._first_step:
        self._run.log(dict(values), step=round_num)

  def finish(self, numbers: Mapping[str, float], round_num: int) -> None:
    del round_num  # A run has one summary.
    self._run.summary.update(dict(numbers))
    self._run.finish()

  def interrupt(self) -> None:
    self._run.finish(exit_code=1)
