"""Client files: what is written is what a graph, a data set and `load` read back."""

import fcntl
import json
import multiprocessing
import os
import pathlib
import time

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import pytest
import tensorflow as tf

from tff_superquantile.simulation import client_files


def make_clients(ids=("f1", "f2", "f3"), shape=(2, 3), dtype=np.uint8, seed=0):
  rng = np.random.default_rng(seed)
  clients = []
  for i, client_id in enumerate(ids):
    n = i + 1
    x = rng.integers(0, 256, (n,) + shape).astype(dtype)
    clients.append((client_id, x, rng.integers(0, 62, n).astype(np.int32)))
  return clients


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_load_returns_what_was_written(tmp_path, dtype, shape):
  clients = make_clients(shape=shape, dtype=dtype)
  num_classes = 1 + max(y.max() for _, _, y in clients)
  written = client_files.write_client_files(tmp_path / "c", iter(clients), x_scale=0.5)
  opened = client_files.open_client_files(tmp_path / "c")
  for files in (written, opened):
    assert files.client_ids == ("f1", "f2", "f3")
    assert files.num_examples.tolist() == [1, 2, 3]
    assert files.num_examples.dtype == np.int64
    assert files.num_classes == num_classes
    x, y, offsets = files.load()
    assert offsets.tolist() == [0, 1, 3, 6] and offsets.dtype == np.int64
    np.testing.assert_array_equal(x, np.concatenate([c[1] for c in clients]))
    np.testing.assert_array_equal(y, np.concatenate([c[2] for c in clients]))
    assert x.dtype == dtype and y.dtype == np.int32
    np.testing.assert_array_equal(files.decode(x), x.astype(np.float32) * np.float32(0.5))


def test_subset(tmp_path):
  clients = make_clients()
  files = client_files.write_client_files(tmp_path / "c", clients)
  part = files.subset(["f3", "f1"])
  assert part.client_ids == ("f3", "f1")
  assert part.num_examples.tolist() == [3, 1]
  for x, _, offsets in (part.load(), files.load(["f3", "f1"])):
    assert offsets.tolist() == [0, 3, 4]
    np.testing.assert_array_equal(x[:3], clients[2][1])
    np.testing.assert_array_equal(x[3:], clients[0][1])
  with pytest.raises(ValueError, match="'f2'"):
    part.load(["f2"])
  with pytest.raises(ValueError, match="'f2'"):
    part.handle("f2", (0, 0))
  with pytest.raises(ValueError, match="twice"):
    files.subset(["f1", "f1"])


@settings(max_examples=50, deadline=None)
@given(ids=st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=5, unique=True))
def test_any_text_is_an_id(tmp_path_factory, ids):
  ids = [i for i in ids if not any(0xD800 <= ord(c) <= 0xDFFF for c in i)] or ["x"]
  directory = tmp_path_factory.mktemp("ids") / "c"
  clients = make_clients(ids, shape=(1,))
  files = client_files.write_client_files(directory, clients)
  assert files.client_ids == tuple(ids)
  np.testing.assert_array_equal(files.load()[1], np.concatenate([c[2] for c in clients]))


@pytest.mark.parametrize("dtype,scale", [(np.uint8, 1 / 255), (np.float32, 1.0)])
def test_graph_and_decode_give_identical_floats(tmp_path, dtype, scale):
  clients = make_clients(dtype=dtype)
  files = client_files.write_client_files(tmp_path / "c", clients, x_scale=scale)
  read = client_files.build_examples_fn(files, shuffle=False)
  outputs = read.get_concrete_function().structured_outputs
  assert tuple(tf.TensorSpec(t.shape, t.dtype) for t in outputs) == files.input_spec
  x_spec, y_spec = files.input_spec  # The model's, and not the stored one.
  assert x_spec == tf.TensorSpec([None, 2, 3], tf.float32)
  assert y_spec == tf.TensorSpec([None], tf.int32)
  for client_id, x, y in clients:
    got_x, got_y = read(files.handle(client_id, (1, 2)))
    np.testing.assert_array_equal(got_x, files.decode(x).numpy())
    np.testing.assert_array_equal(got_y, y)


def test_clients_are_converted_once_and_the_number_of_dropped_ones_is_kept(tmp_path):
  written = []

  def write():
    for client in make_clients():
      yield client
      written.append(client)

  def count_dropped():
    return 100 * len(written)

  for _ in range(2):
    files = client_files.open_or_write_client_files(
      tmp_path / "c", write, x_scale=0.25, count_dropped=count_dropped
    )
    # Counted when all are written, and once.
    assert (files.num_dropped, files.x_scale) == (100 * len(make_clients()), 0.25)
    assert len(written) == len(make_clients())
  assert client_files.write_client_files(tmp_path / "d", make_clients()).num_dropped is None


def test_shuffle_depends_on_the_seed_alone_and_keeps_pairs(tmp_path):
  n = 50
  x = np.arange(n, dtype=np.uint8)[:, np.newaxis]
  clients = [(i, x, np.arange(n, dtype=np.int32)) for i in ("a", "b")]
  files = client_files.write_client_files(tmp_path / "c", clients)
  read = client_files.build_examples_fn(files, shuffle=True)
  orders = {}
  for seed in [(0, 0), (0, 1), (1, 0), (0, 0)]:
    got_x, got_y = (t.numpy() for t in read(files.handle("a", seed)))
    np.testing.assert_array_equal(got_x[:, 0], got_y)
    assert sorted(got_y) == list(range(n))
    assert orders.setdefault(seed, tuple(got_y)) == tuple(got_y)
  assert len(set(orders.values())) == 3
  np.testing.assert_array_equal(read(files.handle("b", (0, 0)))[1], orders[0, 0])


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_a_handle_without_examples_reads_none(tmp_path, dtype, shuffle, shape):
  files = client_files.write_client_files(tmp_path / "c", make_clients(shape=shape, dtype=dtype))
  usual = client_files.build_examples_fn(files, shuffle=shuffle)
  read = client_files.build_examples_fn(files, shuffle=shuffle, may_lack_examples=True)
  outputs = read.get_concrete_function().structured_outputs
  assert tuple(tf.TensorSpec(t.shape, t.dtype) for t in outputs) == files.input_spec
  for client_id in files.client_ids:
    handle = files.handle(client_id, (5, 6))
    for tensor, expected in zip(read(handle), usual(handle)):
      np.testing.assert_array_equal(tensor, expected)
    (without,) = files.handles([client_id], [(5, 6)], [False])
    assert list(without) == list(handle) and without["index"].dtype == handle["index"].dtype
    # Its noise is that of the client in this round, whether it has examples or not.
    np.testing.assert_array_equal(without["seed"], handle["seed"])
    x, y = read(without)
    assert (x.shape, y.shape) == ((0, *shape), (0,))
    assert (x.dtype, y.dtype) == (tf.float32, tf.int32)
  with pytest.raises(ValueError, match="'f9'"):
    files.handles(["f9"], [(0, 0)], [False])


def test_neither_data_nor_their_place_are_in_the_graph(tmp_path):
  clients = [(f"c{i}", np.zeros((500, 2, 3), np.uint8), np.zeros(500, np.int32)) for i in range(50)]
  sizes = []
  for name, some in (("a", clients[:1]), ("another_place", clients)):
    files = client_files.write_client_files(tmp_path / name, some)
    read = client_files.build_examples_fn(files, shuffle=True)
    sizes.append(read.get_concrete_function().graph.as_graph_def().ByteSize())
  assert sizes[0] == sizes[1]


_LABEL = np.zeros(1, np.int32)


@pytest.mark.parametrize(
  "clients,message",
  [
    ([], "no clients"),
    ([("a", np.zeros((0, 2), np.uint8), np.zeros(0, np.int32))], "at least one example"),
    ([("a", np.zeros((1, 2), np.uint8), np.zeros(2, np.int32))], "one label for each"),
    ([("a", np.uint8(1), np.int32(1))], "at least one example"),
    ([("a", np.zeros((1, 2), np.float64), _LABEL)], "float64"),
    ([("a", np.zeros((1, 2), np.uint8), np.zeros(1, np.int64))], "int64"),
    ([("a", np.full((1, 2), np.nan, np.float32), _LABEL)], "not finite"),
    ([("a", np.full((1, 2), np.inf, np.float32), _LABEL)], "not finite"),
    ([("", np.zeros((1, 2), np.uint8), _LABEL)], "empty or too long"),
    ([("a" * 300, np.zeros((1, 2), np.uint8), _LABEL)], "empty or too long"),
    ([("a", np.zeros((1, 2), np.uint8), _LABEL)] * 2, "'a' twice"),
    ([("a", np.zeros((1, 2), np.uint8), _LABEL - 1)], "label -1.*from 0"),
    ([("\ud800", np.zeros((1, 2), np.uint8), _LABEL)], "half of a character"),
    (
      [("a", np.zeros((1, 2), np.uint8), _LABEL), ("b", np.zeros((1, 3), np.uint8), _LABEL)],
      "'b'.*alike",
    ),
    (
      [("a", np.zeros((1, 2), np.uint8), _LABEL), ("b", np.zeros((1, 2), np.float32), _LABEL)],
      "'b'.*alike",
    ),
  ],
)
def test_clients_that_cannot_be_written_leave_nothing(tmp_path, clients, message):
  with pytest.raises(ValueError, match=message):
    client_files.write_client_files(tmp_path / "c", iter(clients))
  assert not os.listdir(tmp_path)


def test_an_existing_directory_is_not_written_over(tmp_path):
  client_files.write_client_files(tmp_path / "c", make_clients())
  with pytest.raises(ValueError, match="already there"):
    client_files.write_client_files(tmp_path / "c", make_clients())


def test_a_cache_under_a_file_is_refused(tmp_path):
  (tmp_path / "f").write_text("x")
  with pytest.raises(ValueError, match="can be written"):
    client_files.write_client_files(tmp_path / "f" / "c", make_clients())


def test_of_several_processes_one_converts(tmp_path):
  def make():
    with open(tmp_path / "made", "a", encoding="utf-8") as file:
      file.write("once ")
    time.sleep(0.5)
    return iter(make_clients())

  def convert():
    assert len(client_files.open_or_write_client_files(tmp_path / "cache/c", make).client_ids) == 3

  processes = [multiprocessing.get_context("fork").Process(target=convert) for _ in range(3)]
  for process in processes:
    process.start()
  for process in processes:
    process.join()
  assert [process.exitcode for process in processes] == [0, 0, 0]
  assert (tmp_path / "made").read_text() == "once "


def test_what_killed_conversions_left_is_removed(tmp_path):
  left, locked, fresh, other = (
    tmp_path / name
    for name in ("c.1-0123abcd.tmp", "c.2-0123abcd.tmp", "d.3-0123abcd.tmp", "mine.tmp")
  )
  for folder in (left, locked, fresh, other):
    folder.mkdir()
    (folder / "f1.bin").touch()
    if folder != fresh:
      os.utime(folder, (0, 0))
  descriptor = os.open(locked, os.O_RDONLY)
  fcntl.flock(descriptor, fcntl.LOCK_EX)
  try:
    client_files.write_client_files(tmp_path / "c", make_clients())
  finally:
    os.close(descriptor)
  assert set(tmp_path.iterdir()) == {tmp_path / "c", locked, fresh, other}


def test_a_conversion_is_not_removed_by_another(tmp_path):
  def watched():
    yield "a", np.ones((1, 2), np.uint8), _LABEL
    (made,) = tmp_path.iterdir()
    os.utime(made, (0, 0))
    client_files.write_client_files(tmp_path / "d", make_clients())
    yield "b", np.ones((1, 2), np.uint8), _LABEL

  assert client_files.write_client_files(tmp_path / "c", watched()).client_ids == ("a", "b")


def test_whoever_converts_first_wins(tmp_path):
  def interrupted():
    yield "late", np.ones((1, 2), np.uint8), _LABEL
    client_files.write_client_files(tmp_path / "c", [("early", np.ones((1, 2), np.uint8), _LABEL)])

  files = client_files.write_client_files(tmp_path / "c", interrupted())
  assert files.client_ids == ("early",)
  assert os.listdir(tmp_path) == ["c"]


def test_nothing_shows_before_the_last_client_is_written(tmp_path):
  def watched():
    for client in make_clients():
      assert not (tmp_path / "c").exists()
      yield client

  client_files.write_client_files(tmp_path / "c", watched())
  assert sorted(os.listdir(tmp_path / "c")) == ["f1.bin", "f2.bin", "f3.bin", "index.json"]


def _truncate(path: pathlib.Path):
  path.write_bytes(path.read_bytes()[:-1])


def _flip(path: pathlib.Path):
  content = path.read_bytes()
  path.write_bytes(bytes([content[0] ^ 1]) + content[1:])


def _swap(path: pathlib.Path, other: pathlib.Path):
  content = path.read_bytes()
  path.write_bytes(other.read_bytes())
  other.write_bytes(content)


def _set(key, value):
  def damage(directory: pathlib.Path):
    index = json.loads((directory / "index.json").read_text())
    index[key] = value
    (directory / "index.json").write_text(json.dumps(index))

  return damage


@pytest.mark.parametrize(
  "damage,message",
  [
    (lambda d: _truncate(d / "f2.bin"), r"f2\.bin has 19 bytes, expected 20"),
    (lambda d: (d / "f2.bin").unlink(), r"f2\.bin is missing"),
    (lambda d: _flip(d / "f2.bin"), r"f2\.bin has other bytes"),
    (lambda d: _swap(d / "f2.bin", d / "g2.bin"), r"f2\.bin has other bytes"),
    (lambda d: (d / "index.json").unlink(), "no index.json"),
    (lambda d: _truncate(d / "index.json"), "damaged index"),
    (lambda d: (d / "index.json").write_text("[]"), "damaged index"),
    (lambda d: (d / "index.json").write_text("{}"), "damaged index"),
    (lambda d: (d / "index.json").write_text("[" * 50_000), "damaged index"),
    (_set("format_version", 99), "version 99"),
    (_set("num_examples", [1]), "checksum"),
    (_set("x_dtype", "nonsense"), "checksum"),
    (_set("x_shape", [3, 2]), "checksum"),
    (_set("x_scale", 1.0), "checksum"),
    (_set("x_scale", float("nan")), "checksum"),
    (_set("client_ids", ["f1", "g2", "f2", "f3"]), "checksum"),
  ],
)
def test_damage_is_found_on_opening(tmp_path, damage, message):
  clients = make_clients()
  clients.insert(2, ("g2", clients[1][1] ^ 1, clients[1][2]))  # As large as f2.
  client_files.write_client_files(tmp_path / "c", clients, x_scale=1 / 255)
  damage(tmp_path / "c")
  with pytest.raises(ValueError, match=message) as error:
    client_files.open_client_files(tmp_path / "c")
  assert f"delete the directory {tmp_path / 'c'}" in str(error.value)


@pytest.mark.parametrize("seed", [1, (1,), (1.0, 2.0), (1, 2, 3)])
def test_a_seed_is_two_integers(tmp_path, seed):
  files = client_files.write_client_files(tmp_path / "c", make_clients())
  with pytest.raises(ValueError, match="two integers"):
    files.handle("f1", seed)


def test_decode_refuses_what_load_does_not_return(tmp_path):
  files = client_files.write_client_files(tmp_path / "c", make_clients(), x_scale=1 / 255)
  with pytest.raises(ValueError, match="float32"):
    files.decode(np.zeros((1, 2, 3), np.float32))
