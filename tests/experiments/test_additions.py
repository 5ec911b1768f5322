"""Adding a method, a threshold, a study, an export format and a tracker: a file and a row each."""

import json
import pathlib
import re

import commands
import numpy as np
import pytest

_ADDITIONS = pathlib.Path(__file__).parent / "additions"
_TRIAL = _ADDITIONS / "trial.py"
_EXPORTED = "results/synthetic/capped_fed_avg_cap_1.5/seed_0"


@pytest.fixture(scope="module")
def trial(lab, cache_dir):
  """What `additions.trial` says of a run of each addition and of FedAvg."""
  result = lab.python(str(_TRIAL), "results", str(cache_dir)).wait()
  assert result.code == 0, result.err
  return json.loads(result.out.splitlines()[-1])


@pytest.fixture(scope="module")
def command(lab):
  """Carries out a command of a project that has the rows of the additions."""

  def command(module, *arguments):
    result = lab.python(str(_ADDITIONS / "command.py"), module, *arguments).wait()
    assert "Traceback" not in result.err, result.err
    return result

  return command


@pytest.fixture
def results(lab, trial):
  del trial
  return lab.folder / "results" / "synthetic"


def test_new_method_is_named_sorted_and_checked_by_its_row(trial):
  assert trial["labels"] == [
    *("Capped FedAvg cap = 1.5", "Superquantile θ = 0.5, slow-geometric, ε = 8", "FedAvg"),
  ]
  assert trial["ordered"] == ["fed_avg", "superquantile_theta_0.25", "capped_fed_avg_cap_1.5"]
  assert trial["flag"] == "Largest loss that counts."
  said = (
    "without --cap; give one",
    "it belongs to --algorithm=capped_fed_avg",
    "in a private run; use one of",
  )
  for sentence, words in zip(trial["refusals"], said):
    assert words in sentence


def test_new_method_is_trained_as_its_rule_says(trial):
  # The weighting saw every client of each cohort; round 0 is the untrained model.
  assert trial["num_losses"][1:] == [8.0] * 4
  capped, fed_avg = trial["losses"]
  assert capped != fed_avg


def test_new_threshold_is_accounted_for(lab, trial, results):
  assert trial["private"] == ["tree", "geometric", "primal_dual", "slow_geometric"]
  folder = results / "superquantile_theta_0.5_slow_geometric_epsilon_8" / "seed_0"
  ledger = json.loads((folder / "privacy.json").read_text())
  assert ledger["release"]["threshold_kind"] == "slow_geometric"
  assert "followed slowly" in json.dumps(ledger, ensure_ascii=False)
  assert trial["audit"] == 0
  # Without its row nobody can judge it, and the audit says so.
  result = lab.python("-m", "privacy.account", "audit", str(folder)).wait()
  assert result.code != 0 and "slow_geometric" in result.err + result.out
  assert "Traceback" not in result.err


def test_report_and_new_study_show_all_of_them(lab, trial, results):
  reported = lab.bare("report", "--output_dir=results")  # Without the rows.
  assert reported.code == 0, reported.err
  text = (results / "report.md").read_text()
  # A report knows the folder's name of a method that is not here.
  assert "| FedAvg " in text and "| capped_fed_avg_cap_1.5 " in text
  assert trial["summary"] == "The longest run took 4 rounds."
  text = (results / "lengths.md").read_text()
  for label in trial["labels"]:
    assert re.search(rf"\| {re.escape(label)} +\| +1 \| +\**4\**", text), text


def test_new_study_is_a_command(command, results):
  (results / "lengths.md").unlink(missing_ok=True)
  made = command("study", "lengths", "--output_dir=results")
  assert made.code == 0, made.err
  assert "The longest run took 4 rounds." in made.out
  assert "|  **4** |" in (results / "lengths.md").read_text()
  assert "    lengths           How long did each method train?" in command("study", "--help").out
  assert "private_quantile, lengths." in command("study", "length").err


def test_new_format_is_written_and_replaced_and_the_card_mentions_it(lab, command, results):
  arguments = ("export", _EXPORTED, "--format=plain_text", "--out=text")
  made = command(*arguments)
  assert made.code == 0, made.err
  out = lab.folder / "text"
  assert {path.name for path in out.iterdir()} == {"model.txt", "labels.txt", "MODEL_CARD.md"}
  weights = np.load(results.parent.parent / _EXPORTED / "weights.npz")
  numbers = [line.partition("] ")[2].split() for line in (out / "model.txt").open()]
  kept = np.sort(np.concatenate([weights[name].ravel() for name in weights.files]))
  np.testing.assert_array_equal(np.sort(np.float32(np.concatenate(numbers))), kept)
  said = "and of a table what its columns became; model.txt has neither, but the"
  assert said in " ".join((out / "MODEL_CARD.md").read_text().split())
  assert command(*arguments).code == 2  # It is there already.
  assert command(*arguments, "--overwrite").code == 0
  (out / "model.text").touch()
  assert "which no export has written" in command(*arguments, "--overwrite").err
  shown = " ".join(command("export", "--help").out.split())
  assert "plain_text, the weights as text, for people" in shown


def test_new_tracker_follows_a_run_and_goes_on_with_it(lab, command):
  def train(*flags):
    small = lab.small(("--output_dir=tracked", "--rounds_per_evaluation=2", *flags))
    return command("train", *small, "--tracker=diary")

  assert train("--num_rounds=2").code == 0
  assert train("--num_rounds=4").code == 0
  lines = [json.loads(line) for line in (lab.folder / "tracked" / "diary.jsonl").open()]
  assert {line["id"] for line in lines} == {"superquantile_theta_0.5/seed_0"}
  assert [line["known"] for line in lines if line["what"] == "opened"] == [False, True]
  assert [line["round"] for line in lines if line["what"] == "row"] == [0, 1, 2, 3, 4]
  assert [line["round"] for line in lines if line["what"] == "finished"] == [2, 4]
  metrics = json.loads(
    (lab.folder / "tracked" / commands.METHOD / "seed_0" / "metrics.json").read_text()
  )
  assert lines[-1]["error"] == metrics["test"]["error"]["mean"]
  assert "mlflow, wandb, diary" in " ".join(command("train", "--help").out.split())
