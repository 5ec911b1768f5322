"""Per-client evaluation against a client at a time, and the distribution metrics against numpy."""

from helpers import problems
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile import algorithms
from tff_superquantile import evaluation


def _weights(model):
  rng = np.random.default_rng(0)
  trainable, non_trainable = model.initial_weights
  return tff.learning.models.ModelWeights(
    [rng.normal(size=w.shape).astype(np.float32) for w in trainable], list(non_trainable)
  )


@pytest.mark.parametrize("sizes", [(3, 1, 7), (1,), (600, 1, 1500, 30, 2113)])
def test_every_client_exactly(sizes):
  # More examples than a batch of the evaluation: clients are cut apart by it.
  arrays = problems.client_arrays(sizes)
  model = problems.linear_model()
  weights = _weights(model)
  examples = evaluation.examples_of_datasets(problems.datasets(arrays, 8))
  metrics = evaluation.build_evaluator(model, examples)(weights)
  for i, (x, y) in enumerate(arrays):
    loss, _ = problems.losses_and_gradient(weights.trainable, x, y)
    logits = x @ weights.trainable[0] + weights.trainable[1]
    assert metrics.num_examples[i] == len(y)
    assert metrics.loss[i] == pytest.approx(loss, rel=1e-5)
    assert metrics.error[i] == pytest.approx(np.mean(logits.argmax(axis=1) != y))


def test_the_mean_of_many_equal_losses_is_that_loss():
  ((x, y),) = problems.client_arrays([1])
  model = problems.linear_model()
  many = evaluation.ClientExamples(
    ["one", "many"], np.repeat(x, 2001, axis=0), np.repeat(y, 2001), np.array([0, 1, 2001])
  )
  loss = evaluation.build_evaluator(model, many)(_weights(model)).loss
  # In single precision sums of so many are off by a millionth.
  assert loss[1] == pytest.approx(loss[0], rel=1e-9)


def test_batches_that_are_dictionaries():
  arrays = problems.client_arrays()
  datasets = [tf.data.Dataset.from_tensor_slices(dict(x=x, y=y)).batch(4) for x, y in arrays]
  examples = evaluation.examples_of_datasets(datasets)
  expected = evaluation.examples_of_datasets(problems.datasets(arrays))
  for name in ("x", "y", "offsets"):
    np.testing.assert_array_equal(getattr(examples, name), getattr(expected, name))


@pytest.mark.parametrize("sizes", [(3, 1, 7), (600, 1, 1500, 30, 2113)])
def test_the_model_fn_of_a_learning_process(sizes):
  # Clients without examples, too, and clients that are cut apart by batches of the evaluation.
  datasets = problems.datasets(problems.client_arrays(sizes), 8)
  datasets.insert(1, datasets[0].take(0))
  examples = evaluation.examples_of_datasets(
    datasets, [f"client {i}" for i in range(len(datasets))]
  )
  weights = _weights(problems.linear_model())
  results, expected = (
    evaluation.build_evaluator(model, examples)(weights)
    for model in (problems.linear_model_fn, problems.linear_model())
  )
  table = results.to_frame()
  assert list(table.index) == examples.client_ids and table["loss"].isna().sum() == 1
  for name in ("num_examples", "loss", "error"):
    np.testing.assert_allclose(table[name], getattr(expected, name), rtol=1e-5)


def test_a_keras_model_fn_is_evaluated_as_by_keras():
  examples = evaluation.examples_of_datasets(problems.datasets(problems.client_arrays()))
  process = algorithms.build_fed_avg(
    problems.keras_model_fn, client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1)
  )
  weights = process.get_model_weights(process.initialize())
  evaluate = evaluation.build_evaluator(problems.keras_model_fn, examples)
  rng = np.random.default_rng(0)
  for scale in (0.5, 2.0):  # The weights are those that are given, each time.
    weights = tff.learning.models.ModelWeights(
      [scale * np.abs(rng.normal(size=np.shape(w))).astype(np.float32) for w in weights.trainable],
      [np.asarray(w) for w in weights.non_trainable],
    )
    keras_model = problems.keras_model()
    weights.assign_weights_to(keras_model)
    loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    results = evaluate(weights)
    for i in range(len(examples.client_ids)):
      x, y = examples.of_client(i)
      output = keras_model(x, training=False).numpy()
      assert results.loss[i] == pytest.approx(loss_fn(y, output).numpy(), rel=1e-5)
      assert results.error[i] == pytest.approx(np.mean(output.argmax(axis=1) != y))


def _data_set(*parts, **names):
  return tf.data.Dataset.from_tensor_slices(names or parts)


_X, _Y = np.zeros([6, 2], np.float32), np.zeros(6, np.int32)


@pytest.mark.parametrize(
  "datasets,ids,message",
  [
    ([], None, "Found 0 data sets and 0 ids"),
    ([_data_set(_X, _Y).batch(2)], ["a", "b"], "Found 1 data sets and 2 ids"),
    ([(_X, _Y)], ["a"], "Found a tuple for client a"),
    ([_data_set(_X, _Y)], None, "Found single examples for client 0; .*batch it"),
    ([_data_set(features=_X, label=_Y).batch(2)], None, "Found the names features, label"),
    ([_data_set(_X, _Y, _Y).batch(2)], None, "Found elements .* of client 0"),
    ([_data_set(_X).batch(2)], None, "Found elements .* of client 0"),
    ([_data_set((_X, _X), _Y).batch(2)], None, "expected one tensor each"),
    ([_data_set(_X, _Y).batch(2).repeat()], None, "without end"),
    (
      [_data_set(_X, _Y).batch(2), _data_set(_X[:, :1], _Y).batch(2)],
      None,
      "Found rows .* for client 1",
    ),
  ],
)
def test_other_data_sets_are_refused_by_a_sentence(datasets, ids, message):
  with pytest.raises((TypeError, ValueError), match=message):
    evaluation.examples_of_datasets(datasets, ids)


@pytest.mark.parametrize("model", [None, lambda: None])
def test_what_is_no_model_is_refused(model):
  examples = evaluation.examples_of_datasets(problems.datasets(problems.client_arrays()))
  with pytest.raises(TypeError, match="expected a tff.learning.models"):
    evaluation.build_evaluator(model, examples)


def test_decode_and_a_client_without_examples():
  x = np.arange(20, dtype=np.uint8).reshape(4, 5)
  y = np.array([0, 1, 2, 0], np.int32)
  model = problems.linear_model()
  weights = _weights(model)
  stored = evaluation.ClientExamples(
    ["a", "empty", "b"], x, y, np.array([0, 3, 3, 4]), lambda v: tf.cast(v, tf.float32) / 255
  )
  metrics = evaluation.build_evaluator(model, stored)(weights)
  floats = stored._replace(x=x.astype(np.float32) / 255, decode=None)
  expected = evaluation.build_evaluator(model, floats)(weights)
  np.testing.assert_allclose(metrics.loss, expected.loss, rtol=1e-6)
  assert np.isnan(metrics.loss[1]) and np.isnan(metrics.error[1])
  assert list(metrics.num_examples) == [3, 0, 1]


@pytest.mark.parametrize(
  "output,labels,expected",
  [
    ([[0.1, 0.9], [0.8, 0.2]], [1, 1], [0, 1]),
    ([[0.3], [-0.2]], [1, 1], [0, 1]),
    ([0.3, -0.2], [0, 0], [1, 0]),
    ([[0.3], [-0.2]], [[1], [0]], [0, 0]),
    ([0.0, 0.0], [0, 1], [0, 1]),  # Neither is above 0.
  ],
)
def test_misclassified(output, labels, expected):
  from tff_superquantile.evaluation import errors

  got = errors.misclassified(tf.constant(output), tf.constant(labels))
  np.testing.assert_array_equal(got, expected)


def test_describe_without_weights_is_numpy():
  values = np.random.default_rng(0).uniform(size=200)
  described = evaluation.describe(values)
  assert described["mean"] == pytest.approx(values.mean())
  assert described["std"] == pytest.approx(values.std())
  for q in (10, 20, 50, 60, 80, 90, 95):
    assert described[f"p{q}"] == pytest.approx(np.percentile(values, q))
  ordered = np.sort(values)
  assert described["superquantile_90"] == pytest.approx(ordered[-20:].mean())
  assert described["superquantile_95"] == pytest.approx(ordered[-10:].mean())
  assert described["best_10"] == pytest.approx(ordered[:20].mean())


def test_describe_with_integer_weights_is_like_repeating():
  values = np.random.default_rng(1).normal(size=30)
  weights = np.random.default_rng(2).integers(1, 200, size=30)
  described = evaluation.describe(values, weights)
  repeated = evaluation.describe(np.repeat(values, weights))
  for name in ("mean", "std", "superquantile_90", "superquantile_95", "best_10"):
    assert described[name] == pytest.approx(repeated[name]), name


def test_describe_leaves_out_what_is_not_finite():
  assert evaluation.describe([1.0, np.nan, 3.0, np.inf])["mean"] == 2.0
  assert all(np.isnan(v) for v in evaluation.describe([np.nan]).values())
  nobody = evaluation.describe([1.0, 2.0, np.nan], [0.0, 0.0, 1.0])
  assert all(np.isnan(v) for v in nobody.values())
  assert set(nobody) == set(evaluation.describe([1.0]))


def test_describe_weighs_percentiles():
  # In the middles of their steps 1, 2 and 3 stand at 0, 1.5 and 2.5.
  described = evaluation.describe([3.0, 1.0, 2.0], [1, 2, 1])
  for q, expected in ((20, 1 + 0.5 / 1.5), (50, 1 + 1.25 / 1.5), (80, 2.5), (90, 2.75)):
    assert described[f"p{q}"] == pytest.approx(expected)
