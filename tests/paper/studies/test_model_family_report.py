"""The model family of finished runs: the clients' choice over seeds, reported and refused."""

import csv

from helpers import finished_runs
import numpy as np
import pytest

from paper.studies import choosing
from paper.studies import family_choices
from paper.studies import model_family
from tff_superquantile.experiments import finished_run
from tff_superquantile.experiments.pages import page

_METHODS = ("fed_avg", "superquantile_theta_0.5", "superquantile_theta_0.1")
_SEEDS = (0, 1, 2)


@pytest.fixture
def tiny_task(monkeypatch, tmp_path_factory):
  """Lets finished runs of the tiny task find their model and clients."""
  folder = tmp_path_factory.mktemp("clients")
  monkeypatch.setattr(finished_run, "get_task", lambda run, config: None)
  monkeypatch.setattr(
    finished_run,
    "load_task",
    lambda task, config: (
      finished_runs.model(),
      {"test": finished_runs.clients(folder, config.seed)},
    ),
  )


def _write_runs(output_dir, methods=_METHODS, seeds=_SEEDS):
  for method in methods:
    for seed in seeds:
      finished_runs.write_run(output_dir, method, seed, noise=1.0)


def _run(output_dir, **settings):
  content = model_family.report(output_dir, finished_runs.TASK, family_choices.Settings(**settings))
  return page.write(content, output_dir / finished_runs.TASK)


def _rows(path):
  with open(path, newline="", encoding="utf-8") as stream:
    return list(csv.DictReader(stream))


def _columns(output_dir, seed, name):
  """[models, clients] of a column of the runs' files."""
  folder = output_dir / finished_runs.TASK
  return np.array(
    [
      [float(row[name]) for row in _rows(folder / method / f"seed_{seed}" / "model_family.csv")]
      for method in _METHODS
    ]
  )


def test_report_has_what_brute_force_finds(tmp_path, tiny_task):
  _write_runs(tmp_path)
  finished_runs.write_run(tmp_path, "fed_avg", 7)  # A seed that the others lack.
  finished_runs.write_run(tmp_path, "fed_prox_mu_0.1", 0)  # Not of the family.
  paths = _run(tmp_path)

  everyone = np.arange(len(finished_runs.SIZES) - 1)
  choices, p90 = {}, {name: [] for name in (*_METHODS, "family", "tuned", "oracle")}
  for seed in _SEEDS:
    error_in, loss_in, error_out, loss_out = (
      _columns(tmp_path, seed, f"{quantity}_{part}")
      for part in ("held_in", "held_out")
      for quantity in ("error", "loss")
    )
    choices[seed] = [
      min(range(3), key=lambda m: (error_in[m, i], loss_in[m, i]))
      for i in everyone  # noqa: B023
    ]
    tuned = np.argmin([np.percentile(error, 90) for error in error_in])
    picked = {
      **{method: error_out[m] for m, method in enumerate(_METHODS)},
      "family": error_out[choices[seed], everyone],
      "tuned": error_out[tuned],
      "oracle": error_out.min(axis=0),
    }
    for name, errors in picked.items():
      p90[name].append(100 * np.percentile(errors, 90))
  gain = np.subtract(p90["tuned"], p90["family"])

  def text(values):
    return f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}".replace("-", "−")

  markdown = paths["md"].read_text(encoding="utf-8")
  table, gains = finished_runs.markdown_tables(markdown)
  rows = {row[0]: dict(zip(table[0], row)) for row in table[1:]}
  expected = {
    "FedAvg (θ = 1)": "fed_avg",
    "Superquantile θ = 0.1": _METHODS[2],
    "One for all, by held-in p90": "tuned",
    "Family: own choice, by error": "family",
    "Own choice, in hindsight": "oracle",
  }
  for name, key in expected.items():
    assert rows[name]["p90"].replace("**", "") == text(p90[key]), name
    assert rows[name]["seeds"] == "3"
  shares = [100 * np.mean([c == 2 for c in choices[seed]]) for seed in _SEEDS]
  assert rows["Superquantile θ = 0.1"]["picked by"] == (
    f"{np.mean(shares):.1f} ± {np.std(shares, ddof=1):.1f}"
  )
  assert rows["Own choice, in hindsight"]["picked by"] == "–"
  assert "**" not in rows["Own choice, in hindsight"]["p90"]
  rows = {row[0]: dict(zip(gains[0], row)) for row in gains[1:]}
  assert rows["One for all, by held-in p90"]["p90"] == text(gain)
  assert "Family: own choice, by error" not in rows
  assert "Seeds that not all models have are left out: 7." in markdown

  in_csv = {(row["way"], row["metric"]): row for row in _rows(paths["csv"])}
  entry = in_csv[choosing.TUNED_SINGLE, "gain.p90"]
  assert float(entry["mean"]) == pytest.approx(gain.mean() / 100)
  assert float(entry["sd"]) == pytest.approx(gain.std(ddof=1) / 100)
  of_clients = _rows(tmp_path / "tiny" / "model_family_clients.csv")
  assert len(of_clients) == 3 * len(everyone)
  for row in of_clients:
    assert (
      row["method"]
      == _METHODS[
        choices[int(row["seed"])][[r for r in of_clients if r["seed"] == row["seed"]].index(row)]
      ]
    )
  html = paths["html"].read_text(encoding="utf-8")
  assert html.count("<figure") == 2 and "−" in html
  shown = page.terminal_text(model_family.report(tmp_path, "tiny"), list(paths.values()))
  assert "With one of 3 models" in shown and "3 seeds" in shown


def test_what_is_done_is_not_done_again_and_fractions_matter(tmp_path, tiny_task):
  _write_runs(tmp_path, _METHODS[:2], (0,))
  _run(tmp_path)
  paths = sorted((tmp_path / "tiny").glob("*/seed_*/model_family.csv"))
  before = [path.stat().st_mtime_ns for path in paths]
  _run(tmp_path)
  assert [path.stat().st_mtime_ns for path in paths] == before
  text = _run(tmp_path, held_in_fraction=0.25)["md"].read_text(encoding="utf-8")
  assert [path.stat().st_mtime_ns for path in paths] != before
  assert "Clients choose on 25 % of their examples" in text
  assert "This is one seed, which cannot tell an effect from chance." in text


def test_methods_can_be_named(tmp_path, tiny_task):
  _write_runs(tmp_path, ("fed_avg", "mine", "superquantile_theta_0.5"), (0,))
  text = _run(tmp_path, methods=("mine", "fed_avg"))["md"].read_text(encoding="utf-8")
  table = finished_runs.markdown_tables(text)[0]
  assert [row[0] for row in table[1:3]] == ["FedAvg (θ = 1)", "mine"]
  assert "θ = 0.5" not in text
  with pytest.raises(ValueError, match="no finished run of yours"):
    _run(tmp_path, methods=("fed_avg", "yours"))


def test_a_family_has_one_optimizer_and_differs_in_theta_alone(tmp_path, tiny_task):
  by_adam = ("fed_avg_adam", "superquantile_theta_0.5_adam")
  _write_runs(tmp_path, (*by_adam, "superquantile_theta_0.5_yogi"), (0,))
  settings = family_choices.Settings()
  assert list(family_choices.find_family(tmp_path, finished_runs.TASK, settings).runs) == [*by_adam]
  others = ("superquantile_theta_0.25_reweighting", "superquantile_theta_0.25_primal_dual")
  _write_runs(tmp_path, ("fed_avg", "superquantile_theta_0.5", *others), (0,))
  assert list(family_choices.find_family(tmp_path, finished_runs.TASK, settings).runs) == [
    *("fed_avg", "superquantile_theta_0.5"),
  ]


def test_refuses_what_is_no_family(tmp_path, tiny_task):
  finished_runs.write_run(tmp_path, "fed_avg", 0)
  with pytest.raises(ValueError, match="Found 1 of the methods that make the family"):
    _run(tmp_path)
  folder = finished_runs.write_run(tmp_path, "superquantile_theta_0.5", 1)
  with pytest.raises(ValueError, match="Found no seed that all of fed_avg, superquantile"):
    _run(tmp_path)
  finished_runs.write_run(tmp_path, "fed_avg", 1)
  (folder / "weights.npz").unlink()
  with pytest.raises(ValueError, match="superquantile_theta_0.5/seed_1"):
    _run(tmp_path)
  with pytest.raises(ValueError, match="held_in_fraction = 0"):
    _run(tmp_path, held_in_fraction=0)
