"""Compares a model family, from which every test client picks its own model, with single models.

It implements the paper's section "The Delta-FL Framework": models w_1, ..., w_r for tail fractions
theta_1, ..., theta_r are trained side by side, and "we allow each test client to select the best
model according to its local data". Here a client selects on the examples that it holds in, and its
model is measured on those that it holds out (`client_split`). All arrays are [models, clients].
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from privacy import checks
from tff_superquantile import distribution

CRITERIA = ("error", "loss")

# Names of the ways to give every client a model.
BY_ERROR = "family"
BY_LOSS = "family_by_loss"
SHUFFLED = "family_shuffled"
TUNED_SINGLE = "single_by_held_in_p90"
HINDSIGHT_SINGLE = "single_in_hindsight"
ORACLE = "oracle"
# These two cannot be deployed: they look at the examples on which they are measured.
LOOK_AHEAD = (HINDSIGHT_SINGLE, ORACLE)

_CONSTRUCTED = (BY_ERROR, BY_LOSS, SHUFFLED, TUNED_SINGLE, HINDSIGHT_SINGLE, ORACLE)

# Permutations over which `SHUFFLED` is averaged.
_NUM_SHUFFLES = 200


class PartMetrics(NamedTuple):
  """Mean losses and fractions misclassified on a part of all examples, float [models, clients]."""

  loss: np.ndarray
  error: np.ndarray


class FamilyComparison(NamedTuple):
  """Holds the results of the family and of single models over the clients of one seed.

  Attributes:
    statistics: {name: {"error" | "loss": `distribution.describe` over clients}} on the held-out
      examples. Names are those of the models, each a model for all clients, and the constants of
      this module.
    choice: int [clients], the model that each client picks by its held-in error.
    shares: {model: fraction of the clients that pick it}.
    tied: Fraction of the clients for which several models have the smallest held-in error, so that
      the loss decides.
    tuned_single: The model that is best for all by the 90th percentile of held-in error.
  """

  statistics: dict[str, dict[str, dict[str, float]]]
  choice: np.ndarray
  shares: dict[str, float]
  tied: float
  tuned_single: str


def choose(metrics: PartMetrics, criterion: str = "error") -> np.ndarray:
  """Returns the index of the best model of every client by `metrics`, int64 [clients].

  The criterion "error" chooses the smallest error, and among equal errors, which are frequent with
  few examples, the smallest loss; "loss" chooses the smallest loss. Among models that are still
  equal the first is chosen, and one whose value is NaN only if all are.
  """
  checks.one_of("criterion", criterion, CRITERIA)
  loss, error = (np.asarray(values, np.float64) for values in metrics)
  if loss.shape != error.shape or loss.ndim != 2 or not loss.shape[0]:
    raise ValueError(
      f"Found losses of shape {loss.shape} and errors of shape {error.shape}; expected [models,"
      " clients] twice."
    )
  loss, error = (np.where(np.isnan(values), np.inf, values) for values in (loss, error))
  if criterion == "error":
    # An error is a multiple of 1 / n, so that equal errors are exactly equal.
    loss = np.where(error == error.min(axis=0), loss, np.inf)
    # If the best by error all have an infinite loss, the first of them is chosen, not of all.
    loss = np.where(np.isinf(loss).all(axis=0) & (error == error.min(axis=0)), 0.0, loss)
  return np.argmin(loss, axis=0)


def best_single(error: np.ndarray) -> int:
  """Returns the first model whose 90th percentile of error over clients is the smallest."""
  p90 = np.array([distribution.describe(values)["p90"] for values in np.asarray(error)])
  return int(np.argmin(np.where(np.isnan(p90), np.inf, p90)))


def _describe(loss: np.ndarray, error: np.ndarray) -> dict[str, dict[str, float]]:
  return {"loss": distribution.describe(loss), "error": distribution.describe(error)}


def compare(
  models: Sequence[str],
  held_in: PartMetrics,
  held_out: PartMetrics,
  rng: np.random.Generator,
) -> FamilyComparison:
  """Compares the clients' own choice with one model for all, and with what chance would give.

  - `BY_ERROR`, `BY_LOSS`: each client's choice on its held-in examples.
  - `SHUFFLED`: the choices of `BY_ERROR` dealt to the clients at random, as a mean over
    permutations that `rng` draws. The gain of `BY_ERROR` over it is due to the clients' own choice;
    the rest is due to the mixture of models alone.
  - `TUNED_SINGLE`: one model for all, that of the smallest 90th percentile of held-in error.
  - `HINDSIGHT_SINGLE`, `ORACLE`: one model for all and each client's best, chosen on the held-out
    examples themselves. They are optimistic upper bounds: the minimum of noisy errors is small even
    among equally good models.
  """
  shapes = {np.shape(values) for part in (held_in, held_out) for values in part}
  if len(shapes) != 1 or len(models) < 2 or next(iter(shapes))[:1] != (len(models),):
    raise ValueError(
      f"Found {len(models)} models and arrays of shapes {sorted(shapes)}; expected at least two"
      " models, and [models, clients] everywhere."
    )
  taken = set(models) & set(_CONSTRUCTED)
  if taken or len(set(models)) < len(models):
    raise ValueError(
      f"Found models named {', '.join(models)}; expected different names, none of them"
      f" {', '.join(_CONSTRUCTED)}."
    )
  loss, error = (np.asarray(values, np.float64) for values in held_out)
  everyone = np.arange(loss.shape[1])
  choice = choose(held_in)
  tuned, hindsight = best_single(held_in.error), best_single(held_out.error)
  picks = {
    **{name: np.full(loss.shape[1], i) for i, name in enumerate(models)},
    BY_ERROR: choice,
    BY_LOSS: choose(held_in, "loss"),
    TUNED_SINGLE: np.full(loss.shape[1], tuned),
    HINDSIGHT_SINGLE: np.full(loss.shape[1], hindsight),
    ORACLE: choose(held_out),
  }
  statistics = {
    name: _describe(loss[pick, everyone], error[pick, everyone]) for name, pick in picks.items()
  }
  shuffles = [rng.permutation(choice) for _ in range(_NUM_SHUFFLES)]
  shuffled = [_describe(loss[pick, everyone], error[pick, everyone]) for pick in shuffles]
  statistics[SHUFFLED] = {
    quantity: {
      name: float(np.mean([described[quantity][name] for described in shuffled]))
      for name in shuffled[0][quantity]
    }
    for quantity in ("loss", "error")
  }
  shares = {name: float(np.mean(choice == i)) for i, name in enumerate(models)}
  in_error = np.asarray(held_in.error)
  tied = float(np.mean(np.sum(in_error == np.nanmin(in_error, axis=0), axis=0) > 1))
  return FamilyComparison(statistics, choice, shares, tied, models[tuned])
