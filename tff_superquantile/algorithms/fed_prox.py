"""Builds FedProx, federated averaging with a penalty on the distance to the round's weights."""

import tensorflow_federated as tff
from typing_extensions import Unpack

from tff_superquantile import client_work
from tff_superquantile.algorithms import learning_process
from tff_superquantile.client_work import local_model
from tff_superquantile.client_work import optimizers


def build_fed_prox(
  model_fn: local_model.Model,
  proximal_strength: float,
  client_optimizer_fn: optimizers.OptimizerOrKerasFn,
  server_optimizer_fn: optimizers.OptimizerOrKerasFn | None = None,
  **options: Unpack[learning_process.Options],
) -> tff.learning.templates.LearningProcess:
  """Builds FedProx (Li et al. 2020, "Federated optimization in heterogeneous networks").

  Clients minimise F_i(w) + mu / 2 |w - w0|^2, with w0 the round's weights and mu,
  `proximal_strength`, >= 0; 0 is FedAvg. With a single local step that is FedAvg bit for bit, as
  the penalty has no gradient at w0. The other arguments are those of `Options`.

  Args:
    model_fn: See `Options`.
    proximal_strength: mu, >= 0; 0 is FedAvg.
    client_optimizer_fn: See `Options`.
    server_optimizer_fn: See `Options`.
    **options: See `Options`.

  Returns:
    A `tff.learning.templates.LearningProcess`, as of `build_fed_avg`.

  Raises:
    TypeError: If an argument is unknown, or not of its documented type.
    ValueError: If `proximal_strength` is negative, or a number of the options is out of its range.
  """
  return learning_process.build(
    model_fn,
    client_optimizer_fn,
    server_optimizer_fn,
    options,
    hooks=client_work.ClientHooks(proximal_strength=proximal_strength),
  )
