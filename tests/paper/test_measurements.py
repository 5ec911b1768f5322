"""Measurements that the page on the paper is made of: what is kept of a directory of runs."""

import itertools

import numpy as np
import pandas as pd
import pytest

from paper.statements import measurements
from paper.statements import on_comparisons
from paper.statements import printed
from paper.statements import rows
from paper.statements import sources


def _measured(*entries, sd=0.01, num_seeds=5):
  """Measurements as `measurements` keeps them, of (method, metric, value)."""
  columns = list(sources.COLUMNS)
  return pd.DataFrame([(*entry, sd, num_seeds) for entry in entries], columns=columns)


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
