"""The engines that compute a run's rounds. Importing this starts no TensorFlow."""

from __future__ import annotations

import dataclasses

from privacy.settings import flag
from privacy.settings import part

# Rounds of more clients are computed in blocks of so many, whose updates fit in less than a GB.
BLOCK_SIZE = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class Engine(part.Part):
  """An engine."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class InProcess(Engine):
  """This process, with the whole cohort at once wherever that can be."""

  block_size: int | None = flag.field(
    None,
    "Largest number of clients whose updates are in memory at once, in this process: larger cohorts"
    " are computed in blocks and added up, which changes the last bits. 0 for no blocks; None for"
    f" {BLOCK_SIZE} if more clients are selected in a round.",
    least=0,
    before="0",
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ray(Engine):
  """The workers of a cluster."""

  ray_address: str = flag.field(
    "local",
    "With --engine=ray: local for workers on this machine, auto for the cluster that it belongs to,"
    " or HOST:PORT of a cluster's head.",
    may_idle=True,
    is_incidental=True,
  )
  num_blocks: int | None = flag.field(
    None,
    "With --engine=ray: number of blocks of a cohort, which decides the order of sums and so the"
    " last bits; None for the number of workers.",
    least=1,
  )
  threads_per_worker: int = flag.field(
    1,
    "With --engine=ray: cores that a worker takes, on which results of convolutions depend, too;"
    " None for 1.",
    least=1,
    flag_default=None,
  )
  worker_timeout: float = flag.field(
    600.0,
    "With --engine=ray: seconds after which a block that is not done goes to another worker.",
    least=1.0,
    may_idle=True,
    is_incidental=True,
  )


# By the value of --engine.
ENGINES: dict[str, type[Engine]] = {"in_process": InProcess, "ray": Ray}
