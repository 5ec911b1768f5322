"""Releases of cohorts that all may know: their cost against brute force, ledgers and commands."""

import dataclasses
import itertools
import pathlib
import re

import dp_accounting
from helpers import flat
from helpers import run_folders
import numpy as np
import pytest
from scipy import signal
from scipy import special

from privacy import accounting
from privacy import calibration
from privacy import cohorts
from privacy import events
from privacy import ledger
from privacy import parts
from privacy import releases
from privacy import server as server_lib
from privacy.audit import flags as audit_flags
from privacy.noise import banded


def _run(sampling="cyclic", relation="zero_out", bands=4, num_rounds=12, **entries):
  """Six groups of two of eleven clients, or two of ten that wait for four rounds."""
  separation = 6 if sampling == "cyclic" else 4
  c = banded.optimal(bands, banded.Participation(num_rounds, separation))
  if sampling == "spaced":
    entries["separation"] = separation
  return flat.release(
    11,
    2,
    3.0,
    2.0,
    sampling,
    relation=relation,
    threshold_kind="primal_dual",
    coefficients=c.tolist(),
    **entries,
  )


@pytest.mark.parametrize("relation", releases.RELATIONS)
@pytest.mark.parametrize("sampling", ["cyclic", "spaced"])
def test_the_cost_of_known_cohorts_is_that_of_the_worst_rounds(sampling, relation):
  release = _run(sampling, relation)
  separation = release.cohort.separation
  for num_rounds in (1, 3, 7, 12):
    turns = len(range(0, num_rounds, separation))
    assert server_lib.likely_participations(release, num_rounds) == turns
    matrix = np.array(
      [
        [release.coefficients[i - j] if 0 <= i - j < 4 else 0.0 for j in range(num_rounds)]
        for i in range(num_rounds)
      ]
    )
    worst = max(
      np.linalg.norm(matrix[:, list(rounds)].sum(axis=1))
      for size in range(1, num_rounds + 1)
      for rounds in itertools.combinations(range(num_rounds), size)
      if all(b - a >= separation for a, b in itertools.pairwise(rounds))
    )
    # A bit of +-1/2 changes its sign, which a client's absence halves; an update is turned around.
    factor = 2.0 if relation == "replace_one" else 1.0
    mu = worst * factor * np.hypot(1 / 3.0, 1 / 2.0)
    expected = dp_accounting.get_epsilon_gaussian(1 / mu, 1e-5)
    found = accounting.epsilon(release, num_rounds, 1e-5)
    assert (found.epsilon, found.accountant) == (pytest.approx(expected, rel=1e-9), "gaussian")
    meter = accounting.Accountant(release, 1e-5)
    assert meter.epsilon_at_most(num_rounds, 12) == found.epsilon


@pytest.mark.parametrize("sampling", ["cyclic", "spaced"])
def test_a_ledger_keeps_known_cohorts(sampling):
  release = _run(sampling)
  found = run_folders.ledger_of(release, 12, done=5, claim=9.0, delta=1e-5)
  again = ledger.Ledger.from_json(found.to_json())
  assert again == found and again.release.coefficients == release.coefficients
  assert "for all to know" in found.guarantee["sampling"]
  assert "and the cohorts" in found.guarantee["adversary"]
  assert "4 bands" in found.guarantee["mechanism"]
  server = server_lib.server_epsilon(release, 12, 1e-5)
  assert server.epsilon is None and "a party apart" in server.explanation
  assert server.participations == {"cyclic": 2, "spaced": 3}[sampling]
  # Others are as they were.
  others = flat.release(11, 2, None, 2.0).entries()
  assert not {"separation", "coefficients"} & set(others)
  text = found.to_json().replace('"coefficients": [\n      1.0,', '"coefficients": [\n      2.0,')
  with pytest.raises(ValueError, match="begin with 2; expected 1"):
    ledger.Ledger.from_json(text)


def test_known_cohorts_calibrate_and_say_what_they_are_not():
  release = calibration.calibrate(_run(), 2.0, 1e-5, 12)
  assert 2.0 * (1 - 1e-5) < accounting.epsilon(release, 12, 1e-5).epsilon <= 2.0
  for accountant in (accounting.RDP, accounting.PLD):
    assert accounting.epsilon_or_none(release, 12, 1e-5, accountant) is None
    with pytest.raises(ValueError, match="one Gaussian mechanism; expected 'tightest'"):
      accounting.epsilon(release, 12, 1e-5, accountant)
  with pytest.raises(ValueError, match="with poisson sampling; expected cyclic or spaced"):
    flat.release(11, 2, None, 2.0, coefficients=[1.0, 0.5])
  with pytest.raises(ValueError, match="of noise that clients make"):
    flat.release(11, 2, 3.0, 2.0, "cyclic")
  with pytest.raises(ValueError, match="separation = 6 with 2 of 11 clients.*expected 1 to 5"):
    cohorts.Spaced(11, 2, separation=6)
  with pytest.raises(ValueError, match="separation = None with spaced"):
    cohorts.of("spaced", 11, 2)
  with pytest.raises(ValueError, match="separation = 3 with poisson"):
    cohorts.of("poisson", 11, 2, separation=3)


def test_noise_that_ends_is_charged_for_all_rounds_that_reach_a_row():
  c = (1.0, 0.5, 0.25)
  # Rounds 1 and 2 of a client's, two apart, both move row 2: 1 + 1/4.
  assert banded.reach(c, 2) == 1.25 and banded.reach(c, 3) == 1.0 and banded.reach(c, 1) == 1.75
  assert banded.reach((1.0, -2.0, 0.5), 2) == 2.5  # A bound where coefficients do not fall.
  release = flat.release(11, 2, None, 0.5, "spaced", separation=2, coefficients=list(c))
  expected = 2.0 * special.ndtr(1.25 / 0.5 - events.GAUSSIAN_SUPPORT)
  assert events.tail_probability(release) == pytest.approx(expected, rel=1e-9, abs=0.0)


def test_what_follows_noisy_measurements():
  rng = np.random.default_rng(0)
  c = banded.optimal(5, banded.Participation(50, 5))
  for coefficients in (c, banded.INDEPENDENT):
    noise = signal.lfilter([1.0], coefficients, rng.normal(size=[4000, 400]), axis=1)
    found = np.zeros(4000)
    for t in range(400):
      found += 0.1 * (noise[:, t] - found)
    assert np.var(found) == pytest.approx(banded.tracking_variance(coefficients, 0.1), rel=0.1)
  assert banded.tracking_variance(banded.INDEPENDENT, 0.1) == pytest.approx(0.1 / 1.9)
  assert banded.relative_error(banded.INDEPENDENT, 50) == 1.0
  sums = np.linalg.inv(sum(x * np.eye(50, k=-j) for j, x in enumerate(c))).cumsum(axis=0)
  rms = [np.sqrt(np.mean(np.sum(a**2, axis=1))) for a in (sums, np.tri(50))]
  assert banded.relative_error(c, 50) == pytest.approx(rms[0] / rms[1])


def test_the_noise_of_models_that_forget_is_as_the_page_says():
  page = pathlib.Path(__file__).resolve().parents[2] / "docs/how_to/choose_sampling.md"
  text = page.read_text(encoding="utf-8").partition("## Why average")[2]
  rows = re.findall(r"^\| (0\.\d+) \| (.*) \|$", text, re.MULTILINE)
  assert len(rows) == 4
  run = dict(epsilon=5.0, delta=4e-4, num_rounds=1000)
  updates = parts.UpdateSum()
  c = banded.checked(banded.optimal(25, banded.Participation(1000, 25)))
  found = {
    coefficients: calibration.calibrate(
      releases.Release(cohort=cohort, parts=(updates,), coefficients=coefficients), **run
    ).effective_noise_multiplier
    for cohort, coefficients in (
      (cohorts.Poisson(2500, 100), banded.INDEPENDENT),
      (cohorts.Cyclic(2500, 100), c),
    )
  }
  for g, cells in rows:
    expected = []
    for size in (1, 50):
      for coefficients, z in found.items():
        noise = signal.lfilter([1.0], coefficients, np.eye(1, 1000)[0])
        model = signal.lfilter([1.0], [1.0, float(g) - 1.0], noise)
        mean = signal.lfilter(np.full(size, 1 / size), [1.0], model)
        expected.append(f"{z * np.linalg.norm(mean):.1f}")
    assert cells.split(" | ") == expected


@pytest.mark.parametrize("sampling", ["cyclic", "spaced"])
def test_an_audit_finds_coefficients_that_are_not_the_runs(sampling):
  separation = {"cyclic": 6, "spaced": 4}[sampling]
  release = _run(sampling, bands=separation)

  def audited(coefficients, **values):
    of_run = dataclasses.replace(release, coefficients=coefficients)
    found = run_folders.ledger_of(of_run, 12, delta=1e-5)
    flags = audit_flags.wrong_coefficients({"num_rounds": "12", **values}, found)
    return found.epsilon_spent, flags

  c = release.coefficients
  honest, failures = audited(c)
  assert failures == audited(c, bands=str(separation))[1] == []
  for other in ((1.0,) + (0.0,) * (separation - 1), (1.0,), (1.0, *(0.9 * np.array(c[1:])))):
    forged, failures = audited(other)
    assert forged < honest and len(failures) == 1 and "not those of 12 rounds" in failures[0]
  (said,) = audited(c, num_rounds="11")[1]
  assert "not the 12 rounds" in said
