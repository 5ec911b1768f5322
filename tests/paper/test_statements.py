"""The page on the paper: its print, its verdicts, and that the kept page is what the code makes."""

import pathlib
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from paper import statements
from paper.statements import measurements
from paper.statements import on_comparisons
from paper.statements import on_print
from paper.statements import on_settings
from paper.statements import on_superquantile
from paper.statements import printed
from paper.statements import rows
from paper.statements import schematics
from paper.statements import sources
from tff_superquantile import superquantile
from tff_superquantile.experiments.report import page

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_LATEX = _ROOT.parent / "shared" / "paper" / "superquantile_federated_learning.tex"


@pytest.fixture(scope="module")
def kept():
  return statements.report(measurements.load())


def _evidence(**methods):
  """Measurements of the synthetic task: label, mean error and 90th percentile."""
  frame = pd.DataFrame(
    [
      (label, f"test.error.{metric}", value, 0.01, 5)
      for label, (mean, p90) in methods.items()
      for metric, value in (("mean", mean), ("p90", p90))
    ],
    columns=list(sources.COLUMNS),
  )
  return measurements.Evidence({"synthetic": frame})


def test_the_page_in_the_docs_is_what_the_kept_measurements_make(kept):
  assert (_ROOT / "docs" / "paper.md").read_text(encoding="utf-8") == page.render(
    kept, "md", "images/paper-"
  ), "run ./run_experiments.sh paper --docs_dir=docs"


@pytest.mark.skipif(not _LATEX.exists(), reason="the paper's LaTeX is not here")
def test_every_printed_cell_is_in_the_papers_table():
  text = _LATEX.read_text(encoding="utf-8")
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
  table = pd.read_csv(pd.io.common.StringIO(kept.csv), keep_default_na=False)
  cells = table[table["where"].str.startswith("Table") & table["says"].str.contains(" ± ")]
  assert len(cells) == len(printed.read()) == 308
  assert (table["verdict"] != "").all()
  known = {verdict.value for verdict in rows.Verdict}
  assert {verdict.split(" on ")[0] for verdict in table["verdict"]} <= known


@pytest.mark.parametrize(
  "tail, verdict",
  [
    (0.48, rows.Verdict.HOLDS),
    (0.505, rows.Verdict.HOLDS),  # Within the rival's standard deviation.
    (0.52, rows.Verdict.DIFFERS),
  ],
)
def test_the_smallest_tail_is_judged_by_the_rivals_spread(tail, verdict):
  found = _evidence(
    **{"FedAvg": (0.2, 0.54), "Tilted-ERM t = 5": (0.2, 0.5), "Superquantile θ = 0.5": (0.2, tail)}
  )
  says = "lowest 90th percentile"
  (row,) = [
    row
    for row in on_comparisons.statements(found)
    if says in row.says and row.data == "the synthetic task"
  ]
  assert row.verdict is verdict


def test_a_statement_without_measurements_says_what_to_run():
  judged = list(on_comparisons.statements(measurements.Evidence({})))
  assert judged and all(row.verdict is rows.Verdict.UNCHECKED for row in judged)
  assert all("./run_experiments.sh" in row.why for row in judged)


def test_what_the_superquantile_is_holds_and_its_misprints_are_found():
  verdicts = {row.says: row.verdict for row in on_superquantile.of_superquantile()}
  assert rows.Verdict.HOLDS in verdicts.values()
  (wrong,) = [says for says in verdicts if says.startswith("(b)")]
  assert verdicts[wrong] is rows.Verdict.WRONG


def test_the_papers_tables_decide_its_claims(monkeypatch):
  def verdict():
    (row,) = [row for row in on_print.statements() if "θ = 0.5 and 0.8 are both" in row.says]
    return row.verdict

  assert verdict() is rows.Verdict.WRONG
  cells = printed.read().copy()
  chosen = (cells["method"] == "Superquantile θ = 0.8") & (cells["column"] == "EMNIST ConvNet")
  cells.loc[chosen, "value"] = 25.0
  monkeypatch.setattr(printed, "read", lambda: cells)
  assert verdict() is rows.Verdict.HOLDS


def test_marks_that_break_the_papers_rule_are_found():
  found = {row.where for row in printed.mark_rows()}
  assert "Table 6, sd" in found
  assert "Table 2, EMNIST linear" not in found


def test_standard_deviations_are_bounded_by_percentiles():
  (wrong,) = [row for row in on_print.spread_rows() if row.verdict is rows.Verdict.WRONG]
  assert wrong.where == "Table 9, sd"


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
  assert row.verdict is rows.Verdict.WRONG and all(name in row.found for name in broken)
  _print(monkeypatch, "ext_comp_emnist_linear", "FedProx", "mean", mark="entirely bold")
  (row,) = printed.entire_rows()
  assert "Table 6, mean" not in row.found


def test_theta_and_afl_are_a_chain_if_no_step_turns_by_more_than_one_sd(monkeypatch):
  def turning():
    (row,) = [row for row in on_print.on_chains() if "interpolates" in row.says]
    return row.found

  assert "EMNIST, linear (mean)" not in turning() and "EMNIST, ConvNet (mean)" in turning()
  _print(monkeypatch, "ext_comp_emnist_linear", "Superquantile θ = 0.8", "mean", value=36.0)
  assert "EMNIST, linear (mean)" in turning()


def test_a_value_is_monotone_up_to_its_sd():
  def chain(*means, sd=0.02):
    return measurements.is_monotone([measurements.Value(mean, sd, 5) for mean in means])

  assert chain(0.1, 0.2, 0.3) and chain(0.3, 0.2, 0.1) and chain(0.1, 0.09, 0.3)
  assert not chain(0.1, 0.07, 0.3) and not chain(0.1, 0.4, 0.3)
  assert not chain(0.1, 0.09, 0.3, sd=np.nan)


def _sizes(ours, theirs, most):
  """Measurements of the ConvNet: the changes of thirds of clients, and the largest client."""
  entries = [("FedAvg", "test.largest_third.examples.most", most)]
  for method, pair in {"Superquantile θ = 0.5": ours, "Tilted-ERM t = 1": theirs}.items():
    # What is measured of a method has its 90th percentile, too.
    entries.append((method, "test.error.p90", 0.1))
    entries += [
      (method, f"test.{third}_third.error.change", change)
      for third, change in zip(("smallest", "largest"), pair)
    ]
  frame = pd.DataFrame([(*entry, 0.001, 5) for entry in entries], columns=list(sources.COLUMNS))
  return measurements.Evidence({"emnist_convnet": frame})


@pytest.mark.parametrize(
  "ours, theirs, most, verdict",
  [
    ((-0.03, -0.01), (-0.01, -0.02), 400, rows.Verdict.HOLDS),
    ((-0.01, -0.03), (-0.01, -0.02), 400, rows.Verdict.DIFFERS),
    ((-0.03, -0.01), (-0.02, -0.01), 400, rows.Verdict.DIFFERS),  # The rival helps the small, too.
    ((-0.03, -0.01), (-0.01, -0.02), 130, rows.Verdict.UNCHECKED),
  ],
)
def test_sizes_are_judged_where_there_are_clients_with_much(ours, theirs, most, verdict):
  row, linear = on_settings.of_sizes(_sizes(ours, theirs, most))
  assert row.verdict is verdict and linear.verdict is rows.Verdict.UNCHECKED
  assert "Tilted-ERM" in row.found and "./run_experiments.sh emnist_linear" in linear.why


def test_runs_with_names_of_their_own_are_no_methods_of_a_comparison(tmp_path):
  for name, flags in {"fed_avg": "", "mine": "--run_name=mine\n--num_rounds=9\n"}.items():
    folder = tmp_path / "synthetic" / name / "seed_0"
    folder.mkdir(parents=True)
    (folder / "flags.txt").write_text(f"--algorithm=fed_avg\n{flags}")
    (folder / "metrics.json").write_text('{"test": {"error": {"mean": 0.1}}}')
  found = sources.SOURCES["synthetic"].read(tmp_path)
  assert set(found["method"]) == {"FedAvg"}


def test_keeps_what_a_directory_has(tmp_path, monkeypatch):
  monkeypatch.setattr(measurements, "MEASURED", tmp_path / "measured")
  (tmp_path / "measured").mkdir()
  folder = tmp_path / "results" / "convergence"
  folder.mkdir(parents=True)
  (folder / "bias.csv").write_text(
    "theta,cohort_size,largest,floor,bound\n0.5,10,0.25,0.125,1.0\n", encoding="utf-8"
  )
  (path,) = measurements.keep(tmp_path / "results")
  assert path.name == "sampling_bias.csv"
  assert measurements.load().get("sampling_bias", "0.5 10", "floor").mean == 0.125
  assert measurements.load(tmp_path / "results").get("sampling_bias", "0.5 10", "bound").mean == 1.0


def test_personalized_models_decide_their_statement_and_their_table(tmp_path, monkeypatch):
  monkeypatch.setattr(measurements, "MEASURED", tmp_path / "nothing")
  lines = ["task,method,metric,mean,sd,num_seeds"]
  for method, theta, after in (("fed_avg", 1, 0.05), ("superquantile_theta_0.5", 0.5, 0.055)):
    folder = tmp_path / "emnist_convnet" / method / "seed_0"
    folder.mkdir(parents=True)
    algorithm = method.split("_theta")[0]
    (folder / "flags.txt").write_text(f"--algorithm={algorithm}\n--theta={theta}\n")
    lines += [f"emnist_convnet,{method},after.error.{m},{after},,1" for m in ("mean", "p90")]
  (tmp_path / "emnist_convnet" / "personalization.csv").write_text("\n".join(lines) + "\n")
  found = measurements.load(tmp_path)
  for row in on_comparisons.on_personalization(found):
    assert row.verdict is rows.Verdict.DIFFERS and "One seed has no sd" in row.why
    assert "FedAvg 5.0; Superquantile θ = 0.5 5.5 (1 seed). 0 of 1" in row.found
  columns = {cell.column for cell in printed.read().itertuples() if cell.table == "pers"}
  (after,) = (column for column in columns if column == "p90, after")
  measured = printed.measured(found, "pers", "Superquantile θ = 0.5", after)
  assert measured is not None and measured.mean == 0.055


def _comparison(num_seeds, num_rounds, mean, methods):
  """Measurements of a comparison as `measurements` keeps them."""
  return pd.DataFrame(
    [
      (method, metric, value, np.nan, num_seeds)
      for method in methods
      for metric, value in (("test.error.mean", mean), ("rounds", num_rounds))
    ],
    columns=list(sources.COLUMNS),
  )


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
  monkeypatch.setattr(measurements, "MEASURED", tmp_path)
  _comparison(5, 100, 0.1, _THREE).to_csv(tmp_path / "synthetic.csv", index=False)
  frames = [_comparison(seeds, length, 0.2, (method,)) for method, length in lengths.items()]
  found = sources.Source("", lambda output_dir: pd.concat(frames))
  monkeypatch.setattr(sources, "SOURCES", {"synthetic": found})
  measurements.keep(tmp_path)
  now = measurements.load()
  means = {m: now.get("synthetic", m, "test.error.mean").mean for m in now.methods("synthetic")}
  assert means == expected


def test_command_writes_its_files_and_refuses_other_docs(tmp_path):
  command = [sys.executable, "-m", "paper.statements"]
  arguments = [f"--output_dir={tmp_path}/results"]
  result = subprocess.run(
    [*command, *arguments], capture_output=True, text=True, timeout=120, check=False
  )
  assert result.returncode == 0, result.stderr
  assert "statements" in result.stdout
  written = {path.name for path in (tmp_path / "results" / "paper").iterdir()}
  assert written == {"paper.html", "paper.md", "paper.csv"}
  result = subprocess.run(
    [*command, *arguments, f"--docs_dir={tmp_path}"],
    capture_output=True,
    text=True,
    timeout=120,
    check=False,
  )
  assert result.returncode == 2
  assert "Traceback" not in result.stderr and "expected the docs/" in result.stderr


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
