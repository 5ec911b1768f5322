"""The paper's synthetic task: label shift across clients, worst at test time.

Section "End-to-end Differential Privacy" and its appendix: 500,000 points of 10 Gaussian classes in
20 dimensions (scikit-learn's `make_classification`), dealt to clients of 100 examples each by
label counts that differ between clients: their class distributions are Dirichlet(0.5) for the 2500
training clients and Dirichlet(0.01), mostly one class, for 500 validation and 500 test clients.
The pool is always the same; the seed draws the class distributions and deals the examples.
"""

from collections.abc import Iterator
import logging
import os

import numpy as np
import tensorflow as tf

from tasks import models
from tasks import task
from tff_superquantile.simulation import client_files

_LOG = logging.getLogger("tff_superquantile.tasks")

_VERSION = "v1"  # A change of the recipe below changes this too.
_NUM_CLASSES = 10
_NUM_FEATURES = 20
_EXAMPLES_PER_CLIENT = 100
# Split: (number of clients, parameter of the Dirichlet distribution, for each class).
_SPLITS = {"train": (2500, 0.5), "validation": (500, 0.01), "test": (500, 0.01)}
_INPUT_SPEC = (tf.TensorSpec([None, _NUM_FEATURES], tf.float32), tf.TensorSpec([None], tf.int32))


def make_pool() -> tuple[np.ndarray, np.ndarray]:
  """Makes the pool of all splits, as in the paper: raw x float32 [500000, 20], y int32 [500000]."""
  # Not before it is used: importing it takes half a second, and a cached split doesn't need it.
  from sklearn import datasets

  x, y = datasets.make_classification(
    n_samples=int(5e5),
    n_features=_NUM_FEATURES,
    n_informative=15,
    n_redundant=2,
    n_repeated=0,
    n_classes=_NUM_CLASSES,
    n_clusters_per_class=1,
    class_sep=5.0,
    hypercube=False,
    random_state=2345,
  )
  return x.astype(np.float32), y.astype(np.int32)


def draw_class_distributions(
  rng: np.random.Generator, num_clients: int, concentration: float
) -> np.ndarray:
  """Draws q_i ~ Dirichlet(concentration, ..., concentration), float64 [num_clients, 10].

  In log space: with parameter 0.01 a plain gamma variate often underflows to zero, and where all
  do, there is nothing to normalise. If G ~ Gamma(a + 1) and U is uniform, G U^(1/a) ~ Gamma(a).
  """
  shape = (num_clients, _NUM_CLASSES)
  log_gamma = np.log(rng.standard_gamma(concentration + 1.0, shape))
  log_gamma += np.log1p(-rng.random(shape)) / concentration  # 1 - [0, 1) is never zero.
  q = np.exp(log_gamma - log_gamma.max(axis=1, keepdims=True))
  return q / q.sum(axis=1, keepdims=True)


def deal(rng: np.random.Generator, labels: np.ndarray, counts: np.ndarray) -> np.ndarray:
  """Deals rows of the pool, int64 [clients, examples each], without replacement."""
  num_clients, num_classes = counts.shape
  rows, owners = [], []
  for c in range(num_classes):
    stack = rng.permutation(np.flatnonzero(labels == c))
    num_dealt = int(counts[:, c].sum())
    if num_dealt > len(stack):
      raise ValueError(
        f"Class {c} has {len(stack)} examples in the pool but this split deals {num_dealt}; use"
        " another seed."
      )
    rows.append(stack[:num_dealt])
    owners.append(np.repeat(np.arange(num_clients), counts[:, c]))
  by_owner = np.argsort(np.concatenate(owners), kind="stable")
  hands = np.concatenate(rows)[by_owner].reshape(num_clients, -1)
  return rng.permuted(hands, axis=1)  # Else a client's examples would come class by class.


def _make_clients(seed: int) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
  """Yields (client id, x float32 [100, 20], y int32 [100]) of all splits."""
  _LOG.info("Making the synthetic split of seed %d, once; this takes a few seconds.", seed)
  x, y = make_pool()
  rng = np.random.default_rng(seed)
  q = np.concatenate([draw_class_distributions(rng, n, a) for n, a in _SPLITS.values()])
  hands = deal(rng, y, rng.multinomial(_EXAMPLES_PER_CLIENT, q))
  client_ids = [f"{split}_{i:04d}" for split, (n, _) in _SPLITS.items() for i in range(n)]
  for client_id, rows in zip(client_ids, hands):
    yield client_id, x[rows], y[rows]


def _open_clients(request: task.Request) -> list[client_files.ClientFiles]:
  """Opens the split of the request's seed, 30 MB, after making it on first use."""
  files = client_files.open_or_write_client_files(
    os.path.join(request.cache_dir, f"synthetic_{_VERSION}_seed_{request.seed}"),
    lambda: _make_clients(request.seed),
  )
  return [
    files.subset([client_id for client_id in files.client_ids if client_id.startswith(split)])
    for split in ("train", "test", "validation")
  ]


TASKS = (
  task.Task(
    name="synthetic",
    # The objective is convex: the paper starts from zero, whatever the seed.
    build_model=lambda seed: models.build_linear_classifier(
      _INPUT_SPEC, _NUM_CLASSES, intercept=True
    ),
    open_clients=_open_clients,
    split=lambda pools, seed: pools,  # The seed has dealt the examples to these clients.
    defaults=dict(
      num_rounds=1000,
      clients_per_round=100,
      client_learning_rate=0.1,
      batch_size=0,
      client_weighting="uniform",
      rounds_per_evaluation=50,
      max_loss=1.5,
    ),
  ),
)
