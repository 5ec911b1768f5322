"""Trackers, which show runs beside one another. `TRACKERS` has a row for each, a file of its own.

A tracker's library is imported when a run asks for it by --tracker, and not before. Importing this
starts no TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import importlib.util
import pathlib
from typing import Protocol

# The number of a round, and its values by name, as rounds.csv has them.
Row = tuple[int, Mapping[str, float]]


@dataclasses.dataclass(frozen=True)
class Subject:
  """What a tracker is told of a run when it first hears of it.

  Attributes:
    output_dir: The directory of results, with the task's folder in it.
    folder: The folder of the run.
    tags: "task", "method" and "seed", by the names of their folders.
    params: The run's flags, as its flags.txt has them.
  """

  output_dir: pathlib.Path
  folder: pathlib.Path
  tags: Mapping[str, str]
  params: Mapping[str, str]

  @property
  def name(self) -> str:
    """The name of the run within its task."""
    return f"{self.tags['method']}/seed_{self.tags['seed']}"


class Tracker(Protocol):
  """One run at a tracker. Its methods raise whatever its library raises.

  Attributes:
    id: The run's id there, by which a resumed run goes on.
  """

  id: str

  def log(self, rows: Sequence[Row]) -> None:
    """Enters the values of rounds, less what the run at the tracker has already."""

  def finish(self, numbers: Mapping[str, float], round_num: int) -> None:
    """Enters the final numbers, of the model after this round, and ends the run as finished."""

  def interrupt(self) -> None:
    """Ends the run as one that may go on."""


@dataclasses.dataclass(frozen=True)
class TrackerKind:
  """A row of `TRACKERS`.

  Attributes:
    library: The name of its module.
    requirement: What pip installs it by.
    open: From a run and its id there (None: it is new) to the `Tracker`.
  """

  library: str
  requirement: str
  open: Callable[[Subject, str | None], Tracker]


def _open_mlflow(subject: Subject, known_id: str | None) -> Tracker:
  from tff_superquantile.experiments.run.trackers import mlflow_tracker

  return mlflow_tracker.MlflowTracker(subject, known_id)


def _open_wandb(subject: Subject, known_id: str | None) -> Tracker:
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
