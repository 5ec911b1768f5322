"""Reference models beside an experiment: against numpy, Newton's method and closed forms."""

import json

from helpers import finished_runs
import numpy as np
import pytest
from sklearn import linear_model
from sklearn import metrics
import tensorflow as tf

from tasks import models
from tff_superquantile import evaluation
from tff_superquantile.experiments.evidence import in_reports
from tff_superquantile.experiments.references import fitting
from tff_superquantile.experiments.references import kept
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.experiments.run.hooks import class_weights

_SIZES = (7, 12, 1, 30)
_CSV = {"delimiter": ",", "names": True, "dtype": None, "encoding": "utf-8"}


def _spec(label):
  return tf.TensorSpec([None, 3], tf.float32), tf.TensorSpec([None], label)


def _examples(y, seed=0):
  x = np.random.default_rng(seed).normal(size=[len(y), 3]).astype(np.float32)
  offsets = np.cumsum([0, *_SIZES])
  return evaluation.ClientExamples([f"c{i}" for i in range(len(_SIZES))], x, y, offsets)


def _of_clients(examples, values):
  """Means of the values of each client's examples, one client after the other."""
  return [np.mean(values[a:b]) for a, b in zip(examples.offsets, examples.offsets[1:])]


@pytest.mark.parametrize(
  "texts, said",
  [
    (["'0', the class of train", "'0', the class of train"], "'0', the class of train"),
    (["'0', the class", "'1', the class", "'0', the class"], "'0' or '1', the class"),
    (["0.29, the mean", "0.301, the mean", "0.2, the mean"], "0.29, 0.301 or 0.2, the mean"),
    (["of all 9 clients, each", "of all 10 clients, each"], "of all 9 or 10 clients, each"),
    (["'a b', the class", "'b', the class"], "'a b' or 'b', the class"),
    (["a model", "a model, weighted"], "a model, or a model, weighted"),
  ],
)
def test_what_is_said_of_several_folds_or_seeds_is_true_of_each(texts, said):
  models = [kept.Reference(text, {"client_id": np.array(["c"])}, {}) for text in texts]
  parts = [
    kept.References("print", {kept.CONSTANT: m}, {kept.LOCAL: m.description}) for m in models
  ]
  together = kept.joined(parts)
  assert together.models[kept.CONSTANT].description == f"{said}, in each fold anew"
  assert together.left_out == {kept.LOCAL: said}
  (note,) = in_reports.ReferencesBySeed(dict(enumerate(parts))).notes()
  assert f"constant answer (not federated): {said}." in note and f"left out, as {said}." in note


def test_constant_class_is_the_most_frequent_one():
  rng = np.random.default_rng(1)
  y = rng.choice(3, p=[0.2, 0.7, 0.1], size=sum(_SIZES)).astype(np.int32)
  train = np.array([2, 1, 1, 0, 1, 2], np.int32)
  examples = _examples(y)
  found, pooled = fitting.constant(train, 4).results(examples)
  assert list(found.num_examples) == list(_SIZES)
  np.testing.assert_allclose(found.error, _of_clients(examples, y != 1))
  shares = {0: 2 / 10, 1: 4 / 10, 2: 3 / 10}  # Four classes, the last one never seen.
  losses = np.array([-np.log(shares[label]) for label in y])
  np.testing.assert_allclose(found.loss, _of_clients(examples, losses))
  # One class is always right, and the others never.
  classes = [set(y[a:b]) for a, b in zip(examples.offsets, examples.offsets[1:])]
  balanced = [1 - (1 in own) / len(own) for own in classes]
  np.testing.assert_allclose(found.measures["balanced_error"], balanced)
  assert pooled["balanced_error"] == pytest.approx(2 / 3)
  assert pooled["recall"] == {"0": 0, "1": 1, "2": 0}
  assert pooled["ranking_error"] == pytest.approx(0.5)  # All scores are equal.
  assert pooled["calibration_error"] == pytest.approx(abs(np.mean(y == 1) - 4 / 10))


def test_constant_number_is_the_mean():
  y = np.random.default_rng(2).normal(size=sum(_SIZES)).astype(np.float32)
  train = np.array([[1.0], [2.0], [6.0]], np.float32)
  examples = _examples(y)
  found, pooled = fitting.constant(train, None).results(examples)
  squares = _of_clients(examples, (y.astype(float) - 3.0) ** 2)
  np.testing.assert_allclose(found.error, np.sqrt(squares))
  np.testing.assert_allclose(found.loss, np.array(squares) / 2)
  absolute = _of_clients(examples, np.abs(y - 3.0))
  np.testing.assert_allclose(found.measures["mae"], absolute, rtol=1e-6)
  assert pooled["error"] == pytest.approx(np.sqrt(np.mean((y - 3.0) ** 2)), rel=1e-6)


def _newton(x, y, l2):
  """Minimises mean log(1 + exp(-s w x)) + l2 / 2 |w|^2 over weights and intercept."""
  x = np.column_stack([x.astype(float), np.ones(len(x))])
  w = np.zeros(x.shape[1])
  for _ in range(30):
    p = 1 / (1 + np.exp(-x @ w))
    gradient = x.T @ (p - y) / len(y) + l2 * w
    hessian = (x * (p * (1 - p))[:, None]).T @ x / len(y) + l2 * np.eye(len(w))
    w -= np.linalg.solve(hessian, gradient)
  return w


@pytest.mark.parametrize("most_entries", [2**22, 21])
def test_pooled_fit_of_two_classes_is_newtons(monkeypatch, most_entries):
  monkeypatch.setattr(fitting, "_MOST_ENTRIES", most_entries)  # The fewer, the more passes.
  rng = np.random.default_rng(3)
  y = rng.integers(2, size=sum(_SIZES)).astype(np.int32)
  train, test = _examples(y), _examples(1 - y, seed=4)
  model = models.build_table_model(0, _spec(tf.int32), num_classes=2)
  w = _newton(train.x, y, 0.01)
  found, of_all = fitting.pooled(model, train, test, 0.01, "misclassification")
  scores = test.x @ w[:3] + w[3]
  area = metrics.roc_auc_score(test.y, scores)
  assert of_all["ranking_error"] == pytest.approx(1 - area, abs=2e-3)  # But for a near tie.
  losses = np.log1p(np.exp(-(2 * test.y - 1) * scores))
  np.testing.assert_allclose(found.loss, _of_clients(test, losses), atol=2e-4)
  np.testing.assert_allclose(found.error, _of_clients(test, (scores > 0) != test.y), atol=1e-6)


def test_class_weights_count_in_a_fit_and_not_in_its_results():
  rng = np.random.default_rng(8)
  y = (rng.random(sum(_SIZES)) < 0.2).astype(np.int32)
  train = _examples(y)
  model = models.build_table_model(0, _spec(tf.int32), num_classes=2)
  weights = np.array([0.6, 2.5], np.float32)
  trained = class_weights.weighted(model, weights)
  found, _ = fitting.pooled(model, train, train, 0.0, "misclassification", trained)
  fitted = linear_model.LogisticRegression(C=np.inf, tol=1e-8)
  fitted.fit(train.x, y, sample_weight=weights[y])
  losses = -np.log(fitted.predict_proba(train.x)[np.arange(len(y)), y])
  np.testing.assert_allclose(found.loss, _of_clients(train, losses), atol=2e-3)


def test_own_models_are_fitted_to_one_half_and_tested_on_the_other():
  rng = np.random.default_rng(5)
  examples = _examples(rng.integers(2, size=sum(_SIZES)).astype(np.int32))
  split = evaluation.split_examples(examples, 0.5, seed=0)
  model = models.build_table_model(0, _spec(tf.int32), num_classes=2)
  found, of_all = fitting.local(model, split, 0.1, "misclassification")
  assert list(found.client_ids) == ["c0", "c1", "c3"]  # One has a single example.
  labels, hits = [], []
  for i, loss in enumerate(found.loss):
    w = _newton(*split.held_in.of_client(i), 0.1)
    x, y = split.held_out.of_client(i)
    scores = x @ w[:3] + w[3]
    np.testing.assert_allclose(loss, np.mean(np.log1p(np.exp((1 - 2 * y) * scores))), atol=2e-4)
    labels, hits = [*labels, *y], [*hits, *((scores > 0) == y)]
  recalls = [np.mean(np.array(hits)[np.array(labels) == c]) for c in (0, 1)]
  assert of_all["balanced_error"] == pytest.approx(1 - np.mean(recalls))


def test_few_examples_of_a_client_are_fitted_with_a_prior():
  rng = np.random.default_rng(5)
  examples = _examples(rng.integers(2, size=sum(_SIZES)).astype(np.int32))
  split = evaluation.split_examples(examples, 0.5, seed=0)
  model = models.build_table_model(0, _spec(tf.int32), num_classes=2)
  found, _ = fitting.local(model, split, 1e-4, "misclassification", prior=0.5)
  for i, loss in enumerate(found.loss):
    rows = split.held_in.of_client(i)
    w, (x, y) = _newton(*rows, 0.5 / len(rows[1])), split.held_out.of_client(i)
    scores = x @ w[:3] + w[3]
    np.testing.assert_allclose(loss, np.mean(np.log1p(np.exp((1 - 2 * y) * scores))), atol=2e-3)


@pytest.mark.parametrize("num_classes", [3, None])
def test_own_constants_are_chosen_on_one_half_and_tested_on_the_other(num_classes):
  y = np.random.default_rng(5).integers(3, size=sum(_SIZES))
  examples = _examples(y.astype(np.int32 if num_classes else np.float32))
  split = evaluation.split_examples(examples, 0.5, seed=0)
  found, _ = fitting.own_constants(split, num_classes)
  for i, error in enumerate(found.error):
    chosen, tested = split.held_in.of_client(i)[1], split.held_out.of_client(i)[1]
    if num_classes:
      expected = np.mean(tested != np.bincount(chosen).argmax())
    else:
      expected = np.sqrt(np.mean((tested - chosen.mean()) ** 2))
    assert error == pytest.approx(expected, rel=1e-5)


def test_pooled_fit_of_numbers_is_ridge_regression():
  rng = np.random.default_rng(6)
  y = rng.normal(size=sum(_SIZES)).astype(np.float32)
  train, test = _examples(y), _examples(y[::-1].copy(), seed=7)
  model = models.build_table_model(0, _spec(tf.float32), num_classes=0)
  found, _ = fitting.pooled(model, train, test, 0.05, "rmse")
  x = np.column_stack([train.x, np.ones(len(y))]).astype(float)
  w = np.linalg.solve(x.T @ x / len(y) + 0.05 * np.eye(4), x.T @ y / len(y))
  squares = (test.x @ w[:3] + w[3] - test.y) ** 2
  np.testing.assert_allclose(found.error, np.sqrt(_of_clients(test, squares)), atol=1e-4)


def test_only_linear_models_are_fitted():
  assert fitting.is_linear(models.build_linear_classifier(_spec(tf.int32), 5, intercept=False))
  assert fitting.is_linear(models.build_table_model(0, _spec(tf.float32), num_classes=0))
  hidden = models.build_table_model(0, _spec(tf.int32), num_classes=2, hidden_size=4)
  assert not fitting.is_linear(hidden)


def _fabricate(folder, method="fed_avg"):
  """Writes a run and a constant answer to its test clients, and finds that."""
  groups = finished_runs.fabricate(folder, {method: [0.2] * 9}, {kept.CONSTANT: [0.1] * 9})
  return in_reports.find(groups.runs)


def test_references_are_rows_and_a_note(tmp_path):
  found = _fabricate(tmp_path)
  assert list(found.results()["method"].unique()) == [kept.CONSTANT]
  assert "left out, as small" in found.notes()[0]


def test_references_of_other_clients_are_not_compared(tmp_path):
  assert sorted(_fabricate(tmp_path).of_seed) == [0]
  path = tmp_path / "own" / "references" / "seed_0.json"
  path.write_text(path.read_text().replace("client 3", "client 9"))
  found = in_reports.find(run_folder.find_runs(tmp_path))
  assert found.of_seed == {} and found.notes() == []


def test_references_of_training_clients_are_not_shown_beside_private_runs(tmp_path):
  assert _fabricate(tmp_path, "superquantile_theta_0.5_tree_epsilon_5").of_seed == {}
  path = tmp_path / "own" / "references" / "seed_0.json"
  path.write_text(path.read_text().replace('"is_private": false', '"is_private": true'))
  runs = run_folder.find_runs(tmp_path)
  assert runs[0].config.is_private
  assert sorted(in_reports.find(runs).of_seed) == [0]


def _write_mines(path, prefix="f"):
  """Sixty fields with 6 % of mines, of which the columns tell next to nothing."""
  rng = np.random.default_rng(9)
  lines = ["field,mine,v,w"]
  for i in range(60 * 20):
    v, w = rng.normal(size=2)
    lines.append(f"{prefix}{i % 60},{int(rng.random() < 0.06)},{v:.3f},{w:.3f}")
  path.write_text("\n".join(lines) + "\n")


_FLAGS = ("--data_dir=mines.csv", "--client_column=field", "--label_column=mine")


@pytest.fixture(scope="module")
def mines(lab):
  """An experiment whose models cannot find what they look for."""
  _write_mines(lab.folder / "mines.csv")
  places = (f"--cache_dir={lab.cache_dir}", "--output_dir=mines")
  flags = (*_FLAGS, *places, "--num_rounds=20", "--folds=0")

  def run():
    return lab.bare("sweep", "--experiment=own", "--thetas=0.5", *flags)

  return run, lab.folder / "mines" / "own_mines_linear"


def test_report_says_first_that_nothing_was_learned(lab, mines):
  run, folder = mines
  result = run()
  assert result.code == 0, result.err
  report = (folder / "report.md").read_text()
  first = "The features do not tell the label: no method is better than the constant answer."
  assert f"mines, mine (linear):\n{first}" in result.out
  assert report.split("\n\n")[1].startswith(f"**{first}**")
  # By the file alone.
  table = np.genfromtxt(lab.folder / "mines.csv", **_CSV)
  written = json.loads((folder / "references" / "seed_0.json").read_text())
  constant = written["found"]["constant"]["clients"]
  run_clients = run_folder.Run(folder / "fed_avg" / "seed_0", 0).clients("test")["client_id"]
  assert constant["client_id"] == list(run_clients)
  expected = [np.mean(table["mine"][table["field"] == one]) for one in run_clients]
  np.testing.assert_allclose(constant["error"], expected)
  assert set(written["found"]) == {"constant", "pooled", "local", "local_constant"}
  for label in kept.LABELS.values():
    assert label in report
  rows = [line for line in (folder / "report.csv").read_text().splitlines() if ",constant," in line]
  (mean,) = (row.split(",")[3] for row in rows if ",test.error.mean," in row)
  np.testing.assert_allclose(float(mean), np.mean(expected))
  # In the measure that leads one class of two is missed, or none where there is one.
  (mean,) = (row.split(",")[3] for row in rows if ",test.balanced_error.mean," in row)
  np.testing.assert_allclose(float(mean), np.mean([0.5 if one else 0.0 for one in expected]))
  (recall,) = (row.split(",")[3] for row in rows if ",test.pooled.recall.1," in row)
  assert float(recall) == 0.0


def test_references_are_computed_once(mines):
  run, folder = mines
  path = folder / "references" / "seed_0.json"
  before = path.stat().st_mtime_ns
  assert run().code == 0
  assert path.stat().st_mtime_ns == before
  path.write_text("{")  # A damaged file is made anew.
  assert run().code == 0
  assert set(json.loads(path.read_text())["found"]) == {
    "constant",
    "pooled",
    "local",
    "local_constant",
  }


def test_a_runs_own_data_are_those_that_it_had(lab, mines):
  run, folder = mines
  assert run().code == 0
  table, path = lab.folder / "mines.csv", folder / "references" / "seed_0.json"
  references = ("references", str(folder))
  evaluate = ("evaluate", str(folder / "fed_avg" / "seed_0"))
  whole = (*evaluate, "--split=all", "--min_examples_per_client=2")
  content, before = table.read_text(), path.read_text()
  path.unlink()
  table.write_text(content + content.splitlines()[-1] + "\n")  # A row of a client twice.
  for command in (references, evaluate, whole):
    lab.bare(*command).assert_fails_with_a_sentence(2, "earlier content", "bring that table back")
  assert not path.exists()
  assert lab.bare(*evaluate, f"--data_dir={table}").code == 0  # Others, as they are told to be.
  table.write_text(content)
  for command in (references, evaluate, whole):
    assert lab.bare(*command).code == 0
  assert path.read_text() == before


def test_references_of_private_runs_say_nothing_of_training_clients(lab):
  _write_mines(lab.folder / "mines.csv")
  flags = (*_FLAGS, f"--cache_dir={lab.cache_dir}", "--num_rounds=2", "--theta=0.5", "--epsilon=8")

  def train(out):
    return lab.bare("train", "--task=own", *flags, "--clip_norm=1", f"--output_dir={out}")

  result = train("private")
  assert result.code == 0, result.err
  folder = lab.folder / "private" / "own_mines_linear"
  result = lab.bare("references", str(folder))
  assert result.code == 0 and "Written" in result.out, result.err
  content = json.loads((folder / "references" / "seed_0.json").read_text())
  assert "pooled" not in content["found"] and "no budget covers" in content["left_out"]["pooled"]
  assert content["found"]["constant"]["said"].endswith("of the test clients")
  # Other labels of all training clients change nothing of it.
  runs = run_folder.find_runs(lab.folder / "private")
  test = set(runs[0].clients("test")["client_id"])
  path = lab.folder / "mines.csv"
  rows = [line.split(",") for line in path.read_text().splitlines()]
  changed = [[f, m if f in test or f == "field" else str(1 - int(m)), *v] for f, m, *v in rows]
  path.write_text("\n".join(map(",".join, changed)) + "\n")
  assert train("other").code == 0
  other = lab.folder / "other" / "own_mines_linear"
  assert lab.bare("references", str(other)).code == 0
  assert json.loads((other / "references" / "seed_0.json").read_text()) == content
