"""Shows a run at Weights & Biases, whose own variables say where (WANDB_PROJECT, WANDB_MODE ...).

    PYTHONPATH=examples ./run_experiments.sh train --hook=wandb_hook:Wandb

A resumed run goes on there; one that is interrupted is shown as failed.
"""

import wandb

from tff_superquantile.experiments import run


class Wandb(run.Hook):
  """A run there: its flags, the rows of rounds.csv, and the numbers of metrics.json."""

  def on_start(self, round_num):
    id_file = self.job.folder / "wandb_id.txt"
    known_id = id_file.read_text() if id_file.exists() else None
    config = None if known_id else self.job.config.to_flags()  # A resumed run keeps its own.
    self.run = wandb.init(id=known_id, resume="allow", config=config)
    id_file.write_text(self.run.id)

  def on_round(self, round_num, values):
    if round_num >= self.run.starting_step:  # A resumed run may repeat rounds.
      self.run.log(dict(values), step=round_num)

  def on_rounds_end(self, is_whole):
    if not is_whole:
      self.run.finish(exit_code=1)

  def complete(self):
    self.run.summary.update(self.job.outcome.metrics)
    self.run.finish()
