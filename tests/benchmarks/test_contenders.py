"""This project's contenders: each computes a round, also one that is private."""

import numpy as np
import pytest

from benchmarks import lineup
from benchmarks import workloads
from benchmarks.contenders import ours
from tff_superquantile.simulation import client_files


@pytest.fixture(scope="module")
def workload(tmp_path_factory):
  """Twelve clients of the synthetic task's shapes, ten of whom are in each of two rounds."""
  rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("contenders") / "clients"
  examples = [
    (f"c{i}", rng.normal(size=[20, 20]).astype(np.float32), rng.integers(0, 10, 20, np.int32))
    for i in range(12)
  ]
  files = client_files.write_client_files(folder, examples)
  cohorts = np.stack([rng.permutation(12)[:10] for _ in range(2)]).astype(np.int32)
  return workloads.Workload(
    x=np.concatenate([x for _, x, _ in examples]),
    y=np.concatenate([y for _, _, y in examples]),
    offsets=np.arange(0, 241, 20),
    cohorts=cohorts,
    seeds=np.zeros([2, 10, 2], np.int64),
    orders=np.zeros(0, np.int32),
    order_offsets=np.zeros(1, np.int64),
    initial_weights=[np.zeros([20, 10], np.float32), np.zeros(10, np.float32)],
    settings=dict(task="synthetic", client_files=str(folder), client_ids=list(files.client_ids)),
  )


@pytest.mark.usefixtures("restored_context")
@pytest.mark.parametrize("method", [name for name in lineup.METHODS if "private" in name])
def test_private_contenders_compute_rounds(method, workload):
  contender = ours._Ours(workload, lineup.find(method, 0.5).options)
  weights = []
  for round_num in range(2):
    contender.prepare(round_num)
    contender.run_round(round_num)
    weights.append(np.concatenate([w.ravel() for w in contender.weights()]))
  assert np.isfinite(weights).all() and np.any(weights[1] != weights[0])


@pytest.mark.usefixtures("restored_context")
def test_files_that_were_read_before_change_nothing(workload):
  found = []
  for name in ("fed_avg", "fed_avg@kept"):
    contender = ours._Ours(workload, lineup.find(name, 0.5).options)
    for round_num in range(2):
      contender.prepare(round_num)
      contender.run_round(round_num)
    found.append(contender.weights())
  for one, other in zip(*found):
    np.testing.assert_array_equal(one, other)
