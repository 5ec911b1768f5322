"""Sends a finished run to MLflow, whose own variables say where (MLFLOW_TRACKING_URI ...).

    PYTHONPATH=examples ./run_experiments.sh train --hook=mlflow_hook:Mlflow

A private run takes it, too, as it follows the last file.
"""

import mlflow

from tff_superquantile.experiments import run


class Mlflow(run.Hook):
  """A run there, sent once: its flags, the rows of rounds.csv, and three files."""

  def on_finished(self):
    finished = self.job.read()
    sent = self.job.folder / f"mlflow_{finished.last_round}.txt"
    if sent.exists():
      return
    with mlflow.start_run(run_name=finished.path.parent.name) as there:
      mlflow.log_params(finished.flags)
      for row in zip(*finished.rounds.values()):
        values = {name: value for name, value in zip(finished.rounds, row) if value == value}
        mlflow.log_metrics(values, step=int(values["round"]))  # NaN: a round without evaluation.
      for name in ("metrics.json", "manifest.json", "weights.npz"):
        mlflow.log_artifact(self.job.folder / name)
    sent.write_text(there.info.run_id)
