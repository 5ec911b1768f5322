"""The clients that a run asks a task for."""

import dataclasses
from typing import Any

# Fields of a request, and flags, for which only some tasks have a use.
TABLE_FIELDS = (
  *("client_column", "label_column", "features", "label_kind", "classes", "model"),
  "held_out_examples",
)
OPTIONAL = ("data_dir", "glove", *TABLE_FIELDS)
# How clients are split: by the ids of each, or as versions up to 0.2 did it.
BY_ID, SHUFFLED = "by_id", "shuffled"


@dataclasses.dataclass(frozen=True)
class Request:
  """The clients that a run asks a task for. Most fields are the flags of their names.

  Attributes:
    cache_dir: Where converted files are kept for the next run.
    seed: The run's seed, from which a generated task's data follow; not negative.
    split_seed: Seed of the choice of clients and of all else that the split draws; None for `seed`.
    data_dir: Where the user's files are; "" to download, or if the task makes its own.
    glove: File of word vectors, for text; "" for one that lies where the data is.
    min_examples_per_client: Clients with fewer are dropped; 0 for the task's own number.
    num_train_clients: The number of clients to train on; 0 for the task's own number.
    num_test_clients: The number of clients to test on; 0 for the task's own number.
    validation_fraction: Fraction in [0, 1) of the training clients that is held out for validation.
    client_split: How clients are split, "by_id" or "shuffled"; None for by_id.
    folds: The number of folds of a cross-validation, of which the seed chooses the one that is
      tested on; 0 for no cross-validation.
    held_out_examples: Fraction in [0, 1) of each client's rows of a table that are tested on, in
      the place of test clients; 0 for test clients.
    client_column: The column of a table that names the clients; None for a folder with a file each.
    label_column: The column of a table that holds the labels.
    features: The columns of a table that a model reads, separated by commas; None for all others.
    label_kind: What labels are: "classes", "number", or None to tell by their values.
    classes: The classes of a table, separated by commas; None for those that are found.
    model: The model of a table, "linear" or "mlp"; None for linear.
    standin: Whether to take generated data with the shapes of the real one.
    is_private: Whether nothing that one training client computes may depend on another's data but
      by what the run releases.
    columns: What the columns of a table became in an earlier run, its `Task.columns`; "" to find it
      out from the table.
  """

  cache_dir: str
  seed: int = 0
  split_seed: int | None = None
  data_dir: str = ""
  glove: str = ""
  min_examples_per_client: int = 0
  num_train_clients: int = 0
  num_test_clients: int = 0
  validation_fraction: float = 0.0
  client_split: str | None = None
  folds: int = 0
  held_out_examples: float = 0.0
  client_column: str | None = None
  label_column: str | None = None
  features: str | None = None
  label_kind: str | None = None
  classes: str | None = None
  model: str | None = None
  standin: bool = False
  is_private: bool = False
  columns: str = ""

  def __post_init__(self) -> None:
    if self.seed < 0:
      raise ValueError(f"Found seed = {self.seed}; expected a number that is not negative.")
    for name in ("num_train_clients", "num_test_clients", "min_examples_per_client", "folds"):
      if getattr(self, name) < 0:
        raise ValueError(
          f"Found {name} = {getattr(self, name)}; expected a positive number, or 0 for the task's"
          " own."
        )
    self._check_tested()
    for name in ("validation_fraction", "held_out_examples"):
      if not 0.0 <= getattr(self, name) < 1.0:  # Also refuses NaN.
        raise ValueError(
          f"Found {name} = {getattr(self, name)}; expected a fraction in [0, 1), 0 for none."
        )

  def _check_tested(self) -> None:
    """Raises a `ValueError` unless it is clear on which examples the run may be tested."""
    if self.folds == 1 or self.folds and self.is_shuffled:
      expected = "a split by_id" if self.is_shuffled else "at least 2, or 0 for none"
      raise ValueError(f"Found --folds={self.folds}; expected {expected}.")
    if self.folds and self.split_seed is not None:
      raise ValueError(
        f"Found --split_seed={self.split_seed} with --folds={self.folds}, in which --seed chooses"
        " who is tested on; leave it out."
      )
    if self.folds and self.held_out_examples:
      raise ValueError(
        f"Found --folds={self.folds} and --held_out_examples={self.held_out_examples}; expected one"
        " of them: test clients, or test examples of each client."
      )
    for name, value in (("folds", self.folds), ("held_out_examples", self.held_out_examples)):
      if value and self.is_private:
        raise ValueError(
          f"Found --{name}={value} in a private run; expected none: it would test on the clients"
          " that are protected, and what is tested on is not."
        )

  @property
  def seed_of_split(self) -> int:
    """The seed of all that the split draws but for folds, which the run's own seed chooses."""
    return self.seed if self.split_seed is None else self.split_seed

  @property
  def is_shuffled(self) -> bool:
    """Whether clients are split as versions up to 0.2 did it."""
    return self.client_split == SHUFFLED

  @property
  def keeps_apart(self) -> bool:
    """Whether each client of users' files is chosen and read by itself, as in private runs.

    Runs that versions up to 0.2 began, by shuffling the clients, are excepted.
    """
    return self.is_private and not (self.standin or self.is_shuffled)

  @classmethod
  def of_run(cls, config: Any, columns: str = "") -> "Request":
    """Builds the request of a run from its config, whose flags have the same names."""
    names = {field.name for field in dataclasses.fields(cls)}
    shared = {name: value for name, value in config.values().items() if name in names}
    is_standin = config.task.data == "standin"
    return cls(standin=is_standin, is_private=config.is_private, columns=columns, **shared)
