"""One run's cohorts over workers on loopback: the same bits, whatever happens to them."""

import pathlib
import signal

from helpers import clusters
from helpers import commands
from helpers import private_run
from helpers import processes
import pytest

from tff_superquantile import noise_source
from tff_superquantile.experiments.plan import pool
from tff_superquantile.experiments.run import runner
from tff_superquantile.simulation import seeds

pytest.importorskip("distributed", reason="needs the extra `cluster`: pip install distributed")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("restored_context")]
_BLOCKS = dict(num_blocks=4, batch_size=4)


def _train(cluster, seed=0, **flags):
  """Starts a run whose cohorts the workers of a cluster compute."""
  arguments = pool.arguments(cluster.config(seed, **_BLOCKS, **flags))
  return cluster._add("-m", "tff_superquantile", "train", *arguments, f"--scheduler={cluster.file}")


def _path(cluster, **flags):
  return cluster.run(0, **_BLOCKS, **flags)


def _children(worker):
  return {pid for pid, _ in processes.below(worker.process.pid)} - {worker.process.pid}


def test_one_two_and_four_workers(lab):
  flags = dict(num_rounds=20)
  alone = clusters.Cluster(lab, "alone")
  expected = runner.train(alone.config(0, **_BLOCKS, **flags)).path
  cluster = clusters.Cluster(lab, "shared").start(num_workers=1)
  for number in (1, 2, 4):
    while len(cluster.workers) < number:
      cluster.add_worker()
    for worker in cluster.workers:
      worker.wait_until(lambda w=worker: "Working for" in w._files["out"].read_text())
    result = _train(cluster, run_name=f"by_{number}", **flags).wait()
    assert result.code == 0, result.err
    private_run.assert_same_weights(_path(cluster, run_name=f"by_{number}", **flags), expected)
    assert all(_children(worker) for worker in cluster.workers)  # Each computed a part.
  assert cluster.close() == []


def test_deaths(lab):
  cluster, flags = clusters.Cluster(lab, "deaths").start(num_workers=3), dict(num_rounds=80)
  driver, path = _train(cluster, **flags), _path(cluster, **flags)
  driver.wait_until(lambda: commands.num_rows(path) >= 3)
  first, second, third = cluster.workers
  late = cluster.add_worker()
  late.wait_until(lambda: "Working for" in late._files["out"].read_text())
  first.process.send_signal(signal.SIGKILL)
  second.process.send_signal(signal.SIGTERM)
  # A process that computes blocks may be killed without its worker, too.
  for pid in _children(third):
    clusters.signal_if_there(pid, signal.SIGKILL)
  assert commands.num_rows(path) < 75
  result = driver.wait()
  assert result.code == 0, result.err
  assert not first.left_behind() and _children(late)
  undisturbed = clusters.Cluster(lab, "undisturbed")
  expected = runner.train(undisturbed.config(0, **_BLOCKS, **flags)).path
  private_run.assert_same_weights(path, expected)
  assert cluster.close() == []


@pytest.mark.parametrize(
  "what, before",
  [
    (
      "the kind of CPU",
      "from tff_superquantile.engine.processes import cpu\ncpu.kind = lambda: {'model': 'm'}",
    ),
    (
      "with the digest",
      "from tff_superquantile.experiments.cluster import facts\nfacts._digest = lambda *_: 'x'",
    ),
  ],
  ids=["cpu", "data"],
)
def test_a_worker_with_something_else_computes_no_block(lab, what, before):
  name = what.replace(" ", "_")
  cluster = clusters.Cluster(lab, name).start(num_workers=1)
  odd = cluster.add_worker(before)
  for worker in cluster.workers:
    worker.wait_until(lambda w=worker: "Working for" in w._files["out"].read_text())
  result = _train(cluster, other_cpu="allowed").wait()
  result.assert_fails_with_a_sentence(2, "Found", what, "as where the command was started")
  assert not list(cluster.output_dir.rglob("rounds.csv"))
  odd.process.send_signal(signal.SIGTERM)
  odd.wait()
  driver = _train(cluster, num_rounds=40)
  driver.wait_until(lambda: commands.num_rows(_path(cluster, num_rounds=40)) >= 3)
  late = cluster.add_worker(before)  # It is sent away, and its blocks elsewhere.
  result = driver.wait()
  assert result.code == 0 and what in result.err, result.err
  assert late.wait().code == 1
  assert cluster.close() == []


def test_a_private_run_sends_no_key(lab):
  cluster = clusters.Cluster(lab, "private_cohort").start(num_workers=0)
  place = str(lab.folder / "sent_by_")
  cluster.add_worker(clusters.RECORD.format(path=place))
  private = dict(epsilon=10.0, num_rounds=3, clip_norm=1.0, threshold="geometric")
  flags = [*pool.arguments(cluster.config(0, **_BLOCKS, **private)), f"--scheduler={cluster.file}"]
  script = "import sys\n{}\nfrom tff_superquantile import commands\nsys.exit(commands.main())"
  driver = cluster._add("-c", script.format(clusters.RECORD.format(path=place)), "train", *flags)
  result = driver.wait()
  assert result.code == 0, result.err
  path = _path(cluster, **private)
  key = private_run.key_of(path)
  entry = private_run.manifest_of(path)["commitments"]["noise"]
  recorded = list(pathlib.Path(lab.folder).glob("sent_by_*"))
  assert len(recorded) == 2
  sent = b"".join(path.read_bytes() for path in recorded)
  of_clients = [seeds.client_seed(0, 1, c).tobytes() for c in private_run.client_ids()]
  assert any(seed in sent for seed in of_clients)  # They are public: all would be seen.
  for secret in (key, noise_source.derive_key(key, f"noise of the run {entry}")):
    for needle in (secret, *private_run._derived(secret)):
      assert needle[:8] not in sent and needle[8:] not in sent
    assert secret.hex().encode() not in sent
  assert cluster.close() == []
