"""Personalizes a model as the paper does: every test client fine-tunes it on its own data.

It implements the paper's section "Delta-FL and Model Personalization". The examples of a test
client are split in a part to fine-tune on and a part to measure on (`client_split`), and the model
is trained for some epochs on the first part, at the last learning rate of federated training.
With a proximal term it is Ditto's personal objective (Li, Hu, Beirami, Smith: "Ditto: Fair and
Robust Federated Learning Through Personalization", ICML 2021).
"""

from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from privacy import checks
from tff_superquantile.client_work import local_model
from tff_superquantile.client_work import local_update
from tff_superquantile.evaluation import client_split
from tff_superquantile.evaluation import clients
from tff_superquantile.evaluation import examples as examples_lib
from tff_superquantile.simulation import seeds

# Held-out examples in one forward pass, to bound the memory of a client with very many.
_BATCH_SIZE = 512


class PersonalizationMetrics(NamedTuple):
  """Holds the metrics of each client before and after fine-tuning, on its held-out examples.

  Attributes:
    client_ids: The ids of the k clients.
    num_held_in: int64 [k], the number of examples for fine-tuning.
    num_held_out: int64 [k], the number of examples for measuring.
    loss_before: float64 [k], mean loss of the model as it was handed to the client.
    error_before: float64 [k], the same model's fraction of misclassified examples.
    loss_after: float64 [k], mean loss of the client's own model.
    error_after: float64 [k], the same model's fraction of misclassified examples.
    diverged: bool [k], whether fine-tuning led to weights that are not finite. Such a client drops
      them, as it would drop its update in a round, and keeps the model that it was handed.
  """

  client_ids: Sequence[str]
  num_held_in: np.ndarray
  num_held_out: np.ndarray
  loss_before: np.ndarray
  error_before: np.ndarray
  loss_after: np.ndarray
  error_after: np.ndarray
  diverged: np.ndarray


def batch_plan(
  rng: np.random.Generator, num_examples: int, batch_size: int, epochs: int
) -> tuple[np.ndarray, np.ndarray]:
  """Draws the batches of a client's n examples, with a new order in every epoch.

  It is (order int64 [epochs n], rows of the client's examples; batch_sizes int32 [epochs n], the
  size of the batch that each belongs to); a `batch_size` of 0 takes all examples. A round shuffles
  once, as it makes one pass in the paper's experiments. Over ten passes the same batches in the
  same order would be an artefact.
  """
  batch_size = batch_size or num_examples
  order = [rng.permutation(num_examples) for _ in range(epochs)]
  starts = np.arange(num_examples) // batch_size * batch_size
  sizes = np.minimum(batch_size, num_examples - starts).astype(np.int32)
  return np.concatenate([np.empty(0, np.int64), *order]), np.tile(sizes, epochs)


def _build_fine_tune(
  model: tff.learning.models.FunctionalModel,
  held_in: examples_lib.ClientExamples,
  optimizer: tff.learning.optimizers.Optimizer,
  l2: float,
  proximal_strength: float,
) -> Callable[..., tuple[tf.Tensor, tf.Tensor]]:
  """Builds the fine-tuning of one client, traced once for all of them.

  It is a function of (tensors of the weights, the client's examples to fine-tune on, those to
  measure on, the two arrays of `batch_plan`) to (sums of losses and errors after fine-tuning,
  float64 [2]; whether it diverged, bool []).
  """
  local = local_model.build_local_model(model)
  losses_and_errors = clients.build_losses_and_errors(model, of_whole_batches=True)

  def sums(weights: Any, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    total = tf.shape(y)[0]

    def body(offset: tf.Tensor, values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
      rows = slice(offset, offset + _BATCH_SIZE)
      found = losses_and_errors(weights, held_in.decoded(x[rows]), y[rows])
      return offset + _BATCH_SIZE, values + tf.reduce_sum(found, axis=0)

    zero = (0, tf.zeros([2], tf.float64))
    return tf.while_loop(lambda offset, _: offset < total, body, zero, parallel_iterations=1)[1]

  @tf.function(
    input_signature=[
      clients.weights_spec(model),
      held_in.specs(),
      held_in.specs(),
      tf.TensorSpec([None], tf.int64),
      tf.TensorSpec([None], tf.int32),
    ],
    autograph=False,
  )
  def fine_tune(
    weights: Any,
    tuned_on: tuple[tf.Tensor, tf.Tensor],
    measured_on: tuple[tf.Tensor, tf.Tensor],
    order: tf.Tensor,
    batch_sizes: tf.Tensor,
  ) -> tuple[tf.Tensor, tf.Tensor]:
    trainable, non_trainable = weights
    x, y = (tf.gather(rows, order) for rows in tuned_on)
    initial_state = optimizer.initialize(
      tf.nest.map_structure(lambda w: tf.TensorSpec(w.shape, w.dtype), trainable)
    )
    update = local_update.train(
      local,
      optimizer,
      optimizer.get_hparams(initial_state),
      tff.learning.models.ModelWeights(trainable, non_trainable),
      local_update.Examples((held_in.decoded(x), y), batch_sizes),
      batch_size=None,  # The plan has the batches of all epochs.
      epochs=1,
      l2=l2,
      proximal_strength=proximal_strength,
    ).update
    finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(u)) for u in update])
    tuned = tuple(tf.where(finite, w - u, w) for w, u in zip(trainable, update))
    return sums((tuned, non_trainable), *measured_on), tf.logical_not(finite)

  return fine_tune


def build_personalizer(
  model: tff.learning.models.FunctionalModel,
  examples: client_split.SplitExamples,
  optimizer: tff.learning.optimizers.Optimizer,
  *,
  seed: int,
  batch_size: int,
  epochs: int = 10,
  l2: float = 0.0,
  proximal_strength: float = 0.0,
  num_threads: int = 1,
) -> Callable[..., PersonalizationMetrics]:
  """Builds a function from model weights to every client's metrics before and after fine-tuning.

  Client i takes local steps, `local_update.train` as in a round, from the model's weights w on

      h_i(v; w) = F_i(v) + l2 / 2 |v|^2 + lambda / 2 |v - w|^2.

  With lambda > 0 this is Ditto's personal objective, solved when training has ended ("fine-tuning"
  in its paper, instead of one personal step in each round that a client takes part in). lambda = 0
  is the paper's fine-tuning; a large lambda keeps each client at w.

  A client's work is one call of one TensorFlow function, traced once for all clients, so that
  personal weights never leave it.

  Args:
    model: The model.
    examples: The examples of all clients.
    optimizer: Takes the local steps, from a fresh state for each client.
    seed: The seed of the order of the examples, not negative.
    batch_size: Examples in a local step; 0 for all that the client holds in.
    epochs: Passes over the examples that a client holds in.
    l2: The l2 coefficient of the local objective.
    proximal_strength: lambda. Steps of a rate eta diverge where eta lambda exceeds 2.
    num_threads: The number of clients at work at once; results do not depend on it.

  Returns:
    A function of `tff.learning.models.ModelWeights` and, optionally, of `on_client`, which is
    called without arguments whenever a client is done.

  Raises:
    ValueError: If a number is negative.
  """
  batch_size, epochs = checks.whole("batch_size", batch_size, 0), checks.whole("epochs", epochs, 0)
  l2 = checks.not_negative("l2", l2)
  proximal_strength = checks.not_negative("proximal_strength", proximal_strength)
  held_in, held_out = examples.held_in, examples.held_out
  evaluate_before = clients.build_evaluator(model, held_out)
  fine_tune = _build_fine_tune(model, held_in, optimizer, l2, proximal_strength)

  def personalize(
    weights: Any, on_client: Callable[[], None] | None = None
  ) -> PersonalizationMetrics:
    before = evaluate_before(weights)
    tensors = clients.as_tensors(weights)

    def one_client(i: int) -> tuple[np.ndarray, np.ndarray]:
      parts = held_in.of_client(i), held_out.of_client(i)
      rng = seeds.generator(seed, f"personalization of {held_in.client_ids[i]}")
      plan = batch_plan(rng, len(parts[0][1]), batch_size, epochs)
      of_client, diverged = fine_tune(tensors, *parts, *plan)
      return of_client.numpy(), diverged.numpy()

    results = []
    pool = futures.ThreadPoolExecutor(num_threads)
    try:
      for result in pool.map(one_client, range(len(held_in.client_ids))):
        results.append(result)
        if on_client is not None:
          on_client()
    finally:
      # Otherwise an interrupted command would first fine-tune all remaining clients.
      pool.shutdown(cancel_futures=True)
    after = np.stack([of_client for of_client, _ in results]) / before.num_examples[:, np.newaxis]
    return PersonalizationMetrics(
      held_in.client_ids,
      np.diff(held_in.offsets),
      before.num_examples,
      before.loss,
      before.error,
      after[:, 0],
      after[:, 1],
      np.array([diverged for _, diverged in results]),
    )

  return personalize
