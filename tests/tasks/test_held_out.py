"""What a run on a table is tested on: clients of a fold, or rows of each client."""

import json

from helpers import own_tables
import numpy as np
import pytest

import tasks
from tasks import own_flags
from tasks import request as request_lib

_SIZES = (1, 2, 5, 10, 40)


@pytest.fixture
def table(tmp_path):
  """Writes a table of five clients, whose feature tells every row apart."""
  rng = np.random.default_rng(0)
  rows = [(f"c{i}", v) for i, size in enumerate(_SIZES) for v in rng.normal(i, 1.0, size)]
  rng.shuffle(rows)
  lines = ["site,outcome,v", *(f"{c},{int(float(v) > 2)},{float(v)!r}" for c, v in rows)]
  (tmp_path / "t.csv").write_text("\n".join(lines))
  values = {f"c{i}": [float(v) for c, v in rows if c == f"c{i}"] for i in range(len(_SIZES))}

  return tmp_path / "t.csv", values


def _load(path, **options):
  """Returns the clients of each split with the values of their rows, and the feature's mean."""
  task, splits = own_tables.load(path, **options)
  (feature,) = json.loads(task.columns)["features"]
  found = {}
  for split, files in splits.items():
    x, _, offsets = files.load()
    values = x[:, 0].astype(np.float64) * feature["std"] + feature["mean"]
    spans = zip(files.client_ids, offsets, offsets[1:])
    found[split] = {client: sorted(values[start:end]) for client, start, end in spans}
  return found, feature["mean"]


@pytest.mark.parametrize("seed", [0, 7])
def test_every_row_is_trained_on_or_tested_on(table, seed):
  path, values = table
  found, mean = _load(path, held_out_examples=0.3, seed=seed)
  assert set(found["train"]) == set(values)
  assert set(found["test"]) == set(values) - {"c0"}, "a single row is not tested on"
  for client, own in values.items():
    tested = found["test"].get(client, [])
    together = sorted([*found["train"][client], *tested])
    assert together == pytest.approx(sorted(own), abs=1e-5)
    if len(own) > 1:
      assert len(tested) == min(max(round(0.3 * len(own)), 1), len(own) - 1)
  trained = [value for own in found["train"].values() for value in own]
  assert mean == pytest.approx(np.mean(trained), abs=1e-5), "held-out rows moved the encoding"


def test_which_rows_are_held_out_follows_from_the_seed(table):
  path, _ = table
  first, again, other = (
    _load(path, held_out_examples=0.3, seed=seed)[0]["test"]["c4"] for seed in (0, 0, 1)
  )
  assert first == again
  assert first != other


def test_a_fold_is_not_read_from_the_cache_of_another_split(table):
  path, _ = table
  means = []
  for options in ({}, {"folds": 5}, {"folds": 2}, {"held_out_examples": 0.5}):
    found, mean = _load(path, seed=1, **options)
    trained = [value for own in found["train"].values() for value in own]
    assert mean == pytest.approx(np.mean(trained), abs=1e-5), options
    means.append(mean)
  assert len(set(means)) == len(means)


def test_other_tasks_have_no_use_for_it():
  request = request_lib.Request(own=own_flags.TableFlags(held_out_examples=0.2))
  with pytest.raises(ValueError, match="--held_out_examples=0.2 for synthetic"):
    tasks.get_task("synthetic").load_clients(request)
