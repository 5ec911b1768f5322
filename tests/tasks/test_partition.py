"""Simulated clients of a central table, against numpy's own draws."""

import json

from helpers import own_tables
import numpy as np
import pytest

from privacy.settings import command_line
from tasks import own_flags
from tasks import request as request_lib
from tasks.own import partition
from tasks.own import values
from tff_superquantile.experiments import train
from tff_superquantile.experiments.config import flags as train_flags
from tff_superquantile.experiments.config import names
from tff_superquantile.experiments.config import run_config

_ROWS = 600


@pytest.fixture(scope="module")
def table(tmp_path_factory):
  """A table whose feature v tells every row apart; its labels and column u by row."""
  rng = np.random.default_rng(1)
  labels, ward = rng.choice(list("abc"), _ROWS, p=[0.6, 0.3, 0.1]), rng.choice(list("XYZW"), _ROWS)
  age = rng.integers(0, 50, _ROWS)
  lines = ["v,ward,age,outcome"]
  lines += [f"{i},{ward[i]},{age[i]},{labels[i]}" for i in range(_ROWS)]
  path = tmp_path_factory.mktemp("central") / "central.csv"
  path.write_text("\n".join(lines))
  return path, labels, ward, age


def _owners(path, **flags):
  """{client: its rows}, by the feature v, the first, of all splits."""
  task, splits = own_tables.load(path, client_column=None, features=None, **flags)
  found = {}
  for files in splits.values():
    x, _, offsets = files.load()
    rows = np.round(x[:, 0] * _spread(task)[1] + _spread(task)[0]).astype(int)
    for client, start, end in zip(files.client_ids, offsets, offsets[1:]):
      found[client] = sorted(rows[start:end].tolist())
  return found, task


def _spread(task):
  feature = json.loads(task.columns)["features"][0]
  return feature["mean"], feature["std"]


def test_dirichlet_against_numpy(table):
  path, labels, _, _ = table
  found, task = _owners(path, partition="dirichlet:0.3", simulated_clients=12, split_seed=5)
  rng, expected = np.random.default_rng(5), {}
  for label in sorted(set(labels)):
    rows = np.flatnonzero(labels == label)
    owners = rng.choice(12, len(rows), p=rng.dirichlet([0.3] * 12))
    for row, owner in zip(rows.tolist(), owners):
      expected.setdefault(f"simulated {owner:02d}", []).append(row)
  assert found == {client: sorted(rows) for client, rows in expected.items()}
  assert sorted(sum(found.values(), [])) == list(range(_ROWS))
  assert "simulated clients (dirichlet:0.3)" in task.description


def test_clients_are_those_of_the_split_seed_and_of_no_other(table):
  path = table[0]
  asked = dict(partition="dirichlet:0.3", simulated_clients=12)
  first, other_seed = _owners(path, **asked)[0], _owners(path, seed=3, **asked)[0]
  other_split = _owners(path, split_seed=3, **asked)[0]
  assert first == other_seed != other_split


@pytest.mark.parametrize("alpha, least, most", [(0.01, 0.9, 1.0), (1000.0, 0.5, 0.7)])
def test_small_alpha_leaves_few_classes_to_a_client(alpha, least, most):
  classes = np.random.default_rng(0).integers(0, 2, 20_000)
  owners = partition.dirichlet(classes, 50, alpha, np.random.default_rng(1))
  counts = np.array([np.bincount(classes[owners == i], minlength=2) for i in range(50)])
  share = np.mean([max(c) / sum(c) for c in counts if sum(c)])
  assert least <= share <= most


def test_each_value_of_a_column_is_a_client_which_the_model_does_not_read(table):
  path, _, ward, _ = table
  found, task = _owners(path, partition="feature:ward")
  assert found == {name: np.flatnonzero(ward == name).tolist() for name in "XYZW"}
  assert '"ward"' not in task.columns and '"age"' in task.columns


def test_numbers_are_cut_into_ranges_of_like_size(table):
  path, _, _, age = table
  found, _ = _owners(path, partition="feature:age", simulated_clients=5)
  spans = sorted((int(age[rows].min()), int(age[rows].max()), len(rows)) for rows in found.values())
  assert len(spans) == 5
  assert all(a[1] < b[0] for a, b in zip(spans, spans[1:])), "ranges overlap"
  assert all(abs(size - _ROWS / 5) < 30 for *_, size in spans)


def test_rows_without_a_value_are_clients_of_their_own():
  column = values.Column.of("u", [3, 1, None, 2, 4, None])
  ranges = ["simulated 1", "simulated 0", "(none)", "simulated 0", "simulated 1", "(none)"]
  assert partition.by_value(column, 2) == ranges
  assert partition.by_value(column, 4) == ["3", "1", "(none)", "2", "4", "(none)"]


def _forms(numbers):
  """The same numbers, as programs and as people write them."""
  texts = [f"{number:.2f}" for number in numbers]
  return texts, [text.replace(".", ",") for text in texts], [f"{text} mg" for text in texts]


def test_numbers_are_those_that_a_model_reads():
  numbers = np.random.default_rng(0).permutation(1000) / 4
  expected = [f"simulated {int(number // 25)}" for number in numbers]
  for texts in _forms(numbers):
    assert partition.by_value(values.Column.of("u", texts), 10) == expected
  # Another column says whether 1.250 is less than 2.
  columns = {"u": ["1.250", "2", "3", "4"], "v": ["0,5"] * 4, "y": list("abab")}
  frame = {name: values.Column.of(name, texts) for name, texts in columns.items()}
  flags = own_flags.TableFlags(partition="feature:u", simulated_clients=3)
  for seen, first in (("uv", 2), ("u", 0)):
    assert partition.assign(flags, frame, "y", seen, 0)[0] == f"simulated {first}"
  # Codes are names, and 1 and 1.0 are one number.
  assert len(set(partition.by_value(values.Column.of("u", ["300", "3E2", "3E3", "301"]), 3))) == 4
  twice = partition.by_value(values.Column.of("u", ["1", "1.0", "?", "2"]), 3)
  assert twice == ["1", "1", "(none)", "2"]


@pytest.mark.parametrize("kind, width", [(None, 1), (None, 40), ("number", 1)])
def test_labels_that_are_numbers_are_cut_however_they_are_written(kind, width):
  flags = own_flags.TableFlags(
    partition="dirichlet:0.05", simulated_clients=10, label_kind=kind, rows_without_label="drop"
  )
  numbers = np.random.default_rng(0).permutation(1000) // width / 4

  def owners(texts):
    frame = {"y": values.Column.of("y", [*texts, None])}
    return partition.assign(flags, frame, "y", [], 3)[:-1]

  plain, *others = map(owners, _forms(numbers))
  assert all(plain == other for other in others)
  of_client = [numbers[np.array(plain) == client] for client in set(plain)]
  between = sum(len(own) * (own.mean() - numbers.mean()) ** 2 for own in of_client)
  assert between > 0.3 * numbers.var() * len(numbers)


def test_labels_that_are_numbers_are_cut_into_levels():
  frame = {"y": values.Column.of("y", [f"{i}.5" for i in range(1000)])}
  flags = own_flags.TableFlags(partition="dirichlet:0.001", simulated_clients=40)
  owners = np.array([int(name[-2:]) for name in partition.assign(flags, frame, "y", [], 0)])
  of_levels = [np.bincount(level, minlength=40) for level in owners.reshape(10, 100)]
  assert np.mean([max(counts) for counts in of_levels]) > 80  # Nearly all are of one client.
  assert len({counts.argmax() for counts in of_levels}) > 4


def test_a_table_without_a_label_is_refused():
  flags = own_flags.TableFlags(partition="dirichlet:1", rows_without_label="drop")
  with pytest.raises(ValueError, match="no class, in column 'y'; expected two"):
    partition.assign(flags, {"y": values.Column.of("y", [None])}, "y", [], 0)


_REFUSED = {
  "--partition=dirichlet": "expected dirichlet:ALPHA",
  "--partition=dirichlet:0": "expected dirichlet:ALPHA",
  "--partition=dirichlet:nan": "expected dirichlet:ALPHA",
  "--partition=dirichlet:-1": "expected dirichlet:ALPHA",
  "--partition=feature:": "or feature:COLUMN",
  "--partition=random:3": "or feature:COLUMN",
  "--partition=dirichlet:1 --client_column=site": "expected one of them",
  "--simulated_clients=9": "without --partition",
  "--partition=dirichlet:1 --simulated_clients=2": "at least 3",
}


@pytest.mark.parametrize("arguments", _REFUSED)
def test_bad_values_are_one_sentence(arguments, capsys):
  flags = ["--task=own", "--data_dir=t.csv", "--label_column=y", *arguments.split()]
  with pytest.raises((ValueError, SystemExit)) as error:
    run_config.from_values(**train_flags.values(command_line.parse(train, flags)))
  said = str(error.value) if error.type is ValueError else capsys.readouterr().err
  assert _REFUSED[arguments] in said


def test_a_private_run_refuses_clients_who_are_nobody():
  with pytest.raises(ValueError, match="in a private run; expected none: simulated clients"):
    run_config.from_values(
      task="own", data_dir="t.csv", label_column="y", partition="dirichlet:1", epsilon=3.0
    ).request()


def test_simulated_clients_are_named_so():
  config = run_config.from_values(
    task="own", data_dir="t.csv", label_column="y", partition="dirichlet:0.3"
  )
  assert names.task_folder(config) == "own_t_linear_simulated_dirichlet_0.3_100"
  assert "simulated clients (dirichlet:0.3)" in names.task_title(config)
  assert "not of persons" in config.task.about and not request_lib.Request().about.count("cut")
