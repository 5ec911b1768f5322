"""Hooks from outside follow a run, end it, fail in it, or send it elsewhere."""

import contextlib
import json
import re
import sys
import types

from helpers import commands
import numpy as np
import pytest

from tff_superquantile.experiments.run import run_folder

_FEW = ("--num_rounds=4", "--rounds_per_evaluation=2")
_HOOK = """
from tff_superquantile.experiments import run

class Mine(run.Hook):
"""
# Each of these fails at its moment, or returns what nobody can use.
_FAILING = """
  @staticmethod
  def resolve(config, task):
    return None

  @staticmethod
  def check(config, task):
    raise KeyError("a")

  def prepare(self):
    return self.there_is_none

  def on_evaluation(self, evaluation):
    return {"validation": "no number"} if evaluation.results else {}

  async def on_round(self, round_num, values):
    raise OSError("the disk is full")

  def on_rounds_end(self, is_whole):
    raise RuntimeError("b")

  def complete(self):
    raise RuntimeError("c")

  def on_finished(self):
    raise RuntimeError("d")

class Taken(Mine):
  def __init__(self, job):
    raise RuntimeError("e")

class Other(run.Hook):
  def on_start(self, round_num):
    raise ValueError("f")

  def on_evaluation(self, evaluation):
    return {"test_loss_mean": 0.0}

  def on_rounds_end(self, is_whole):
    raise AssertionError("It has not started.")
"""


def test_a_users_hook_that_fails_does_not_end_the_run(user, write, caplog):
  write(_HOOK + _FAILING)
  runs = []
  for name, *more in (("failing", "--hook=mine:Mine,mine:Taken,mine:Other"), ("whole",)):
    result = user.train(f"--output_dir={name}", *_FEW, *more)
    assert result.code == 0, result.err
    runs.append(run_folder.Run(user.folder / name / commands.METHOD / "seed_0", 0))
  assert runs[0].fingerprint == runs[1].fingerprint and runs[0].metrics == runs[1].metrics
  rows = [[{**row, "seconds": ""} for row in commands.rows(run.path)] for run in runs]
  assert rows[0] == rows[1] and len(rows[0]) == 5
  sentence = r"Found that the hook mine:(\w+) failed in (\w+) \(\w+.py, line \d+\): (\w+)"
  said = re.findall(sentence, caplog.text)
  assert sorted(said) == sorted(
    [
      *(
        ("Mine", moment, kind)
        for moment, kind in (
          ("resolve", "TypeError"),
          ("check", "KeyError"),
          ("prepare", "AttributeError"),
          ("on_evaluation", "ValueError"),
          ("on_round", "OSError"),
          ("on_rounds_end", "RuntimeError"),
          ("complete", "RuntimeError"),
          ("on_finished", "RuntimeError"),
        )
      ),
      *(
        ("Taken", moment, kind)
        for moment, kind in (
          ("resolve", "TypeError"),
          ("check", "KeyError"),
          ("__init__", "RuntimeError"),
        )
      ),
      *(("Other", moment, "ValueError") for moment in ("on_start", "on_evaluation")),
    ]
  )
  write(_HOOK + "  def prepare(self):\n    raise ValueError('Found no key; expected one.')\n")
  refused = user.train("--output_dir=refused", *_FEW, "--hook=mine:Mine")
  refused.assert_refused("mine:Mine refuses the run in prepare (mine.py, line 6): Found no key")
  assert not list((user.folder / "refused").rglob("flags.txt"))
  write(_HOOK + "  measured = {'pool': 'error'}\n")
  refused = user.train("--output_dir=refused", *_FEW, "--hook=mine:Mine")
  refused.assert_refused("measures the clients of 'pool'; expected one of train")


def test_a_hook_ends_the_run_and_it_stays_ended(user, write):
  write(
    _HOOK
    + """
  def on_start(self, round_num):
    return round_num >= 2

  def on_round(self, round_num, values):
    return round_num in (0, 2)
"""
  )
  flags = ("--output_dir=ended", "--rounds_per_evaluation=2", "--hook=mine:Mine")
  run = user.folder / "ended" / commands.METHOD / "seed_0"
  for num_rounds in (4, 6):
    assert user.train(*flags, f"--num_rounds={num_rounds}").code == 0
    assert [row["round"] for row in commands.rows(run)] == ["0", "1", "2"]
    assert json.loads((run / "manifest.json").read_text())["rounds_done"] == 2


_PRIVATE = ("--output_dir=private", "--num_rounds=2", "--epsilon=8", "--clip_norm=0.5")


def test_a_private_run_takes_a_hook_that_follows_it_without_clients_and_keys(user, write, caplog):
  private = (*_PRIVATE, "--hook=mine:Mine")
  run = user.folder / "private" / commands.METHOD.replace("0.5", "0.5_epsilon_8") / "seed_0"
  for name in ("on_round", "on_evaluation", "prepare", "__init__", "takes_part"):
    write(_HOOK + f"  def {name}(self, *values):\n    return None\n")
    user.train(*private).assert_refused(
      f"Found --hook=mine:Mine in a private run, with {name} of its own; expected on_finished alone"
    )
  write(_HOOK + "  measured = {'test': 'error'}\n")
  user.train(*private).assert_refused("with measured of its own")
  assert not list((user.folder / "private").rglob("flags.txt"))
  write(
    _HOOK
    + """
  def on_finished(self):
    job = self.job
    found = [job.read().metrics["test"]["error"]["p90"], job.secret, job.start, job.trained]
    with open(job.folder / "sent.txt", "a") as file:
      print(*found, file=file)
    job.splits
"""
  )
  for _ in range(2):  # The second was finished before.
    followed = user.train(*private)
    assert followed.code == 0, followed.err
    assert "asks for the model and the clients of a private run" in caplog.text
  p90 = json.loads((run / "metrics.json").read_text())["test"]["error"]["p90"]
  assert (run / "sent.txt").read_text() == f"{p90} None None None\n" * 2


class _Wandb(types.ModuleType):
  """What the example uses of wandb, which interrupts the first run in its third row."""

  def __init__(self):
    super().__init__("wandb")
    self.calls, self.rows, self.summary, self.exit_codes = [], {}, {}, []
    self.id = "an id"

  @property
  def starting_step(self):
    return len(self.rows)

  def init(self, **values):
    self.calls.append(values)
    return self

  def log(self, values, step):
    assert step == len(self.rows)
    if step == 2 and len(self.calls) == 1:
      raise KeyboardInterrupt
    self.rows[step] = values

  def finish(self, exit_code=0):
    self.exit_codes.append(exit_code)


class _Mlflow(types.ModuleType):
  """What the example uses of MLflow."""

  def __init__(self):
    super().__init__("mlflow")
    self.calls, self.rows, self.files = [], {}, []

  @contextlib.contextmanager
  def start_run(self, run_name):
    self.calls.append(run_name)
    yield types.SimpleNamespace(info=types.SimpleNamespace(run_id="an id"))

  def log_params(self, params):
    self.params = params

  def log_metrics(self, values, step):
    self.rows[step] = values

  def log_artifact(self, path):
    self.files.append(path.read_bytes())


def _assert_same(rows, sent):
  for row, values in zip(rows, sent, strict=True):
    assert float(row["test_error_mean"] or "nan") == pytest.approx(
      values.get("test_error_mean", np.nan), nan_ok=True
    )


def test_the_hooks_of_the_examples_send_a_run_and_go_on_with_it(user, monkeypatch):
  fake, mlflow = _Wandb(), _Mlflow()
  monkeypatch.setitem(sys.modules, "wandb", fake)
  monkeypatch.setitem(sys.modules, "mlflow", mlflow)
  monkeypatch.syspath_prepend(commands.ROOT / "examples")
  flags = ("--output_dir=sent", *_FEW, "--hook=wandb_hook:Wandb,mlflow_hook:Mlflow")
  assert [user.train(*flags).code for _ in range(3)] == [130, 0, 0]
  run = user.folder / "sent" / commands.METHOD / "seed_0"
  first, second = fake.calls
  assert (first["id"], second["id"], second["resume"]) == (None, "an id", "allow")
  written = [f"--{name}={text}" for name, text in first["config"].items()]
  assert written == (run / "flags.txt").read_text().splitlines() and second["config"] is None
  _assert_same(commands.rows(run), fake.rows.values())
  assert fake.summary == json.loads((run / "metrics.json").read_text())
  assert fake.exit_codes == [1, 0]
  assert mlflow.calls == [run.parent.name] and mlflow.params == first["config"]
  assert list(mlflow.rows) == [0, 1, 2, 3, 4]
  _assert_same(commands.rows(run), mlflow.rows.values())
  assert mlflow.files[0] == (run / "metrics.json").read_bytes()
