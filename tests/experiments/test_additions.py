"""Adding a method, a private threshold and a study: a file each, and their rows."""

import json
import pathlib
import re

import pytest

_TRIAL = pathlib.Path(__file__).parent / "additions" / "trial.py"


@pytest.fixture(scope="module")
def trial(lab, cache_dir):
  """What `additions.trial` says of a run of each addition and of FedAvg."""
  result = lab.python(str(_TRIAL), "results", str(cache_dir)).wait()
  assert result.code == 0, result.err
  return json.loads(result.out.splitlines()[-1])


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
  assert (
    trial["private"] == trial["kinds"] == ["tree", "geometric", "primal_dual", "slow_geometric"]
  )
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
