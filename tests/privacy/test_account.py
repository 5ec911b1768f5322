"""The command: its answers, its one sentence for a mistake, its exit codes."""

import csv
import json
import pathlib
import shlex
import subprocess
import sys

from helpers import flat
from helpers import run_folders
import numpy as np
import pytest

from privacy import account

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_RUN = ("--population=2500", "--clients_per_round=100", "--num_rounds=1000", "--delta=4e-4")
_EXAMPLE = (
  "calibrate",
  "--epsilon=3",
  *_RUN,
  "--rho_ratio=0.5",
  "--num_bins=64",
  "--clip_norm=1.3",
)
_SPEND = ("spend", "--threshold_noise_multiplier=3", "--update_noise_multiplier=2", *_RUN)
_BUDGET = ("calibrate", *_RUN, "--epsilon=3")


def _json(capsys, *argv):
  assert account.run([*argv, "--json"]) == 0
  printed = capsys.readouterr()
  assert printed.err == ""

  def refuse(name):
    raise AssertionError(name)  # NaN and Infinity are not JSON.

  return json.loads(printed.out, parse_constant=refuse)


def _subprocess(*command, cwd=_ROOT):
  return subprocess.run(
    [sys.executable, *command], cwd=cwd, capture_output=True, text=True, timeout=600
  )


def test_calibrate(capsys):
  found = _json(capsys, *_EXAMPLE)
  assert found["effective_noise_multiplier"] == pytest.approx(1.5957, rel=0.002)
  assert found["threshold_noise_multiplier"] == pytest.approx(2.764, rel=0.002)
  assert found["update_noise_multiplier"] == pytest.approx(1.954, rel=0.002)
  assert found["sigma_update"] == pytest.approx(1.3 * found["update_noise_multiplier"])
  assert 2.999 < found["epsilon"] <= 3.0
  assert found["epsilon_pld"] == found["epsilon"] < found["epsilon_rdp"]
  # The server knows the sizes of cohorts: between all shares and those of the smallest likely one.
  assert 14.5 < found["epsilon_server"] < 40.0
  assert found["server_participations"] == 60
  assert found["num_shares"] == 140 and found["noise_shares"] == "complement"
  noise = found["threshold_noise_multiplier"] * found["scale"] * np.sqrt(6)
  assert found["local_stddev"] * np.sqrt(140) == pytest.approx(np.sqrt(noise**2 + 2))
  assert found["local_stddev"] >= 2
  assert found["bits_per_client"] % 126 == 0
  assert len(found["guarantee"]) == 5
  assert "one client chosen at random" in found["warnings"][0]


def test_spend(capsys):
  found = _json(capsys, *_SPEND)
  assert found["epsilon_rdp"] == pytest.approx(3.175, abs=1e-3)
  assert found["epsilon"] == found["epsilon_pld"]
  assert 0 < found["epsilon_one_round"] < 0.3
  assert 0.8 < found["epsilon_server_one_round"] < 1.6
  assert found["epsilon_pld"] < found["epsilon_rdp"] < found["epsilon_server"]
  assert found["neighboring_relation"].startswith("zero-out")
  by_pld = _json(capsys, *_SPEND, "--accounting=pld")
  assert by_pld["epsilon"] == by_pld["epsilon_pld"] == pytest.approx(found["epsilon_pld"])
  by_rdp = _json(capsys, *_SPEND, "--accounting=rdp")
  assert by_rdp["epsilon"] == by_rdp["epsilon_rdp"] == found["epsilon_rdp"]
  assert by_rdp["rdp_order"] is not None and found["rdp_order"] is None
  assert _json(capsys, *_SPEND[:3], *_RUN[:2], "--num_rounds=0")["epsilon"] == 0.0


def test_participations(capsys):
  found = _json(capsys, *_SPEND, "--participations=1")
  assert found["server_participations"] == 1
  assert found["epsilon_server"] == found["epsilon_server_one_round"]


def test_the_first_line_is_the_answer(capsys):
  for argv, first in (
    (
      _EXAMPLE,
      "z_q = 2.7644, z_w = 1.9547 for epsilon = 3 at delta = 0.0004 in 1000 rounds of",
    ),
    (_SPEND, "epsilon = 2.8"),
    (("spend", "--rho=0.5", "--delta=1e-5"), "epsilon = 4.72"),
    (("compose", f"--run={' '.join(_SPEND[1:])}"), "epsilon = 2.8"),
  ):
    assert account.run(argv) == 0
    assert capsys.readouterr().out.startswith(first)


def test_concentrated_privacy(capsys):
  delta, rho = 1e-6, 0.3
  found = _json(capsys, "spend", f"--rho={rho}", f"--delta={delta}")
  # The least over all orders of the bound by Canonne, Kamath and Steinke (2020).
  a = 1 + np.geomspace(1e-2, 1e3, 200_000)
  bounds = rho * a + np.log1p(-1 / a) - np.log(delta * a) / (a - 1)
  assert found["epsilon"] == pytest.approx(bounds.min(), rel=1e-5)
  # That of a Gaussian mechanism of as much noise is less, and its rho is stated where it has one.
  z = np.sqrt(0.5 / rho)
  own = ("spend", f"--update_noise_multiplier={2 * z}", f"--delta={delta}")
  one = _json(capsys, *own, "--sensitivity=2")
  everybody = ("--population=9", "--clients_per_round=9", "--num_rounds=4", "--sampling=none")
  four = _json(capsys, *own, *everybody)
  for gaussian in (one, four):
    assert gaussian["rho"] == pytest.approx(rho)
    assert gaussian["epsilon"] == pytest.approx(one["epsilon"], rel=5e-3)
    assert 0.8 * found["epsilon"] < gaussian["epsilon"] < found["epsilon"]
  assert "rho" not in _json(capsys, *_SPEND)
  back = _json(
    capsys, "calibrate", "--sensitivity=2", f"--delta={delta}", f"--epsilon={one['epsilon']}"
  )
  assert back["noise_multiplier"] == pytest.approx(2 * z, rel=1e-6)


def test_coefficients_of_ones_own(capsys, tmp_path):
  run = ("--population=40", "--clients_per_round=4", "--num_rounds=30", "--sampling=cyclic")
  spend = ("spend", "--update_noise_multiplier=5", *run)
  path = tmp_path / "c.txt"
  path.write_text("1\n0.5\n0.25\n")
  for given in ("1,0.5,0.25", str(path)):
    found = _json(capsys, *spend, f"--coefficients={given}")
    # A client is in three rounds, ten apart.
    assert found["sensitivity"] == pytest.approx(np.sqrt(3 * (1 + 0.25 + 0.0625)))
    by_hand = _json(
      capsys,
      *spend[:2],
      f"--sensitivity={found['sensitivity']!r}",
      f"--delta={found['delta']!r}",
    )
    assert found["epsilon"] == pytest.approx(by_hand["epsilon"], rel=1e-9)


def test_compose_of_flags_and_ledgers(capsys, tmp_path):
  folder = _run_folder(tmp_path)
  alone = _json(capsys, "compose", folder)
  assert alone["epsilon"] == _json(capsys, "audit", folder)["epsilon"]
  text = "--update_noise_multiplier=2 --population=600 --clients_per_round=60 --num_rounds=20"
  flags = text.split()
  found = _json(capsys, "compose", folder + "/privacy.json", f"--run={text} --times=3")
  assert [(one["release"], one["times"]) for one in found["releases"]][1:] == [
    (f"{text} --times=3", 3)
  ]
  own = _json(capsys, "spend", *flags, "--delta=1e-5")["epsilon"]
  assert [one["epsilon"] for one in found["releases"]] == [alone["epsilon"], own]
  apart = _json(capsys, "compose", folder, *3 * [f"--run={text}"])
  assert apart["epsilon"] == found["epsilon"]
  longer = _json(capsys, "spend", *flags[:3], "--num_rounds=60", "--delta=1e-5")["epsilon"]
  assert max(longer, alone["epsilon"]) < found["epsilon"] < longer + alone["epsilon"]


def test_compose_counts_as_often_as_it_is_told_without_a_list(capsys):
  flags = "--update_noise_multiplier=900 --population=1000000 --clients_per_round=1 --num_rounds="
  many = _json(capsys, "compose", f"--run={flags}1 --times=1000000000")
  longer = _json(capsys, "compose", f"--run={flags}1000000000")
  assert len(many["releases"]) == 1 and many["releases"][0]["times"] == 10**9
  assert many["epsilon"] == pytest.approx(longer["epsilon"], rel=1e-3)
  # Each has cohorts of its own, so that their distances add up as roots of squares do.
  flags += "6 --sampling=cyclic"
  known = [_json(capsys, "compose", f"--run={flags} --times={n}") for n in (1, 4)]
  four = _json(capsys, "compose", *4 * [f"--run={flags}"])
  assert known[1]["epsilon"] == four["epsilon"] > known[0]["epsilon"]


def test_a_line_break_in_a_path_breaks_no_line(capsys, tmp_path):
  folder = tmp_path / "a\nb"
  folder.mkdir()
  shown = f"{tmp_path}/a\\nb"
  for argv in (["audit", str(folder)], ["compose", str(folder)], ["compose", f"{folder}/no"]):
    assert account.run(argv) == account.USAGE_ERROR
    error = capsys.readouterr().err
    assert error.startswith("Error: Found ") and error.count("\n") == 1 and "a\\nb" in error
  assert account.run(["audit", _run_folder(folder)]) == 0
  assert capsys.readouterr().out.startswith(f"{shown}: The claim holds.")


def test_without_its_packages(tmp_path):
  (tmp_path / "dp_accounting").mkdir()
  (tmp_path / "dp_accounting" / "__init__.py").write_text("import no_such_package")
  done = _subprocess("-c", "import privacy.account", cwd=_ROOT)
  assert done.returncode == 0
  code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import privacy.account"
  done = _subprocess("-c", code)
  assert (done.returncode, done.stdout) == (2, "")
  assert done.stderr.startswith("Error: Found no package no_such_package; expected dp-accounting")
  assert done.stderr.count("\n") == 1


_MISTAKES = pathlib.Path(__file__).with_name("mistakes.csv").read_text(encoding="utf-8")
_WORDS = {
  "RUN": _RUN,
  "SPEND": _SPEND,
  "BUDGET": _BUDGET,
  "SPACED": (*_BUDGET, "--sampling=spaced", "--separation=12"),
}


@pytest.mark.parametrize("row", csv.DictReader(_MISTAKES.splitlines()), ids=lambda r: r["command"])
def test_mistakes_are_one_sentence(capsys, monkeypatch, tmp_path, row):
  monkeypatch.chdir(tmp_path)
  words = shlex.split(row["command"])
  names = tuple(f"{word.partition('=')[0]}=" for word in words if word.startswith("--"))
  usual = {name: [f for f in of if not f.startswith(names)] for name, of in _WORDS.items()}
  argv = [part for word in words for part in usual.get(word, [word])]
  argv = [part.replace("=RUN", f"={' '.join(_RUN)}") for part in argv]
  assert account.run(argv) == account.USAGE_ERROR
  printed = capsys.readouterr()
  assert printed.out == ""
  assert printed.err.startswith("Error: Found ") and row["words"] in printed.err
  assert printed.err.count("\n") == 1


def _run_folder(path, rounds=10, claim=3.0):
  release = flat.calibrate(
    3, 1e-5, population=600, clients_per_round=60, num_rounds=10, rho_ratio=None
  )
  entry = run_folders.ledger_of(release, 10, done=rounds, claim=claim, delta=1e-5)
  return str(run_folders.write(path, entry, rounds))


def test_audit_fails(capsys, tmp_path):
  folder = _run_folder(tmp_path, rounds=15)
  assert account.run(["audit", folder]) == 1
  printed = capsys.readouterr()
  assert "does NOT hold" in printed.out
  assert "more than the claimed 3" in printed.out
  assert printed.err == ""
  assert account.run(["audit", folder, "--json"]) == 1
  assert json.loads(capsys.readouterr().out)["holds"] is False


def test_an_audit_that_fails_says_so_to_whoever_reads_only_the_beginning(tmp_path):
  command = [sys.executable, "-m", "privacy.account", "audit", _run_folder(tmp_path, rounds=15)]
  with subprocess.Popen(
    command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=_ROOT
  ) as process:
    process.stdout.close()
    assert (process.stderr.read(), process.wait()) == ("", 1)


def test_as_a_script_from_anywhere(tmp_path):
  done = _subprocess(str(_ROOT / "privacy" / "account.py"), *_EXAMPLE, "--json", cwd=tmp_path)
  assert done.returncode == 0, done.stderr
  assert json.loads(done.stdout)["threshold_noise_multiplier"] == pytest.approx(2.764, rel=0.01)
