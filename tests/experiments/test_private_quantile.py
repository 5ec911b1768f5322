"""The command private_quantile, from its flags to its files."""

import csv

import pytest


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


@pytest.mark.parametrize(
  "flag, message",
  [
    ("--num_bins=12", "num_bins = 12"),
    ("--num_bins=", "at least one number"),
    ("--epsilons=0", "--epsilons=0"),
    ("--bits=x", "numbers separated by commas"),
    ("--output_dir=/dev/null", "/dev/null"),
  ],
)
def test_mistakes_end_in_one_sentence(lab, tmp_path, flag, message):
  result = _run(lab, tmp_path, "--quick", flag)
  assert result.code == 2
  assert message in result.err and "Traceback" not in result.err
  assert len(result.err.strip().splitlines()) == 1


def test_measures_again_what_has_no_bounds(lab, tmp_path):
  folder = tmp_path / "private_quantile"
  folder.mkdir()
  # As version 0.2 wrote it.
  (folder / "quantile_error.csv").write_text(
    "distribution,num_bins,bits,epsilon,delta,num_clients,num_seeds,recipe,noise_multiplier,scale,"
    "error,sd\nuniform,4,20,10.0,1e-05,30,3,paper,0.5,3,0.123456,0.01\n"
  )
  result = _run(lab, tmp_path, *_SMALL, "--num_bins=4", "--epsilons=10")
  assert result.code == 0, result.err
  text = (folder / "quantile_error.csv").read_text()
  assert "bound" in text and "0.123456" not in text


def test_refuses_a_strange_file(lab, tmp_path):
  (tmp_path / "private_quantile").mkdir()
  (tmp_path / "private_quantile/quantile_error.csv").write_text("a,b\n1,2\n")
  result = _run(lab, tmp_path, *_SMALL, "--num_bins=4")
  assert result.code == 2 and "did not write" in result.err
