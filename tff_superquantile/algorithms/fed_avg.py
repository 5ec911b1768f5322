"""Builds federated averaging, the baseline, on the local update path of every other algorithm."""

import tensorflow_federated as tff
from typing_extensions import Unpack

from tff_superquantile.algorithms import learning_process
from tff_superquantile.client_work import local_model
from tff_superquantile.client_work import optimizers


def build_fed_avg(
  model_fn: local_model.Model,
  client_optimizer_fn: optimizers.OptimizerOrKerasFn,
  server_optimizer_fn: optimizers.OptimizerOrKerasFn | None = None,
  **options: Unpack[learning_process.Options],
) -> tff.learning.templates.LearningProcess:
  """Builds federated averaging (McMahan et al. 2017), the paper's FedAvg.

  Its weights equal those of `tff.learning.algorithms.build_weighted_fed_avg`, round by round. It is
  several times faster, because no data set is iterated in a client's graph. On a random fraction
  theta of each cohort it is the paper's FedAvg-Sub.

  Args:
    model_fn: See `Options`.
    client_optimizer_fn: See `Options`.
    server_optimizer_fn: See `Options`.
    **options: See `Options`.
  """
  return learning_process.build(model_fn, client_optimizer_fn, server_optimizer_fn, options)
