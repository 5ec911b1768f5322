"""Runs with --folds through `train` and the report: every client is a test client once."""

from helpers import finished_runs
import numpy as np
import pytest
import tensorflow_federated as tff

from privacy.settings import command_line
import tasks
from tff_superquantile import atomic_files
from tff_superquantile.experiments import describe
from tff_superquantile.experiments import run
from tff_superquantile.experiments import sweep
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.evidence import in_reports
from tff_superquantile.experiments.pages import page
from tff_superquantile.experiments.pages import units
from tff_superquantile.experiments.references import kept
from tff_superquantile.experiments.report import comparison
from tff_superquantile.experiments.run import cross_validation
from tff_superquantile.experiments.run import run_folder

_FOLDS = 4


@pytest.fixture(scope="module")
def output_dir(tmp_path_factory):
  """Leaves FedAvg and a superquantile method, cross-validated over four hospitals of a table."""
  folder = tmp_path_factory.mktemp("folds")
  rng = np.random.default_rng(0)
  rows = ["site,outcome,v"]
  for i in range(120):
    v = rng.normal()
    rows.append(f"h{i % _FOLDS},{int(v + 0.5 * rng.normal() > 0)},{v:.4f}")
  (folder / "visits.csv").write_text("\n".join(rows))
  old = tff.framework.get_context_stack().current
  for method in (dict(algorithm="fed_avg"), dict(theta=0.5)):
    for seed in range(_FOLDS):
      config = run_config.from_values(
        task="own",
        data_dir=str(folder / "visits.csv"),
        client_column="site",
        label_column="outcome",
        folds=_FOLDS,
        seed=seed,
        num_rounds=3,
        rounds_per_evaluation=1,
        output_dir=str(folder / "results"),
        cache_dir=str(folder / "cache"),
        **method,
      )
      run.train(config)
  tff.framework.set_default_context(old)
  return folder / "results"


def test_statistics_are_of_all_clients_of_a_cross_validation(output_dir):
  runs = run_folder.find_runs(output_dir)
  pooled = cross_validation.pool(runs)
  assert [len(one.folds) for one in pooled] == [_FOLDS, _FOLDS]
  for one in pooled:
    own = [run for run in runs if run.path.parent == one.path.parent]
    errors = np.concatenate([run.clients("test")["error"] for run in own])
    ids = np.concatenate([run.clients("test")["client_id"] for run in own])
    assert sorted(ids) == ["h0", "h1", "h2", "h3"]
    assert one.seed == 0
    assert one.numbers["test.error.mean"] == pytest.approx(errors.mean())
    assert one.numbers["test.error.p90"] == pytest.approx(np.percentile(errors, 90))
    train = np.mean([run.numbers["train.loss.mean"] for run in own])
    assert one.numbers["train.loss.mean"] == pytest.approx(train)
    assert list(one.rounds["round"]) == [0, 1, 2, 3]
    last = [run.rounds["test_error_mean"][-1] for run in own]
    assert one.rounds["test_error_mean"][-1] == pytest.approx(np.mean(last))
    assert len(one.evaluations("test")["client_id"]) == _FOLDS * 4


def test_no_model_is_tested_on_a_client_that_trained_it(output_dir):
  for one in run_folder.find_runs(output_dir):
    tested, trained = (set(one.clients(split)["client_id"]) for split in ("test", "train"))
    assert not tested & trained
    assert len(tested | trained) == _FOLDS


def test_the_report_is_of_every_client_and_says_what_is_missing(output_dir, monkeypatch):
  (task,) = {one.task for one in run_folder.find_runs(output_dir)}
  assert task == f"own_visits_linear_folds_{_FOLDS}"
  text = page.render(comparison.report(output_dir, task), "md")
  assert "4-fold cross-validation over clients" in text
  assert "no finished run of fold" not in text
  find = run_folder.find_runs
  without = lambda folder: [one for one in find(folder) if one.seed != 2]  # noqa: E731
  monkeypatch.setattr(run_folder, "find_runs", without)
  text = page.render(comparison.report(output_dir, task), "md")
  assert "FedAvg has no finished run of fold 2 of 4; its numbers are of the 3 clients" in text


def test_a_task_with_test_clients_of_its_own_refuses_folds():
  request = tasks.task.Request("", folds=3)
  with pytest.raises(ValueError, match="Found --folds=3 for synthetic, whose test clients"):
    tasks.get_task("synthetic").split_clients([], request)


@pytest.mark.parametrize(
  "num_clients, num_inputs, given, folds",
  [
    (19, 1_000, [], 0),
    (20, 1_000, [], 5),
    (100, 250_000, [], 5),
    (100, 250_001, [], 0),
    (101, 1_000, [], 0),
    (40, 1_000, ["--quick"], 0),
    (40, 1_000, ["--held_out_examples=0.5"], 0),
    (40, 1_000, ["--num_rounds=9"], 5),
  ],
)
def test_few_clients_of_a_table_have_folds(monkeypatch, num_clients, num_inputs, given, folds):
  monkeypatch.setattr(describe, "clients_and_inputs", lambda _: (num_clients, num_inputs))
  args = command_line.parse(sweep, given)
  assert sweep._usual_folds(args, run_config.from_values(task="own")) == folds


def test_private_runs_have_no_folds_by_themselves(monkeypatch):
  monkeypatch.setattr(describe, "clients_and_inputs", lambda _: (40, 1_000))
  config = run_config.from_values(task="own", epsilon=5.0, clip_norm=1.0, threshold="tree")
  assert sweep._usual_folds(command_line.parse(sweep, []), config) == 0


@pytest.mark.parametrize("folds", [0, 2])
def test_errors_of_number_labels_are_in_one_unit_whatever_their_fold_or_seed(tmp_path, folds):
  sds, errors = (10.0, 5.0), (np.linspace(0.2, 0.4, 9), np.linspace(1.0, 3.0, 9))
  for seed, (sd, own) in enumerate(zip(sds, errors)):
    flags = dict(seed=seed, task="own", rounds=own, further={"mae": 0.0}, folds=folds)
    finished_runs.fabricate(tmp_path, {"fed_avg": own}, {kept.CONSTANT: own}, **flags)
    folder = tmp_path / "own" / "fed_avg" / f"seed_{seed}"
    atomic_files.write_json(folder / "columns.json", {"label": {"std": sd, "unit": "km"}})
    atomic_files.write_json(folder / "manifest.json", {"error": "rmse"})
  pooled = cross_validation.pool(run_folder.find_runs(tmp_path))
  assert len(pooled) == (1 if folds else 2)
  assert {units.of_run(one).error.symbol for one in pooled} == {"label sd of 10 km"}
  references = in_reports.find(pooled).of_seed.values()
  of_constant = [its.models[kept.CONSTANT] for its in references]
  for name, power in (("error", 1), ("mae", 1), ("loss", 2), ("num_examples", 0)):
    its = [np.full(9, 9.0) if name == "num_examples" else own for own in errors]
    expected = np.concatenate([its[0], its[1] * (sds[1] / sds[0]) ** power])
    for found in ([one.clients("test") for one in pooled], [one.clients for one in of_constant]):
      np.testing.assert_allclose(np.concatenate([one[name] for one in found]), expected)
    if power:
      mean = np.mean([one.numbers[f"test.{name}.mean"] for one in pooled])
      assert mean == pytest.approx(expected.mean())
  losses = np.mean([one.rounds["train_loss"] for one in pooled], axis=0)
  np.testing.assert_allclose(losses, (errors[0] + errors[1] / 4) / 2)
