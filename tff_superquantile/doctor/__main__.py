"""Checks this machine, and says how to mend its faults.

    python -m tff_superquantile.doctor [--data_dir=PATH] [--glove=FILE] [--ray_address=ADDRESS]
        [--json]

Python, platform, cores, memory and disk; the packages against requirements.lock; secure sums and a
private median, in a process of its own; the data sets. Needs nothing but Python to start, so
argparse and not absl.

Exit status: 0 all is well (there may be notes), 1 something fails, 2 bad flags, 130 interrupted.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from typing import NoReturn

from tff_superquantile import user_cache
from tff_superquantile.doctor import machine

# The same as in `cli`, which needs absl.
_FAILED, _USAGE_ERROR, _INTERRUPTED = 1, 2, 128 + signal.SIGINT
# Patient: from a cold disk on a network, TensorFlow takes a minute to import.
_MOST_SECONDS = 600.0
_TRIALS = (sys.executable, "-m", "tff_superquantile.doctor.trials")
_REMEDIES = {
  -signal.SIGILL: "The processor lacks an instruction that TensorFlow's wheels use: take one with"
  " AVX, or have the virtual machine pass it on (QEMU: -cpu host).",
  -signal.SIGKILL: "Most likely memory ran out, or nothing happened in ten minutes: end other"
  " programs, or raise the memory limit of the container.",
}
_COLOURS = {"ok": "\33[32m", "note": "\33[33m", "FAIL": "\33[1;31m", "skip": "\33[2m"}


def _check_machine(options: argparse.Namespace) -> Iterator[machine.Finding]:
  """Yields what can be told without any package."""
  yield machine.check_python()
  yield machine.check_platform()
  yield machine.check_cores()
  yield machine.check_memory()
  yield machine.check_folder("results", options.output_dir, "--output_dir=DIR")
  cache = (options.cache_dir, "--cache_dir=DIR", machine.AMPLE_CACHE_BYTES)
  yield machine.check_folder("cache", *cache)
  yield machine.check_folder("temporary", tempfile.gettempdir(), "TMPDIR=DIR in the environment")
  yield machine.check_packages()


def _try_out(
  options: argparse.Namespace, command: Sequence[str] = _TRIALS
) -> Iterator[machine.Finding]:
  """Yields what needs packages, found by a process whose crash or hang is a finding, too."""
  # Not at the top: versions of Python that it is not for never get here.
  from tff_superquantile.simulation import dependent_process

  with tempfile.TemporaryFile() as errors:
    trials = dependent_process.DependentProcess(
      [*command, json.dumps(vars(options))],
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=errors,
      env={"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ},
    )
    watch = threading.Timer(_MOST_SECONDS, trials.kill)
    watch.start()
    try:
      assert trials.stdout is not None
      for line in trials.stdout:
        yield machine.Finding(**json.loads(line))
      code = trials.wait()
    finally:
      watch.cancel()
      trials.kill()
      trials.wait()
    if code:
      errors.seek(0)
      words = errors.read().decode(errors="replace").strip().rpartition("\n")[2][:300]
      ended = f"exit status {code}" if code > 0 else signal.Signals(-code).name
      yield machine.Finding(
        "FAIL",
        "trials",
        f"Found that {ended} ended Python in mid-check; expected an answer."
        + f" Its last words: {words}" * bool(words),
        _REMEDIES.get(code, machine.REINSTALL),
      )


def _lines(finding: machine.Finding, colour: bool) -> str:
  """Returns the line of a finding and those of its remedy, without a terminal's controls."""
  status = finding.status.ljust(4)
  if colour:
    status = f"{_COLOURS[finding.status]}{status}\33[0m"
  indent = " " * 20
  texts = [finding.state, *(indent + line for line in finding.remedy.splitlines())]
  safe = ["".join(x if x.isprintable() else "\N{REPLACEMENT CHARACTER}" for x in t) for t in texts]
  return "\n".join([f"{status}  {finding.name:<12}  {safe[0]}", *safe[1:]])


class _Parser(argparse.ArgumentParser):
  """Says what is wrong in one sentence, as the other commands do."""

  def error(self, message: str) -> NoReturn:
    print(f"Error: {message} (--help lists the flags)", file=sys.stderr)
    sys.exit(_USAGE_ERROR)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
  parser = _Parser(
    prog="doctor",
    description="Checks this machine, and says what to do about what is wrong with it.",
    allow_abbrev=False,
  )
  parser.add_argument("--data_dir", default="", help="data of a task, as for train")
  parser.add_argument("--glove", default="", help="file of word vectors, as for train")
  parser.add_argument("--output_dir", default="results", help="where results are to go")
  parser.add_argument("--cache_dir", default=user_cache.default_dir(), help="where data are kept")
  parser.add_argument("--ray_address", default="", help="try the round on this cluster, as train")
  parser.add_argument("--json", action="store_true", help="print all findings as JSON")
  return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
  """Runs the command with its arguments; returns the exit status."""
  options = _parse(arguments)
  colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
  results: list[machine.Finding] = []

  def add(finding: machine.Finding) -> None:
    results.append(finding)
    if not options.json:
      print(_lines(finding, colour), flush=True)

  try:
    for finding in _check_machine(options):
      add(finding)
    unfit = [f.name for f in results if f.status == "FAIL" and f.name in machine.NEEDED]
    if unfit:
      add(machine.Finding("skip", "trials", f"needs {', '.join(unfit)}"))
    else:
      for finding in _try_out(options):
        add(finding)
  except KeyboardInterrupt:
    print("Error: Interrupted.", file=sys.stderr)
    return _INTERRUPTED
  failed = sum(finding.status == "FAIL" for finding in results)
  if options.json:
    content = [finding._asdict() for finding in results]
    print(json.dumps({"ok": not failed, "findings": content}, indent=2))
  elif failed:
    print(f"\n{failed} of {len(results)} checks failed: do what is said below each, run it again.")
  else:
    print(f"\nAll is well: {len(results)} checks.")
  return _FAILED if failed else 0


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
