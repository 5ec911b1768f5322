"""EMNIST of Hugging Face (Parquet): the clients are those of LEAF and TFF."""

from helpers import emnist_fixtures
import numpy as np

from tasks.emnist import readers


def _synthetic():
  """Writers 7, 40 and 321, with ink of all levels in a corner of white images."""
  writers = emnist_fixtures.make_writers([9, 4, 1])
  for levels, _ in writers.values():
    levels.reshape(-1, 28, 28)[:, 8:, :] = 255
  return dict(zip(("7", "40", "321"), writers.values()))


def _write_all(folder, writers):
  """The files of each format that hold these writers."""
  emnist_fixtures.write_leaf(folder, writers, {})
  return {
    "sqlite": emnist_fixtures.write_sqlite(folder / "a.sqlite", writers),
    "without index": emnist_fixtures.write_sqlite(folder / "b.sqlite", writers, index=False),
    "black": emnist_fixtures.write_parquet(folder / "black.parquet", writers),
    "white": emnist_fixtures.write_parquet(folder / "white.parquet", writers, ink=0),
  }


def _assert_the_same(folder, writers):
  paths = _write_all(folder, writers)
  found = {name: readers.iterate_file(str(path)) for name, path in paths.items()}
  found["leaf"] = readers.iterate_leaf([str(folder / "train" / "all_data_train.json")])
  for name, iterator in found.items():
    clients = {writer: (x, y) for writer, x, y in iterator}
    assert set(clients) == set(writers), name
    for writer, (x, y) in clients.items():
      levels, labels = writers[writer]
      assert x.dtype == np.float32 and y.dtype == np.int32
      np.testing.assert_allclose(x.reshape(-1, 784), levels / 255, atol=1e-4, err_msg=name)
      np.testing.assert_array_equal(y, labels, err_msg=name)
  return paths


def test_all_formats_hold_the_same_clients(tmp_path):
  paths = _assert_the_same(tmp_path, _synthetic())
  splits = [
    emnist_fixtures.load(path, tmp_path / "cache", min_examples_per_client=1, seed=3)
    for path in paths.values()
  ]
  for split in ("train", "test"):
    first = splits[0][split]
    for other in splits[1:]:
      assert other[split].client_ids == first.client_ids and other[split].x_dtype == "uint8"
      for array, expected in zip(other[split].load(), first.load()):
        np.testing.assert_array_equal(array, expected)


def test_one_writers_images_do_not_turn_those_of_others(tmp_path):
  writers = _synthetic()
  first = min(writers)  # By which it was once decided whether paper is black.
  turned = {**writers, first: (255 - writers[first][0], writers[first][1])}
  whole, other = (
    {w: x.tobytes() for w, x, _ in readers.iterate_file(str(path))}
    for path in (
      emnist_fixtures.write_parquet(tmp_path / "whole.parquet", writers),
      emnist_fixtures.write_parquet(tmp_path / "other.parquet", turned),
    )
  )
  del whole[first], other[first]
  assert whole == other and len(whole) == 2


def _assert_wrong(path, *parts):
  with emnist_fixtures.refused(str(path), *parts):
    list(readers.iterate_file(str(path)))


def test_broken_parquet_files(tmp_path):
  import pyarrow as pa
  from pyarrow import parquet as pyarrow_parquet

  path = tmp_path / "train-00000-of-00001.parquet"
  path.write_bytes(b"no Parquet")
  _assert_wrong(path, "not readable as Parquet", "flwrlabs/femnist")

  def write(**changes):
    [levels] = emnist_fixtures.make_writers([1]).values()
    row = dict(
      image=dict(bytes=emnist_fixtures.png(levels[0]), path=""), writer_id="f1", character=3
    )
    row = {name: value for name, value in {**row, **changes}.items() if value != "left out"}
    pyarrow_parquet.write_table(pa.Table.from_pylist([row]), path)

  for name, found in (("f1", "f1"), (3, "3")):
    write(writer_id=name)
    assert [writer for writer, *_ in readers.iterate_file(str(path))] == [found]
  for changes, message in (
    (dict(character="left out"), "no columns ['character']"),
    (dict(image=dict(bytes=b"no PNG", path="")), "writer 'f1'"),
    (dict(image=b"no structure"), "cannot be read"),
    (dict(character=62), "labels that are not integers in 0..61"),
    (dict(character="A"), "labels that are not integers in 0..61"),
    (dict(writer_id=None), "rows without a writer_id"),
    (dict(writer_id=3.5), "neither a text nor a whole number"),
  ):
    write(**changes)
    _assert_wrong(path, message)
