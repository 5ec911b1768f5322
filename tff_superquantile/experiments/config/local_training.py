"""The work of a client in a round, and its learning rates by the round.

The rate of round t = 0, ..., T - 1 is gamma_t = gamma_0 f(t), with gamma_0 = --client_learning_rate
and the factor f of a schedule. Importing this starts no TensorFlow.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import Any, ClassVar

from privacy.settings import flag
from privacy.settings import part


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule(part.Part, abc.ABC):
  """How the local learning rate falls.

  Attributes:
    needs_num_rounds: Whether f depends on T, so that a run cannot be continued with another one.
  """

  needs_num_rounds: ClassVar[bool] = True

  @abc.abstractmethod
  def factor(self, t: Any, num_rounds: int, ops: Any) -> Any:
    """Returns f(t) in (0, 1] of round t, from 0, of T, a float or a float32 tensor."""

  @property
  def is_constant(self) -> bool:
    """Whether all rounds have the same learning rate."""
    return False


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepDecay(Schedule):
  """c^floor(t / t_0), the paper's; None where the task decides."""

  needs_num_rounds: ClassVar[bool] = False
  learning_rate_decay: float = flag.field(
    None,
    "Factor on the learning rate after every --rounds_per_decay; None for the task's own.",
    rule=flag.positive,
  )
  rounds_per_decay: int = flag.field(
    None, "Rounds between two decays of the learning rate; None for the task's own.", least=1
  )

  def factor(self, t: Any, num_rounds: int, ops: Any) -> Any:
    return ops.pow(self.learning_rate_decay, t // self.rounds_per_decay)

  @property
  def is_constant(self) -> bool:
    return self.learning_rate_decay == 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cosine(Schedule):
  """Half a cosine (Loshchilov and Hutter, "SGDR", 2017, without restarts)."""

  def factor(self, t: Any, num_rounds: int, ops: Any) -> Any:
    return 0.5 * (1.0 + ops.cos(math.pi * t / num_rounds))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Linear(Schedule):
  """A line to 0."""

  def factor(self, t: Any, num_rounds: int, ops: Any) -> Any:
    return 1.0 - t / num_rounds


# By the value of --learning_rate_schedule.
SCHEDULES: dict[str, type[Schedule]] = {"step": StepDecay, "cosine": Cosine, "linear": Linear}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Local(part.Part):
  """SGD on a client's own examples; None where the task decides."""

  learning_rate: float = flag.field(
    None,
    "Learning rate of the local SGD; None for the task's own.",
    name="client_learning_rate",
    rule=flag.positive,
  )
  momentum: float = flag.field(
    0.0,
    "Momentum of the local SGD, in [0, 1); it begins anew in each round.",
    least=0.0,
    name="client_momentum",
    rule=flag.below_one,
  )
  schedule: Schedule = part.choice(
    "learning_rate_schedule",
    SCHEDULES,
    "How the local learning rate falls: by --learning_rate_decay after every --rounds_per_decay"
    " (step), or to 0 at the end of the run, along half a cosine (cosine) or a line (linear).",
  )
  epochs: int = flag.field(
    None,
    "Passes over local data; None for the task's own.",
    least=1,
    most=(10**6, "a client's work of a round cannot be interrupted"),
    name="local_epochs",
  )
  batch_size: int = flag.field(
    None,
    "Local batch size, 0 for all examples; None for the task's own.",
    least=0,
  )
  l2: float = flag.field(
    None,
    "lambda of lambda / 2 |w|^2; None for the task's own.",
    least=0.0,
  )
  weighting: str = flag.field(
    None,
    "Weight of a client in the average and in the quantile; None for the task's own.",
    choices=("num_examples", "uniform"),
    name="client_weighting",
  )
  class_weights: str = flag.field(
    "none",
    "Weights of the classes in the training loss: none, or balanced, by the inverse of their"
    " frequency among the training clients' examples, in a private run among those of the test and"
    " validation clients. Losses of evaluations have no weights.",
    choices=("none", "balanced"),
    words={"balanced": "class weights"},
  )
