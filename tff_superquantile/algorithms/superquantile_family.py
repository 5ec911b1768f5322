"""Builds the paper's family of models: superquantile aggregation for several theta at once."""

import collections.abc
from collections.abc import Sequence

import numpy as np
import tensorflow_federated as tff
from typing_extensions import Unpack

from privacy import checks
from tff_superquantile.algorithms import learning_process
from tff_superquantile.client_work import local_model
from tff_superquantile.client_work import optimizers
from tff_superquantile.threshold import ThresholdFn
from tff_superquantile.threshold import exact


def build_superquantile_family(
  model_fn: local_model.Model,
  thetas: Sequence[float],
  client_optimizer_fn: optimizers.OptimizerOrKerasFn,
  server_optimizer_fn: optimizers.OptimizerOrKerasFn | None = None,
  *,
  threshold: str | ThresholdFn = "exact",
  **options: Unpack[learning_process.Options],
) -> tff.learning.templates.LearningProcess:
  """Builds a learning process that trains a family of models w_1, ..., w_r on the same cohorts.

  Implements the paper's section "The Delta-FL Framework": the server keeps a model w_j for each
  theta_j. In each round, every client of the cohort computes its loss at all models, and trains
  those in whose tail it is: its F_i(w_j) is at or above the (1 - theta_j)-quantile of the cohort's.
  A model of theta = 1 is that of federated averaging: all clients train it, and compute no loss at
  it. Afterwards each client may choose among the models.

  Each model gets the weights that a process of its own would give it on the same cohorts. Training
  costs the sum of all thetas times a round of federated averaging, and there is a loss pass for
  each theta < 1; `engine.cohort` reads a cohort's examples once for all models.

  All values of the process are tuples with an entry for each theta, in their order. Entry j of the
  state, a `tff.learning.templates.LearningAlgorithmState`, and of the metrics is that of
  `build_superquantile_fed_avg`, or, for theta = 1, of `build_fed_avg`, whose metrics have no
  `threshold`. `get_model_weights` returns r `tff.learning.models.ModelWeights`.

  The thetas are different numbers in (0, 1]. The other arguments are those of
  `build_superquantile_fed_avg`, for all models. The threshold cannot be private: a round would
  release it once for each model, with noise from the same seeds.

  Args:
    model_fn: See `Options`.
    thetas: r different numbers in (0, 1].
    client_optimizer_fn: See `Options`.
    server_optimizer_fn: See `Options`.
    threshold: See `build_superquantile_fed_avg`; for all models with theta < 1, and not private.
    **options: See `Options`; `private` must not be given.

  Returns:
    A `tff.learning.templates.LearningProcess` whose values are tuples [r], in the order of
    `thetas`.

  Raises:
    TypeError: If an argument is unknown, or not of its documented type.
    ValueError: If the thetas are none, repeat or lie outside of (0, 1], or the threshold is
      private, or a number of the options is out of its range.
  """
  sequences = (collections.abc.Sequence, np.ndarray)
  checks.of_type("thetas", thetas, sequences, "a sequence of different numbers in (0, 1]")
  if not len(thetas) or len(set(thetas)) < len(thetas):
    raise ValueError(f"Found thetas = {thetas!r}; expected different numbers in (0, 1].")
  thresholds = [
    None if theta == 1.0 else exact.build_threshold(threshold, theta) for theta in thetas
  ]
  is_private = options.get("private") is not None
  if is_private or any(process is not None and process.is_private for process in thresholds):
    raise ValueError(
      "Found a private threshold, or `private`, for a family of models, whose round would release"
      " one for each model; expected none of them, or a process for each model by"
      " build_superquantile_fed_avg."
    )
  return _side_by_side(
    [
      learning_process.build(
        model_fn, client_optimizer_fn, server_optimizer_fn, options, threshold=process
      )
      for process in thresholds
    ]
  )


def _side_by_side(
  processes: Sequence[tff.learning.templates.LearningProcess],
) -> tff.learning.templates.LearningProcess:
  """Composes processes of the same clients into one, whose values are tuples of theirs."""

  @tff.federated_computation
  def initialize():
    return tff.federated_zip(tuple(process.initialize() for process in processes))

  state_type = initialize.type_signature.result
  clients_type = processes[0].next.type_signature.parameter[1]

  @tff.federated_computation(state_type, clients_type)
  def next_fn(state, clients):
    outputs = [process.next(state[j], clients) for j, process in enumerate(processes)]
    return tff.learning.templates.LearningProcessOutput(
      tff.federated_zip(tuple(output.state for output in outputs)),
      tff.federated_zip(tuple(output.metrics for output in outputs)),
    )

  def getter(name: str) -> tff.Computation:
    @tff.federated_computation(state_type.member)
    def get(state):
      return tuple(getattr(process, name)(state[j]) for j, process in enumerate(processes))

    return get

  def setter(name: str, values_type: tff.Type) -> tff.Computation:
    @tff.federated_computation(state_type.member, values_type)
    def with_values(state, values):
      return tuple(
        getattr(process, name)(state[j], values[j]) for j, process in enumerate(processes)
      )

    return with_values

  get_model_weights, get_hparams = getter("get_model_weights"), getter("get_hparams")
  return tff.learning.templates.LearningProcess(
    initialize,
    next_fn,
    get_model_weights,
    setter("set_model_weights", get_model_weights.type_signature.result),
    get_hparams_fn=get_hparams,
    set_hparams_fn=setter("set_hparams", get_hparams.type_signature.result),
  )
