"""What a task is: client data, a model for it and the defaults of its experiment.

To add a task, add one file to this package, say `tasks/weather.py`, that defines a tuple `TASKS`;
nothing else has to know of it:

    def _load_clients(*, data_dir, cache_dir, seed):
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
import inspect
import types
from typing import Any, Optional, Union

import numpy as np
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


# The keyword arguments of `Task.load_clients`.
LOAD_ARGUMENTS = (
  *("data_dir", "cache_dir", "seed", "num_train_clients", "num_test_clients"),
  *("validation_fraction", "glove", "min_examples_per_client"),
)
# Those that mean something to the run whether its task takes them or not.
_OF_ANY_TASK = ("cache_dir", "seed")


@dataclasses.dataclass(frozen=True)
class Task:
  """A learning task over clients.

  Attributes:
    name: What users call it.
    build_model: Takes a seed, returns a `tff.learning.models.FunctionalModel` whose initial weights
      follow from that seed alone. See also `model_takes_input_spec`.
    load_clients: Returns the splits "train", "test" and, if it has one, "validation", each a
      `client_files.ClientFiles`. Takes those of these keyword arguments that it has a use for, and
      names them: a flag that it does not take is refused where it is given.
        data_dir: Where the user's files are; "" to download, or if the task makes its own.
        cache_dir: Where converted files are kept for the next run.
        seed: Of the choice of clients and of whatever else the split draws.
        num_train_clients, num_test_clients: How many; 0 for the task's own number.
        validation_fraction: Fraction of the training clients that is held out as "validation".
        glove: File of word vectors; "" for one that lies where the data is. For text.
        min_examples_per_client: Clients with fewer are dropped; 0 for the task's own number.
    defaults: Value of each key of `DEFAULTS`.
    load_standin: As `load_clients`, of generated data with the shapes of the real one, for whoever
      asks for it by name. None if the task has none.
    model_takes_input_spec: Whether `build_model` also takes `input_spec`, the structure of
      `tf.TensorSpec`s of a batch, as a keyword; for models whose size follows from the user's
      files. Without it, such a model is that of the paper.
  """

  name: str
  build_model: Callable[..., tff.learning.models.FunctionalModel]
  load_clients: Callable[..., Mapping[str, client_files.ClientFiles]]
  defaults: Mapping[str, Union[int, float, str]]
  load_standin: Optional[Callable[..., Mapping[str, client_files.ClientFiles]]] = None
  model_takes_input_spec: bool = False

  def __post_init__(self) -> None:
    differing = set(self.defaults) ^ set(DEFAULTS)
    if differing:
      raise ValueError(
        f"Task {self.name!r} has defaults that differ from what a task states in"
        f" {sorted(differing)}; state each of {sorted(DEFAULTS)}."
      )
    for key, (value_type, least) in DEFAULTS.items():
      value: Any = self.defaults[key]
      accepted: Any = (int, float) if value_type is float else value_type
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

  def load(
    self, arguments: Mapping[str, Any], standin: bool = False
  ) -> Mapping[str, client_files.ClientFiles]:
    """Calls `load_clients`, or `load_standin`, with those arguments that it takes.

    Args:
      arguments: Values of any of `LOAD_ARGUMENTS`.
      standin: Whether to load the stand-in.

    Returns:
      The splits.

    Raises:
      ValueError: If there is no stand-in, a value was given (neither 0 nor "") that the task does
        not take, or the data cannot be had.
    """
    load = self.load_standin if standin else self.load_clients
    if load is None:
      raise ValueError(
        f"Found --data=standin for {self.name}, which makes its own data; leave it out."
      )
    parameters = inspect.signature(load).parameters
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
      for name, value in arguments.items():
        if value and name not in (*parameters, *_OF_ANY_TASK):
          with_standin = " with --data=standin" if standin else ""
          raise ValueError(
            f"Found --{name}={value} for {self.name}{with_standin}, which has no use for it; leave"
            " it out."
          )
      arguments = {name: value for name, value in arguments.items() if name in parameters}
    return load(**arguments)

  def build_model_for(
    self, files: client_files.ClientFiles, seed: int
  ) -> tff.learning.models.FunctionalModel:
    """Builds the task's model for what `load_clients` or `load_standin` returned.

    Args:
      files: Any of the splits.
      seed: Of the initial weights.

    Returns:
      A `tff.learning.models.FunctionalModel`.
    """
    if self.model_takes_input_spec:
      return self.build_model(seed, input_spec=files.input_spec)
    return self.build_model(seed)


def check_arguments(
  *,
  seed: int,
  num_train_clients: int,
  num_test_clients: int,
  validation_fraction: float,
  min_examples_per_client: int = 0,
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
  if min_examples_per_client < 0:
    raise ValueError(
      f"Found min_examples_per_client = {min_examples_per_client}; expected a positive number, or 0"
      " for the task's own."
    )


def take_clients(
  client_ids: Sequence[str], count: int, own_number: int, kind: str, remark: str = ""
) -> list[str]:
  """The first clients of a split, as many as were asked for.

  Args:
    client_ids: All clients of the split, in the order in which they are taken.
    count: How many the user asked for; 0 for the task's own number.
    own_number: The task's own number; if there are fewer, all are taken.
    kind: What these clients are, for the error.
    remark: Why there are not more of them, for the error, see `client_files.ClientFiles`.

  Returns:
    The ids taken.

  Raises:
    ValueError: If more are asked for than there are.
  """
  if count > len(client_ids):
    raise ValueError(
      f"Found {len(client_ids)} {kind} clients{remark} but {count} were asked for; ask for at most"
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


def with_enough_examples(
  files: client_files.ClientFiles, min_examples: int
) -> client_files.ClientFiles:
  """The clients that have enough examples, with a remark on how many have not.

  Args:
    files: The clients.
    min_examples: Clients with fewer examples are left out.

  Returns:
    The files of the others.
  """
  ids = [i for i, n in zip(files.client_ids, files.num_examples) if n >= min_examples]
  dropped = len(files.client_ids) - len(ids)
  if not dropped:
    return files
  remark = (
    f", without the {dropped} of {len(files.client_ids)} clients that have fewer than"
    f" {min_examples} examples (--min_examples_per_client)"
  )
  return dataclasses.replace(files.subset(ids), remark=remark)


def shuffled_clients(rng: np.random.Generator, files: client_files.ClientFiles) -> list[str]:
  """The clients shuffled; the same whatever order the files had.

  Args:
    rng: The generator to draw from.
    files: The clients.

  Returns:
    Their ids.
  """
  ids = sorted(files.client_ids)
  return [ids[i] for i in rng.permutation(len(ids))]


def choose_clients(
  files: Sequence[client_files.ClientFiles],
  ids: Sequence[Sequence[str]],
  *,
  num_train_clients: int,
  num_test_clients: int,
  own_number: int,
  validation_fraction: float,
) -> dict[str, client_files.ClientFiles]:
  """The splits of a run: the first clients of two shuffled lists.

  Args:
    files: Of the training clients and of the test clients; may be the same twice.
    ids: All training clients and all test clients, either shuffled.
    num_train_clients: As in `Task.load_clients`.
    num_test_clients: As in `Task.load_clients`.
    own_number: The task's own number of either; if there are fewer, all are taken.
    validation_fraction: As in `Task.load_clients`.

  Returns:
    "train", "test" and, if the fraction is above zero, "validation".

  Raises:
    ValueError: If more are asked for than there are, or nobody is left to train on.
  """
  train = take_clients(ids[0], num_train_clients, own_number, "training", files[0].remark)
  test = take_clients(ids[1], num_test_clients, own_number, "test", files[1].remark)
  train, validation = hold_out(train, validation_fraction)
  splits = {"train": files[0].subset(train), "test": files[1].subset(test)}
  if validation:
    splits["validation"] = files[0].subset(validation)
  return splits
