"""Measures of predictions, compared with scikit-learn and with brute force."""

import numpy as np
import pytest
from scipy import special
from sklearn import metrics
import tensorflow as tf
import tensorflow_federated as tff

from tasks import models
from tff_superquantile import evaluation
from tff_superquantile import measures
from tff_superquantile.evaluation import clients
from tff_superquantile.measures import measure

_PAIRS = [(2, 1), (2, 2), (5, 5)]  # Classes, and scores of an example.


def _predictions(num_classes, num_scores, seed, num_examples=200):
  rng = np.random.default_rng(seed)
  # Rounded, so that some are equal.
  outputs = rng.normal(size=(num_examples, num_scores)).round(1)
  labels = rng.choice(num_classes, num_examples, p=rng.dirichlet(np.ones(num_classes)))
  return outputs, labels, measure.of_outputs(outputs, labels, measure.CLASSES)


@pytest.mark.parametrize("num_classes, num_scores", _PAIRS)
@pytest.mark.parametrize("seed", range(5))
class TestClasses:
  def test_probabilities(self, num_classes, num_scores, seed):
    outputs, _, predictions = _predictions(num_classes, num_scores, seed)
    if num_scores == 1:
      outputs = np.hstack([np.zeros_like(outputs), outputs])
    expected = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(predictions.values, expected, rtol=1e-12)

  def test_balanced_error(self, num_classes, num_scores, seed):
    _, labels, predictions = _predictions(num_classes, num_scores, seed)
    chosen = predictions.values.argmax(axis=1)
    expected = np.mean(
      [np.mean(chosen[labels == c] != c) for c in range(num_classes) if np.any(labels == c)]
    )
    error = measures.MEASURES["balanced_error"].of(predictions)
    assert error == pytest.approx(expected, rel=1e-12)
    if set(chosen) <= set(labels):
      assert error == pytest.approx(1 - metrics.balanced_accuracy_score(labels, chosen), rel=1e-12)

  def test_ranking_error(self, num_classes, num_scores, seed):
    _, labels, predictions = _predictions(num_classes, num_scores, seed)
    areas = [
      metrics.roc_auc_score(labels == c, predictions.values[:, c])
      for c in range(num_classes)[1 if num_classes == 2 else 0 :]
      if 0 < np.sum(labels == c) < len(labels)
    ]
    assert areas
    error = measures.MEASURES["ranking_error"].of(predictions)
    assert error == pytest.approx(1 - np.mean(areas), rel=1e-12)

  def test_recalls(self, num_classes, num_scores, seed):
    _, labels, predictions = _predictions(num_classes, num_scores, seed)
    present = np.unique(labels)
    expected = metrics.recall_score(
      labels, predictions.values.argmax(axis=1), labels=present, average=None
    )
    np.testing.assert_allclose(list(measure.recalls(predictions).values()), expected, rtol=1e-12)

  def test_calibration_error(self, num_classes, num_scores, seed):
    _, labels, predictions = _predictions(num_classes, num_scores, seed)
    confidence = predictions.values.max(axis=1)
    right = predictions.values.argmax(axis=1) == labels
    expected = 0.0
    for b in range(15):
      inside = (confidence > b / 15) & (confidence <= (b + 1) / 15)
      if inside.any():
        gap = abs(right[inside].mean() - confidence[inside].mean())
        expected += inside.mean() * gap
    error = measures.MEASURES["calibration_error"].of(predictions)
    assert error == pytest.approx(expected, rel=1e-9)


def test_mae():
  rng = np.random.default_rng(3)
  outputs, labels = rng.normal(size=(50, 1)), rng.normal(size=50)
  predictions = measure.of_outputs(outputs, labels, measure.NUMBERS)
  expected = metrics.mean_absolute_error(labels, outputs[:, 0])
  assert measures.MEASURES["mae"].of(predictions) == pytest.approx(expected, rel=1e-12)


def test_a_single_class_has_no_ranking():
  predictions = measure.of_outputs([[0.5], [-1.0]], [0, 0], measure.CLASSES)
  assert np.isnan(measures.MEASURES["ranking_error"].of(predictions))
  assert measures.MEASURES["balanced_error"].of(predictions) == 0.5


@pytest.mark.parametrize("name", measures.MEASURES)
def test_no_examples_have_no_measure(name):
  error = measures.MEASURES[name].error
  predictions = measure.of_outputs(np.empty([0, 1]), np.empty([0], np.int64), error)
  assert np.isnan(measures.MEASURES[name].of(predictions))


def test_always_the_largest_class_is_as_bad_as_chance():
  labels = np.array([0] * 94 + [1] * 6)
  predictions = measure.of_outputs(np.full([100, 1], -2.0), labels, measure.CLASSES)
  assert measures.MEASURES["balanced_error"].of(predictions) == 0.5
  assert measures.MEASURES["ranking_error"].of(predictions) == 0.5


@pytest.mark.parametrize("num_classes", [0, 2, 3])
def test_an_evaluator_measures_clients_and_all_of_them(num_classes, monkeypatch):
  monkeypatch.setattr(clients, "BATCH_SIZE", 7)  # Batches hold parts of several clients.
  rng = np.random.default_rng(num_classes)
  sizes = [5, 0, 11, 20]
  x = rng.normal(size=(sum(sizes), 4)).astype(np.float32)
  y = rng.integers(num_classes, size=len(x)) if num_classes else rng.normal(size=len(x))
  y = y.astype(np.int32 if num_classes else np.float32)
  spec = (tf.TensorSpec([None, 4], tf.float32), tf.TensorSpec([None], y.dtype))
  model = models.build_table_model(0, spec, num_classes=num_classes)
  weights = _weights(model, rng)
  examples = evaluation.ClientExamples(list("abcd"), x, y, np.cumsum([0, *sizes]))
  error = "misclassification" if num_classes else "rmse"
  evaluator = evaluation.build_evaluator(model, examples, error=error)
  plain, (of_clients, pooled) = evaluator(weights), evaluator.measure(weights)

  np.testing.assert_array_equal(of_clients.loss, plain.loss)
  np.testing.assert_array_equal(of_clients.error, plain.error)
  assert not plain.measures
  scores = x @ weights.trainable[0] + weights.trainable[1]
  if num_classes:
    chosen = scores.argmax(axis=1) if num_classes > 2 else (scores[:, 0] > 0).astype(int)
    expected = [metrics.balanced_accuracy_score(y[rows], chosen[rows]) for rows in _rows(sizes)]
    errors = of_clients.measures["balanced_error"]
    np.testing.assert_allclose(errors[[0, 2, 3]], 1 - np.array(expected), rtol=1e-6)
    assert pooled["balanced_error"] == pytest.approx(1 - metrics.balanced_accuracy_score(y, chosen))
    assert pooled["error"] == pytest.approx(np.mean(chosen != y))
    recalls = metrics.recall_score(y, chosen, average=None)
    assert list(pooled["recall"].values()) == pytest.approx(list(recalls))
    if num_classes == 2:
      scores = np.hstack([np.zeros_like(scores), scores])
    probabilities = special.softmax(scores.astype(np.float64), axis=1)
    assert pooled["loss"] == pytest.approx(metrics.log_loss(y, probabilities), rel=1e-5)
    assert list(of_clients.measures) == ["balanced_error", "ranking_error", "calibration_error"]
  else:
    expected = [metrics.mean_absolute_error(y[rows], scores[rows, 0]) for rows in _rows(sizes)]
    np.testing.assert_allclose(of_clients.measures["mae"][[0, 2, 3]], expected, rtol=1e-5)
    assert pooled["mae"] == pytest.approx(metrics.mean_absolute_error(y, scores[:, 0]), rel=1e-5)
    rmse = metrics.root_mean_squared_error(y, scores[:, 0])
    assert pooled["error"] == pytest.approx(rmse, rel=1e-5)
  assert pooled["num_examples"] == len(y)
  assert all(np.isnan(values[1]) for values in of_clients.measures.values())


def _weights(model, rng):
  trainable = tuple(
    rng.normal(size=np.shape(w)).astype(np.float32) for w in model.initial_weights[0]
  )
  return tff.learning.models.ModelWeights(trainable, ())


def _rows(sizes):
  ends = np.cumsum(sizes)
  return [slice(end - size, end) for size, end in zip(sizes, ends) if size]


def test_a_measure_that_the_labels_do_not_have_is_refused():
  measures.check("mae", measure.NUMBERS, "own")
  with pytest.raises(ValueError, match="Found --metric=mae for own, whose labels are classes; exp"):
    measures.check("mae", measure.CLASSES, "own")
