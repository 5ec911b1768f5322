"""A run stays on one kind of CPU and keeps its number of threads, unless it is told otherwise."""

import json
import re

import pytest

from tff_superquantile.engine import context
from tff_superquantile.engine.processes import cpu
from tff_superquantile.engine.processes import limits
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run import runner

_FLAGS = dict(task="synthetic", num_train_clients=30, num_test_clients=15, clients_per_round=8)
_CPUINFO = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 85
model name\t: Xeon
flags\t\t: fpu sse4_2 avx512f ht avx fma

processor\t: 1
model name\t: another
"""


@pytest.fixture
def config(tmp_path, cache_dir, restored_context):
  places = dict(output_dir=str(tmp_path), cache_dir=str(cache_dir))
  return run_config.from_values(**_FLAGS, **places, num_rounds=2)


def _cpus(run):
  return json.loads((run.path / "manifest.json").read_text())["cpus"]


def test_the_kind_is_what_the_kernel_says(tmp_path, monkeypatch):
  cache = tmp_path / "sys/devices/system/cpu/cpu0/cache"
  for index, kind, size in ((0, "Data", "32K"), (1, "Instruction", "64K"), (2, "Unified", "1024K")):
    (cache / f"index{index}").mkdir(parents=True)
    (cache / f"index{index}/type").write_text(f"{kind}\n")
    (cache / f"index{index}/size").write_text(f"{size}\n")
  (tmp_path / "proc").mkdir()
  (tmp_path / "proc/cpuinfo").write_text(_CPUINFO)
  monkeypatch.setattr(limits, "ROOT", tmp_path)
  assert cpu.kind() == {
    "model": "GenuineIntel 6 85 Xeon",
    "instructions": "avx avx512f fma sse4_2",
    "caches": "32K 1024K",
  }
  monkeypatch.setattr(limits, "ROOT", tmp_path / "nowhere")
  assert cpu.kind() == dict.fromkeys(("model", "instructions", "caches"), "")


def test_a_run_goes_on_where_it_was_or_where_it_is_told_to(config, monkeypatch):
  here = {**cpu.kind(), "threads": context.num_threads()}
  first = runner.train(config)
  assert _cpus(first) == [here]
  more = run_config.with_values(config, num_rounds=3)
  before = (first.path / "manifest.json").read_bytes()
  for name in cpu.kind():
    other = {**cpu.kind(), name: "other"}
    monkeypatch.setattr(cpu, "kind", lambda other=other: other)
    found = re.escape(f"Found a CPU with {name} other; expected {name} {here[name]}, as the run in")
    with pytest.raises(ValueError, match=f"{found}.*--other_cpu=allowed"):
      runner.train(more)
    assert (first.path / "manifest.json").read_bytes() == before
    runner.train(config)  # It is finished: nothing is computed.
    monkeypatch.undo()
  monkeypatch.setattr(context, "num_threads", lambda: 77)
  with pytest.raises(ValueError, match="Found a CPU with threads 77; expected threads"):
    runner.train(more)
  # In another place it begins anew.
  assert _cpus(runner.train(run_config.with_values(more, run_name="anew"))) == [
    {**here, "threads": 77}
  ]
  runner.train(run_config.with_values(more, other_cpu="allowed"))
  assert _cpus(first) == [here, {**here, "threads": 77}]


def test_an_unknown_kind_is_said_to_be_unknown(config):
  path = runner.train(config).path / "manifest.json"
  manifest = json.loads(path.read_text())
  (here,) = manifest.pop("cpus")
  path.write_text(json.dumps(manifest))
  assert _cpus(runner.train(run_config.with_values(config, num_rounds=3))) == [{}, here]


_ON_ONE_CORE = """
import os, sys
cores = sorted(os.sched_getaffinity(0))[: int(sys.argv[1])]
os.sched_setaffinity(0, cores)
from tff_superquantile.engine import context
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run import runner
runner.train(run_config.from_flags(dict(x[2:].split("=", 1) for x in sys.argv[2:])))
import hashlib
import numpy as np
import tensorflow as tf
rng = np.random.default_rng(0)
x, w = (rng.normal(size=s).astype("f") for s in ((64, 28, 28, 8), (5, 5, 8, 16)))
w = tf.Variable(w)
with tf.GradientTape() as tape:
  loss = tf.reduce_sum(tf.square(tf.nn.conv2d(x, w, 1, "SAME")))
digest = hashlib.md5(tape.gradient(loss, w).numpy().tobytes()).hexdigest()
print("threads", context.num_threads(), digest)
"""


@pytest.mark.skipif(len(limits.cores()) < 2, reason="there is one core alone")
def test_a_run_keeps_its_number_of_threads_on_more_cores(config, lab):
  said = []
  for num_cores, num_rounds in ((1, 2), (2, 3)):
    flags = run_config.with_values(config, num_rounds=num_rounds).to_arguments()
    result = lab.fork("-c", _ON_ONE_CORE, str(num_cores), *flags).wait()
    assert result.code == 0, result.err
    said += re.findall("threads (.*)", result.out)
  # The bits of a convolution, too, which follow from the number of threads.
  assert said[0] == said[1] and said[0].startswith("1 ")
