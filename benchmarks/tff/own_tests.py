"""Runs TFF's own tests in TFF's context and in this process, and compares what becomes of each.

    python benchmarks/tff/own_tests.py --checkout=federated [--only=learning/algorithms] [--csv=F]

`--checkout` is a checkout of TFF at the tag v0.87.0. Only the context is replaced: each file is run
as it is, twice, in a process of its own. The exit code is 1 if a test that passes in TFF's context
fails here.
"""

import argparse
import collections
from collections.abc import Mapping
import csv
import functools
import os
import pathlib
import subprocess
import sys
import tempfile
from xml.etree import ElementTree

import tqdm

_ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(_ROOT))  # The benchmarks are not installed with the project.

from benchmarks.tff import one_file  # noqa: E402
from privacy.settings import command_line  # noqa: E402
from tff_superquantile.engine.processes import dependent_process  # noqa: E402
from tff_superquantile.experiments import cli  # noqa: E402

_ARGS = argparse.Namespace()  # Filled by `main`.


def define(parser: command_line.Parser) -> None:
  add = functools.partial(command_line.add_flag, parser)
  add("checkout", str, None, "A checkout of TFF.", required=True)
  add("only", str, [], "Parts of the paths of files; none for all.", are_several=True)
  add("csv", str, "", "A file for the outcome of each test.")
  add("seconds", int, 900, "That a file may take.", least=1)


PASSED, FAILED, SKIPPED, MISSING = "passed", "failed", "skipped", "did not run"
Outcomes = Mapping[str, str]


def outcomes_of(xml: pathlib.Path) -> Outcomes:
  """Returns the outcome of each test that a file of absl's results has, by the test's name."""
  outcomes = {}
  for case in ElementTree.parse(xml).iter("testcase"):
    kinds = {child.tag for child in case}
    outcome = FAILED if kinds & {"failure", "error"} else SKIPPED if "skipped" in kinds else PASSED
    if case.get("status") == "notrun":
      outcome = SKIPPED
    outcomes[f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}"] = outcome
  return outcomes


def _run(context: str, checkout: pathlib.Path, file: pathlib.Path) -> Outcomes:
  with tempfile.TemporaryDirectory() as folder:
    xml = pathlib.Path(folder, "results.xml")
    process = dependent_process.DependentProcess(
      [sys.executable, "-m", "benchmarks.tff.one_file", context, *map(str, (checkout, file, xml))],
      cwd=folder,
      env={**os.environ, "PYTHONPATH": str(_ROOT), "TEST_TMPDIR": folder},
      stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL,
    )
    try:
      process.wait(_ARGS.seconds)
    except subprocess.TimeoutExpired:
      return {}
    finally:
      process.kill()
      process.wait()
    return outcomes_of(xml) if xml.is_file() else {}


def main(args: argparse.Namespace) -> None:
  vars(_ARGS).update(vars(args))
  checkout = pathlib.Path(_ARGS.checkout).resolve()
  files = sorted((checkout / "tensorflow_federated" / "python").rglob("*_test.py"))
  if not files:
    raise ValueError(f"Found no tests below {checkout}; expected a checkout of TFF.")
  files = [f for f in files if not _ARGS.only or any(part in str(f) for part in _ARGS.only)]
  if not files:
    raise ValueError(f"Found no file of tests with {' or '.join(_ARGS.only)} in its path.")
  rows = []
  for file in tqdm.tqdm(files, unit="file", mininterval=5):
    theirs, ours = (_run(context, checkout, file) for context in (one_file.THEIRS, one_file.OURS))
    name = str(file.relative_to(checkout / "tensorflow_federated" / "python"))
    for test in sorted({*theirs, *ours}) or [""]:
      rows.append((name, test, theirs.get(test, MISSING), ours.get(test, MISSING)))
  if _ARGS.csv:
    with open(_ARGS.csv, "w", encoding="utf-8", newline="") as stream:
      writer = csv.writer(stream, lineterminator="\n")
      writer.writerow(("file", "test", "TFF", "here"))
      writer.writerows(rows)
  for (theirs_is, ours_is), number in sorted(collections.Counter(r[2:] for r in rows).items()):
    print(f"{number:6d}  {theirs_is} in TFF's context, {ours_is} here")
  worse = [row for row in rows if row[2] == PASSED and row[3] not in (PASSED, SKIPPED)]
  for name, test, *_ in worse:
    print(f"{name}: {test}")
  if worse:
    cli.fail(f"Not all of {len(rows)} tests do here what they do in TFF's context.", cli.FAILED)


if __name__ == "__main__":
  sys.exit(cli.run(sys.modules[__name__]))
