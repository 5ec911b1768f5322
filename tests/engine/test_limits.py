"""The cores that a process may use: its affinity, and the quotas of its control groups."""

import os
import subprocess
import sys

import pytest

from tff_superquantile.engine.processes import limits


@pytest.fixture
def root(tmp_path, monkeypatch):
  """A folder in place of /, with 64 cores, of which 60 may be used, and no cgroup."""
  monkeypatch.setattr(limits, "ROOT", tmp_path)
  monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(63, 3, -1)))
  return tmp_path


def _write(root, path, text):
  (root / path).parent.mkdir(parents=True, exist_ok=True)
  (root / path).write_text(str(text))


def test_without_cgroups_all_cores_of_the_affinity(root, monkeypatch):
  assert limits.cores() == list(range(4, 64))
  assert limits.num_cores() == 60
  assert limits.cpu_quota() is None
  monkeypatch.delattr(os, "sched_getaffinity")  # As on macOS.
  assert limits.num_cores() == len(limits.cores()) == os.cpu_count()


@pytest.mark.parametrize(
  "quota, expected",
  [
    ("max 100000", 60),
    ("400000 100000", 4),
    ("400001 100000", 5),
    ("150000 100000", 2),
    ("10000 100000", 1),
    ("1000 1000000", 1),
    ("6400000 100000", 60),
    ("2000000000 50000", 60),
    ("", 60),
  ],
)
def test_a_quota_is_rounded_up(root, quota, expected):
  _write(root, "proc/self/cgroup", "0::/\n")  # As a container sees itself.
  _write(root, "sys/fs/cgroup/cpu.max", f"{quota}\n")
  assert limits.num_cores() == expected


def test_the_least_quota_of_all_groups_around_counts(root):
  _write(root, "proc/self/cgroup", "0::/kubepods/pod:1/run\n")
  _write(root, "sys/fs/cgroup/kubepods/cpu.max", "800000 100000")
  _write(root, "sys/fs/cgroup/kubepods/pod:1/cpu.max", "600000 200000")
  _write(root, "sys/fs/cgroup/kubepods/pod:1/run/cpu.max", "max 100000")
  _write(root, "sys/fs/cgroup/kubepods/another/cpu.max", "100000 100000")
  assert limits.cpu_quota() == 3.0
  assert limits.num_cores() == 3


def test_quotas_of_version_1(root):
  _write(root, "proc/self/cgroup", "3:cpu,cpuacct:/not/seen/here\n1:memory:/\n0::/\n")
  _write(root, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", -1)
  _write(root, "sys/fs/cgroup/cpu/cpu.cfs_period_us", 100000)
  _write(root, "sys/fs/cgroup/memory/cpu.max", "100000 100000")  # Of another controller.
  assert limits.num_cores() == 60
  _write(root, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", 250000)
  assert limits.num_cores() == 3


_REPORT = """
import pathlib
import sys
from tff_superquantile.engine.processes import limits
limits.ROOT = pathlib.Path(sys.argv[1])
limits.cores = lambda: list(range(5))
assert limits.num_cores() == 3 and "tensorflow" not in sys.modules
import tensorflow as tf
from tff_superquantile.engine import context
context.set_simulation_context()
threads = tf.config.threading
print(threads.get_intra_op_parallelism_threads(), threads.get_inter_op_parallelism_threads())
tf.constant(1.0) + 1.0
limits.cores = lambda: list(range(2))
context.limit_threads()
limits.cores = lambda: list(range(5))
limits.num_cores = lambda: 4
context.limit_threads()  # It has begun: no error, and no other number.
print(threads.get_intra_op_parallelism_threads(), limits.num_cores())
"""


def test_tensorflows_threads_follow_a_quota(tmp_path):
  _write(tmp_path, "proc/self/cgroup", "0::/\n")
  _write(tmp_path, "sys/fs/cgroup/cpu.max", "300000 100000")
  command = [sys.executable, "-c", _REPORT, str(tmp_path)]
  done = subprocess.run(command, capture_output=True, text=True)
  assert done.stdout.split() == ["3", "3", "3", "4"], done.stderr


@pytest.mark.parametrize("quota", ["", "max 100000", "6000000 100000"])
def test_without_a_lower_quota_threads_are_left_alone(root, quota, monkeypatch):
  import tensorflow as tf

  from tff_superquantile.engine import context

  _write(root, "proc/self/cgroup", "0::/\n")
  _write(root, "sys/fs/cgroup/cpu.max", quota)
  for name in ("set_intra_op_parallelism_threads", "set_inter_op_parallelism_threads"):
    monkeypatch.setattr(tf.config.threading, name, lambda number: pytest.fail("asked"))
  context.limit_threads()
