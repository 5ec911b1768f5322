"""A scheduler, workers and drivers as processes on loopback, each of which a test may harm."""

import contextlib
import os
import pathlib
import re
import signal

from helpers import commands
from helpers import processes
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run import run_folder

SILENCE = 6
# A driver without a sweep's tuning and report: it needs no TensorFlow.
_DRIVER = """
import sys
from tff_superquantile.experiments import cli
from tff_superquantile.experiments.cluster import child, driver
def main():
  flags, seeds = sys.argv[3:], sys.argv[2].split(",")
  configs = [child.config_of((*flags, f"--seed={seed}")) for seed in seeds]
  print("failed:", *driver.run_all(configs, sys.argv[1]))
cli.begin()
sys.exit(cli.run_parsed(main))
"""

# Lines for the beginning of a process: it keeps all that it sends, before it is encrypted.
RECORD = """
import os, distributed.comm.tcp as tcp
to_frames = tcp.to_frames
async def record(*args, **kwargs):
  frames = await to_frames(*args, **kwargs)
  with open({path!r} + str(os.getpid()), "ab") as file:
    file.writelines(frames)
  return frames
tcp.to_frames = record
"""


class Cluster:
  """A scheduler and what belongs to it, in the folder of a lab."""

  def __init__(self, lab, name):
    self.lab, self.file = lab, lab.folder / f"{name}.json"
    self.output_dir = lab.folder / name
    self.processes, self.workers = [], []
    self.scheduler = None

  def start(self, num_workers=2):
    """Starts a scheduler and workers of one slot each; returns this."""
    where = (f"--scheduler={self.file}", "--host=127.0.0.1")
    self.scheduler = self._add(
      "-m", "tff_superquantile", "scheduler", *where, f"--silence={SILENCE}"
    )
    for _ in range(num_workers):
      self.add_worker()
    said = self.scheduler._files["out"]  # The file may be that of one which was killed.
    self.scheduler.wait_until(lambda: "Listening" in said.read_text())
    return self

  def _add(self, *arguments):
    self.processes.append(self.lab.python(*arguments))
    return self.processes[-1]

  def add_worker(self, before=""):
    """Starts a worker, after some lines of Python that are to change it."""
    script = (
      f"import sys\n{before}\nfrom tff_superquantile import commands\nsys.exit(commands.main())"
    )
    flags = (f"--scheduler={self.file}", "--host=127.0.0.1", "--slots=1", "--patience=60")
    self.workers.append(self._add("-c", script, "worker", *flags))
    return self.workers[-1]

  def config(self, seed, **flags):
    """The config of a run that the driver asks for."""
    values = dict(task="synthetic", num_train_clients=30, num_test_clients=15, clients_per_round=8)
    values.update(num_rounds=60, rounds_per_evaluation=20, seconds_per_checkpoint=0.0)
    values.update(output_dir=str(self.output_dir), cache_dir=str(self.lab.cache_dir))
    return run_config.from_values(**{**values, **flags}, seed=seed)

  def drive(self, *seeds, **flags):
    """Starts a driver that asks for a run a seed."""
    arguments = self.config(0, **flags).to_arguments()
    arguments = [text for text in arguments if not text.startswith("--seed=")]
    return self._add("-c", _DRIVER, str(self.file), ",".join(map(str, seeds)), *arguments)

  def run(self, seed, **flags):
    """The folder of a run."""
    return run_folder.of_config(self.config(seed, **flags)).path

  def at_work(self, seed, worker):
    """Whether a worker, or a process of it, holds the lock of a run."""
    inode = str((self.run(seed) / "lock").stat().st_ino)
    pids = {str(pid) for pid, _ in processes.below(worker.process.pid)}
    for line in pathlib.Path("/proc/locks").read_text().splitlines():
      fields = line.split()
      if fields[5].split(":")[-1] == inode and fields[4] in pids:
        return True
    return False

  def wait_for_rows(self, command, number, *seeds):
    """Waits until runs have so many rows."""
    command.wait_until(lambda: all(commands.num_rows(self.run(s)) >= number for s in seeds))
    for process in self.processes:
      process.look()

  def worker_of(self, seed):
    """The worker that carries out a run, and the others."""
    (one,) = (worker for worker in self.workers if self.at_work(seed, worker))
    return one, [worker for worker in self.workers if worker is not one]

  def close(self):
    """Ends all of it; returns the ids of processes that are left behind."""
    for process in reversed(self.processes):
      process.look()
      process.process.send_signal(signal.SIGCONT)
      process.process.send_signal(signal.SIGTERM)
    return [pid for process in self.processes for pid in process.left_behind(90.0)]


def signal_if_there(pid, signum):
  """Sends a signal to a process that may have ended."""
  with contextlib.suppress(ProcessLookupError):
    os.kill(pid, signum)


def failed(result):
  """The names that a driver of `Cluster.drive` gave back."""
  return re.search("^failed:(.*)$", result.out, re.MULTILINE)[1].split()
