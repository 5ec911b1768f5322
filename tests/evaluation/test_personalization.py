"""Personal models against numpy SGD over the same batches, the choice, and the split it is for."""

from helpers import problems
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tasks import models
from tff_superquantile import evaluation
from tff_superquantile import personal
from tff_superquantile.simulation import seeds

_SIZES = (12, 7, 1, 20, 2, 33)
_SPEC = (
  tf.TensorSpec([None, problems.NUM_FEATURES], tf.float32),
  tf.TensorSpec([None], tf.int32),
)


def _examples(sizes=_SIZES, seed=0, ids=None):
  arrays = problems.client_arrays(sizes, seed)
  examples = evaluation.examples_of_datasets(problems.datasets(arrays, 8))
  return examples._replace(client_ids=ids or [f"writer {i}" for i in range(len(sizes))])


def _model():
  return models.build_linear_classifier(_SPEC, problems.NUM_CLASSES, intercept=True)


def _weights(seed=0):
  rng = np.random.default_rng(seed)
  return tff.learning.models.ModelWeights(
    [rng.normal(size=np.shape(w)).astype(np.float32) for w in _model().initial_weights[0]], []
  )


def _rows(part, i):
  rows = slice(part.offsets[i], part.offsets[i + 1])
  return part.x[rows], part.y[rows]


def _personalizer(examples, learning_rate=0.1, momentum=None, **options):
  options = dict(seed=3, batch_size=4, l2=0.0) | options
  sgd = tff.learning.optimizers.build_sgdm(learning_rate, momentum)
  return evaluation.Personalizer(_model(), examples, sgd, **options)


def test_split_deals_every_example_once():
  examples = _examples()
  split = evaluation.split_examples(examples, 0.5, seed=3)
  assert split.num_left_out == 1
  assert split.held_in.client_ids == split.held_out.client_ids
  assert "writer 2" not in split.held_in.client_ids
  for i, client_id in enumerate(split.held_in.client_ids):
    x, y = _rows(examples, examples.client_ids.index(client_id))
    parts = [_rows(split.held_in, i), _rows(split.held_out, i)]
    assert [len(part[1]) for part in parts] == [round(len(y) / 2), len(y) - round(len(y) / 2)]
    dealt = np.concatenate([np.column_stack(part) for part in parts])
    np.testing.assert_array_equal(
      dealt[np.lexsort(dealt.T)], np.column_stack([x, y])[np.lexsort(np.column_stack([x, y]).T)]
    )


def test_split_follows_from_seed_and_client_alone():
  def held_in(sizes, seed, which, ids=None):
    split = evaluation.split_examples(_examples(sizes, ids=ids), 0.5, seed)
    return _rows(split.held_in, split.held_in.client_ids.index(which))[0]

  first = held_in((12, 7, 30), 3, "writer 0")
  # Whoever comes after it, and again.
  np.testing.assert_array_equal(first, held_in((12, 5), 3, "writer 0"))
  assert not np.array_equal(first, held_in((12, 7, 30), 4, "writer 0"))
  assert not np.array_equal(first, held_in((12, 7, 30), 3, "another", ["another", "b", "c"]))


@pytest.mark.parametrize("fraction, held_in", [(0.01, 1), (0.25, 5), (0.8, 16), (0.99, 19)])
def test_split_leaves_neither_part_empty(fraction, held_in):
  split = evaluation.split_examples(_examples((20,)), fraction, seed=0)
  assert len(split.held_in.y) == held_in and len(split.held_out.y) == 20 - held_in


def test_split_refuses_clients_of_one_example():
  with pytest.raises(ValueError, match="2 clients, none with two examples"):
    evaluation.split_examples(_examples((1, 1)), 0.5, seed=0)


def test_batches_pass_over_all_examples_in_every_epoch():
  order, sizes = personal.batches(np.random.default_rng(0), 10, 4, 3)
  assert [sorted(epoch) for epoch in order.reshape(3, 10)] == [list(range(10))] * 3
  assert len({tuple(epoch) for epoch in order.reshape(3, 10)}) == 3
  assert list(sizes) == [4] * 8 + [2] * 2 + [4] * 8 + [2] * 2 + [4] * 8 + [2] * 2
  _, sizes = personal.batches(np.random.default_rng(0), 10, 0, 2)
  assert list(sizes) == [10] * 20
  assert [len(part) for part in personal.batches(np.random.default_rng(0), 0, 0, 2)] == [0, 0]


def _sgd(rng, start, x, y, batch_size, *, epochs, rate=0.2, l2=0.0, momentum=0.0, proximal=0.0):
  """SGD in numpy."""
  tuned, velocity = [w.astype(np.float64) for w in start], [0.0] * len(start)
  plan = [rng.permutation(len(y)) for _ in range(epochs)]
  for order in plan:
    for first in range(0, len(y), batch_size or len(y)):
      rows = order[first : first + (batch_size or len(y))]
      _, gradient = problems.losses_and_gradient(tuned, x[rows], y[rows])
      velocity = [
        momentum * v + g + l2 * w + proximal * (w - w0)
        for v, g, w, w0 in zip(velocity, gradient, tuned, start)
      ]
      tuned = [w - rate * v for w, v in zip(tuned, velocity)]
  return tuned


@pytest.mark.parametrize(
  "epochs, choices, batch_size, l2, momentum, proximal",
  [
    (10, None, 4, 0.0, None, 0.0),
    (10, None, 0, 0.01, None, 0.0),
    (10, None, 3, 0, 0.9, 0.0),
    (10, None, 4, 0.01, None, 0.7),
    (2, (6, 1, 2), 4, 0.01, None, 0.0),
    (None, (1, 2, 6), 0, 0.0, None, 0.0),
  ],
)
def test_clients_tune_and_choose_as_numpy_does(epochs, choices, batch_size, l2, momentum, proximal):
  """By brute force: SGD over the same batches, and each cut of the held-in examples by itself."""
  split, weights = evaluation.split_examples(_examples(), 0.5, seed=3), _weights()
  options = dict(batch_size=batch_size, l2=l2)
  personalize = _personalizer(split, 0.2, momentum, proximal_strength=proximal, **options)
  results = personalize(weights, epochs, None, choices)
  how = dict(options, momentum=momentum or 0.0, proximal=proximal)
  models = {"shared": results.shared, "personal": results.personal, "chosen": results.chosen}
  for i, client_id in enumerate(split.held_in.client_ids):
    x, y = _rows(split.held_in, i)
    rng = seeds.generator(3, f"personalization of {client_id}")

    def tune(number, rows=slice(None)):
      return _sgd(rng, weights.trainable, x[rows], y[rows], epochs=number, **how)  # noqa: B023

    tuned = {0: weights.trainable}
    if epochs:
      tuned[epochs] = tune(epochs)
    parts = np.array_split(rng.permutation(len(y)), min(5, len(y))) if len(y) > 1 else []
    chosen, sums = 0, {}
    for number in (0, *sorted(choices or (epochs,))) if parts else ():
      sums[number] = 0.0
      for part in parts:
        others = np.concatenate([other for other in parts if other is not part])
        own = tune(number, others) if number else weights.trainable
        sums[number] += problems.losses_and_gradient(own, x[part], y[part])[0] * len(part)
      if number and not sums[number] < sums[chosen]:
        break
      chosen = number
    assert results.epochs[i] == chosen and results.is_personal[i] == (chosen > 0)
    asked = epochs or chosen or min(choices)
    for number in {asked, chosen} - {*tuned}:
      tuned[number] = tune(number)
    expected = {"shared": tuned[0], "personal": tuned[asked], "chosen": tuned[chosen]}
    held_out_x, held_out_y = _rows(split.held_out, i)
    for name, of_model in models.items():
      loss, _ = problems.losses_and_gradient(expected[name], held_out_x, held_out_y)
      predicted = (held_out_x @ expected[name][0] + expected[name][1]).argmax(axis=1)
      assert of_model.of_clients.loss[i] == pytest.approx(loss, rel=1e-4, abs=1e-7)
      assert of_model.of_clients.error[i] == pytest.approx(np.mean(predicted != held_out_y))
  assert results.shared.of_clients.num_examples.tolist() == np.diff(split.held_out.offsets).tolist()
  # Both happen.
  assert len({*results.epochs}) > 1 or proximal or momentum


def test_the_choice_never_sees_what_measures_it():
  """Labels of held-out examples change results, and no client's choice."""
  split, weights = evaluation.split_examples(_examples(), 0.5, seed=3), _weights()
  other = split._replace(held_out=split.held_out._replace(y=1 - split.held_out.y.clip(0, 1)))
  results, changed = (_personalizer(its, 0.2)(weights, 3) for its in (split, other))
  np.testing.assert_array_equal(results.is_personal, changed.is_personal)
  assert not np.array_equal(results.chosen.of_clients.loss, changed.chosen.of_clients.loss)


_FALLS = {0: 1.0, 3: 0.9, 10: 0.5, 30: 0.7, 100: 0.1}


@pytest.mark.parametrize(
  "number, loss, epochs",
  [
    (0, lambda epochs, measured_on: -epochs, 0),
    (1, lambda epochs, measured_on: -epochs, 0),
    (2, lambda epochs, measured_on: -epochs, 100),
    (9, lambda epochs, measured_on: 1.0, 0),
    (9, lambda epochs, measured_on: np.nan if epochs else 1.0, 0),
    (9, lambda epochs, measured_on: epochs if epochs else np.nan, 0),
    (9, lambda epochs, measured_on: epochs if epochs else np.inf, 3),
    (9, lambda epochs, measured_on: _FALLS[epochs], 10),  # It is not tried for longer.
    (9, lambda epochs, measured_on: epochs * (-1.0 if 3 in measured_on else 0.2), 100),
    (9, lambda epochs, measured_on: epochs * (-1.0 if 3 in measured_on else 0.3), 0),
  ],
)
def test_a_client_tunes_for_as_long_as_that_helps(number, loss, epochs):
  cuts = {}

  def noted(epochs, tuned_on, measured_on):
    cuts.setdefault(epochs, []).append((tuned_on, measured_on))
    return loss(epochs, measured_on)

  choices = (30, 3, 100, 10)
  assert personal.choose_epochs(np.random.default_rng(0), number, choices, noted) == epochs
  beyond = sorted(tried for tried in (0, *choices) if tried > epochs)
  tried = {0, *(its for its in choices if its <= epochs), *beyond[:1]} if number > 1 else set()
  assert {*cuts} == tried
  for of_epochs in cuts.values():
    assert len(of_epochs) == min(5, number)
    for cut in of_epochs:  # Each example is measured once, by a model that was not tuned on it.
      assert sorted(np.concatenate(cut)) == list(range(number))
    assert sorted(np.concatenate([measured for _, measured in of_epochs])) == list(range(number))


def test_without_epochs_nothing_changes():
  split = evaluation.split_examples(_examples(), 0.5, seed=3)
  expected = evaluation.build_evaluator(_model(), split.held_out)(_weights())
  results = _personalizer(split)(_weights(), 0)
  for of_model in (results.shared, results.personal, results.chosen):
    np.testing.assert_allclose(of_model.of_clients.loss, expected.loss, rtol=1e-6)
    np.testing.assert_array_equal(of_model.of_clients.error, expected.error)
  assert not results.diverged.any() and not results.is_personal.any()


def test_decoding_changes_nothing_and_one_trace_serves_all():
  examples, traces, finished = _examples((12, 7, 20, 33, 9)), [], []
  stored = examples._replace(
    x=np.clip(examples.x * 40 + 128, 0, 255).astype(np.uint8),
    decode=lambda x: tf.cast(x, tf.float32) / 40 - 3.2,
  )
  decoded = stored._replace(x=stored.x.astype(np.float32) / 40 - 3.2, decode=None)

  def logits(weights, x):
    traces.append(1)
    return tf.matmul(x, weights[0]) + weights[1]

  model = models.build_classifier(_model().initial_weights[0], logits, _SPEC)
  sgd = tff.learning.optimizers.build_sgdm(0.1)
  personalize = evaluation.Personalizer(
    model, evaluation.split_examples(stored, 0.5, 0), sgd, seed=3, batch_size=4
  )
  first = personalize(_weights(), 10, lambda: finished.append(1))
  count = len(traces)
  assert len(finished) == 5 and count < 5
  personalize(_weights(1), 2)
  assert len(traces) == count
  second = _personalizer(evaluation.split_examples(decoded, 0.5, 0))(_weights(), 10)
  np.testing.assert_allclose(first.chosen.of_clients.loss, second.chosen.of_clients.loss, rtol=1e-4)


def test_a_client_whose_fine_tuning_diverges_keeps_the_model():
  examples = _examples((12, 8))
  examples.x[:12] *= 1e25
  split = evaluation.split_examples(examples, 0.5, seed=0)
  results = _personalizer(split, learning_rate=1e25)(_weights(), 10)
  assert list(results.diverged)[0] and not list(results.is_personal)[0]
  assert results.personal.of_clients.error[0] == results.shared.of_clients.error[0]


def test_one_class_and_one_example_are_no_exception():
  examples = _examples((2, 9, 40))
  examples.y[2:11] = 1
  split = evaluation.split_examples(examples, 0.5, seed=0)
  results = _personalizer(split, 0.5)(_weights(), 5)
  assert list(results.is_personal)[:2] == [False, True]  # Of one held-in example nobody can tell.
  assert results.chosen.of_clients.error[1] <= results.shared.of_clients.error[1]
  assert np.isfinite(results.chosen.of_clients.loss).all()
