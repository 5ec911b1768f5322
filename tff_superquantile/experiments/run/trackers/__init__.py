"""Trackers, which show runs beside one another. `TRACKERS` has a row for each, a file of its own.

A tracker's library is imported when a run asks for it by --tracker, and not before. Importing this
starts no TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import importlib.util

from tff_superquantile.experiments.run.trackers import tracker as tracker_lib


@dataclasses.dataclass(frozen=True)
class TrackerKind:
  """A row of `TRACKERS`: the library's module, what pip installs it by, and its `Tracker`.

  The tracker opens from a run and its id there (None: it is new).
  """

  library: str
  requirement: str
  open: Callable[[tracker_lib.Subject, str | None], tracker_lib.Tracker]


def _open_mlflow(subject: tracker_lib.Subject, known_id: str | None) -> tracker_lib.Tracker:
  from tff_superquantile.experiments.run.trackers import mlflow_tracker

  return mlflow_tracker.MlflowTracker(subject, known_id)


def _open_wandb(subject: tracker_lib.Subject, known_id: str | None) -> tracker_lib.Tracker:
  from tff_superquantile.experiments.run.trackers import wandb_tracker

  return wandb_tracker.WandbTracker(subject, known_id)


# Later versions of both need a newer typing-extensions than TFF allows.
TRACKERS: dict[str, TrackerKind] = {
  "mlflow": TrackerKind("mlflow", "mlflow-skinny>=2.16,<2.20", _open_mlflow),
  "wandb": TrackerKind("wandb", "wandb>=0.18,<0.19", _open_wandb),
}


def asked(tracker: str | None) -> list[str]:
  """Returns the names in --tracker, each once."""
  names = (name.strip() for name in (tracker or "").split(","))
  return list(dict.fromkeys(filter(None, names)))


def check(tracker: str | None) -> None:
  """Raises a `ValueError` for a tracker that does not exist, or whose library is not there."""
  for name in asked(tracker):
    if name not in TRACKERS:
      raise ValueError(
        f"Found --tracker={tracker}; expected names out of {', '.join(TRACKERS)}, separated"
        " by commas."
      )
    kind = TRACKERS[name]
    spec = importlib.util.find_spec(kind.library)
    # A mere folder of that name, such as the one that wandb leaves, has no origin.
    if spec is None or spec.origin is None:
      raise ValueError(
        f"Found --tracker={name} without the package {kind.library}; install it by"
        f" pip install '{kind.requirement}'."
      )
