"""What rows say without models: ranks against scipy, and gross errors."""

import numpy as np
import pytest
from scipy import stats

from tff_superquantile.experiments.references import without_models

_OFFSETS = np.cumsum([0, *([9, 2, 14, 0, 30] * 6)])
_SIZES = np.diff(_OFFSETS)
_ROWS = int(_OFFSETS[-1])


def _x(seed):
  return np.round(np.random.default_rng(seed).normal(size=[_ROWS, 2]), 1)  # With ties.


def _ranks(x, y):
  return without_models.ranks(x, y, _OFFSETS, ["a", "b"])


def test_ranks_within_clients_are_means_of_spearmans():
  rng, x = np.random.default_rng(0), _x(0)
  y = x[:, 0] ** 3 + rng.normal(size=_ROWS)
  found = _ranks(x, y)[0]
  both = [(x[a:b, 0], y[a:b]) for a, b in zip(_OFFSETS, _OFFSETS[1:]) if b - a > 2]
  correlations = [stats.spearmanr(*pair).statistic for pair in both]
  weights = [len(pair[0]) - 1 for pair in both]
  assert found[::2] == ("a", "within")
  assert found.correlation == pytest.approx(np.average(correlations, weights=weights))


def test_of_a_class_they_follow_from_the_area_under_the_curve():
  rng, x = np.random.default_rng(1), _x(1)
  y = (x[:, 1] + rng.normal(size=_ROWS) < 0).astype(float)
  found = _ranks(x, y)[0]
  assert found.name == "b" and found.correlation < -0.3


@pytest.mark.parametrize(
  "label, expected",
  [
    (lambda x, of_client, rng: x[:, 0] ** 2 + 0.2 * rng.normal(size=_ROWS), ("a away", "within")),
    (lambda x, of_client, rng: of_client + 0.1 * rng.normal(size=_ROWS), ("a", "between")),
  ],
)
def test_what_rises_on_both_sides_and_what_differs_between_clients_is_found(label, expected):
  rng = np.random.default_rng(2)
  of_client = np.repeat(rng.normal(size=len(_SIZES)), _SIZES)
  x = _x(2)
  if expected[1] == "between":
    x[:, 0] = of_client
  found = _ranks(x, label(x, of_client, rng))
  assert any(rank.name.startswith(expected[0]) and rank.where == expected[1] for rank in found)


def test_of_noise_ranks_are_silent_but_for_one_in_a_hundred():
  """Also where clients differ in their levels, of inputs and of labels."""
  loud = 0
  for seed in range(200):
    rng = np.random.default_rng(seed)
    shift = np.repeat(rng.normal(size=[len(_SIZES), 2]), _SIZES, axis=0)
    y = np.repeat(rng.normal(size=len(_SIZES)), _SIZES) + rng.normal(size=_ROWS)
    loud += bool(_ranks(_x(seed) + shift, y))
  assert loud <= 7  # Of 200, beyond which 2 have a chance of 1 in 1000.


@pytest.mark.parametrize("classes", [1, 3])
def test_clients_differ_in_labels_beyond_chance_in_one_of_a_hundred_alike(classes):
  """One class in twenty: most clients have none of it, by chance. Columns but one tell all."""
  rng = np.random.default_rng(4)
  owner = np.repeat(np.arange(len(_SIZES)), _SIZES)
  found = []
  for skew in [0.0] * 60 + [0.5]:
    rare = rng.random(_ROWS) < 0.05 + skew * (owner % 2)
    y = rare[:, None] * np.eye(classes)[rng.integers(classes, size=_ROWS)]
    found.append(without_models.do_labels_differ(y, _OFFSETS))
  assert sum(found[:-1]) <= 4 and found[-1]  # Of 60, beyond which 0.6 have 1 in 1000.
  assert not without_models.do_labels_differ(np.ones([_ROWS, 1]), _OFFSETS)


def test_gross_errors_decide_where_they_have_most_of_the_squares():
  rng = np.random.default_rng(3)
  values, clients = rng.normal(size=300), np.repeat([f"c{i}" for i in range(30)], 10)
  assert without_models.gross(values, values, clients, "labels y", True) is None
  values[[70, 41]] = 60.0, 80.0
  for tells in (True, False):
    found = without_models.gross(values, 10 * values, clients, "labels y", tells)
    assert found.decides == tells
    assert found.text.startswith("2 of 300 labels y (0.7 %) are far from all others")
    assert found.text.endswith("the first 800 of client 'c4'")
  mild = np.append(rng.normal(size=3000), 21.0)
  found = without_models.gross(mild, mild, np.full(3001, "c"), "labels y", True)
  assert found is not None and not found.decides
