"""Ditto: each client trains a model of its own beside the shared one, and is pulled to it.

Reference: Li, Hu, Beirami, Smith: "Ditto: Fair and Robust Federated Learning Through
Personalization", ICML 2021, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow_federated as tff

from privacy import checks
from tff_superquantile import personal
from tff_superquantile.evaluation import client_split
from tff_superquantile.evaluation import clients
from tff_superquantile.evaluation import personalization
from tff_superquantile.evaluation import prediction
from tff_superquantile.simulation import seeds

# The trainable weights of the own models of k clients: float32 [k, ...] each.
States = tuple[np.ndarray, ...]


class DittoTrainer:
  """Own models v_k of k clients, trained in turns with the shared model w.

  They start from the w of `start`. In a turn, after some rounds have made w_t, each client passes
  once over the examples that it holds in, by batches in a new order, with the step

      v_k <- v_k - eta' (grad F_k(v_k) + l2 v_k + lambda (v_k - w_t)),

  where eta' = eta / (1 + eta lambda).

  With eta' the pull is taken where the step ends (an implicit step of eta), so that no lambda lets
  it diverge: lambda = 0 is local training alone, and for large lambda v_k is w_t. A turn that leads
  to weights that are not finite leaves the client what it had. Nothing of v_k reaches w.

  Privacy: as of `Personalizer`, v_k follows from shared models and the client's own examples, and
  nobody else gets it.
  """

  def __init__(
    self,
    model: tff.learning.models.FunctionalModel,
    examples: client_split.SplitExamples,
    *,
    strength: float,
    learning_rate: float,
    seed: int,
    batch_size: int,
    l2: float = 0.0,
    trained: tff.learning.models.FunctionalModel | None = None,
    error: str = "misclassification",
  ):
    """Traces the work of a client.

    Args:
      model: The model, with which clients are measured.
      examples: The examples of all clients.
      strength: lambda.
      learning_rate: eta.
      seed: The seed of the order of the examples.
      batch_size: Examples in a local step; 0 for all that the client holds in.
      l2: The l2 coefficient of the local objective.
      trained: The model whose loss is F_k, such as one that weighs classes; None for `model`.
      error: A key of `errors.ERRORS`.

    Raises:
      ValueError: If a number is negative, or the learning rate is zero.
    """
    strength = checks.not_negative("strength", strength)
    rate = checks.positive("learning_rate", learning_rate)
    rate /= 1.0 + rate * strength
    self._examples, self._seed = examples, checks.whole("seed", seed, 0)
    self._batch_size = checks.whole("batch_size", batch_size, 0)
    self._train = personalization.build_tune(
      trained or model,
      examples.held_in,
      tff.learning.optimizers.build_sgdm(rate),
      checks.not_negative("l2", l2),
      strength,
    )
    self._evaluator = clients.build_evaluator(model, examples.held_out, error=error)

  def start(self, weights: Any) -> States:
    """Returns the own models before the first turn: all are the shared one.

    Args:
      weights: A `tff.learning.models.ModelWeights`.

    Returns:
      The states of the clients.
    """
    num_clients = len(self._examples.held_in.client_ids)
    return tuple(
      np.repeat(np.asarray(w, np.float32)[np.newaxis], num_clients, axis=0)
      for w in weights.trainable
    )

  def turn(self, states: States, weights: Any, number: int) -> States:
    """Takes the steps of a turn.

    Args:
      states: The own models.
      weights: The shared model w_t, a `tff.learning.models.ModelWeights`.
      number: The turn's number, from which the order of the examples follows: equal turns of equal
        states are equal to the bit.

    Returns:
      The own models after it.
    """
    shared, non_trainable = prediction.as_tensors(weights)
    after = tuple(map(np.empty_like, states))
    for i, client_id in enumerate(self._examples.held_in.client_ids):
      x, y = self._examples.held_in.of_client(i)
      rng = seeds.generator(self._seed, f"turn {number} of the own model of {client_id}")
      plan = personal.batches(rng, len(y), self._batch_size, 1)
      own = tuple(state[i] for state in states)
      trained, _ = self._train((own, non_trainable), shared, x, y, *plan)
      for state, values in zip(after, trained):
        state[i] = values
    return after

  def _measured(self, models: Sequence[Any]) -> clients.Measured:
    held_out = self._examples.held_out
    of_clients = [
      self._evaluator.predict_for(model, *held_out.of_client(i)) for i, model in enumerate(models)
    ]
    return clients.joined(held_out.client_ids, of_clients, self._evaluator.error)

  def measured(self, states: States, weights: Any) -> tuple[clients.Measured, clients.Measured]:
    """Measures shared and own models on the examples that clients hold out.

    Args:
      states: The own models.
      weights: The shared model, whose weights that are not trained the own ones have, too.

    Returns:
      The measures of the shared model and those of the own ones.
    """
    own = [
      tff.learning.models.ModelWeights([state[i] for state in states], weights.non_trainable)
      for i in range(len(self._examples.held_out.client_ids))
    ]
    return self._measured([weights] * len(own)), self._measured(own)
