"""The results of every client at each evaluation, which a run keeps as it goes."""

from __future__ import annotations

from collections.abc import Mapping
import os
import pathlib
from typing import Any

import tensorflow_federated as tff

from tff_superquantile import evaluation
from tff_superquantile.experiments.run.training import evaluation_files


class ClientsReleaseManager(tff.program.ReleaseManager):
  """Writes the results of an evaluation as one file, when its round is released.

  So no file is written twice, but for a round that a resumed run repeats, with the same rows. A
  round is released before its checkpoint: a run that was killed has the files of all evaluations
  up to its checkpoint. What is later than the first round that a process releases was left by
  one that was killed, and goes then; in a private run, whose releases are final, it stays.
  """

  def __init__(self, folder: pathlib.Path, time: float | None = None):
    """Initializes the manager of a folder, which is made with its first file.

    All files have the modification time `time`, in seconds since 1970; None for the time of
    writing. A private run has one, as times of writing would tell how long its rounds took.
    """
    self._folder = folder
    self._time = time
    self._removes_later = time is None
    self._results: Mapping[str, evaluation.ClientMetrics] = {}

  def hold(self, results: Mapping[str, evaluation.ClientMetrics]) -> None:
    """Takes the results of all clients, by split, for the round that is released next."""
    self._results = results

  async def release(self, value: Any, key: int) -> None:
    """Writes the file of round `key`, from 0, if it was evaluated; `value` has its own file."""
    if self._removes_later:
      for path in evaluation_files.find(self._folder):
        if evaluation_files.round_of(path) >= key:
          path.unlink()
      self._removes_later = False
    if self._results:
      columns = {split: results.columns() for split, results in self._results.items()}
      path = evaluation_files.write(self._folder, key, columns)
      if self._time is not None:
        os.utime(path, (self._time, self._time))
    self._results = {}
