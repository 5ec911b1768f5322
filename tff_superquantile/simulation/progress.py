"""Shows the progress of a run: time left, and the values of a round that matter."""

from collections.abc import Mapping
import sys
from typing import Any

import tqdm

# The forms of errors, by the names of `evaluation.errors.ERRORS`.
_ERROR_FORMS = {"misclassification": "{:.1%}", "rmse": "{:.3f}"}
_ERROR = ""  # Stands for one of them.
# The values of a round that are shown, by the name under which they are released.
_SHOWN = {
  "train_loss": ("loss", "{:.3f}"),  # Of those who trained; the cohort's, if known, instead.
  "cohort_loss_mean": ("loss", "{:.3f}"),
  "threshold": ("threshold", "{:.3f}"),
  "tail_size": ("tail", "{:.0f}"),
  "epsilon": ("epsilon", "{:.3g}"),
  "num_excluded": ("left out", "{:.0f}"),
  "test_error_mean": ("test error", _ERROR),
  "test_error_p90": ("p90", _ERROR),
  "seconds": ("s/round", "{:.2f}"),
}


class ProgressBar:
  """Shows rounds, time left and the latest of the values that matter."""

  def __init__(
    self,
    name: str,
    num_rounds: int | None,
    position: int | None = None,
    error: str = "misclassification",
  ):
    """Prepares the bar of a run, at a line of the terminal; `error` is a key of `errors.ERRORS`."""
    self.error = error
    self._name = name
    self.num_rounds = num_rounds
    self._position = position
    self._bar: tqdm.tqdm | None = None
    self._shown: dict[str, str] = {}

  def _open(self, done: int) -> tqdm.tqdm:
    terminal = sys.stderr.isatty()
    return tqdm.tqdm(
      desc=self._name,
      total=self.num_rounds,
      initial=done,
      unit="round",
      position=self._position,
      leave=self._position is None,
      mininterval=0.2 if terminal else 20,
      dynamic_ncols=terminal,
    )

  def show(self, values: Mapping[str, Any], round_num: int) -> None:
    """Shows that a round is done, with the values that it released."""
    if self._bar is None:
      self._bar = self._open(max(round_num - 1, 0))
    for released, (name, form) in _SHOWN.items():
      if released in values and (values[released] or released != "num_excluded"):
        form = form or _ERROR_FORMS[self.error]
        self._shown[name] = form.format(values[released])
    self._bar.set_postfix(self._shown, refresh=False)
    self._bar.update(round_num - self._bar.n)

  def close(self) -> None:
    if self._bar is not None:
      self._bar.close()
