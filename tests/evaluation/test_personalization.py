"""Fine-tuning of test clients against numpy SGD over the same batches, and the split it is for."""

from concurrent import futures
import threading

import numpy as np
import problems
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tasks import models
from tff_superquantile import evaluation
from tff_superquantile.evaluation import personalization
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


def _personalizer(examples, learning_rate=0.1, **options):
  options = dict(seed=3, batch_size=4, epochs=10, l2=0.0) | options
  return personalization.build_personalizer(
    _model(), examples, tff.learning.optimizers.build_sgdm(learning_rate), **options
  )


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


def test_batch_plan_passes_over_all_examples_in_every_epoch():
  order, sizes = personalization.batch_plan(np.random.default_rng(0), 10, 4, 3)
  assert [sorted(epoch) for epoch in order.reshape(3, 10)] == [list(range(10))] * 3
  assert len({tuple(epoch) for epoch in order.reshape(3, 10)}) == 3
  assert list(sizes) == [4] * 8 + [2] * 2 + [4] * 8 + [2] * 2 + [4] * 8 + [2] * 2
  _, sizes = personalization.batch_plan(np.random.default_rng(0), 10, 0, 2)
  assert list(sizes) == [10] * 20


@pytest.mark.parametrize(
  "batch_size, l2, momentum, proximal",
  [(4, 0.0, None, 0.0), (0, 0.01, None, 0.0), (3, 0, 0.9, 0.0), (4, 0.01, None, 0.7)],
)
def test_fine_tuning_is_sgd_over_the_same_batches(batch_size, l2, momentum, proximal):
  split = evaluation.split_examples(_examples(), 0.5, seed=3)
  weights = _weights()
  metrics = personalization.build_personalizer(
    _model(),
    split,
    tff.learning.optimizers.build_sgdm(0.2, momentum),
    seed=3,
    batch_size=batch_size,
    epochs=10,
    l2=l2,
    proximal_strength=proximal,
  )(weights)
  for i, client_id in enumerate(split.held_in.client_ids):
    x, y = _rows(split.held_in, i)
    rng = seeds.generator(3, f"personalization of {client_id}")
    tuned = [w.astype(np.float64) for w in weights.trainable]
    velocity = [0.0, 0.0]
    for _ in range(10):
      order = rng.permutation(len(y))
      for start in range(0, len(y), batch_size or len(y)):
        rows = order[start : start + (batch_size or len(y))]
        _, gradient = problems.losses_and_gradient(tuned, x[rows], y[rows])
        velocity = [
          (momentum or 0.0) * v + g + l2 * w + proximal * (w - w0)
          for v, g, w, w0 in zip(velocity, gradient, tuned, weights.trainable)
        ]
        tuned = [w - 0.2 * v for w, v in zip(tuned, velocity)]
    held_out_x, held_out_y = _rows(split.held_out, i)
    loss, _ = problems.losses_and_gradient(tuned, held_out_x, held_out_y)
    predicted = (held_out_x @ tuned[0] + tuned[1]).argmax(axis=1)
    assert metrics.loss_after[i] == pytest.approx(loss, rel=1e-4, abs=1e-7)
    assert metrics.error_after[i] == pytest.approx(np.mean(predicted != held_out_y))
    assert (metrics.num_held_in[i], metrics.num_held_out[i]) == (len(y), len(held_out_y))


def test_before_is_the_evaluation_and_no_epoch_changes_nothing():
  split = evaluation.split_examples(_examples(), 0.5, seed=3)
  expected = evaluation.build_evaluator(_model(), split.held_out)(_weights())
  metrics = _personalizer(split, epochs=0)(_weights())
  np.testing.assert_array_equal(metrics.loss_before, expected.loss)
  np.testing.assert_array_equal(metrics.error_before, expected.error)
  np.testing.assert_allclose(metrics.loss_after, expected.loss, rtol=1e-6)
  np.testing.assert_allclose(metrics.error_after, expected.error)
  assert not metrics.diverged.any()


def test_threads_decoding_and_the_size_of_passes_change_nothing(monkeypatch):
  examples = _examples((12, 7, 20, 33, 9, 16, 40))
  stored = examples._replace(
    x=np.clip(examples.x * 40 + 128, 0, 255).astype(np.uint8),
    decode=lambda x: tf.cast(x, tf.float32) / 40 - 3.2,
  )
  decoded = stored._replace(x=stored.x.astype(np.float32) / 40 - 3.2, decode=None)
  finished = []
  first = _personalizer(evaluation.split_examples(stored, 0.5, 0))(
    _weights(), lambda: finished.append(1)
  )
  assert len(finished) == 7
  second = _personalizer(evaluation.split_examples(stored, 0.5, 0), num_threads=4)(_weights())
  np.testing.assert_array_equal(first.loss_after, second.loss_after)
  monkeypatch.setattr(personalization, "_BATCH_SIZE", 3)
  third = _personalizer(evaluation.split_examples(decoded, 0.5, 0))(_weights())
  np.testing.assert_allclose(first.loss_after, third.loss_after, rtol=1e-4)
  np.testing.assert_allclose(first.error_after, third.error_after)


def test_one_trace_serves_all_clients_and_weights():
  traces = []

  def logits(weights, x):
    traces.append(1)
    return tf.matmul(x, weights[0]) + weights[1]

  model = models.build_classifier(_model().initial_weights[0], logits, _SPEC)
  split = evaluation.split_examples(_examples(), 0.5, seed=3)
  personalize = personalization.build_personalizer(
    model, split, tff.learning.optimizers.build_sgdm(0.1), seed=3, batch_size=4
  )
  personalize(_weights())
  count = len(traces)
  assert count < len(split.held_in.client_ids)
  personalize(_weights(1))
  assert len(traces) == count


def test_a_client_whose_fine_tuning_diverges_keeps_the_model():
  examples = _examples((12, 8))
  examples.x[:12] *= 1e25
  split = evaluation.split_examples(examples, 0.5, seed=0)
  metrics = _personalizer(split, learning_rate=1e25)(_weights())
  assert list(metrics.diverged)[0]
  assert metrics.error_after[0] == metrics.error_before[0]


def test_a_failure_ends_the_work(monkeypatch):
  split = evaluation.split_examples(_examples([9] + [5] * 49), 0.5, seed=3)
  first = len(split.held_in.of_client(0)[1])
  plans, ended = [], threading.Event()

  def plan(rng, num_examples, *arguments):
    plans.append(num_examples)
    if num_examples != first:  # All but the client that is reported wait for the end.
      assert ended.wait(60)
    return batch_plan(rng, num_examples, *arguments)

  class Pool(futures.ThreadPoolExecutor):
    def shutdown(self, wait=True, *, cancel_futures=False):
      super().shutdown(wait=False, cancel_futures=cancel_futures)
      ended.set()
      super().shutdown(wait=wait)

  batch_plan = personalization.batch_plan
  monkeypatch.setattr(personalization, "batch_plan", plan)
  monkeypatch.setattr(personalization.futures, "ThreadPoolExecutor", Pool)

  def interrupt():
    raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    _personalizer(split, num_threads=2)(_weights(), interrupt)
  # It, and the next of each of the two threads.
  assert plans.count(first) == 1 and len(plans) <= 3
