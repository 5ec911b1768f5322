"""Runs on Ray's workers: flags, ends and continuations, and what they leave behind."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time

import commands
import forks
import numpy as np
import pytest

_RUN = f"{commands.METHOD}/seed_0"
_NUM_ROUNDS = 30
_WORKER_TIMEOUT = 15  # So many seconds that a busy machine ends the first round in time.
_FLAGS = (
  f"--num_rounds={_NUM_ROUNDS}",
  f"--rounds_per_evaluation={_NUM_ROUNDS}",
  "--seconds_per_checkpoint=0",
)
# Blocks of 3, 3 and 2 of the 8 clients, as those of --block_size=3.
_RAY = (*_FLAGS, "--engine=ray", "--num_blocks=3")
_SECONDS_TO_END = 120.0
_TRAIN = "from tff_superquantile.experiments import cli, train; raise SystemExit(cli.run(train))"


@pytest.fixture(scope="module")
def with_ray():
  pytest.importorskip("ray", reason="Ray is not installed: pip install 'ray>=2.51,<2.53'")


def weights(run):
  with np.load(run / "weights.npz") as arrays:
    return dict(arrays)


def assert_same_weights(run, other):
  found, expected = weights(run), weights(other)
  assert found.keys() == expected.keys() and len(found) > 1
  for name, array in expected.items():
    np.testing.assert_array_equal(found[name], array)


def workers(command):
  """The processes of a command's workers, as Ray names them."""
  command.look()
  found = []
  for pid, _ in command._seen:
    try:
      title = pathlib.Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
      continue
    if title.startswith("ray::Worker"):
      found.append(pid)
  return found


@pytest.fixture(scope="module")
def expected(lab):
  """An undisturbed run of the same blocks in one process."""
  result = lab.train(*_FLAGS, "--engine=in_process", "--block_size=3", "--output_dir=expected")
  assert result.code == 0, result.err
  return lab.folder / "expected" / _RUN


def _lose_all_workers(lab, output_dir):
  """Lets a run begin, and all its workers fall silent."""
  run = lab.folder / output_dir / _RUN
  flags = (*_RAY, f"--worker_timeout={_WORKER_TIMEOUT}", f"--output_dir={output_dir}")
  command = lab.held("train", *flags, rows=3)
  command.wait_until_held()
  stopped = workers(command)
  assert len(stopped) == len(os.sched_getaffinity(0)), f"after {commands.num_rows(run)} rounds"
  own = os.getpriority(os.PRIO_PROCESS, 0)
  assert [os.getpriority(os.PRIO_PROCESS, pid) for pid in stopped] == [own] * len(stopped)
  for pid in stopped:
    os.kill(pid, signal.SIGSTOP)
  command.let_go()
  result = command.wait()
  in_time = f"has answered in {_WORKER_TIMEOUT} s"
  result.assert_fails_with_a_sentence(1, in_time, "The same command goes on where")
  assert (run / "checkpoints").is_dir()
  assert not command.left_behind(_SECONDS_TO_END)


@pytest.mark.ray
@pytest.mark.parametrize(
  "loses_workers", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["", "workers lost"]
)
def test_a_run_that_is_interrupted_ends_as_one_in_one_process(
  with_ray, lab, expected, loses_workers
):
  output_dir = f"disturbed_{loses_workers}"
  run = lab.folder / output_dir / _RUN
  if loses_workers:
    _lose_all_workers(lab, output_dir)
  # The same command goes on, with other values of what decides nothing, until SIGTERM.
  before = commands.num_rows(run)
  command = lab.held("train", *_RAY, f"--output_dir={output_dir}", rows=3)
  command.wait_until_held()
  assert commands.num_rows(run) >= before + 3
  result = command.end_by(signal.SIGTERM)
  assert result.code == 143, result.err
  assert not command.left_behind(_SECONDS_TO_END)
  # One worker does the rest, and nobody says how many blocks.
  one_core = "import os; os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])"
  arguments = lab.small([*_RAY[:-1], f"--output_dir={output_dir}"])
  command = lab.python("-c", f"{one_core}; {_TRAIN}", *arguments)
  result = command.wait()
  assert result.code == 0, result.err
  assert result.out == f"Finished: {output_dir}/{_RUN}\n"
  rows = commands.rows(run)
  # No round was computed twice.
  assert [int(row["round"]) for row in rows] == list(range(_NUM_ROUNDS + 1))
  assert_same_weights(run, expected)
  assert not command.left_behind(_SECONDS_TO_END)


@pytest.mark.slow
@pytest.mark.ray
def test_a_killed_run_leaves_nobody_and_two_at_once_do_not_meet(with_ray, lab, expected):
  names = ("killed", "beside")
  started = [lab.held("train", *_RAY, f"--output_dir={name}", rows=3) for name in names]
  runs = [lab.folder / name / _RUN for name in names]
  for command in started:
    command.wait_until_held()
  assert not set(workers(started[0])) & set(workers(started[1]))
  result = started[0].end_by(signal.SIGKILL)
  assert result.code == -signal.SIGKILL
  started[1].let_go()
  assert started[1].wait().code == 0
  assert not started[0].left_behind(_SECONDS_TO_END)
  result = lab.start("train", *_RAY, "--output_dir=killed").wait()
  assert result.code == 0, result.err
  for run in runs:
    assert_same_weights(run, expected)


# Job arrays, which need no Ray.


def test_the_job_array_of_the_page(lab):
  page = (commands.ROOT / "docs/how_to/cluster.md").read_text(encoding="utf-8")
  (lab.folder / "array.sbatch").write_text(re.search(r"```bash\n(#!.*?)```", page, re.DOTALL)[1])
  flags = ("--experiment=synthetic", "--tune=none", "--seeds=0,1", "--num_rounds=3")
  folder = lab.folder / "array"
  printed = lab.sweep(*flags, f"--output_dir={folder}", "--print_commands")
  (lab.folder / "jobs").write_text(printed.out)
  result = subprocess.run(
    ["bash", "array.sbatch", "jobs"],
    cwd=lab.folder,
    env={**forks.environment(), "SLURM_ARRAY_TASK_ID": "2"},
    capture_output=True,
    text=True,
  )
  assert result.returncode == 0, result.stderr
  (finished,) = folder.rglob("metrics.json")
  seed = f"seed_{re.search('--seed=([0-9]+)', printed.out.splitlines()[1])[1]}"
  assert finished.parent.name == seed
  again = lab.sweep(*flags, f"--output_dir={folder}", "--print_commands")
  first, _, *rest = printed.out.splitlines()
  assert again.out.splitlines() == [first, *rest]


# Flags.


@pytest.mark.parametrize(
  "flags, parts",
  [
    (("--num_blocks=3",), ("--num_blocks=3 with --engine=in_process",)),
    (("--engine=in_process", "--threads_per_worker=2"), ("--threads_per_worker=2",)),
    (("--engine=ray", "--block_size=3"), ("--block_size=3 with --engine=ray",)),
    (("--engine=ray", "--worker_timeout=0"), ("worker_timeout = 0.0; expected at least 1.0",)),
  ],
)
def test_flags_of_another_engine_are_refused(flags, parts, lab):
  lab.train("--num_rounds=1", *flags, "--output_dir=refused").assert_refused(*parts)


def test_other_blocks_are_another_run(lab, expected):
  del expected
  result = lab.train(*_FLAGS, "--engine=in_process", "--block_size=4", "--output_dir=expected")
  result.assert_refused("--block_size=3 there, 4 here")


def test_without_ray_a_sentence_says_what_to_install(lab):
  no_ray = "import sys; sys.modules['ray'] = None"
  flags = lab.small(["--num_rounds=1", "--engine=ray", "--output_dir=without"])
  result = lab.fork("-c", f"{no_ray}; {_TRAIN}", *flags).wait()
  result.assert_refused("no package ray", "tff-superquantile[cluster]")
  assert not (lab.folder / "without" / _RUN).exists()


@pytest.mark.ray
def test_no_cluster_at_an_address(with_ray, lab):
  result = lab.train("--num_rounds=1", *_RAY, "--ray_address=127.0.0.1:1", "--output_dir=nowhere")
  result.assert_fails_with_a_sentence(1, "no Ray cluster at '127.0.0.1:1'", "ray start --head")


_CONNECTS = """
import os, signal, sys, threading, time
import ray
from tff_superquantile.experiments import cli
from tff_superquantile.engine.cluster import connection

def wait():
  while not os.path.exists("seen"):  # What Ray's folder is like.
    time.sleep(0.02)

def define(parser):
  pass

def main(args):
  {}
  connection.connect("local")
  {}

sys.exit(cli.run(sys.modules[__name__]))
"""
# Before Ray starts and when it has: what is done, and the exit code.
_ENDS = {
  "end": ("", "wait()", 0),
  "killed": ("", "wait(); os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
  "failed": ("", "wait(); raise ValueError('no')", 1),
  # The signal waits for Ray, which would else end the command as a failure, or be left.
  "starting": (
    "end = lambda: (wait(), os.kill(os.getpid(), signal.SIGTERM)); "
    "threading.Thread(target=end).start()",
    "threading.Event().wait(600)",
    128 + signal.SIGTERM,
  ),
}


@pytest.mark.ray
@pytest.mark.parametrize(
  "end", ["end", "killed", "starting", pytest.param("failed", marks=pytest.mark.slow)]
)
def test_ray_on_this_machine_leaves_no_folder_and_nobody(with_ray, tmp_path, cache_dir, end):
  before, after, code = _ENDS[end]
  place = pathlib.Path(tempfile.mkdtemp(dir="/tmp"))  # Sockets have short paths.
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("RAY_TMPDIR", str(place))
    lab = commands.Lab(tmp_path, cache_dir)
    command = lab.python("-c", _CONNECTS.format(before, after))
  modes = set()
  while command.process.poll() is None:
    for path in place.iterdir():
      with contextlib.suppress(FileNotFoundError):  # It has been removed meanwhile.
        modes.add(path.stat().st_mode & 0o777)
    command.look()
    if modes:
      (tmp_path / "seen").touch()
    time.sleep(0.2)
  result = command.wait()
  assert result.code == code, result.err
  assert modes == {0o700}
  assert not command.left_behind(_SECONDS_TO_END)
  end = time.monotonic() + _SECONDS_TO_END
  while list(place.iterdir()) and time.monotonic() < end:  # Who removes it is nobody's child then.
    time.sleep(0.1)
  assert not list(place.iterdir())
  place.rmdir()
