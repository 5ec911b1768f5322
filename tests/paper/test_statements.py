"""The page on the paper: its print, its verdicts, and that the kept page is what the code makes."""

import itertools
import math
import pathlib
import re
import types

from helpers import commands
import numpy as np
import pandas as pd
import pytest

from paper import accounting
from paper import smoothed
from paper import statements
from paper.statements import measurements
from paper.statements import on_comparisons
from paper.statements import on_convergence
from paper.statements import on_people
from paper.statements import on_print
from paper.statements import on_privacy
from paper.statements import on_quantiles
from paper.statements import on_settings
from paper.statements import on_superquantile
from paper.statements import printed
from paper.statements import rows
from paper.statements import schematics
from paper.statements import sources
from tff_superquantile import superquantile

_ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def latex(shared_dir):
  """The text of the paper's LaTeX."""
  path = shared_dir / "paper" / "superquantile_federated_learning.tex"
  if not path.exists():
    pytest.skip(f"the paper's LaTeX is not at {path}")
  return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def kept():
  return statements.report(measurements.load())


def _measured(*entries, sd=0.01, num_seeds=5):
  """Measurements as `measurements` keeps them, of (method, metric, value)."""
  columns = list(sources.COLUMNS)
  return pd.DataFrame([(*entry, sd, num_seeds) for entry in entries], columns=columns)


def _on_synthetic(key, *entries):
  """The statement on a comparison of the synthetic task."""
  found = measurements.Evidence({"synthetic": _measured(*entries)})
  (row,) = [
    row
    for row in on_comparisons.statements(found)
    if row.key == key and row.about == "the synthetic task"
  ]
  return row


def test_the_page_in_the_docs_is_what_the_kept_measurements_make(kept):
  assert (_ROOT / "docs" / "paper.md").read_text(encoding="utf-8") == kept.render(
    "md", "images/paper-"
  ), "run ./run_experiments.sh paper --docs_dir=docs"


# The beginnings of the rows of docs/privacy_review.md on the paper, and the rows of its page.
_ON_PRIVACY_PAGE = {
  "Cohorts have a fixed size": "spent",
  "The exact number of tail": "public_count",
  "Weights with noise": "concentrated",
  "Sampling bounds": "amplified",
  "The gap between sums": "psi",
  "delta = 1/n": "",
}


def test_the_page_on_privacy_judges_the_paper_as_the_papers_page_does(kept):
  text = (_ROOT / "docs" / "privacy_review.md").read_text(encoding="utf-8")
  section = text[text.index("## The paper's accounting") : text.index("## How it is checked")]
  cells = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
  found = {row[0]: row[-1] for row in cells if row[-1] != "verdict"}
  of_page = {row.key: row.verdict.value for row in kept.statements if row.key}
  of_page[""] = rows.Verdict.OURS.value
  for beginning, key in _ON_PRIVACY_PAGE.items():
    (cell,) = [cell for cell in found if cell.startswith(beginning)]
    assert found.pop(cell) == of_page[key], cell
  assert not found


def test_every_quotation_is_the_papers_and_at_its_line(latex):
  lines = latex.splitlines()
  for key, words in rows.words().items():
    after = " ".join(" ".join(lines[words.line - 1 : words.line + 12]).split())
    assert words.latex in after, key
    # Not only somewhere after the line: it begins there.
    later = " ".join(" ".join(lines[words.line : words.line + 12]).split())
    assert words.latex not in later or words.latex in " ".join(lines[words.line - 1].split()), key


def test_every_quotation_has_a_row_and_is_plain_text(kept):
  assert {row.key for row in kept.statements if row.key} == set(rows.words())
  for key, words in rows.words().items():
    assert not re.search(r"[\\\\$~]", rows.typeset(words.latex)), key


def test_every_printed_cell_is_in_the_papers_table(latex):
  text = latex
  for name, cells in printed.read().groupby("table"):
    label = f"table:sfl:{name}" if name == "pers" else name
    (start,) = [found.start() for found in re.finditer(rf"\\label{{[\w:]*{label}}}", text)]
    start = text.index(r"\midrule", start)
    # Without the values of methods' parameters.
    body = re.sub(r"[qt]=[\d.]+", "", text[start : text.index(r"\end{tabular}", start)])
    numbers = re.findall(r"\d+\.\d\d", body)
    ours = [f"{number:.2f}" for cell in cells.itertuples() for number in (cell.value, cell.sd)]
    assert ours == numbers


def test_every_cell_has_a_row_with_a_verdict(kept):
  table = pd.read_csv(pd.io.common.StringIO(kept.page.csv), keep_default_na=False)
  is_cell = table["evidence"].str.contains("Printed: ")
  cells = table[table["where"].str.startswith("Table") & is_cell]
  assert len(cells) == len(printed.read()) == 308
  assert set(table["verdict"]) == {verdict.value for verdict in rows.Verdict}


@pytest.mark.parametrize(
  "tail, verdict",
  [
    (0.48, rows.Verdict.ELSEWHERE),
    (0.495, rows.Verdict.UNCHECKED),  # A tie: within a standard deviation.
    (0.505, rows.Verdict.UNCHECKED),
    (0.52, rows.Verdict.DIFFERS),
  ],
)
def test_the_smallest_tail_is_judged_by_the_spread(tail, verdict):
  tails = {"FedAvg": 0.54, "Tilted-ERM t = 5": 0.5, "Superquantile θ = 0.5": tail}
  means = [(method, "test.error.mean", 0.2) for method in tails]
  p90s = [(method, "test.error.p90", value) for method, value in tails.items()]
  row = _on_synthetic("smallest", *means, *p90s)
  assert row.verdict is verdict and ("A tie" in row.why) == (verdict is rows.Verdict.UNCHECKED)


@pytest.mark.parametrize("loss, verdict", [(2.2, "UNCHECKED"), (0.8, "ELSEWHERE")])
def test_afl_is_not_judged_before_it_converges(loss, verdict):
  entries = [
    (method, metric, value)
    for method, error in (("FedAvg", 0.2), ("AFL (q-FFL q = 10)", 0.4))
    for metric, value in (
      ("test.error.mean", error), ("test.error.p90", error), ("train.loss.mean", loss)
    )
  ]  # fmt: skip
  assert _on_synthetic("afl", *entries).verdict is rows.Verdict[verdict]


def test_a_statement_without_measurements_says_what_to_run():
  judged = list(on_comparisons.statements(measurements.Evidence({})))
  assert judged and all(row.verdict is rows.Verdict.UNCHECKED for row in judged)
  assert all("./run_experiments.sh" in row.why for row in judged)


def _verdicts(made):
  return {(row.key, row.about): row.verdict for row in made}


def _assert_all(made, verdict, *keys):
  verdicts = _verdicts(made)
  assert {verdicts[key, ""] for key in keys} == {rows.Verdict[verdict]}


def test_what_the_superquantile_is_holds_and_its_misprints_are_found(monkeypatch):
  verdicts = _verdicts(on_superquantile.of_superquantile())
  assert verdicts["integral", ""] is rows.Verdict.REPRODUCED
  assert verdicts["quantile", ""] is rows.Verdict.MISPRINT
  assert verdicts["threshold", ""] is rows.Verdict.FALSE
  # Once true is not always.
  turns = itertools.cycle([on_superquantile._upper_quantile, on_superquantile._lower_quantile])
  with monkeypatch.context() as patch:
    patch.setattr(on_superquantile, "_lower_quantile", lambda *of: next(turns)(*of))
    verdicts = _verdicts(on_superquantile.of_superquantile())
  assert verdicts["threshold", ""] is verdicts["quantile", ""] is rows.Verdict.FALSE
  # With the other quantile the proposition is true, and the two are one.
  monkeypatch.setattr(on_superquantile, "_lower_quantile", on_superquantile._upper_quantile)
  verdicts = _verdicts(on_superquantile.of_superquantile())
  assert verdicts["threshold", ""] is rows.Verdict.REPRODUCED
  assert verdicts["two_quantiles", ""] is rows.Verdict.REPRODUCED


@pytest.mark.parametrize(
  "broken, key, other",
  [
    ("superquantile", "integral", lambda losses, *_: np.mean(losses)),
    ("tail_weights", "not_whole", lambda losses, *_: np.full(len(losses), 10.0)),
    ("dual_weights", "filtering", lambda losses, *_: np.full(len(losses), 1 / len(losses))),
  ],
)
def test_checks_of_the_superquantile_fail_where_it_is_another(monkeypatch, broken, key, other):
  assert _verdicts(on_superquantile.of_superquantile())[key, ""] is rows.Verdict.REPRODUCED
  monkeypatch.setattr(superquantile, broken, other)
  assert _verdicts(on_superquantile.of_superquantile())[key, ""] is rows.Verdict.FALSE


def test_formulas_are_misprints_where_what_is_meant_is_true(monkeypatch):
  keys = ("subgradient", "duality", "tilted")
  _assert_all(on_superquantile.of_formulas(), "MISPRINT", "entropic", *keys)

  def uniform(losses, *setting):
    return np.full(len(losses), 1 / len(losses))

  monkeypatch.setattr(superquantile, "superquantile", lambda losses, theta: float(np.max(losses)))
  monkeypatch.setattr(smoothed, "dual_weights", uniform)
  _assert_all(on_superquantile.of_formulas(), "FALSE", *keys)


def test_proofs_and_gradients_are_judged_by_numbers(monkeypatch):
  keys = ("variance", "dissimilarity", "drift_regular")
  _assert_all(on_convergence.of_proofs(), "FALSE", "proof_step")
  _assert_all(on_convergence.of_proofs(), "MISPRINT", "rate_squared")
  _assert_all(on_convergence.of_gradients(), "REPRODUCED", *keys)
  monkeypatch.setattr(on_convergence, "_gradient_shares", lambda: (1.1, 1.2, 3))
  monkeypatch.setattr(on_convergence, "regular_drift", lambda *setting: 1.3)
  monkeypatch.setattr(on_convergence, "_rate_against_abstract", lambda kappa, power: 3.0)
  _assert_all(on_convergence.of_gradients(), "FALSE", *keys)
  _assert_all(on_convergence.of_proofs(), "INCONSISTENT", "abstract_rate")


@pytest.mark.parametrize(
  "once, squared, verdict", [(0.9, 0.9, "REPRODUCED"), (0.9, 1.1, "MISPRINT"), (1.1, 1.2, "FALSE")]
)
def test_the_lemma_decides_on_the_square_of_a_logarithm(monkeypatch, once, squared, verdict):
  monkeypatch.setattr(on_convergence, "_shares_of_lemma", lambda: (once, squared, 7))
  assert _verdicts(on_convergence.of_proofs())["rate_squared", ""] is rows.Verdict[verdict]


def test_the_lemma_on_learning_rates_is_tried_where_its_square_matters():
  once, squared, _ = on_convergence._shares_of_lemma()
  assert once <= 1.0 + 1e-9
  # By hand: A = 1, lambda T = 1000, lambda Gamma = 1, B next to nothing, C = 1e6 / e^5.
  rate, c = 25e-3, 1e6 / math.exp(5)
  by_hand = (2 * math.exp(-25) + c * rate**2) / (2 * math.exp(-1000) + 3 * c / 1e6 * 25)
  assert 1.0 < by_hand < squared


def test_gradients_of_unequal_clients_break_a_smaller_bound():
  losses, gradients = on_convergence._problem(0)
  variance, second, mean = on_convergence._cohort_moments(losses, gradients, 0.5, 10, np.zeros(4))
  # The second moment of unit vectors, and that the mean of unit vectors is shorter.
  assert second == pytest.approx(1.0) and 0 < variance < 1 - mean + 1e-9


def test_privacy_is_judged_by_numbers(monkeypatch):
  verdicts = _verdicts(on_privacy.of_accounting())
  assert verdicts["concentrated", ""] is rows.Verdict.FALSE
  assert verdicts["average", ""] is rows.Verdict.INCONSISTENT
  assert verdicts["amplified", ""] is rows.Verdict.MISPRINT
  monkeypatch.setattr(on_privacy, "_TAIL", 2)  # Then sum and average are as far apart.
  monkeypatch.setattr(accounting, "update_rho", lambda z, as_typeset=False: 1 / (2 * z**2))
  monkeypatch.setattr(on_privacy, "renyi_at_least", lambda z, q, order: q * order / (2 * z**2))
  _assert_all(on_privacy.of_accounting(), "REPRODUCED", "concentrated", "average", "amplified")


def test_the_theorem_on_quantiles_is_judged_by_numbers(monkeypatch):
  verdicts = _verdicts(on_quantiles.of_theorem())
  assert verdicts["bins", ""] is verdicts["dimension", ""] is rows.Verdict.MISPRINT
  assert verdicts["psi", ""] is rows.Verdict.FALSE
  assert verdicts["theorem_a", ""] is rows.Verdict.REPRODUCED
  monkeypatch.setattr(on_quantiles.shares, "sum_slack", lambda sigma, num: 0.0)
  assert _verdicts(on_quantiles.of_theorem())["psi", ""] is rows.Verdict.REPRODUCED


@pytest.mark.parametrize("sigma, num, bins, delta", [(0.5, 10, 4, 0.1), (3.0, 100, 64, 1e-3)])
def test_the_chance_of_wrapping_is_that_of_discrete_gaussians(sigma, num, bins, delta):
  weight = {k: math.exp(-(k**2) / (2 * sigma**2)) for k in range(-300, 301)}
  least = math.sqrt(2 * sigma**2 * math.log(16 * num * bins / delta))
  beyond = math.fsum(w for k, w in weight.items() if abs(k) > least) / math.fsum(weight.values())
  found = on_quantiles.wrap_chance(sigma, num, bins, delta)
  assert 0 < found == pytest.approx(num * (2 * bins - 2) * beyond)


def test_renyi_divergences_of_samples_are_bounded_from_below():
  for z, q, order in ((1.4, 0.04, 8), (0.7, 0.2, 3), (3.0, 0.5, 30)):
    points = np.linspace(-60 * z, 60 * z, 400_001)
    density = np.exp(-(points**2) / (2 * z**2)) / math.sqrt(2 * math.pi * z**2)
    ratio = (1 - q) + q * np.exp((2 * points - 1) / (2 * z**2))
    exact = math.log(np.sum(density * ratio**order) * (points[1] - points[0])) / (order - 1)
    assert on_privacy.renyi_at_least(z, q, order) < exact < order / (2 * z**2)


def test_norms_of_gradients_are_those_of_a_loop_over_examples(monkeypatch):
  rng = np.random.default_rng(1)
  x, y = rng.normal(size=(5, 4, 3)), rng.integers(0, 3, size=(5, 4))
  found = on_settings.gradient_norms(x, y, num_rounds=3, cohort_size=2, rate=0.5)
  draws, weights = np.random.default_rng(0), np.zeros((3, 3))
  for norms in found:
    gradients = []
    for client in draws.choice(5, 2, replace=False):
      gradient = np.zeros((3, 3))
      for features, label in zip(x[client], y[client]):
        odds = np.exp(features @ weights)
        for other in range(3):
          gradient[:, other] += (odds[other] / odds.sum() - (other == label)) * features / 4
      gradients.append(gradient)
    assert norms == pytest.approx([np.linalg.norm(gradient) for gradient in gradients])
    weights = weights - 0.5 * sum(gradients) / 2
  for share, verdict in ((0.9, "REPRODUCED"), (0.7, "DIFFERS")):
    norms = share * np.array([0.9, 1.1, 1.3, 1.5])
    monkeypatch.setattr(on_settings, "_norms_of_fed_avg", lambda norms=norms: norms)
    (row,) = on_settings._of_norms()
    assert row.verdict is rows.Verdict[verdict]


def test_gaussian_classes_would_be_found():
  rng = np.random.default_rng(0)
  y = np.repeat([0, 1], 20_000)
  low, high, rank, apart = on_settings.class_shape(rng.normal(size=(40_000, 5)), y)
  assert 0.95 < low <= high < 1.05 and rank == 5 and apart < 0.05
  x = rng.normal(size=(40_000, 5)) * np.where(y == 0, 1, 2)[:, np.newaxis]
  assert on_settings.class_shape(x, y)[3] > 0.5


def test_marks_that_break_the_papers_rule_are_found_and_ties_are_called_ties():
  found = {row.about: row.verdict for row in printed.mark_rows()}
  assert found["Table 6, sd"] is rows.Verdict.MISPRINT
  assert found["Table 6, p10"] is rows.Verdict.UNCHECKED
  assert "Table 2, EMNIST linear" not in found


def test_standard_deviations_are_bounded_by_percentiles(monkeypatch):
  verdicts = {row.about[:7]: row.verdict for row in on_print.spread_rows()}
  assert verdicts["Table 6"] is verdicts["Table 9"] is rows.Verdict.FALSE
  assert verdicts["Table 7"] is rows.Verdict.UNCHECKED
  assert verdicts["Table 8"] is rows.Verdict.REPRODUCED
  _print(monkeypatch, "ext_comp_emnist_linear", "AFL", "sd", value=24.0)
  verdicts = {row.about[:7]: row.verdict for row in on_print.spread_rows()}
  assert verdicts["Table 6"] is rows.Verdict.UNCHECKED


def test_the_bounds_of_a_standard_deviation_hold_for_samples():
  rng = np.random.default_rng(0)
  for shape in rng.uniform(0.2, 4.0, size=(50, 2)):
    errors = 100 * rng.beta(*shape, size=1000)
    low, middle, high = np.quantile(errors, (0.1, 0.5, 0.9), method="inverted_cdf")
    least = on_print._least_sd(errors.mean(), low, high)
    assert least <= errors.std() <= on_print._largest_sd(errors.mean(), low, middle, high) + 0.01


def _print(monkeypatch, table, method, column, **changes):
  """Prints another number in a cell of the paper."""
  cells = printed.read().copy()
  chosen = (cells["table"] == table) & (cells["method"] == method) & (cells["column"] == column)
  assert chosen.sum() == 1
  for name, value in changes.items():
    cells.loc[chosen, name] = value
  monkeypatch.setattr(printed, "read", lambda: cells)


def test_entries_that_are_bold_with_their_sd_are_judged_by_it(monkeypatch):
  (row,) = printed.entire_rows()
  broken = ["Table 6, mean (FedProx)", "Table 6, p50 (FedProx)"]
  assert row.verdict is rows.Verdict.MISPRINT and all(name in row.outcome for name in broken)
  _print(monkeypatch, "ext_comp_emnist_linear", "FedProx", "mean", mark="entirely bold")
  (row,) = printed.entire_rows()
  assert "Table 6, mean" not in row.outcome


def test_theta_and_afl_are_a_chain_if_no_step_turns_by_more_than_one_sd(monkeypatch):
  def turning():
    (row,) = [row for row in on_print.on_chains() if row.about.startswith("Do errors")]
    return row.outcome

  assert "EMNIST, linear (mean)" not in turning() and "EMNIST, ConvNet (mean)" in turning()
  _print(monkeypatch, "ext_comp_emnist_linear", "Superquantile θ = 0.8", "mean", value=36.0)
  assert "EMNIST, linear (mean)" in turning()


def test_a_value_is_monotone_up_to_its_sd():
  def chain(*means, sd=0.02):
    return measurements.is_monotone([measurements.Value(mean, sd, 5) for mean in means])

  assert chain(0.1, 0.2, 0.3) and chain(0.3, 0.2, 0.1) and chain(0.1, 0.09, 0.3)
  assert not chain(0.1, 0.07, 0.3) and not chain(0.1, 0.4, 0.3)
  assert not chain(0.1, 0.09, 0.3, sd=np.nan)


def _sizes(ours, theirs, least):
  """Measurements of the ConvNet: the changes of thirds of clients, and where the last begins."""
  entries = [("FedAvg", "test.largest_third.examples.least", least)]
  for method, pair in {"Superquantile θ = 0.5": ours, "Tilted-ERM t = 1": theirs}.items():
    # What is measured of a method has its 90th percentile, too.
    entries.append((method, "test.error.p90", 0.1))
    entries += [
      (method, f"test.{third}_third.error.change", change)
      for third, change in zip(("smallest", "largest"), pair)
    ]
  return measurements.Evidence({"emnist_convnet": _measured(*entries, sd=0.001)})


@pytest.mark.parametrize(
  "ours, theirs, least, verdict",
  [
    ((-0.03, -0.01), (-0.01, -0.02), 400, rows.Verdict.ELSEWHERE),
    ((-0.01, -0.03), (-0.01, -0.02), 400, rows.Verdict.DIFFERS),
    ((-0.03, -0.01), (-0.02, -0.01), 400, rows.Verdict.DIFFERS),  # The rival helps the small, too.
    ((-0.03, -0.01), (-0.01, -0.02), 130, rows.Verdict.UNCHECKED),
  ],
)
def test_sizes_are_judged_where_there_are_clients_with_much(ours, theirs, least, verdict):
  row, linear, *_ = on_settings.of_sizes(_sizes(ours, theirs, least))
  assert row.verdict is verdict and linear.verdict is rows.Verdict.UNCHECKED
  assert "Tilted-ERM" in row.outcome and "./run_experiments.sh emnist_linear" in linear.why


def _people(source, entries, changes):
  """Measurements of a cross-validation; `changes` are of (before, after, metric), with the ends."""
  rows_of = list(entries)
  for (before, after, metric), numbers in changes.items():
    of = sources.between(before, after)
    rows_of += [(of, f"{metric}{end}", n) for end, n in zip(("", ".low", ".high"), numbers)]
  return measurements.Evidence({source: _measured(*rows_of, sd=np.nan, num_seeds=1)})


@pytest.mark.parametrize(
  "numbers, smallest, competitive, cell",
  [
    ((-0.02, -0.03, -0.01), "ELSEWHERE", "ELSEWHERE", "holds"),
    ((-0.02, -0.05, 0.01), "UNCHECKED", "ELSEWHERE", "holds in direction"),
    ((0.02, -0.01, 0.05), "UNCHECKED", "ELSEWHERE", "not seen"),
    ((0.02, 0.01, 0.05), "DIFFERS", "DIFFERS", "contradicted"),
  ],
)
def test_changes_of_people_are_judged_by_their_intervals(numbers, smallest, competitive, cell):
  half, pairs = "Superquantile θ = 0.5", {}
  for metric in ("mean", "p90", "superquantile_90"):
    pairs["FedAvg", half, f"test.error.{metric}"] = numbers
  levels = [
    (method, f"test.error.{metric}", 0.5 + add)
    for method, add in (("FedAvg", 0.0), (half, numbers[0]), ("Tilted-ERM t = 1.0", 0.1))
    for metric in ("mean", "p90", "superquantile_90")
  ]
  found = _people("writers_linear", levels, pairs)
  verdicts = {
    row.key: row.verdict.name
    for row in on_comparisons.statements(found)
    if row.about == "EMNIST’s writers, linear"
  }
  assert (verdicts["smallest"], verdicts["competitive"]) == (smallest, competitive)
  (row,) = [row for row in on_settings.of_histograms(found) if row.about == "EMNIST’s writers"]
  assert row.verdict.name == smallest
  (table,) = on_people.grids(found)
  ((name, (mean, p90), _),) = table.rows
  assert name == half and p90.text.endswith(f": {cell}") and "−1.2 → " in p90.text
  # Its mean is printed above FedAvg's, by more than their sds.
  other = {"holds": "contradicted", "holds in direction": "not seen"}
  other |= {value: key for key, value in other.items()}
  assert mean.text.endswith(f": {other[cell]}") and "+0.6 → " in mean.text


def test_what_the_paper_prints_within_its_spread_is_no_claim():
  change = measurements.Change(0.02, 0.01, 0.03)
  assert on_people.verdict(-0.004, 0.0041, change) == "no claim"
  assert on_people.verdict(-0.004, 0.0039, change) == "contradicted"


def test_cross_validations_are_kept_with_the_changes_between_methods(tmp_path):
  errors = {"fed_avg": "0.25", "superquantile_theta_0.5": "0.5"}
  for (method, error), seed in itertools.product(errors.items(), (0, 1)):
    folder = tmp_path / "emnist_linear_folds_2" / method / f"seed_{seed}"
    folder.mkdir(parents=True)
    flags = f"--task=emnist_linear\n--folds=2\n--client_split=by_id\n--seed={seed}\n"
    flags += "--exact_siblings=refused\n"
    (folder / "flags.txt").write_text(f"{flags}--algorithm={method.split('_theta')[0]}\n")
    clients = "".join(f"{seed} {i},{error},0.5,{10 + i}\n" for i in range(9))
    (folder / "test_clients.csv").write_text(f"client_id,error,loss,num_examples\n{clients}")
    (folder / "metrics.json").write_text('{"test": {"error": {"mean": 0.5, "p90": 0.5}}}')
    (folder / "rounds.csv").write_text("round\n9\n")
  kept = sources.SOURCES["writers_linear"].read(tmp_path)
  found = measurements.Evidence({"writers_linear": kept})
  change = found.change("writers_linear", "FedAvg", "Superquantile θ = 0.5", "test.error.p90")
  assert change == pytest.approx((0.25, 0.25, 0.25))
  assert found.methods("writers_linear") == ["FedAvg", "Superquantile θ = 0.5"]
  assert found.is_paired("writers_linear") and not found.is_paired("synthetic")
  # Kept changes go where one of their methods does.
  short = kept.copy()
  short.loc[(short["method"] == "FedAvg") & (short["metric"] == "rounds"), "mean"] = 5.0
  left, length = measurements._of_one_length(short)
  assert length == 9.0 and set(left["method"]) == {"Superquantile θ = 0.5"}


def test_runs_with_names_of_their_own_are_no_methods_of_a_comparison(tmp_path):
  for name, flags in {"fed_avg": "", "mine": "--run_name=mine\n--num_rounds=9\n"}.items():
    folder = tmp_path / "synthetic" / name / "seed_0"
    folder.mkdir(parents=True)
    (folder / "flags.txt").write_text(f"--exact_siblings=refused\n--algorithm=fed_avg\n{flags}")
    (folder / "metrics.json").write_text('{"test": {"error": {"mean": 0.1}}}')
  found = sources.SOURCES["synthetic"].read(tmp_path)
  assert set(found["method"]) == {"FedAvg"}


def test_keeps_what_a_directory_has(tmp_path, monkeypatch):
  monkeypatch.setattr(sources, "MEASURED", tmp_path / "measured")
  (tmp_path / "measured").mkdir()
  folder = tmp_path / "results" / "convergence"
  folder.mkdir(parents=True)
  (folder / "bias.csv").write_text(
    "theta,cohort_size,largest,floor,bound\n0.5,10,0.25,0.125,1.0\n", encoding="utf-8"
  )
  (path,) = measurements.keep(tmp_path / "results")
  made = sources.made("sampling_bias")
  assert "all digits" in made and "version" in made
  assert measurements.keep(tmp_path / "results") == []
  assert path.name == "sampling_bias.csv"
  assert measurements.load().get("sampling_bias", "0.5 10", "floor").mean == 0.125
  assert measurements.load(tmp_path / "results").get("sampling_bias", "0.5 10", "bound").mean == 1.0


def test_personalized_models_decide_their_statement_and_their_table(tmp_path, monkeypatch):
  monkeypatch.setattr(sources, "MEASURED", tmp_path / "nothing")
  lines = ["task,method,metric,mean,sd,num_seeds"]
  for method, theta, after in (("fed_avg", 1, 0.05), ("superquantile_theta_0.5", 0.5, 0.055)):
    folder = tmp_path / "emnist_convnet" / method / "seed_0"
    folder.mkdir(parents=True)
    algorithm = method.split("_theta")[0]
    flags = f"--exact_siblings=refused\n--algorithm={algorithm}\n--theta={theta}\n"
    (folder / "flags.txt").write_text(flags)
    lines += [f"emnist_convnet,{method},personal.error.{m},{after},,1" for m in ("mean", "p90")]
  (tmp_path / "emnist_convnet" / "report.csv").write_text("\n".join(lines) + "\n")
  found = measurements.load(tmp_path)
  for row in on_comparisons.on_personalization(found):
    assert row.verdict is rows.Verdict.DIFFERS and "One seed has no sd" in row.why
    assert "of FedAvg: 5.0; Superquantile θ = 0.5: 5.5 (1 seed). 0 of 2" in row.outcome
  columns = {cell.column for cell in printed.read().itertuples() if cell.table == "pers"}
  (after,) = (column for column in columns if column == "p90, after")
  measured = printed.measured(found, "pers", "Superquantile θ = 0.5", after)
  assert measured is not None and measured.mean == 0.055


def _comparison(num_seeds, num_rounds, mean, methods):
  means = [(method, "test.error.mean", mean) for method in methods]
  lengths = [(method, "rounds", num_rounds) for method in methods]
  return _measured(*means, *lengths, sd=np.nan, num_seeds=num_seeds)


_TWO = ("FedAvg", "Superquantile θ = 0.5")
_THREE = (*_TWO, "AFL")
_FOUR = (*_THREE, "FedProx μ = 1")
_KEPT = dict.fromkeys(_THREE, 0.1)


@pytest.mark.parametrize(
  "seeds, lengths, expected",
  [
    (5, dict.fromkeys(_TWO, 100), {**_KEPT, **dict.fromkeys(_TWO, 0.2)}),
    (4, dict.fromkeys(_TWO, 100), _KEPT),
    # What took another number of rounds is not compared with the rest.
    (1, dict.fromkeys(_THREE, 200), dict.fromkeys(_THREE, 0.2)),
    (1, dict.fromkeys(_FOUR, 50), dict.fromkeys(_FOUR, 0.2)),
    (9, dict.fromkeys(_TWO, 200), _KEPT),
    (9, dict.fromkeys(_THREE, 50), _KEPT),
    (
      9,
      {**dict.fromkeys(_TWO, 100), "AFL": 50, "long": 200},
      {**_KEPT, **dict.fromkeys(_TWO, 0.2)},
    ),
  ],
)
def test_keeps_the_better_of_two_comparisons(tmp_path, monkeypatch, seeds, lengths, expected):
  monkeypatch.setattr(sources, "MEASURED", tmp_path)
  _comparison(5, 100, 0.1, _THREE).to_csv(tmp_path / "synthetic.csv", index=False)
  frames = [_comparison(seeds, length, 0.2, (method,)) for method, length in lengths.items()]
  found = sources.Source("", lambda output_dir: pd.concat(frames))
  monkeypatch.setattr(sources, "SOURCES", {"synthetic": found})
  measurements.keep(tmp_path)
  now = measurements.load()
  means = {m: now.get("synthetic", m, "test.error.mean").mean for m in now.methods("synthetic")}
  assert means == expected
  made = sources.read_made()
  assert bool(made) == (0.2 in expected.values())
  if made:  # Unrounded is what was kept anew.
    assert (made["synthetic"]["digits"] == "all digits") == (0.1 not in expected.values())


def test_command_writes_its_files_and_refuses_other_docs(tmp_path, monkeypatch):
  output_dir = f"--output_dir={tmp_path}/results"
  result = commands.carry_out("paper.statements", output_dir, folder=tmp_path)
  assert result.code == 0, result.err
  assert "Misprints, " in result.out
  html = (tmp_path / "results" / "paper" / "paper.html").read_text(encoding="utf-8")
  assert html.count("<blockquote>") > 70 and "data:image/svg+xml" in html
  written = {path.name for path in (tmp_path / "results" / "paper").iterdir()}
  assert written == {"paper.html", "paper.md", "paper.csv"}
  args = types.SimpleNamespace(output_dir=str(tmp_path / "results"), docs_dir=str(tmp_path))
  with pytest.raises(ValueError, match="expected the docs/ of a clone"):
    statements.main(args)


def test_the_drawn_polytope_has_the_corners_that_attain_every_maximum():
  rng = np.random.default_rng(0)
  for theta in (0.2, 0.4, 0.5, 0.8):
    corners = schematics.corners(theta)
    assert np.allclose(corners.sum(axis=1), 1) and corners.max() <= 1 / (3 * theta) + 1e-9
    for losses in rng.normal(size=(50, 3)):
      assert (corners @ losses).max() == pytest.approx(superquantile.superquantile(losses, theta))


def test_the_drawn_superquantile_is_the_mean_of_the_tail():
  draws = np.random.default_rng(0).gamma(3.0, size=200_000)
  quantile, mean = schematics.tail_mean(0.2)
  assert quantile == pytest.approx(np.quantile(draws, 0.8), rel=0.01)
  assert mean == pytest.approx(superquantile.superquantile(draws, 0.2), rel=0.01)
