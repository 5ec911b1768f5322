"""Attacks on private runs on a table: one training client's rows are others, or none."""

from helpers import own_tables
import numpy as np
import pandas as pd
import pytest

_SEED = 14  # Of a dozen clients, two are to test on and two for validation.
_IDS = [f"Köln, {i:02d}" for i in range(12)]


def _table(labels=(0, 1)):
  rng = np.random.default_rng(0)
  sizes = 5 + np.arange(len(_IDS))
  n = sizes.sum()
  table = pd.DataFrame({"site": np.repeat(_IDS, sizes)})
  table["age"] = rng.normal(50, 20, n).round(3)
  table["visits"] = rng.integers(0, 9, n)
  table["dose"] = np.where(rng.random(n) < 0.3, np.nan, rng.exponential(1e6, n))
  table["ward"] = rng.choice(["a", "b", None], n)
  table["smokes"] = rng.random(n) < 0.4
  table["constant"] = 7
  table["outcome"] = rng.choice(labels, n)
  return table.sample(frac=1, random_state=0).reset_index(drop=True)


def _write(table, path, form):
  if form == "parquet":
    path = path / "visits.parquet"
    mixed = [c for c in table if table[c].dtype == object]
    # One type a column: a text makes texts of all.
    table = table.assign(**{c: table[c].map(str, na_action="ignore") for c in mixed})
    table.to_parquet(path)
  elif form == "csv":
    path = path / "visits.csv"
    table.to_csv(path, index=False)
  else:
    for site, rows in table.groupby("site"):
      rows.drop(columns="site").to_csv(path / f"{site}.csv", index=False)
  return path


def _load(tmp_path, name, table, form="csv", **changes):
  """The task, its splits, and {client: (bytes of x and y, number of examples in a round)}."""
  folder = tmp_path / name
  folder.mkdir()
  columns = dict(client_column=None if form == "folder" else "site")
  asked = dict(seed=_SEED, validation_fraction=0.25, is_private=True, **columns)
  path = _write(table, folder, form)
  one, splits = own_tables.load(path, **{**asked, "cache_dir": str(tmp_path / "cache"), **changes})
  found = {}
  for files in splits.values():
    x, y, offsets = files.load()
    for i, client in enumerate(files.client_ids):
      rows = slice(offsets[i], offsets[i + 1])
      is_in = files.handle(client, (0, 0))["index"] >= 0
      found[client] = x[rows].tobytes(), y[rows].tobytes(), int(np.diff(offsets)[i]) * is_in
  return one, splits, found


def _set(column, *values):
  def change(table, of_client):
    table[column] = table[column].astype(object)
    of_rows = np.resize(np.array(values, object), of_client.sum())
    table.iloc[np.flatnonzero(of_client), table.columns.get_loc(column)] = list(of_rows)
    return table

  return change


_ATTACKS = {
  "gone": lambda table, of_client: table[~of_client],
  "one row": lambda table, of_client: table[~of_client | (of_client.cumsum() == 1)],
  "class of its own": _set("outcome", 5),
  "text as class": _set("outcome", "x", 1),
  "half a class": _set("outcome", 0.5, 0, 1),
  "no label": _set("outcome", None, 0, 1),
  "labels with leading zeros": _set("outcome", "01", "00", "00"),
  "infinite label": _set("outcome", "inf", 0, 1),
  "beyond float64": _set("age", "1e400", "9" * 400),
  "text in numbers": _set("age", "old", 50.5),
  "text in whole numbers": _set("visits", "many", 3),
  "halves in whole numbers": _set("visits", 0.5),
  "infinite": _set("age", np.inf, -1e300),
  "marks of missing numbers": _set("age", "?", "n.a.", 50),
  "decimal commas": _set("age", "50,25", "1.050,5", "3,125"),
  "units": _set("age", "50 mg", "$3", "5 %"),
  "all but a few are texts": _set("visits", *["see file"] * 9, 3),
  "lines within values": _set("ward", "a\nKöln, 00,1,2,3,a,True,7,0", "b"),
  "codes": _set("age", -999, 1),
  "text in truth": _set("smokes", "maybe", True),
  "numbers in texts": _set("ward", 1, 2.5),
  "many categories": _set("ward", *map(str, range(200))),
  "not constant": _set("constant", 8, "x"),
  "nothing missing": _set("dose", 1e50),
  "all missing": _set("visits", None),
}


@pytest.mark.parametrize("form", ["csv", "folder", "parquet"])
def test_one_training_clients_rows_change_nothing_but_what_it_has(tmp_path, form):
  table = _table()
  asked = dict(form=form, min_examples_per_client=3)
  one, splits, whole = _load(tmp_path, "whole", table, **asked)
  assert {split: len(files.client_ids) for split, files in splits.items()} == {
    **dict(train=8, validation=2, test=2)
  }
  assert min(n for *_, n in whole.values()) >= 5
  for changed in splits["train"].client_ids[:2]:
    of_client = table["site"] == changed
    for name, attack in _ATTACKS.items():
      other = attack(table.copy(), of_client)
      two, parts, found = _load(tmp_path, f"{name} {changed}", other, **asked)
      assert two.columns == one.columns, name
      assert two.description == one.description, name
      is_gone = name == "gone"
      assert two.defaults["clients_per_round"] == 8 - is_gone
      for split, files in splits.items():
        expected = [i for i in files.client_ids if not (is_gone and i == changed)]
        assert list(parts[split].client_ids) == expected, name
      assert {i: v for i, v in found.items() if i != changed} == {
        i: v for i, v in whole.items() if i != changed
      }, name
      if name in ("one row", "class of its own"):
        assert found[changed][-1] == 0
      elif name not in ("gone", "not constant"):  # That column is dropped.
        assert found[changed] != whole[changed] and found[changed][-1] > 0, name


def test_numbers_as_labels_that_cannot_be_used_are_left_out(tmp_path):
  table = _table(labels=np.arange(1000) / 8)
  one, splits, whole = _load(tmp_path, "whole", table)
  assert one.error == "rmse"
  changed = splits["train"].client_ids[0]
  for name, values in (("text", ["x", 1]), ("infinite", [np.inf, 3]), ("large", [1e99])):
    other = _set("outcome", *values)(table.copy(), table["site"] == changed)
    two, parts, found = _load(tmp_path, name, other)
    assert two.columns == one.columns and two.label_scale == one.label_scale
    assert parts["train"].client_ids == splits["train"].client_ids
    y = np.frombuffer(found.pop(changed)[1], np.float32)
    expected = np.sum(table["site"] == changed)
    assert np.isfinite(y).all() and 0 < len(y) <= expected
    assert (len(y) == expected) == (name == "large")
    assert found == {i: v for i, v in whole.items() if i != changed}


def test_test_clients_rows_are_refused_as_ever(tmp_path):
  table = _table()
  _, splits, _ = _load(tmp_path, "whole", table)
  of_test = table["site"] == splits["test"].client_ids[0]
  for column, value, said in (("outcome", None, "without a label"), ("age", np.inf, "infinite")):
    with pytest.raises(ValueError, match=said):
      _load(tmp_path, column, _set(column, value)(table.copy(), of_test))


def test_the_user_names_classes_that_the_reference_lacks(tmp_path):
  table = _table()
  one, splits, _ = _load(tmp_path, "whole", table)
  assert one.labels == ("0", "1")
  changed = splits["train"].client_ids[0]
  of_client = table["site"] == changed
  other = _set("outcome", 5, 0)(table.copy(), of_client)
  two, _, found = _load(tmp_path, "named", other, classes="5,1,0")
  assert two.labels == ("5", "1", "0")
  y = np.frombuffer(found[changed][1], np.int32)
  assert set(y) == {0, 2} and len(y) == of_client.sum()
  # Nor are they found in a public run, which refuses others.
  with pytest.raises(ValueError, match="of classes that the model does not know, first '5'"):
    _load(tmp_path, "public", other, classes="0,1", is_private=False)
  three = _load(tmp_path, "other cache", other, classes="0,1,5", is_private=False)[0]
  assert three.labels == ("0", "1", "5") and three.data_digest != two.data_digest
  with pytest.raises(ValueError, match="--classes=0,1 in place of 0,1,5"):
    _load(tmp_path, "later", other, classes="0,1", is_private=False, columns=three.columns)
  for classes, changes in (("0", {}), ("0,0", {}), ("0,1", dict(label_kind="number"))):
    with pytest.raises(ValueError, match=f"Found --classes={classes}; expected two"):
      _load(tmp_path, f"wrong {classes} {changes}", table, classes=classes, **changes)


def test_whose_clients_are_shuffled_knows_the_classes_of_all(tmp_path):
  table = _table()
  _, splits, _ = _load(tmp_path, "whole", table, client_split="shuffled", num_train_clients=5)
  assert len(splits["train"].client_ids) == 4 and splits["train"].min_examples == 0
  changed = splits["train"].client_ids[0]
  other = _set("outcome", 5)(table.copy(), table["site"] == changed)
  two, _, _ = _load(tmp_path, "other", other, client_split="shuffled", num_train_clients=5)
  assert two.labels == ("0", "1", "5")
