"""What a task is: client data, a model for it and the defaults of its experiment.

To add a task, add one file to this package, say `tasks/weather.py`, that defines a tuple `TASKS`;
nothing else has to know of it:

    def _load_clients(*, data_dir, cache_dir, seed, num_train_clients, num_test_clients,
                      validation_fraction):
      pool = client_files.open_or_write_client_files(
        os.path.join(cache_dir, "weather_v1"), lambda: _read_stations(data_dir))
      ids = np.random.default_rng(seed).permutation(pool.client_ids)
      ...
      return {"train": pool.subset(train_ids), "test": pool.subset(test_ids)}

    TASKS = (
      task.Task(
        name="weather",
        build_model=lambda seed: models.build_linear_classifier(_SPEC, 4, intercept=True),
        load_clients=_load_clients,
        defaults=dict(num_rounds=500, ...),  # Every key of task.DEFAULTS.
      ),
    )
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import types
from typing import Optional, Union

import tensorflow_federated as tff

from tff_superquantile.simulation import client_files

WEIGHTINGS = ("num_examples", "uniform")

# The defaults that every task states, with their type and least value.
DEFAULTS: Mapping[str, tuple[type, Optional[float]]] = types.MappingProxyType(
  {
    "num_rounds": (int, 1),
    "clients_per_round": (int, 1),
    "client_learning_rate": (float, 0.0),
    "batch_size": (int, 0),  # 0: the whole local data set is one batch.
    "local_epochs": (int, 1),
    "l2": (float, 0.0),  # lambda of the paper's (lambda / 2) ||w||^2.
    "client_weighting": (str, None),  # One of WEIGHTINGS.
    "learning_rate_decay": (float, 0.0),  # Factor; 1.0 for a constant rate.
    "rounds_per_decay": (int, 1),
    "rounds_per_evaluation": (int, 1),
    "max_loss": (float, 0.0),  # B: private thresholds tell losses apart up to here.
  }
)


@dataclasses.dataclass(frozen=True)
class Task:
  """A learning task over clients.

  Attributes:
    name: What users call it.
    build_model: Takes a seed, returns a `tff.learning.models.FunctionalModel` whose initial weights
      follow from that seed alone.
    load_clients: Returns the splits "train", "test" and, if it has one, "validation", each a
      `client_files.ClientFiles`. Takes these keyword arguments:
        data_dir: Where the user's files are; "" to download, or if the task makes its own.
        cache_dir: Where converted files are kept for the next run.
        seed: Of the choice of clients and of whatever else the split draws.
        num_train_clients, num_test_clients: How many; 0 for the task's own number.
        validation_fraction: Fraction of the training clients that is held out as "validation".
    defaults: Value of each key of `DEFAULTS`.
  """

  name: str
  build_model: Callable[[int], tff.learning.models.FunctionalModel]
  load_clients: Callable[..., Mapping[str, client_files.ClientFiles]]
  defaults: Mapping[str, Union[int, float, str]]

  def __post_init__(self):
    differing = set(self.defaults) ^ set(DEFAULTS)
    if differing:
      raise ValueError(
        f"Task {self.name!r} has defaults that differ from what a task states in"
        f" {sorted(differing)}; state each of {sorted(DEFAULTS)}."
      )
    for key, (value_type, least) in DEFAULTS.items():
      value = self.defaults[key]
      accepted = (int, float) if value_type is float else value_type
      if not isinstance(value, accepted) or isinstance(value, bool):
        raise ValueError(
          f"Task {self.name!r} has {key} = {value!r}; expected a {value_type.__name__}."
        )
      if least is not None and not value >= least:  # Also refuses NaN.
        raise ValueError(f"Task {self.name!r} has {key} = {value!r}; expected at least {least}.")
    if self.defaults["client_weighting"] not in WEIGHTINGS:
      raise ValueError(
        f"Task {self.name!r} has client_weighting = {self.defaults['client_weighting']!r}; expected"
        f" one of {WEIGHTINGS}."
      )
    object.__setattr__(self, "defaults", types.MappingProxyType(dict(self.defaults)))


def check_arguments(
  *, seed: int, num_train_clients: int, num_test_clients: int, validation_fraction: float
) -> None:
  """Checks those arguments of `Task.load_clients` that mean the same for every task.

  Raises:
    ValueError: If the seed or a number is negative, or the fraction is not in [0, 1).
  """
  if seed < 0:
    raise ValueError(f"Found seed = {seed}; expected a number that is not negative.")
  for name, value in (("train", num_train_clients), ("test", num_test_clients)):
    if value < 0:
      raise ValueError(
        f"Found num_{name}_clients = {value}; expected a positive number, or 0 for the task's own."
      )
  if not 0.0 <= validation_fraction < 1.0:
    raise ValueError(
      f"Found validation_fraction = {validation_fraction}; expected a fraction in [0, 1), 0 for"
      " none."
    )


def take_clients(client_ids: Sequence[str], count: int, own_number: int, kind: str) -> list[str]:
  """The first clients of a split, as many as were asked for.

  Args:
    client_ids: All clients of the split, in the order in which they are taken.
    count: How many the user asked for; 0 for the task's own number.
    own_number: The task's own number; if there are fewer, all are taken.
    kind: What these clients are, for the error.

  Returns:
    The ids taken.

  Raises:
    ValueError: If more are asked for than there are.
  """
  if count > len(client_ids):
    raise ValueError(
      f"Found {len(client_ids)} {kind} clients but {count} were asked for; ask for at most"
      f" {len(client_ids)}, or 0 for the task's own number."
    )
  return list(client_ids[: count or own_number])


def hold_out(client_ids: Sequence[str], fraction: float) -> tuple[list[str], list[str]]:
  """Splits training clients in (kept for training, held out for validation).

  Args:
    client_ids: The training clients, in random order: the last ones are held out.
    fraction: Fraction to hold out, in [0, 1); above 0 at least one client is.

  Returns:
    The two lists of ids.

  Raises:
    ValueError: If nobody is left to train on.
  """
  held_out = max(1, round(fraction * len(client_ids))) if fraction else 0
  if held_out >= len(client_ids):
    raise ValueError(
      f"Found validation_fraction = {fraction}, which holds out all {len(client_ids)} training"
      " clients; lower it or take more training clients."
    )
  kept = len(client_ids) - held_out
  return list(client_ids[:kept]), list(client_ids[kept:])
