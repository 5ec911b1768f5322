"""Times a run beside its rounds: its start, its evaluations, and its neighbours in a sweep.

    python benchmarks/run_costs.py [--measure=start,length] [--data_dir=emnist_all.sqlite]

Each figure stands beside what it is compared with, measured in turns with it, in seconds on the
clock or, with --cpu, of all cores, which say more on a machine that does other work:

    start       importing this library beside importing TFF; a whole run of six rounds with 30
                clients, and as the second run of its process
    table       a sweep of a table of 2,000 rows with --quick, its report, and one of 180 rows in
                six folds
    evaluation  the loss and error of every client beside one batched forward pass over the same
                examples, without and with the model's loss
    length      whole runs of more and more rounds, and private ones, beside a run of one round
    sweep       four runs by the sweep, as many at once as there are cores, beside one run alone
"""

import argparse
from collections.abc import Callable, Mapping
import functools
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

_ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(_ROOT))  # The benchmarks are not installed with the project.

from privacy.settings import command_line  # noqa: E402
from tff_superquantile.engine.processes import limits  # noqa: E402
from tff_superquantile.experiments import cli  # noqa: E402
from tff_superquantile.experiments.config import flags as train_flags  # noqa: E402

_ARGS = argparse.Namespace()  # Filled by `main`.


def define(parser: command_line.Parser) -> None:
  add = functools.partial(command_line.add_flag, parser)
  train_flags.add(parser, ["data_dir", "cache_dir"])
  add(
    "measure",
    str,
    list(_MEASURES),
    f"What to measure, of {', '.join(_MEASURES)}.",
    are_several=True,
  )
  add(
    "tasks",
    str,
    ["synthetic"],
    "Tasks whose evaluation is measured; those of EMNIST need --data_dir.",
    are_several=True,
  )
  add("cpu", bool, False, "Measures CPU seconds, those of child processes included.")
  add("repeats", int, 5, "How often each is measured.", least=1)
  add(
    "lengths",
    int,
    [1000, 2000, 4000],
    "Rounds of the runs in `length`, on the synthetic task.",
    are_several=True,
    least=1,
  )
  add("sweep_rounds", int, 600, "Rounds of the runs in `sweep`, on the synthetic task.", least=1)


_SMALL = ("--num_train_clients=30", "--num_test_clients=15", "--clients_per_round=8")
_SMALL_RUN = (*_SMALL, "--num_rounds=6", "--rounds_per_evaluation=3", "--theta=0.5")
_SECOND_RUN = """
import sys, time
from tff_superquantile.experiments import cli, train
for run in range(2):
  start = time.process_time()
  assert cli.run(train, [*sys.argv[2:], f"--output_dir={sys.argv[1]}/{run}"]) == 0
print("took", time.process_time() - start)
"""


def _python(*arguments: str) -> str:
  """Runs Python, which must succeed, and returns its output."""
  path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
  completed = subprocess.run(
    [sys.executable, *arguments],
    env={**os.environ, "PYTHONPATH": path},
    capture_output=True,
    text=True,
  )
  if completed.returncode:
    lines = completed.stderr.strip().split("\n")
    raise ValueError(f"Found that {' '.join(arguments[:2])} failed: {lines[-1]}")
  return completed.stdout


def _train(temporary: str, *arguments: str) -> None:
  """Trains on the synthetic task, into a folder of its own."""
  _python(
    "-m",
    "tff_superquantile.experiments.train",
    "--task=synthetic",
    f"--output_dir={_new_folder(temporary)}",
    *arguments,
  )


def _new_folder(temporary: str) -> str:
  return os.path.join(temporary, str(time.monotonic_ns()))


def _in_turns(actions: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, np.ndarray]:
  """Returns the seconds of each action, measured in turns; an action may return its own."""
  seconds: dict[str, list[float]] = {name: [] for name in actions}
  for _ in range(repeats):
    for name, action in actions.items():
      start = _clock()
      own = action()
      seconds[name].append(own if isinstance(own, float) else _clock() - start)
  return {name: np.array(values) for name, values in seconds.items()}


def _clock() -> float:
  if not _ARGS.cpu:
    return time.perf_counter()
  used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
  return sum(each.ru_utime + each.ru_stime for each in used)


def _print_table(title: str, seconds: dict[str, np.ndarray], reference: str) -> None:
  print(f"\n{title}")
  width = max(map(len, seconds))
  for name, values in seconds.items():
    ratio = np.median(values / seconds[reference])
    spread = f"({values.min():.3f} to {values.max():.3f})"
    print(
      f"  {name:{width}}  {np.median(values):8.3f} s  {spread:20}  {ratio:5.2f} times", flush=True
    )


def _measure_start(temporary: str) -> None:
  def run():
    _train(temporary, *_SMALL_RUN)

  def second_run():
    arguments = (_new_folder(temporary), "--task=synthetic", *_SMALL_RUN)
    return float(_python("-c", _SECOND_RUN, *arguments).rpartition("took")[2])

  actions = {
    "import tensorflow_federated": lambda: _python("-c", "import tensorflow_federated"),
    "and tff_superquantile": lambda: _python("-c", "from tff_superquantile import algorithms"),
    "a run of six rounds": run,
    "as the second, CPU": second_run,
  }
  run()  # Writes the clients' files, which later runs find.
  reference = next(iter(actions))
  _print_table("Start", _in_turns(actions, _ARGS.repeats), reference)


def _write_table(path: str, num_rows: int, num_clients: int) -> str:
  """Writes a table of eight inputs, of which one is a word, and returns its path."""
  rng = np.random.default_rng(0)
  clients, x = rng.integers(num_clients, size=num_rows), rng.normal(size=(num_rows, 7))
  label = x.sum(axis=1) + rng.normal(size=num_clients)[clients] > 0
  with open(path, "w", encoding="utf-8") as file:
    file.write("client,a,b,c,d,e,f,g,ward,label\n")
    for client, row, ward, is_true in zip(clients, x, rng.choice([*"xyz"], num_rows), label):
      file.write(f"c{client},{','.join(f'{value:.4f}' for value in row)},{ward},{is_true}\n")
  return path


def _measure_table(temporary: str) -> None:
  columns = ("--experiment=own", "--client_column=client", "--label_column=label")
  tables = {n: _write_table(f"{temporary}/{n}.csv", n, n // 15) for n in (180, 2000)}
  module, kept = "tff_superquantile.experiments", _new_folder(temporary)

  def sweep(num_rows: int, folder: str, *arguments: str) -> None:
    data, out = f"--data_dir={tables[num_rows]}", f"--output_dir={folder}"
    _python("-m", f"{module}.sweep", *columns, data, out, *arguments)

  sweep(2000, kept, "--quick")
  actions = {
    "own --quick, 2,000 rows": lambda: sweep(2000, _new_folder(temporary), "--quick"),
    "the report of its runs": lambda: _python("-m", f"{module}.report", f"--output_dir={kept}"),
    "own --folds=6, 180 rows": lambda: sweep(180, _new_folder(temporary), "--folds=6"),
  }
  _print_table("Tables", _in_turns(actions, max(_ARGS.repeats // 2, 1)), next(iter(actions)))


def _measure_evaluations(temporary: str) -> None:
  del temporary  # It writes nothing.
  for name in _ARGS.tasks:
    _measure_evaluation(name)


def _measure_evaluation(name: str) -> None:
  import tensorflow as tf
  import tensorflow_federated as tff

  import tasks
  from tff_superquantile import evaluation
  from tff_superquantile.evaluation import clients

  task = tasks.get_task(name)
  request = tasks.task.Request(
    **train_flags.values(_ARGS),
  )
  files = task.load_clients(request)["train"]
  model = task.build_model_for(files, 0)
  x, y, offsets = files.load()
  evaluate = evaluation.build_evaluator(
    model, evaluation.ClientExamples(files.client_ids, x, y, offsets, files.decode)
  )
  weights = tff.learning.models.ModelWeights(*model.initial_weights)
  tensors = tf.nest.map_structure(tf.constant, tuple(map(tuple, model.initial_weights)))

  @tf.function(autograph=False)
  def forward(x):
    return model.predict_on_batch(tensors, files.decode(x), training=False)

  @tf.function(autograph=False)
  def forward_with_loss(x, y):
    return model.loss(output=forward(x), label=y)

  size = clients.BATCH_SIZE
  batches = [slice(start, start + size) for start in range(0, len(y), size)]
  actions = {
    "forward pass": lambda: [forward(x[rows]).numpy() for rows in batches],
    "forward pass with the loss": lambda: [
      forward_with_loss(x[rows], y[rows]).numpy() for rows in batches
    ],
    "every client's loss and error": lambda: evaluate(weights),
  }
  _in_turns(actions, 1)  # Traces.
  title = f"Evaluation, {name}: {len(files.client_ids)} clients, {len(y)} examples"
  _print_table(title, _in_turns(actions, _ARGS.repeats), "forward pass")


def _measure_length(temporary: str) -> None:
  def run(num_rounds, *arguments):
    return lambda: _train(
      temporary, f"--num_rounds={num_rounds}", "--rounds_per_evaluation=500", *arguments
    )

  lengths = _ARGS.lengths
  private = ("--theta=0.5", "--threshold=tree", "--epsilon=5", "--clip_norm=0.1")
  actions = {
    "a run of 1 round": run(1, "--theta=0.5"),
    **{f"{rounds} rounds": run(rounds, "--theta=0.5") for rounds in lengths},
    **{f"{rounds} rounds, private tree": run(rounds, *private) for rounds in lengths},
  }
  reference = next(iter(actions))
  _print_table("Length", _in_turns(actions, max(_ARGS.repeats // 2, 1)), reference)


def _measure_sweep(temporary: str) -> None:
  rounds = f"--num_rounds={_ARGS.sweep_rounds}"

  def four_runs():
    _python(
      "-m",
      "tff_superquantile.experiments.sweep",
      "--experiment=default",
      "--seeds=0,1",
      "--thetas=0.5",
      rounds,
      f"--output_dir={_new_folder(temporary)}",
    )

  actions = {"one run": lambda: _train(temporary, rounds), "four runs and their report": four_runs}
  title = f"Sweep, {_ARGS.sweep_rounds} rounds, {limits.num_cores()} cores"
  _print_table(title, _in_turns(actions, max(_ARGS.repeats // 2, 1)), "one run")


_MEASURES = {
  "start": _measure_start,
  "table": _measure_table,
  "evaluation": _measure_evaluations,
  "length": _measure_length,
  "sweep": _measure_sweep,
}


def main(args: argparse.Namespace) -> None:
  vars(_ARGS).update(vars(args))
  for kind in _ARGS.measure:
    if kind not in _MEASURES:
      raise ValueError(f"Found --measure={kind}; expected some of {', '.join(_MEASURES)}.")
  with tempfile.TemporaryDirectory() as temporary:
    for kind, measure in _MEASURES.items():
      if kind in _ARGS.measure:
        measure(temporary)


if __name__ == "__main__":
  sys.exit(cli.run(sys.modules[__name__]))
