"""Times rounds side by side: this project, TFF's own FedAvg, a bare loop, other libraries.

    python benchmarks/round_time.py [--tasks=synthetic] [--clients_per_round=10,100,1000] [--peers]

Every contender is a process of its own. All of them compute the same rounds, on the same cohorts,
batches and initial weights, and take turns, a few rounds each, in an order that rotates, so that
they share what the machine's speed does meanwhile. A contender that ends with other weights than
TFF's FedAvg did other work: its row is void.

The clock runs while a round is computed. Arrays that a contender takes from its user's memory are
laid out in the order of the round's batches before that; contenders that take ids of clients read
the clients' files, and shuffle, while it runs. In a long run a client's file is read once: `@kept`
reads it before the clock starts, and shuffles while it runs.

Handwriting comes from --data_dir, or from ../shared/data if that is there; else images are
generated, of the same shapes. The synthetic task makes its own data, Sent140 is its stand-in.
"""

import argparse
from collections.abc import Mapping, Sequence
import dataclasses
import functools
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile

_ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(_ROOT))  # The benchmarks are not installed with the project.

from benchmarks import lineup  # noqa: E402
from benchmarks import make_workload  # noqa: E402
from benchmarks import race  # noqa: E402
from benchmarks import report  # noqa: E402
from benchmarks import results  # noqa: E402
from benchmarks import workloads  # noqa: E402
from benchmarks.peers import environments  # noqa: E402
from privacy.settings import command_line  # noqa: E402
from tff_superquantile import user_cache  # noqa: E402
from tff_superquantile.engine.processes import dependent_process  # noqa: E402
from tff_superquantile.engine.processes import limits  # noqa: E402
from tff_superquantile.experiments import cli  # noqa: E402

_KNOWN_TASKS = ("synthetic", "emnist_linear", "emnist_convnet", "sent140_lstm")

_ARGS = argparse.Namespace()  # Filled by `main`.


def define(parser: command_line.Parser) -> None:
  add = functools.partial(command_line.add_flag, parser)
  add("tasks", str, list(_KNOWN_TASKS[:3]), f"Of {', '.join(_KNOWN_TASKS)}.", are_several=True)
  add(
    "clients_per_round",
    int,
    [100],
    "Sizes of cohorts; with more clients than there are, some repeat.",
    are_several=True,
    least=1,
  )
  add("timed_rounds", int, 12, "Timed rounds.", least=1)
  add("warm_up", int, 4, "Rounds before, not counted.", least=1)
  add(
    "rounds_per_turn",
    int,
    4,
    "Rounds before it is the next one's turn; the first of them finds cold caches.",
    least=1,
  )
  add("theta", float, 0.5, "Tail fraction of superquantile aggregation.")
  add(
    "contenders",
    str,
    [],
    f"Only these, of {', '.join(lineup.DEFAULT + lineup.PEERS)}; this project's own also with"
    " @kept, for files that were read before, or @native, for TFF's runtime.",
    are_several=True,
  )
  add("peers", bool, False, f"Adds {' and '.join(lineup.PEERS)}.")
  add("data_dir", str, "", "EMNIST in TFF's or LEAF's format.")
  add("cache_dir", str, user_cache.default_dir(), "Where tasks keep what they convert.")
  add(
    "peers_dir",
    str,
    os.path.join(user_cache.default_dir(), "peers"),
    "Where the peers' environments are, made if missing.",
  )
  add("json", str, "", "A file for all numbers.")


def _make_workload(directory: str, task: str, clients_per_round: int) -> workloads.Workload:
  options = make_workload.Options(
    directory=directory,
    task=task,
    clients_per_round=clients_per_round,
    num_rounds=_ARGS.warm_up + _ARGS.timed_rounds,
    data_dir=os.path.abspath(_ARGS.data_dir) if _ARGS.data_dir else "",
    shared_dir=str(_ROOT.parent / "shared"),
    cache_dir=os.path.abspath(_ARGS.cache_dir),
  )
  arguments = json.dumps(dataclasses.asdict(options))
  process = dependent_process.DependentProcess(
    [sys.executable, "-m", "benchmarks.make_workload", arguments],
    env={**os.environ, "PYTHONPATH": _python_path()},
    stderr=subprocess.PIPE,
    text=True,
  )
  try:
    _, messages = process.communicate()
  finally:
    process.kill()
  if process.returncode:
    lines = [line for line in messages.split("\n") if line.strip()]
    raise ValueError(lines[-1] if lines else f"No workload could be made of {task}.")
  return workloads.read(directory)


def _python_path() -> str:
  return os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))


def _run(
  entries: Sequence[lineup.Entry],
  pythons: Mapping[str | None, str],
  task: str,
  clients_per_round: int,
) -> results.Table:
  with tempfile.TemporaryDirectory() as temporary:
    workload_dir = os.path.join(temporary, "workload")
    os.mkdir(workload_dir)
    title = f"{task}, {clients_per_round} clients"
    print(f"{title}: drawing cohorts", file=sys.stderr, flush=True)
    workload = _make_workload(workload_dir, task, clients_per_round)
    records = race.run(
      entries,
      python_of=lambda entry: pythons[entry.peer],
      workload_dir=workload_dir,
      output_dir=temporary,
      num_rounds=workload.num_rounds,
      rounds_per_turn=_ARGS.rounds_per_turn,
      title=title,
    )
    model = workload.settings["model"]
    rows = results.judge(
      records,
      initial_weights=workload.initial_weights,
      model=model,
      warm_up=_ARGS.warm_up,
    )
    data = workload.settings["data"]
  return results.Table(task, model, data, clients_per_round, _ARGS.warm_up, rows)


def _check_flags() -> list[int]:
  for task in _ARGS.tasks:
    if task not in _KNOWN_TASKS:
      raise ValueError(f"Found no task {task!r}; use {', '.join(_KNOWN_TASKS)}.")
  if not 0.0 < _ARGS.theta <= 1.0:
    raise ValueError(f"Found --theta={_ARGS.theta}; expected a number in (0, 1].")
  return _ARGS.clients_per_round


def _compare() -> None:
  sizes = _check_flags()
  entries = lineup.choose(_ARGS.contenders, _ARGS.peers, _ARGS.theta)
  pythons: dict[str | None, str] = {None: sys.executable}
  for peer in dict.fromkeys(entry.peer for entry in entries if entry.peer):
    pythons[peer] = environments.python_of(peer, _ARGS.peers_dir)
  print(f"{platform.machine()}, {limits.num_cores()} cores, theta = {_ARGS.theta:g}")
  tables = []
  for task in _ARGS.tasks:
    for clients_per_round in sizes:
      tables.append(_run(entries, pythons, task, clients_per_round))
      # After each table: the next one may be interrupted.
      print(f"\n{report.format_table(tables[-1])}", flush=True)
      if _ARGS.json:
        pathlib.Path(_ARGS.json).write_text(json.dumps(report.to_json(tables)), encoding="utf-8")
  targets = report.format_targets(tables)
  if targets:
    print(f"\n{targets}")
  bad = [row.record.entry.name for table in tables for row in table.rows if not row.counts]
  if bad:
    cli.fail(f"Not all contenders count: {', '.join(dict.fromkeys(bad))}.", cli.FAILED)


def main(args: argparse.Namespace) -> None:
  vars(_ARGS).update(vars(args))
  try:
    _compare()
  except KeyboardInterrupt:
    cli.fail("Interrupted.", cli.INTERRUPTED)


if __name__ == "__main__":
  sys.exit(cli.run(sys.modules[__name__]))
