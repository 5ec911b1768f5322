"""Defines a task: client data, a model and the defaults of its experiment.

To add a task, add one file to this package, say `tasks/weather.py`, that defines a tuple `TASKS`;
nothing else has to know of it:

    def _open_clients(request):
      directory = os.path.join(request.cache_dir, "weather_v1")
      return [client_files.open_or_write_client_files(directory, _make_stations)]

    TASKS = (
      task.Task(
        name="weather",
        build_model=lambda seed: models.build_linear_classifier(_SPEC, 4, intercept=True),
        open_clients=_open_clients,
        defaults=dict(num_rounds=500, ...),  # Each of STATED.
      ),
    )
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import types

import tensorflow_federated as tff

from privacy.settings import part
from tasks import data_set as data_set_lib
from tasks import own_flags
from tasks import preprocessing as preprocessing_lib
from tasks import request as request_lib
from tasks import splits
from tff_superquantile.simulation import client_files

# The defaults that every task states; a run checks them as it checks its flags.
STATED = (
  "num_rounds",
  "clients_per_round",
  "client_learning_rate",
  "batch_size",  # 0: the whole local data set is one batch.
  "rounds_per_evaluation",
  "max_loss",  # B: private thresholds tell losses apart up to here.
)
# Those of tasks that do not state them.
USUAL: Mapping[str, int | float | str] = types.MappingProxyType(
  dict(
    local_epochs=1,
    l2=0.0,  # lambda of the paper's (lambda / 2) ||w||^2.
    client_weighting="num_examples",  # Or "uniform".
    learning_rate_decay=1.0,  # Factor, in every `rounds_per_decay` rounds.
    rounds_per_decay=1,
  )
)
ERRORS = ("misclassification", "rmse")  # As in `tff_superquantile.evaluation`.

Request = request_lib.Request


@dataclasses.dataclass(frozen=True)
class Task:
  """A learning task over clients.

  Attributes:
    name: The name of `--task`.
    build_model: Takes a seed, returns a `tff.learning.models.FunctionalModel` whose initial weights
      follow from that seed alone. See also `model_takes_clients`.
    open_clients: Takes a `Request`, whose `min_examples_per_client` is the task's own unless the
      user gave another. Returns all clients, in pools that `split` takes.
    defaults: The value of each of `STATED`, and others than those of `USUAL`.
    open_standin: Opens generated data with the shapes of the real one, as `open_clients` does. None
      if the task has none.
    split: How pools become the clients to train on and to test on. Or a function that takes the
      pools and the split's seed, and returns the clients to train on, to test on and, if the task
      has its own, to validate on, each in the order in which a run takes them. In private runs on
      users' files, a client's place must not follow from the others'.
    data_set: The files of users that `open_clients` reads, for those who look for them; None if it
      reads none.
    flags: The class of the flags that this task alone has, a part of its requests (`own_flags`).
    min_examples: Clients with fewer examples are dropped unless the request says otherwise; 0 if
      the task keeps all, and refuses to be told otherwise. See `protects`.
    clients_per_split: Number of training clients, and of test clients, unless the request says
      otherwise; 0 for all, which are taken also if there are fewer. See `protects`.
    model_takes_clients: Whether `build_model` also takes `clients`, the `ClientFiles` of a split,
      as a keyword; for models whose size follows from the user's files. Without it, such a model is
      that of the paper.
    labels: The names of the classes; empty for their numbers.
    preprocessing: Takes a `Request`, returns what an exported model does with an example as people
      have it, without reading any client's data. None if people have the model's input itself.
    label_scale: Mean and standard deviation of labels that are numbers, (y - mean) / std being what
      the model predicts; None for classes.
    error: The error of a client, one of `ERRORS`: the fraction of misclassified examples, or the
      root mean squared error of labels that are numbers. Such labels have standard deviation one,
      so an error of one is that of predicting their mean.
    metric: The measure that reports lead with, and by which runs choose, unless the user names one:
      one of `tff_superquantile.measures.NAMES`; None for the error.
    most_rounds: The most rounds of runs that end by convergence, as those without --num_rounds do;
      0 where all runs have the number among the defaults.
    adapt: Takes a request, returns the task for the clients that it asks for, where model and
      defaults follow from the user's files; None where they do not.
    description: What was found in the user's files, for people; "" where there is nothing to say.
    remarks: Sentences of the description that belong beside any result on these files.
    data_digest: Identifies the user's data: results on others cannot be compared; "" for none.
    columns: What the columns of the user's table became, as JSON, which a run keeps and brings back
      as `Request.columns`: without a `data_dir` that is all that model and preprocessing need. ""
      where nothing follows from the user's data.
  """

  name: str
  build_model: Callable[..., tff.learning.models.FunctionalModel]
  open_clients: Callable[[Request], splits.Pools]
  defaults: Mapping[str, int | float | str]
  open_standin: Callable[[Request], splits.Pools] | None = None
  split: splits.Split | Callable[[splits.Pools, int], splits.Pools] = splits.Split()
  data_set: data_set_lib.DataSet | None = None
  flags: type[part.Part] = own_flags.TaskFlags
  min_examples: int = 0
  clients_per_split: int = 0
  model_takes_clients: bool = False
  labels: Sequence[str] = ()
  preprocessing: Callable[[Request], preprocessing_lib.Preprocessing] | None = None
  label_scale: tuple[float, float] | None = None
  error: str = "misclassification"
  metric: str | None = None
  most_rounds: int = 0
  adapt: Callable[[Request], "Task"] | None = None
  description: str = ""
  remarks: Sequence[str] = ()
  data_digest: str = ""
  columns: str = ""

  def __post_init__(self) -> None:
    defaults = {**USUAL, **self.defaults}
    if differing := set(defaults) ^ {*STATED, *USUAL}:
      raise ValueError(
        f"Task {self.name!r} has defaults that differ from what a task states in"
        f" {sorted(differing)}; state each of {sorted(STATED)}."
      )
    if self.error not in ERRORS:
      raise ValueError(
        f"Task {self.name!r} has error = {self.error!r}; expected one of {', '.join(ERRORS)}."
      )
    object.__setattr__(self, "defaults", types.MappingProxyType(defaults))

  def protects(self, request: Request) -> bool:
    """Returns whether nothing that a run is given may follow from two clients' data together.

    It is so in private runs on users' files. Who trains, and with which examples, then is a
    function of each client's own id and data: all training clients are taken, and those with too
    few examples are members without examples.
    """
    return request.keeps_apart and issubclass(self.flags, own_flags.FileFlags)

  @property
  def follows_client_split(self) -> bool:
    """Whether clients are split as a request's `client_split` says."""
    return isinstance(self.split, splits.Split)

  def load_clients(self, request: Request) -> dict[str, client_files.ClientFiles]:
    """Loads the clients of a run: "train", "test" and, if there are any, "validation"."""
    least = request.min_examples_per_client or self.min_examples
    open_clients = self.opener(request)
    request = dataclasses.replace(request, min_examples_per_client=least)
    return self.split_clients(open_clients(request), request)

  def all_clients(self, request: Request) -> splits.Pools:
    """Opens all clients of the data, among whom a run chooses, in pools that `split` takes."""
    least = request.min_examples_per_client or 1
    open_clients = self.opener(request)
    pools = open_clients(dataclasses.replace(request, min_examples_per_client=least))
    return [splits.drop_small_clients(pool, least) for pool in pools]

  def for_request(self, request: Request) -> "Task":
    """Returns the task for the clients that a run asks for, with its own model and defaults."""
    self.opener(request)
    return self if self.adapt is None else self.adapt(request)

  def split_clients(
    self, pools: splits.Pools, request: Request
  ) -> dict[str, client_files.ClientFiles]:
    """Chooses a run's clients from pools of all, as `load_clients` does."""
    is_apart = self.protects(request)
    return splits.choose(pools, request, self._split, self.clients_per_split, is_apart)

  def _split(self, pools: splits.Pools, request: Request) -> splits.Pools:
    if isinstance(self.split, splits.Split):
      return self.split.apply(pools, request)
    if request.folds:
      raise ValueError(
        f"Found --folds={request.folds} for {self.name}, whose test clients are its own; leave it"
        " out."
      )
    return self.split(pools, request.seed_of_split)

  def opener(self, request: Request) -> Callable[[Request], splits.Pools]:
    """Returns `open_clients` or `open_standin`; a `ValueError` if it has no use for a value."""
    opener = self.open_standin if request.is_standin else self.open_clients
    if opener is None:
      raise ValueError(
        f"Found --data=standin for {self.name}, which has no stand-in; leave it out."
      )
    is_read = isinstance(request.own, self.flags) and not request.is_standin
    useless = {} if is_read else part.values(request.own)
    if request.is_standin or not self.min_examples:
      useless["min_examples_per_client"] = request.min_examples_per_client
    for name in (name for name, value in useless.items() if value):
      with_standin = " with --data=standin" if request.is_standin else ""
      raise ValueError(
        f"Found --{name}={useless[name]} for {self.name}{with_standin}, which has no use for it;"
        " leave it out."
      )
    return opener

  def build_model_for(
    self, files: client_files.ClientFiles | preprocessing_lib.Preprocessing, seed: int
  ) -> tff.learning.models.FunctionalModel:
    """Builds the task's model for any split of `load_clients`, or for the task's preprocessing."""
    if self.model_takes_clients:
      return self.build_model(seed, clients=files)
    return self.build_model(seed)
