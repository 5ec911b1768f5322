"""The flags that single tasks have: of each a part, which a request of the task has within it.

A task from outside names the class of its own as `Task.flags`.
"""

from __future__ import annotations

import dataclasses
import importlib
import math

from privacy.settings import flag
from privacy.settings import part

# How a central table may be cut into simulated clients.
DIRICHLET, FEATURE = "dirichlet", "feature"
_NUM_SIMULATED = 100


def parse_partition(name: str, text: str) -> tuple[str, str]:
  """Returns kind and value of --partition; a `ValueError` unless it is one."""
  kind, _, value = text.partition(":")
  value = value.strip()
  if kind == FEATURE and value:
    return kind, value
  try:
    alpha = float(value)
  except ValueError:
    alpha = math.nan
  if kind != DIRICHLET or not 1e-3 <= alpha <= 1e6:  # This refuses NaN, too.
    raise ValueError(
      f"Found {name}={text}; expected {DIRICHLET}:ALPHA with a number from 0.001 to 1000000, such"
      f" as {DIRICHLET}:0.3, or {FEATURE}:COLUMN."
    )
  return kind, value


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskFlags(part.Part):
  """Of a task that has none; the base of those of a task from outside that reads no files."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileFlags(part.Part):
  """Of a task that reads files of users."""

  data_dir: str = flag.field(
    "",
    "EMNIST: LEAF's directory with train/ and test/, TFF's emnist_all.sqlite or .sqlite.lzma, or"
    " Hugging Face's flwrlabs/femnist (.parquet). Sent140: LEAF's directory, Stanford's CSV, or"
    " Hugging Face's stanfordnlp/sentiment140 (.parquet). Shakespeare: LEAF's directory, or TFF's"
    " shakespeare_train.h5. Empty to download the public files of these. Own: a .csv, .tsv, .csv.gz"
    " or .parquet file, or a folder of such files.",
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class WordFlags(FileFlags):
  """Of a task of words, which are vectors."""

  glove: str = flag.field(
    "",
    "Sent140: GloVe's file of word vectors; empty for glove.6B.50d.txt, beside the data or"
    " downloaded.",
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableFlags(FileFlags):
  """Of a table of the user's own."""

  client_column: str | None = flag.field(
    None,
    "Own: the column whose values are the clients; None for a folder with a file for each client.",
  )
  partition: str | None = flag.field(
    None,
    "Own: cuts a central table without clients into simulated ones, in the place of"
    " --client_column: dirichlet:0.3, by the labels, with each class's shares of the clients drawn"
    " from Dirichlet(0.3), or feature:COLUMN, by a column's values, or ranges of its numbers, which"
    " the model then does not read. It follows from --split_seed, or 0. Not in private runs, as"
    " such clients are nobody.",
    rule=parse_partition,
  )
  simulated_clients: int | None = flag.field(
    None,
    "Own: with --partition the number of clients, or of a column's ranges; None for 100.",
    least=3,
    most=(10**6, "each is a file"),
  )
  label_column: str | None = flag.field(
    None,
    "Own: the column that is to be predicted.",
  )
  features: str | None = flag.field(
    None,
    "Own: the columns that the model reads, separated by commas; None for all others.",
  )
  drop_columns: str | None = flag.field(
    None,
    "Own: columns that the model does not read, separated by commas, instead of --features.",
  )
  rows_without_label: str | None = flag.field(
    None,
    "Own: whether a table with rows without a label is refused, or these are left out (drop); None"
    " for refuse.",
    choices=("refuse", "drop"),
  )
  rows_without_client: str | None = flag.field(
    None,
    "Own: whether a table with rows without a client is refused, or these are left out (drop); None"
    " for refuse.",
    choices=("refuse", "drop"),
  )
  separator: str | None = flag.field(
    None,
    "Own: the character between values, or tab; None for a comma, semicolon, tab or vertical bar,"
    " as the names of the columns tell.",
  )
  missing: str | None = flag.field(
    None,
    "Own: what stands for a missing value besides nothing, NA and the like, separated by commas,"
    " such as -999,unknown.",
  )
  label_kind: str | None = flag.field(
    None,
    "Own: labels are classes, or a number to be predicted with the squared loss; None for number"
    " where labels are not whole, or more than 100 different numbers.",
    choices=("classes", "number"),
  )
  classes: str | None = flag.field(
    None,
    "Own: the classes, separated by commas; None for those that are found, in a private run among"
    " the test and validation clients, whose others are left out of training.",
  )
  model: str | None = flag.field(
    None,
    "Own: a linear model, or one with a hidden layer of 64 units (mlp); None for linear.",
    choices=("linear", "mlp"),
  )
  held_out_examples: float = flag.field(
    0.0,
    "Own: fraction of each client's rows that are held out and tested on, in the place of test"
    " clients: how the model serves the clients that it is trained on. 0 for test clients.",
    least=0.0,
    rule=flag.below_one,
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.simulated_clients is not None and self.partition is None:
      raise ValueError(
        f"Found --simulated_clients={self.simulated_clients} without --partition; give one, or"
        " leave it out: the clients are those of the table."
      )
    if self.partition is not None and self.client_column is not None:
      raise ValueError(
        f"Found --partition={self.partition} with --client_column={self.client_column}; expected"
        " one of them: simulated clients, or those that there are."
      )

  @property
  def num_simulated(self) -> int:
    """The number of clients that a partition is to have."""
    return self.simulated_clients or _NUM_SIMULATED

  @property
  def partition_column(self) -> str | None:
    """The column whose values make simulated clients; None for none."""
    kind, value = parse_partition("--partition", self.partition or f"{DIRICHLET}:1")
    return value if kind == FEATURE else None


class _OfTask(dict[str, type[part.Part]]):
  """Classes by the names of tasks; `table[name]` brings in a task from outside.

  Runs of a task that is not here are read, too; whoever needs the task itself says that it is not.
  """

  def __missing__(self, name: str) -> type[part.Part]:
    try:
      kind: type[part.Part] = importlib.import_module("tasks").get_task(name).flags
    except ValueError:
      return FileFlags
    self[name] = kind
    return kind

  def load(self, name: str | None) -> bool:
    """Brings in a task from outside; returns whether it is new."""
    if name is None or name in self:
      return False
    self.__missing__(name)
    return name in self


# By --task.
OF_TASK = _OfTask(
  synthetic=TaskFlags,
  emnist_linear=FileFlags,
  emnist_convnet=FileFlags,
  sent140_linear=WordFlags,
  sent140_lstm=WordFlags,
  shakespeare=FileFlags,
  own=TableFlags,
)
