"""Checks this machine, and says how to mend its faults.

    python -m tff_superquantile.doctor [--data_dir=PATH] [--glove=FILE]
        [--ray_address=ADDRESS] [--json]

Python, platform, C library, processor, memory and disk; every package against requirements.lock;
that TensorFlow and TFF import, that the engine computes, that a secure sum is
right, that no process is left behind; which data sets are there; and with an address the workers of
that cluster. A check that needs a failed one is skipped. Runs with nothing installed but Python, so
with argparse and not absl.

Exit status: 0 all is well (there may be notes), 1 something fails, 2 bad flags, 130 interrupted.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
import dataclasses
import functools
import os
import signal
import sys
import tempfile
import time
from typing import NoReturn

from tff_superquantile import user_cache
from tff_superquantile.doctor import machine
from tff_superquantile.doctor import packages
from tff_superquantile.doctor import report
from tff_superquantile.doctor import runtime

# The same as in `cli`, which needs absl.
_FAILED, _USAGE_ERROR, _INTERRUPTED = 1, 2, 128 + signal.SIGINT

# The limits are patient: from a cold disk on a network, TensorFlow takes a minute to import.
_SECONDS_TO_IMPORT = 180.0
_SECONDS_TO_COMPUTE = 180.0  # As the machine may be busy with other things.
_SECONDS_TO_START_WORKERS = 400.0

# `typing` has it also in old versions of Python.
_Run = Callable[[], report.Finding]


@dataclasses.dataclass(frozen=True)
class Check:
  """A check of the machine.

  Attributes:
    name: Its name.
    run: Carries it out.
    needs: Names of earlier checks without which it makes no sense.
  """

  name: str
  run: _Run
  needs: tuple[str, ...] = ()


def _check_processes(trials: runtime.Trials) -> report.Finding:
  left = trials.close()
  if left:
    pids = " ".join(map(str, left))
    return report.fail(
      f"Found processes of TFF's that did not end: {pids}; expected none.", f"Run: kill -9 {pids}"
    )
  return report.ok("none is left behind")


def all_checks(options: argparse.Namespace, trials: runtime.Trials) -> list[Check]:
  """Lists all checks, in order.

  Args:
    options: The flags.
    trials: Runs the checks that may crash.

  Returns:
    The checks.
  """

  def trial(name: str, seconds: float = _SECONDS_TO_COMPUTE, **arguments: str) -> _Run:
    def run() -> report.Finding:
      return trials.run(name, seconds, packages.reinstall_command(), **arguments)

    return run

  def folder(path: str, other: str) -> _Run:
    return functools.partial(machine.check_folder, path, other)

  right_machine = ("Python", "platform", "C library")
  checks = [
    Check("Python", machine.check_python),
    Check("platform", machine.check_platform),
    Check("C library", machine.check_c_library, ("platform",)),
    Check("processor", machine.check_processor, ("platform",)),
    Check("cores", machine.check_cores),
    Check("memory", machine.check_memory, ("platform",)),
    Check("results", folder(options.output_dir, "--output_dir=DIR")),
    Check("cache", folder(options.cache_dir, "--cache_dir=DIR")),
    Check("temporary", folder(tempfile.gettempdir(), "TMPDIR=DIR in the environment")),
    Check("packages", packages.check_packages, right_machine),
    Check("versions", packages.check_versions, ("packages",)),
    Check("own packages", packages.check_own_packages),
    Check("TensorFlow", trial("tensorflow", _SECONDS_TO_IMPORT), ("packages", "processor")),
    Check("TFF", trial("federated", _SECONDS_TO_IMPORT), ("TensorFlow",)),
    Check("engine", trial("engine"), ("TFF",)),
    Check("secure sum", trial("secure_sum"), ("engine", "own packages")),
  ]
  if options.ray_address:
    where = dict(address=options.ray_address, cache_dir=options.cache_dir)
    cluster = trial("cluster", _SECONDS_TO_START_WORKERS, **where)
    checks.append(Check("cluster", cluster, ("engine",)))
  tasks_need: tuple[str, ...] = ("TFF", "own packages")
  data_needs = tasks_need
  if options.data_dir:
    checks.append(Check("--data_dir", trial("data_dir", data_dir=options.data_dir), data_needs))
    data_needs = ("--data_dir",)
  where = dict(data_dir=options.data_dir, cache_dir=options.cache_dir)
  for name in ("EMNIST", "Sent140", "Shakespeare"):
    checks.append(Check(name, trial("data_set", data_set=name, **where), data_needs))
  glove = trial("word_vectors", glove=options.glove, data_dir=options.data_dir)
  checks.append(Check("word vectors", glove, tasks_need))
  processes = functools.partial(_check_processes, trials)
  checks.append(Check("processes", processes, ("packages", "processor")))
  return checks


def carry_out(checks: Sequence[Check]) -> Iterator[report.Finding]:
  """Yields the finding of each check, as soon as there is one."""
  usable: dict[str, bool] = {}
  for check in checks:
    start = time.monotonic()
    missing = [name for name in check.needs if not usable[name]]
    if missing:
      finding = report.Finding(report.SKIP, f"needs {', '.join(missing)}")
    else:
      try:
        finding = check.run()
      except Exception as error:  # One check that breaks must not hide what the others find.
        finding = report.fail(
          f"Found that the check itself fails, with {error!r}.", "Report it, with these lines."
        )
    usable[check.name] = finding.usable
    yield dataclasses.replace(finding, name=check.name, seconds=time.monotonic() - start)


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
  parser.add_argument("--ray_address", default="", help="a cluster to check, too, as for train")
  parser.add_argument("--json", action="store_true", help="print all findings as JSON")
  return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
  """Runs the command with its arguments; returns the exit status."""
  options = _parse(arguments)
  trials = runtime.Trials()
  findings = []
  try:
    checks = all_checks(options, trials)
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    layout = report.Layout([check.name for check in checks], colour=colour)
    for finding in carry_out(checks):
      findings.append(finding)
      if not options.json:
        print(layout.lines(finding), flush=True)
  except KeyboardInterrupt:
    print("Error: Interrupted.", file=sys.stderr)
    return _INTERRUPTED
  finally:
    trials.kill()
  print(report.to_json(findings) if options.json else f"\n{report.summary(findings)}")
  return _FAILED if report.has_failed(findings) else 0
