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
