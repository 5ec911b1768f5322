"""The loss F_i* of each training client's own model, from which its loss gap is measured."""

from __future__ import annotations

import numpy as np
import tensorflow_federated as tff
import threadpoolctl
import tqdm

from tff_superquantile import evaluation
from tff_superquantile import personal
from tff_superquantile.experiments.references import fitting
from tff_superquantile.experiments.run import run_files
from tff_superquantile.simulation import client_files
from tff_superquantile.simulation import seeds


# More threads than one wait for one another for most of the time: the problems are small.
@threadpoolctl.threadpool_limits.wrap(limits=1)
def compute(
  model: tff.learning.models.FunctionalModel,
  files: client_files.ClientFiles,
  l2: float,
  seed: int,
) -> np.ndarray:
  """Returns F_i* of all clients of some files, float32 [clients], in the order of their ids.

  A client cuts its examples at random into five parts. Each is measured by a model that is fitted
  to the other four (cross-fitting), so that no example judges a model that has seen it: the least
  loss on examples that fit the model, as in the EAGLE paper, is near zero for few of them, and the
  gap would be the loss again. F_i* is the mean over all examples, or the loss of the initial model,
  where that is less or there is a single example; so a gap is at least minus this loss.

  Privacy: F_i* is a function of client i's own examples, the seed and the untrained model, and so
  is what becomes of F_i(w) - F_i* at a client. It stays there: what a private run releases of gaps
  is what it releases of losses, by mechanisms whose sensitivity holds for any value that a client
  may have. It costs clients five fits, and no budget.

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
  initial = run_files.Weights(tuple(map(np.asarray, model.initial_weights[0])), ())
  fitter = None
  table = np.zeros(len(files.client_ids), np.float32)  # Who has no example has no loss, either.
  for i in tqdm.trange(len(table), desc="own models", unit="client", delay=2.0, disable=None):
    x, y, _ = files.load([files.client_ids[i]])
    if not len(y):
      continue
    of_one = evaluation.ClientExamples(["one"], x, y, np.array([0, len(y)]), files.decode)
    fitter = fitter or fitting.Fitter(model, of_one, l2)
    least = fitter.loss(initial, x, y)
    order = seeds.generator(seed, f"own model of {files.client_ids[i]}").permutation(len(y))
    parts = np.array_split(order, min(len(y), personal.NUM_PARTS))
    if len(parts) > 1:
      total = 0.0
      for place, part in enumerate(parts):
        rest = np.concatenate([*parts[:place], *parts[place + 1 :]])
        weights = fitter.fit(x[rest], y[rest], least_l2=fitting.PRIOR / len(rest))
        total += fitter.loss(weights, x[part], y[part])
      least = min(least, total)
    table[i] = least / len(y)
  return table
