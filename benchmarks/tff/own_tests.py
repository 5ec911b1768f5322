"""Runs TFF's own tests in TFF's context and in this process, and compares what becomes of each.

    python benchmarks/tff/own_tests.py --checkout=federated [--only=learning/algorithms] [--csv=F]

`--checkout` is a checkout of TFF at the tag v0.87.0. Only the context is replaced: each file is run
as it is, twice, in a process of its own. The exit code is 1 if a test that passes in TFF's context
fails here.
"""

import collections
from collections.abc import Mapping
import csv
import os
import pathlib
import subprocess
import sys
import tempfile
from xml.etree import ElementTree

from absl import flags
import tqdm

_ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(_ROOT))  # The benchmarks are not installed with the project.

from benchmarks.tff import one_file  # noqa: E402
from tff_superquantile.engine.processes import dependent_process  # noqa: E402
from tff_superquantile.experiments import cli  # noqa: E402

_CHECKOUT = flags.DEFINE_string("checkout", None, "A checkout of TFF.", required=True)
_ONLY = flags.DEFINE_list("only", [], "Parts of the paths of files; none for all.")
_CSV = flags.DEFINE_string("csv", "", "A file for the outcome of each test.")
_SECONDS = flags.DEFINE_integer("seconds", 900, "That a file may take.", lower_bound=1)

PASSED, FAILED, SKIPPED, MISSING = "passed", "failed", "skipped", "did not run"
Outcomes = Mapping[str, str]


def outcomes_of(xml: pathlib.Path) -> Outcomes:
  """Returns the outcome of each test that a file of absl's results has, by the test's name."""
  found = {}
  for case in ElementTree.parse(xml).iter("testcase"):
    kinds = {child.tag for child in case}
    outcome = FAILED if kinds & {"failure", "error"} else SKIPPED if "skipped" in kinds else PASSED
    if case.get("status") == "notrun":
      outcome = SKIPPED
    found[f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}"] = outcome
  return found


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
      process.wait(_SECONDS.value)
    except subprocess.TimeoutExpired:
      return {}
    finally:
      process.kill()
      process.wait()
    return outcomes_of(xml) if xml.is_file() else {}


def main() -> None:
  checkout = pathlib.Path(_CHECKOUT.value).resolve()
  files = sorted((checkout / "tensorflow_federated" / "python").rglob("*_test.py"))
  if not files:
    raise ValueError(f"Found no tests below {checkout}; expected a checkout of TFF.")
  files = [f for f in files if not _ONLY.value or any(part in str(f) for part in _ONLY.value)]
  if not files:
    raise ValueError(f"Found no file of tests with {' or '.join(_ONLY.value)} in its path.")
  rows = []
  for file in tqdm.tqdm(files, unit="file", mininterval=5):
    theirs, ours = (_run(context, checkout, file) for context in (one_file.THEIRS, one_file.OURS))
    name = str(file.relative_to(checkout / "tensorflow_federated" / "python"))
    for test in sorted({*theirs, *ours}) or [""]:
      rows.append((name, test, theirs.get(test, MISSING), ours.get(test, MISSING)))
  if _CSV.value:
    with open(_CSV.value, "w", encoding="utf-8", newline="") as stream:
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
  cli.run(main)
