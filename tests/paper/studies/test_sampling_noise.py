"""The noise of one budget by sampling, against independent accountants; and its page."""

import math

import dp_accounting
import pandas as pd
import pytest
from scipy import stats

from paper.studies import sampling_noise
from privacy import releases
from privacy.settings import command_line
from tff_superquantile.experiments.pages import page

_N, _M, _DELTA = 60, 20, 1e-2  # Blocks of three rounds; spaced cohorts have a distance of one.


def _delta_of_gaussian(z, epsilon):
  """The exact delta of a Gaussian mechanism (Balle and Wang 2018)."""
  mu = 1.0 / z
  return stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(
    -mu / 2 - epsilon / mu
  )


@pytest.mark.parametrize("sampling, participations", [("cyclic", 2), ("spaced", 6)])
def test_known_cohorts_are_one_gaussian_mechanism(sampling, participations):
  z = sampling_noise.noise(sampling, releases.ZERO_OUT, _N, _M, _DELTA, 2.0, 6)
  assert _delta_of_gaussian(z / math.sqrt(participations), 2.0) == pytest.approx(_DELTA, rel=1e-4)


def test_poisson_cohorts_as_dp_accounting_has_them():
  z = sampling_noise.noise("poisson", releases.ZERO_OUT, _N, _M, _DELTA, 2.0, 6)
  event = dp_accounting.PoissonSampledDpEvent(_M / _N, dp_accounting.GaussianDpEvent(z))
  accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-4)
  assert accountant.compose(event, 6).get_epsilon(_DELTA) == pytest.approx(2.0, rel=2e-3)


def _plan(*words):
  parser = command_line.Parser()
  sampling_noise.define(parser)
  values = {"--population": _N, "--clients_per_round": _M, "--delta": _DELTA}
  values.update(word.split("=") for word in words)
  return sampling_noise._plan(parser.parse_args([f"{k}={v}" for k, v in values.items()]))


def test_a_page_of_points_that_are_computed_once(tmp_path, monkeypatch):
  computed = []

  def noise(sampling, relation, population, clients_per_round, delta, epsilon, num_rounds):
    computed.append((sampling, relation, epsilon, num_rounds))
    is_known = sampling in ("cyclic", "spaced")
    by_sampling = {"allocated": 0.9, "spaced": 2.0}.get(sampling, 1.0) * (4.0 if is_known else 1.0)
    return by_sampling * math.sqrt(num_rounds) / epsilon * (1.0 + (relation != releases.ZERO_OUT))

  monkeypatch.setattr(sampling_noise, "noise", noise)
  plan = _plan("--epsilons=1,2,8", "--num_rounds=3,9,30")
  content = sampling_noise.report(plan, tmp_path)
  text = page.render(content, "md")
  # Three epsilons of six kinds, and two further numbers of rounds of the secret ones.
  assert len(computed) == len(set(computed)) == 3 * 6 + 2 * 4
  kept = pd.read_csv(tmp_path / "sampling_noise.csv")
  assert len(kept) == len(computed)
  cells = {}
  for line in text.splitlines():
    row = [cell.strip() for cell in line.strip("|").split("|")]
    cells.setdefault(row[0], row[1:])
  for title, factor in (("Poisson", 1.0), ("allocated", 0.9), ("cyclic", 4.0)):
    expected = [f"{factor * 3.0 / epsilon:.3f}" for epsilon in (1, 2, 8)]
    assert cells[f"{title}: a client’s data removed"] == expected
  assert cells["allocated: a client’s data replaced"][0] == f"{2 * 0.9 * 3.0:.3f}"
  (figure,) = page.figures(content)
  assert b"spaced, half the distance" in figure.light and b"Number of rounds" in figure.dark
  saved = sampling_noise._saved(
    sampling_noise._measure(plan, tmp_path / "sampling_noise.csv"),
    *("num_rounds", releases.REPLACE_ONE),
    epsilon=2.0,
  )
  assert saved.index.tolist() == [3, 9, 30] and saved.tolist() == pytest.approx([-10.0] * 3)
  assert len(computed) == 26
  sampling_noise.report(_plan("--epsilons=1,2,4,8", "--num_rounds=3,9,30"), tmp_path)
  assert {key[2] for key in computed[26:]} == {4.0}  # Of the new epsilon, which is now the middle.
  (tmp_path / "sampling_noise.csv").write_text("a,b\n1,2\n")
  with pytest.raises(ValueError, match="which this study did not write; remove it"):
    sampling_noise.report(plan, tmp_path)


@pytest.mark.parametrize(
  "flag, message",
  [("--epsilons=0", "Found --epsilons=0"), ("--clients_per_round=40", "at most half of it")],
)
def test_what_is_refused(flag, message):
  with pytest.raises(ValueError, match=message):
    _plan(flag)
