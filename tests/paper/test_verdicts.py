"""Every verdict turns where the number behind it is another one."""

import csv
import pathlib

import numpy as np
import pandas as pd
import pytest

from paper.statements import measurements
from paper.statements import on_comparisons
from paper.statements import on_convergence
from paper.statements import on_print
from paper.statements import on_privacy
from paper.statements import on_quantiles
from paper.statements import on_settings
from paper.statements import on_superquantile
from paper.statements import printed
from paper.statements import rows
from paper.statements import sources

_FOUND = rows.Verdict.REPRODUCED


@pytest.fixture(scope="module")
def kept():
  """The measurements that are kept, by source."""
  return {
    name: pd.read_csv(sources.MEASURED / f"{name}.csv", float_precision="round_trip")
    for name in sources.SOURCES
  }


def _verdict(made, key, about=""):
  # The first one: statements after it need not be made.
  return next(row.verdict for row in made if row.key == key and row.about == about)


_CHANGES = {
  "to": lambda before, number: number,
  "by": lambda before, number: number * before,
  "plus": lambda before, points: before + points / 100,
}
_MODULES = (on_comparisons, on_convergence, on_privacy, on_quantiles, on_settings)


def _measured():
  """A statement by a measurement, and a change of this with which it has the other verdict."""
  path = pathlib.Path(__file__).with_name("turning_measurements.csv")
  modules = {module.__name__.rpartition(".")[2]: module for module in _MODULES}
  for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines()):
    module, _, name = row.pop("statements").partition(".")
    yield pytest.param(getattr(modules[module], name), row, id=" ".join(row.values()))


@pytest.mark.parametrize("made, row", _measured())
def test_another_measurement_has_another_verdict(kept, made, row):
  frame = kept[row["source"]].copy()
  chosen = (frame["method"] == row["method"]) & (frame["metric"] == row["metric"])
  assert chosen.sum() == 1
  change = _CHANGES[row["change"]]
  frame.loc[chosen, "mean"] = change(frame.loc[chosen, "mean"].item(), float(row["number"]))
  before, other = (
    _verdict(made(measurements.Evidence(evidence)), row["key"], row["about"])
    for evidence in (kept, {**kept, row["source"]: frame})
  )
  assert {before, other} & {_FOUND, rows.Verdict.ELSEWHERE} and before is not other
  assert {before, other} & {rows.Verdict.DIFFERS, rows.Verdict.FALSE}


def _vary(points):
  """Other errors' deviations over clients, of every theta."""

  def changed(kept):
    frame = kept["synthetic"].copy()
    chosen = frame["method"].str.startswith("Superquantile") & (frame["metric"] == "test.error.std")
    frame.loc[chosen, "mean"] += points / 100
    return measurements.Evidence({**kept, "synthetic": frame})

  return changed


@pytest.mark.parametrize("points, verdict", [(0.0, "ELSEWHERE"), (9.0, "DIFFERS")])
def test_clients_vary_less_or_not(kept, points, verdict):
  made = on_comparisons.statements(_vary(points)(kept))
  assert _verdict(made, "vary", "the synthetic task") is rows.Verdict[verdict]


# A statement by the paper's tables; other cells with which it does not hold.
_PRINTED = [
  (
    on_print.statements, "all_methods",
    {("results_90", "Superquantile θ = 0.8", "EMNIST ConvNet"): 25.0},
  ),
  (on_print.subset_rows, "subset", {("results_90", "FedAvg-Sub", "EMNIST linear"): 49.0}),
  (on_print.statements, "vanilla", {("results_90", "FedAvg-Sub", "EMNIST ConvNet"): 26.5}),
  (
    on_print.statements, "vanilla",
    {("results_90", "Superquantile θ = 0.5", "EMNIST ConvNet"): 23.0},
  ),
  (on_print.statements, "next_best", {("results_90", "Tilted-ERM", "EMNIST ConvNet"): 25.4}),
  (on_print.statements, "q_ffl", {("results_90", "q-FFL", "Sent140 linear"): 46.3}),
  (on_print.statements, "tied", {("results_90", "Superquantile θ = 0.1", "EMNIST ConvNet"): 25.6}),
  (on_print.statements, "best_mean", {("results_mean", "FedAvg", "EMNIST ConvNet"): 10.0}),
  (
    on_print.on_costs, "small_cost",
    {("results_mean", "Superquantile θ = 0.5", "EMNIST linear"): 34.0},
  ),
  (on_print.on_personalization, "personal_gap", {("pers", "FedAvg", "mean, after"): 12.0}),
  (
    on_print.on_personalization, "personal",
    {("pers", f"Superquantile θ = {theta}", f"{metric}, after"): 30.0
     for theta in (0.8, 0.5, 0.1) for metric in ("mean", "p90")},
  ),
  (
    on_print.on_chains, "vary",
    {(table, "FedAvg", "p10"): 45.0 for table in printed.TABLES if table.startswith("ext_comp")},
  ),
]  # fmt: skip


@pytest.mark.parametrize("made, key, cells", _PRINTED)
def test_another_cell_has_another_verdict(monkeypatch, made, key, cells):
  before = _verdict(made(), key)
  other = printed.read().copy()
  for (table, method, column), value in cells.items():
    chosen = (other["table"] == table) & (other["method"] == method) & (other["column"] == column)
    assert chosen.sum() == 1, (table, method, column)
    other.loc[chosen, "value"] = value
  monkeypatch.setattr(printed, "read", lambda: other)
  after = _verdict(made(), key)
  assert {before, after} & {_FOUND} and before is not after


def test_afl_is_the_highest_where_nothing_is_above_it(monkeypatch):
  assert _verdict(on_print.statements(), "afl") is rows.Verdict.DIFFERS
  other = printed.read().copy()
  other.loc[other["method"] == "AFL", "value"] = 90.0
  monkeypatch.setattr(printed, "read", lambda: other)
  assert _verdict(on_print.statements(), "afl") is _FOUND


def test_cells_that_are_printed_twice_are_compared(monkeypatch):
  (row,) = printed.twice_rows()
  assert row.verdict is rows.Verdict.INCONSISTENT and row.outcome.startswith("60 of the 64")
  cells = [
    (name, method, task, again, again) for name, method, task, _, again in printed._same_cells()
  ]
  monkeypatch.setattr(printed, "_same_cells", lambda: iter(cells))
  assert _verdict(printed.twice_rows(), "twice") is _FOUND


def test_ends_of_theta_and_the_smoothed_objective_are_judged_by_numbers(monkeypatch):
  draws = [(np.array([0.1, 0.5, 0.9]), 0.5), (np.array([0.1, 0.2, 0.5, 0.9]), 0.5)]
  monkeypatch.setattr(on_superquantile, "_draws", lambda: iter(draws))
  assert _verdict(on_superquantile.of_superquantile(), "ends") is _FOUND
  monkeypatch.setattr(on_superquantile, "_smoothing_gaps", lambda: (2.1, 1.0))
  assert _verdict(on_superquantile.of_smoothing(), "smoothing") is rows.Verdict.FALSE
  monkeypatch.setattr(on_superquantile, "_smoothing_gaps", lambda: (1.9, 1.0))
  assert _verdict(on_superquantile.of_smoothing(), "smoothing") is _FOUND
  right = on_superquantile.superquantile.superquantile
  # A threshold rule that averages nobody is too far below the superquantile.
  with monkeypatch.context() as patch:
    draws_of_many = [*draws, (np.array([0.8, 0.9, 1.0]), 0.9)]
    patch.setattr(on_superquantile, "_draws", lambda: iter(draws_of_many))
    patch.setattr(on_superquantile.superquantile, "tail_weights", lambda z, theta: 0.0 * z)
    assert _verdict(on_superquantile.of_superquantile(), "not_whole") is rows.Verdict.FALSE
  for broken in (0.999, 1.0 - 1e-9):  # Only one of both ends.

    def other(losses, theta, broken=broken):
      return right(losses, theta) + (0.01 if (theta > broken) == (broken < 0.9995) else 0.0)

    monkeypatch.setattr(on_superquantile.superquantile, "superquantile", other)
    assert _verdict(on_superquantile.of_superquantile(), "ends") is rows.Verdict.FALSE


@pytest.mark.parametrize(
  "key, verdict", [("theorem_a", "FALSE"), ("modulus", "FALSE"), ("dimension", "MISPRINT")]
)
def test_the_theorem_on_quantiles_could_be_false(monkeypatch, key, verdict):
  def larger(sensitivity, dimension, sigma, num_clients):
    return 1 / sensitivity

  monkeypatch.setattr(on_quantiles, "lemma_epsilon", larger)
  monkeypatch.setattr(on_quantiles, "wrap_chance", lambda *setting: setting[-1])
  assert _verdict(on_quantiles.of_theorem(), key) is rows.Verdict[verdict]


def test_rates_of_bins_and_clients_could_be_others(monkeypatch):
  for key in ("log_squared", "communication"):
    assert _verdict(on_quantiles.of_theorem(), key) is _FOUND
  # The chosen numbers of docs/paper.md, and by hand at log2 b = 4.
  assert on_quantiles.least_modulus(2.4536, 5.0, 100, 64, 1e-6) == pytest.approx(4496, abs=2)
  assert on_quantiles.largest_error(16, 64e-5) == pytest.approx(16 * np.sqrt(np.log(1e5)))
  monkeypatch.setattr(on_quantiles, "largest_error", lambda bins, delta: np.log2(bins) ** 2.1)
  monkeypatch.setattr(on_quantiles, "least_modulus", lambda sigma, c, n, bins, delta: n**1.6)
  for key in ("log_squared", "communication"):
    assert _verdict(on_quantiles.of_theorem(), key) is rows.Verdict.FALSE


def test_the_lemma_on_sums_of_noise_is_the_papers():
  # By hand, with psi of two clients: 10 e^(- pi^2 sigma^2).
  sigma, d = 0.5, 8
  psi = 10 * np.exp(-(np.pi**2) * sigma**2)
  first = np.sqrt(9 / (2 * sigma**2) + psi * d / 2)
  second = 3 / (np.sqrt(2) * sigma) + psi * np.sqrt(d)
  assert on_quantiles.lemma_epsilon(3.0, d, sigma, 2) == pytest.approx(min(first, second))


def test_gaussian_classes_with_identity_covariance_would_be_reproduced(monkeypatch):
  monkeypatch.setattr(on_settings, "_shape_of_the_call", lambda: (0.99, 1.02, 20, 0.03))
  assert _verdict(on_settings._of_classes(), "gaussians") is _FOUND
  for shape in ((0.9, 1.02, 20, 0.03), (0.99, 1.1, 20, 0.03), (0.99, 1.02, 20, 0.1)):
    monkeypatch.setattr(on_settings, "_shape_of_the_call", lambda shape=shape: shape)
    assert _verdict(on_settings._of_classes(), "gaussians") is rows.Verdict.INCONSISTENT
