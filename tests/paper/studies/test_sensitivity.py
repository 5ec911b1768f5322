"""The study of sensitivity: curves by brute force, what is left out, what is refused."""

import csv
import itertools
import re

import numpy as np
import pytest

from paper.studies import sensitivity
from paper.studies.sensitivity import curves
from tff_superquantile import atomic_files
from tff_superquantile.experiments.config import names
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.pages import page
from tff_superquantile.experiments.plan import presets
from tff_superquantile.experiments.run import run_folder

_TASK = "tiny"
_SEEDS = (0, 1, 2)
_FED_AVG = dict(algorithm="fed_avg")
_HALF = dict(algorithm="superquantile", theta=0.5)
_TAIL = dict(algorithm="superquantile", theta=0.1)


def _errors(flags, seed):
  """Errors that are drawn, but the same for the same settings."""
  rng = np.random.default_rng([seed, *repr(sorted(flags.items())).encode()])
  return dict(zip(("mean", "p90"), np.round(rng.random(2), 6).tolist()))


def _write(output_dir, flags, seeds=_SEEDS, **metrics):
  """Writes the finished runs of a method with these flags."""
  own = dict(dict(local_epochs=1, clients_per_round=100, task=_TASK), **flags)
  if (own["local_epochs"], own["clients_per_round"]) != (1, 100):
    name = names.folder(run_config.from_values(**dict(own, run_name="")))
    own.setdefault("run_name", f"{name}_{own['local_epochs']}_{own['clients_per_round']}")
  for seed in seeds:
    folder = output_dir / _TASK / names.folder(run_config.from_values(**own)) / f"seed_{seed}"
    folder.mkdir(parents=True)
    lines = dict(own, seed=seed, exact_siblings="refused").items()
    (folder / "flags.txt").write_text("".join(f"--{flag}={value}\n" for flag, value in lines))
    errors = {"test": {"error": {**_errors(flags, seed), **metrics}}}
    atomic_files.write_json(folder / "metrics.json", errors)


@pytest.fixture
def results(tmp_path):
  for method, epochs in itertools.product((_FED_AVG, _HALF), (1, 2, 10)):
    _write(tmp_path, {**method, **(dict(local_epochs=epochs) if epochs > 1 else {})})
  for method, size in itertools.product((_FED_AVG, _HALF), (10, 30)):
    _write(tmp_path, {**method, "clients_per_round": size})
  _write(tmp_path, _TAIL)
  # What differs in two settings, or in another way, is on no curve.
  _write(tmp_path, {**_HALF, "local_epochs": 2, "clients_per_round": 10, "run_name": "two"})
  _write(tmp_path, {**_HALF, "threshold": "reweighting"})
  _write(tmp_path, dict(algorithm="q_fed_avg", q=1.0))
  _write(tmp_path, {**_FED_AVG, "server_optimizer": "adam"})
  for flag, value in (("client_learning_rate", 0.7), ("num_rounds", 9), ("l2", 0.1)):
    _write(tmp_path, {**_HALF, flag: value, "run_name": f"other_{flag}"})
  # FedAvg by another name.
  _write(tmp_path, dict(algorithm="superquantile", theta=1.0))
  return tmp_path


def _find(output_dir):
  return {curve.setting.flag: curve for curve in curves.find(run_folder.find_runs(output_dir))}


def test_a_curve_has_the_runs_that_differ_in_its_setting_alone(results):
  found = _find(results)
  assert {flag: curve.values for flag, curve in found.items()} == {
    "local_epochs": [1, 2, 10],
    "clients_per_round": [10, 30, 100],
    "theta": [0.1, 0.5, 1.0],
  }
  both = ["fed_avg", "superquantile_theta_0.5"]
  assert [list(map(str, curve.lines)) for curve in found.values()] == [
    both,
    both,
    [curves.OF_THETAS],
  ]
  paths = {run.path.parent.name for curve in found.values() for run in curve.runs}
  assert "two" not in paths and not any("q_fed_avg" in path for path in paths)
  assert not any(word in path for word in ("reweighting", "adam", "other") for path in paths)
  assert "superquantile_theta_1" not in paths
  for curve in found.values():
    assert len(curve.runs) == len(curve.lines) * len(curve.values) * len(_SEEDS)


def test_numbers_are_those_of_the_runs(results):
  expected = {}
  for method, line in ((_FED_AVG, "fed_avg"), (_HALF, "superquantile_theta_0.5")):
    for flag, usual, values in (("local_epochs", 1, (1, 2, 10)), ("clients_per_round", 100, (10,))):
      for value in values:
        flags = {**method, **(dict([(flag, value)]) if value != usual else {})}
        for seed, (metric, error) in itertools.product(_SEEDS, (("mean", "mean"), ("p90", "p90"))):
          expected[flag, str(value), f"{line}.{metric}", seed] = _errors(flags, seed)[error]
  for theta, method in (("1", _FED_AVG), ("0.5", _HALF), ("0.1", _TAIL)):
    for seed in _SEEDS:
      expected["theta", theta, f"{curves.OF_THETAS}.p90", seed] = _errors(method, seed)["p90"]
  found = {
    (flag, row.method, row.metric, row.seed): row.value
    for flag, curve in _find(results).items()
    for row in curve.results.itertuples()
  }
  assert len(expected) > 40 and expected.items() <= found.items()


def test_publishes_tables_a_figure_and_csv(results):
  text = page.publish(sensitivity.report(results, _TASK), results / _TASK)
  rows = list(csv.DictReader(open(results / _TASK / "sensitivity.csv")))
  (row,) = (
    row
    for row in rows
    if (row["setting"], row["metric"]) == ("clients_per_round=30", "superquantile_theta_0.5.mean")
  )
  values = [_errors({**_HALF, "clients_per_round": 30}, seed)["mean"] for seed in _SEEDS]
  assert float(row["mean"]) == pytest.approx(np.mean(values))
  assert float(row["sd"]) == pytest.approx(np.std(values, ddof=1))
  assert f"{100 * np.mean(values):.1f} ± {100 * np.std(values, ddof=1):.1f}" in text
  html = (results / _TASK / "sensitivity.html").read_text()
  assert html.count("<table") == 3 and "Local epochs" in html and "data:image/svg" in html


def test_the_sentence_has_the_least_and_the_largest_change(tmp_path):
  for epochs, (theirs, ours) in {1: (0.6, 0.5), 2: (0.5, 0.44), 5: (0.5, 0.52)}.items():
    _write(tmp_path, {**_FED_AVG, "local_epochs": epochs}, mean=0.1, p90=theirs)
    _write(tmp_path, {**_HALF, "local_epochs": epochs}, mean=0.1, p90=ours)
  summary = sensitivity.report(tmp_path, _TASK).summary
  assert "from 1 to 5" in summary and re.search(r"by −10\.0 \(at 1\) to \+2\.0 \(at 5\)", summary)
  assert "the lowest p90 is 50.0 %, at 0.5" in summary


def test_curves_are_of_the_tail_fraction_with_most_values_and_of_other_optimizers(tmp_path):
  adam = dict(server_optimizer="adam")
  for epochs in (1, 2):
    _write(tmp_path, {**_FED_AVG, **adam, "local_epochs": epochs})
    _write(tmp_path, {**_HALF, **adam, "local_epochs": epochs}, seeds=(0,))
  _write(tmp_path, {**_TAIL, **adam})  # With more runs, but of one value.
  found = _find(tmp_path)
  assert list(found["local_epochs"].lines) == ["fed_avg_adam", "superquantile_theta_0.5_adam"]
  assert found["theta"].values == [0.1, 0.5, 1.0]


@pytest.mark.parametrize("methods", [(_FED_AVG,), (dict(algorithm="q_fed_avg", q=1.0),)])
def test_refuses_runs_without_two_values_of_a_setting(tmp_path, methods):
  for method in methods:
    _write(tmp_path, method)
  with pytest.raises(ValueError, match="no setting with two values .*run_experiments.sh sens"):
    sensitivity.report(tmp_path, _TASK)


def test_the_experiment_makes_all_three_curves(tmp_path):
  for method in presets.PRESETS["sensitivity"].methods():
    flags = {name: value for name, value in method.items() if value != ""}
    _write(tmp_path, flags, seeds=(0,))
  assert list(_find(tmp_path)) == ["local_epochs", "clients_per_round", "theta"]
  assert [len(curve.values) for curve in _find(tmp_path).values()] == [4, 4, 5]
