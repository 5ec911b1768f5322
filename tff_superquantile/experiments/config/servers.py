"""The optimizers of the server.

The server takes the average of the clients' updates for a negative gradient. SGD with learning rate
1 is FedAvg; the others are FedAdam, FedYogi and FedAdagrad of Reddi et al., "Adaptive Federated
Optimization", 2021, with the correction of the moments' bias that Adam and Yogi have in TFF.

In a private run the average is released with its noise, and the optimizer sees nothing else of the
clients: its steps and its state are post-processing, which costs no budget. Importing this starts
no TensorFlow.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
import dataclasses
from typing import Any

from privacy.settings import flag
from privacy.settings import part

# tau of Reddi et al., who find that 1e-3 does well in all their experiments.
_ADAPTIVITY = 1e-3
_MOMENTS: Mapping[str, float] = dict(beta_1=0.9, beta_2=0.99, epsilon=_ADAPTIVITY)


def _learning_rate(default: float) -> Any:
  description = "Learning rate of the server; None for 1 (sgd), 0.01 (adam, yogi), 0.1 (adagrad)."
  return flag.field(
    default,
    description,
    name="server_learning_rate",
    flag_default=None,
    rule=flag.positive,
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Server(part.Part, abc.ABC):
  """An optimizer of the server.

  Attributes:
    averaged_rounds: K of `build_averaged`.
    learning_rate: Its learning rate. An adaptive optimizer moves each weight by about so much a
      round, whatever the size of the updates.
  """

  averaged_rounds: int = flag.field(
    1,
    "K of iterate averaging: the model that is evaluated and kept is a mean of the rounds' models,"
    " in which a model's weight falls by 1 / e in K rounds; clients train the last one. 1 for the"
    " last one alone.",
    least=1,
    symbol="mean over rounds",
    short="averaged",
  )
  learning_rate: float

  @abc.abstractmethod
  def build(self, optimizers: Any) -> Any:
    """Returns the `Optimizer` of `tff.learning.optimizers`, which --help has not imported."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sgd(Server):
  """FedAvg's."""

  learning_rate: float = _learning_rate(1.0)

  def build(self, optimizers: Any) -> Any:
    return optimizers.build_sgdm(self.learning_rate)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adam(Server):
  """FedAdam's."""

  learning_rate: float = _learning_rate(0.01)

  def build(self, optimizers: Any) -> Any:
    return optimizers.build_adam(self.learning_rate, **_MOMENTS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Yogi(Server):
  """FedYogi's."""

  learning_rate: float = _learning_rate(0.01)

  def build(self, optimizers: Any) -> Any:
    start = _ADAPTIVITY**2
    return optimizers.build_yogi(self.learning_rate, **_MOMENTS, initial_preconditioner_value=start)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adagrad(Server):
  """FedAdagrad's, whose steps shrink like t^-1/2."""

  learning_rate: float = _learning_rate(0.1)

  def build(self, optimizers: Any) -> Any:
    # TFF adds epsilon to the sum of squares, below the root.
    return optimizers.build_adagrad(
      self.learning_rate, initial_preconditioner_value=0.0, epsilon=_ADAPTIVITY**2
    )


# By the value of --server_optimizer, which names the folders of its runs, too.
SERVERS: dict[str, type[Server]] = {
  "sgd": Sgd,
  "adam": Adam,
  "yogi": Yogi,
  "adagrad": Adagrad,
}
