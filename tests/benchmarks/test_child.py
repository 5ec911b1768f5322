"""A child process that answers lines: its answers, and what it leaves behind."""

import sys
import time

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
