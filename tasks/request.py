"""The clients that a run asks a task for; data and models are in the other files of `tasks/`."""

from __future__ import annotations

import dataclasses
import pathlib
import re
from typing import Any, TypeVar

from privacy.settings import flag
from privacy.settings import part
from tasks import own_flags

_Flags = TypeVar("_Flags", bound=part.Part)
# How clients are split: by the id of each, or by a permutation of all.
BY_ID, SHUFFLED = "by_id", "shuffled"
TABLE_FORMATS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")
_FORMATS = re.compile(f"({'|'.join(map(re.escape, TABLE_FORMATS))})$", re.IGNORECASE)
SIMULATED = (
  "Clients are simulated: --partition={partition} has cut a table without clients into them. So"
  " what is said of clients is of that cut, and not of persons, sites or devices."
)
# What is predicted of whom, for the readers of a report, where a title does not say it.
_ABOUT = {
  "synthetic": (
    "The task: generated points of 10 classes in 20 dimensions, 100 a client, and a linear model"
    " that tells the class. Training clients have several classes, each in other shares; test"
    " clients have mostly one. So a test client whose class the training clients seldom have, or"
    " that is like another, is served badly, and nobody sees it in the mean."
  ),
}


def table_name(path: str) -> str:
  """Returns a table's name, that of its file without the format, or of its folder.

  Args:
    path: The path of the file or folder, which need not exist.

  Returns:
    The name.
  """
  return _FORMATS.sub("", pathlib.Path(path).absolute().name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request(part.Part):
  """A task, and which of its clients a run takes: flags of the run, whose help describes them.

  Attributes:
    cache_dir: Where converted files are kept for the next run.
    seed: The run's seed, from which a generated task's data follow.
    is_private: Whether nothing that one training client computes may depend on another's data but
      by what the run releases.
    columns: What the columns of a table became in an earlier run, its `Task.columns`; "" to find it
      out from the table.
    name: The task's name in `tasks/`.
    own: The flags of this task alone, of its class in `own_flags.OF_TASK`; None for their defaults.
  """

  cache_dir: str = dataclasses.field(default="", kw_only=False)
  seed: int = 0
  is_private: bool = False
  columns: str = ""
  name: str = flag.field(
    "synthetic",
    "The task: synthetic, emnist_linear, emnist_convnet, sent140_linear, sent140_lstm, shakespeare,"
    " or own, a table of yours.",
    name="task",
  )
  data: str = flag.field(
    "files",
    "The task's own data, or a generated stand-in of the same shape, to try things out.",
    choices=("files", "standin"),
  )
  min_examples_per_client: int = flag.field(
    0,
    "Least number of examples; clients with fewer are dropped, or in a private run trained on"
    " without examples. 0 for the task's own.",
    least=0,
  )
  num_train_clients: int = flag.field(
    0,
    "Number of training clients; 0 for the task's own, or in a private run on your files, which"
    " takes no other, for all.",
    least=0,
  )
  num_test_clients: int = flag.field(
    0,
    "Number of test clients; 0 for the task's own.",
    least=0,
  )
  validation_fraction: float = flag.field(
    0.0,
    "Fraction of the training clients that is held out for tuning.",
    least=0.0,
    rule=flag.below_one,
  )
  client_split: str | None = flag.field(
    None,
    "Who is trained and who is tested on: by_id, as a hash of each client's id and the seed says;"
    " shuffled, by a permutation of all clients, not in a private run. None for by_id, or"
    " for that of a run that goes on. The synthetic task has its own.",
    choices=("by_id", "shuffled"),
  )
  split_seed: int | None = flag.field(
    None,
    "Seed of who is trained on, tested on and held out, where a task splits its clients. None for 0"
    " in a private run, so that runs of all seeds protect the same clients, and for --seed in"
    " others.",
    least=0,
    most=flag.SEEDS,
  )
  folds: int = flag.field(
    0,
    "Cross-validation over clients: they are cut into so many folds, and a run tests on the fold"
    " SEED mod FOLDS and trains on the others, so that the seeds 0 to FOLDS - 1 test on each client"
    " once; as many folds as clients leave one out at a time. 0 for a split into training and test"
    " clients.",
    least=0,
  )
  own: part.Part = part.chosen_by(
    lambda values: values.get("task") or "synthetic", own_flags.OF_TASK, chooser="task"
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.own is None:
      object.__setattr__(self, "own", own_flags.OF_TASK[self.name]())
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
    if self.is_private and self.partition:
      raise ValueError(
        f"Found --partition={self.partition} in a private run; expected none: simulated clients are"
        " nobody, as one person's rows may be in several, so that a guarantee for them would"
        " protect no person. Name the persons' column by --client_column."
      )
    for name, value in (("folds", self.folds), ("held_out_examples", self.held_out_examples)):
      if value and self.is_private:
        raise ValueError(
          f"Found --{name}={value} in a private run; expected none: it would test on the clients"
          " that are protected, and what is tested on is not."
        )

  def flags_of(self, kind: type[_Flags]) -> _Flags:
    """Returns the flags of its task alone, which are of that class."""
    assert isinstance(self.own, kind)
    return self.own

  @property
  def data_dir(self) -> str:
    """The user's files; "" for none, and for a task that reads none."""
    return getattr(self.own, "data_dir", "")

  @property
  def held_out_examples(self) -> float:
    """The fraction of each client's examples that are tested on; 0 for test clients."""
    return getattr(self.own, "held_out_examples", 0.0)

  @property
  def partition(self) -> str | None:
    """How a table without clients is cut into simulated ones; None where clients are real."""
    return getattr(self.own, "partition", None)

  @property
  def seed_of_split(self) -> int:
    """The seed of all that the split draws but for folds, which the run's own seed chooses."""
    return self.seed if self.split_seed is None else self.split_seed

  @property
  def is_shuffled(self) -> bool:
    """Whether clients are split by a permutation of all."""
    return self.client_split == SHUFFLED

  @property
  def keeps_apart(self) -> bool:
    """Whether each client of users' files is chosen and read by itself, as in private runs."""
    return self.is_private and not (self.is_standin or self.is_shuffled)

  @property
  def is_standin(self) -> bool:
    """Whether the run takes generated data with the shapes of the real one."""
    return self.data == "standin"

  @property
  def folder(self) -> str:
    """The name of the folder of its runs."""
    own = self.own
    if not isinstance(own, own_flags.TableFlags) or own.label_column is None:
      return self.name
    folder = f"{self.name}_{table_name(own.data_dir)[:100]}_{own.model or 'linear'}"
    if not own.partition:
      return folder
    return f"{folder}_simulated_{re.sub('[^A-Za-z0-9.]+', '_', own.partition)}_{own.num_simulated}"

  @property
  def title(self) -> str:
    """The task's name for people."""
    own = self.own
    if not isinstance(own, own_flags.TableFlags) or own.label_column is None:
      return self.name
    title = f"{table_name(own.data_dir)}, {own.label_column} ({own.model or 'linear'})"
    return f"{title}, simulated clients ({own.partition})" if own.partition else title

  @property
  def about(self) -> str:
    """What is predicted of whom, for the readers of a report; "" if the title says it."""
    if self.partition:
      return SIMULATED.format(partition=self.partition)
    return _ABOUT.get(self.name, "")


def of(cache_dir: str = "", name: str = "synthetic", **values: Any) -> Request:
  """Returns the request of a task with values of its fields and flags, the task's own among them.

  Args:
    cache_dir: Where converted files are kept.
    name: The task's name.
    **values: `seed`, `is_private`, `columns`, and flags by their names.

  Returns:
    The request.

  Raises:
    TypeError: There is no such field or flag.
    ValueError: The task has no use for a flag, or its value is none.
  """
  fields = {n: values.pop(n) for n in ("seed", "is_private", "columns") if n in values}
  flags = {"task": name, **values}
  if unknown := set(flags) - set(part.flags(Request)):
    raise TypeError(f"Found {min(unknown)!r}; expected the names of flags of a task.")
  return dataclasses.replace(part.build(Request, flags), cache_dir=cache_dir, **fields)
