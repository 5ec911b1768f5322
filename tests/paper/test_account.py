"""The command of the paper's accounting: its numbers, and one sentence for a mistake."""

import json
import subprocess
import sys

import pytest

from paper import account
from privacy.settings import command_line

_RUN = ("--population=2500", "--clients_per_round=100", "--num_rounds=1000", "--delta=4e-4")
_CALIBRATE = ("calibrate", "--epsilon=3", *_RUN)
_SPEND = ("spend", "--update_noise_multiplier=2.0907", *_RUN)


def _json(capsys, *argv):
  assert command_line.run(account, [*argv, "--json"]) == 0
  printed = capsys.readouterr()
  assert printed.err == ""
  return json.loads(printed.out)


def test_calibrate(capsys):
  found = _json(capsys, *_CALIBRATE, "--rho_ratio=0.5", "--num_bins=64")
  assert found["is_guarantee"] is False
  assert found["sampling"] == "fixed_size"
  assert found["epsilon"] == pytest.approx(3, abs=1e-3)
  assert found["epsilon_one_round"] == pytest.approx(0.1596, abs=1e-4)
  assert found["epsilon_real_poisson"] == pytest.approx(1.6546, rel=1e-3)
  assert found["epsilon_real_fixed_size_at_least"] == pytest.approx(4.3874, rel=1e-3)
  assert found["epsilon_real_fixed_size"] == pytest.approx(5.4185, rel=1e-3)
  assert found["threshold_noise_multiplier"] == pytest.approx(8.8512, rel=1e-3)
  assert found["local_stddev"] == pytest.approx(2.1727, rel=1e-3)
  assert (found["num_bins"], found["scale"]) == (64, 1)
  assert "NOT a guarantee" in found["caveat"][0]
  assert "one client chosen at random" in found["warnings"][0]


def test_spend(capsys):
  found = _json(capsys, *_SPEND)
  assert found["epsilon"] == pytest.approx(3, rel=1e-3)
  assert found["epsilon_real_poisson"] < 3 < found["epsilon_real_fixed_size_at_least"]
  assert "num_bins" not in found
  assert _json(capsys, *_SPEND, "--threshold_noise_multiplier=4")["epsilon"] > found["epsilon"]
  assert _json(capsys, *_SPEND[:4], "--num_rounds=0")["epsilon"] == 0.0


@pytest.mark.parametrize(
  "argv,message",
  [
    ((), "Found no COMMAND"),
    (("spend", *_RUN), "expected at least one release"),
    (("calibrate", *_RUN), "Found no --epsilon"),
    ((*_CALIBRATE, "--rho_ratio=0.5"), "Found a threshold without num_bins"),
    ((*_CALIBRATE, "--relation=replace_one"), "Found --relation=replace_one among the flags"),
    (("calibrate", *_RUN, "--epsilon=1e9"), "no noise reaches in the paper's accounting"),
    ((*_SPEND[:3], "--clients_per_round=99.5", "--num_rounds=9"), "99.5"),
  ],
)
def test_mistakes_end_in_one_sentence(capsys, argv, message):
  assert command_line.run(account, argv) == 2
  printed = capsys.readouterr()
  assert printed.out == ""
  assert message in printed.err and len(printed.err.splitlines()) == 1


def test_needs_no_tensorflow():
  code = "import sys, paper.account; sys.exit('tensorflow' in sys.modules)"
  subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
