"""The train command: what a run leaves, repeats, continues and refuses."""

import csv
import datetime
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys

from helpers import commands
from helpers import emnist_fixtures
import numpy as np
import pytest
import tensorflow as tf

from tff_superquantile import measures

_RUN = f"{commands.METHOD}/seed_0"
_QUANTITIES = ("loss", "error")
_PERCENTILES = (10, 20, 50, 60, 80, 90, 95)


def _tail_mean(values, weights, fraction):
  """Mean over the `fraction` of the weight with the largest values."""
  order = np.argsort(-values)
  share = weights[order] / np.sum(weights)
  before = np.cumsum(share) - share
  return np.sum(values[order] * np.clip(fraction - before, 0, share)) / fraction


def _clients(path):
  with open(path, newline="") as file:
    table = list(csv.DictReader(file))
  further = [] if "train" in path.name else list(measures.of_kind("misclassification")[2:])
  assert list(table[0]) == ["client_id", "num_examples", "loss", "error", *further]
  return table, {
    name: np.array([float(row[name]) for row in table]) for name in ("num_examples", *_QUANTITIES)
  }


def _weights(run):
  """The arrays of the latest checkpoint, by name, without bookkeeping."""
  # A process that is killed while it saves leaves a folder with another kind of name.
  names = [re.fullmatch(r"program_state_(\d+)", name) for name in os.listdir(run / "checkpoints")]
  latest = run / "checkpoints" / max(filter(None, names), key=lambda match: int(match[1]))[0]
  prefix = str(latest / "variables" / "variables")
  names = [name for name, _ in tf.train.list_variables(prefix) if "OBJECT_GRAPH" not in name]
  return latest.name, {name: tf.train.load_variable(prefix, name) for name in names}


def _assert_same_checkpoints(run, other):
  (name, arrays), (other_name, other_arrays) = _weights(run), _weights(other)
  assert name == other_name and arrays.keys() == other_arrays.keys() and len(arrays) > 1
  for key, array in arrays.items():
    np.testing.assert_array_equal(array, other_arrays[key])


# What a run leaves.


def test_run_says_where_it_is_and_shows_progress_and_nothing_else(base):
  assert base.result.out == f"Finished: base/{_RUN}\n"
  lines = [line for line in re.split(r"[\r\n]+", base.result.err) if line.strip()]
  assert lines and re.search(r"30/30 .*test error=\d", lines[-1])
  other = [
    line for line in lines if not line.startswith("synthetic superquantile_theta_0.5 seed_0")
  ]
  assert not other


def test_run_leaves_its_files_in_one_folder(base):
  assert {path.name for path in base.path.iterdir()} >= {
    *("flags.txt", "manifest.json", "rounds.csv", "metrics.json", "checkpoints", "tensorboard"),
    "clients",
    *("train_clients.csv", "validation_clients.csv", "test_clients.csv"),
  }
  left = [name for name in commands.contents(base.path) if "temp" in name or "tmp" in name]
  assert not left
  assert (base.path / "checkpoints" / "program_state_30").is_dir()
  assert {path.name for path in (base.lab.folder / "base" / "synthetic").iterdir()} == {
    "superquantile_theta_0.5"
  }


def test_flags_are_resolved(base):
  lines = (base.path / "flags.txt").read_text().splitlines()
  assert all(re.fullmatch(r"--\w+=.*", line) for line in lines)
  flags = dict(line[2:].split("=", 1) for line in lines)
  given = dict(flag[2:].split("=", 1) for flag in base.flags)
  assert {name: flags[name] for name in given} == given
  # The task's own, where nothing was given.
  assert flags["client_learning_rate"] == "0.1" and flags["client_weighting"] == "uniform"
  assert "None" not in flags.values()


def test_manifest_says_what_it_was_made_with_but_not_where(base):
  text = (base.path / "manifest.json").read_text()
  manifest = json.loads(text)
  assert manifest["seed"] == 0
  assert manifest["python"] == ".".join(map(str, sys.version_info[:3]))
  assert manifest["versions"]["tensorflow"] == tf.__version__
  assert manifest["versions"].keys() >= {"tensorflow-federated", "numpy"}
  assert f"{len(os.sched_getaffinity(0))} cores" in manifest["machine"]
  assert manifest["started"] <= manifest["finished"]
  # Half of the rounds take as long as the one in the middle, or longer; times are whole seconds.
  started, finished = map(
    datetime.datetime.fromisoformat, (manifest["started"], manifest["finished"])
  )
  assert 0 < manifest["seconds_per_round"] * 15 <= (finished - started).total_seconds() + 1
  assert socket.gethostname() not in re.split(r"[^\w.-]+", text)
  git = ["git", "-C", os.path.dirname(__file__), "rev-parse", "HEAD"]
  head = subprocess.run(git, capture_output=True, text=True).stdout.strip()
  assert head[:40] in manifest["git_revision"]


def test_rounds_are_a_table_with_one_row_a_round(base):
  rows = commands.rows(base.path)
  assert [int(row["round"]) for row in rows] == list(range(31))
  assert [int(row["round"]) for row in rows if row["test_error_mean"]] == [0, 10, 20, 30]
  for row in rows[1:]:
    assert row["cohort_size"] == "8" and row["num_excluded"] == "0"
    assert 4 <= int(row["tail_size"]) <= 8
    assert float(row["cohort_loss_superquantile"]) >= float(row["cohort_loss_mean"]) > 0
    assert float(row["threshold"]) > 0 and float(row["train_loss"]) > 0
  # From a model that guesses one of ten classes to one that has learned something.
  assert float(rows[0]["test_error_mean"]) > 0.85 and float(rows[0]["test_loss_mean"]) > 2.3
  assert float(rows[-1]["test_error_mean"]) < 0.5


def test_events_hold_the_columns_of_the_table(base):
  (path,) = (base.path / "tensorboard").iterdir()
  steps = {}
  for event in tf.compat.v1.train.summary_iterator(str(path)):
    for value in event.summary.value:
      steps.setdefault(value.tag, []).append(event.step)
  assert steps["test_error_mean"] == [0, 10, 20, 30]
  assert steps["train_loss"] == steps["threshold"] == list(range(1, 31))


def _assert_metrics_are_those_of_the_clients(run, split, count, weighted):
  metrics = json.loads((run / "metrics.json").read_text())[split]
  table, columns = _clients(run / f"{split}_clients.csv")
  assert len({row["client_id"] for row in table}) == len(table) == count
  assert np.all((0 <= columns["error"]) & (columns["error"] <= 1))
  # Fractions of that many examples.
  wrong = columns["error"] * columns["num_examples"]
  np.testing.assert_allclose(wrong, np.round(wrong), atol=1e-6)
  weights = columns["num_examples"] if weighted else np.ones(count)
  for quantity in _QUANTITIES:
    values = columns[quantity]
    mean = np.average(values, weights=weights)
    expected = {
      "mean": mean,
      "std": np.sqrt(np.average((values - mean) ** 2, weights=weights)),
      "superquantile_90": _tail_mean(values, weights, 0.1),
      "superquantile_95": _tail_mean(values, weights, 0.05),
      "best_10": -_tail_mean(-values, weights, 0.1),
    }
    if np.ptp(weights) == 0:
      expected.update((f"p{q}", np.percentile(values, q)) for q in _PERCENTILES)
    found = metrics[quantity]
    assert found.keys() == {*expected, *(f"p{q}" for q in _PERCENTILES)}
    np.testing.assert_allclose([found[name] for name in expected], list(expected.values()))


@pytest.mark.parametrize("split, count", [("test", 15), ("train", 30), ("validation", 500)])
def test_metrics_are_those_of_the_clients(base, split, count):
  _assert_metrics_are_those_of_the_clients(base.path, split, count, weighted=split == "train")


_WITHOUT_ROOM = """
import resource
from tff_superquantile.experiments import cli, train
resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000))
raise SystemExit(cli.run(train))
"""


# Further runs.


@pytest.fixture(scope="module")
def copy(lab, base):
  """Copies the ordinary run to an output directory, and returns its folder."""
  return lambda output_dir: shutil.copytree(base.path, lab.folder / output_dir / _RUN)


# What a run leaves that is killed while it writes.
_LEFT = (
  *(".privacy.json.0123abcd.tmp", "checkpoints/.noise_key.89abcdef.tmp"),
  "clients/.round_0000040.parquet.0123abcd.tmp",
  "checkpoints/program_state_31_temp1234/saved_model.pb",
)


@pytest.fixture(scope="module")
def interrupted_run(lab, base):
  """One run, ended by each signal in turn and then left in peace."""
  flags = ("--output_dir=interrupted", "--seconds_per_checkpoint=0", *base.flags)
  run = lab.folder / "interrupted" / _RUN
  ends = {}
  for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
    before = commands.num_rows(run)
    command = lab.held("train", *flags, rows=4)
    command.wait_until_held()
    assert commands.num_rows(run) > before + 3
    versions = [path.name for path in (run / "checkpoints").iterdir()]
    result = command.end_by(signum)
    ends[signum] = (result, command.left_behind(), versions, commands.num_rows(run))
  for left in _LEFT:
    (run / left).parent.mkdir(exist_ok=True)
    (run / left).touch()
  # As if it had been killed while it wrote the first digit of the next row, or the power was lost.
  with open(run / "rounds.csv", "a") as file:
    file.write(commands.rows(run)[-1]["round"][:1])
  return run, ends, lab.train(*flags)


def _write_leaf(folder):
  """EMNIST by writer as LEAF writes it, with writers of different sizes."""
  train, test = (
    emnist_fixtures.make_writers(counts, prefix=prefix)
    for counts, prefix in (((100, 150, 260, 110, 190), "f"), ((100, 130, 170), "t"))
  )
  emnist_fixtures.write_leaf(folder, train, test)


@pytest.mark.parametrize("signum, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_interrupted_run_saves_and_leaves_nobody(interrupted_run, signum, code):
  _, ends, _ = interrupted_run
  result, left_behind, _, _ = ends[signum]
  assert result.code == code and "Traceback" not in result.err
  assert not left_behind
  if signum == signal.SIGINT:
    (line,) = result.errors()
    assert "same command continues" in line


def test_killed_run_leaves_checkpoints_and_nobody(interrupted_run):
  _, ends, _ = interrupted_run
  result, left_behind, versions, num_rows = ends[signal.SIGKILL]
  assert result.code == -signal.SIGKILL and num_rows < 31
  assert not left_behind
  assert any(re.fullmatch(r"program_state_\d+", name) for name in versions)


def test_interrupted_run_ends_where_an_uninterrupted_one_does(interrupted_run, base):
  run, _, last = interrupted_run
  assert (last.code, last.out) == (0, f"Finished: interrupted/{_RUN}\n"), last.err
  assert not [name for name in _LEFT if (run / name).parent != run and (run / name).exists()]
  assert not [path for path in run.rglob("*") if re.search(r"\.tmp$|_temp\d+$", path.name)]
  commands.assert_same_results(run, base.path)
  _assert_same_checkpoints(run, base.path)


def test_a_full_disk_is_a_failure_with_a_sentence_and_harms_nothing(base, lab):
  flags = [
    *lab.small(base.flags),
    *("--output_dir=full", "--seconds_per_checkpoint=0"),
  ]
  full = lab.fork("-c", _WITHOUT_ROOM, *flags).wait()
  last = lab.train(*flags)
  full.assert_fails_with_a_sentence(1, "checkpoints/", "File too large", "same command again")
  assert (last.code, last.out) == (0, f"Finished: full/{_RUN}\n"), last.err
  run = lab.folder / "full" / _RUN
  commands.assert_same_results(run, base.path)
  _assert_same_checkpoints(run, base.path)


def test_flagfile_repeats_a_run_and_more_rounds_continue_it(base, lab):
  shutil.copy(base.path / "flags.txt", lab.folder / "repeat_these.txt")
  flags = ("--flagfile=repeat_these.txt", "--output_dir=repeated")
  results = [lab.bare("train", *flags, *more) for more in (("--num_rounds=20",), ())]
  for result in results:
    assert (result.code, result.out) == (0, f"Finished: repeated/{_RUN}\n"), result.err
  assert re.search(r"20/30 .*30/30", re.sub(r"\s+", " ", results[1].err))
  run = lab.folder / "repeated" / _RUN
  commands.assert_same_results(run, base.path)
  _assert_same_checkpoints(run, base.path)
  assert "--num_rounds=30" in (run / "flags.txt").read_text().splitlines()


def test_fewer_rounds_are_refused_and_harm_nothing(base, lab, copy):
  run = copy("shorter")
  before = commands.contents(run)
  result = lab.train("--output_dir=shorter", *base.flags, "--num_rounds=10")
  result.assert_refused("30", "10")
  assert commands.contents(run) == before


def test_emnist_run_weights_training_clients_by_their_examples(lab):
  _write_leaf(lab.folder / "leaf")
  result = lab.bare(
    "train",
    *("--task=emnist_linear", "--algorithm=fed_avg", "--num_rounds=2", "--clients_per_round=3"),
    *("--data_dir=leaf", f"--cache_dir={lab.cache_dir}", "--output_dir=emnist"),
    "--run_name=mine",
  )
  assert result.code == 0, result.err
  run = lab.folder / "emnist" / "emnist_linear" / "mine" / "seed_0"
  assert result.out == "Finished: emnist/emnist_linear/mine/seed_0\n"
  _assert_metrics_are_those_of_the_clients(run, "train", 5, weighted=True)
  _assert_metrics_are_those_of_the_clients(run, "test", 3, weighted=False)
  sizes = _clients(run / "train_clients.csv")[1]["num_examples"]
  assert sorted(sizes) == [100, 110, 150, 190, 260]


def test_divergence_is_a_failure_with_a_sentence(lab):
  """Good rounds, then a step that no float32 can hold."""
  result = lab.train(
    *("--output_dir=diverged", "--num_rounds=9"),
    *("--client_learning_rate=100", "--learning_rate_decay=1e38", "--rounds_per_decay=4"),
  )
  result.assert_fails_with_a_sentence(1, "diverged", "--client_learning_rate", "round 5")
  run = lab.folder / "diverged" / _RUN
  assert not (run / "metrics.json").exists()
  name, arrays = _weights(run)
  assert name == "program_state_4"
  assert all(np.all(np.isfinite(array)) for array in arrays.values())
  assert [int(row["round"]) for row in commands.rows(run)] == [0, 1, 2, 3, 4]


# What ends before it computes anything.

_COPIES = ("finished", "flags", "named", "occupied")
# Arguments besides those of the ordinary run, and what the sentence holds.
_REFUSED = {
  "--clients_per_round=31": ("31", "30 training clients"),
  "--num_train_clients=3000": ("3000", "2500"),
  "--task=emnist_liner": ("--task=emnist_liner", "did you mean 'emnist_linear'"),
  "--output_dir=a_file": ("a_file", "--output_dir"),
  "--task=emnist_linear --data_dir=nowhere": ("nowhere", "--data_dir"),
  "--task=emnist_linear --data_dir=empty": ("empty", "train"),
  "--output_dir=flags --client_learning_rate=0.2": (
    *("--client_learning_rate=0.1", "0.2", "--run_name"),
  ),
  "--output_dir=named --run_name=superquantile_theta_0.5 --theta=0.25": ("--theta=0.5", "0.25"),
  "--run_name=../elsewhere": ("--run_name='../elsewhere'", "the name of one folder"),
  "--run_name=red\x1b[31m": (r"--run_name='red\x1b[31m'",),
  "--data_dir=empty": ("--data_dir=empty with --task=synthetic", "shakespeare, own"),
  "--min_examples_per_client=9": ("--min_examples_per_client=9", "has no use for it"),
  "--data=standin": ("--data=standin for synthetic",),
  "--task=emnist_linear --data=standin --data_dir=few": ("for emnist_linear with --data=standin",),
  "--task=emnist_linear --data_dir=few --min_examples_per_client=150": (
    "3 training clients, without the 2 of 5 clients that have fewer than 150 examples",
    "but 30 were asked for",
  ),
  "--task=emnist_linear --data_dir=few --num_train_clients=0 --num_test_clients=0": (
    "--clients_per_round=8 with 5 training clients; expected at most 5",
  ),
  "--output_dir=occupied --num_rounds=40": ("another process", f"occupied/{_RUN}"),
}
# Whatever is wrong with the flags themselves is seen before TensorFlow starts.
_REFUSED_AT_ONCE = {
  "synthetic": ("'synthetic'", "--name=value"),
  "--algorithm=fedavg": ("algorithm", "fed_avg"),
  "--algorithm=fed_avg --theta=0.5": ("--theta=0.5 with --algorithm=fed_avg", "=fed_avg_sub, "),
  "--warm_start=x": ("--warm_start=x", "the nearest of them --initial_weights"),
  "--num_rounds=0": ("num_rounds",),
  "--seed=100000000000000000000": ("seed", "expected at most 9223372036854775807: ", "63 bits"),
  "--output_dir=": ("output_dir", "Found no folder", "name it"),
  "--no_such_flag=1": ("no_such_flag",),
  "--flagfile=no_such_file": ("no_such_file",),
}


@pytest.fixture(scope="module")
def quick_ends(lab, base, copy):
  """{arguments: result}, and what the copies of the ordinary run held before."""
  (lab.folder / "a_file").touch()
  (lab.folder / "empty").mkdir()
  _write_leaf(lab.folder / "few")
  runs = {name: copy(name) for name in _COPIES}
  before = {name: commands.contents(run) for name, run in runs.items()}
  arguments = ("--output_dir=finished", *_REFUSED)
  with open(runs["occupied"] / "lock", "a") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    results = [lab.train("--output_dir=refused", *base.flags, *one.split()) for one in arguments]
  return dict(zip(arguments, results)), before


def test_finished_run_is_not_run_again(quick_ends):
  result = quick_ends[0]["--output_dir=finished"]
  assert result == commands.Result(0, f"Finished before: finished/{_RUN}\n", "")


@pytest.mark.parametrize("arguments", _REFUSED)
def test_bad_input_is_refused(quick_ends, arguments):
  quick_ends[0][arguments].assert_refused(*_REFUSED[arguments])


@pytest.mark.parametrize("name", _COPIES)
def test_what_is_not_run_is_left_as_it_is(quick_ends, lab, name):
  _, before = quick_ends
  assert commands.contents(lab.folder / name / _RUN) == before[name]


@pytest.mark.parametrize("arguments", _REFUSED_AT_ONCE)
def test_bad_flags_are_refused(lab, arguments):
  lab.train(*arguments.split()).assert_refused(*_REFUSED_AT_ONCE[arguments])


def test_modules_of_the_commands_start_no_tensorflow(lab):
  script = (
    "import sys; from tff_superquantile.experiments import train, sweep;"
    "print(sorted({'tensorflow', 'tensorflow_federated', 'jax'} & sys.modules.keys()))"
  )
  assert lab.python("-c", script).wait() == commands.Result(0, "[]\n", "")
