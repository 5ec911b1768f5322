"""The test vectors are what the code gives, and what dp_accounting gives where it has an answer."""

import csv
import math
import pathlib

import dp_accounting
from dp_accounting import pld
import pytest

from privacy import releases
from privacy import vectors

_FILE = pathlib.Path(__file__).resolve().parents[2] / "docs/reference/accounting_vectors.csv"
_ROWS = list(csv.DictReader(_FILE.read_text(encoding="utf-8").splitlines()))
_SETTINGS = list(vectors.settings())


def test_there_are_200_of_all_kinds():
  assert len(_ROWS) == len(_SETTINGS) == 200 and tuple(_ROWS[0]) == vectors.COLUMNS
  assert len({tuple(row.values())[:9] for row in _ROWS}) == 200
  for name in ("sampling", "relation", "threshold_kind", "num_rounds", "delta"):
    assert len({row[name] for row in _ROWS}) >= 2
  assert [row["epsilon"] for row in _ROWS].count("") <= 1


def _assert_row(index):
  found = {name: "" if x is None else str(x) for name, x in _SETTINGS[index].row().items()}
  for name, expected in _ROWS[index].items():
    if name.startswith("epsilon") and expected:
      assert math.isclose(float(found[name]), float(expected), rel_tol=1e-6, abs_tol=1e-9), name
    else:
      assert found[name] == expected, name


@pytest.mark.parametrize("index", range(0, 200, 13))
def test_a_row_is_what_the_code_gives(index):
  _assert_row(index)


@pytest.mark.slow
def test_all_rows_are_what_the_code_gives():
  for index in range(200):
    _assert_row(index)


def _theirs(setting):
  """Epsilon by dp_accounting's own privacy loss distributions, of the joint mechanism."""
  release = setting.release
  accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
  event = dp_accounting.GaussianDpEvent(release.effective_noise_multiplier)
  if release.sampling == releases.POISSON:
    event = dp_accounting.PoissonSampledDpEvent(release.sampling_probability, event)
  return accountant.compose(event, setting.num_rounds).get_epsilon(setting.delta)


def _comparable():
  for index, setting in enumerate(_SETTINGS):
    tight = setting.release.sampling != releases.FIXED_SIZE
    # Its grid is 1e-4 for all runs, which adds up over many rounds and does not end for others.
    if tight and setting.release.relation == releases.ZERO_OUT and setting.num_rounds <= 300:
      yield index


@pytest.mark.parametrize("index", _comparable())
def test_dp_accounting_agrees(index):
  row = _ROWS[index]
  if not row["epsilon_pld"] or float(row["epsilon"]) > 60:
    pytest.skip("dp_accounting's grid does not reach there")
  theirs = _theirs(_SETTINGS[index])
  assert float(row["epsilon"]) == pytest.approx(
    theirs, rel=2e-3, abs=1e-4 + 5e-5 * _SETTINGS[index].num_rounds
  )
