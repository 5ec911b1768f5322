"""Adding a noisy number to the rounds of private runs: two files and a row."""

import csv
import json
import pathlib
import shutil

import dp_accounting
from dp_accounting import pld
import numpy as np
import pytest

_COUNTED = str(pathlib.Path(__file__).parent / "additions" / "counted.py")
_ROUNDS, _EPSILON, _DELTA = 3, 8.0, 0.01
_FLAG = "cohort_noise_multiplier"
_BUDGET = (f"--epsilon={_EPSILON}", f"--delta={_DELTA}", "--clip_norm=0.5")
# Two numbers beside the updates, whose clients weigh by their losses, with noise that is given.
_NOISE = (
  *("--algorithm=q_fed_avg", "--q=0", "--sampling=fixed_size", f"--delta={_DELTA}"),
  *("--clip_norm=adaptive", "--clip_count_noise_multiplier=2", "--update_noise_multiplier=0.5"),
  f"--{_FLAG}=0.3",
)


@pytest.fixture(scope="module")
def command(lab):
  """Carries out a module where a round may count its clients."""

  def command(*arguments):
    result = lab.python(_COUNTED, *arguments).wait()
    assert "Traceback" not in result.err, result.err
    return result

  return command


@pytest.fixture(scope="module")
def train(lab, command):
  def train(name, *flags):
    flags = (f"--num_rounds={_ROUNDS}", "--rounds_per_evaluation=3", f"--run_name={name}", *flags)
    result = command("tff_superquantile.experiments.train", *lab.small(flags))
    assert result.code == 0, result.err
    return lab.folder / "results" / "synthetic" / name / "seed_0"

  return train


@pytest.fixture(scope="module")
def by_budget(train):
  return train("counted", "--algorithm=fed_avg", "--cohort_rho_ratio=0.1", *_BUDGET)


def _release(folder):
  return json.loads((folder / "privacy.json").read_text())["release"]


def _column(folder, name):
  with open(folder / "rounds.csv") as lines:
    return np.array([float(row[name]) for row in csv.DictReader(lines) if row[name]])


def _epsilon(multipliers, probability):
  """That of dp_accounting for Gaussian releases of one Poisson sample in each round."""
  z = np.sum(np.square(multipliers) ** -1.0) ** -0.5
  event = dp_accounting.PoissonSampledDpEvent(probability, dp_accounting.GaussianDpEvent(z))
  accountant = pld.PLDAccountant().compose(dp_accounting.SelfComposedDpEvent(event, _ROUNDS))
  return accountant.get_epsilon(_DELTA)


def test_its_noise_is_counted_in_epsilon(by_budget):
  release = _release(by_budget)
  z_w, z_c = release["update_noise_multiplier"], release[_FLAG]
  assert (z_w / z_c) ** 2 == pytest.approx(0.1)
  probability = release["clients_per_round"] / release["population"]
  assert _epsilon([z_w, z_c], probability) == pytest.approx(_EPSILON, rel=1e-3)
  assert _epsilon([z_w], probability) < 0.97 * _EPSILON  # The updates alone cost less.


def test_ledger_and_account_state_it(by_budget, command):
  ledger = json.loads((by_budget / "privacy.json").read_text())
  said = f"a count of the clients that train with noise multiplier {ledger['release'][_FLAG]:.4g}"
  assert said in ledger["guarantee"][0]
  assert ledger["release"]["clip_count_noise_multiplier"] is None
  given = ("--population=30", "--clients_per_round=8", f"--num_rounds={_ROUNDS}", "--json")
  flags = (f"--delta={_DELTA}", f"--epsilon={_EPSILON}", "--cohort_rho_ratio=0.1")
  calibrated = json.loads(command("privacy.account", "calibrate", *given, *flags).out)
  for name in ("update_noise_multiplier", _FLAG):
    assert calibrated[name] == pytest.approx(ledger["release"][name], rel=1e-6)
  flags = (*flags[:1], *(f"--{n}={calibrated[n]}" for n in ("update_noise_multiplier", _FLAG)))
  spent = command("privacy.account", "spend", *given, *flags)
  assert json.loads(spent.out)["epsilon"] == pytest.approx(_EPSILON, rel=1e-4)


def test_audit_passes_and_fails_if_its_noise_is_changed(by_budget, command, lab):
  passed = command("privacy.account", "audit", str(by_budget))
  assert passed.code == 0 and "    clients that train" in passed.out, passed.out
  z = _release(by_budget)[_FLAG]
  for wrong, words in ((2.0 * z, f"flags.txt has --{_FLAG}="), (None, "noisy_cohort_size")):
    folder = lab.folder / f"changed_{wrong}"
    shutil.copytree(by_budget, folder)
    ledger = json.loads((folder / "privacy.json").read_text())
    ledger["release"][_FLAG] = wrong
    (folder / "privacy.json").write_text(json.dumps(ledger))
    failed = command("privacy.account", "audit", str(folder))
    assert failed.code == 1 and words in " ".join(failed.out.split()), failed.out
  # Without its row nobody can judge it.
  unknown = lab.python("-m", "privacy.account", "audit", str(by_budget)).wait()
  assert unknown.code == 2 and _FLAG in unknown.err and "Traceback" not in unknown.err


def test_rounds_have_it_beside_the_adaptive_clip_norm(train, command):
  folder = train("both", *_NOISE)
  found = _column(folder, "noisy_cohort_size")
  assert len(found) == _ROUNDS
  # Each cohort has eight clients, of share 1; six standard deviations are a false alarm of 2e-9.
  np.testing.assert_array_less(abs(found - 8.0), 6 * 0.3)
  assert len(set(found)) == _ROUNDS  # There is noise.
  assert _column(folder, "clip_norm")[0] == pytest.approx(0.1)
  release = _release(folder)
  assert (release["clip_count_noise_multiplier"], release[_FLAG]) == (2.0, 0.3)
  assert command("privacy.account", "audit", str(folder)).code == 0


@pytest.mark.parametrize(
  "flags,words",
  [
    ((*_BUDGET, f"--{_FLAG}=1"), f"Found --epsilon and --{_FLAG}"),
    ((*_BUDGET, "--cohort_rho_ratio=-1"), "--cohort_rho_ratio = -1"),
    (("--cohort_rho_ratio=0.1",), "--cohort_rho_ratio=0.1 in a run that is not private"),
    ((*_BUDGET, "--cohort_rho_ratio=0.1", "--update_sum=distributed"), f"Found {_FLAG} with an"),
  ],
)
def test_what_contradicts_it_is_refused(lab, command, flags, words):
  name = "tff_superquantile.experiments.train"
  result = command(name, *lab.small(("--algorithm=fed_avg", "--num_rounds=3", *flags)))
  assert result.code == 2 and words in result.err
