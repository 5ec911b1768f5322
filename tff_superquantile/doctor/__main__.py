"""Checks this machine, and says how to mend its faults.

    superquantile doctor [--output_dir=DIR] [--cache_dir=DIR]

Python, platform and disk; the packages against requirements.lock; a private run of
one round; the data sets. Needs nothing but Python to start: `python3 -m tff_superquantile.doctor`.

Exit status: 0 all is well (there may be notes), 1 something fails, 2 bad flags, 130 interrupted.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
import functools
import os
import signal
import subprocess
import sys
import tempfile
import time

from privacy.settings import command_line
from tff_superquantile import user_cache
from tff_superquantile.doctor import machine

_NEEDED = ("Python", "platform", "packages")  # Without these nothing else makes sense.
# Patient: from a cold disk on a network, TensorFlow takes a minute to import.
_MOST_SECONDS = 600.0
_TRAIN = (sys.executable, "-m", "tff_superquantile.experiments.train")
_ROUND = (
  "--task=synthetic --num_rounds=1 --clients_per_round=20 --clip_norm=0.1 --epsilon=10 --secure"
)
_REMEDIES = {
  -signal.SIGILL: "The processor lacks an instruction that TensorFlow's wheels use: take one with"
  " AVX, or have the virtual machine pass it on (QEMU: -cpu host).",
  -signal.SIGKILL: "Most likely memory ran out, or nothing happened in ten minutes: end other"
  " programs, or raise the memory limit of the container.",
}


def _check_round(command: Sequence[str] = (*_TRAIN, *_ROUND.split())) -> machine.Finding:
  """Trains for a private round in a process of its own, whose crash or hang is a finding, too."""
  start = time.monotonic()
  with tempfile.TemporaryDirectory() as folder:
    try:
      run = subprocess.run(
        [*command, f"--output_dir={folder}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ},
        timeout=_MOST_SECONDS,
        check=False,
      )
      code, errors = run.returncode, run.stderr
    except subprocess.TimeoutExpired as error:
      code, errors = -signal.SIGKILL, error.stderr or b""
  if code == 0:
    return machine.ok("round", f"a private run of one round, {time.monotonic() - start:.1f} s")
  words = errors.decode(errors="replace").strip().rpartition("\n")[2][:300]
  ended = f"exit status {code}" if code > 0 else signal.Signals(-code).name
  state = f"Found that {ended} ended a run of one round; expected that it finishes."
  is_told = words.startswith("Error: ")
  remedy = "Mend what its last words name." if is_told else _REMEDIES.get(code, machine.REINSTALL)
  return machine.fail("round", f"{state}{words and f' Its last words: {words}'}", remedy)


def check_data(cache_dir: str) -> list[machine.Finding]:
  """Says which data sets were downloaded."""
  import tasks

  data_sets = [tasks.get_task(name).data_set for name in tasks.task_names()]
  return [
    machine.ok(data_set.name, place)
    if (place := data_set.downloads[0].find(cache_dir))
    else machine.note(data_set.name, "not here", data_set.remedy)
    for data_set in dict.fromkeys(filter(None, data_sets))
  ]


def _check_all(options: argparse.Namespace) -> Iterator[machine.Finding]:
  """Yields all findings, in order: without packages there is no run, without TensorFlow no data."""
  findings = list(machine.check_all(options.output_dir, options.cache_dir))
  yield from findings
  if unfit := [f.name for f in findings if f.status == "FAIL" and f.name in _NEEDED]:
    yield machine.Finding("skip", "round", f"needs {', '.join(unfit)}")
    return
  yield (run := _check_round())
  if run.remedy in _REMEDIES.values():
    return
  try:
    yield from check_data(options.cache_dir)
  except Exception as error:  # Any error is the finding.
    message = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    yield machine.fail("data", f"Found {message}.", machine.REINSTALL)


def _lines(finding: machine.Finding) -> str:
  """Returns the line of a finding and those of its remedy, without a terminal's controls."""
  head = f"{finding.status:<4}  {finding.name:<12}  {finding.state}"
  texts = [head, *(" " * 20 + line for line in finding.remedy.splitlines())]
  safe = ("".join(x if x.isprintable() else "\N{REPLACEMENT CHARACTER}" for x in t) for t in texts)
  return "\n".join(safe)


def define(parser: command_line.Parser) -> None:
  add = functools.partial(command_line.add_flag, parser)
  add("output_dir", str, "results", "where results are to go")
  add("cache_dir", str, user_cache.default_dir(), "where data are kept")


def main(options: argparse.Namespace) -> int:
  checked = failed = 0
  for finding in _check_all(options):
    checked, failed = checked + 1, failed + (finding.status == "FAIL")
    print(_lines(finding), flush=True)
  if failed:
    print(f"\n{failed} of {checked} checks failed: do what is said below each, run it again.")
  else:
    print(f"\nAll is well: {checked} checks.")
  return int(failed > 0)


if __name__ == "__main__":
  sys.exit(command_line.run(sys.modules[__name__]))
