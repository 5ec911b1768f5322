"""The benchmark: equal work for all, processes that end, errors in one sentence."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from benchmarks import child
from benchmarks import lineup
from benchmarks import make_workload
from benchmarks import race
from benchmarks import report
from benchmarks import results
from benchmarks import workloads

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_SECONDS = 120  # Of patience, not of duration.

# A contender that adds a constant in every round; what else it does is filled in.
_FAKE = """
import os, subprocess, sys, time
import numpy as np
from benchmarks import contender

class Fake(contender.Contender):
  def __init__(self, workload, options):
    self._weights = [np.array(w) for w in workload.initial_weights]
    self._step = options.get("step", 1.0)
    print("a library says hello")  # No answer to the driver.
    {start}

  def run_round(self, round_num):
    {run}
    self._weights = [w + self._step for w in self._weights]

  def weights(self):
    return self._weights

contender.serve(Fake)
"""


def make_workload_by_hand(cohort=(1, 0, 1), num_rounds=2):
  """Two clients of 3 and 2 examples; the second one is twice in each cohort."""
  rng = np.random.default_rng(0)
  counts = np.array([3, 2])
  cohorts = np.array([cohort] * num_rounds, np.int32)
  orders = [rng.permutation(counts[client]) for client in cohorts.ravel()]
  return workloads.Workload(
    x=np.arange(10, dtype=np.uint8).reshape(5, 2),
    y=np.arange(5, dtype=np.int32),
    offsets=np.array([0, 3, 5]),
    cohorts=cohorts,
    seeds=np.zeros((*cohorts.shape, 2), np.int64),
    orders=np.concatenate(orders).astype(np.int32),
    order_offsets=np.cumsum([0] + [len(order) for order in orders]),
    initial_weights=[np.zeros((2, 3), np.float32), np.zeros(3, np.float32)],
    settings=dict(client_weighting="num_examples", batch_size=2, x_scale=0.5, model="linear"),
  )


@pytest.fixture
def workload_dir(tmp_path):
  directory = tmp_path / "workload"
  directory.mkdir()
  workloads.write(str(directory), make_workload_by_hand())
  return str(directory)


@pytest.fixture
def fake(tmp_path, monkeypatch):
  """Returns a function that makes an entry from what it does at its start and in a round."""
  monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)

  def make(name, *, start="pass", run="pass", work=lineup.FED_AVG, **options):
    (tmp_path / "fakes").mkdir(exist_ok=True)
    text = _FAKE.format(start=start, run=run)
    (tmp_path / "fakes" / f"{name}.py").write_text(text, encoding="utf-8")
    return lineup.Entry(name, name, f"fakes.{name}", options, work=work)

  return make


def run_race(entries, workload_dir, tmp_path, num_rounds=2):
  output_dir = tmp_path / "output"
  output_dir.mkdir()
  return race.run(
    entries,
    python_of=lambda entry: sys.executable,
    workload_dir=workload_dir,
    output_dir=str(output_dir),
    num_rounds=num_rounds,
    title="fakes",
  )


def judge(records):
  initial = make_workload_by_hand().initial_weights
  return results.judge(records, initial_weights=initial, model="linear", warm_up=1)


def as_table(rows):
  return results.Table("synthetic", "linear", "by hand", 3, 1, rows)


def wait_until(condition):
  end = time.monotonic() + _SECONDS
  while not condition():
    assert time.monotonic() < end
    time.sleep(0.05)


def test_workload_is_read_as_it_was_written(workload_dir):
  made, workload = make_workload_by_hand(), workloads.read(workload_dir)
  np.testing.assert_array_equal(workload.client(1)[0], [[3.0, 3.5], [4.0, 4.5]])
  np.testing.assert_array_equal(workload.num_examples(0), [2, 3, 2])
  np.testing.assert_array_equal(workload.client_weights(1), [2.0, 3.0, 2.0])
  for round_num in range(2):
    for place in range(3):
      order = workload.order(round_num, place)
      np.testing.assert_array_equal(order, made.order(round_num, place))
      assert sorted(order) == list(range(workload.num_examples(round_num)[place]))
  assert [w.shape for w in workload.initial_weights] == [(2, 3), (3,)]


def test_orders_are_those_of_client_files(tmp_path):
  from tff_superquantile.simulation import client_files

  rng = np.random.default_rng(0)
  clients = [(str(i), rng.random((7 + i, 2), np.float32), np.arange(7 + i)) for i in range(3)]
  files = client_files.write_client_files(
    tmp_path / "clients", [(i, x, y.astype(np.int32)) for i, x, y in clients]
  )
  cohorts = np.array([[2, 0, 1, 2]], np.int32)
  seeds, orders = make_workload._draw_orders(cohorts, files.client_ids, files.num_examples, True)
  read = client_files.build_examples_fn(files, shuffle=True)
  for client, seed, order in zip(cohorts[0], seeds[0], orders):
    _, y = read(files.handle(files.client_ids[client], seed))
    np.testing.assert_array_equal(y, order)  # Their labels number them.
  assert list(orders[0]) != list(orders[3])  # The same client in another place.


def test_cohorts_repeat_clients_only_when_there_are_too_few():
  def draw(num_clients, clients_per_round):
    options = make_workload.Options("", "synthetic", clients_per_round, 4, "", "", "")
    return make_workload._draw_cohorts(num_clients, options)

  assert all(len(set(cohort)) == 6 for cohort in draw(8, 6))
  for cohort in draw(4, 10):
    assert sorted(np.bincount(cohort)) == [2, 2, 3, 3]


def test_equal_work_counts_and_other_work_is_void(workload_dir, fake, tmp_path):
  drift = fake("drift", run="self._step = 1.0 + 0.01 * round_num")
  apart = fake("apart", step=5.0, work="tree_64")
  entries = [fake("same"), fake("other", step=1.01), apart, drift]
  rows = judge(run_race(entries, workload_dir, tmp_path))
  # A linear model may not drift apart after its first round, either.
  assert [row.is_void for row in rows] == [False, True, False, True]
  assert rows[0].is_reference and not rows[2].is_reference
  assert rows[1].first_distance == pytest.approx(0.01) and rows[3].first_distance == 0.0
  table = report.format_table(as_table(rows))
  assert "VOID: other did other work" in table
  assert max(map(len, table.split("\n"))) <= 140
  (line,) = (line for line in table.split("\n") if line.startswith("same "))
  rate = as_table(rows).clients_per_round / rows[0].median
  assert re.search(rf"\) +{rate:.0f} ", line)


@pytest.mark.parametrize(
  "start, run, sentence",
  [
    ("raise ValueError('two\\nlines')", "pass", "ValueError: two lines"),
    ("pass", "raise ValueError('in a round')", "ValueError: in a round"),
    ("pass", "sys.stderr.write('last\\n'); sys.stderr.flush(); os._exit(3)", "exit code 3"),
    ("pass", "os.kill(os.getpid(), 9)", "SIGKILL"),
    ("sys.exit('no start')", "pass", "its last words were 'no start'"),
  ],
)
def test_error_is_one_sentence_and_others_go_on(workload_dir, fake, tmp_path, start, run, sentence):
  records = run_race([fake("broken", start=start, run=run), fake("whole")], workload_dir, tmp_path)
  assert sentence in records[0].error
  assert "\n" not in records[0].error
  assert records[1].error is None and len(records[1].seconds) == 2
  table = report.format_table(as_table(judge(records)))
  assert "FAILED: broken: " in table


# Time that passes by words alone: `wait` is all that takes any.
_CLOCK = """import types
    clock = types.SimpleNamespace(now=0.0)
    def wait(seconds):
      clock.now += seconds
    time.perf_counter = lambda: clock.now
    self.wait = wait
    wait(3.0)
    self.prepare = lambda round_num: wait(20.0)
    self.weights = lambda: wait(100.0) or self._weights"""


def test_only_the_round_is_timed(workload_dir, fake, tmp_path):
  entry = fake("slow", start=_CLOCK, run="self.wait(0.5 + round_num)")
  (record,) = run_race([entry], workload_dir, tmp_path)
  assert record.seconds == [0.5, 1.5]
  assert record.start_seconds > 0  # By the driver's clock.
  assert record.own_peak > 1e6 and record.children_peak == 0


def test_memory_of_children_is_apart(workload_dir, fake, tmp_path):
  # The child is there, with its memory, when it has said so.
  child = "print(flush=True); import time; time.sleep(3600)"
  start = f"subprocess.Popen([sys.executable, '-c', {child!r}], stdout=-1).stdout.readline()"
  (record,) = run_race([fake("parent", start=start)], workload_dir, tmp_path)
  assert record.children_peak > 1e6
  assert record.resident[-1] > record.children_peak


def test_silence_is_an_error(workload_dir, fake, tmp_path):
  with pytest.raises(race.ContenderError, match="did not answer for 1 seconds"):
    race.ContenderProcess(
      fake("silent", start="time.sleep(3600)"),
      python=sys.executable,
      workload_dir=workload_dir,
      output_dir=str(tmp_path),
      patience=1,
    )


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT])
def test_no_process_outlives_the_driver(workload_dir, fake, tmp_path, signum):
  entry = fake("endless", run="open('begun', 'w').close(); time.sleep(3600)")
  driver = textwrap.dedent(f"""
    import signal, sys
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from benchmarks import lineup, race
    race.run(
      [lineup.{entry!r}], python_of=lambda entry: sys.executable, workload_dir={workload_dir!r},
      output_dir={str(tmp_path)!r}, num_rounds=1, title="",
    )
  """)
  process = subprocess.Popen([sys.executable, "-c", driver], cwd=_ROOT, stderr=subprocess.DEVNULL)
  wait_until((tmp_path / "endless" / "begun").exists)
  ((pid, start),) = child.descendants(process.pid)
  process.send_signal(signum)
  process.wait(_SECONDS)
  wait_until(lambda: not child.is_running(pid, start))


def test_distance_is_relative_to_the_way_that_was_gone():
  initial, reference = [np.ones(4)], [np.full(4, 3.0)]
  assert results.distance([np.full(4, 3.5)], reference, initial) == pytest.approx(0.25)
  assert results.distance([np.full(4, np.nan)], reference, initial) == float("inf")
  assert results.distance([np.ones((2, 2))], reference, initial) == float("inf")
  assert results.distance(initial, initial, initial) == 0.0


def as_row(name, seconds, **changes):
  entry = lineup.find(name, 0.5)
  seconds = [9.0, *seconds]
  record = race.Record(entry, seconds=seconds, resident=[100] * len(seconds))
  return results.Row(record, np.array(seconds[1:]), **changes)


def test_ratios_are_of_the_same_round_and_the_peer_is_the_fastest_that_counts():
  rows = [
    as_row(lineup.BEST_STOCK, [2.0, 4.0, 6.0]),
    as_row("superquantile", [1.0, 2.0, 1.5]),
    as_row("fed_avg", [2.0, 2.0, 2.0]),
    as_row("pfl_research", [3.0, 3.0, 3.0]),
    as_row("fedjax", [1.0, 1.0, 1.0], is_void=True),
  ]
  assert results.ratio(rows[1], rows[0]) == 0.5
  table = results.Table("emnist_linear", "linear", "by hand", 100, 1, rows)
  assert table.fastest_peer() is rows[3]
  lines = report.format_targets([table])
  assert "at most 0.143  found 0.500  NOT reached" in lines
  assert "at most 0.500  found 0.500  reached" in lines
  assert "at most 0.650  found 0.667  NOT reached" in lines
  assert "at most 2.000            not measured" in lines


def test_lineup_knows_engines_and_guesses_what_was_meant():
  assert lineup.find("tree_64@native", 0.3).options == dict(
    method="tree_64", engine="native", theta=0.3
  )
  assert lineup.find("tree_64", 0.3).work == lineup.find("tree_64@native", 0.3).work
  assert {"fed_avg@kept", "superquantile@kept"} <= {e.name for e in lineup.choose([], False, 0.5)}
  with pytest.raises(ValueError, match="did you mean 'superquantile'"):
    lineup.find("superquantle", 0.5)
  assert [entry.name for entry in lineup.choose([], True, 0.5)][-2:] == list(lineup.PEERS)


def run_command(*flags):
  return subprocess.run(
    [sys.executable, str(_ROOT / "benchmarks" / "round_time.py"), *flags],
    capture_output=True,
    text=True,
    timeout=600,
    check=False,
  )


@pytest.mark.slow  # The race of fakes, above, is as long as it has to be.
def test_command_end_to_end(tmp_path):
  result = run_command(
    "--tasks=synthetic",
    "--clients_per_round=10",
    "--contenders=fed_avg,fed_avg@kept,floor",
    "--timed_rounds=1",
    "--warm_up=1",
    f"--json={tmp_path / 'numbers.json'}",
  )
  assert result.returncode == 0, result.stderr
  assert "synthetic, 10 clients a round" in result.stdout
  (table,) = json.loads((tmp_path / "numbers.json").read_text())
  assert [len(row["seconds"]) for row in table["rows"]] == [2, 2, 2]
  assert all(row["first_distance"] < 1e-5 for row in table["rows"][1:])


@pytest.mark.parametrize(
  "flag, sentence",
  [
    ("--tasks=syntetic", "Found no task 'syntetic'"),
    ("--contenders=fedavg", "Found no contender 'fedavg'"),
  ],
)
def test_mistakes_are_told_in_one_sentence(flag, sentence):
  result = run_command(flag)
  assert result.returncode == 2
  assert sentence in result.stderr
  assert "Traceback" not in result.stderr
