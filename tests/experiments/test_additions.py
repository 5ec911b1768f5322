"""Adding a method, a private threshold and a study: a file each, and their rows."""

import json
import pathlib
import re

import pytest

_ADDITIONS = pathlib.Path(__file__).parent / "additions"
_SCRIPT = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import rows  # Before flags and configs are made of them.
from absl import flags
from tff_superquantile.experiments import cli, {module}
{call}
"""
_TRAIN = _SCRIPT.format(module="train", call="cli.run(train.main)")
_STUDY = _SCRIPT.format(module="study", call="study.run(sys.argv.pop(1))")
_SWEEP = """
import json, sys
sys.path.insert(0, sys.argv[1])
import rows
from privacy import releases
from tff_superquantile.experiments import run
from tff_superquantile.experiments.run import names, thresholds
config = run.RunConfig(algorithm="capped_fed_avg", cap=2.0)
name = names.Name(names.folder(config), config)
superquantile = run.RunConfig(theta=0.25)
print(json.dumps([
  name, name.label, name.order < names.Name(names.folder(superquantile), superquantile).order,
  thresholds.private(), list(releases.THRESHOLDS), list(superquantile.to_flags()),
]))
"""
_SHORT = ("--num_rounds=4", "--rounds_per_evaluation=2", "--output_dir=results")


def _python(lab, script, *arguments):
  return lab.python("-c", script, str(_ADDITIONS), *arguments)


def _train(lab, *arguments):
  return _python(lab, _TRAIN, *lab.small([*_SHORT, *arguments]))


@pytest.fixture(scope="module")
def trained(lab):
  """Runs of the new method, of the new threshold and of FedAvg, one beside the other."""
  started = [
    _train(lab, "--algorithm=capped_fed_avg", "--cap=1.5"),
    _train(lab, "--threshold=slow_geometric", "--epsilon=8", "--clip_norm=0.5"),
    _train(lab, "--algorithm=fed_avg"),
  ]
  for command in started:
    result = command.wait()
    assert result.code == 0, result.err
  return lab.folder / "results"


def _rounds(folder):
  return (folder / "rounds.csv").read_text().splitlines()


def test_new_method_is_named_sorted_and_checked_by_its_row(lab):
  described = _python(lab, _SWEEP)
  wrong = [
    (_train(lab, "--algorithm=capped_fed_avg"), "without --cap; give one"),
    (_train(lab, "--algorithm=fed_avg", "--cap=2"), "it belongs to capped_fed_avg"),
    (_train(lab, "--algorithm=capped_fed_avg", "--cap=2", "--epsilon=1"), "in a private run"),
  ]
  result = described.wait()
  assert result.code == 0, result.err
  folder, label, is_before, private, kinds, flags = json.loads(result.out)
  assert (folder, label) == ("capped_fed_avg_cap_2", "Capped FedAvg cap = 2")
  assert not is_before  # It is the last row.
  assert private == kinds == ["tree", "geometric", "slow_geometric"]
  assert "theta" in flags and "cap" not in flags
  for command, said in wrong:
    command.wait().assert_fails_with_a_sentence(2, said)


def test_new_method_is_trained_as_its_rule_says(trained):
  folder = trained / "synthetic" / "capped_fed_avg_cap_1.5" / "seed_0"
  assert "num_losses" in _rounds(folder)[0] and len(_rounds(folder)) == 6
  assert json.loads((folder / "metrics.json").read_text())["test"]["error"]["p90"] > 0


def test_new_threshold_is_accounted_for(lab, trained):
  folder = trained / "synthetic" / "superquantile_theta_0.5_slow_geometric_epsilon_8" / "seed_0"
  ledger = json.loads((folder / "privacy.json").read_text())
  assert ledger["release"]["threshold_kind"] == "slow_geometric"
  assert "followed slowly" in json.dumps(ledger, ensure_ascii=False)
  audit = _SCRIPT.split("from absl")[0] + "from privacy import account\nsys.exit(account.main())"
  result = _python(lab, audit, "audit", str(folder)).wait()
  assert result.code == 0, result.err + result.out
  # One that has no such row cannot judge it, and says so.
  result = lab.python("-m", "privacy.account", "audit", str(folder)).wait()
  assert result.code != 0 and "slow_geometric" in result.err + result.out
  assert "Traceback" not in result.err


def test_report_and_new_study_show_all_of_them(lab, trained):
  reported = lab.bare("report", "--output_dir=results")  # Without the rows.
  assert reported.code == 0, reported.err
  text = (trained / "synthetic" / "report.md").read_text()
  # Of a method that is not here, a report knows the folder's name.
  assert "| FedAvg " in text and "| capped_fed_avg_cap_1.5 " in text
  result = _python(lab, _STUDY, "lengths", "--output_dir=results").wait()
  assert result.code == 0, result.err
  assert "The longest run took 4 rounds." in result.out
  text = (trained / "synthetic" / "lengths.md").read_text()
  for label in ("Capped FedAvg cap = 1.5", "Superquantile θ = 0.5, slow_geometric, ε = 8"):
    assert re.search(rf"\| {re.escape(label)} +\| +1 \| +\**4\**", text), text
