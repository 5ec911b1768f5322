"""The loss F_i* of each training client's own model, from which its loss gap is measured."""

from __future__ import annotations

import numpy as np
import tensorflow_federated as tff
import threadpoolctl
import tqdm

from tff_superquantile import evaluation
from tff_superquantile.experiments.references import fitting
from tff_superquantile.experiments.run import run_files
from tff_superquantile.simulation import client_files
from tff_superquantile.simulation import seeds

_STEPS = 15


# More threads than one wait for one another for most of the time: the problems are small.
@threadpoolctl.threadpool_limits.wrap(limits=1)
def compute(
  model: tff.learning.models.FunctionalModel,
  files: client_files.ClientFiles,
  l2: float,
  seed: int,
) -> np.ndarray:
  """Returns F_i* of all clients of some files, float32 [clients], in the order of their ids.

  A client cuts its examples at random into two halves. Each is measured by a model that is fitted
  to the other (cross-fitting), so that no example judges a model that has seen it: the least loss
  on examples that fit the model, as in the EAGLE paper, is near zero for few of them, and the gap
  would be the loss again. Such a fit has few examples, too, and must not go to its end: after each
  of up to 15 steps of L-BFGS the losses of both halves are added up, and F_i* is the least mean,
  that before the first step among them. So a gap is at least minus the untrained model's loss.

  Privacy: F_i* is a function of client i's own examples, the seed and the untrained model, and so
  is what becomes of F_i(w) - F_i* at a client. It stays there: what a private run releases of gaps
  is what it releases of losses, by mechanisms whose sensitivity holds for any value that a client
  may have. It costs clients two short fits, and no budget.

  Args:
    model: The model whose loss the clients have, a linear one.
    files: The files of the clients.
    l2: The l2 coefficient of the local objective.
    seed: Cuts the examples, together with a client's id.

  Raises:
    ValueError: If the model is not linear.
  """
  if not fitting.is_linear(model):
    raise ValueError(
      "Found clients who are judged by their loss gaps with a model that is not linear; expected a"
      " linear one, whose loss has one minimum that a client's own model finds: choose another task"
      " or --model, or --tail_by=loss."
    )
  fitter = None
  table = np.zeros(len(files.client_ids), np.float32)  # Who has no example has no loss, either.
  for i in tqdm.trange(len(table), desc="own models", unit="client", delay=2.0, disable=None):
    x, y, _ = files.load([files.client_ids[i]])
    if not len(y):
      continue
    of_one = evaluation.ClientExamples(["one"], x, y, np.array([0, len(y)]), files.decode)
    fitter = fitter or fitting.Fitter(model, of_one, l2)
    order = seeds.generator(seed, f"own model of {files.client_ids[i]}").permutation(len(y))
    table[i] = _cross_fitted(fitter, x[order], y[order]) / len(y)
  return table


def _cross_fitted(fitter: fitting.Fitter, x: np.ndarray, y: np.ndarray) -> float:
  """Returns the least sum of losses, over steps, of examples of which each half fits the other."""
  if len(y) == 1:
    return fitter.loss(fitter.initial, x, y)
  one, other = np.split(np.arange(len(y)), [(len(y) + 1) // 2])
  return float(np.min(_path(fitter, x, y, one, other) + _path(fitter, x, y, other, one)))


def _path(
  fitter: fitting.Fitter, x: np.ndarray, y: np.ndarray, fitted: np.ndarray, measured: np.ndarray
) -> np.ndarray:
  """Returns the sum of the losses of rows after each step of a fit to others, [steps + 1]."""

  def loss(weights: run_files.Weights) -> float:
    return fitter.loss(weights, x[measured], y[measured])

  losses = [loss(fitter.initial)]
  fitter.fit(x[fitted], y[fitted], lambda weights: losses.append(loss(weights)), most_steps=_STEPS)
  # A fit that has ended stays where it is.
  return np.array([*losses, *losses[-1:] * (_STEPS + 1 - len(losses))])
