"""The command private_quantile, from its flags to its files."""

import csv


def _run(lab, output_dir, *arguments):
  return lab.study("private_quantile", f"--output_dir={output_dir}", *arguments)


_SMALL = ("--num_seeds=3", "--num_clients=30", "--epsilons=1,10", "--bits=4,20")


def test_leaves_tables_and_figure_and_continues(lab, tmp_path):
  result = _run(lab, tmp_path, *_SMALL, "--num_bins=4,8")
  assert result.code == 0, result.err
  assert "Mean quantile error, uniform, 4 bins, n = 30" in result.out
  folder = tmp_path / "private_quantile"
  names = {path.name for path in folder.iterdir()}
  assert names == {
    "report.html",
    "report.md",
    "quantile_error.csv",
    "quantile_error-light.svg",
    "quantile_error-dark.svg",
  }
  rows = list(csv.DictReader(open(folder / "quantile_error.csv")))
  # Two distributions, numbers of bins, bits and epsilons, of three recipes.
  assert len(rows) == 2**4 * 3
  refused = [row for row in rows if row["error"] == ""]
  assert refused and all(row["bits"] == "4" and row["recipe"] != "paper" for row in refused)
  # The theorem has a bound where nothing wraps, not for least squares.
  bounded = [row for row in rows if row["bound"]]
  assert {(row["recipe"], row["bits"]) for row in bounded} == {("paper", "20"), ("dyadic", "20")}
  assert all(float(row["bound"]) > float(row["error"]) for row in bounded)
  assert "the theorem’s bound for the paper’s recipe" in (folder / "report.md").read_text()

  # What is there is not measured again: a planted number survives.
  text = (folder / "quantile_error.csv").read_text()
  first = rows[0]["error"]
  (folder / "quantile_error.csv").write_text(text.replace(first, "0.123"))
  result = _run(lab, tmp_path, *_SMALL, "--num_bins=4")
  assert result.code == 0, result.err
  assert "0.123" in (folder / "report.md").read_text()
  assert len(list(csv.DictReader(open(folder / "quantile_error.csv")))) == len(rows)


def test_mistakes_end_in_one_sentence(lab, tmp_path):
  _run(lab, tmp_path, "--quick", "--num_bins=12").assert_refused("num_bins = 12")
  _run(lab, tmp_path, "--quick", "--epsilons=0").assert_refused("--epsilons=0")
  (tmp_path / "private_quantile").mkdir()
  (tmp_path / "private_quantile/quantile_error.csv").write_text("a,b\n1,2\n")
  _run(lab, tmp_path, *_SMALL, "--num_bins=4").assert_refused("did not write")
