"""The page on parts of one's own is true: its files and commands in a folder of a user's."""

import csv
import importlib
import inspect
import json
import re
import shlex

from helpers import commands
import numpy as np
import pytest

from tff_superquantile import commands as front
from tff_superquantile.experiments import run
from tff_superquantile.experiments.config import methods
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.export import model_card
from tff_superquantile.experiments.report import provenance
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.experiments.run.hooks import hook

_PAGE = (commands.ROOT / "docs/how_to/add_a_part.md").read_text(encoding="utf-8")
_FEW = ("--num_rounds=4", "--rounds_per_evaluation=2")
_CAPPED = "capped.CappedFedAvg_cap_1.5"
_SLOW = "superquantile_theta_0.5_slow.SlowGeometric_epsilon_8"


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
