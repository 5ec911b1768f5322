"""A table of the user's own, against what pandas and numpy make of it."""

import functools
import gzip
import json
import math
import re

from helpers import pools
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import tasks
from tasks import models
from tasks import request as request_lib
from tasks.own import encoding
from tasks.own import features
from tasks.own import labels as labels_lib
from tasks.own import table as table_lib
from tasks.own import user_table
from tasks.own import values

_NUM_CLIENTS = 12


def _table(rng, *, labels=("no", "yes")):
  """Clients of 3 to 14 examples, with every kind of column."""
  sizes = 3 + np.arange(_NUM_CLIENTS)
  n = sizes.sum()
  table = pd.DataFrame({"site": np.repeat([f"Köln, {i:02d}" for i in range(_NUM_CLIENTS)], sizes)})
  table["age"] = rng.normal(50, 20, n).round(3)
  table["dose"] = np.where(rng.random(n) < 0.3, np.nan, rng.exponential(1e6, n))
  table["ward"] = rng.choice(["a,b", "«ü»", 'say "c"', None], n)
  table["smokes"] = rng.random(n) < 0.4
  table["constant"] = 7
  table["name"] = [f"person {i}" for i in range(n)]
  table["number"] = np.arange(n)
  table["outcome"] = rng.choice(labels, n)
  return table.sample(frac=1, random_state=0).reset_index(drop=True)


@pytest.fixture(scope="module")
def table():
  return _table(np.random.default_rng(0))


@pytest.fixture
def ask(tmp_path, table):
  """Asks for the task of a table, which is first written to a file; `changes` override."""

  def ask(frame=table, name="visits.csv", text=None, **changes):
    path = tmp_path / name
    if text is not None:
      path.write_text(text)
    elif frame is not None:
      frame.to_csv(path, index=False)
    columns = dict(client_column="site", label_column="outcome")
    # Two clients of each dozen are to test on, and two for validation.
    request = dict(cache_dir=str(tmp_path / "cache"), data_dir=str(path), seed=14, **columns)
    wanted = request_lib.of(name="own", **{**request, **changes})
    return tasks.get_task("own").for_request(wanted), wanted

  return ask


def _expected_x(table, reference):
  """What pandas makes of the columns, {client: x}; the last is said to be an id, but is used."""
  of_reference = table[table["site"].isin(reference)]
  x = pd.DataFrame(index=table.index)
  for name in ("age", "dose", "smokes", "number"):
    numbers, seen = table[name].astype(float), of_reference[name].astype(float)
    x[name] = ((numbers - seen.mean()) / seen.std(ddof=0)).fillna(0.0)
    if seen.isna().any():
      x[f"{name} missing"] = numbers.isna().astype(float)
  for category in sorted(of_reference["ward"].dropna().unique()):
    x[f"ward {category}"] = (table["ward"] == category).astype(float)
  x["ward missing"] = table["ward"].isna().astype(float)
  order = [c for n in ("age", "dose", "ward", "smokes", "number") for c in x if c.startswith(n)]
  x = x[order].astype(np.float32)
  return {site: x[table["site"] == site].to_numpy() for site in table["site"].unique()}


@pytest.mark.parametrize("is_private", [False, True])
def test_features_are_those_of_pandas_by_the_reference_clients_alone(ask, table, is_private):
  one, request = ask(validation_fraction=0.25, is_private=is_private)
  splits = one.load_clients(request)
  sizes = {split: len(files.client_ids) for split, files in splits.items()}
  assert sizes == {"train": 8, "validation": 2, "test": 2}
  ids = {split: set(files.client_ids) for split, files in splits.items()}
  assert set.union(*ids.values()) == set(table["site"])
  expected = _expected_x(table, ids["validation"] | ids["test"] if is_private else ids["train"])
  for files in splits.values():
    for client, (x, y) in pools.by_client(files).items():
      np.testing.assert_allclose(x, expected[client], rtol=1e-5, atol=1e-6)
      labels = table[table["site"] == client]["outcome"]
      np.testing.assert_array_equal(y, labels == "yes")
  assert "constant" in one.description and "one value only, 7" in one.description
  assert "categories, each value once: an id" in one.description  # Names.
  assert "each value once: an id?" in one.description  # Numbers, which are used.


def test_an_exported_model_makes_nothing_of_strange_categories(ask, table):
  one, request = ask()
  way = one.preprocessing(request)
  assert "ward (0 a,b, 1 say" in way.description and one.labels == ("no", "yes")
  # Categories that nobody has, in a batch of one each; of others the programs of cards tell.
  for strange in (-1.0, 3.0, 1e9):
    x = way.apply(tf.constant([[50.0, 0.0, strange, 1.0, 3.0]]))
    assert x.shape == [1, way.x_spec.shape[1]] and not x[0, 3:7].numpy().any()
  # Without a category of missing values, these are none. Nor have numbers a column for them.
  known = table.dropna()
  two, request = ask(known, features="ward,age", min_examples_per_client=2)
  x = two.preprocessing(request).apply(tf.constant([[np.nan, np.nan], [2.0, 1e30]]))
  np.testing.assert_array_equal(x, [[0, 0, 0, 0], [0, 0, 1, 1e6]])


def _later(table):
  """Other clients, far away, with other categories in another order, and fewer columns."""
  later = table[["number", "smokes", "ward", "dose", "age", "outcome", "site"]].copy()
  later["site"] = "later " + later["site"]
  later["age"] += 1000
  later.loc[:40, "dose"] = np.nan
  later["ward"] = later["ward"].map({"a,b": "A new one", "«ü»": "«ü»", 'say "c"': None})
  return later


def test_columns_of_a_run_are_carried_out_on_a_later_table(ask, table):
  one, request = ask()
  train = one.load_clients(request)["train"].client_ids
  later = _later(table)
  two, request = ask(later, "later.csv", columns=one.columns)
  assert two.columns == one.columns
  known = table[table["site"].isin(train)]
  columns = [(later["age"] - known["age"].mean()) / known["age"].std(ddof=0)]
  columns.append(((later["dose"] - known["dose"].mean()) / known["dose"].std(ddof=0)).fillna(0.0))
  columns.append(later["dose"].isna())
  columns += [later["ward"] == ward for ward in ("a,b", 'say "c"', "«ü»")]
  columns.append(later["ward"].isna())
  for name in ("smokes", "number"):
    columns.append((later[name] - known[name].mean()) / known[name].std(ddof=0))
  x = np.column_stack(columns).astype(np.float32)
  found = pools.by_client(two.load_clients(request))
  assert set(found) == set(later["site"])
  for site, (inputs, labels) in found.items():
    np.testing.assert_allclose(inputs, x[later["site"] == site], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(labels, later[later["site"] == site]["outcome"] == "yes")
  unknown = (later["ward"] == "A new one").sum()
  assert f"{unknown} rows of unknown categories" in two.description


def test_columns_of_a_run_are_those_of_its_own_table_and_need_none(ask, table, monkeypatch):
  one, request = ask()
  way = one.preprocessing(request)
  monkeypatch.setattr(user_table, "UserTable", None)  # Nothing is converted again.
  same, request = ask(columns=one.columns)
  assert same.load_clients(request)["test"].directory.startswith(request.cache_dir)
  assert same.description == one.description and same.data_digest == one.data_digest
  monkeypatch.setattr(table_lib, "open_clients", None)  # Nor is a table read.
  bare, request = ask(columns=one.columns, data_dir="")
  assert (bare.labels, bare.error, bare.columns) == (one.labels, one.error, one.columns)
  raw = tf.constant([[50.0, np.nan, 1.0, np.nan, 3.0], [0.0, 1.0, -1.0, 1.0, 0.0]])
  np.testing.assert_array_equal(bare.preprocessing(request).apply(raw), way.apply(raw))


def test_numbers_of_a_later_table_are_in_the_unit_of_the_run(ask, table):
  numbers = table.assign(outcome=1e3 + 50 * table["age"])
  one, request = ask(numbers, features="age")
  train = numbers[numbers["site"].isin(one.load_clients(request)["train"].client_ids)]["outcome"]
  later = numbers.assign(outcome=7 * numbers["outcome"])
  two, request = ask(later, "later.csv", features="age", columns=one.columns)
  assert two.label_scale == one.label_scale == (train.mean(), train.std(ddof=0))
  for client, (_, y) in pools.by_client(two.load_clients(request)["test"]).items():
    wanted = (later[later["site"] == client]["outcome"] - train.mean()) / train.std(ddof=0)
    np.testing.assert_allclose(y, wanted, rtol=1e-5)


@pytest.mark.parametrize(
  "change, changes, said",
  [
    (lambda t: t.drop(columns="ward"), {}, "no column 'ward' in .* expected the columns 'age', 'd"),
    (lambda t: t.assign(age="old"), {}, "in column 'age'; expected numbers alone"),
    (lambda t: t.assign(smokes="maybe"), {}, "in column 'smokes'; expected booleans"),
    (lambda t: t.assign(dose=np.inf), {}, "102 infinite values"),
    (lambda t: t.assign(outcome="maybe"), {}, "102 of 102 .* 'maybe'; expected no or yes"),
    (lambda t: t.assign(outcome=[1, *[0] * 101]), {}, "102 of 102 labels .* first '0'"),
    (lambda t: t, dict(features="age,dose"), "--features=age,dose in place of age,dose,n"),
    (lambda t: t, dict(label_kind="number"), "--label_kind=number in place of classes"),
    (lambda t: t.assign(o=0), dict(label_column="o"), "--label_column=o in place of outcome"),
    (lambda t: t, dict(columns="{"), r"columns.json of the run cannot be read"),
    (lambda t: t, dict(columns='{"features": [1]}'), r"columns.json of the run cannot be read"),
  ],
)
def test_later_tables_that_do_not_fit_are_refused(ask, table, change, changes, said):
  columns = ask()[0].columns
  with pytest.raises(ValueError, match=said) as caught:
    ask(change(_later(table)), "later.csv", **{"columns": columns, **changes})
  assert "\n" not in str(caught.value)


def _twice(values):
  return [*values, values[0]]


@pytest.mark.parametrize(
  "place, change, said",
  [
    (("features", 0, "mean"), lambda x: math.nan, "mean nan and std .* of 'age'"),
    (("features", 0, "std"), lambda x: math.inf, "std inf of 'age'"),
    (("features", 0, "std"), lambda x: 0.0, "std 0.0 of 'age'"),
    (("features", 0, "std"), lambda x: 10**400, "OverflowError"),
    (("features", 0, "mean"), lambda x: "1", "no numbers"),
    (("features", 0, "kind"), lambda x: "text", "kind 'text' of 'age'"),
    (("features",), _twice, "comes twice"),
    (("features", 2, "categories"), _twice, "comes twice"),
    (("label", "classes"), _twice, "comes twice"),
    (("label", "std"), lambda x: -1.0, "std -1.0 of 'outcome'"),
  ],
)
def test_columns_that_no_run_has_written_are_refused(ask, place, change, said):
  text = ask()[0].columns
  assert encoding.from_text(text).to_text() == text
  values = json.loads(text)
  assert values["features"][0]["name"] == "age" and values["features"][2]["categories"]
  *where, last = place
  inner = functools.reduce(lambda inner, key: inner[key], where, values)
  inner[last] = change(inner[last])
  with pytest.raises(ValueError, match=said) as caught:
    encoding.from_text(json.dumps(values))
  assert str(caught.value).startswith("Found that columns.json of the run cannot be read (")
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize("form", ["gz", "folder", "folder with a column", "parquet"])
def test_all_forms_of_a_table_hold_the_same(ask, table, tmp_path, form):
  base, request = ask()
  expected = {split: pools.by_client(files) for split, files in base.load_clients(request).items()}
  table = table.sort_values("site", kind="stable")
  if form == "gz":
    with gzip.open(tmp_path / "visits.csv.gz", "wt") as file:
      table.to_csv(file, index=False)
    one, request = ask(None, "visits.csv.gz")
  elif form == "parquet":
    table.to_parquet(tmp_path / "visits.parquet")
    one, request = ask(None, "visits.parquet")
  else:
    (tmp_path / "visits").mkdir()
    has_column = form != "folder"
    for site, rows in table.groupby("site"):
      rows = rows if has_column else rows.drop(columns="site")
      rows.to_csv(tmp_path / "visits" / f"{site}.csv", index=False)
    one, request = ask(None, "visits", client_column="site" if has_column else None)
  for split, files in one.load_clients(request).items():
    found = pools.by_client(files)
    assert list(found) == list(expected[split])
    for client, (x, y) in found.items():
      np.testing.assert_allclose(x, expected[split][client][0], rtol=1e-5, atol=1e-6)
      np.testing.assert_array_equal(y, expected[split][client][1])


def test_the_cache_follows_content_and_flags_and_is_read_again(ask, table, monkeypatch):
  def open_directory(*args, **changes):
    one, request = ask(*args, **changes)
    return one.load_clients(request)["train"].directory

  first = open_directory()
  other = table.assign(age=table["age"] + 1)
  directories = [
    first,
    open_directory(other),
    open_directory(seed=1),
    open_directory(features="age"),
  ]
  directories += [open_directory(min_examples_per_client=4), open_directory(num_train_clients=3)]
  directories += [open_directory(is_private=True), open_directory(label_kind="classes")]
  directories += [open_directory(client_split="shuffled"), open_directory(classes="yes,no")]
  assert len(set(directories)) == len(directories)
  # The digest is of the data, and of what is read of them.
  given = ({}, dict(seed=1), dict(model="mlp"), dict(features="age"))
  digests = [ask(**changes)[0].data_digest for changes in given]
  assert digests[0] == digests[1] == digests[2] != digests[3]
  monkeypatch.setattr(user_table, "UserTable", None)  # Nothing is converted again.
  assert open_directory() == first
  described = ask()[0].description
  assert "102 examples of 12 clients (site)" in described


def test_defaults_fit_few_clients_and_many(ask):
  for num_clients, cohort, rate in ((10, 8, 0.1), (400, 100, 0.1)):
    n = np.arange(2 * num_clients)
    frame = pd.DataFrame({"site": n % num_clients, "v": n % 7, "outcome": n // num_clients})
    defaults = ask(frame)[0].defaults
    assert defaults["clients_per_round"] == cohort
    assert defaults["client_learning_rate"] == rate


@pytest.mark.parametrize("is_private", [False, True])
@pytest.mark.parametrize("outcome, most", [("number", 2.0), ("classes", 4.0)])
def test_step_suits_the_client_with_the_largest_inputs(ask, outcome, most, is_private):
  """One rainy day in many: gradient descent on that client alone must not overshoot."""
  n = np.arange(1200)
  frame = pd.DataFrame({"site": [f"c{i}" for i in n % 200], "rain": 0, "v": n % 7})
  frame["outcome"] = n % 5 / 2 if outcome == "number" else n % 2
  changes = dict(seed=0, is_private=is_private, validation_fraction=0.2)
  one, asked = ask(frame, **changes)
  splits = one.load_clients(asked)
  reference = splits["test"].client_ids if is_private else splits["train"].client_ids
  other = splits["train"].client_ids if is_private else splits["test"].client_ids
  for rainy, is_bounded in ((reference[0], True), (other[0], False)):
    one, asked = ask(frame.assign(rain=(frame["site"] == rainy) * 1), **changes)
    rate = one.defaults["client_learning_rate"]
    if not is_bounded:
      assert rate == 0.1  # Nothing follows from clients whose statistics are not taken.
      continue
    loaded = {
      c: x
      for files in one.load_clients(asked).values()
      for c, (x, _) in pools.by_client(files).items()
    }
    squares = 1 + (loaded[rainy].astype(np.float64) ** 2).sum(axis=1)
    np.testing.assert_allclose(rate, min(0.1, most / squares.mean()), rtol=1e-5)
    assert rate < 0.1
    inputs = np.column_stack([loaded[rainy], np.ones(len(squares))])
    curvature = np.linalg.eigvalsh(inputs.T @ inputs / len(squares)).max() / (most / 2)
    assert rate * curvature < 2  # And the rate of 0.1 would not do.
    assert 0.1 * curvature > 2


@pytest.mark.parametrize("num_classes", [0, 2, 5])
def test_hidden_layer_is_that_of_numpy_and_depends_on_the_seed(num_classes):
  spec = (tf.TensorSpec([None, 3]), tf.TensorSpec([None], tf.int32 if num_classes else tf.float32))
  build = models.build_table_model
  one, other = (build(s, spec, num_classes=num_classes, hidden_size=4) for s in (0, 1))
  v, a, w, b = one.initial_weights[0]
  assert not np.array_equal(v, other.initial_weights[0][0])
  assert w.shape == (4, 5 if num_classes == 5 else 1)
  x = np.random.default_rng(0).normal(size=[6, 3]).astype(np.float32)
  found = one.predict_on_batch(((v, a + 1, w, b + 2), ()), tf.constant(x), training=False)
  expected = np.maximum(x @ v + a + 1, 0) @ w + b + 2
  np.testing.assert_allclose(found, expected if num_classes == 5 else expected[:, 0], rtol=1e-4)


def test_linear_models_follow_from_the_labels(ask, table):
  for labels, shapes in ((("a", "b"), [(1, 1), (1,)]), ((3, 1, 2), [(1, 3), (3,)])):
    one, request = ask(_table(np.random.default_rng(1), labels=labels), features="age")
    files = one.load_clients(request)["train"]
    model = one.build_model_for(files, 0)
    assert [w.shape for w in model.initial_weights[0]] == shapes
    assert files.num_classes == len(labels)
  assert "3 classes: 1 " in one.description and "--label_kind" not in one.description
  many = ask(table.assign(outcome=[*range(11), *range(91)][: len(table)]), features="age")[0]
  assert "whole numbers, each a class; if they are a quantity, pass --label_k" in many.description
  # A kind that is asked for wins.
  assert ask(table.assign(outcome=[0, 1] * 51), label_kind="number")[0].error == "rmse"
  halves = table.assign(outcome=[0.5, 1.5] * 51)
  assert ask(halves)[0].error == "rmse"
  assert ask(halves, label_kind="classes")[0].error == "misclassification"


_HEADER = "site,outcome,v\n"
_GOOD = _HEADER + "".join(f"{i % 6},{i % 2},{i * i}\n" for i in range(24))


@pytest.mark.parametrize(
  "text, changes, said",
  [
    (_GOOD, dict(data_dir=""), "no --data_dir"),
    (_GOOD, dict(data_dir="/nowhere/x.csv"), "no file or folder /nowhere/x.csv"),
    (_GOOD, dict(data_dir=__file__), "expected a file .csv, .csv.gz, .tsv"),
    ("", {}, "is empty"),
    (_HEADER, {}, "has no rows"),
    ("site,outcome,v,v\n1,2,3,4\n", {}, "the column 'v' twice"),
    (_GOOD + "1,2,3,4\n", {}, "3 names of columns and 4 values in line 26"),
    (_GOOD, dict(client_column=None), "whose the rows of .* are; .* by --client_column, or give"),
    (_GOOD, dict(label_column=None), "no --label_column; .* 'site', 'outcome', 'v'"),
    (_GOOD, dict(label_column="outcom"), "'outcom' of labels; .*did you mean 'outcome'"),
    (_GOOD, dict(features="v,w"), "'w' for --features"),
    (_GOOD, dict(features="v,v"), "in two places"),
    (_GOOD, dict(label_column="site"), "in two places"),
    (_GOOD + ",1,1\n ,1,1\n", {}, "2 of 26 rows without a client"),
    (_GOOD + "1,,1\n", {}, "1 of 25 rows without a label"),
    (_GOOD.replace(",1,", ",0,"), {}, "one class, 0"),
    (_HEADER + "1,0,1\n1,1,2\n", {}, "1 clients in"),
    (_GOOD, dict(min_examples_per_client=5), "0 clients in .*without 6 that have too few"),
    (_GOOD.replace(",1,", ",x,"), dict(label_kind="number"), "12 of 24 labels .* first 'x'"),
    (_GOOD + "1,inf,1\n", dict(label_kind="number"), "1 of 25 labels that are infinite"),
    (_GOOD + "1,1,inf\n1,1,1e300\n", {}, "2 infinite values, or beyond 1e\\+100, in column 'v'"),
    (_HEADER + "".join(f"{i % 6},{i % 2},7\n" for i in range(24)), {}, "v: one value only, 7"),
    ("site,outcome\n1,1\n2,0\n3,1\n", {}, r"no feature .*\(none\)"),
    (_GOOD, dict(glove="g"), "--glove=g with --task=own; it belongs to --task=sent140_linear"),
    (_GOOD, dict(data="standin"), "has no stand-in"),
  ],
)
def test_mistakes_are_sentences(ask, text, changes, said):
  with pytest.raises(ValueError, match=said) as caught:
    ask(None, text=text, **changes)
  assert "\n" not in str(caught.value)


def test_too_many_categories_are_dropped_or_refused_where_they_are_named(ask, table):
  with pytest.raises(ValueError, match="each value once: an id, in column 'name' of --features"):
    ask(features="name,age")
  many = pd.concat([table] * 5, ignore_index=True)
  for num_wards, said in ((100, "100 categories"), (101, "101 categories, more than 100")):
    wards = many.assign(ward=[f"ward {i % num_wards}" for i in range(len(many))])
    one, _ = ask(wards)
    assert said in one.description
    assert bool(re.search("ward +dropped", one.description)) == (num_wards == 101)
  with pytest.raises(ValueError, match="more than 100, in column 'ward' of --features"):
    ask(wards, features="ward,age")


def test_folders_with_mistakes_are_refused(ask, tmp_path):
  folder = tmp_path / "clients"
  folder.mkdir()
  with pytest.raises(ValueError, match="no .csv, .* in the folder"):
    ask(None, "clients", client_column=None)
  for i in range(3):
    (folder / f"{i}.csv").write_text("outcome,v\n0,1\n1,2\n")
  (folder / "3.csv").write_text("outcome,w\n0,1\n")
  with pytest.raises(ValueError, match=r"3.csv lacks or adds the columns \['v', 'w'\]"):
    ask(None, "clients", client_column=None)
  (folder / "3.csv").rename(folder / "0.csv.gz")
  (folder / "0.csv.gz").write_bytes(gzip.compress(b"outcome,v\n0,1\n"))
  with pytest.raises(ValueError, match="two files for the client '0'"):
    ask(None, "clients", client_column=None)


def test_clients_keep_their_names(ask):
  rows = "".join(f"{site},{i % 2},{i}\n" for i, site in enumerate(["007", "7", "NA", "x"] * 3))
  one, request = ask(None, text=_HEADER + rows)
  ids = [i for files in one.load_clients(request).values() for i in files.client_ids]
  assert sorted(ids) == ["007", "7", "NA", "x"]


def test_values_of_other_clients_are_bounded_in_float32():
  column = values.Column.of("v", [0.0, 1e-30, 1e90, np.nan])
  feature, _ = features.fit(column, np.array([True, True, False, False]))
  x = encoding.Encoding((feature,), labels_lib.Label("y"), {}).encode(
    features.read(feature, column)[:, None]
  )
  np.testing.assert_allclose(x[:, 0], [-1, 1, 1e6, 0], rtol=1e-6)
