"""A child process that answers lines: the parent sends a line, the child answers with one.

The parent has a `Child`; the child answers on the stream of `take_output`, out of the way of what
libraries print. Whatever becomes of the child is a `NoAnswer`. Standard library alone.
"""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import time
from typing import Any, TextIO

from tff_superquantile.engine.processes import dependent_process

_PROC = pathlib.Path("/proc")
_LAST_BYTES = 1 << 16


class NoAnswer(Exception):
  """The child ended before it answered, or did not answer in time.

  `code` is its exit code, negative for a signal, None if time ran out; `last_words` is the last
  line of its standard error, "" if there is none.
  """

  def __init__(self, code: int | None, last_words: str):
    super().__init__(code, last_words)
    self.code, self.last_words = code, last_words

  @property
  def signal_name(self) -> str:
    """Returns the signal that ended the child, such as SIGKILL; "" if none did."""
    if self.code is None or self.code >= 0:
      return ""
    try:
      return signal.Signals(-self.code).name
    except ValueError:
      return f"signal {-self.code}"


class Child:
  """A process that answers lines; it ends when this process ends, in any way."""

  def __init__(
    self, command: Sequence[str], *, log: str | os.PathLike | None = None, **kwargs: Any
  ):
    """Starts a program with arguments, as `subprocess.Popen` does.

    `log` is the file of its standard error, None for a temporary one.
    """
    self._errors: Any = tempfile.TemporaryFile() if log is None else open(log, "w+b")
    self._buffer = b""
    self._socket, other = socket.socketpair()
    with other:
      self._process = dependent_process.DependentProcess(
        command, stdin=other, stdout=other, stderr=self._errors, **kwargs
      )

  def ask(self, line: str, seconds: float) -> bytes:
    """Sends a line and returns the line that answers, both without ends, or raises `NoAnswer`."""
    with contextlib.suppress(ConnectionError):  # It has ended; `answer` says why.
      self._socket.sendall(line.encode() + b"\n")
    return self.answer(seconds)

  def answer(self, seconds: float) -> bytes:
    """Waits for the next line without a question, as `ask` does with one."""
    end = time.monotonic() + seconds
    while b"\n" not in self._buffer:
      self._socket.settimeout(max(0.001, end - time.monotonic()))
      try:
        part = self._socket.recv(1 << 16)
      except ConnectionError:
        part = b""
      except TimeoutError:  # `TimeoutError` from Python 3.10 on.
        raise NoAnswer(None, self._last_words()) from None
      if not part:
        raise NoAnswer(self._process.wait(), self._last_words())
      self._buffer += part
    line, _, self._buffer = self._buffer.partition(b"\n")
    return line

  def _last_words(self) -> str:
    # Not by `seek`, which would move the place where the child writes.
    descriptor = self._errors.fileno()
    start = max(0, os.fstat(descriptor).st_size - _LAST_BYTES)
    lines = os.pread(descriptor, _LAST_BYTES, start).decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")

  def descendants(self) -> set[tuple[int, int]]:
    """Returns the processes that it has started; see the function of that name."""
    return descendants(self._process.pid)

  def end(self, seconds: float = 0.0, *, with_group: bool = False) -> None:
    """Ends the process, which has some seconds for it after the end of its input.

    It does nothing if it has ended. With `with_group` it kills what the process has started, too,
    where that is not bound to it.
    """
    if self._errors.closed:
      return
    with self._socket, self._errors:
      self._socket.close()
      if seconds:
        with contextlib.suppress(subprocess.TimeoutExpired):
          self._process.wait(seconds)
      if with_group:
        # The process leads a session of its own, so the group has no other processes.
        with contextlib.suppress(ProcessLookupError):
          os.killpg(self._process.pid, signal.SIGKILL)
      self._process.kill()
      self._process.wait()


def take_output() -> TextIO:
  """Returns a stream for answers; what is printed from now on goes to standard error instead."""
  answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
  os.dup2(2, 1)
  return answers


def _status(pid: int) -> tuple[int, int, int] | None:
  """Returns (parent's id, start time, CPU time in ticks) of a process; None if it has ended."""
  try:
    stat = (_PROC / str(pid) / "stat").read_text(errors="replace")
  except OSError:
    return None
  fields = stat.rpartition(")")[2].split()
  if fields[0] in "ZX":
    return None
  return int(fields[1]), int(fields[19]), int(fields[11]) + int(fields[12])


def is_running(pid: int, start: int) -> bool:
  """Tells whether the process of that id and start time, as in `descendants`, still runs."""
  status = _status(pid)
  return status is not None and status[1] == start


def descendants(pid: int) -> set[tuple[int, int]]:
  """Returns (id, start time) of the processes that a process has started, and of theirs."""
  children: dict[int, list[tuple[int, int]]] = {}
  for path in _PROC.glob("[0-9]*"):
    status = _status(int(path.name))
    if status is not None:
      children.setdefault(status[0], []).append((int(path.name), status[1]))
  below: set[tuple[int, int]] = set()
  left = [pid]
  while left:
    new = children.get(left.pop(), [])
    below.update(new)
    left += [child for child, _ in new]
  return below


def cpu_seconds() -> float:
  """Returns the CPU seconds of this process and of all below it that have not ended."""
  own = os.getpid()
  found = map(_status, [own, *(pid for pid, _ in descendants(own))])
  return sum(status[2] for status in found if status) / os.sysconf("SC_CLK_TCK")
