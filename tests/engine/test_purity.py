"""What is kept of data sets is what TFF gives; what is not known to be pure is not kept."""

import contextlib
import functools
import os
import shutil
import sqlite3

from helpers import pure_programs
from helpers import random_data_sets
from helpers.calls import at_clients
from helpers.calls import invoke
import numpy as np
import pytest
import tensorflow as tf

# TensorFlow exports no class for what it knows of its ops.
from tensorflow.python.framework import op_def_registry
import tensorflow_federated as tff

from tff_superquantile.engine import runtime
from tff_superquantile.engine.cohort import cohort_context
from tff_superquantile.engine.cohort.graphs import data_sets
from tff_superquantile.engine.cohort.graphs import elements
from tff_superquantile.engine.cohort.graphs import ops
from tff_superquantile.engine.cohort.graphs import purity

pytestmark = pytest.mark.usefixtures("restored_context")
_DATA = tf.data.Dataset


@functools.cache
def _pure():
  """The names of the texts that the elements are, and the data sets."""
  expressions, of_elements = pure_programs.of_elements()
  of_data_sets = pure_programs.of_data_sets()
  names = [name for name, one in of_data_sets.items() for _ in one]
  joined = functools.reduce(_DATA.concatenate, of_data_sets.values())
  return [*expressions, *expressions, *names], of_elements.unbatch().concatenate(joined)


def _parsed(text):
  protos = (tf.io.decode_base64(part).numpy() for part in text.split())
  return [tf.make_ndarray(type(tf.make_tensor_proto(0)).FromString(proto)) for proto in protos]


def _ops_of(data_set):
  graph_def = data_sets.Source(data_set)._graph_def()
  return {node.op for node in ops.nodes_of(graph_def)}


def test_the_list_has_each_op_that_is_compared_and_no_other():
  _, held = _pure()
  specs = (tf.TensorSpec([None, 3]), tf.TensorSpec([], tf.string))
  read, _ = elements.build_graphs(specs)
  found = _ops_of(held) | {node.op for node in read.graph_def.node}
  assert found - {"Placeholder", "ShuffleDatasetV3"} == purity.OPS


def test_tensorflow_takes_each_op_of_the_list_for_pure_or_a_reason_is_there():
  stateful = {op for op in purity.OPS if op_def_registry.get(op).is_stateful}
  assert stateful == purity.REASONS.keys() and all(purity.REASONS.values())


def test_what_is_kept_is_what_tffs_runtime_gives(native):
  names, held = _pure()
  kind = tff.SequenceType(np.str_)

  @tff.tensorflow.computation(kind)
  def texts(data_set):
    one = data_set.batch(len(names)).get_single_element()
    return tf.ensure_shape(one, [len(names)])

  assert data_sets.source(held, kind).is_fixed
  expected = invoke(native, at_clients(texts), [held])[0]
  of_context = cohort_context.CohortContext()
  for _ in range(2):
    found = invoke(of_context, at_clients(texts), [held])[0]
    for name, *texts_of in zip(names, found, expected, strict=True):
      if texts_of[0] != texts_of[1]:  # The last bit of a number may be another.
        for ours, theirs in zip(*map(_parsed, texts_of), strict=True):
          np.testing.assert_allclose(ours, theirs, rtol=1e-5, err_msg=name)
  assert of_context._store._bytes


_NUMBERS = tff.SequenceType(np.int64)
_digits = tff.tensorflow.computation(
  lambda d: d.reduce(np.int64(1), lambda total, x: (1009 * total + x) % 1000000007), _NUMBERS
)
_QUERY = "SELECT serialized_example_proto FROM examples WHERE client_id = 'a'"


def _write(folder, numbers):
  """Writes one set of numbers in every format."""
  texts = [str(number) for number in numbers]
  for name, text in {"lines": "\n".join(texts), "csv": "\n".join(["v", *texts])}.items():
    (folder / name).write_text(text + "\n")
  (folder / "fixed").write_bytes(np.uint8(numbers).tobytes())
  with tf.io.TFRecordWriter(str(folder / "records")) as writer:
    for text in texts:
      writer.write(text.encode())
  shutil.rmtree(folder / "saved", ignore_errors=True)
  _DATA.from_tensor_slices(np.int64(numbers)).save(str(folder / "saved"))
  shutil.rmtree(folder / "names", ignore_errors=True)
  (folder / "names").mkdir()
  for text in texts:
    (folder / "names" / text).touch()
  with contextlib.closing(sqlite3.connect(folder / "table")) as database:
    database.execute(
      "create table if not exists examples (serialized_example_proto text, client_id text)"
    )
    database.execute("delete from examples")
    database.executemany("insert into examples values (?, 'a')", [[text] for text in texts])
    database.commit()


def _sql(path, query):
  return tf.data.experimental.SqlDataset("sqlite", path, query, (tf.string,)).map(_number)


def _number(text):
  return tf.strings.to_number(text, tf.int64)


def _byte(text):
  return tf.cast(tf.io.decode_raw(text, tf.uint8)[0], tf.int64)


def _in_files(folder):
  """Data sets that read files, whichever way."""
  path = {name: str(folder / name) for name in os.listdir(folder)}
  text = tf.io.read_file

  def once(name):
    return _DATA.from_tensors(path[name])

  lines = tf.data.TextLineDataset(path["lines"])
  spec = tf.TensorSpec([], tf.int64)
  csv = tf.data.experimental.make_csv_dataset(path["csv"], 1, num_epochs=1, shuffle=False)
  return {
    "lines": lines.map(_number),
    "lines in a function": once("lines").flat_map(tf.data.TextLineDataset).map(_number),
    "a whole file": once("lines").map(lambda p: _number(tf.strings.split(text(p))[0])),
    "a whole file in a branch": once("lines")
    .map(
      lambda p: tf.strings.length(
        tf.switch_case(tf.strings.length(p) % 2, [lambda: text(p), lambda: text(p)])
      )
    )
    .map(lambda n: tf.cast(n, tf.int64)),
    "a whole file in a loop": once("lines")
    .map(
      lambda p: tf.while_loop(
        lambda i, _: i < 2, lambda i, n: (i + 1, n + tf.strings.length(text(p))), (0, 0)
      )[1]
    )
    .map(lambda n: tf.cast(n, tf.int64)),
    "csv": tf.data.experimental.CsvDataset(path["csv"], [tf.int64], header=True).map(lambda v: v),
    "csv, made": csv.map(lambda row: tf.cast(row["v"][0], tf.int64)),
    "csv in a function": once("csv")
    .flat_map(lambda p: tf.data.experimental.CsvDataset(p, [tf.int64], header=True))
    .map(lambda v: v),
    "bytes": tf.data.FixedLengthRecordDataset(path["fixed"], 1).map(_byte),
    "bytes in a function": once("fixed")
    .flat_map(lambda p: tf.data.FixedLengthRecordDataset(p, 1))
    .map(_byte),
    "records": tf.data.TFRecordDataset(path["records"]).map(_number),
    "records in parallel": once("records")
    .interleave(tf.data.TFRecordDataset, cycle_length=2, num_parallel_calls=2)
    .map(_number),
    "saved": _DATA.load(path["saved"], spec),
    "saved in a function": once("saved").flat_map(lambda p: _DATA.load(path["saved"], spec)),
    "names of files": once("names").map(
      lambda p: tf.cast(tf.size(tf.io.matching_files(p + "/*")), tf.int64)
    ),
    "names of files in a function": once("names")
    .flat_map(lambda p: _DATA.list_files(p + "/*", shuffle=False))
    .map(lambda p: _number(tf.strings.split(p, "/")[-1])),
    "windows": lines.window(2).flat_map(lambda w: w.batch(2)).unbatch().map(_number),
    "groups": lines.group_by_window(lambda x: np.int64(0), lambda k, g: g.batch(9), 9)
    .unbatch()
    .map(_number),
    "a scan": lines.scan(np.int64(0), lambda s, x: (s + _number(x), s + _number(x))),
    "cached": lines.map(_number).cache(),
    "a table in a scan": _DATA.range(1).scan(
      np.int64(0), lambda s, x: (s, tf.cast(tf.strings.length(text(path["lines"])), tf.int64))
    ),
    "Python": _DATA.range(1)
    .map(
      lambda _: tf.numpy_function(
        lambda: np.int64(len(open(path["lines"]).read())), [], tf.int64, stateful=False
      )
    )
    .map(lambda n: tf.ensure_shape(n, [])),
    "a generator": _DATA.from_generator(
      lambda: map(int, open(path["lines"])), output_signature=spec
    ),
    "sql": _sql(path["table"], _QUERY.replace("client_id", "'a'")),
    "sql of TFF": _sql(path["table"], _QUERY),
  }


@pytest.mark.parametrize("is_shuffled", [False, True])
def test_what_reads_files_reads_them_in_each_call(tmp_path, is_shuffled):
  _write(tmp_path, [1, 2, 3])
  tff.framework.set_default_context(cohort_context.CohortContext())
  program = at_clients(_digits)
  for name, held in _in_files(tmp_path).items():
    one, found = held.shuffle(1) if is_shuffled else held, []
    for numbers in ([4, 5], [40, 50, 60], [88], [4, 5], [4, 5]):
      _write(tmp_path, numbers)
      found.append(int(program([one])[0]))
    assert len({*found[:3]}) == 3 and found[3:] == found[:1] * 2, name
    is_kept = name == "sql of TFF" and not is_shuffled
    assert data_sets.source(one, _NUMBERS).is_fixed == is_kept, name


def test_what_draws_without_a_seed_draws_in_each_call():
  """Each of two equal data sets its own numbers."""
  tff.framework.set_default_context(cohort_context.CohortContext())
  program, one = at_clients(_digits), _DATA.range(5)
  mixed = functools.partial(_DATA.sample_from_datasets, [_DATA.range(40), _DATA.range(50, 99)])
  more = {
    "a mixture": mixed,
    "a mixture in a function": lambda: _DATA.range(1).flat_map(lambda _: mixed()),
    "shuffled in a function": lambda: _DATA.range(1).flat_map(
      lambda _: _DATA.range(99).shuffle(99)
    ),
    "in one order": lambda: _DATA.range(99).shuffle(99, reshuffle_each_iteration=False),
  }
  for name in (*random_data_sets.drawing(one), *more):
    held = [{**random_data_sets.drawing(one), **more}[name]() for _ in range(2)]
    found = [int(number) for _ in range(3) for number in program(held)]
    assert len(set(found)) == 6, (name, found)


def test_what_has_resources_begins_anew_in_each_call(native):
  """All clients at once, and client by client."""
  makers = random_data_sets.beginning_anew(_DATA.range(6), 3)
  held = [make() for make in makers.values()]
  kept = _DATA.range(90).shuffle(90, reshuffle_each_iteration=False)
  drawn = _DATA.range(9).map(lambda _: tf.random.uniform([], 0, 99, tf.int64)).cache()
  for one in held:
    list(one.take(3))  # The user looks, too.
  program = at_clients(_digits)
  expected = invoke(native, program, held)
  for of_context in (cohort_context.CohortContext(), runtime.create_sync_context(2)):
    for _ in range(2):
      found = invoke(of_context, program, held)
      assert dict(zip(makers, found)) == dict(zip(makers, expected))
    others = [tuple(invoke(of_context, program, [kept, drawn])) for _ in range(3)]
    assert all(len(set(own)) == 3 for own in zip(*others))


def test_an_op_that_is_not_listed_is_read_anew(monkeypatch):
  held = _DATA.range(3).map(lambda x: tf.cond(x > 0, lambda: x * x, lambda: x))
  monkeypatch.setattr(purity, "OPS", purity.OPS - {"Mul"})
  assert data_sets.Source(_DATA.range(3).map(lambda x: x + x)).is_fixed
  assert not data_sets.Source(held).is_fixed
  assert not data_sets.Source(
    _DATA.range(3).map(lambda x: tf.switch_case(tf.cast(x, tf.int32), [lambda: x, lambda: x * x]))
  ).is_fixed


def test_what_threads_may_give_in_any_order_is_read_anew():
  options = tf.data.Options()
  options.deterministic = False
  one = _DATA.range(9)
  for held in (
    one.map(abs, 2, False),
    one.map(abs, 2).with_options(options),
    one.batch(2, num_parallel_calls=2, deterministic=False),
    one.interleave(_DATA.from_tensors, cycle_length=2, num_parallel_calls=2, deterministic=False),
  ):
    assert not data_sets.Source(held).is_fixed


def test_sqlite_files_with_a_log_are_read_anew(tmp_path):
  """Another process writes them while the file itself stays as it is."""
  _write(tmp_path, [1])
  held = _sql(str(tmp_path / "table"), _QUERY)
  program, of_context = at_clients(_digits), cohort_context.CohortContext()
  with contextlib.closing(sqlite3.connect(tmp_path / "table")) as database:
    database.execute("pragma journal_mode=wal")
    for number in (2, 3):
      database.execute("update examples set serialized_example_proto = ?", [str(number)])
      database.commit()
      assert invoke(of_context, program, [held]) == [1009 + number]


def test_a_cache_in_a_file_is_read_anew(tmp_path):
  held = _DATA.range(3).cache(str(tmp_path / "cache"))
  assert not data_sets.Source(held).is_fixed and data_sets.Source(_DATA.range(3).cache()).is_fixed


def test_files_that_a_component_reads_by_itself_are_read_in_each_call(tmp_path):
  """Of a name in a data set, and of one that it knows."""
  path = str(tmp_path / "lines")

  @tff.tensorflow.computation(tff.SequenceType(np.str_), tff.SequenceType(np.int64))
  def component(names, numbers):
    total = numbers.reduce(np.int64(0), lambda n, x: n + x)
    texts = [tf.io.read_file(name) for name in (path, names.get_single_element())]
    return total, [tf.strings.to_number(tf.strings.split(text)[0], tf.int64) for text in texts]

  @tff.federated_computation(
    *(tff.FederatedType(kind, tff.CLIENTS) for kind in component.type_signature.parameter)
  )
  def program(names, numbers):
    return tff.federated_map(component, (names, numbers))

  of_context = cohort_context.CohortContext()
  held = [_DATA.from_tensors(path)], [_DATA.range(4)]
  for number in (5, 6):
    random_data_sets.write(tmp_path, number)
    total, read = invoke(of_context, program, *held)[0]
    assert (total, *read) == (6, number, number)
