"""Personalization of finished runs: what is computed, skipped, reported and refused."""

import csv
import dataclasses
import json
import shutil

import finished_runs
import numpy as np
import pytest
import tensorflow_federated as tff

from paper.studies import personalization
import tasks
from tff_superquantile import evaluation
from tff_superquantile.experiments import finished_run
from tff_superquantile.experiments.report import page
from tff_superquantile.experiments.run import run_config
from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run import run_folder

_METHODS = ("fed_avg", "superquantile_theta_0.5", "superquantile_theta_0.1")
_SEEDS = (0, 1, 2)


@pytest.fixture
def tiny_task(monkeypatch, tmp_path_factory):
  """Lets finished runs of the tiny task find their model and clients."""
  folder = tmp_path_factory.mktemp("clients")
  loaded = []

  def load_task(run, config):
    loaded.append(config)
    return finished_runs.model(), {"test": finished_runs.clients(folder, config.seed)}

  monkeypatch.setattr(finished_run, "load_task", load_task)
  return loaded


def _write_runs(output_dir, methods=_METHODS, seeds=_SEEDS):
  for method in methods:
    for seed in seeds:
      finished_runs.write_run(output_dir, method, seed)


def _run(output_dir, **settings):
  content = personalization.report(
    output_dir, finished_runs.TASK, personalization.Settings(**settings)
  )
  return page.write(content, output_dir / finished_runs.TASK)


def _clients_csv(output_dir, method, seed):
  path = output_dir / finished_runs.TASK / method / f"seed_{seed}" / "personalization.csv"
  with open(path, newline="") as stream:
    return list(csv.DictReader(stream))


def _errors(output_dir, method, seed, when):
  return [float(row[f"error_{when}"]) for row in _clients_csv(output_dir, method, seed)]


def test_computes_what_the_library_does_and_reports_it(tmp_path, tiny_task):
  _write_runs(tmp_path)
  paths = _run(tmp_path)
  assert len(tiny_task) == len(_SEEDS)  # The methods of a seed share their clients.

  # A run's own file, from the library with the flags of the run: the rate has decayed twice.
  files = finished_runs.clients(tmp_path, 1)
  x, y, offsets = files.load()
  split = evaluation.split_examples(
    evaluation.ClientExamples(files.client_ids, x, y, offsets, files.decode), 0.5, 1
  )
  run = run_folder.Run(tmp_path / "tiny" / "fed_avg" / "seed_1", 1)
  expected = evaluation.build_personalizer(
    finished_runs.model(),
    split,
    tff.learning.optimizers.build_sgdm(finished_runs.LEARNING_RATE / 4),
    seed=1,
    batch_size=finished_runs.BATCH_SIZE,
    epochs=10,
    l2=finished_runs.L2,
  )(run.weights)
  rows = _clients_csv(tmp_path, "fed_avg", 1)
  assert [row["client_id"] for row in rows] == list(expected.client_ids)
  for name in expected._fields[1:-1]:
    got = [float(row[name]) for row in rows]
    np.testing.assert_allclose(got, getattr(expected, name), rtol=1e-5, err_msg=name)
  described = json.loads((run.path / "personalization.json").read_text())
  assert described["learning_rate"] == 0.05 and described["num_left_out"] == 1
  assert described["after"]["error"]["p90"] == pytest.approx(
    np.percentile(expected.error_after, 90)
  )
  assert np.mean(expected.error_after) < np.mean(expected.error_before)

  # The table.
  (table,) = finished_runs.markdown_tables(paths["md"].read_text(encoding="utf-8"))
  names = ["method", "seeds", "mean, before", "mean, after", "p90, before", "p90, after"]
  assert table[0] == names
  assert [row[0] for row in table[1:]] == [
    "FedAvg",
    "Superquantile θ = 0.5",
    "Superquantile θ = 0.1",
  ]
  html = paths["html"].read_text(encoding="utf-8")
  with open(paths["csv"], newline="") as stream:
    in_csv = {(row["method"], row["metric"]): row for row in csv.DictReader(stream)}
  for column, (when, name, statistic) in enumerate(
    (
      ("before", "mean", np.mean),
      ("after", "mean", np.mean),
      ("before", "p90", lambda errors: np.percentile(errors, 90)),
      ("after", "p90", lambda errors: np.percentile(errors, 90)),
    )
  ):
    values = {
      method: [100 * statistic(_errors(tmp_path, method, seed, when)) for seed in _SEEDS]
      for method in _METHODS
    }
    best = min(np.mean(of_seeds) for of_seeds in values.values())
    for row, (method, of_seeds) in zip(table[1:], values.items()):
      text = f"{np.mean(of_seeds):.2f} ± {np.std(of_seeds, ddof=1):.2f}"
      is_best = f"{np.mean(of_seeds):.2f}" == f"{best:.2f}"
      assert row[2 + column].replace("**", "") == text
      assert row[2 + column].startswith("**") == is_best
      assert f"± {np.std(of_seeds, ddof=1):.2f}" in html
      entry = in_csv[method, f"{when}.error.{name}"]
      assert float(entry["mean"]) == pytest.approx(np.mean(of_seeds) / 100)
      assert float(entry["sd"]) == pytest.approx(np.std(of_seeds, ddof=1) / 100)
      assert entry["num_seeds"] == "3"
  assert html.count("<figure") == 2
  assert "Left out: clients with a single example, up to 1 of a seed." in html
  text = page.terminal_text(personalization.report(tmp_path, "tiny"), list(paths.values()))
  rival = min(
    _METHODS[1:],
    key=lambda m: np.mean([np.percentile(_errors(tmp_path, m, s, "before"), 90) for s in _SEEDS]),
  )
  for when, words in (("before", "points before"), ("after", "after it")):
    change = [
      100
      * np.subtract(
        *(np.percentile(_errors(tmp_path, m, seed, when), 90) for m in (rival, "fed_avg"))
      )
      for seed in _SEEDS
    ]
    shown = f"{np.mean(change):+.1f} ± {np.std(change, ddof=1):.1f} {words}".replace("-", "−")
    assert shown in text
  assert "over 3 seeds" in text and str(paths["html"]) in text and "**" not in text


def test_what_is_done_is_not_done_again(tmp_path, tiny_task, capsys):
  _write_runs(tmp_path, _METHODS[:1])
  _run(tmp_path, epochs=2)
  folders = sorted((tmp_path / "tiny").glob("*/seed_*"))

  def times():
    return [(folder / "personalization.csv").stat().st_mtime_ns for folder in folders]

  before = times()
  capsys.readouterr()
  tiny_task.clear()
  _run(tmp_path, epochs=2)
  assert times() == before and not tiny_task
  assert capsys.readouterr().err == ""  # No bar for nothing.

  # An interrupted one, and one whose model is another by now.
  (folders[1] / "personalization.json").unlink()
  (folders[2] / "weights.npz").write_bytes((folders[0] / "weights.npz").read_bytes())
  _run(tmp_path, epochs=2)
  assert [old != new for old, new in zip(before, times())] == [False, True, True]

  _run(tmp_path, epochs=3)
  assert all(old != new for old, new in zip(before, times()))


def test_ditto_is_a_setting_of_its_own_and_said(tmp_path, tiny_task):
  _write_runs(tmp_path, _METHODS[:1], (0,))
  _run(tmp_path, epochs=2)
  free = _errors(tmp_path, "fed_avg", 0, "after")
  paths = _run(tmp_path, epochs=2, proximal_strength=20.0)  # 20 times the rate of 0.05 is 1.
  text = paths["md"].read_text(encoding="utf-8")
  assert "with Ditto’s proximal term of λ = 20." in text
  described = json.loads((tmp_path / "tiny/fed_avg/seed_0/personalization.json").read_text())
  assert described["settings"]["proximal_strength"] == 20.0
  near, before = (_errors(tmp_path, "fed_avg", 0, when) for when in ("after", "before"))
  assert np.abs(np.subtract(near, before)).sum() < np.abs(np.subtract(free, before)).sum()


def test_the_rate_is_that_of_the_last_round():
  config = run_config.resolved(
    run_config.of(client_learning_rate=0.4, learning_rate_decay=0.5, rounds_per_decay=10),
    {**tasks.get_task("synthetic").defaults, "sampling": "fixed_size"},
  )
  rates = [
    dataclasses.replace(config, num_rounds=n).final_learning_rate for n in (1, 10, 11, 30, 31)
  ]
  assert rates == [0.4, 0.4, 0.2, 0.1, 0.05]


def test_private_methods_are_compared_at_one_budget(tmp_path, tiny_task):
  _write_runs(
    tmp_path,
    [
      f"{method}_epsilon_{epsilon}"
      for method in ("fed_avg", "superquantile_theta_0.5_geometric")
      for epsilon in (2, 5)
    ],
    (0,),
  )
  paths = _run(tmp_path, epochs=1)
  text = paths["md"].read_text(encoding="utf-8")
  assert "At ε = 5: Fine-tuning takes the mean error with FedAvg from" in text
  assert "This is one seed, which cannot tell an effect from chance." in text
  (table,) = finished_runs.markdown_tables(text)
  assert len(table) == 5
  assert "±" not in "".join(table[1])


def test_refuses_what_is_not_there(tmp_path, tiny_task):
  finished_runs.write_run(tmp_path, "fed_avg", 0, finished=False)
  with pytest.raises(ValueError, match="Found 1 unfinished and no finished run of 'tiny'"):
    _run(tmp_path)
  folder = finished_runs.write_run(tmp_path, "superquantile_theta_0.5", 0)
  finished_runs.write_run(tmp_path, "superquantile_theta_0.1", 3)
  (folder / "weights.npz").unlink()
  with pytest.raises(ValueError) as error:
    _run(tmp_path)
  assert "1 of the finished runs (superquantile_theta_0.5/seed_0)" in str(error.value)
  assert "run the same experiment again" in str(error.value)
  with pytest.raises(ValueError, match="of 'other' .*; there are some of tiny"):
    personalization.report(tmp_path, "other")


def test_refuses_other_clients_and_other_models(tmp_path, tiny_task):
  folder = finished_runs.write_run(tmp_path, "fed_avg", 0)
  clients = folder / "test_clients.csv"
  clients.write_text(clients.read_text().replace("writer 3", "somebody else"))
  with pytest.raises(ValueError, match="other test clients than those of .*test_clients.csv"):
    _run(tmp_path)
  clients.write_text(clients.read_text().replace("somebody else", "writer 3"))
  run_files.write_weights(
    folder / "weights.npz", run_files.Weights((np.zeros([4, 3], np.float32),), ())
  )
  with pytest.raises(ValueError, match="weights of shapes"):
    _run(tmp_path)


@pytest.mark.parametrize("study", ["personalization", "model_family"])
def test_mistakes_end_in_one_sentence(lab, tmp_path, study):
  for arguments, part in (
    ((f"--output_dir={tmp_path}",), "no finished run of 'synthetic'"),
    ((f"--output_dir={tmp_path}", "--theta=0.5"), "Found --theta, which this command"),
  ):
    result = lab.study(study, *arguments)
    assert result.code == 2, result.err
    (line,) = result.err.splitlines()
    assert line.startswith("Error: ") and part in line
  listed = lab.study(study, "--help").out
  assert all(f"--{name}:" in listed for name in ("task", "output_dir", "data_dir"))
  assert "--theta:" not in listed


def test_commands_on_a_trained_model(lab, tmp_path, base):
  # The same model as two methods, for which nothing can be gained.
  run = base.path
  for method in ("superquantile_theta_0.5", "superquantile_theta_0.25"):
    shutil.copytree(run, tmp_path / "synthetic" / method / "seed_0")
  arguments = (f"--output_dir={tmp_path}", "--task=synthetic")
  result = lab.study("personalization", *arguments, "--epochs=2")
  assert result.code == 0, result.err
  assert "Fine-tuning takes the mean error" in result.out
  result = lab.study("model_family", *arguments)
  assert result.code == 0, result.err
  assert "leaves it as it is" in result.out
