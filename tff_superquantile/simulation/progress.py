"""A progress bar as a release manager: it shows what a round releases, and nothing else."""

import sys
from typing import Optional

import tensorflow_federated as tff
import tqdm

# What is shown of a round, by the name under which it is released.
_SHOWN = {
  "threshold": ("threshold", "{:.3f}"),
  "tail_size": ("tail", "{:.0f}"),
  "num_excluded": ("left out", "{:.0f}"),
  "cohort_loss_mean": ("loss", "{:.3f}"),
  "train_loss": ("training loss", "{:.3f}"),
  "test_error_mean": ("test error", "{:.1%}"),
  "test_error_p90": ("p90", "{:.1%}"),
}


class ProgressReleaseManager(tff.program.ReleaseManager):
  """Shows rounds, time left, seconds a round, and the latest of the values that matter."""

  def __init__(self, name: str, num_rounds: int):
    """Prepares the bar, which appears with the first release.

    Args:
      name: What is being run.
      num_rounds: Rounds in total.
    """
    self._name = name
    self._num_rounds = num_rounds
    self._bar: Optional[tqdm.tqdm] = None
    self._shown: dict[str, str] = {}

  def _open(self, done: int) -> tqdm.tqdm:
    terminal = sys.stderr.isatty()
    return tqdm.tqdm(
      desc=self._name,
      total=self._num_rounds,
      initial=done,  # Rounds of an earlier process say nothing about the time that is left.
      unit="round",
      mininterval=0.2 if terminal else 20,
      dynamic_ncols=terminal,
    )

  async def release(self, value, key: int) -> None:
    if self._bar is None:
      self._bar = self._open(max(key - 1, 0))
    for released, (name, form) in _SHOWN.items():
      if released in value and (value[released] or released != "num_excluded"):
        self._shown[name] = form.format(value[released])
    self._bar.set_postfix(self._shown, refresh=False)
    self._bar.update(key - self._bar.n)

  def close(self) -> None:
    if self._bar is not None:
      self._bar.close()
