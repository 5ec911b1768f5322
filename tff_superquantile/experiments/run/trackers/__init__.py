"""Trackers, which show runs beside one another: a class each, in a file of its own.

A tracker's library is imported when a run asks for it by --tracker, and not before. Importing this
starts no TensorFlow.
"""

from __future__ import annotations

import importlib.util

from privacy.settings import plugins
from tff_superquantile.experiments.run.trackers.tracker import Row as Row
from tff_superquantile.experiments.run.trackers.tracker import Subject as Subject
from tff_superquantile.experiments.run.trackers.tracker import Tracker as Tracker

# By the name of the library. Later versions of both need a newer typing-extensions than TFF allows.
_REQUIREMENTS = {"mlflow": "mlflow-skinny>=2.16,<2.20", "wandb": "wandb>=0.18,<0.19"}
TRACKERS = plugins.Kinds(
  "tracker",
  "trackers",
  Tracker,
  {
    "mlflow": f"{__name__}.mlflow_tracker:MlflowTracker",
    "wandb": f"{__name__}.wandb_tracker:WandbTracker",
  },
)


def check(tracker: str | None) -> None:
  """Raises a `ValueError` for a tracker that does not exist, or whose library is not there."""
  for name in plugins.names(tracker):
    if name not in _REQUIREMENTS:
      TRACKERS[name]  # Or a sentence that there is none.
      continue
    spec = importlib.util.find_spec(name)
    # A mere folder of that name, such as the one that wandb leaves, has no origin.
    if spec is None or spec.origin is None:
      raise ValueError(
        f"Found --tracker={name} without the package {name}; install it by"
        f" pip install '{_REQUIREMENTS[name]}'."
      )
