"""How values of a user's table are read, against Python's own integers, decimals and texts."""

import datetime
import decimal
import json
import os
import re
import socket

from helpers import own_tables
from helpers import pools
import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import parquet
import pytest

from tasks import data_set
from tasks.own import drift
from tasks.own import encoding as encoding_lib
from tasks.own import features
from tasks.own import labels
from tasks.own import values
from tasks.sent140 import glove

_NUM_CLIENTS = 12
_ROWS = 20 * _NUM_CLIENTS
_SITES = [f"s{i % _NUM_CLIENTS}" for i in range(_ROWS)]
# What classes are called that are named otherwise than in the table.
_NAMES = {"1.0": "1", "-0.0": "0", "1e3": "1000", "+7": "7", " 8": "8"}
_NAMES |= {
  "true": "True",
  "FALSE": "False",
  "1e200": f"{10**200}",
  f"{10**35 + 1}.0": f"{10**35 + 1}",
}
_NAMES["9007199254740993.5"] = f"{2**53 + 2}"
# Each client has every residue of i // 12.
_TURN = np.arange(_ROWS) // _NUM_CLIENTS


@pytest.fixture
def ask(tmp_path):
  """Asks for the task of a table, after writing its columns."""

  def ask(form="csv", name="table", label=None, raw=None, **changes):
    asked = {**dict(label_column="y", seed=14, validation_fraction=0.25), **changes}
    columns = dict(site=_SITES, y=_TURN % 2, v=_TURN % 5)
    columns.update(asked.pop("put", {}))
    if label is not None:
      columns["y"] = label
    path = tmp_path / f"{name}.{form}"
    if raw is not None:
      path.write_bytes(raw)
    elif form == "parquet":
      parquet.write_table(pa.table(columns), path)
    else:
      pd.DataFrame(columns).to_csv(path, index=False)
    return own_tables.load(path, **asked)

  return ask


def _cycle(*texts):
  return [texts[i % len(texts)] for i in _TURN]


def _refused(call, *said):
  with pytest.raises(ValueError) as caught:
    call()
  assert "\n" not in str(caught.value)
  for words in said:
    assert words in str(caught.value), caught.value


@pytest.mark.parametrize("is_private", [False, True])
@pytest.mark.parametrize(
  "texts, classes",
  [
    (("2", "10", "1"), ("1", "2", "10")),
    (("01", "1", "2"), ("01", "1", "2")),
    (("-01", "1"), ("-01", "1")),
    (("1.0", "0", "-0.0", "1"), ("0", "1")),
    (("9007199254740992", "9007199254740993"), ("9007199254740992", "9007199254740993")),
    ((f"{10**40 + 1}", f"{10**40}"), (f"{10**40}", f"{10**40 + 1}")),
    ((f"{10**400}", "-1"), ("-1", f"{10**400}")),
    (("1e200", "9007199254740993.5", "0"), ("0", f"{2**53 + 2}", f"{10**200}")),
    ((f"{10**35 + 1}.0", f"{10**35}"), (f"{10**35}", f"{10**35 + 1}")),
    (("1e3", "+7", " 8"), ("7", "8", "1000")),
    (("true", "FALSE"), ("False", "True")),
    (("inf", "none of these", "1.0"), ("1.0", "inf", "none of these")),
    (("1_0", "10"), ("10", "1_0")),
  ],
)
def test_classes_keep_their_names(ask, is_private, texts, classes):
  one, splits = ask(label=_cycle(*texts), is_private=is_private)
  assert one.labels == classes
  names = [text if text in classes else _NAMES[text] for text in _cycle(*texts)]
  wanted = [classes.index(name) for name in names[::_NUM_CLIENTS]]
  for _, y in pools.by_client(splits).values():
    assert y.tolist() == wanted
  # A later table has the same texts, read by what the run has kept.
  later, splits = ask(label=_cycle(*texts), name="later", columns=one.columns, seed=3)
  assert later.labels == classes
  for _, y in pools.by_client(splits).values():
    assert y.tolist() == wanted


def test_leading_zeros_are_numbers_where_the_user_says_so(ask):
  one, _ = ask(label=_cycle("01", "1", "3"), label_kind="number")
  assert one.labels == () and one.error == "rmse"
  assert one.label_scale[0] == pytest.approx(np.mean([1, 1, 3]), abs=0.1)


@pytest.mark.parametrize("is_private", [False, True])
@pytest.mark.parametrize("kind", [None, "classes", "number"])
def test_infinite_labels_are_refused(ask, is_private, kind):
  for text in ("inf", "-Infinity", "1e400"):
    asked = dict(label=_cycle("0", "1", text), is_private=is_private, label_kind=kind)
    said = ("labels that are infinite", "column 'y'", "mend or drop")
    _refused(lambda asked=asked: ask(**asked), *said)


@pytest.mark.parametrize("is_private", [False, True])
def test_types_of_parquet_as_labels(ask, is_private):
  def classes(column):
    return ask("parquet", label=column, is_private=is_private)[0].labels

  big = pa.array([2**64 - 1 - t % 2 for t in _TURN.tolist()], pa.uint64())
  assert classes(big) == (f"{2**64 - 2}", f"{2**64 - 1}")
  assert classes(pa.array(_TURN % 2 == 0)) == ("False", "True")
  assert classes(pa.array((_TURN % 2).astype(float))) == ("0", "1")
  assert classes(_cycle(b"\xc3\xa9", b"a")) == ("a", "é")
  assert classes(_cycle(decimal.Decimal("1.00"), decimal.Decimal("3.00"))) == ("1", "3")
  assert classes(pa.array(_cycle("u", "z")).dictionary_encode()) == ("u", "z")
  days = _cycle(*(datetime.datetime(2020, 1, day) for day in (1, 2)))
  for column, kind in (
    (days, "timestamp"),
    ([[1, 2]] * _ROWS, "list"),
    ([{"a": 1}] * _ROWS, "struct"),
    (pa.array([[("a", 1)]] * _ROWS, pa.map_(pa.string(), pa.int64())), "map"),
    (_cycle(b"a", b"\xff"), "binary that is no text in UTF-8"),
    (_cycle("0\0.1", "0\0.2"), "string with NUL"),
  ):
    _refused(lambda column=column: classes(column), f"of type {kind}", "column 'y'", "write")


def test_classes_are_numbers_or_truth_values_however_they_are_written():
  def places(found, names):
    return values.places(found, names).tolist()

  assert places(["01", "1", "1.0", "2"], ("1", "2")) == [0, 0, 0, 1]
  assert places(["true", "True", "FALSE"], ("false", "true")) == [1, 1, 0]
  assert places(["true", "True", "TRUE"], ("True", "true")) == [1, 0, 0]


def test_texts_are_found_exactly_first_and_then_as_numbers():
  assert values.places(["3E2", "300", "70.0"], ["3E2", "70"]).tolist() == [0, -1, -1]  # Codes.
  names = ("1", "1.0", "x", "9007199254740993", "-0.5")
  found = ["1", "1.0", "1.00", "9007199254740993", "9007199254740993.0", "9007199254740992"]
  found += ["-.5", "01", "X", "", "1e400", "9" * 5000]
  assert values.places(found, names).tolist() == [0, 1, 0, 3, 3, -1, 4, -1, -1, -1, -1, -1]
  assert values.places([f"{10**400}"], ("inf", "x")).tolist() == [-1]
  # Codes are no numbers.
  assert values.places(["1", "1.0", "001"], ("01", "2")).tolist() == [-1, -1, -1]


@pytest.mark.parametrize("is_private", [False, True])
def test_texts_with_nul_in_parquet_are_no_numbers(ask, is_private):
  texts = [f"0\0.{turn}" for turn in _TURN]
  one, _ = ask("parquet", put=dict(w=texts), is_private=is_private)
  assert [feature["name"] for feature in json.loads(one.columns)["features"]] == ["v"]
  assert "of type string with NUL" in one.description
  # They are not all one client either.
  sites = [f"s\0{i % _NUM_CLIENTS}" for i in range(_ROWS)]
  assert len(pools.by_client(ask("parquet", put=dict(site=sites), seed=2)[1])) == _NUM_CLIENTS


def test_numbers_beyond_float64_are_refused_as_infinite(ask):
  v = [*map(str, range(_ROWS - 1)), "1e400"]
  _refused(lambda: ask(put=dict(v=v)), "1 infinite values, or beyond 1e+100, in column 'v'")
  v[-1] = "1" * 30  # pandas leaves these as text, too.
  assert '"kind": "number"' in ask(put=dict(v=v))[0].columns


@pytest.mark.parametrize("is_private", [False, True])
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_different_integers_that_are_one_float64_are_said_to_differ(ask, form, is_private):
  column = pa.array([2**63 + turn for turn in _TURN.tolist()], pa.uint64())
  put = dict(w=column if form == "parquet" else column.to_pylist(), u=[2.0**63] * _ROWS)
  dropped = json.loads(ask(form, put=put, is_private=is_private)[0].columns)["dropped"]
  assert dropped["w"] == "20 numbers that are one in 64-bit floating point"
  assert dropped["u"].startswith("one value only, 9.22")


def test_standard_deviations_of_small_numbers_are_those_of_fractions():
  tiny = np.array([1.0, 2.0, 4.0, 4.0]) * 1e-170
  assert tiny.std() == 0.0
  np.testing.assert_allclose(features.std_of(tiny), np.std([1, 2, 4, 4]) * 1e-170, rtol=1e-12)
  feature, _ = features.fit(values.Column.of("v", tiny), np.ones(4, bool))
  x = encoding_lib.Encoding((feature,), labels.Label("y"), {}).encode(
    features.read(feature, values.Column.of("v", tiny))[:, None]
  )[:, 0]
  np.testing.assert_allclose([x.mean(), x.std()], [0, 1], atol=1e-6)
  ordinary = np.random.default_rng(0).normal(size=1000)
  assert features.std_of(ordinary) == ordinary.std()
  assert (
    features.std_of(np.full(7, 0.1)) == 0.0 and features.std_of(np.array([0] * 9 + [5e-324])) > 0
  )
  label = labels.fit(values.Column.of("y", tiny), "number", np.ones(4, bool))
  np.testing.assert_allclose(label.std, np.std([1, 2, 4, 4]) * 1e-170, rtol=1e-12)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_categories_of_a_later_table_may_come_as_other_numbers(ask, form):
  one, splits = ask("csv", put=dict(w=_cycle("1", "2", "3", "x")))
  wanted = pools.by_client(splits)["s1"][0]
  later = pd.Series([t % 4 + 1.0 for t in _TURN]).where(_TURN % 4 < 3)  # With missing ones.
  column = pa.array(later, from_pandas=True) if form == "parquet" else later
  two, splits = ask(form, name="later", put=dict(w=column), columns=one.columns)
  found = pools.by_client(splits)["s1"][0]
  known = _TURN[::_NUM_CLIENTS] % 4 < 3
  np.testing.assert_array_equal(found[known], wanted[known])
  assert known.any() and found[known][:, 1:].any(axis=1).all()
  assert two.remarks == []


def test_integers_of_a_later_table_are_exact_beside_missing_ones(ask):
  one, _ = ask(put=dict(w=_cycle(f"{2**60}", f"{2**60 + 1}", "x")))
  w = pa.array(_cycle(2**60, None, 2**60 + 1, 2**60 + 2), pa.int64())
  two, splits = ask("parquet", name="later", put=dict(w=w), columns=one.columns)
  assert pools.by_client(splits)["s1"][0][:3, 1:].tolist() == [
    [1, 0, 0],
    [0, 0, 0],
    [0, 1, 0],
  ]
  assert f"Column w: {_ROWS // 4} rows of unknown categories" in two.remarks[0]


def test_unknown_categories_of_a_later_table_are_counted(ask):
  one, _ = ask(put=dict(w=_cycle("a", "b", "x"), u=_cycle("c", "d")))
  assert list(one.remarks) == []
  w = pd.Series(_cycle("a", "new", "newer"))
  two, _ = ask(name="later", put=dict(w=w, u=_cycle("c", "d")), columns=one.columns)
  [remark] = two.remarks
  assert remark.startswith(f"Column w: {int((w != 'a').sum())} rows of unknown categories")
  assert f"{_ROWS} examples of {_NUM_CLIENTS} clients" in remark
  # In a private run those alone that are not trained on.
  put = dict(w=w, u=_cycle("c", "d"))
  three, splits = ask(name="later", put=put, columns=one.columns, is_private=True)
  others = [i for split in ("test", "validation") for i in splits[split].client_ids]
  counted = int((w[np.isin(_SITES, others)] != "a").sum())
  assert three.remarks[0].startswith(f"Column w: {counted} rows") and counted < len(w) / 2


def test_the_first_category_is_known():
  feature = features.Feature("w", features.CATEGORY, False, categories=("a", "b"))
  encoding = encoding_lib.Encoding((feature,), labels.Label("y", ("0", "1")), {})
  for texts, remark in (("ab", ""), ("aac", "1 rows of unknown categories"), ("c", "1 rows")):
    raw = features.read(feature, values.Column.of("w", texts))[:, None]
    assert drift.remarks_on(encoding, raw)["w"].startswith(remark)
    assert bool(drift.remarks_on(encoding, raw)["w"]) == bool(remark)


def test_shares_that_moved_are_remarked_on_beyond_chance(ask):
  names = ("a", "b", "c")
  feature = features.Feature("w", "category", True, categories=names, shares=(0.5, 0.3, 0.1))
  label = labels.Label("y", ("0", "1"), shares=(0.9, 0.1))
  encoding = encoding_lib.Encoding((feature,), label, {})

  def of_rows(**counts):
    texts = [text for name, n in counts.items() for text in (None if name == "none" else name,) * n]
    raw = features.read(feature, values.Column.of("w", texts))[:, None]
    return drift.remarks_on(encoding, raw)["w"]

  assert of_rows(a=500, b=300, c=100, none=100) == ""
  # Half of |0.3 - 0.5| + |0.5 - 0.3| + |0.1 - 0.1|.
  assert of_rows(a=300, b=500, c=100, none=100) == (
    "shares 20 % apart from the run's (a 50.0 % → 30.0 %, b 30.0 % → 50.0 %, c 10.0 % → 10.0 %)"
  )
  assert of_rows(a=3, b=5, c=1, none=1) == ""  # Ten rows may be so by chance.
  assert of_rows(a=450, b=300, c=150, none=100) == ""
  assert drift.remark_on_labels(encoding.label, np.repeat([0, 1], [880, 120])) == ""
  said = drift.remark_on_labels(encoding.label, np.repeat([0, 1], [750, 250]))
  assert said.startswith("shares 15 % apart from the run's (0 90.0 % → 75.0 %")
  number = labels.Label("y", (), 3.0, 2.0)
  rng = np.random.default_rng(0)
  assert drift.remark_on_labels(number, rng.normal(size=500)) == ""
  said = drift.remark_on_labels(number, 0.5 * rng.normal(size=500) - 0.9)
  assert re.fullmatch(r"a mean 0\.9 .* below the run's; a standard deviation 0\.\d+ times.*", said)


def test_shares_are_those_of_the_reference_and_come_back(ask):
  one, _ = ask(put=dict(w=_cycle("a", "b", None)))
  kept = encoding_lib.from_text(one.columns)
  assert encoding_lib.from_text(kept.to_text()) == kept
  shares = {feature.name: feature.shares for feature in kept.features}
  assert shares["w"] == pytest.approx([1 / 3, 1 / 3], abs=0.05) and shares["v"] == ()
  assert sum(kept.label.shares) == pytest.approx(1.0)
  content = json.loads(one.columns)
  content["label"]["shares"] = [-2.0] * len(kept.label.classes)
  with pytest.raises(ValueError, match="shares of"):
    encoding_lib.from_json(content)


def test_a_run_that_goes_on_may_name_columns_that_were_dropped(ask):
  put = dict(constant=[7] * _ROWS, w=_cycle("a", "b"))
  one, _ = ask(put=put, features="v,constant")
  assert list(json.loads(one.columns)["dropped"]) == ["constant"]
  two, _ = ask(put=put, features="v,constant", columns=one.columns, seed=5)
  assert two.columns == one.columns
  _refused(
    lambda: ask(put=put, features="v,w", columns=one.columns), "--features=v,w in place of v"
  )
  # A later table may lack the columns that the model does not read.
  one, _ = ask(put=put, drop_columns="w")
  two, _ = ask(name="later", drop_columns="w", columns=one.columns)
  assert two.columns == one.columns


@pytest.mark.parametrize("num_values", [19, 20])
def test_texts_that_are_there_once_are_ids_from_twenty_on(num_values):
  texts = values.Column.of("w", [f"name {i}" for i in range(num_values)])
  feature, remark = features.fit(texts, np.ones(num_values, bool))
  assert (feature is None) == (num_values == 20)
  assert ("an id" in remark) == (num_values == 20)
  _, remark = features.fit(values.Column.of("v", range(num_values)), np.ones(num_values, bool))
  assert ("an id" in remark) == (num_values == 20)


@pytest.mark.parametrize("is_private", [False, True])
@pytest.mark.parametrize("which", [min, max])
def test_files_without_rows_are_clients(tmp_path, is_private, which):
  folder = tmp_path / "clients"
  folder.mkdir()
  for i in range(_NUM_CLIENTS):
    (folder / f"s{i}.csv").write_text("y,v\n" + "".join(f"{j % 2},{j}\n" for j in range(6)))
  asked = dict(label_column="y", client_column=None, seed=14, is_private=is_private)
  _, before = own_tables.load(folder, **asked)
  emptied = which(before["train"].client_ids)
  assert emptied in ("s0", "s9")  # The first and the last of all.
  (folder / f"{emptied}.csv").write_text("y,v\n")
  one, splits = own_tables.load(folder, **asked)
  if not is_private:
    assert "dropped: 1 clients with no examples\n" in one.description
    assert emptied not in {i for files in splits.values() for i in files.client_ids}
    return
  assert splits["train"].client_ids == before["train"].client_ids
  num_examples = dict(zip(splits["train"].client_ids, splits["train"].num_examples))
  assert num_examples.pop(emptied) == 0 and set(num_examples.values()) == {6}
  assert splits["train"].handle(emptied, (0, 0))["index"] == -1
  assert one.defaults["clients_per_round"] == len(before["train"].client_ids)


_DAY = datetime.datetime(2020, 1, 1)


@pytest.mark.parametrize("column", ["y", "v", "w"])
@pytest.mark.parametrize("value", [_DAY, [1], b"\xff", "\0"])
def test_in_private_runs_a_clients_types_change_its_own_rows_alone(tmp_path, column, value):
  folder = tmp_path / "clients"
  folder.mkdir()
  columns = dict(y=[0, 1] * 4, v=list(range(8)), w=list("aabbaabb"))

  asked = dict(label_column="y", client_column=None, seed=14, is_private=True)
  for i in range(_NUM_CLIENTS):
    parquet.write_table(pa.table(columns), folder / f"s{i}.parquet")
  one, splits = own_tables.load(folder, **asked)
  whole, changed = pools.by_client(splits), splits["train"].client_ids[0]
  other = {**columns, column: [value] * 8}
  parquet.write_table(pa.table(other), folder / f"{changed}.parquet")
  two, parts = own_tables.load(folder, **asked)
  assert two.columns == one.columns and two.description == one.description
  assert parts["train"].client_ids == splits["train"].client_ids
  found = pools.by_client(parts)
  assert len(found[changed][1]) == (0 if column == "y" else 8)
  for client in set(whole) - {changed}:
    np.testing.assert_array_equal(found[client][0], whole[client][0])
    np.testing.assert_array_equal(found[client][1], whole[client][1])


@pytest.mark.parametrize("is_private", [False, True])
def test_nested_columns_are_dropped_or_refused_where_they_are_named(ask, is_private):
  pairs = pa.array([[("a", 1)]] * _ROWS, pa.map_(pa.string(), pa.int64()))
  put = dict(many=[[1, 2]] * _ROWS, both=[{"a": 1}] * _ROWS, pairs=pairs)
  put["day"] = [datetime.datetime(2020, 1, 1)] * _ROWS
  one, _ = ask("parquet", put=put, is_private=is_private)
  dropped = json.loads(one.columns)["dropped"]
  assert set(dropped) == set(put)
  for name, kind in zip(put, ("list<", "struct<", "map<", "timestamp[")):
    assert dropped[name].startswith(f"of type {kind}")
    asked = dict(put=put, features=f"v,{name}", is_private=is_private)
    _refused(lambda asked=asked: ask("parquet", **asked), f"of type {kind}", "leave it out")
  site = [[i % _NUM_CLIENTS] for i in range(_ROWS)]
  _refused(lambda: ask("parquet", put=dict(site=site)), "clients of type list", "--client_column")


@pytest.mark.parametrize("flag", ["features", "classes"])
@pytest.mark.parametrize("text", ["v\nw", "\n"])
def test_line_breaks_in_flags_are_refused(ask, flag, text):
  _refused(lambda: ask(**{flag: text}), f"--{flag}={text!r}", "on one line")


def test_names_of_columns_may_have_line_breaks(ask):
  one, _ = ask(put={"v\nw": _TURN % 3}, features='v,"v\nw"')
  assert [f["name"] for f in json.loads(one.columns)["features"]] == ["v", "v\nw"]
  put = {"v\nw": _TURN, "x" * 9999: _TURN}
  assert len(ask(put=put)[0].description) < 9999
  _refused(lambda: ask(put=put, label_column="yy"), r"'site', 'y', 'v', 'v\nw', 'xxx")


@pytest.fixture(params=["pipe", "socket", "device", "folder", "broken link"])
def strange(request):
  """Makes what is no regular file."""

  def make(path):
    if request.param == "pipe":
      os.mkfifo(path)
    elif request.param == "socket":
      with socket.socket(socket.AF_UNIX) as one:
        folder = os.open(path.parent, os.O_RDONLY)
        one.bind(f"/proc/self/fd/{folder}/{path.name}")  # Its own path may be too long.
        os.close(folder)
    elif request.param == "folder":
      path.mkdir()
    else:
      path.symlink_to("/dev/zero" if request.param == "device" else "/nowhere")

  make.kind = request.param
  return make


def test_what_is_no_regular_file_is_refused(tmp_path, strange):
  folder = tmp_path / "tables"
  folder.mkdir()
  (folder / "a.csv").write_text("site,y,v\n1,2,3\n")
  for ending in ("csv", "csv.gz", "parquet"):
    path = folder / f"b.{ending}"
    strange(path)
    paths = [folder] if strange.kind in ("folder", "broken link") else [folder, path]
    for data_dir in map(str, paths):
      _refused(
        lambda to=data_dir: own_tables.load(to, label_column="y"), f"{path} is no regular file"
      )
    path.rmdir() if path.is_dir() else path.unlink()


def test_files_of_other_tasks_are_regular(tmp_path, strange):
  one = data_set.DataSet("D", ("d.csv",), "c", "user", "texts", 1)
  path = tmp_path / "d.csv"
  strange(path)
  if strange.kind not in ("folder", "broken link"):
    _refused(lambda: one.find(str(path)), "is no regular file")
  _refused(lambda: one.find(str(tmp_path)), "expected d.csv")
  for split in ("train", "test"):
    (tmp_path / split).mkdir()
    strange(tmp_path / split / "a.json")
  _refused(lambda: one.find(str(tmp_path)), "a.json is no file")
  _refused(lambda: glove.find_file(str(path), "", str(tmp_path)), "no file")


def _kept(splits):
  return f"{splits['train'].directory}.json"


@pytest.mark.parametrize("damage", ["mean", "classes", "empty", "list", "null", "cut", "old"])
def test_a_damaged_description_is_made_anew(ask, damage, caplog):
  one, splits = ask(label=_cycle("no", "yes"))
  path = _kept(splits)
  with open(path, encoding="utf-8") as file:
    text = file.read()
  kept = json.loads(text)
  if damage == "mean":
    kept["summary"]["encoding"]["features"][0]["mean"] += 1.0
  elif damage == "classes":
    kept["summary"]["encoding"]["label"]["classes"].reverse()
  elif damage == "old":
    kept = kept["summary"]
  broken = {"empty": "", "list": "[]", "null": "null", "cut": text[:-20]}
  with open(path, "w", encoding="utf-8") as file:
    file.write(broken.get(damage, json.dumps(kept)))
  two, again = ask(label=_cycle("no", "yes"))
  assert (two.columns, two.labels) == (one.columns, one.labels)
  assert "made anew from the table" in caplog.text
  for client, (x, y) in pools.by_client(splits).items():
    np.testing.assert_array_equal(pools.by_client(again)[client][0], x)
    np.testing.assert_array_equal(pools.by_client(again)[client][1], y)
  with open(path, encoding="utf-8") as file:
    assert file.read() == text
