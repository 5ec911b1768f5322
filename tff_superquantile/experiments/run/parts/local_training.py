"""The work of a client in a round. Importing this starts no TensorFlow."""

from __future__ import annotations

import dataclasses

from tff_superquantile.experiments.run.parts import flag
from tff_superquantile.experiments.run.parts import part
from tff_superquantile.experiments.run.parts import schedules


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalTraining(part.Part):
  """SGD on a client's own examples; None where the task decides."""

  learning_rate: float | None = flag.field(
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
    rule=flag.momentum,
    before="0.0",
  )
  schedule: schedules.Schedule = part.choice(
    "learning_rate_schedule",
    schedules.SCHEDULES,
    "How the local learning rate falls: by --learning_rate_decay after every --rounds_per_decay"
    " (step), or to 0 at the end of the run, along half a cosine (cosine) or a line (linear).",
    before="step",
  )
  epochs: int | None = flag.field(
    None,
    "Passes over local data; None for the task's own.",
    least=1,
    most=(10**6, "a client's work of a round cannot be interrupted"),
    name="local_epochs",
  )
  batch_size: int | None = flag.field(
    None,
    "Local batch size, 0 for all examples; None for the task's own.",
    least=0,
  )
  l2: float | None = flag.field(
    None,
    "lambda of lambda / 2 |w|^2; None for the task's own.",
    least=0.0,
  )
  weighting: str | None = flag.field(
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
    before="none",
  )


class Resolved(LocalTraining):
  """`LocalTraining` with the task's values."""

  learning_rate: float
  schedule: schedules.Resolved
  epochs: int
  batch_size: int
  l2: float
  weighting: str
