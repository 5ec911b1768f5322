"""The test vectors are what the code gives, and what dp_accounting gives where it has an answer."""

import csv
import math
import pathlib

import pytest

from benchmarks.accounting import vectors
from privacy import accounting

_FILE = pathlib.Path(__file__).resolve().parents[2] / "docs/reference/accounting_vectors.csv"
_ROWS = list(csv.DictReader(_FILE.read_text(encoding="utf-8").splitlines()))
_SETTINGS = list(vectors.settings())


def test_there_are_220_of_all_kinds():
  assert len(_ROWS) == len(_SETTINGS) == 220 and tuple(_ROWS[0]) == vectors.COLUMNS
  assert len({tuple(row.values())[:12] for row in _ROWS}) == 220
  for name in ("sampling", "relation", "threshold_kind", "num_rounds", "delta"):
    assert len({row[name] for row in _ROWS}) >= 2
  assert [row["epsilon"] for row in _ROWS].count("") <= 1


@pytest.mark.parametrize(
  "index", [pytest.param(i, marks=[pytest.mark.slow] if i % 13 else []) for i in range(220)]
)
def test_a_row_is_what_the_code_gives(index):
  numbers = {name: "" if x is None else str(x) for name, x in _SETTINGS[index].row().items()}
  for name, expected in _ROWS[index].items():
    if name.startswith("epsilon") and expected:
      assert math.isclose(float(numbers[name]), float(expected), rel_tol=1e-6, abs_tol=1e-9), name
    else:
      assert numbers[name] == expected, name


def test_dp_accounting_agrees():
  compared = [row for row in _ROWS if row["epsilon_dp_accounting"]]
  assert len(compared) > 40 and {row["sampling"] for row in compared} == {"poisson", "none"}
  for row in compared:
    # Its grid of 1e-4 rounds upwards in each round.
    ours, theirs = float(row["epsilon"]), float(row["epsilon_dp_accounting"])
    assert ours - 2e-3 * ours - 1e-4 <= theirs, row
    assert theirs <= ours + 2e-3 * ours + 1e-4 + 5e-5 * int(row["num_rounds"]), row


def test_noise_of_the_clients_costs_a_little_more():
  for row, setting in zip(_ROWS, _SETTINGS):
    if row["num_shares"] and row["epsilon"]:
      release = setting.release.without_mechanisms()
      plain = accounting.epsilon(release, setting.num_rounds, setting.delta).epsilon
      # The slack, and cohorts that are cut: allocated ones of 7 are with a chance above delta. The
      # grid of losses is another one.
      more = 1.04 if row["sampling"] == "allocated" else 1.02
      assert plain * (1.0 - 1e-6) <= float(row["epsilon"]) <= plain * more + 2e-3, row
