"""Rounds on Ray's workers: the bits of the same blocks in one process, whatever dies meanwhile."""

import contextlib
import os
import pathlib
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import problems
import pytest
import rounds
import tensorflow as tf
import tensorflow_federated as tff
import tree

from benchmarks import child
from tff_superquantile import evaluation
from tff_superquantile import noise_source
from tff_superquantile.engine.cohort import cohort_context
from tff_superquantile.engine.cohort.graphs import errors as engine_errors
from tff_superquantile.engine.processes import limits
from tff_superquantile.simulation import client_files
from tff_superquantile.simulation.client_files import files as files_lib

pytestmark = pytest.mark.ray
ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'ray>=2.51,<2.53'")

from tff_superquantile.engine.cluster import connection  # noqa: E402
from tff_superquantile.engine.cluster import errors  # noqa: E402
from tff_superquantile.engine.cluster import pool  # noqa: E402
from tff_superquantile.engine.cluster import ray_context  # noqa: E402
from tff_superquantile.engine.cluster import worker  # noqa: E402

_SECONDS = 240  # Of patience, not of duration.
_OPENAT = "257"  # On x86-64, the only machine that TFF has wheels for.


@pytest.fixture(scope="module")
def on_ray():
  """Two workers of one thread, for all tests: to start one takes ten seconds."""
  old = tff.framework.get_context_stack().current
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(limits, "num_cores", lambda: 2)
    context = ray_context.RayContext(num_blocks=3)
  yield context
  tff.framework.set_default_context(old)
  ray.shutdown()


@pytest.fixture(autouse=True)
def usual_settings(on_ray):
  yield
  on_ray.num_blocks, on_ray._workers.timeout = 3, 600.0


@pytest.fixture(scope="module")
def files(tmp_path_factory):
  """Those of twenty clients, and of others that one test each asks for: what is read stays."""
  return rounds.write_files(tmp_path_factory.mktemp("files"), range(3, 9 + rounds.NUM_CLIENTS))


def in_process(block_size):
  """Blocks in this process, one client after the other as on a worker."""
  return cohort_context.CohortContext(parallel=1, block_size=block_size)


def pids(context):
  return [found.pid for found in context._workers.all("describe", [])]


def _is_waiting_for_a_file(pid):
  """Whether a thread of a process stays in the opening of a file, as that of a FIFO does."""

  def opening():
    found = set()
    for path in pathlib.Path(f"/proc/{pid}/task").glob("*/syscall"):
      with contextlib.suppress(OSError):
        if path.read_text().startswith(_OPENAT):
          found.add(path)
    return found

  first = opening()
  time.sleep(0.1)
  return bool(first & opening())


def strike(path, found, act):
  """In a thread, does something to the worker that reads a client's file.

  The file is a FIFO until then, in which reading waits. It is replaced before the worker is struck:
  who tries again finds the file.

  Args:
    path: The client's file.
    found: The processes of the workers.
    act: What to do with one.

  Returns:
    A function that waits for it, and returns the process.
  """
  away = path.with_suffix(".away")
  path.rename(away)
  os.mkfifo(path)
  struck = []

  def run():
    end = time.monotonic() + _SECONDS
    while not struck and time.monotonic() < end:
      struck.extend(pid for pid in found if _is_waiting_for_a_file(pid))
    away.rename(path)
    if struck:
      act(struck[0])

  thread = threading.Thread(target=run)
  thread.start()

  def wait():
    thread.join()
    assert struck, f"no worker has read {path}"
    return struck[0]

  return wait


def kill(pid):
  os.kill(pid, signal.SIGKILL)


def of_client(files, i):
  return pathlib.Path(files_lib.client_path(files.directory, f"client {i}"))


@pytest.fixture(scope="module")
def exact(files):
  return rounds.build("exact", files, 4)


@pytest.fixture(scope="module")
def private(files):
  return rounds.build("private distributed", files, 4)


@pytest.mark.parametrize("num_blocks, num_clients, block_size", [(3, 20, 7), (11, 22, 2)])
def test_rounds_have_the_bits_of_the_same_blocks_in_one_process(
  num_blocks, num_clients, block_size, on_ray, exact, files
):
  clients = [*range(20), *range(num_clients - 20)]
  cohorts = [rounds.cohort(files, clients, r) for r in range(3)]
  on_ray.num_blocks = num_blocks
  found = rounds.run(on_ray, exact, cohorts)
  rounds.assert_same(found, rounds.run(in_process(block_size), exact, cohorts), rtol=0)


@pytest.mark.parametrize("name", ["private geometric", "private weighted"])
def test_no_worker_is_sent_the_server_s_noise(name, on_ray, files, monkeypatch):
  """Neither by a call, nor by Ray's store, nor within the computation."""
  sent = []
  put, run = ray.put, pool.Pool.run

  def recording_put(value):
    sent.append(pickle.dumps(value))
    return put(value)

  def recording_run(self, calls):
    for call in calls:
      held = [arg for arg in call.args if not isinstance(arg, ray.ObjectRef)]
      sent.append(ray.cloudpickle.dumps(held))
    return run(self, calls)

  monkeypatch.setattr(ray, "put", recording_put)
  monkeypatch.setattr(pool.Pool, "run", recording_run)
  process = rounds.build(name, files, 4)
  tff.framework.set_default_context(on_ray)
  state = process.initialize()
  secrets = {rounds.KEY}
  for round_num in range(2):
    noise = [leaf for leaf in map(np.asarray, tree.flatten(state)) if leaf.shape == (2,)]
    assert noise and all(leaf.dtype == np.int64 for leaf in noise)
    secrets |= {leaf.tobytes() for leaf in noise}
    source = noise_source.NoiseSource(rounds.KEY, "any")
    secrets |= {source.draw(tf.constant(leaf))[0].numpy().tobytes() for leaf in noise}
    state = process.next(state, rounds.cohort(files, range(20), round_num)).state
  assert len(sent) >= 1 + 2 * (1 + 3)  # The computation, and a common part and three blocks.
  assert not [secret for secret in secrets for content in sent if secret in content]


def _listening():
  """{(process, address)} of the sockets at which this process and its descendants listen."""
  found = set()
  for pid in (os.getpid(), *(pid for pid, _ in child.descendants(os.getpid()))):
    inodes = set()
    with contextlib.suppress(OSError):
      for path in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
          inodes.add(os.readlink(path).removeprefix("socket:[").rstrip("]"))
      for name in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
          fields = line.split()
          if fields[3] == "0A" and fields[9] in inodes:  # It listens, and is of this process.
            found.add((pid, fields[1].partition(":")[0]))
  return found


def test_ray_listens_at_the_loopback_alone(on_ray):
  assert len(on_ray.hosts()) == 2
  # 127.0.0.1, ::ffff:127.0.0.1 and ::1, as the kernel writes them.
  loopbacks = ("0100007F", "0000000000000000FFFF00000100007F", "0" * 24 + "01000000")
  found = _listening()
  assert len({pid for pid, _ in found}) >= 5  # This one, the server of Ray's, its node, workers.
  assert {address for _, address in found} <= set(loopbacks)


def test_fewer_clients_than_blocks_and_none(on_ray, exact, files):
  cohorts = [rounds.cohort(files, clients) for clients in ([4, 2], [], [7])]
  found = rounds.run(on_ray, exact, cohorts)
  rounds.assert_same(found, rounds.run(in_process(1), exact, cohorts), rtol=0)


def test_clients_are_evaluated_on_the_workers(on_ray, tmp_path):
  # Files of its own: those of all clients are read, and kept, by whichever worker is free.
  files = rounds.write_files(tmp_path, range(3, 9 + rounds.NUM_CLIENTS))
  model = problems.linear_model()
  weights = tff.learning.models.ModelWeights(*model.initial_weights)
  tff.framework.set_default_context(on_ray)
  found = evaluation.build_federated_evaluator(model, files)(weights)
  expected = evaluation.build_evaluators(model, {"test": files})["test"](weights)
  assert found.client_ids == expected.client_ids
  np.testing.assert_array_equal(found.num_examples, expected.num_examples)
  np.testing.assert_allclose(found.loss, expected.loss, rtol=1e-6)
  np.testing.assert_allclose(found.error, expected.error, rtol=1e-6)


# Workers die in mid-call.


@pytest.mark.parametrize(
  "name, client",
  [("exact", 20), pytest.param("private distributed", 21, marks=pytest.mark.slow)],
)
def test_a_worker_killed_in_the_first_stage(name, client, on_ray, exact, private, files):
  process = {"exact": exact, "private distributed": private}[name]
  cohorts = [rounds.cohort(files, range(15)), rounds.cohort(files, [*range(3, 17), client], 1)]
  expected = rounds.run(in_process(5), process, cohorts)
  before = pids(on_ray)
  struck = strike(of_client(files, client), before, kill)
  rounds.assert_same(rounds.run(on_ray, process, cohorts), expected, rtol=0)
  assert [pid in pids(on_ray) for pid in before] == [pid != struck() for pid in before]


@pytest.mark.slow
def test_a_worker_killed_in_the_second_stage(on_ray, files):
  read = client_files.build_examples_fn(files, shuffle=False)

  @tff.tensorflow.computation(client_files.HANDLE_TYPE)
  def draw(handle):
    return tf.random.stateless_normal([], handle["seed"])

  @tff.tensorflow.computation(client_files.HANDLE_TYPE, np.float32, np.float32)
  def shifted_sum(handle, own, mean):
    return tf.reduce_sum(read(handle)[0] * own) - mean

  @tff.federated_computation(tff.FederatedType(client_files.HANDLE_TYPE, tff.CLIENTS))
  def sums(clients):
    own = tff.federated_map(draw, clients)
    mean = tff.federated_mean(own)
    of_clients = tff.federated_map(shifted_sum, (clients, own, tff.federated_broadcast(mean)))
    return mean, tff.federated_sum(of_clients)

  cohort = rounds.cohort(files, [0, 1, 2, 3, 4, 5, 22])
  tff.framework.set_default_context(in_process(3))
  expected = sums(cohort)
  before = pids(on_ray)
  struck = strike(of_client(files, 22), before, kill)
  tff.framework.set_default_context(on_ray)
  assert sums(cohort) == expected
  assert struck() not in pids(on_ray)
  assert len(on_ray._program(sums).stages) == 2


# Workers that do not answer.


def test_the_block_of_a_silent_worker_goes_elsewhere_and_the_worker_comes_back(
  on_ray, exact, files
):
  cohorts = [rounds.cohort(files, range(15)), rounds.cohort(files, [*range(14), 23], 1)]
  expected = rounds.run(in_process(5), exact, cohorts)
  found = rounds.run(on_ray, exact, cohorts[:1])  # All have traced it.
  on_ray._workers.timeout = 10.0
  struck = strike(of_client(files, 23), pids(on_ray), lambda pid: os.kill(pid, signal.SIGSTOP))
  try:
    found.append(exact.next(found[0].state, cohorts[1]))
    assert len(on_ray._workers._silent) == 1
  finally:
    os.kill(struck(), signal.SIGCONT)
  rounds.assert_same(found, expected, rtol=0)
  assert struck() in pids(on_ray)
  rounds.run(on_ray, exact, cohorts[:1])
  assert not on_ray._workers._silent


def test_no_worker_answers(on_ray, exact, files):
  cohorts = [rounds.cohort(files, range(15))]
  expected = rounds.run(on_ray, exact, cohorts)
  found = pids(on_ray)
  on_ray._workers.timeout = 2.0
  for pid in found:
    os.kill(pid, signal.SIGSTOP)
  try:
    with pytest.raises(errors.ClusterError, match="none of 2 workers has answered in 2 s; see"):
      rounds.run(on_ray, exact, cohorts)
  finally:
    for pid in found:
      os.kill(pid, signal.SIGCONT)
  on_ray._workers.timeout = 600.0
  assert pids(on_ray) == found
  rounds.assert_same(rounds.run(on_ray, exact, cohorts), expected, rtol=0)


# Errors that another try does not mend.


def test_a_missing_file_is_one_error_and_not_tried_again(on_ray, exact, files):
  path, before = of_client(files, 24), pids(on_ray)
  path.rename(path.with_suffix(".away"))
  with pytest.raises(errors.ClusterError) as error:
    rounds.run(on_ray, exact, [rounds.cohort(files, [*range(14), 24])])
  text = str(error.value)
  assert socket.gethostname() in text and "client%2024.bin" in text and "No such file" in text
  assert "block 3 of 3 (stage 1)" in text and "\n" not in text
  assert pids(on_ray) == before


def test_other_files_on_a_worker_are_refused(on_ray, tmp_path, monkeypatch):
  path = tmp_path / "index.json"
  path.write_text("the same")
  on_ray.check_files([str(path)])
  monkeypatch.setattr(worker, "digest", lambda path: "another")
  with pytest.raises(errors.ClusterError, match=f"another content of {path} on "):
    on_ray.check_files([str(path)])
  path.unlink()
  with pytest.raises(errors.ClusterError, match=f"Found no {path} on .*--cache_dir"):
    on_ray.check_files([str(path)])
  monkeypatch.setattr(worker, "versions", lambda: {"numpy": "0.1"})
  with pytest.raises(errors.ClusterError, match="Found numpy 2.* on .*; expected 0.1 as here"):
    on_ray.check_files([])


@pytest.mark.parametrize("kind", [Exception, RuntimeError, TimeoutError])
def test_ray_that_starts_too_slowly_is_a_sentence(tmp_path, monkeypatch, kind):
  def init(*args, **kwargs):
    raise kind("The current node timed out during startup.")

  monkeypatch.setattr(connection, "_make_folder", lambda: str(tmp_path))
  monkeypatch.setattr(ray, "is_initialized", lambda: False)
  monkeypatch.setattr(ray, "init", init)
  with pytest.raises(errors.ClusterError, match="'local' .*timed out.*; .* less to do"):
    connection.connect("local")
  with pytest.raises(errors.ClusterError, match="'auto' .*timed out.*; .*--ray_address=local"):
    connection.connect("auto")


def _small_worker(folder):
  """A worker that needs no TensorFlow."""

  class Small:
    def here(self, value):
      return value, os.getpid()

    def die(self):
      with open(f"{folder}/{time.monotonic()}", "w"):
        pass
      os.kill(os.getpid(), signal.SIGKILL)

  return Small


def test_a_block_that_ends_its_worker_each_time(on_ray, tmp_path):
  workers = pool.Pool(_small_worker(tmp_path), (), 2, 0, 600.0)
  calls = [pool.Call("here", (1,), "block 1 of 2", 0), pool.Call("die", (), "block 2 of 2", 1)]
  with pytest.raises(errors.ClusterError) as error:
    workers.run(calls)
  text = str(error.value)
  assert "block 2 of 2 ended its worker 6 times" in text and "\n" not in text
  assert "--num_blocks" in text and "memory" in text
  assert len(list(tmp_path.iterdir())) == 6
  # The workers go on.
  again = [pool.Call("here", (value,), "a block", value % 2) for value in range(5)]
  assert [result[0][0] for result in workers.run(again)] == list(range(5))


def test_calls_prefer_their_workers_and_nobody_waits(on_ray, tmp_path):
  workers = pool.Pool(_small_worker(tmp_path), (), 2, 0, 600.0)
  (_, first), (_, second) = workers.all("here", 0)
  calls = [pool.Call("here", (i,), "a block", worker) for i, worker in enumerate([1, 0])]
  assert [pid for ((_, pid),) in workers.run(calls)] == [second, first]
  # The second worker takes what the first one has not come to.
  calls = [pool.Call("here", (i,), "a block", 0) for i in range(20)]
  done = [pid for ((_, pid),) in workers.run(calls)]
  assert set(done) == {first, second}
  assert [call.worker for call in calls] == [[first, second].index(pid) for pid in done]


def test_a_worker_that_does_not_start_is_an_error(on_ray):
  class Broken:
    def __init__(self):
      raise RuntimeError("no such package")

    def here(self):
      return None

  with pytest.raises(errors.ClusterError, match="does not start: .*no such package") as error:
    pool.Pool(Broken, (), 1, 0, 600.0).all("here")
  assert "\n" not in str(error.value)


def test_what_cannot_be_distributed_is_refused(on_ray):
  @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
  def same(values):
    return values

  tff.framework.set_default_context(on_ray)
  with pytest.raises(engine_errors.UnsupportedError, match="cannot be distributed.*in_process"):
    same([1.0, 2.0])


def test_no_other_ray_is_started_when_it_has_ended(on_ray, exact, files, monkeypatch):
  monkeypatch.setattr(ray, "is_initialized", lambda: False)
  with pytest.raises(errors.ClusterError, match="Ray has ended on this machine"):
    rounds.run(on_ray, exact, [rounds.cohort(files, range(15))])


def test_more_threads_than_cores_are_refused(on_ray):
  with pytest.raises(errors.ClusterError, match=r"machines of \[2\] cores; expected one with 3"):
    ray_context.RayContext(threads_per_worker=3)


# Machines, in a process of their own: one process belongs to one cluster.

_NODES = """
import sys
sys.path[:0] = [{simulation!r}, {algorithms!r}]
import pathlib
import ray
import ray.cluster_utils
import numpy as np, tensorflow as tf, tensorflow_federated as tff
import rounds, test_ray
from tff_superquantile.simulation import client_files
from tff_superquantile.engine.cluster import ray_context

memory = dict(object_store_memory=100 * 2**20)
cluster = ray.cluster_utils.Cluster(
  initialize_head=True, head_node_args=dict(num_cpus=0, include_dashboard=False, **memory)
)
ray.init(cluster.address, log_to_driver=False)  # On the head, which stays.
nodes = [cluster.add_node(num_cpus=1, **memory) for _ in range(2)]
cluster.wait_for_nodes()
files = rounds.write_files(pathlib.Path({folder!r}), range(3, 20))
read = client_files.build_examples_fn(files, shuffle=False)

@tff.tensorflow.computation(client_files.HANDLE_TYPE)
def large(handle):  # Ray keeps values of more than 100 KB where they were made.
  return tf.reduce_sum(read(handle)[0]) + tf.random.stateless_normal([40000], handle["seed"])

@tff.tensorflow.computation(large.type_signature.result, large.type_signature.result)
def minus(own, mean):
  return tf.abs(own - mean)

@tff.federated_computation(tff.FederatedType(client_files.HANDLE_TYPE, tff.CLIENTS))
def spread(clients):
  own = tff.federated_map(large, clients)
  mean = tff.federated_broadcast(tff.federated_mean(own))
  return tff.federated_sum(tff.federated_map(minus, (own, mean)))

def compute(context, last, round_num):
  tff.framework.set_default_context(context)
  return spread(rounds.cohort(files, [*range(9), last], round_num))

expected = [compute(test_ray.in_process(2), last, last) for last in (10, 11)]
context = ray_context.RayContext(cluster.address, num_blocks=5, timeout=40.0)
test_ray.pids(context)

def lose(pid):
  parent = int(pathlib.Path(f"/proc/{{pid}}/stat").read_text().rpartition(")")[2].split()[1])
  (node,) = [n for n in nodes if n.all_processes["raylet"][0].process.pid == parent]
  nodes.remove(node)
  cluster.remove_node(node, allow_graceful=False)

# No room elsewhere: the other worker does it all.
struck = test_ray.strike(test_ray.of_client(files, 10), test_ray.pids(context), lose)
assert np.array_equal(compute(context, 10, 10), expected[0])
struck()
print("without room:", len(context._workers._silent), "silent", flush=True)
# Another machine comes, and the lost worker starts there.
nodes.append(cluster.add_node(num_cpus=1, **memory))
cluster.wait_for_nodes()
found = test_ray.pids(context)
assert np.array_equal(compute(context, 10, 10), expected[0])
assert len(set(found)) == 2 and not context._workers._silent
# There is room elsewhere when the next one goes.
spare = cluster.add_node(num_cpus=1, **memory)
cluster.wait_for_nodes()
context._workers.timeout = 600.0
struck = test_ray.strike(test_ray.of_client(files, 11), found, lose)
assert np.array_equal(compute(context, 11, 11), expected[1])
assert struck() not in test_ray.pids(context)
print("with room", flush=True)
ray.shutdown()
cluster.shutdown()
"""


@pytest.mark.slow
def test_machines_go_and_come(tmp_path):
  here = pathlib.Path(__file__).resolve()
  folders = dict(simulation=str(here.parent), algorithms=str(here.parents[1] / "algorithms"))
  script = _NODES.format(folder=str(tmp_path), **folders)
  path = os.pathsep.join(filter(None, [str(here.parents[2]), os.environ.get("PYTHONPATH")]))
  result = subprocess.run(
    [sys.executable, "-c", script],
    capture_output=True,
    text=True,
    timeout=600,
    env={**os.environ, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"},
  )
  assert result.returncode == 0, result.stderr[-3000:]
  said = [line for line in result.stdout.splitlines() if line.startswith("with")]  # Ray talks, too.
  assert said == ["without room: 1 silent", "with room"]
