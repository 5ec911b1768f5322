"""Checks this machine, and says how to mend its faults.

    python -m tff_superquantile.doctor [--data_dir=PATH] [--glove=FILE] [--ray_address=ADDRESS]
        [--json]

Python, platform, cores, memory and disk; the packages against requirements.lock; a private run of
one round; the data sets. Needs nothing but Python to start, so argparse and not absl.

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
import time
from typing import NoReturn

from tff_superquantile import user_cache
from tff_superquantile.doctor import machine

# The same as in `cli`, which needs absl.
_FAILED, _USAGE_ERROR, _INTERRUPTED = 1, 2, 128 + signal.SIGINT
# Patient: from a cold disk on a network, TensorFlow takes a minute to import.
_MOST_SECONDS = 600.0
_TRAIN = (sys.executable, "-m", "tff_superquantile.experiments.train")
_ROUND = (
  "--task=synthetic --num_rounds=1 --clients_per_round=20 --clip_norm=0.1 --epsilon=10 --secure"
)
_MEND = "Mend what its last words name."
_REMEDIES = {
  -signal.SIGILL: "The processor lacks an instruction that TensorFlow's wheels use: take one with"
  " AVX, or have the virtual machine pass it on (QEMU: -cpu host).",
  -signal.SIGKILL: "Most likely memory ran out, or nothing happened in ten minutes: end other"
  " programs, or raise the memory limit of the container.",
}


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


def _check_round(
  options: argparse.Namespace, command: Sequence[str] = (*_TRAIN, *_ROUND.split())
) -> machine.Finding:
  """Trains for a private round in a process of its own, whose crash or hang is a finding, too."""
  # Not at the top: versions of Python that it is not for never get here.
  from tff_superquantile.engine.processes import dependent_process

  start, cluster = time.monotonic(), ["--engine=ray", f"--ray_address={options.ray_address}"]
  with tempfile.TemporaryDirectory() as folder:
    run = dependent_process.DependentProcess(
      [*command, f"--output_dir={folder}", *(cluster if options.ray_address else [])],
      stdin=subprocess.DEVNULL,
      stdout=subprocess.DEVNULL,
      stderr=subprocess.PIPE,
      env={"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ},
    )
    try:
      errors = run.communicate(timeout=_MOST_SECONDS)[1]
    except subprocess.TimeoutExpired:
      run.kill()
      errors = run.communicate()[1]
    finally:
      run.kill()
      run.wait()
  code, place = run.returncode, f" on {options.ray_address}" if options.ray_address else ""
  if code == 0:
    state = f"a private run of one round{place}, {time.monotonic() - start:.1f} s"
    return machine.Finding("ok", "round", state)
  words = errors.decode(errors="replace").strip().rpartition("\n")[2][:300]
  ended = f"exit status {code}" if code > 0 else signal.Signals(-code).name
  return machine.Finding(
    "FAIL",
    "round",
    f"Found that {ended} ended a run of one round{place}; expected that it finishes."
    + f" Its last words: {words}" * bool(words),
    _MEND if words.startswith("Error: ") else _REMEDIES.get(code, machine.REINSTALL),
  )


def _check_data(options: argparse.Namespace) -> Iterator[machine.Finding]:
  """Yields what the data are; whatever an import or a file raises is a finding."""
  try:
    from tff_superquantile.doctor import data

    yield from data.check_data(options.data_dir, options.cache_dir)
    yield from data.check_word_vectors(options.glove, options.data_dir, options.cache_dir)
  except Exception as error:  # Any error is the finding.
    message = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    yield machine.Finding("FAIL", "data", f"Found {message}.", machine.REINSTALL)


def _check_all(options: argparse.Namespace) -> Iterator[machine.Finding]:
  """Yields all findings, in order: without packages there is no run, without TensorFlow no data."""
  unfit = []
  for finding in _check_machine(options):
    yield finding
    if finding.status == "FAIL" and finding.name in machine.NEEDED:
      unfit.append(finding.name)
  if unfit:
    yield machine.Finding("skip", "round", f"needs {', '.join(unfit)}")
    return
  yield (run := _check_round(options))
  if run.remedy not in _REMEDIES.values():
    yield from _check_data(options)


def _lines(finding: machine.Finding) -> str:
  """Returns the line of a finding and those of its remedy, without a terminal's controls."""
  head = f"{finding.status:<4}  {finding.name:<12}  {finding.state}"
  texts = [head, *(" " * 20 + line for line in finding.remedy.splitlines())]
  safe = ("".join(x if x.isprintable() else "\N{REPLACEMENT CHARACTER}" for x in t) for t in texts)
  return "\n".join(safe)


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
  results: list[machine.Finding] = []
  try:
    for finding in _check_all(options):
      results.append(finding)
      if not options.json:
        print(_lines(finding), flush=True)
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
