"""The measure that a run chooses by and its report leads with, on a table of few positives."""

import json
import re

import numpy as np
import pytest
from scipy import special
from sklearn import metrics
from sklearn.utils import class_weight
import tensorflow as tf

from tasks import models
from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.experiments.run.hooks import class_weights

_FLAGS = (
  "--task=own",
  "--data_dir=mines.csv",
  "--client_column=field",
  "--label_column=mine",
  "--output_dir=mines",
  "--num_rounds=40",
)
_FOLDER = "own_mines_linear"


def _write(path):
  """Thirty clients, 6 % positives, which a linear model at 1/2 hardly ever finds."""
  rng = np.random.default_rng(6)
  lines = ["field,mine,a,b"]
  for field in range(30):
    x = rng.normal(size=(60, 2))
    is_mine = rng.random(60) < special.expit(1.2 * x[:, 0] - 0.8 * x[:, 1] - 3.6)
    lines += [f"f{field},{int(m)},{a:.4f},{b:.4f}" for m, (a, b) in zip(is_mine, x)]
  path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def mines(lab):
  _write(lab.folder / "mines.csv")

  def run(module, *arguments):
    cache = () if module == "report" else (*_FLAGS, f"--cache_dir={lab.cache_dir}")
    return lab.bare(module, *cache, *arguments)

  return run


@pytest.fixture(scope="module")
def trained(mines, lab):
  result = mines("train", "--algorithm=fed_avg")
  assert result.code == 0, result.err
  return result, lab.folder / "mines" / _FOLDER / "fed_avg" / "seed_0"


def _json(path):
  return json.loads(path.read_text())


def test_a_skewed_table_proposes_the_balanced_error_and_says_why(trained):
  result, run = trained
  assert re.search(r"metric: balanced_error, as always answering .* error of \d\.\d %", result.out)
  assert "--metric=balanced_error" in (run / "flags.txt").read_text().splitlines()


def test_failure_does_not_look_like_success(trained):
  found = _json(trained[1] / "metrics.json")["test"]
  assert found["error"]["mean"] < 0.12
  assert found["balanced_error"]["mean"] > 0.4
  assert found["pooled"]["recall"]["1"] < 0.2 < 0.9 < found["pooled"]["recall"]["0"]
  assert "balanced_error" not in _json(trained[1] / "metrics.json")["train"]


def test_measures_follow_from_the_files(trained):
  _, run = trained
  columns = run_files.read_columns(run / "test_clients.csv", is_whole=True)
  found = _json(run / "metrics.json")["test"]
  for name in ("balanced_error", "ranking_error", "calibration_error"):
    values = columns[name][np.isfinite(columns[name])]
    assert found[name]["num_clients"] == len(values) > 0
    assert found[name]["p90"] == pytest.approx(np.percentile(values, 90))
  # Those of scikit-learn, from the table itself and the model's weights.
  table = np.genfromtxt(run.parents[3] / "mines.csv", delimiter=",", names=True, dtype=None)
  is_test = np.isin(table["field"], columns["client_id"])
  weights = run_files.read_weights(run / "weights.npz").trainable
  encoding = _json(run / "columns.json")
  inputs = [
    (table[one["name"]][is_test] - one["mean"]) / one["std"] for one in encoding["features"]
  ]
  scores = np.stack(inputs, axis=1) @ weights[0][:, 0] + weights[1][0]
  labels = table["mine"][is_test]
  pooled = found["pooled"]
  assert pooled["num_examples"] == len(labels)
  assert pooled["error"] == pytest.approx(np.mean((scores > 0) != labels))
  assert pooled["loss"] == pytest.approx(metrics.log_loss(labels, special.expit(scores)), rel=1e-4)
  balanced = metrics.balanced_accuracy_score(labels, scores > 0)
  assert pooled["balanced_error"] == pytest.approx(1 - balanced)
  area = metrics.roc_auc_score(labels, scores)
  assert pooled["ranking_error"] == pytest.approx(1 - area, rel=1e-4)


def test_the_best_model_and_the_report_follow_the_measure(mines, trained, lab):
  flags = ("--keep=best", "--rounds_per_evaluation=5", "--validation_fraction=0.3")
  result = mines("train", "--algorithm=fed_avg", *flags)
  assert result.code == 0, result.err
  run = lab.folder / "mines" / _FOLDER / "fed_avg_best" / "seed_0"
  assert "--best_by=validation.balanced_error.p90" in (run / "flags.txt").read_text()
  values = run_files.read_columns(run / "rounds.csv", is_whole=True)
  of_validation = values["validation_balanced_error_p90"]
  kept_round = _json(run / "manifest.json")["kept_round"]
  assert of_validation[kept_round] == np.nanmin(of_validation)
  in_the_end = _json(run / "metrics.json")
  assert in_the_end["validation"]["balanced_error"]["p90"] == of_validation[kept_round]
  # Evaluations have the measure of the test clients, too, each client's and over them.
  of_test = values["test_balanced_error_p90"]
  assert of_test[kept_round] == in_the_end["test"]["balanced_error"]["p90"]
  clients = run_folder.Run(run, 0).evaluations("test")
  for number in np.flatnonzero(np.isfinite(of_test)):
    own = clients["balanced_error"][clients["round"] == number]
    assert of_test[number] == pytest.approx(np.nanpercentile(own, 90))
  result = lab.bare("report", "--output_dir=mines")
  assert result.code == 0, result.err
  assert "Balanced error of the test clients in %" in result.out
  text = (lab.folder / "mines" / _FOLDER / "report.md").read_text()
  assert "the balanced error of the worst test client" in text
  page = (lab.folder / "mines" / _FOLDER / "report.html").read_text()
  assert "Balanced error against rounds" in page and "no other measure" not in page
  assert "## All test examples together" in text and "recall of 1" in text


def test_measures_of_other_labels_are_refused(mines):
  refused = mines("train", "--algorithm=fed_avg", "--metric=mae")
  refused.assert_refused("--metric=mae", "classes", "balanced_error")
  flags = ("--keep=best", "--best_by=validation.mae.p90", "--validation_fraction=0.3")
  mines("train", "--algorithm=fed_avg", *flags).assert_refused("validation.balanced_error.p90")


def test_noise_that_is_longer_than_updates_is_told_before_training_and_in_the_report(mines, lab):
  flags = ("--algorithm=fed_avg", "--epsilon=1", "--clip_norm=0.25", "--num_rounds=30")
  result = mines("train", *flags, "--output_dir=noisy")
  assert result.code == 0, result.err
  run = lab.folder / "noisy" / _FOLDER / "fed_avg_epsilon_1" / "seed_0"
  arguments = (run / "flags.txt").read_text()
  z = float(re.search(r"--update_noise_multiplier=(.*)", arguments)[1])
  cohort = int(re.search(r"--clients_per_round=(.*)", arguments)[1])
  # Two weights and an intercept.
  times = z * np.sqrt(3) / cohort
  assert times > 1
  assert _json(run / "manifest.json")["relative_noise"] == pytest.approx(times)
  warning = re.search(r"Warning: Found that the noise .* is expected to be (\S+) long", result.out)
  assert float(warning[1]) == pytest.approx(0.25 * times, rel=1e-2)
  assert f"{cohort} clients per round" in result.out
  result = lab.bare("report", "--output_dir=noisy")
  assert "The noise of a round is longer than any client’s update can be" in result.out
  assert f"({times:.2g} times)" in result.out


def test_balanced_weights_are_those_of_scikit_learn():
  labels = np.array([0] * 90 + [1] * 7 + [3] * 3)
  found = class_weights.balanced(labels, 5)
  classes = np.array([0, 1, 3])
  expected = class_weight.compute_class_weight("balanced", classes=classes, y=labels)
  np.testing.assert_allclose(found[classes], expected, rtol=1e-6)
  assert found[2] == found[4] == 1.0
  assert found[labels].mean() == pytest.approx(1.0)


@pytest.mark.parametrize("num_classes", [2, 3])
def test_the_weighted_loss_is_a_mean_of_weighted_losses(num_classes):
  rng = np.random.default_rng(num_classes)
  spec = (tf.TensorSpec([None, 4], tf.float32), tf.TensorSpec([None], tf.int32))
  model = models.build_table_model(0, spec, num_classes=num_classes)
  weights = np.array([0.5, 3.0, 7.0], np.float32)[:num_classes]
  trained = class_weights.weighted(model, weights)
  scores = rng.normal(size=(9, num_classes)).astype(np.float32)
  output = scores if num_classes > 2 else scores[:, 0]
  labels = rng.integers(num_classes, size=9).astype(np.int32)
  if num_classes == 2:
    scores = np.stack([np.zeros(9), scores[:, 0]], axis=1)
  losses = -special.log_softmax(scores.astype(np.float64), axis=1)[np.arange(9), labels]
  found = trained.loss(output=tf.constant(output), label=tf.constant(labels))
  assert float(found) == pytest.approx(np.mean(weights[labels] * losses), rel=1e-5)
  assert float(model.loss(output=output, label=labels)) == pytest.approx(losses.mean(), rel=1e-5)


def _weights_said(out):
  found = re.search(r"Weights of the classes in the training loss: (\S+), (\S+)$", out, re.M)
  return float(found[1]), float(found[2])


@pytest.mark.parametrize("private", [(), ("--epsilon=20", "--clip_norm=0.5")])
def test_class_weights_find_what_is_rare_and_look_at_no_private_clients(
  mines, trained, lab, private
):
  flags = ("--algorithm=fed_avg", "--class_weights=balanced", *private)
  output_dir = "private" if private else "weighted"  # None protects whom the other measures.
  result = mines("train", *flags, f"--output_dir={output_dir}")
  assert result.code == 0, result.err
  name = "fed_avg_balanced" + "_epsilon_20" * bool(private)
  run = lab.folder / output_dir / _FOLDER / name / "seed_0"
  test = run_files.read_columns(run / "test_clients.csv", is_whole=True)["client_id"]
  table = np.genfromtxt(lab.folder / "mines.csv", delimiter=",", names=True, dtype=None)
  is_counted = np.isin(table["field"], test) == bool(private)
  labels = table["mine"][is_counted]
  expected = class_weight.compute_class_weight("balanced", classes=np.array([0, 1]), y=labels)
  assert _weights_said(result.out) == pytest.approx(expected, rel=1e-2)
  if not private:
    recall, before = (
      _json(path / "metrics.json")["test"]["pooled"]["recall"]["1"] for path in (run, trained[1])
    )
    assert recall > before + 0.3


def test_numbers_have_no_classes_to_weigh(mines):
  flags = ("--label_kind=number", "--class_weights=balanced", "--output_dir=numbers")
  mines("train", "--algorithm=fed_avg", *flags).assert_refused("--class_weights", "numbers")
