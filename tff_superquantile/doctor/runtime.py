"""Runs trials in a Python of their own, where a crash or a hang is found out instead of suffered.

`trials` is what runs there: it reads a line of JSON for each trial and answers with one. It
is started with the first trial, and anew after one that ended it. Standard library alone.
"""

from __future__ import annotations

from collections.abc import Sequence
import json
import os
import sys
import time
from typing import Any

from tff_superquantile.doctor import report

COMMAND = (sys.executable, "-m", "tff_superquantile.doctor.trials")

_SECONDS_TO_END = 10.0
_SHOWN_LETTERS = 300

_REMEDIES = {
  "SIGILL": "The processor lacks an instruction that TensorFlow's wheels use: take one with"
  " AVX, or have the virtual machine pass it on (QEMU: -cpu host).",
  "SIGKILL": "Most likely memory ran out: end other programs, or raise the memory limit of the"
  " container.",
}


class Trials:
  """Runs trials. Must be closed; even if it is not, what it started ends with this process."""

  def __init__(self, command: Sequence[str] = COMMAND):
    """Initializes the trials, without starting anything.

    Args:
      command: The program that runs trials.
    """
    self._command = command
    self._child: Any = None
    self._seen: set[tuple[int, int]] = set()  # Its processes have started these.

  def run(self, trial: str, seconds: float, remedy: str, **arguments: Any) -> report.Finding:
    """Runs a trial.

    Args:
      trial: A function of `trials`.
      seconds: The time after which it is ended.
      remedy: What to do if it fails, unless the way in which it fails tells more.
      **arguments: Its own, as JSON knows them.

    Returns:
      The finding.
    """
    # Not at the top: versions of Python that it is not for never get here.
    from tff_superquantile.simulation import child

    if self._child is None:
      environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}
      self._child = child.Child(self._command, env=environment)
    try:
      answer = self._child.ask(json.dumps({"trial": trial, "arguments": arguments}), seconds)
    except child.NoAnswer as error:
      self.kill()
      found = f"no answer in {seconds:g} s"
      if error.signal_name:
        found = f"that {error.signal_name} ended Python"
      elif error.code is not None:
        found = f"that it ended Python with exit status {error.code}"
      words = f" Its last words: {error.last_words[:_SHOWN_LETTERS]}" if error.last_words else ""
      return report.fail(f"Found {found}.{words}", _REMEDIES.get(error.signal_name, remedy))
    self._seen |= self._child.descendants()
    finding = report.Finding(**json.loads(answer))
    if finding.status == report.FAIL and not finding.remedy:
      return report.fail(finding.found, remedy)
    return finding

  def _end(self, seconds: float) -> None:
    if self._child is not None:
      self._seen |= self._child.descendants()
      self._child.end(seconds)
      self._child = None

  def kill(self) -> None:
    """Ends the process at once."""
    self._end(0.0)

  def close(self) -> list[int]:
    """Ends the process as Python ends.

    Returns:
      The ids of processes that it started and that are still there.
    """
    self._end(_SECONDS_TO_END)
    if not self._seen:
      return []
    from tff_superquantile.simulation import child

    end = time.monotonic() + _SECONDS_TO_END
    while True:
      left = sorted(pid for pid, start in self._seen if child.is_running(pid, start))
      if not left or time.monotonic() > end:
        return left
      time.sleep(0.05)
