"""Histories of an experiment: runs, sweeps and other commands on the same clients, at random.

After each of them a reader of its own looks at all files, but for checkpoints/, for a client whom
some ledger protects. Rounds change nothing that is written about clients, so that models do not
learn: all else is what users have.
"""

import collections
import contextlib
import hashlib
import io
import os
import pathlib
import random
import re
import shutil

import numpy as np
import pandas as pd
import tensorflow_federated as tff

from helpers import emnist_fixtures
from privacy.settings import command_line
from tff_superquantile.experiments import cli
from tff_superquantile.experiments import evaluate
from tff_superquantile.experiments import sweep
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.export import __main__ as export
from tff_superquantile.experiments.pages import page
from tff_superquantile.experiments.plan import pool
from tff_superquantile.experiments.plan import preset as preset_lib
from tff_superquantile.experiments.plan import presets
from tff_superquantile.experiments.private_evaluation import __main__ as private_evaluation
from tff_superquantile.experiments.references import making
from tff_superquantile.experiments.run import build
from tff_superquantile.experiments.run import runner

_NUM_CLIENTS, _TEST_FRACTIONS = 24, {"own": 0.2, "emnist_linear": 0.5}
_EXPERIMENT = "histories"


class _Still:
  """A learning process whose model does not move."""

  def __init__(self, weights):
    self._weights = tff.learning.models.ModelWeights(*weights)

  def initialize(self):
    return self._weights

  def set_model_weights(self, state, weights):
    return weights

  def get_model_weights(self, state):
    return state

  def next(self, state, clients):
    Output = collections.namedtuple("Output", ("state", "metrics"))
    return Output(state, {"client_work": {}, "aggregator": {}})


def stand_still(monkeypatch):
  """Makes runs learn nothing, and sweeps run in this process and end without a report."""
  monkeypatch.setattr(build, "build_process", lambda run, model, *_: _Still(model.initial_weights))
  monkeypatch.setattr(pool, "run_all", _run_all)
  monkeypatch.setattr(making, "make", lambda runs: None)
  monkeypatch.setattr(page, "publish", lambda *_: None)
  preset = preset_lib.Preset(
    task="own",
    thetas=(0.5,),
    seeds=(0, 1),
    quick_flags={},
    baselines=(dict(algorithm="q_fed_avg", q=preset_lib.Grid((1.0, 2.0), default=1.0)),),
    epsilons=(5.0,),
    private_flags=dict.fromkeys(("fed_avg", "q_fed_avg", "geometric"), dict(clip_norm=1.0)),
  )
  monkeypatch.setitem(presets.PRESETS, _EXPERIMENT, preset)


def _run_all(configs, num_workers):
  del num_workers
  failed = []
  for config in configs:
    try:
      runner.train(config)
    except ValueError as error:
      failed.append(str(error))
  return failed


def _names(first, end):
  return [f"person{i:03d}x" for i in range(first, end)]


def _write_table(path, names):
  lines = ["who,label,u,v"]
  for name in names:
    rng = np.random.default_rng(int(name[6:9]))
    for u, v in rng.normal(size=(4, 2)):
      lines.append(f"{name},{int(u + v > 0)},{u:.3f},{v:.3f}")
  path.parent.mkdir(exist_ok=True)
  path.write_text("\n".join(lines) + "\n")


def _write_digits(path, names):
  made = emnist_fixtures.make_writers([3] * len(names)).values()
  path.parent.mkdir(exist_ok=True)
  emnist_fixtures.write_parquet(path, dict(zip(names, made)))


# What a reader knows of a run without this project's code: who is protected, by its flags.


def _place(name, seed, purpose):
  key = hashlib.sha256(seed.encode()).digest()
  place = hashlib.blake2b(name.encode(), digest_size=8, key=key, person=purpose.encode()).digest()
  return int.from_bytes(place, "big") / 2**64


def _protected(run, names):
  """The clients on whom a private run trains, by its flags.txt."""
  lines = (line[2:].partition("=") for line in (run / "flags.txt").read_text().splitlines())
  flags = {name: value for name, _, value in lines}
  seed = flags.get("split_seed", flags["seed"])
  return {
    name
    for name in names
    if _place(name, seed, "test") >= _TEST_FRACTIONS[flags["task"]]
    and _place(name, seed, "validation") >= float(flags["validation_fraction"])
  }


def _text(path):
  """All that a file says, tables as text."""
  if path.suffix == ".parquet":
    return pd.read_parquet(path).to_csv()
  return path.read_bytes().decode(errors="replace")


def _files(output_dir):
  """All files but those in checkpoints, also behind links."""
  for parent, folders, files in os.walk(output_dir, followlinks=True):
    folders[:] = set(folders) - {"checkpoints"}
    yield from (pathlib.Path(parent, name) for name in files)


def read(output_dir, names):
  """Returns the clients, of all `names`, whom a ledger protects, and where any of them is named."""
  ledgers = [path.parent for path in _files(output_dir) if path.name == "privacy.json"]
  protected = set().union(*(_protected(run, names) for run in ledgers))
  where = {
    path: found
    for path in _files(output_dir)
    if (found := protected & set(re.findall(r"person\d{3}x", _text(path))))
  }
  return protected, where


class History:
  """An experiment, and how often each step was carried out or refused."""

  def __init__(self, folder, cache_dir, task, seed):
    self._random = random.Random(seed)
    self._folder, self.output_dir = folder, folder / "runs"
    folder.mkdir()
    self.names = _names(0, _NUM_CLIENTS)
    self.data = folder / "data" / ("table.csv" if task == "own" else "digits.parquet")
    self._later = folder / "later" / self.data.name
    self._disk = folder / "disk"
    self._write = _write_table if task == "own" else _write_digits
    self._write(self.data, self.names)
    self._flags = dict(
      task=task,
      data_dir=str(self.data),
      output_dir=str(self.output_dir),
      cache_dir=str(cache_dir),
      num_rounds=2,
      rounds_per_evaluation=1,
      clients_per_round=3,
      seconds_per_checkpoint=1000.0,
      min_examples_per_client=1,
    )
    if task == "own":
      self._flags.update(client_column="who", label_column="label")
    self.steps, self._num_moved = [], 0

  def live(self, num_steps):
    """Lets so many things happen, of which the first leaves a finished run."""
    for number in range(num_steps):
      first = ("private", "private", "without privacy", "sweep that tunes")
      name = self._random.choice(first if number == 0 else sorted(self.STEPS))
      self.step(name)

  def step(self, name):
    """Takes a step by its name, and looks at all files."""
    before = self.contents()
    try:
      with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        code = self.STEPS[name](self)
    except ValueError as error:
      code = 2
      assert str(error).startswith("Found"), error
    except SystemExit as error:
      code = error.code
    self.steps.append((name, {None: "done", 0: "done"}.get(code, "refused")))
    if code == 2:
      assert self.contents() == before, self.steps
    _, where = read(self.output_dir, self.names)
    assert not where, (self.steps, where)

  def contents(self):
    """The experiment's files. Its register may have learned meanwhile where a folder has moved."""
    files = _files(self.output_dir)
    return {path: path.read_bytes() for path in files if path.name != "lock"}

  # Steps. Each returns an exit code, or ends with the error of a refusal.

  def _train(self, **flags):
    common = dict(self._flags, algorithm="fed_avg", seed=self._random.randrange(3))
    if self._flags["task"] == "own" and self._random.random() < 0.2:
      common["model"] = "mlp"
    if self._random.random() < 0.3:
      common["data_dir"] = str(self.same_clients(self._random.choice(sorted(self.DISGUISES))))
    if self._random.random() < 0.3:
      common["validation_fraction"] = 0.5
    runner.train(run_config.from_values(**{**common, **flags}))

  def _private(self, **flags):
    if self._random.random() < 0.2:
      flags.setdefault("split_seed", self._random.randrange(3))
    epsilon = self._random.choice((5.0, 10.0))
    self._train(epsilon=epsilon, delta=1e-3, clip_norm=1.0, **flags)

  def _same_key(self):
    keys = sorted(self.output_dir.rglob("noise_key"))
    given = dict(noise_key_file=str(self._random.choice(keys))) if keys else {}
    self._private(local_epochs=2, run_name="again", **given)

  def _public(self, **flags):
    self._train(**flags)

  def _other_tests(self):
    of_rows = self._flags["task"] == "own" and self._random.random() < 0.5
    self._train(**(dict(held_out_examples=0.3) if of_rows else dict(folds=3)))

  def _sweep(self, tune):
    asked = dict(experiment=_EXPERIMENT, tune=tune, delta=1e-3, **self._flags)
    arguments = [f"--{name}={value}" for name, value in asked.items()]
    sweep.main(command_line.parse(sweep, arguments))

  def _finished(self):
    runs = sorted(path.parent for path in self.output_dir.rglob("metrics.json"))
    if not runs:
      raise ValueError("Found no finished run.")
    return self._random.choice(runs)

  def _evaluate(self):
    run = self._finished()
    arguments = [str(run), f"--split={self._random.choice(('test', 'train', 'validation', 'all'))}"]
    places = (run.parents[0], run.parents[1], self.output_dir, self.output_dir / "deep/below")
    out = self._random.choice(places) / self._random.choice(("exact.csv", "exact.txt", "exact"))
    out.unlink(missing_ok=True)
    arguments += [f"--out={out}"]
    if self._random.random() < 0.4:
      # Those who came later, alone or among the others.
      first = self._random.choice((0, 12, _NUM_CLIENTS))
      self._write(self._later, _names(first, _NUM_CLIENTS + 8))
      arguments += [f"--data_dir={self._later}"]
    return cli.run(evaluate, arguments)

  def _private_evaluation(self):
    split = self._random.choice(("test", "train", "validation"))
    arguments = (str(self._finished()), f"--split={split}", "--epsilon=1", "--delta=1e-3")
    return cli.run(private_evaluation, arguments)

  def _export(self):
    run = self._finished()
    shutil.rmtree(run.parent / "npz", ignore_errors=True)
    arguments = [str(run), "--format=npz", f"--out={run.parent / 'npz'}"]
    return cli.run(export, arguments)

  def same_clients(self, disguise):
    """Returns other data of the same clients."""
    path = self.data.parent / f"{disguise}{self.data.suffix}"
    if not path.exists():
      path = self.DISGUISES[disguise](self, path)
    return path

  def _as_parquet(self, path):
    frame = pd.read_csv(self.data) if self.data.suffix == ".csv" else None
    if frame is not None:
      frame.to_parquet(path := path.with_suffix(".parquet"))
      return path
    return shutil.copy(self.data, path)

  def _without_some(self, path):
    """Of a table whose tested clients were removed, any client may be tested on."""
    protected, _ = read(self.output_dir, self.names)
    self._write(path, sorted(protected) if len(protected) > 8 else self.names[::2])
    return path

  DISGUISES = {
    "copy": lambda self, path: shutil.copy(self.data, path),
    "link": lambda self, path: path.symlink_to(self.data) or path,
    "parquet": _as_parquet,
    "rest": _without_some,
  }

  def _move(self):
    """Moves a folder to another disk, as full disks make people do."""
    patterns = ("*_*", "*_*/*", "*_*/*/seed_*")
    folders = [p for p in self.output_dir.glob(self._random.choice(patterns)) if p.is_dir()]
    folders = [p for p in folders if not p.is_symlink()]
    if folders:
      folder, self._num_moved = self._random.choice(sorted(folders)), self._num_moved + 1
      self._disk.mkdir(exist_ok=True)
      folder.rename(place := self._disk / str(self._num_moved))
      folder.symlink_to(place)

  def _two_at_once(self):
    """Starts a run when another has said whom it protects or measures, and has not begun yet."""
    kinds = [self._random.choice((self._private, self._public)) for _ in range(2)]
    begin, second = runner._begin, []

    def begin_both(job):
      if not second:
        second.append("started")
        with contextlib.suppress(ValueError):
          kinds[1]()
      begin(job)

    runner._begin = begin_both
    try:
      kinds[0]()
    finally:
      runner._begin = begin

  STEPS = {
    "private": _private,
    "the key of another run": _same_key,
    "without privacy": _public,
    "folds or held-out rows": _other_tests,
    "sweep": lambda self: self._sweep("none"),
    "sweep that tunes": lambda self: self._sweep("methods"),
    "evaluate": _evaluate,
    "private_evaluation": _private_evaluation,
    "export": _export,
    "another disk": _move,
    "two at once": _two_at_once,
  }
