"""What a tracker is: the run that it is told of, and the calls that it gets."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
import dataclasses
import pathlib

# The number of a round, and its values by name, as rounds.csv has them.
Row = tuple[int, Mapping[str, float]]


@dataclasses.dataclass(frozen=True)
class Subject:
  """What a tracker is told of a run when it first hears of it."""

  output_dir: pathlib.Path
  folder: pathlib.Path
  tags: Mapping[str, str]
  params: Mapping[str, str]

  @property
  def name(self) -> str:
    """The name of the run within its task."""
    return f"{self.tags['method']}/seed_{self.tags['seed']}"


class Tracker(abc.ABC):
  """One run at a tracker, by its id there. Its methods raise whatever its library raises."""

  id: str

  @abc.abstractmethod
  def __init__(self, subject: Subject, known_id: str | None):
    """Opens the run with this id, or makes one where it is None."""

  @abc.abstractmethod
  def log(self, rows: Sequence[Row]) -> None:
    """Enters the values of rounds, less what the run at the tracker has already."""

  @abc.abstractmethod
  def finish(self, numbers: Mapping[str, float], round_num: int) -> None:
    """Enters the final numbers, of the model after this round, and ends the run as finished."""

  @abc.abstractmethod
  def interrupt(self) -> None:
    """Ends the run as one that may go on."""
