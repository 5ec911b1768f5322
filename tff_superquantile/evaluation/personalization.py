"""Personalizes a model: every client fine-tunes it on its own data, and keeps it if it is better.

It implements the paper's section "Delta-FL and Model Personalization": the examples of a client are
split in a part to fine-tune on and a part to measure on (`client_split`). With a proximal term it
is Ditto's personal objective (Li, Hu, Beirami, Smith: "Ditto: Fair and Robust Federated Learning
Through Personalization", ICML 2021).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from privacy import checks
from tff_superquantile import personal
from tff_superquantile.client_work import local_model
from tff_superquantile.client_work import local_update
from tff_superquantile.evaluation import client_split
from tff_superquantile.evaluation import clients
from tff_superquantile.evaluation import examples as examples_lib
from tff_superquantile.evaluation import prediction
from tff_superquantile.simulation import seeds


class Personalized(NamedTuple):
  """Holds three models of each of k clients, measured on its held-out examples.

  Attributes:
    shared: The model that all clients were handed.
    personal: The client's own, fine-tuned on its held-in examples for the epochs that were asked
      for, or those that it chose.
    chosen: What the client keeps, by its held-in examples alone: the shared one, or its own after
      the epochs that `choose_epochs` of `tff_superquantile.personal` names.
    epochs: int [k], these epochs, 0 for the shared one.
    diverged: bool [k], whether fine-tuning led to weights that are not finite. Such a client drops
      them, as it would drop its update in a round.
  """

  shared: clients.Measured
  personal: clients.Measured
  chosen: clients.Measured
  epochs: np.ndarray
  diverged: np.ndarray

  @property
  def is_personal(self) -> np.ndarray:
    """bool [k], whether a client keeps a model of its own."""
    return self.epochs > 0


def build_tune(
  model: tff.learning.models.FunctionalModel,
  held_in: examples_lib.ClientExamples,
  optimizer: tff.learning.optimizers.Optimizer,
  l2: float,
  proximal_strength: float,
) -> Callable[..., tuple[Sequence[tf.Tensor], tf.Tensor]]:
  """Builds the local training of one client's own model, traced once for all of them.

  Args:
    model: The model whose loss is minimised.
    held_in: The examples of all clients, for their shapes and how they are decoded.
    optimizer: Takes the steps, from a fresh state.
    l2: The l2 coefficient of the objective.
    proximal_strength: lambda of the pull to the anchor.

  Returns:
    A function of (tensors of the weights from which it starts, trainable weights to which lambda
    pulls, the client's x and y, the two arrays of `personal.batches`) to (trainable weights;
    whether they diverged, bool [], and are those of the start).
  """
  local = local_model.build_local_model(model)

  @tf.function(
    input_signature=[
      prediction.weights_spec(model),
      prediction.weights_spec(model)[0],
      *held_in.specs(),
      tf.TensorSpec([None], tf.int64),
      tf.TensorSpec([None], tf.int32),
    ],
    autograph=False,
  )
  def tune(
    weights: Any, anchor: Any, x: tf.Tensor, y: tf.Tensor, order: tf.Tensor, batch_sizes: tf.Tensor
  ) -> tuple[Sequence[tf.Tensor], tf.Tensor]:
    trainable, non_trainable = weights
    update = local_update.train(
      local,
      optimizer,
      optimizer.get_hparams(optimizer.initialize(tf.TensorSpec([], tf.float32))),
      tff.learning.models.ModelWeights(trainable, non_trainable),
      local_update.Examples(
        (held_in.decoded(tf.gather(x, order)), tf.gather(y, order)), batch_sizes
      ),
      batch_size=None,  # The plan has the batches of all epochs.
      epochs=1,
      l2=l2,
      proximal_strength=proximal_strength,
      anchor=anchor,
    ).update
    finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(u)) for u in update])
    tuned = tuple(tf.where(finite, w - u, w) for w, u in zip(trainable, update))
    return tuned, tf.logical_not(finite)

  return tune


class Personalizer:
  """Fine-tunes a model for one client after the other, and measures what each gains.

  Client i takes local steps, `local_update.train` as in a round, from the model's weights w on

      h_i(v; w) = F_i(v) + l2 / 2 |v|^2 + lambda / 2 |v - w|^2.

  With lambda > 0 this is Ditto's personal objective, solved when training has ended ("fine-tuning"
  in its paper; `ditto.DittoTrainer` takes its steps while the shared model is trained). lambda = 0
  is the paper's fine-tuning; a large lambda keeps each client at w.

  Privacy: a client's model follows from the shared one and its own examples, and nobody else gets
  it. So it adds nothing to what the shared model's training has released of other clients.
  """

  def __init__(
    self,
    model: tff.learning.models.FunctionalModel,
    examples: client_split.SplitExamples,
    optimizer: tff.learning.optimizers.Optimizer,
    *,
    seed: int,
    batch_size: int,
    l2: float = 0.0,
    proximal_strength: float = 0.0,
    trained: tff.learning.models.FunctionalModel | None = None,
    error: str = "misclassification",
  ):
    """Traces the work of a client.

    Args:
      model: The model, with which clients are measured.
      examples: The examples of all clients.
      optimizer: Takes the local steps, from a fresh state for each client.
      seed: The seed of the order of the examples and of the cuts by which clients choose.
      batch_size: Examples in a local step; 0 for all that the client holds in.
      l2: The l2 coefficient of the local objective.
      proximal_strength: lambda. Steps of a rate eta diverge where eta lambda exceeds 2.
      trained: The model whose loss is F_i, such as one that weighs classes; None for `model`.
      error: A key of `errors.ERRORS`.

    Raises:
      ValueError: If a number is negative.
    """
    self._examples, self._seed = examples, checks.whole("seed", seed, 0)
    self._batch_size = checks.whole("batch_size", batch_size, 0)
    l2 = checks.not_negative("l2", l2)
    proximal_strength = checks.not_negative("proximal_strength", proximal_strength)
    self._tune = build_tune(trained or model, examples.held_in, optimizer, l2, proximal_strength)
    self._evaluator = clients.build_evaluator(model, examples.held_out, error=error)

  def tune(
    self, weights: Any, x: np.ndarray, y: np.ndarray, epochs: int, rng: np.random.Generator
  ) -> tuple[tff.learning.models.ModelWeights, bool]:
    """Returns the weights of a client with examples x [n, ...], y [n], and if they diverged."""
    plan = personal.batches(rng, len(y), self._batch_size, epochs)
    start = prediction.as_tensors(weights)
    tuned, diverged = self._tune(start, start[0], x, y, *plan)
    return tff.learning.models.ModelWeights(tuned, weights.non_trainable), bool(diverged)

  def _chosen_epochs(
    self, weights: Any, x: np.ndarray, y: np.ndarray, choices: Sequence[int], rng: Any
  ) -> int:
    """Returns for how many epochs a client with these held-in examples tunes, 0 for none."""

    def loss(epochs: int, tuned_on: np.ndarray, measured_on: np.ndarray) -> float:
      own, _ = self.tune(weights, x[tuned_on], y[tuned_on], epochs, rng) if epochs else (weights, 0)
      results, _ = self._evaluator.predict_for(own, x[measured_on], y[measured_on])
      return float(len(measured_on) * results.loss[0])

    return personal.choose_epochs(rng, len(y), choices, loss)

  def __call__(
    self,
    weights: Any,
    epochs: int | None = None,
    on_client: Callable[[], Any] | None = None,
    choices: Sequence[int] | None = None,
  ) -> Personalized:
    """Fine-tunes and measures all clients.

    Args:
      weights: A `tff.learning.models.ModelWeights`.
      epochs: Passes of `personal` over the examples that a client holds in; None for as many as
        the client chooses, the least if it chooses none.
      on_client: Called whenever a client is done; None for nothing.
      choices: Positive numbers of passes, of which each client chooses or keeps the shared model;
        None for `epochs` alone, or `personal.EPOCHS`.

    Returns:
      The results, with all measures that the error has.

    Raises:
      ValueError: If `epochs` or a choice is no whole number of passes.
    """
    if epochs is not None:
      checks.whole("epochs", epochs, 0)
    if not choices:
      choices = personal.EPOCHS if epochs is None else [epochs] * (epochs > 0)
    choices = sorted(checks.whole("choices", choice, 1) for choice in choices)
    held_in, held_out = self._examples.held_in, self._examples.held_out
    of_models: dict[str, list[Any]] = {"shared": [], "personal": [], "chosen": []}
    chosen, diverged = [], []
    for i, client_id in enumerate(held_in.client_ids):
      rng = seeds.generator(self._seed, f"personalization of {client_id}")
      of_client, rows, models = held_in.of_client(i), held_out.of_client(i), {0: weights}
      asked, has_diverged = epochs, False
      if asked:
        models[asked], has_diverged = self.tune(weights, *of_client, asked, rng)
      number = self._chosen_epochs(weights, *of_client, choices, rng)
      if asked is None:
        asked = number or choices[0]
      for missing in {asked, number} - {*models}:
        models[missing], has_diverged = self.tune(weights, *of_client, missing, rng)
      measured = {n: self._evaluator.predict_for(model, *rows) for n, model in models.items()}
      for results, of_model in zip(of_models.values(), (0, asked, number)):
        results.append(measured[of_model])
      chosen.append(number)
      diverged.append(has_diverged)
      if on_client is not None:
        on_client()
    return Personalized(
      **{
        name: clients.joined(held_out.client_ids, of_clients, self._evaluator.error)
        for name, of_clients in of_models.items()
      },
      epochs=np.array(chosen, int),
      diverged=np.array(diverged),
    )
