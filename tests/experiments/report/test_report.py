"""Reports on fabricated folders of runs: numbers, words, figures and what is refused."""

import base64
import html.parser
import itertools
import re
import shutil

from helpers import fabricated_runs
from helpers import finished_runs
import numpy as np
import pytest

from tff_superquantile import atomic_files
from tff_superquantile.experiments.config import names
from tff_superquantile.experiments.evidence import decision
from tff_superquantile.experiments.evidence import grouped
from tff_superquantile.experiments.pages import page
from tff_superquantile.experiments.pages import style
from tff_superquantile.experiments.pages import tables
from tff_superquantile.experiments.report import budgets
from tff_superquantile.experiments.report import comparison
from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run import run_folder

_BY_ADAM = f"{fabricated_runs.SUPERQUANTILE}_adam"
_HOSTILE = "<script>alert(1)</script>".replace("/", "|") + "$x_{$ **bold** [a](b) \"'&"


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
  """Three methods, three seeds, of which one run is unfinished: (folder, errors, paths)."""
  root = tmp_path_factory.mktemp("sweep")
  errors = {
    (method, seed): fabricated_runs.fabricate(
      root, method, seed, shift=shift, finished=(method, seed) != ("q_ffl_1", 2)
    )
    for method, shift in (
      ("q_ffl_1", -0.03),
      (fabricated_runs.SUPERQUANTILE, 0.05),
      ("fed_avg", 0.0),
    )
    for seed in range(3)
  }
  return root, errors, fabricated_runs.write(root)


class _Parser(html.parser.HTMLParser):
  """Collects elements, and pieces of text with single spaces."""

  def __init__(self, text):
    super().__init__()
    self.elements, self.texts = [], []
    self.feed(text)

  def handle_starttag(self, tag, attrs):
    self.elements.append((tag, dict(attrs)))

  def handle_data(self, data):
    if data.strip():
      self.texts.append(" ".join(data.split()))


def test_csv_has_mean_and_sample_sd_over_seeds(sweep):
  _, errors, paths = sweep
  rows = fabricated_runs.csv_rows(paths)
  p90 = [np.percentile(errors["fed_avg", seed], 90) for seed in range(3)]
  row = rows["fed_avg", "test.error.p90"]
  assert row["task"] == "synthetic"
  # To the last digit, as people compare these files.
  assert row["mean"] == repr(float(np.mean(p90)))
  assert row["sd"] == repr(float(np.std(p90, ddof=1)))
  assert row["num_seeds"] == "3"
  assert float(rows["fed_avg", "seconds_per_round"]["mean"]) == pytest.approx(1.5)
  # The unfinished run does not count.
  row = rows["q_ffl_1", "test.loss.mean"]
  assert row["num_seeds"] == "2"
  assert float(row["mean"]) == pytest.approx(
    np.mean([2 * errors["q_ffl_1", seed].mean() for seed in range(2)])
  )


def test_markdown_has_the_same_numbers_in_percent_and_marks_the_best(sweep):
  _, errors, paths = sweep
  text = paths["md"].read_text(encoding="utf-8")
  table = finished_runs.markdown_tables(text)[1]
  assert [row[0] for row in table[1:]] == ["FedAvg", "Superquantile θ = 0.5", "q_ffl_1"]
  column = table[0].index("p90")
  for method, row in zip(("fed_avg", fabricated_runs.SUPERQUANTILE), table[1:3]):
    p90 = [100 * np.percentile(errors[method, seed], 90) for seed in range(3)]
    expected = f"{np.mean(p90):.1f} ± {np.std(p90, ddof=1):.1f}"
    value, _, spread = expected.partition(" ")
    assert row[column] == (
      f"**{value}** {spread}" if method == fabricated_runs.SUPERQUANTILE else expected
    )
  assert [row[table[0].index("seeds")] for row in table[1:]] == ["3", "3", "2"]
  # Columns are aligned, and what has no interval is not marked.
  for lines in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
    assert len({len(line) for line in lines.splitlines()}) == 1
  column = table[0].index("train loss")
  assert table[1][column] == table[2][column] == "0.710 ± 0.010"
  assert table[3][column].startswith("0.705")


def test_summary_compares_the_best_method_with_fed_avg_seed_by_seed(sweep):
  _, errors, paths = sweep
  before, after = (
    [100 * np.percentile(errors[method, seed], 90) for seed in range(3)]
    for method in ("fed_avg", fabricated_runs.SUPERQUANTILE)
  )
  change = np.array(after) - np.array(before)
  text = paths["md"].read_text(encoding="utf-8")
  assert (
    f"Against FedAvg, Superquantile θ = 0.5 lowers the 90th percentile of the test clients’ error"
    f" by {-change.mean():.1f} points (95 % interval −"
  ) in text
  assert f"; {np.mean(before):.1f} % → {np.mean(after):.1f} %), lowers the mean error of" in text
  assert (
    ", of 60 test clients, over 3 seeds.\n- Fewer seeds are shared with FedAvg by q_ffl_1" in text
  )


def test_summary_finds_no_difference_in_seeds_that_disagree_and_none_of_different_seeds(tmp_path):
  for seed, shift in ((0, 0.05), (1, -0.04)):
    fabricated_runs.fabricate(tmp_path, "fed_avg", seed)
    fabricated_runs.fabricate(tmp_path, fabricated_runs.SUPERQUANTILE, seed, shift=shift)
  runs = run_folder.find_runs(tmp_path)
  groups = grouped.by_method(runs)
  text = decision.decide(groups).text
  assert text.startswith("Keep FedAvg: no detectable difference in p90.")
  assert re.search(
    r"Detecting a change as large as the one seen takes .* seeds \(80 % power\)", text
  )
  table = budgets.changes(groups)
  assert not any(cell.best for row in table.rows for cell in row.cells)
  assert "**" not in page.markdown_table(comparison.table(groups))
  apart = [run for run in runs if (run.method == "fed_avg") == (run.seed == 0)]
  assert "share no seed" in decision.decide(grouped.by_method(apart)).text
  alone = [run for run in runs if run.method == "fed_avg"]
  assert "no result of another" in decision.decide(grouped.by_method(alone)).text


def test_a_method_is_compared_with_fed_avg_of_the_same_optimizer(tmp_path):
  shifts = {
    "fed_avg": 0.0,
    fabricated_runs.SUPERQUANTILE: 0.02,
    "fed_avg_adam": 0.1,
    _BY_ADAM: 0.15,
  }
  for method, shift in shifts.items():
    for seed in range(3):
      fabricated_runs.fabricate(tmp_path, method, seed, shift=shift, num_rounds=None)
  groups = grouped.by_method(run_folder.find_runs(tmp_path))
  said = "Take Superquantile θ = 0.5, server Adam: against FedAvg with the same options it lowers"
  assert decision.decide(groups).text.startswith(said)
  looks = style.palette(list(groups))
  greys = [method for method in groups if looks[method].color == style.GREY]
  assert greys == ["fed_avg", "fed_avg_adam"] and len(set(looks.values())) == 4
  del groups[greys[1]]
  del groups[names.Name(fabricated_runs.SUPERQUANTILE)]
  text = decision.decide(grouped.Grouped(groups)).text
  assert "there is no result of FedAvg with the same options to compare with" in text


def test_page_is_self_contained(sweep):
  _, _, paths = sweep
  page = _Parser(paths["html"].read_text(encoding="utf-8"))
  tags = [tag for tag, _ in page.elements]
  assert tags.count("figure") == tags.count("img") == tags.count("source") == 8
  assert tags.count("script") == 1 and ("script", {}) in page.elements  # Of its own, inline.
  assert not {"link", "iframe"} & set(tags)
  assert "url(" not in paths["html"].read_text(encoding="utf-8")
  prefix = "data:image/svg+xml;base64,"
  for tag, attributes in page.elements:
    for value in (attributes.get(name) for name in ("src", "srcset", "href")):
      if value is not None:
        assert tag in ("img", "source") and value.startswith(prefix)
        svg = base64.b64decode(value[len(prefix) :]).decode()
        # Bitmaps in a figure are in it, too; an image in an img element may fetch nothing.
        assert all(link.startswith(("#", "data:")) for link in re.findall(r'href="([^"]*)', svg))
  assert all(attributes.get("alt") for tag, attributes in page.elements if tag == "img")
  assert tags.count("table") == tags.count("caption") > 0
  # All that may scroll can be reached by the keyboard, and has a name.
  boxes = [
    its for _, its in page.elements if {"scroll", "plot"} & set(its.get("class", "").split())
  ]
  assert boxes and all(its.get("tabindex") == "0" and its.get("aria-label") for its in boxes)


def test_a_picture_says_in_its_alternative_what_it_shows(sweep):
  _, errors, paths = sweep
  alts = [its["alt"] for tag, its in _Parser(paths["html"].read_text()).elements if tag == "img"]
  values = 100 * np.concatenate([errors["fed_avg", seed] for seed in range(3)])
  median, p90 = np.percentile(values, [50, 90])
  said = f"FedAvg: median {median:.1f} %, 90th percentile {p90:.1f} %, largest {values.max():.1f} %"
  assert said in alts[0]


def test_a_bar_in_the_name_of_a_class_adds_no_cell():
  rows = [tables.Row("a|b", [tables.Cell("1|2"), tables.Cell("3")])]
  text = page.markdown_table(tables.Table("", ["method", "recall of yes|1", "x"], rows))
  assert {len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines()} == {4}


def test_page_says_how_it_was_run(sweep):
  _, _, paths = sweep
  text = " ".join(_Parser(paths["html"].read_text(encoding="utf-8")).texts)
  assert (
    "Flags that differ between methods flag FedAvg Superquantile θ = 0.5 q_ffl_1"
    " --algorithm fed_avg superquantile (not set) --run_name (not set) (not set) q_ffl_1"
    " --theta 1 0.5 1"
  ) in text
  shared = "Flags that all runs share (4) --exact_siblings refused --learning_rate 0.1"
  shared += " --noverbose true --task tiny"
  assert shared in text
  assert "seeds of FedAvg 0, 1, 2" in text and "seeds of q_ffl_1 0, 1" in text
  assert "numpy 1.25.2" in text and "started 2024-01-01, 2024-01-02" in text
  assert "q_ffl_1, seed 2: stopped or still running after round 40" in text
  assert "The methods ran with different seeds" in text


def test_hostile_method_name_is_shown_and_not_obeyed(tmp_path):
  for method in ("fed_avg", _HOSTILE):
    fabricated_runs.fabricate(tmp_path, method, 0)
  paths = fabricated_runs.write(tmp_path)
  source = paths["html"].read_text(encoding="utf-8")
  assert source.count("<script") == 1 and "<script>alert" not in source
  assert _HOSTILE in _Parser(source).texts
  markdown = paths["md"].read_text(encoding="utf-8")
  assert "<script" not in markdown and r"\*\*bold\*\*" in markdown and r"\[a\]" in markdown
  # An unescaped bar would start another cell.
  for lines in re.findall(r"(?:^\|.*\n)+", markdown, re.MULTILINE):
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines.splitlines()}) == 1
  assert (_HOSTILE, "test.error.p90") in fabricated_runs.csv_rows(paths)
  assert "\x1b" not in names.printable("a\x1b[2J")


def test_the_best_is_not_that_of_one_easy_seed(tmp_path):
  for seed in range(3):
    fabricated_runs.fabricate(tmp_path, "fed_avg", seed, num_rounds=None)
    fabricated_runs.fabricate(
      tmp_path, fabricated_runs.SUPERQUANTILE, seed, shift=0.05, num_rounds=None
    )
  fabricated_runs.fabricate(tmp_path, "superquantile_theta_0.2", 1, shift=0.1, num_rounds=None)
  text = decision.decide(grouped.by_method(run_folder.find_runs(tmp_path))).text
  assert text.startswith("Take Superquantile θ = 0.5: against FedAvg it lowers")
  assert "shared with FedAvg by Superquantile θ = 0.2, which this leaves out" in text


def _keep_clients(root, number):
  """Leaves the first test clients of each run alone."""
  for path in root.glob("*/*/*/test_clients.csv"):
    path.write_text("".join(path.read_text().splitlines(keepends=True)[: 1 + number]))


def test_few_clients_have_a_worst_one_and_no_percentiles(tmp_path):
  for method, shift in (("fed_avg", 0.0), (fabricated_runs.SUPERQUANTILE, 0.05)):
    errors = fabricated_runs.fabricate(tmp_path, method, 0, shift=shift, num_rounds=None)
  _keep_clients(tmp_path, 6)
  report = comparison.report(tmp_path, "synthetic")
  said = report.answers[0].text
  assert "the error of the worst test client" in said
  assert "of 6 test clients, too few for percentiles" in said
  assert "90th percentile" not in said
  table = finished_runs.markdown_tables(page.render(report, "md"))[1]
  assert table[0][:4] == ["method", "seeds", "mean", "worst client"]
  assert table[2][3] == f"{100 * errors[:6].max():.1f}"
  headings = [one.headings for one in report.blocks if isinstance(one, tables.Table)]
  assert not any("p90" in of_one or "worst 10 %" in of_one for of_one in headings)


def test_a_single_client_has_no_interval_and_nothing_is_bold(tmp_path):
  for method, shift in (("fed_avg", 0.0), (fabricated_runs.SUPERQUANTILE, 0.05)):
    fabricated_runs.fabricate(tmp_path, method, 0, shift=shift, num_rounds=None)
  _keep_clients(tmp_path, 1)
  report = comparison.report(tmp_path, "synthetic")
  said = report.answers[0].text
  assert "of 1 test client, too few" in said and "95 % interval" not in said
  assert "cannot tell an effect from chance" in said
  lines = page.render(report, "md").splitlines()
  assert not any("**" in line for line in lines if line.startswith("|"))


def test_clients_are_named_with_their_changes_and_escaped(tmp_path):
  shared, errors = "</td><b>x", {}
  for method, seed in itertools.product(("fed_avg", fabricated_runs.SUPERQUANTILE), range(2)):
    fabricated_runs.fabricate(tmp_path, method, seed, num_rounds=None)
    # The clients of the second seed are others, but for one.
    ids = [shared, *(f"client_{30 * seed + index}" for index in range(29))]
    of_seed = np.random.default_rng([seed, len(method)]).random(30)
    for one, error in zip(ids, of_seed):
      errors.setdefault(one, {}).setdefault(method, []).append(100 * error)
    rows = [f"{one},100,1.0,{error}\n" for one, error in zip(ids, of_seed)]
    path = tmp_path / "synthetic" / method / f"seed_{seed}" / "test_clients.csv"
    path.write_text("".join(["client_id,num_examples,loss,error\n", *rows]))
  expected = {}
  for one, of_one in errors.items():
    before, after = (np.mean(values) for values in of_one.values())
    texts = (f"{after - before:+.1f}", f"{before:.1f}", f"{after:.1f}")
    expected[one] = [text.replace("-", "−") for text in texts]
  report = comparison.report(tmp_path, "synthetic")
  is_of_clients = [getattr(one, "title", "").startswith("Each test") for one in report.blocks]
  (everybody,) = report.blocks[is_of_clients.index(True)].blocks
  assert {row.name: [cell.text for cell in row.cells] for row in everybody.rows} == expected
  changes = [float(row.cells[0].text.replace("−", "-")) for row in everybody.rows]
  assert changes == sorted(changes) and len(changes) == 59
  html_text = page.render(report, "html")
  assert "<b>x" not in html_text and "&lt;b&gt;x" in html_text


def test_the_first_lines_have_what_all_private_runs_cost_together(tmp_path):
  kept = finished_runs.KEPT / "synthetic"
  for path in kept.glob("*epsilon_20"):
    shutil.copytree(path, tmp_path / "synthetic" / path.name)
  found = comparison.report(tmp_path, "synthetic")
  together = "epsilon = 32.09 at delta = 0.01 for one client of all 2 private runs together."
  assert f"All private runs together: {together}" in found.summary
  sums = "Secure sums of noisy integers"
  assert f"θ = 0.5, tree, ε = 20: {sums}: histograms; the server makes the" in found.summary
  assert f"θ = 0.5, geometric, ε = 20: {sums}: none; the server makes the" in found.summary
  assert together in page.terminal_text(found, []).partition("Misclassification error of")[0]
  # The same with what tuned them, and with a run of the same clients that has no privacy.
  tuned = shutil.copytree(path, tmp_path / "tuning/synthetic" / path.name) / "seed_0/manifest.json"
  manifest = run_files.read_json(tuned)
  manifest["commitments"] = dict.fromkeys(manifest["commitments"], "00")  # Else it is a copy.
  atomic_files.write_json(tuned, manifest)
  shutil.copytree(kept / "fed_avg", tmp_path / "synthetic/fed_avg")
  summary_of_all = comparison.report(tmp_path, "synthetic").summary
  assert "NO finite epsilon for 60 clients; epsilon = 4" in summary_of_all
  assert "one client of all 3 private runs whom" in summary_of_all
  (tmp_path / "tuning/synthetic" / path.name / "seed_0/privacy.json").write_text("{}")
  assert "is not known: Found a ledger" in comparison.report(tmp_path, "synthetic").summary


def test_one_seed_has_no_spread(tmp_path):
  for method in ("fed_avg", fabricated_runs.SUPERQUANTILE):
    fabricated_runs.fabricate(tmp_path, method, 0, sizes=False, num_rounds=None)
  paths = fabricated_runs.write(tmp_path)
  markdown = paths["md"].read_text(encoding="utf-8")
  assert not re.search(r"± \d", markdown)
  assert "This is one seed" in markdown
  assert fabricated_runs.csv_rows(paths)["fed_avg", "test.error.mean"]["sd"] == ""


def test_missing_files_and_columns_leave_figures_out(tmp_path):
  for method in ("fed_avg", "private"):
    fabricated_runs.fabricate(tmp_path, method, 0)
    folder = tmp_path / "synthetic" / method / "seed_0"
    (folder / "rounds.csv").write_text("round,test_error_p90\n0,0.9\n10,0.5\n")
    for name in ("test_clients.csv", "train_clients.csv", "flags.txt", "manifest.json"):
      (folder / name).unlink()
  groups = grouped.by_method(run_folder.find_runs(tmp_path))
  assert [figure.name for figure in comparison.draw(groups)] == ["error-by-round"]
  assert fabricated_runs.write(tmp_path)["html"].exists()


def test_of_many_methods_figures_show_fed_avg_and_the_best(tmp_path):
  shown = {
    "fed_avg": 0.0,
    "q_fed_avg_q_1": 0.03,
    "tilted_erm_t_5": 0.04,
    "superquantile_theta_0.8": 0.05,
    "superquantile_theta_0.5": 0.12,
    "superquantile_theta_0.25_reweighting": 0.1,
  }
  worse = {
    "fed_avg_sub_theta_0.5": 0.01,
    "fed_prox_mu_0.1": 0.02,
    "q_fed_avg_q_10": -0.1,
    "superquantile_theta_0.1": -0.05,
  }
  for method, shift in (shown | worse).items():
    fabricated_runs.fabricate(tmp_path, method, 0, shift=shift, num_rounds=None)
  groups = grouped.by_method(run_folder.find_runs(tmp_path))
  assert list(groups.contenders) == list(shown)
  few = grouped.Grouped({method: groups[method] for method in list(groups)[:6]})
  assert few.contenders == few


def _write_tuned(root, tried, criterion="validation.error.p90", **chosen):
  """Writes a report of one run, and what had been tried for it; returns its files."""
  fabricated_runs.fabricate(root, "q_fed_avg_q_1", 0, num_rounds=None)
  search = dict(method="q_fed_avg", criterion=criterion, tried=tried, chosen=chosen)
  atomic_files.write_json(root / "synthetic" / "tuning.json", [search])
  return fabricated_runs.write(root)


def test_what_was_tuned_is_in_the_report_in_its_words_and_unit(tmp_path):
  tried = [dict(q=0.1, result=0.514), dict(q=1.0, result=0.4876), dict(q=5.0, result=None)]
  paths = _write_tuned(tmp_path, tried, q=1.0)
  said = "p90 of the validation clients’ error, % by --q; 0.1: 51.4; **1: 48.8**; 5: failed"
  assert said in paths["md"].read_text()
  page = paths["html"].read_text()
  assert "<strong>1: 48.8</strong>" in page and "What was tuned" in page


def test_of_a_large_grid_the_report_has_the_best(tmp_path):
  tried = [dict(num_bins=b, max_loss=0.5, result=(b * 7 % 100) / 100) for b in range(100)]
  tried[0]["result"] = None
  text = _write_tuned(tmp_path, tried, num_bins=43, max_loss=0.5)["md"].read_text()
  assert "the best 12 of 100; **43, 0.5: 1**; 86, 0.5: 2;" in text
  assert text.count(", 0.5: ") == 12 and "failed" not in text


def test_a_report_of_generated_data_says_so_in_its_title(tmp_path):
  fabricated_runs.fabricate(tmp_path, "fed_avg", 0, task="emnist_linear_standin", num_rounds=None)
  paths = fabricated_runs.write(tmp_path, "emnist_linear_standin")
  title = re.search(r"<title>(.*?)</title>", paths["html"].read_text())[1]
  assert "stand-in: generated data" in title
  assert "stand-in" in paths["md"].read_text().splitlines()[0]


def test_diverged_run_is_reported_as_such(tmp_path):
  for method in ("fed_avg", "q_ffl_10"):
    fabricated_runs.fabricate(tmp_path, method, 0, num_rounds=None)
  (tmp_path / "synthetic" / "q_ffl_10" / "seed_0" / "metrics.json").write_text(
    '{"test": {"error": {"mean": 0.9, "p90": NaN}}, "train": {"loss": {"mean": NaN}}}'
  )
  markdown = fabricated_runs.write(tmp_path)["md"].read_text(encoding="utf-8")
  assert " NaN |" in markdown and "**NaN" not in markdown
  assert "A run diverged (its training loss is not a number): q_ffl_10." in markdown
  assert "no result of another method" in markdown


def test_command_without_finished_runs_exits_with_one_sentence(lab, tmp_path):
  fabricated_runs.fabricate(tmp_path, "fed_avg", 0, finished=False)
  result = lab.bare("report", f"--output_dir={tmp_path}")
  assert result.code == 2
  assert result.err == (
    f"Error: Found no finished run in {tmp_path} but 1 unfinished one; run ./run_experiments.sh"
    " first or pass --output_dir.\n"
  )
  with pytest.raises(ValueError, match="Found 1 unfinished"):
    fabricated_runs.write(tmp_path)


def test_figures_as_files(tmp_path):
  figure = style.Figure("error", "Error", "", b"<svg color='#4a4a4a'/>")
  content = page.Page("report", "", "", "", "", [figure])
  light, dark = page.write_figures(content, tmp_path / "figures", "synthetic-")
  assert light.name == "synthetic-error-light.svg" and light.read_bytes() == figure.light
  assert dark.name == "synthetic-error-dark.svg" and dark.read_text() == "<svg color='#c9c9c9'/>"


def test_figures_that_cannot_be_written_are_refused_before_work_starts(lab, tmp_path):
  folder = fabricated_runs.fabricate(tmp_path, "fed_avg", 0, num_rounds=None)
  result = lab.bare("report", f"--output_dir={tmp_path}", "--figures_dir=/proc/x")
  assert (result.code, result.out) == (2, "")
  assert result.err == (
    "Error: Found that /proc/x cannot be written (No such file or directory); choose another"
    " --figures_dir.\n"
  )
  assert not list(tmp_path.glob("*/report.*")), folder


def test_one_private_run_beside_a_comparison_does_not_take_its_place(tmp_path):
  private = "superquantile_theta_0.5_epsilon_5"
  for method in ("fed_avg", "superquantile_theta_0.5", private):
    fabricated_runs.fabricate(tmp_path, method, 0, num_rounds=None)
  groups = grouped.by_method(run_folder.find_runs(tmp_path))
  chosen, epsilon = groups.at_one_budget
  assert (set(chosen), epsilon) == ({"fed_avg", "superquantile_theta_0.5"}, None)
  assert "no result of FedAvg" not in decision.decide(groups).text
  # Where there is something to compare at a budget, the budget it is.
  fabricated_runs.fabricate(tmp_path, "fed_avg_epsilon_5", 0, num_rounds=None)
  groups = grouped.by_method(run_folder.find_runs(tmp_path))
  chosen, epsilon = groups.at_one_budget
  assert (set(chosen), epsilon) == ({"fed_avg", "superquantile_theta_0.5"}, 5.0)
  both = decision.decide(groups).text
  assert both.startswith("At ε = 5: Keep FedAvg: no detectable difference")
  assert "\nWithout privacy: Keep FedAvg: no detectable difference" in both
  # And alone it is better than nothing.
  alone = grouped.by_method(groups[names.Name(private)])
  assert alone.at_one_budget[1] == 5.0


def test_changes_at_each_of_several_budgets(tmp_path):
  p90 = {}
  for method, epsilon, seed in itertools.product(
    ("fed_avg", fabricated_runs.SUPERQUANTILE), (1, 5), range(3)
  ):
    shift = 0.02 * epsilon - 0.01 * seed if method == fabricated_runs.SUPERQUANTILE else 0.0
    name = f"{method}_epsilon_{epsilon}"
    errors = fabricated_runs.fabricate(tmp_path, name, seed, shift=shift, num_rounds=None)
    p90.setdefault(name, []).append(100 * np.percentile(errors, 90, method="inverted_cdf"))
  groups = grouped.by_method(run_folder.find_runs(tmp_path))
  rows = {row.name: row.cells[0] for row in budgets.changes(groups).rows}
  assert len(rows) == 2
  for epsilon, is_sure in ((1, False), (5, True)):  # 0 to 2 points in three seeds; 8 to 10.
    cell = rows[f"Superquantile θ = 0.5, ε = {epsilon}"]
    own, other = (
      p90[f"{name}_epsilon_{epsilon}"] for name in (fabricated_runs.SUPERQUANTILE, "fed_avg")
    )
    assert cell.text == f"{np.mean(np.subtract(own, other)):+.1f}".replace("-", "−")
    assert re.fullmatch(r"\([−+]?\d+\.\d to [−+]?\d+\.\d\)", cell.spread)
    assert cell.best == is_sure
  assert next(iter(comparison.draw(groups))).name == "error-by-epsilon"


def test_a_method_with_a_tuned_parameter_is_one_curve(tmp_path):
  tuned = {1: "q_fed_avg_q_0.3_epsilon_1", 5: "q_fed_avg_q_3_epsilon_5"}
  for epsilon, method in tuned.items():
    fabricated_runs.fabricate(tmp_path, f"fed_avg_epsilon_{epsilon}", 0, num_rounds=None)
    fabricated_runs.fabricate(tmp_path, method, 0, shift=0.1, num_rounds=None)
    fabricated_runs.fabricate(
      tmp_path, f"superquantile_theta_0.5_tree_epsilon_{epsilon}", 0, num_rounds=None
    )

  def curves():
    groups = grouped.by_method(run_folder.find_runs(tmp_path))
    return {family.label for family in budgets.families_of(groups).values()}

  assert curves() == {"FedAvg", "q-FFL, tuned", "Superquantile θ = 0.5, tree"}
  # Two values at one budget are two methods.
  fabricated_runs.fabricate(tmp_path, "q_fed_avg_q_3_epsilon_1", 0, shift=0.2, num_rounds=None)
  assert curves() == {"FedAvg", "q-FFL q = 0.3", "q-FFL q = 3", "Superquantile θ = 0.5, tree"}


def test_last_bits_do_not_decide_what_is_written():
  half = 2.85
  others = np.nextafter(half, 0.0), half, np.nextafter(half, 9.0)
  assert {tables.number(-value) for value in others} == {"−2.9"}
  assert tables.number(half * (1.0 - 1e-9)) == "2.8"
  # A half is more, of either sign, also where it is one in binary.
  assert (tables.number(0.25), tables.number(-0.75, sign=True)) == ("0.3", "−0.8")
  assert (tables.number(1e300, 0), tables.number(-1e-300, sign=True)) == ("1" + 300 * "0", "0.0")


def test_methods_of_one_budget_that_differ_in_what_is_private_alone_stay_apart(tmp_path):
  fabricated_runs.fabricate(tmp_path, "fed_avg_epsilon_5", 0, num_rounds=None)
  for k, epsilon in ((0.1, 5), (0.5, 5), (0.5, 2)):
    fabricated_runs.fabricate(
      tmp_path, f"q_fed_avg_q_1_k_{k}_epsilon_{epsilon}", 0, shift=k, num_rounds=None
    )
  groups = grouped.by_method(run_folder.find_runs(tmp_path))
  changes = {row.name: row.cells[0].text for row in budgets.changes(groups).rows}
  # FedAvg has no ε = 2.
  assert set(changes) == {"q-FFL q = 1, k = 0.1, ε = 5", "q-FFL q = 1, k = 0.5, ε = 5"}
  assert len(set(changes.values())) == 2
  assert set(groups.at_one_budget[0]) == {
    *("fed_avg", "q_fed_avg_q_1_k_0.1", "q_fed_avg_q_1_k_0.5"),
  }
