"""A child process that answers lines: answers, silence, ends, and what it leaves behind."""

import signal
import sys
import time

import pytest

from benchmarks import child

_SECONDS = 120  # Of patience, not of duration.
_ECHO = """
import sys
from benchmarks import child
answers = child.take_output()
print("a library says hello")
for line in sys.stdin:
  print(line.strip().upper(), file=answers)
"""


def _child(lines, **kwargs):
  return child.Child([sys.executable, "-c", lines], **kwargs)


def test_answers_are_apart_from_what_is_printed(tmp_path):
  log = tmp_path / "log.txt"
  process = _child(_ECHO, log=log)
  assert [process.ask(word, _SECONDS) for word in ("one", "two")] == [b"ONE", b"TWO"]
  process.end(_SECONDS)
  process.end()  # Once more changes nothing.
  assert log.read_text() == "a library says hello\n"


@pytest.mark.parametrize(
  "lines, code, name",
  [
    ("import sys; sys.stderr.write('last\\n\\n'); sys.exit(3)", 3, ""),
    ("import os, sys; sys.stderr.write('last\\n'); sys.stderr.flush(); os.kill(os.getpid(), 9)",)
    + (-signal.SIGKILL, "SIGKILL"),
  ],
)
def test_what_became_of_it_is_told(lines, code, name):
  process = _child(lines)
  with pytest.raises(child.NoAnswer) as error:
    process.ask("hello", _SECONDS)
  process.end()
  assert (error.value.code, error.value.signal_name) == (code, name)
  assert error.value.last_words == "last"


def test_silence_is_told():
  process = _child(
    "import sys, time\nprint('last', file=sys.stderr, flush=True)\nprint(flush=True)\n"
    "time.sleep(3600)"
  )
  assert process.answer(_SECONDS) == b""  # From now on it is silent.
  with pytest.raises(child.NoAnswer) as error:
    process.ask("hello", 0.1)
  process.end()
  assert (error.value.code, error.value.signal_name) == (None, "")
  assert error.value.last_words == "last"


def test_what_it_starts_is_seen_and_ends_with_its_group():
  sleep = [sys.executable, "-c", "import time; time.sleep(3600)"]
  process = _child(f"import subprocess\nsubprocess.Popen({sleep})\nprint(flush=True)\ninput()")
  assert process.answer(_SECONDS) == b""
  ((pid, start),) = process.descendants()
  assert child.is_running(pid, start) and not child.is_running(pid, start + 1)
  process.end(with_group=True)
  end = time.monotonic() + _SECONDS
  while child.is_running(pid, start):
    assert time.monotonic() < end
    time.sleep(0.02)
