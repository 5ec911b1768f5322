"""The optimizers of the server. `SERVER_OPTIMIZERS` is the only place that knows their settings.

The server takes the average of the clients' updates for a negative gradient. SGD with learning rate
1 is FedAvg; the others are FedAdam, FedYogi and FedAdagrad of Reddi et al., "Adaptive Federated
Optimization", 2021, with the correction of the moments' bias that Adam and Yogi have in TFF.

In a private run the average is released with its noise, and the optimizer sees nothing else of the
clients: its steps and its state are post-processing, which costs no budget. Importing this starts
no TensorFlow.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import types
from typing import Any

Config = Any  # A `RunConfig`, whose choices of --server_optimizer are the rows here.

# tau of Reddi et al., who find that 1e-3 does well in all their experiments.
_ADAPTIVITY = 1e-3
_MOMENTS = types.MappingProxyType(dict(beta_1=0.9, beta_2=0.99, epsilon=_ADAPTIVITY))


@dataclasses.dataclass(frozen=True)
class ServerOptimizer:
  """A row of `SERVER_OPTIMIZERS`.

  Attributes:
    builder: The function of `tff.learning.optimizers` that builds it from a learning rate.
    learning_rate: The default of --server_learning_rate. An adaptive optimizer moves each weight
      by about so much a round, whatever the size of the updates.
    keywords: Further arguments of `builder`.
  """

  builder: str
  learning_rate: float
  keywords: Mapping[str, float] = dataclasses.field(default_factory=dict)


# The value of --server_optimizer, which names the folders of its runs, too.
SERVER_OPTIMIZERS: dict[str, ServerOptimizer] = {
  "sgd": ServerOptimizer("build_sgdm", 1.0),
  "adam": ServerOptimizer("build_adam", 0.01, _MOMENTS),
  "yogi": ServerOptimizer(
    "build_yogi", 0.01, {**_MOMENTS, "initial_preconditioner_value": _ADAPTIVITY**2}
  ),
  # TFF adds epsilon to the sum of squares, below the root. Steps shrink like t^-1/2.
  "adagrad": ServerOptimizer(
    "build_adagrad", 0.1, dict(initial_preconditioner_value=0.0, epsilon=_ADAPTIVITY**2)
  ),
}


def build(config: Config) -> Any:
  """Returns the `tff.learning.optimizers.Optimizer` of the server of a resolved config."""
  import tensorflow_federated as tff  # --help needs no TensorFlow.

  row = SERVER_OPTIMIZERS[config.server_optimizer]
  builder = getattr(tff.learning.optimizers, row.builder)
  return builder(config.server_learning_rate, **row.keywords)
