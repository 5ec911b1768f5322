"""How commands begin, and how they end."""

import gc
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from tff_superquantile.experiments import cli
from tff_superquantile.experiments import failures


def test_the_garbage_collector_works_again_and_spares_what_was_imported(monkeypatch):
  monkeypatch.delitem(sys.modules, "tensorflow_federated", raising=False)
  frozen = gc.get_freeze_count()
  with cli.starting_tensorflow():
    assert not gc.isenabled()
    kept = [[i] for i in range(1000)]  # As modules would be.
  assert gc.isenabled()
  assert gc.get_freeze_count() >= frozen + len(kept)
  with pytest.raises(ImportError), cli.starting_tensorflow():
    raise ImportError
  assert gc.isenabled()


def test_the_projects_own_task_files_are_listed():
  # The sentences of a file that is not would come with a traceback, as a user's own errors do.
  files = subprocess.run(
    ["git", "ls-files", "tasks/*.py"], cwd=_ROOT, capture_output=True, text=True, check=False
  )
  if files.returncode:
    pytest.skip("not a checkout")
  names = {pathlib.Path(pathlib.Path(name).parts[1]).stem for name in files.stdout.split()}
  assert names == set(failures._OUR_TASKS)


# A task of a user's own, with a mistake for each seed.
_TASK = """
import numpy as np
import tensorflow as tf
from tasks import models, task
from tff_superquantile.simulation import client_files

def _open_clients(request):
  if request.seed == 1:
    raise ValueError("no rain in this file")  # Mistake 1.
  clients = [(f"c{i}", np.ones([4, 3], np.float32), np.ones(4, np.int32)) for i in range(30)]
  directory = f"{request.cache_dir}/weather"
  return [client_files.open_or_write_client_files(directory, lambda: clients)]

@tf.function
def _logits(weights, x):
  return x @ tf.ones([4, 2])  # Mistake 3.

def _build_model(seed):
  spec = tf.TensorSpec([None, 3], tf.float32), tf.TensorSpec([None], tf.int32)
  if seed == 2:
    return spec.weather  # Mistake 2.
  return models.build_classifier([np.zeros([3, 2], np.float32)], _logits, spec)

DEFAULTS = dict(num_rounds=3, clients_per_round=5, client_learning_rate=0.1, batch_size=0,
                local_epochs=1, l2=0.0, client_weighting="uniform", learning_rate_decay=1.0,
                rounds_per_decay=1, rounds_per_evaluation=5, max_loss=2.0)
TASKS = (task.Task("weather", _build_model, _open_clients, DEFAULTS),)
"""
_TASK_SCRIPT = """
import sys
import tasks
tasks.__path__.append(sys.argv.pop(1))
from tff_superquantile.experiments import cli, train
sys.exit(cli.run(train))
"""
# What the task does wrong for a seed.
_MISTAKES = {
  1: "in _open_clients, raised ValueError: no rain in this file;",
  2: "in _build_model, raised AttributeError: 'tuple' object has no attribute 'weather';",
  3: "in _logits, raised ValueError: ",  # TensorFlow's.
}


@pytest.fixture(scope="module")
def failed(lab):
  """{seed: how the command ended}."""
  (lab.folder / "weather.py").write_text(_TASK)
  flags = ("--task=weather", f"--cache_dir={lab.folder}", "--output_dir=failed")
  started = {
    seed: lab.fork("-c", _TASK_SCRIPT, str(lab.folder), *flags, f"--seed={seed}")
    for seed in _MISTAKES
  }
  return {seed: command.wait() for seed, command in started.items()}


@pytest.mark.parametrize("seed", _MISTAKES)
def test_an_error_in_a_users_task_says_where_it_is(failed, lab, seed):
  result = failed[seed]
  assert result.code == 1, result.err
  (line,) = result.errors()
  number = [f"# Mistake {seed}." in text for text in _TASK.splitlines()].index(True) + 1
  assert f"Found that {lab.folder / 'weather.py'}, line {number}, {_MISTAKES[seed]}" in line
  assert result.err.startswith("Traceback") and result.err.endswith(line + "\n")
  assert not list((lab.folder / "failed").rglob("lock"))


def test_a_flag_that_a_task_does_not_take_is_refused(failed, lab):
  del failed  # Its task is there.
  flags = ("--task=weather", f"--cache_dir={lab.folder}", "--min_examples_per_client=7")
  result = lab.fork("-c", _TASK_SCRIPT, str(lab.folder), *flags).wait()
  result.assert_refused("Found --min_examples_per_client=7 for weather, which")


_ROOT = pathlib.Path(__file__).resolve().parents[2]
_SCRIPT = """
import os, resource, signal, sys
from tff_superquantile import atomic_files
from tff_superquantile.experiments import cli

def define(parser):
  pass

def main(args):
  print("begun", flush=True)
  {}

sys.exit(cli.run(sys.modules[__name__]))
"""


def _end(folder, body, **kwargs):
  """How a command ends that does `body`."""
  kwargs = {"stdout": subprocess.PIPE, **kwargs}
  return subprocess.run(
    [sys.executable, "-c", _SCRIPT.format(body)],
    stderr=subprocess.PIPE,
    text=True,
    cwd=folder,
    env={**os.environ, "PYTHONPATH": str(_ROOT)},
    timeout=600,
    check=False,
    **kwargs,
  )


_FULL = "No space left on device"
_SAVING = "{{function_node __wrapped__SaveV2_device_/job:localhost/device:CPU:0}} "


@pytest.mark.parametrize(
  "body, file, reason, remedy",
  [
    # A file's size is limited, as by `ulimit -f`, and a disk is full.
    (
      "resource.setrlimit(resource.RLIMIT_FSIZE, (99, 99)); atomic_files.write('a', 'x' * 100)",
      *("a", "File too large", "ulimit -f"),
    ),
    (
      "with atomic_files.naming('b'), open('/dev/full', 'w') as f: f.write('x')",
      *("b", _FULL, "make room"),
    ),
    ("open('no where/c')", "no where/c", "No such file or directory", "mend that"),
    # As TensorFlow and TFF's worker say it.
    (
      f"raise RuntimeError('{_SAVING}/a b/part-0; {_FULL} [Op:SaveV2]')",
      *("/a b/part-0", _FULL, "make room"),
    ),
    (
      f"raise RuntimeError('Graph execution error:\\n\\nd/e; {_FULL}\\n\\t [[n]]')",
      *("d/e", _FULL, "make room"),
    ),
    (
      "raise RuntimeError('details = \"Failed to run computation: /f; No such file or directory')",
      *("/f", "No such file or directory", "mend that"),
    ),
  ],
)
def test_what_the_system_says_of_a_file_is_a_sentence(tmp_path, body, file, reason, remedy):
  ended = _end(tmp_path, body)
  assert ended.returncode == 1
  assert ended.stderr == (
    f"Error: Found that {file} cannot be read or written ({reason}); "
    + ended.stderr.partition("); ")[2]
  )
  assert remedy in ended.stderr and ended.stderr.endswith("it goes on where it was.\n")
  assert not list(tmp_path.iterdir())


def test_output_to_a_full_disk_is_a_sentence(tmp_path):
  with open("/dev/full", "w") as full:
    ended = _end(tmp_path, "pass", stdout=full)
  assert ended.returncode == 1
  assert ended.stderr.startswith(f"Error: Found that the output cannot be read or written ({_FULL}")
  assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("body", ["pass", "print('further')", "print(1, file=sys.stderr)"])
def test_a_reader_who_goes_ends_a_command_in_silence(tmp_path, body):
  reading, writing = os.pipe()
  os.close(reading)
  ended = _end(tmp_path, body, stdout=writing)
  os.close(writing)
  assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, "")


def test_another_broken_pipe_is_told(tmp_path):
  ended = _end(tmp_path, "r, w = os.pipe(); os.close(r); os.write(w, b'x')")
  assert ended.returncode == 1 and "Broken pipe" in ended.stderr


def test_other_errors_keep_their_traceback(tmp_path):
  ended = _end(tmp_path, "raise RuntimeError('a; b')")
  assert ended.returncode == 1 and "Traceback" in ended.stderr


@pytest.mark.parametrize(
  "signum, before, code",
  [
    (signal.SIGTERM, signal.SIG_DFL, 143),
    (signal.SIGHUP, signal.SIG_DFL, 129),
    (signal.SIGHUP, signal.SIG_IGN, 0),  # As by nohup.
  ],
)
def test_signals_end_a_command_in_order(tmp_path, signum, before, code):
  old = signal.signal(signum, before)
  try:
    ended = _end(tmp_path, f"try: os.kill(os.getpid(), {int(signum)})\n  finally: print('saved')")
  finally:
    signal.signal(signum, old)
  assert (ended.returncode, ended.stdout, ended.stderr) == (code, "begun\nsaved\n", "")


@pytest.mark.parametrize("closed", [(1,), (2,), (1, 2)])
def test_closed_streams_go_nowhere(tmp_path, closed):
  # What opens next gets no stream's number, and what is printed.
  body = "f = open('new', 'w'); os.system('echo echoed; echo echoed >&2'); sys.stderr.isatty()"
  script = tmp_path / "script.py"
  script.write_text("import sys\n" + _SCRIPT.format(body))
  shut = " ".join(f"{number}>&-" for number in closed)
  ended = subprocess.run(
    ["sh", "-c", f"exec {sys.executable} script.py {shut}"],
    capture_output=True,
    text=True,
    cwd=tmp_path,
    env={**os.environ, "PYTHONPATH": str(_ROOT)},
    timeout=600,
    check=False,
  )
  assert ended.returncode == 0, ended.stderr
  assert ended.stdout == ("" if 1 in closed else "begun\nechoed\n")
  assert ended.stderr == ("" if 2 in closed else "echoed\n")
  assert (tmp_path / "new").read_bytes() == b""
