"""Shows what private superquantile aggregation gains over private FedAvg, by their noise.

    python -m paper.studies noise_gain --output_dir=DIR --task=TASK

Reads the finished private runs of FedAvg and of superquantile aggregation that differ in their
budget or noise, --averaged_rounds and theta alone, and trains nothing. Of one budget superquantile
aggregation has a little more noise on the updates, as its thresholds spend some of it: runs whose
noise multipliers agree to two digits are compared. With --update_noise_multiplier the noise is what
more clients would need, whatever these clients' epsilon is: then the figure tells of the model's
gain under such noise, and of nobody's privacy. Intervals are of 95 %, over test clients. Writes

    DIR/TASK/noise_gain.{html,md,csv}    a row each theta, noise and kind of model
"""

from __future__ import annotations

import os

from paper.studies import gains
from privacy import ledger
from privacy import parts
from tff_superquantile.experiments.pages import page
from tff_superquantile.experiments.run import run_folder


def _noise(run: run_folder.Run) -> float | None:
  """Returns the noise multiplier of a private run's updates by its ledger, to two digits."""
  path = run.path / ledger.FILE_NAME
  if run.config is None or not run.config.is_private or not path.is_file():
    return None
  release = ledger.Ledger.from_json(path.read_text(encoding="utf-8")).release
  updates = release.find(parts.UpdateSum)
  return None if updates is None else float(f"{updates.z:.2g}")


AXIS = gains.Axis(
  name="noise_gain",
  column="update_noise_multiplier",
  unit="times the clip norm as noise",
  label="Noise multiplier of the updates",
  title="gain under noise",
  question="under how much noise does θ still gain?",
  caption="Look where the gain of the tail ends: right of it, a budget needs more clients.",
  place=_noise,
  flags=frozenset(
    ("epsilon", "update_noise_multiplier", "threshold_noise_multiplier", "max_loss")
    + ("clip_count_noise_multiplier", "rho_ratio", "clip_rho_ratio")
  ),
)


def report(output_dir: str | os.PathLike, task: str) -> page.Page:
  """Shows the gain of a task's finished private runs by theta, kind of model and noise."""
  return gains.report(output_dir, task, AXIS)
