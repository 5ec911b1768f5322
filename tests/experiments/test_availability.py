"""The report of cohorts that follow the hour: numbers against brute force, what is refused."""

import csv
import re

import finished_runs
import numpy as np
import pandas as pd
import pytest

from paper.studies import availability
from paper.studies import day
from tff_superquantile import atomic_files
from tff_superquantile.experiments.report import page
from tff_superquantile.experiments.report import style
from tff_superquantile.experiments.run import run_folder

_TASK = "tiny"
_ADAPTIVE = "superquantile_updates_5"
_METHODS = {
  "fed_avg": dict(algorithm="fed_avg", theta=0.5),
  "superquantile_theta_0.5": dict(algorithm="superquantile", theta=0.5),
  "superquantile_theta_0.25": dict(algorithm="superquantile", theta=0.25),
  _ADAPTIVE: dict(algorithm="superquantile", theta=0.5, wanted_updates=5),
}
_SEEDS = (0, 1, 2)
_DRAW = day.draw
_STATISTICS = ("mean", "p90", "superquantile_90")


@pytest.fixture(autouse=True)
def empty_figures(monkeypatch):
  """Spares reports their figures, whose drawing takes the longest."""
  monkeypatch.setattr(day, "draw", lambda days, methods: style.Figure("day", "A day", "", b""))


def _write_run(
  output_dir, method, seed, *, num_rounds=303, every=5, gain=0.0, sampling="diurnal", drop=()
):
  """Writes a run whose errors are drawn, lower by `gain`, without the columns `drop`."""
  folder = output_dir / _TASK / method / f"seed_{seed}"
  folder.mkdir(parents=True)
  own = _METHODS.get(method) or finished_runs.flags_of(method)
  flags = dict(own, task=_TASK, seed=seed, sampling=sampling)
  (folder / "flags.txt").write_text("".join(f"--{n}={v}\n" for n, v in flags.items()))
  rng = np.random.default_rng([seed, *method.encode()])
  rows = []
  for number in range(num_rounds + 1):
    row = dict.fromkeys(
      ["round", *(f"test_error_{s}" for s in _STATISTICS), "cohort_size", "tail_size", "theta"], ""
    )
    row["round"] = number
    if number % every == 0 or number == num_rounds:
      # The untrained model is the worst of all.
      level = 1.0 if number == 0 else 0.3 - gain
      for statistic in _STATISTICS:
        row[f"test_error_{statistic}"] = level + 0.2 * rng.random()
    if number:
      size = np.random.default_rng([seed, number]).poisson(20 + 18 * np.cos(np.pi * number / 12))
      row["cohort_size"], row["tail_size"] = size, rng.integers(0, size + 1)
      row["theta"] = rng.random() if method == _ADAPTIVE else ""
    rows.append({name: value for name, value in row.items() if name not in drop})
  with open(folder / "rounds.csv", "w", newline="") as stream:
    writer = csv.DictWriter(stream, rows[0])
    writer.writeheader()
    writer.writerows(rows)
  atomic_files.write_json(folder / "metrics.json", {"test": {"error": {"p90": 0.2}}})
  return folder


def _write_runs(output_dir, methods=tuple(_METHODS), seeds=_SEEDS, **kwargs):
  for method in methods:
    for seed in seeds:
      _write_run(output_dir, method, seed, **kwargs)


def _describe(output_dir):
  return page.publish(availability.report(output_dir, _TASK), output_dir / _TASK)


def _measured(output_dir):
  return {run: day.measure(run) for run in run_folder.find_runs(output_dir)}


def _csv_rows(output_dir, method, seed):
  """The rows after the untrained model's, blanks as None."""
  path = output_dir / _TASK / method / f"seed_{seed}" / "rounds.csv"
  with open(path, newline="") as stream:
    rows = [{n: float(v) if v else None for n, v in row.items()} for row in csv.DictReader(stream)]
  return rows[1:]


def _expected(output_dir, method, seed):
  """What the table says of a run, in fractions and numbers of clients."""
  rows = _csv_rows(output_dir, method, seed)
  evaluated = [row for row in rows if row["test_error_mean"] is not None][-24:]
  expected = {}
  for statistic in _STATISTICS:
    errors = [row[f"test_error_{statistic}"] for row in evaluated]
    expected[f"error.{statistic}.average"] = sum(errors) / len(errors)
    expected[f"error.{statistic}.worst_hour"] = max(errors)
  updates, sizes = ([row[c] for row in rows[-240:]] for c in ("tail_size", "cohort_size"))
  return expected | {
    "updates.mean": sum(updates) / len(updates),
    "updates.least": min(updates),
    "updates.most": max(updates),
    "cohort.least": min(sizes),
    "cohort.most": max(sizes),
  }


def _table_rows(text):
  """{first cell: other cells} of all rows of Markdown tables, one list a table."""
  tables = re.split(r"\n(?!\|)", text)
  rows = [
    [
      [cell.replace("**", "").strip() for cell in line.strip("|").split("|")]
      for line in table.splitlines()
    ]
    for table in tables
  ]
  return [{row[0]: row[1:] for row in table if len(row) > 2} for table in rows if len(table) > 2]


def test_tables_and_summary_against_brute_force(tmp_path):
  _write_runs(tmp_path)
  text = _describe(tmp_path)
  folder = tmp_path / _TASK
  with open(folder / "availability.csv", newline="") as stream:
    in_csv = {(row["method"], row["metric"]): row for row in csv.DictReader(stream)}
  markdown = (folder / "availability.md").read_text(encoding="utf-8")
  html = (folder / "availability.html").read_text(encoding="utf-8")
  names = ("FedAvg", "Superquantile θ = 0.5", "Superquantile θ = 0.25", "Superquantile updates = 5")
  values = {}
  for method, name in zip(_METHODS, names):
    of_seeds = [_expected(tmp_path, method, seed) for seed in _SEEDS]
    cells = []
    for metric in of_seeds[0]:
      values[method, metric] = numbers = np.array([one[metric] for one in of_seeds])
      entry = in_csv.pop((method, metric))
      assert float(entry["mean"]) == pytest.approx(numbers.mean())
      assert float(entry["sd"]) == pytest.approx(numbers.std(ddof=1))
      assert entry["num_seeds"] == "3"
      factor, form = (100, ".2f") if metric.startswith("error") else (1, ".1f")
      cells.append(f"{factor * numbers.mean():{form}} ± {factor * numbers.std(ddof=1):{form}}")
      assert f"± {factor * numbers.std(ddof=1):{form}}" in html
    for form in (markdown, text):
      errors, clients = _table_rows(form)
      assert errors[name] == ["3", *cells[:6]]
      assert clients[name] == ["3", *cells[6:]]
  assert not in_csv

  def change(metric, rival):
    return values[_ADAPTIVE, metric] - values[rival, metric]

  def shown(changes):
    return f"{100 * changes.mean():+.1f} ± {100 * changes.std(ddof=1):.1f}".replace("-", "−")

  for rival, name in zip(list(_METHODS)[1:3], names[1:3]):
    worst = change("error.p90.worst_hour", rival)
    caution = ", no larger than its standard deviation over seeds"
    updates = change("updates.mean", rival).mean() / values[rival, "updates.mean"].mean()
    part = (
      f"against {name} (p90 there {shown(worst)} points"
      f"{caution if abs(worst.mean()) <= worst.std(ddof=1) else ''}; mean error over the day"
      f" {shown(change('error.mean.average', rival))}; updates {100 * updates:+.0f} %; 3 seeds)"
    ).replace("updates -", "updates −")
    assert part in text and part in markdown and part.replace(" %", "\u00a0%") in html
  assert "against FedAvg" not in text
  assert text.count("it ") == 1  # One sentence of two clauses.
  # The last round is not a multiple of 5, and takes the place of an hour.
  assert "last 24 evaluations (rounds 190 to 303)" in text
  assert "see as few as 23 of the 24 hours" in text and "see as few as 23" in html
  assert all(str(folder / f"availability.{kind}") in text for kind in ("html", "md", "csv"))
  assert html.count("<figure") == 1 and html.count("data:image/svg+xml") == 2


def test_hours_of_the_figure_against_brute_force(tmp_path):
  _write_runs(tmp_path, num_rounds=500)
  measured = _measured(tmp_path)
  # 48 evaluations every 5 rounds are 240 rounds, and see every hour twice.
  for run, measurement in measured.items():
    rows = _csv_rows(tmp_path, run.method, run.seed)
    values = measurement.day.set_index(["quantity", "hour"])["value"]
    for quantity, column in (
      ("cohort_size", "cohort_size"),
      ("tail_size", "tail_size"),
      ("p90", "test_error_p90"),
      *([("theta", "theta")] if run.method == _ADAPTIVE else []),
    ):
      for hour in range(24):
        found = [
          row[column]
          for row in rows
          if row["round"] > 260 and row["round"] % 24 == hour and row[column] is not None
        ]
        assert len(found) == (2 if quantity == "p90" else 10)
        assert values[quantity, hour] == pytest.approx(np.mean(found))
    if run.method == "fed_avg":
      assert "theta" not in values
    if run.method == "superquantile_theta_0.25":
      np.testing.assert_array_equal(values["theta"], np.full(24, 0.25))
  windows = pd.DataFrame([measurement.window for measurement in measured.values()])
  assert "hours" not in " ".join(availability._notes(windows))


@pytest.mark.parametrize(
  "gains, words",
  [((0.2, 0.25, 0.3), "helps against"), ((-0.2, -0.25, -0.3), "does harm against")],
)
def test_verdicts(tmp_path, gains, words):
  _write_runs(tmp_path, list(_METHODS)[:3], num_rounds=360)
  for seed, gain in zip(_SEEDS, gains):
    _write_run(tmp_path, _ADAPTIVE, seed, gain=gain, num_rounds=360)
  text = _describe(tmp_path)
  assert text.count(words) == 2 and "standard deviation" not in text and "too short" not in text


def test_equal_runs_make_no_sure_difference(tmp_path):
  _write_runs(tmp_path, num_rounds=360)
  for seed in _SEEDS:
    source, target = (
      tmp_path / _TASK / method / f"seed_{seed}" / "rounds.csv"
      for method in (_ADAPTIVE, "superquantile_theta_0.5")
    )
    target.write_bytes(source.read_bytes())
  assert (
    "makes no sure difference against Superquantile θ = 0.5 (p90 there 0.0 ± 0.0 points, no larger"
    " than its standard deviation over seeds; mean error over the day 0.0 ± 0.0; updates 0 %;"
  ) in _describe(tmp_path)


def test_short_runs_use_what_there_is_and_say_so(tmp_path):
  _write_runs(tmp_path, seeds=(0,), num_rounds=30)
  text = _describe(tmp_path)
  assert "Found as few as 6 evaluations in a run; expected 24" in text
  assert "last 6 evaluations (rounds 5 to 30), each at another hour of the day" in text
  assert "begin at round 5 of 30" in text and "Found runs of 30 rounds; expected 240" in text
  assert "One seed cannot tell an effect from chance. The runs are too short to judge by" in text
  assert "seems to" in text and "±" not in text.partition("mean ± sd")[2]
  errors, _ = _table_rows(text)
  expected = _expected(tmp_path, _ADAPTIVE, 0)
  assert errors["Superquantile updates = 5"][1:] == [
    f"{100 * value:.2f}" for name, value in expected.items() if name.startswith("error")
  ]


def test_what_cannot_be_compared_is_told(tmp_path):
  _write_run(tmp_path, "superquantile_theta_0.5", 0)
  assert "No method has an adaptive θ (--wanted_updates)" in _describe(tmp_path)
  _write_run(tmp_path, _ADAPTIVE, 1)
  text = _describe(tmp_path)
  assert "shares no seed with Superquantile θ = 0.5, so that they cannot be compared." in text
  assert "different seeds" in text


def test_figure(tmp_path):
  # A name that would start a formula, a panel that has no curve, hours that nobody knows.
  _write_run(tmp_path, "fed_avg", 0, num_rounds=30)
  _write_run(tmp_path, "$x_{$", 1, num_rounds=30)
  measured = _measured(tmp_path)
  days = [one.day.assign(method=run.method, seed=run.seed) for run, one in measured.items()]
  figure = _DRAW(pd.concat(days), [run.method for run in measured])
  assert figure.light != figure.dark and figure.light.startswith(b"<?xml")
  assert "last 10 days" in figure.caption


def test_refuses_runs_without_hours(tmp_path):
  _write_run(tmp_path, _ADAPTIVE, 0)
  _write_run(tmp_path, "superquantile_theta_0.5", 0, sampling="fixed_size")
  with pytest.raises(ValueError, match=r"Found --sampling=fixed_size in .*; expected diurnal"):
    _describe(tmp_path)
  assert not (tmp_path / _TASK / "availability.html").exists()


@pytest.mark.parametrize("column", ["test_error_p90", "tail_size", "theta"])
def test_refuses_runs_without_a_column(tmp_path, column):
  _write_run(tmp_path, _ADAPTIVE, 0, drop=(column,))
  with pytest.raises(ValueError, match=f"Found no column {column} in .*rounds.csv; expected"):
    _describe(tmp_path)


def test_command(lab, tmp_path):
  result = lab.study("availability", f"--output_dir={tmp_path}", "--data_dir=x")
  assert result.code == 2, result.err
  (line,) = result.err.splitlines()
  assert line.startswith("Error: Found --data_dir=x among the flags")
  _write_runs(tmp_path, seeds=(0, 1))
  result = lab.study("availability", f"--output_dir={tmp_path}")
  assert result.code == 0, result.err
  assert "Superquantile updates = 5" in result.out and not result.err
