"""The page on parts of one's own is true: its files and commands in a folder of a user's."""

import contextlib
import csv
import importlib
import inspect
import json
import re
import shlex
import sys
import types

from helpers import commands
import numpy as np
import pytest

from privacy import parts
from privacy import statements
import tasks
from tff_superquantile import commands as front
from tff_superquantile.experiments import run
from tff_superquantile.experiments.config import methods
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.export import formats
from tff_superquantile.experiments.export import model_card
from tff_superquantile.experiments.report import provenance
from tff_superquantile.experiments.run import accounts
from tff_superquantile.experiments.run import build
from tff_superquantile.experiments.run import private
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.experiments.run.hooks import hook

_PAGE = (commands.ROOT / "docs/how_to/add_a_part.md").read_text(encoding="utf-8")
_FEW = ("--num_rounds=4", "--rounds_per_evaluation=2")
_CAPPED = "capped.CappedFedAvg_cap_1.5"
_SLOW = "superquantile_theta_0.5_slow.SlowGeometric_epsilon_8"


@pytest.fixture(scope="module")
def user(lab):
  """A folder with the files of the page."""
  for name, code in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", _PAGE, re.DOTALL):
    (lab.folder / name).write_text(code, encoding="utf-8")
  return lab


@pytest.fixture(scope="module")
def carry_out(user):
  """Carries out the command of the page with some words, and more arguments."""

  def carry_out(words, *arguments, run_dir=""):
    (line,) = [
      line for line in re.findall(r"^\./run_experiments.sh (.*)", _PAGE, re.M) if words in line
    ]
    command, *own = shlex.split(line.replace("RUN_DIR", run_dir))
    module = front.COMMANDS[command].module.removesuffix(".__main__")
    result = user.fork("-m", module, *own, *arguments).wait()
    assert result.code == 0, result.err
    return result

  return carry_out


@pytest.fixture(scope="module")
def small(user):
  return user.small([*_FEW, "--output_dir=results"])


@pytest.fixture(scope="module")
def compared(user, carry_out, small):
  """The folder of the results of the page's sweep, whose runs are forks, with its report."""
  carry_out("--cap=1.5 --quick", *small, "--thetas=0.5")
  return user.folder / "results" / "synthetic"


def test_a_method_is_compared_reported_and_resumed(user, compared):
  report = (compared / "report.md").read_text()
  for label in ("FedAvg", "Superquantile θ = 0.5", "Capped FedAvg cap = 1.5"):
    assert re.search(rf"^\| {label} +\|", report, re.MULTILINE), label
  numbers = {
    name: json.loads((compared / name / "seed_0/metrics.json").read_text())["test"]["loss"]["mean"]
    for name in ("fed_avg", _CAPPED)
  }
  assert numbers["fed_avg"] != numbers[_CAPPED]
  # Runs of other methods need no file of the user's: they have no flag of it.
  assert "--cap" not in (compared / "fed_avg/seed_0/flags.txt").read_text()
  flags = f"--flagfile={compared / _CAPPED / 'seed_0/flags.txt'}"
  again = user.start("train", flags, "--num_rounds=6").wait()  # Cold, as a cluster starts it.
  assert again.code == 0, again.err
  assert len(commands.rows(compared / _CAPPED / "seed_0")) == 7
  help_text = user.forked("train", "--algorithm=capped:CappedFedAvg", "--help").out
  assert re.search(r"--cap FLOAT +Largest loss that counts\.", help_text)


def test_where_the_file_is_missing_a_sentence_says_so(user, compared, tmp_path):
  elsewhere = commands.Lab(tmp_path, user.cache_dir)
  folder = compared / _CAPPED / "seed_0"
  said = ("--algorithm=capped:CappedFedAvg, but no module capped; expected", "PYTHONPATH")
  elsewhere.forked("train", f"--flagfile={folder / 'flags.txt'}", "--num_rounds=9").assert_refused(
    *said
  )
  elsewhere.forked("evaluate", str(folder)).assert_refused(*said)
  reported = elsewhere.forked("report", f"--output_dir={compared.parent}")
  assert reported.code == 0, reported.err
  assert f"| {_CAPPED} " in (compared / "report.md").read_text()


def test_a_format_is_written_and_the_card_mentions_it(user, carry_out, compared):
  run = compared / _CAPPED / "seed_0"
  carry_out("--format=plain:TEXT", run_dir=str(run))
  out = user.folder / "text"
  names = {"model.txt", "labels.txt", "MODEL_CARD.md", "tuning.json"}
  assert {path.name for path in out.iterdir()} == names
  weights = np.load(run / "weights.npz")
  numbers = [json.loads(line.partition(" ")[2]) for line in (out / "model.txt").open()]
  kept = np.concatenate([weights[name].ravel() for name in weights.files])
  np.testing.assert_array_equal(np.sort(np.float32(np.concatenate(numbers))), np.sort(kept))
  said = "and of a table what its columns became; model.txt has neither, but the"
  assert said in " ".join((out / "MODEL_CARD.md").read_text().split())
  user.forked("export", str(run), "--format=plain:TEX", "--out=other").assert_refused(
    "--format=plain:TEX, which is not there; expected one of Format in", "such as TEXT"
  )
  refused = user.forked("export", str(run), "--format=np", "--out=other")
  refused.assert_refused("did you mean 'npz'?")


@pytest.mark.usefixtures("write")
def test_a_private_method_and_threshold_are_accounted_for(user, carry_out, small, monkeypatch):
  monkeypatch.syspath_prepend(user.folder)
  results = user.folder / "results" / "synthetic"
  for words in ("--cap=1.5 --epsilon=8", "slow:Slow"):
    carry_out(words, *small)
  folders = [results / method / "seed_0" for method in (f"{_CAPPED}_epsilon_8", _SLOW)]
  outside = ("--algorithm=capped:CappedFedAvg", "--threshold=slow:SlowGeometric")
  for folder, flag in zip(folders, outside):
    sentence = json.loads((folder / "privacy.json").read_text())["not_covered"]["outside"]
    assert sentence.startswith(f"Parts from outside the project ({flag})")
    audited = user.here("privacy.account", "audit", str(folder))
    assert audited.code == 0, audited.out + audited.err
    card = model_card._privacy(run_folder.Run(folder, 0))
    assert any(row.name == f"Not covered: {sentence}" for row in card[1].rows)
    assert sentence in " ".join(audited.out.split())
  audited = user.here("privacy.account", "audit", *map(str, folders))
  assert audited.code == 0 and all(f"({flag})" in audited.out for flag in outside)
  said = provenance._cost_of_all_runs(results.parent, results.name)
  assert all(f"Parts from outside the project ({flag})" in said for flag in outside)
  ledger = results / _SLOW / "seed_0/privacy.json"
  assert json.loads(ledger.read_text())["release"]["threshold_kind"] == "geometric"
  rows = commands.rows(ledger.parent)
  # From B = 3, of which the factor of a round is exp(-0.05 (noisy share - theta)).
  first, last = (float(row["threshold"]) for row in (rows[1], rows[-1]))
  assert first != last and abs(np.log(last / first)) < 0.05 * 3 * 2


@pytest.mark.parametrize("name", ["AboveMean", "AboveMedian"])
def test_methods_of_what_the_server_sees_weigh_as_numpy_does(user, name, monkeypatch):
  monkeypatch.syspath_prepend(user.folder)
  monkeypatch.setitem(methods.METHODS, f"above:{name}", None)  # Not there for other tests.
  del methods.METHODS[f"above:{name}"]
  above = importlib.import_module("above")
  losses = np.float32([0.1, 0.9, 0.5, 2.5])
  if name == "AboveMean":  # The mean loss is 1.
    relative = above.AboveMean().relative_share()
    mean = relative.summarize(losses, np.ones(4))
    np.testing.assert_array_equal(relative.share(losses, mean), [0.5, 0.5, 0.5, 1.0])
    assert relative.summarize(losses[:0], np.ones(0)) == 0.0
  config = run.RunConfig(
    method=getattr(above, name)(), num_rounds=2, output_dir=str(user.folder / "above")
  )
  finished = run.train(run_config.with_values(config, cache_dir=str(user.cache_dir)))
  tails, cohorts = (finished.rounds[column][1:] for column in ("tail_size", "cohort_size"))
  # Before training all losses are equal.
  assert tails[0] == cohorts[0] and (name == "AboveMean") == (tails[1] == cohorts[1])


def test_a_task_is_trained(user, carry_out):
  few = ("--num_rounds=3", f"--cache_dir={user.cache_dir}", "--output_dir=results")
  carry_out("weather:WEATHER", *few)
  folder = user.folder / "results/weather.WEATHER/superquantile_theta_0.5/seed_0"
  assert "--num_stations=50" in (folder / "flags.txt").read_text()
  tables = [(folder / f"{split}_clients.csv").read_text() for split in ("train", "test")]
  assert sum(text.count("\n") - 1 for text in tables) == 50
  user.train("--num_stations=50").assert_refused("--num_stations")
  assert json.loads((folder / "metrics.json").read_text())["test"]["error"]["mean"] < 0.4
  evaluated = user.forked("evaluate", str(folder))
  assert evaluated.code == 0, evaluated.err


def test_a_hook_follows_a_run(user, carry_out):
  small = user.small(("--output_dir=hooked", "--rounds_per_evaluation=2"))
  for num_rounds in (2, 4):
    carry_out("clock:Seconds", *small, f"--num_rounds={num_rounds}")
  run = user.folder / "hooked" / commands.METHOD / "seed_0"
  with open(run / "rounds.csv") as rounds, open(run / "seconds.csv") as seconds:
    expected = [[row["round"], row["seconds"]] for row in csv.DictReader(rounds)][1:]
    written = list(csv.reader(seconds))
  assert [number for number, _ in written] == ["1", "2", "3", "4"]
  np.testing.assert_allclose(np.float64(written), np.float64(expected))
  assert "--hook=clock:Seconds" in (run / "flags.txt").read_text()
  without = user.train("--output_dir=hooked", "--rounds_per_evaluation=2", "--num_rounds=5")
  assert without.code == 0 and (run / "seconds.csv").read_text().count("\n") == 4
  user.train("--hook=clock:Second").assert_refused("which is not there", "such as Seconds")
  user.train("--hook=clock").assert_refused("expected MODULE:NAME in a file of yours")


def test_the_page_tells_the_moments_of_a_hook():
  moments = re.findall(r"^\| `(\w+)\((.*?)\)` \|", _PAGE, re.MULTILINE)
  ours = {name: value for name, value in vars(hook.Hook).items() if not name.startswith("_")}
  del ours["measured"], ours["takes_part"]  # What a hook is, at no moment.
  expected = []
  for name, value in ours.items():
    names = inspect.signature(getattr(value, "__func__", value)).parameters
    expected.append((name, ", ".join(name for name in names if name != "self")))
  assert moments == expected and len(moments) == 9


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


# What is refused.

_HEAD = """\
import dataclasses
from privacy.settings import flag
from tff_superquantile.experiments import run
from tff_superquantile.experiments.config import methods

@dataclasses.dataclass(frozen=True, kw_only=True)
"""
_METHOD = "class Mine({base}):\n{body}"
_BUILD = "  def build(self, run):\n    return None\n"
_SHARE = "  def share(self, max_loss):\n    return abs\n"
_RELATIVE = "  def relative_share(self):\n    return None\n"


@pytest.fixture
def write(tmp_path, monkeypatch):
  """Writes a module that Python finds while the test lasts, and whose parts no table keeps."""
  monkeypatch.syspath_prepend(tmp_path)
  kept = [(t, dict(t)) for t in (*run_config.TABLES.values(), hook.OF_USERS)]

  def write(code, name="mine"):
    (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
    sys.modules.pop(name, None)
    for table, _ in kept:
      table.pop(f"{name}:Mine", None)
    return f"{name}:Mine"

  yield write
  for table, rows in kept:
    table.clear()
    table.update(rows)
  sys.modules.pop("mine", None)


def _method(base="Method", body=_BUILD, head=_HEAD):
  base = base if "." in base else f"run.{base}"
  return head + _METHOD.format(base=base, body=body)


@pytest.mark.parametrize(
  "code, said",
  [
    ("1 / 0", r"whose import raised ZeroDivisionError in \S+mine.py, line 1: division by zero"),
    ("class Mine(", r"whose import raised SyntaxError: .* \(mine.py, line 1\); mend it"),
    ("import missing_library", "whose import raised ModuleNotFoundError in .*line 1: No module"),
    ("from . import other", "whose import raised ImportError in .*line 1: attempted relative"),
    ("raise SystemExit(0)", "whose import raised SystemExit"),
    ("", r"which is not there; expected a subclass of Method in \S+mine.py\."),
    (_method().replace("Mine", "Yours"), r"not there; .*mine.py, such as Yours\."),
    ("Mine = 1", "which is no Method"),
    ("class Mine: pass", "which is no Method"),
    (_method(body="  title = 'Mine'\n"), "which lacks build"),
    (
      _method(body=f"  seed: float = flag.field(1.0, 'A.')\n{_BUILD}"),
      "Found --seed of Mine, which",
    ),
    (
      _method(
        body=f"  cap: float = flag.field(1.0, 'A.')\n{_BUILD}", head=_HEAD.rpartition("@")[0]
      ),
      "which lacks @dataclasses.dataclass",
    ),
  ],
)
def test_what_is_no_method_is_refused(code, said, write):
  with pytest.raises(ValueError, match=said):
    run_config.from_values(algorithm=write(code))
  assert "mine:Mine" not in methods.METHODS


def test_a_class_may_have_the_name_of_another(write):
  name = write(_method("FedAvg", "  pass\n").replace("Mine", "FedAvg")).replace("Mine", "FedAvg")
  config = run_config.from_values(algorithm=name, client_split="by_id")
  assert config.algorithm == "mine:FedAvg" and config.method.title == "FedAvg"
  assert run_config.from_values(algorithm="fed_avg").algorithm == "fed_avg"
  assert run_config.from_flags(config.to_flags()) == config
  assert run_config.RunConfig(method=type(config.method)()).algorithm == "mine:FedAvg"


def test_defaults_of_a_flag_from_outside_are_nobody_elses(write):
  name = write(_method(body=f"  cap: float = flag.field(1.5, 'Cap.', short='cap')\n{_BUILD}"))
  config = run_config.from_values(algorithm=name, cap=2.0, client_split="by_id")
  assert config.to_flags()["cap"] == "2.0"
  assert run_config.from_flags(config.to_flags()) == config
  assert "cap" not in run_config.from_values(algorithm="fed_avg").to_flags()
  with pytest.raises(ValueError, match="Found --cap=2.0 with --algorithm=fed_avg; it belongs to"):
    run_config.from_values(algorithm="fed_avg", cap=2.0)


_OTHER_SUM = "  def build_private(self, run):\n    return None\n"
_NOTHING = "  RELEASED = ()\n"


@pytest.mark.parametrize(
  "base, body, said",
  [
    ("OwnLossMethod", _SHARE, None),
    ("RelativeMethod", _RELATIVE, None),
    ("FedAvg", "  pass\n", None),
    ("Superquantile", "  pass\n", None),
    ("Method", _BUILD, "in a private run; use one of fed_avg"),
    ("OwnLossMethod", _SHARE + _OTHER_SUM, "with build_private of its own"),
    ("FedAvg", _OTHER_SUM, "with build_private of its own"),
    # Whatever it says of itself, and of where it is from.
    ("OwnLossMethod", _NOTHING + _SHARE + _OTHER_SUM, "with build_private of its own"),
    ("RelativeMethod", _NOTHING + _RELATIVE + _BUILD, "with build of its own"),
    ("FedAvg", _NOTHING + _BUILD, "with build of its own"),
    ("methods.PrivateMethod", _NOTHING + _BUILD, "with build of its own"),
    ("FedAvg", f"  __module__ = 'privacy.parts'\n{_OTHER_SUM}", "with build_private of its own"),
    ("OwnLossMethod", _SHARE.replace("return", "return lambda loss: 100 *"), None),
    ("OwnLossMethod", f"{_SHARE}  weighted_updates = False\n", "with weighted_updates of its own"),
    ("RelativeMethod", f"{_RELATIVE}  threshold: None = None\n", "with threshold of its own"),
    (
      "OwnLossMethod",
      f"{_SHARE}  @property\n  def threshold(self): pass\n",
      "with threshold of its own",
    ),
  ],
)
def test_a_private_run_takes_methods_that_leave_the_release_alone(base, body, said, write):
  name = write(_method(base, body))
  config = run_config.from_values(algorithm=name, epsilon=3.0, clip_norm=0.1)
  if said is None:
    assert build.resolve(config, tasks.get_task("synthetic")).algorithm == name
    return
  with pytest.raises(ValueError, match=said):
    build.resolve(config, tasks.get_task("synthetic"))


@pytest.mark.parametrize(
  "base, body, is_accounted",
  [
    ("Geometric", "  def build(self, run): return 'exact'\n", True),
    ("OneBit", "  kind, gain = 'mine', 0.1\n", False),
    ("Geometric", "  replace_one_factor = 0.5\n", False),
    ("Geometric", "  @property\n  def z(self): return 9.0\n", False),
    ("Exact", "  pass\n", False),
  ],
)
def test_a_private_threshold_changes_nothing_that_is_accounted_for(base, body, is_accounted, write):
  code = f"from privacy import parts\n\nclass Mine(parts.{base}):\n{body}"
  config = run_config.from_values(threshold=write(code), epsilon=3.0, clip_norm=0.1)
  if is_accounted:
    resolved = build.resolve(config, tasks.get_task("synthetic"))
    assert resolved.values()["threshold"] == "mine:Mine"
    return
  with pytest.raises(ValueError, match="Found --threshold=mine:Mine in a private run; use one of"):
    build.resolve(config, tasks.get_task("synthetic"))


def test_the_projects_own_parts_are_those_that_the_accountant_knows():
  private = {
    name for name in methods.METHODS.own if issubclass(methods.METHODS[name], methods.PrivateMethod)
  }
  assert statements.OWN_PARTS["algorithm"] == private
  assert statements.OWN_PARTS["threshold"] == parts.THRESHOLDS.own
  assert statements.OWN_PARTS["task"] == set(tasks.task_names())


@pytest.mark.parametrize("name", ["algorithm", "threshold", "task", None])
def test_a_private_run_names_its_parts_from_outside(name, write, monkeypatch, tmp_path):
  """As hosp.py, plug.py: a task over the same patients, a method that peeks, a quiet threshold."""
  code = {
    "algorithm": _method("OwnLossMethod", _SHARE),
    "threshold": "from privacy import parts\n\nclass Mine(parts.Geometric): pass\n",
    "task": "import dataclasses, tasks\nMine = tasks.get_task('synthetic')\n",
  }
  values = {} if name is None else {name: write(code[name])}
  config = run_config.from_values(epsilon=3.0, clip_norm=0.1, **values)
  outside = statements.from_outside(config.to_flags())
  assert outside == ([] if name is None else [f"--{name}=mine:Mine"])
  task = build.get_task(config)
  resolved = build.resolve(run_config.with_values(config, num_rounds=2), task)
  resolved, release = private.calibrate(resolved, 1000, 60, {})
  account = accounts.Account(resolved, release, tmp_path, 60)
  account.write(0)
  said = json.loads((tmp_path / "privacy.json").read_text())["not_covered"]
  sentences = [sentence for name, sentence in said.items() if name == "outside"]
  assert len(sentences) == len(outside) and all(outside[0] in text for text in sentences)
  assert all(sentence in account.describe() for sentence in sentences)


def test_an_installed_package_names_its_parts(write, tmp_path):
  def install(package, target):
    folder = tmp_path / f"{package}-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    groups = {"methods": ("shorn", target), "exports": ("words", "mine:WORDS")}
    (folder / "entry_points.txt").write_text(
      "".join(f"[tff_superquantile.{g}]\n{n} = {t}\n" for g, (n, t) in groups.items())
    )

  install(
    "first",
    write(
      f"{_method()}\nfrom tff_superquantile.experiments.export import formats\n"
      "WORDS = formats.Format('words', 'words', print)\n"
    ),
  )
  config = run_config.from_values(algorithm="shorn")
  assert config.algorithm == "shorn" and config.method.title == "Mine"
  assert formats.FORMATS.load("words") and formats.FORMATS.pop("words").purpose == "words"
  with pytest.raises(ValueError, match="expected one of fed_avg"):
    run_config.from_values(algorithm="shor")
  install("second", "other:Mine")
  del methods.METHODS["shorn"]
  with pytest.raises(
    ValueError, match="shorn in 2 packages; expected one of mine:Mine, other:Mine"
  ):
    run_config.from_values(algorithm="shorn")
