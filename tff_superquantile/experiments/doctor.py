"""Checks this machine, and says what to do about what is wrong with it.

    python -m tff_superquantile.experiments.doctor [--data_dir=PATH] [--glove=FILE] [--json]

Python, platform, C library, processor, memory and disk; every package against requirements.lock;
that TensorFlow and TFF import, that TFF's worker and the engine compute, that a secure sum is
right, that no process is left behind; and which data sets are there. What needs something that
failed is skipped. Runs with nothing installed but Python, so with argparse and not absl.

Exit status: 0 all is well (there may be notes), 1 something fails, 2 bad flags, 130 interrupted.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
import dataclasses
import functools
import os
import signal
import sys
import tempfile
import time
from typing import Callable, NoReturn

from tff_superquantile.experiments import doctor_machine
from tff_superquantile.experiments import doctor_packages
from tff_superquantile.experiments import doctor_report
from tff_superquantile.experiments import doctor_runtime

# As in `cli`, which needs absl.
_FAILED, _USAGE_ERROR, _INTERRUPTED = 1, 2, 128 + signal.SIGINT

# Of patience: from a cold disk on a network, TensorFlow takes a minute to import.
_SECONDS_TO_IMPORT = 180.0
_SECONDS_TO_COMPUTE = 60.0

# As `typing` has it, for old versions of Python.
_Run = Callable[[], doctor_report.Finding]


@dataclasses.dataclass(frozen=True)
class Check:
  """A check.

  Attributes:
    name: What it is called.
    run: Carries it out.
    needs: Names of earlier checks without which it makes no sense.
  """

  name: str
  run: _Run
  needs: tuple[str, ...] = ()


def default_cache_dir() -> str:
  """The default of --cache_dir of the other commands."""
  cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
  return os.path.join(cache, "tff_superquantile")


def _check_processes(trials: doctor_runtime.Trials) -> doctor_report.Finding:
  left = trials.close()
  if left:
    pids = " ".join(map(str, left))
    return doctor_report.fail(
      f"Found processes of TFF's that did not end: {pids}; expected none.", f"Run: kill -9 {pids}"
    )
  return doctor_report.ok("none is left behind")


def all_checks(options: argparse.Namespace, trials: doctor_runtime.Trials) -> list[Check]:
  """All checks, in order.

  Args:
    options: The flags.
    trials: Runs what may crash.

  Returns:
    The checks.
  """

  def trial(name: str, seconds: float = _SECONDS_TO_COMPUTE, **arguments: str) -> _Run:
    def run() -> doctor_report.Finding:
      return trials.run(name, seconds, doctor_packages.reinstall_command(), **arguments)

    return run

  def folder(path: str, other: str) -> _Run:
    return functools.partial(doctor_machine.check_folder, path, other)

  machine = ("Python", "platform", "C library")
  checks = [
    Check("Python", doctor_machine.check_python),
    Check("platform", doctor_machine.check_platform),
    Check("C library", doctor_machine.check_c_library, ("platform",)),
    Check("processor", doctor_machine.check_processor, ("platform",)),
    Check("cores", doctor_machine.check_cores),
    Check("memory", doctor_machine.check_memory, ("platform",)),
    Check("results", folder(options.output_dir, "--output_dir=DIR")),
    Check("cache", folder(options.cache_dir, "--cache_dir=DIR")),
    Check("temporary", folder(tempfile.gettempdir(), "TMPDIR=DIR in the environment")),
    Check("packages", doctor_packages.check_packages, machine),
    Check("versions", doctor_packages.check_versions, ("packages",)),
    Check("TensorFlow", trial("tensorflow", _SECONDS_TO_IMPORT), ("packages", "processor")),
    Check("TFF", trial("federated", _SECONDS_TO_IMPORT), ("TensorFlow",)),
    Check("TFF's worker", trial("engine", kind="native"), ("TFF",)),
    Check("engine", trial("engine", kind="in_process"), ("TFF",)),
    Check("secure sum", trial("secure_sum"), ("TFF's worker",)),
  ]
  data_needs = ("TFF",)
  if options.data_dir:
    checks.append(Check("--data_dir", trial("data_dir", data_dir=options.data_dir), data_needs))
    data_needs = ("--data_dir",)
  where = dict(data_dir=options.data_dir, cache_dir=options.cache_dir)
  for name in ("EMNIST", "Sent140"):
    checks.append(Check(name, trial("data_set", data_set=name, **where), data_needs))
  glove = trial("word_vectors", glove=options.glove, data_dir=options.data_dir)
  checks.append(Check("word vectors", glove, ("TFF",)))
  processes = functools.partial(_check_processes, trials)
  checks.append(Check("processes", processes, ("packages", "processor")))
  return checks


def carry_out(checks: Sequence[Check]) -> Iterator[doctor_report.Finding]:
  """Yields what each check finds, as soon as it has."""
  usable: dict[str, bool] = {}
  for check in checks:
    start = time.monotonic()
    missing = [name for name in check.needs if not usable[name]]
    if missing:
      finding = doctor_report.Finding(doctor_report.SKIP, f"needs {', '.join(missing)}")
    else:
      try:
        finding = check.run()
      except Exception as error:  # One check that breaks must not hide what the others find.
        finding = doctor_report.fail(
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
  parser.add_argument("--data_dir", default="", help="data of EMNIST or Sent140, as for train")
  parser.add_argument("--glove", default="", help="file of word vectors, as for train")
  parser.add_argument("--output_dir", default="results", help="where results are to go")
  parser.add_argument("--cache_dir", default=default_cache_dir(), help="where data are kept")
  parser.add_argument("--json", action="store_true", help="print all findings as JSON")
  return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
  options = _parse(arguments)
  trials = doctor_runtime.Trials()
  findings = []
  try:
    checks = all_checks(options, trials)
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    layout = doctor_report.Layout([check.name for check in checks], colour=colour)
    for finding in carry_out(checks):
      findings.append(finding)
      if not options.json:
        print(layout.lines(finding), flush=True)
  except KeyboardInterrupt:
    print("Error: Interrupted.", file=sys.stderr)
    return _INTERRUPTED
  finally:
    trials.kill()
  print(doctor_report.to_json(findings) if options.json else f"\n{doctor_report.summary(findings)}")
  return _FAILED if doctor_report.has_failed(findings) else 0


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
