"""The synthetic task: its recipe step by step, and the paper's comparison in plain numpy."""

import functools

from helpers import pools
import numpy as np
import pytest

import tasks
from tasks import synthetic

load = functools.partial(pools.load, "synthetic", "")


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory):
  return str(tmp_path_factory.mktemp("synthetic"))


@pytest.fixture(scope="module")
def splits(cache_dir):
  return load(cache_dir)


@pytest.mark.parametrize("concentration", [0.01, 0.5, 3.0])
def test_class_distributions_have_the_moments_of_dirichlets(concentration):
  n = 20_000
  q = synthetic.draw_class_distributions(np.random.default_rng(0), n, concentration)
  assert q.shape == (n, 10) and np.all(q >= 0)
  np.testing.assert_allclose(q.sum(axis=1), 1.0, atol=1e-12)
  np.testing.assert_allclose(q.mean(axis=0), 0.1, atol=0.01)
  total = 10 * concentration
  second_moment = concentration * (concentration + 1) / (total * (total + 1))
  np.testing.assert_allclose((q**2).mean(), second_moment, rtol=0.03)


def test_deal_gives_each_client_its_counts_and_no_example_twice():
  rng = np.random.default_rng(0)
  labels = np.repeat([0, 1, 2], [50, 30, 40])
  counts = np.array([[3, 0, 2], [0, 5, 0], [1, 1, 3]])
  hands = synthetic.deal(rng, labels, counts)
  assert hands.shape == (3, 5)
  assert len(np.unique(hands)) == hands.size
  for hand, wanted in zip(hands, counts):
    np.testing.assert_array_equal(np.bincount(labels[hand], minlength=3), wanted)


def test_deal_may_use_a_stack_up_but_not_more():
  labels = np.array([0, 0, 1])
  hands = synthetic.deal(np.random.default_rng(0), labels, np.array([[1, 0], [1, 0]]))
  assert sorted(hands.ravel()) == [0, 1]
  with pytest.raises(ValueError, match="Class 1 has 1 examples in the pool but this split deals 2"):
    synthetic.deal(np.random.default_rng(0), labels, np.array([[0, 1], [0, 1]]))


def test_sizes_and_names(splits):
  assert {name: len(split.client_ids) for name, split in splits.items()} == {
    "train": 2500,
    "validation": 500,
    "test": 500,
  }
  for name, split in splits.items():
    assert set(split.num_examples) == {100}
    assert split.client_ids[0] == f"{name}_0000"
    assert split.x_dtype == "float32" and split.x_shape == (20,)
    assert split.input_spec == tasks.get_task("synthetic").build_model(0).input_spec


def test_every_example_is_the_pools_and_used_once(splits):
  pool_x, pool_y = synthetic.make_pool()
  assert pool_x.shape == (500_000, 20)

  def keys(x):
    return np.ascontiguousarray(x[:, :2]).view(np.int64).ravel()  # Two features tell all apart.

  order = np.argsort(keys(pool_x))
  rows = []
  for split in splits.values():
    x, y, _ = split.load()
    found = order[np.searchsorted(keys(pool_x), keys(x), sorter=order)]
    np.testing.assert_array_equal(pool_x[found], x)
    np.testing.assert_array_equal(pool_y[found], y)
    rows.append(found)
  assert len(np.unique(np.concatenate(rows))) == 350_000


def test_label_shift_is_worse_at_test_time(splits):
  largest = {}
  for name, split in splits.items():
    y = split.load()[1].reshape(-1, 100)
    counts = np.stack([(y == c).sum(axis=1) for c in range(10)], axis=1)
    largest[name] = counts.max(axis=1).mean()
    # Not class by class within a client: neighbours differ as often as in a shuffled hand.
    differing = (y[:, 1:] != y[:, :-1]).mean()
    expected = 1 - ((counts / 100.0) ** 2).sum(axis=1).mean()
    np.testing.assert_allclose(differing, expected, rtol=0.05)
  # The expected largest share of ten classes under Dirichlet(0.5), by simulation.
  rng = np.random.default_rng(1)
  np.testing.assert_allclose(
    largest["train"], 100 * rng.dirichlet([0.5] * 10, 50_000).max(axis=1).mean(), rtol=0.03
  )
  assert largest["validation"] > 90 and largest["test"] > 90


def test_the_split_depends_on_the_seed_alone(splits, cache_dir, tmp_path):
  again = load(tmp_path)
  other = load(cache_dir, seed=1)
  for name in splits:
    np.testing.assert_array_equal(splits[name].load()[0], again[name].load()[0])
    assert not np.array_equal(splits[name].load()[0], other[name].load()[0])


def test_a_split_is_made_once(splits, cache_dir, monkeypatch):
  monkeypatch.setattr(synthetic, "make_pool", lambda: pytest.fail("made again"))
  smaller = load(cache_dir, num_train_clients=7, num_test_clients=3)
  assert smaller["train"].client_ids == splits["train"].client_ids[:7]
  assert smaller["test"].client_ids == splits["test"].client_ids[:3]
  assert len(smaller["validation"].client_ids) == 500


def _train_in_numpy(x, y, theta, seed, rounds=1000, learning_rate=0.1, cohort_size=100):
  """Softmax regression by Delta-FL with one full-batch gradient step: weights [21, 10].

  x [clients, examples, 21], y [clients, examples]; the exact threshold lets ceil(theta * 100) pass.
  """
  rng = np.random.default_rng([seed, 1])
  num_examples = y.shape[1]
  w = np.zeros((21, 10), np.float32)
  tail_size = int(np.ceil(theta * cohort_size))
  rows = np.arange(cohort_size * num_examples)
  for _ in range(rounds):
    cohort = rng.choice(len(x), cohort_size, replace=False)
    batch_x, batch_y = x[cohort].reshape(-1, 21), y[cohort].reshape(-1)
    logits = batch_x @ w
    logits -= logits.max(axis=1, keepdims=True)
    p = np.exp(logits)
    total = p.sum(axis=1)
    each = np.log(total) - logits[rows, batch_y]
    losses = each.reshape(cohort_size, num_examples).mean(axis=1)
    tail = losses >= np.sort(losses)[cohort_size - tail_size]
    residuals = p / total[:, np.newaxis]
    residuals[rows, batch_y] -= 1.0
    residuals *= np.repeat(tail / (tail.sum() * num_examples), num_examples)[:, np.newaxis]
    w -= learning_rate * (batch_x.T @ residuals)
  return w


@pytest.mark.slow
def test_numpy_reproduces_the_reference_table(cache_dir):
  """Mean and 90th percentile of the test clients' errors, in percent, within a point over 3 splits.

  Section "End-to-end Differential Privacy" without the privacy: FedAvg 23.4 and 54.0, theta = 0.5
  23.3 and 50.6, the reference numbers of an independent implementation.
  """
  results = {1.0: [], 0.5: []}
  for seed in range(3):
    splits = load(cache_dir, seed=seed)
    (x, y), (test_x, test_y) = (
      (
        np.pad(x, ((0, 0), (0, 1)), constant_values=1.0).reshape(-1, 100, 21),
        y.reshape(-1, 100),
      )
      for x, y, _ in (splits["train"].load(), splits["test"].load())
    )
    for theta, outcomes in results.items():
      w = _train_in_numpy(x, y, theta, seed)
      errors = 100.0 * ((test_x @ w).argmax(axis=2) != test_y).mean(axis=1)
      outcomes.append((errors.mean(), np.percentile(errors, 90)))
  fed_avg, tail = (np.mean(results[theta], axis=0) for theta in (1.0, 0.5))
  print(f"mean and 90th percentile: FedAvg {fed_avg}, theta = 0.5 {tail}")
  np.testing.assert_allclose(fed_avg, (23.4, 54.0), atol=1.0)
  np.testing.assert_allclose(tail, (23.3, 50.6), atol=1.0)
