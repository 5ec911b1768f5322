"""The tasks of runs, without their data and models, which are in the files of `tasks/`.

Importing this starts no TensorFlow.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import pathlib
import re
from typing import Any

from privacy.settings import flag
from privacy.settings import part

_FORMATS = re.compile(r"\.(csv|csv\.gz|parquet)$")  # Of files with a table.


def _name(*names: str) -> Any:
  return flag.field(
    names[0] if names else ...,
    "The task: synthetic, emnist_linear, emnist_convnet, sent140_linear, sent140_lstm, shakespeare,"
    " or own, a table of yours.",
    name="task",
    flag_default="synthetic",
    choices=names,
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task(part.Part):
  """A task, and which of its clients a run takes.

  Attributes:
    name: Its name in `tasks/`.
  """

  name: str
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
  )
  client_split: str | None = flag.field(
    None,
    "Who is trained and who is tested on: by_id, as a hash of each client's id and the seed says;"
    " shuffled, by a permutation of all clients, as versions up to 0.2 did it. None for by_id, or"
    " for that of a run that goes on. The synthetic task has its own.",
    choices=("by_id", "shuffled"),
    before="shuffled",
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
    before="0",
  )

  @property
  def folder(self) -> str:
    """The name of the folder of its runs."""
    return self.name

  @property
  def title(self) -> str:
    """Its name for people."""
    return self.name

  @property
  def about(self) -> str:
    """What is predicted of whom, for the readers of a report; "" if its title says it."""
    return ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Synthetic(Task):
  """Generated clients, with the paper's linear model."""

  name: str = _name("synthetic")

  @property
  def about(self) -> str:
    return (
      "The task: generated points of 10 classes in 20 dimensions, 100 a client, and a linear model"
      " that tells the class. Training clients have several classes, each in other shares; test"
      " clients have mostly one. So a test client whose class the training clients seldom have, or"
      " that is like another, is served badly, and nobody sees it in the mean."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfFiles(Task):
  """A task whose data are files of the user's."""

  data_dir: str = flag.field(
    "",
    "EMNIST: LEAF's directory with train/ and test/, TFF's emnist_all.sqlite or .sqlite.lzma, or"
    " Hugging Face's flwrlabs/femnist (.parquet). Sent140: LEAF's directory, Stanford's CSV, or"
    " Hugging Face's stanfordnlp/sentiment140 (.parquet). Shakespeare: LEAF's directory, or TFF's"
    " shakespeare_train.h5. Empty to download the public files of these. Own: a .csv, .csv.gz or"
    " .parquet file, or a folder of such files.",
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Emnist(OfFiles):
  """Handwriting of writers."""

  name: str = _name("emnist_linear", "emnist_convnet")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shakespeare(OfFiles):
  """The next letter of the roles of plays."""

  name: str = _name("shakespeare")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sent140(OfFiles):
  """The sentiment of users' messages."""

  name: str = _name("sent140_linear", "sent140_lstm")
  glove: str = flag.field(
    "",
    "Sent140: GloVe's file of word vectors; empty for glove.6B.50d.txt, beside the data or"
    " downloaded.",
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Own(OfFiles):
  """A table of the user's."""

  name: str = _name("own")
  client_column: str | None = flag.field(
    None,
    "Own: the column whose values are the clients; None for a folder with a file for each client.",
  )
  label_column: str | None = flag.field(
    None,
    "Own: the column that is to be predicted.",
  )
  features: str | None = flag.field(
    None,
    "Own: the columns that the model reads, separated by commas; None for all others.",
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
    before="0.0",
  )

  @property
  def folder(self) -> str:
    if self.label_column is None:
      return self.name
    return f"{self.name}_{self._table[:100]}_{self.model or 'linear'}"

  @property
  def title(self) -> str:
    if self.label_column is None:
      return self.name
    return f"{self._table}, {self.label_column} ({self.model or 'linear'})"

  @property
  def _table(self) -> str:
    """The name of the table, that of its file or folder without the format."""
    return _FORMATS.sub("", pathlib.Path(self.data_dir).absolute().name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Other(Sent140, Own):
  """A task in a file of the user's below `tasks/`, which says itself what it reads."""

  name: str = _name()


# By the words that say when they are chosen.
TASKS: dict[str, type[Task]] = {
  "a task of yours": Other,
  "the task synthetic": Synthetic,
  "an EMNIST task": Emnist,
  "a Sent140 task": Sent140,
  "the task shakespeare": Shakespeare,
  "the task own": Own,
}


def _chosen(given: Mapping[str, Any]) -> str:
  name = given.get("task", "synthetic")
  words = (key for key, kind in TASKS.items() if name in part.own_flags(kind)["name"].choices)
  return next(words, next(iter(TASKS)))


def choice() -> Any:
  """Returns the field of a run's task."""
  return part.chosen_by(_chosen, TASKS, default=Synthetic())
