"""Trials in a Python of their own, where a crash or a hang is found out instead of suffered.

`trials` is what runs there: it reads a line of JSON for each trial and answers with one. It
is started with the first trial, and anew after one that ended it. Standard library alone.
"""

from __future__ import annotations

from collections.abc import Sequence
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any

from tff_superquantile.doctor import report

COMMAND = (sys.executable, "-m", "tff_superquantile.doctor.trials")

_SECONDS_TO_END = 10.0
_SHOWN_LETTERS = 300
_PROC = pathlib.Path("/proc")

_REMEDIES = {
  signal.SIGILL: "The processor lacks an instruction that TensorFlow's wheels use: take one with"
  " AVX, or have the virtual machine pass it on (QEMU: -cpu host).",
  signal.SIGKILL: "Most likely memory ran out: end other programs, or raise the memory limit of the"
  " container.",
}


class _Ended(Exception):
  """The process ended in a trial, or was ended; says how, and what to do if that is clear."""

  def __init__(self, found: str, remedy: str = ""):
    super().__init__(found)
    self.found, self.remedy = found, remedy


def _parent_and_start(pid: int) -> tuple[int, int] | None:
  """(parent's id, start time) of a process; None if it has ended."""
  try:
    fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
  except OSError:
    return None
  return None if fields[0] in "ZX" else (int(fields[1]), int(fields[19]))


class _Process:
  """One life of the process that runs trials."""

  def __init__(self, command: Sequence[str]):
    # Not at the top: versions of Python that it is not for never get here.
    from tff_superquantile.simulation import dependent_process

    self._errors = tempfile.TemporaryFile()
    self._socket, other = socket.socketpair()
    with other:
      self._process = dependent_process.DependentProcess(
        command,
        stdin=other,
        stdout=other,
        stderr=self._errors,
        env={"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ},
      )

  def ask(self, request: dict[str, Any], seconds: float) -> bytes:
    """Returns the line that answers a request; raises `_Ended` if there is none."""
    end = time.monotonic() + seconds
    answer = b""
    try:
      self._socket.sendall(json.dumps(request).encode() + b"\n")
      while not answer.endswith(b"\n"):
        self._socket.settimeout(max(0.001, end - time.monotonic()))
        part = self._socket.recv(1 << 16)
        if not part:
          raise self._how_it_ended()
        answer += part
    except socket.timeout:  # `TimeoutError` from Python 3.10 on.
      raise _Ended(f"Found no answer in {seconds:g} s.{self._last_words()}") from None
    except ConnectionError:
      raise self._how_it_ended() from None
    return answer

  def _how_it_ended(self) -> _Ended:
    code = self._process.wait()
    if code >= 0:
      return _Ended(f"Found that it ended Python with exit status {code}.{self._last_words()}")
    try:
      signum = signal.Signals(-code)
    except ValueError:
      return _Ended(f"Found that signal {-code} ended Python.{self._last_words()}")
    found = f"Found that {signum.name} ended Python.{self._last_words()}"
    return _Ended(found, _REMEDIES.get(signum, ""))

  def _last_words(self) -> str:
    """The last line of its standard error, if there is one."""
    self._errors.seek(0)
    lines = self._errors.read().decode(errors="replace").split("\n")
    lines = [line.strip() for line in lines if line.strip()]
    return f" Its last words: {lines[-1][:_SHOWN_LETTERS]}" if lines else ""

  def children(self) -> set[tuple[int, int]]:
    """(id, start time) of the processes that it has started."""
    found = set()
    for path in _PROC.glob("[0-9]*"):
      stat = _parent_and_start(int(path.name))
      if stat and stat[0] == self._process.pid:
        found.add((int(path.name), stat[1]))
    return found

  def end(self, seconds: float) -> None:
    """Asks it to end, and kills it if it does not. What it started is bound to it, as it is to us.

    Args:
      seconds: How long to wait; 0 to kill it at once.
    """
    with self._socket, self._errors:
      self._socket.close()
      try:
        if seconds:
          self._process.wait(seconds)
      except subprocess.TimeoutExpired:
        pass
      self._process.kill()
      self._process.wait()


class Trials:
  """Runs trials. Must be closed; even if it is not, what it started ends with this process."""

  def __init__(self, command: Sequence[str] = COMMAND):
    """Initializes, without starting anything.

    Args:
      command: The program that runs trials.
    """
    self._command = command
    self._process: _Process | None = None
    self._seen: set[tuple[int, int]] = set()  # What its processes have started.

  def run(self, trial: str, seconds: float, remedy: str, **arguments: Any) -> report.Finding:
    """Runs a trial.

    Args:
      trial: A function of `trials`.
      seconds: After which it is ended.
      remedy: What to do if it fails, unless how it does tells more.
      **arguments: Its own, as JSON knows them.

    Returns:
      The finding.
    """
    if self._process is None:
      self._process = _Process(self._command)
    try:
      answer = self._process.ask({"trial": trial, "arguments": arguments}, seconds)
    except _Ended as ended:
      self.kill()
      return report.fail(ended.found, ended.remedy or remedy)
    self._seen |= self._process.children()
    finding = report.Finding(**json.loads(answer))
    if finding.status == report.FAIL and not finding.remedy:
      return report.fail(finding.found, remedy)
    return finding

  def _end(self, seconds: float) -> None:
    if self._process is not None:
      self._seen |= self._process.children()
      self._process.end(seconds)
      self._process = None

  def kill(self) -> None:
    """Ends the process at once."""
    self._end(0.0)

  def close(self) -> list[int]:
    """Ends the process as Python ends.

    Returns:
      The ids of processes that it started and that are still there.
    """
    self._end(_SECONDS_TO_END)
    end = time.monotonic() + _SECONDS_TO_END
    while True:
      left = [pid for pid, start in self._seen if (_parent_and_start(pid) or (0, 0))[1] == start]
      if not left or time.monotonic() > end:
        return sorted(left)
      time.sleep(0.05)
