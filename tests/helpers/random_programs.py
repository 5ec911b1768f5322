"""Draws TFF computations at random, with arguments: every intrinsic, on values of every kind."""

import collections
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from helpers import random_data_sets

_INTEGERS = (np.int32, np.int64, np.uint8, np.int16)
_FLOATS = (np.float32, np.float64)
_DTYPES = (*_INTEGERS, *_FLOATS, np.bool_, np.str_)
_SHAPES = ((), (), (2,), (2,), (3, 2), (3, 2), (None,), (None, 2))
_NAMES = "abcd"


def _is_tensor(type_spec) -> bool:
  return isinstance(type_spec, tff.TensorType)


def _leaves(type_spec) -> list:
  if isinstance(type_spec, tff.StructType):
    return [leaf for _, part in tff.structure.to_elements(type_spec) for leaf in _leaves(part)]
  return [type_spec]


def _are(type_spec, dtypes, known: bool = True) -> bool:
  """Tells whether a type consists of tensors of these types, and of known shapes."""
  return all(
    _is_tensor(leaf)
    and leaf.dtype.type in dtypes
    and (not known or tf.TensorShape(leaf.shape).is_fully_defined())
    for leaf in _leaves(type_spec)
  )


class _Drawer:
  """Draws from one seed."""

  def __init__(self, seed: int, folder):
    self.rng = np.random.default_rng(seed)
    self.sizes = self.rng
    self.folder = folder
    self.draws = False

  def one_of(self, options) -> Any:
    return options[int(self.rng.integers(len(options)))]

  def chance(self, probability: float) -> bool:
    return bool(self.rng.random() < probability)

  # Types and values.

  def tensor_type(self, dtypes=_DTYPES, shapes=_SHAPES):
    return tff.TensorType(self.one_of(dtypes), self.one_of(shapes))

  def struct_type(self, part: Callable[[], Any]):
    parts = [part() for _ in range(self.rng.integers(1, 4))]
    if self.chance(0.5):
      return tff.StructType(parts)
    names = self.rng.permutation(list(_NAMES))[: len(parts)]
    pairs = list(zip(map(str, names), parts))
    return tff.StructWithPythonType(pairs, collections.OrderedDict)

  def type(self, depth: int = 0):
    if depth < 2 and self.chance(0.3):
      return self.struct_type(lambda: self.type(depth + 1))
    if depth == 0 and self.chance(0.4):
      return tff.SequenceType(self.element_type())
    return self.tensor_type()

  def element_type(self):
    def tensor():
      return self.tensor_type(_DTYPES, ((), (), (2,), (None,)))

    if not self.chance(0.4):
      return tensor()
    parts = [tensor() for _ in range(self.rng.integers(1, 4))]
    if self.chance(0.5):
      return tff.StructWithPythonType(parts, tuple)
    names = map(str, self.rng.permutation(list(_NAMES))[: len(parts)])
    return tff.StructWithPythonType(list(zip(names, parts)), collections.OrderedDict)

  def array(self, type_spec):
    shape = [int(self.sizes.integers(0, 4)) if size is None else size for size in type_spec.shape]
    dtype = type_spec.dtype.type
    if dtype is np.str_:
      words = [self.one_of([b"", b"a", "\u00e9".encode(), b"long word", b"\xff"]) for _ in "abc"]
      found = np.array([self.one_of(words) for _ in range(int(np.prod(shape)))], object)
      return found.reshape(shape) if shape else found[0]
    if dtype is np.bool_:
      return np.asarray(self.rng.random(shape) < 0.5)[()]
    if dtype in _FLOATS:
      return np.asarray(self.rng.normal(size=shape), dtype)[()]
    return np.asarray(self.rng.integers(0, 20, size=shape), dtype)[()]

  def value(self, type_spec):
    if _is_tensor(type_spec):
      return self.array(type_spec)
    if isinstance(type_spec, tff.SequenceType):
      return self.sequence(type_spec.element)
    parts = [(name, self.value(part)) for name, part in tff.structure.to_elements(type_spec)]
    if parts[0][0] is None:
      return tuple(value for _, value in parts)
    return collections.OrderedDict(parts)

  def sequence(self, element_type):
    elements = [self.value(element_type) for _ in range(self.sizes.integers(0, 5))]
    specs = _specs(element_type)
    found = _empty(specs)
    for element in elements:
      tensors = tf.nest.map_structure(
        lambda value, spec: tf.constant(value, spec.dtype), element, specs
      )
      found = found.concatenate(tf.data.Dataset.from_tensors(tensors))
    is_number = isinstance(specs, tf.TensorSpec) and specs.shape.rank == 0 and not _is_other(specs)
    return self.other(found) if is_number and self.chance(0.8) else found

  def other(self, one):
    """Returns a data set that one of numbers becomes: it reads files, has a state or draws."""
    self.draws |= (draws := one.element_spec.dtype != tf.uint8 and self.chance(0.2))
    if draws:
      options = random_data_sets.drawing(one)
    elif self.chance(0.5):
      options = random_data_sets.reading(one, self.folder)
    else:
      options = random_data_sets.beginning_anew(one, int(self.rng.integers(1, 99)))
    return self.one_of(list(options.values()))()

  # Local functions.

  def local(self, type_spec):
    """Returns a TensorFlow computation of a value of this type."""
    if isinstance(type_spec, tff.SequenceType):
      function = self.of_sequence(type_spec.element)
    elif isinstance(type_spec, tff.StructType):
      function = self.of_struct(type_spec)
    else:
      function = self.of_tensor(type_spec)
    return tff.tensorflow.computation(lambda value: function(value), type_spec)

  def of_tensor(self, type_spec):
    dtype = type_spec.dtype.type
    if dtype is np.str_:
      options = [
        tf.strings.length,
        lambda x: tf.strings.join([x, tf.fill(tf.shape(x), "!")]),
        _table(),
      ]
    elif dtype is np.bool_:
      options = [tf.logical_not, lambda x: tf.cast(x, tf.int32), lambda x: tf.reduce_any(x)]
    else:
      variable = self.chance(0.5)
      options = [
        lambda x: x + x,
        lambda x: x * x,
        tf.reduce_sum,
        lambda x: tf.cast(x, tf.float64),
        lambda x: _with_variable(x) if variable else x,
        lambda x: tf.cond(tf.reduce_sum(x) > 5, lambda: x, lambda: x + x),
        lambda x: tf.clip_by_value(x, 1, 3),
      ]
      if type_spec.shape and self.chance(0.5):
        rank = len(type_spec.shape)
        options = [
          lambda x: tf.roll(x, 1, -1),
          lambda x: tf.pad(x, [[1, 0]] * rank, constant_values=dtype(7)),
          lambda x: tf.reverse(x, [-1]),
          lambda x: tf.sort(x, -1),
          lambda x: tf.cumsum(x, 0),
          lambda x: tf.gather(x, tf.cast(tf.reduce_sum(x), tf.int32)),  # Often out of range.
          lambda x: x // tf.reduce_min(x),  # Often by zero.
          lambda x: tf.random.stateless_truncated_normal([2], [tf.size(x), 3]),
        ]
    if type_spec.shape and len(type_spec.shape) == 1:
      options += [
        lambda x: tf.concat([x, x], 0),
        lambda x: tf.data.Dataset.from_tensor_slices(x),
        lambda x: x[:1],
      ]
    return self.one_of(options)

  def of_struct(self, type_spec):
    keep = self.rng.permutation(len(type_spec))[: self.rng.integers(1, len(type_spec) + 1)]

    def choose(value):
      parts = list(value.values()) if isinstance(value, dict) else list(value)
      return tuple(parts[i] for i in keep)

    return choose

  def of_sequence(self, element_type):
    def count(data_set):
      return data_set.reduce(np.int64(0), lambda total, _: total + 1)

    def twice(data_set):
      return data_set.concatenate(data_set.take(1))

    method = self.one_of(["assign", "assign_add", "assign_sub"])
    options = [count, twice, lambda data_set: (count(data_set), data_set.skip(1))]
    if _is_tensor(element_type) and element_type.shape == ():
      options.append(lambda data_set: data_set.batch(2))
      if element_type.dtype.type in (*_INTEGERS, *_FLOATS):
        zero = element_type.dtype.type(0)
        options += [
          lambda data_set: data_set.reduce(zero, lambda a, b: a + b),
          lambda data_set: random_data_sets.loop(data_set, zero),
          lambda data_set: random_data_sets.assigned(data_set, zero, method),
          lambda data_set: data_set.batch(3).reduce(tf.zeros([0], zero.dtype), _joined),
        ]
    return self.one_of(options)

  # Federated values.

  def local_program(self, type_spec):
    """Returns a local function of this type that is not TensorFlow."""
    if isinstance(type_spec, tff.SequenceType) and _are(type_spec.element, (*_INTEGERS, *_FLOATS)):
      element = type_spec.element
      double = tff.tensorflow.computation(
        lambda value: tf.nest.map_structure(lambda x: x + x, value), element
      )
      if self.chance(0.5):
        return tff.federated_computation(
          lambda data_set: tff.sequence_map(double, data_set), type_spec
        )
      zero = self.zeros(element)
      add = tff.tensorflow.computation(
        lambda a, b: tf.nest.map_structure(tf.add, a, b), (element, element)
      )
      return tff.federated_computation(
        lambda data_set: tff.sequence_reduce(data_set, zero(), add), type_spec
      )
    first, second = self.local(type_spec), self.local(type_spec)
    return tff.federated_computation(lambda value: (first(value), second(value)), type_spec)

  def zeros(self, type_spec):
    structure = _specs(type_spec)
    return tff.tensorflow.computation(
      lambda: tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), structure)
    )

  def step(self, at_clients: list, at_server: list) -> None:
    """Adds one more value to those that there are."""
    value = self.one_of(at_clients)
    liked = [one for one in at_clients if _are(one.type_signature.member, (*_INTEGERS, *_FLOATS))]
    if liked and self.chance(0.5):
      value = self.one_of(liked)
    kind = value.type_signature.member
    numbers = _are(kind, (*_INTEGERS, *_FLOATS))
    options: list[Callable[[], None]] = []

    def clients(make):
      options.append(lambda: at_clients.append(make()))

    def server(make):
      options.append(lambda: at_server.append(make()))

    clients(lambda: tff.federated_map(self.local(kind), value))
    clients(lambda: tff.federated_map(self.local_program(kind), value))
    clients(lambda: tff.federated_zip((value, self.one_of(at_clients))))
    clients(lambda: tff.federated_eval(self.constant(), tff.CLIENTS))
    clients(lambda: tff.federated_value(self.array(tff.TensorType(np.int32)), tff.CLIENTS))
    server(lambda: tff.federated_eval(self.constant(), tff.SERVER))
    server(lambda: self.folded(value))
    if numbers:
      for reduction in (tff.federated_sum, tff.federated_min, tff.federated_max):
        server(lambda reduction=reduction: reduction(value))
    if _are(kind, _FLOATS):
      server(lambda: tff.federated_mean(value))
      weight = tff.tensorflow.computation(lambda _: tf.constant(2.0), kind)
      server(lambda: tff.federated_mean(value, tff.federated_map(weight, value)))
    if _are(kind, (np.int32, np.int64)) and not isinstance(kind, tff.StructType):
      server(lambda: tff.federated_secure_sum_bitwidth(value, 30))
      server(lambda: tff.federated_secure_sum(value, self.one_of([5, 1_000_000])))
      modular = tff.aggregators.SecureModularSumFactory(7).create
      server(lambda: modular(kind).next(tff.federated_value((), tff.SERVER), value).result)
    if at_server:
      held = self.one_of(at_server)
      own = held.type_signature.member
      clients(lambda: tff.federated_broadcast(held))
      clients(lambda: tff.federated_zip((value, tff.federated_broadcast(held))))
      server(lambda: tff.federated_map(self.local(own), held))
      if _is_tensor(own) and len(own.shape) == 1:
        clients(lambda: self.selected(held))
    self.one_of(options)()

  def constant(self):
    array = self.array(self.tensor_type(shapes=((), (2,), (0,))))
    return tff.tensorflow.computation(lambda: tf.constant(array))

  def folded(self, value):
    """Returns an aggregation of the number of clients and a list that grows."""
    kind = value.type_signature.member
    zero = tff.tensorflow.computation(lambda: (np.int32(0), tf.zeros([0], tf.int32)))
    state = tff.StructType([np.int32, tff.TensorType(np.int32, [None])])

    def add(total, own):
      parts = filter(tf.is_tensor, tf.nest.flatten(own))
      # It uses the value, since what nobody uses is not computed here, and raises nothing.
      texts = [t if t.dtype == tf.string else tf.strings.as_string(t) for t in parts]
      none = 0 * sum(tf.reduce_sum(tf.strings.length(text)) for text in texts)
      return total[0] + 1 + none, tf.concat([total[1], [total[0]]], 0)

    accumulate = tff.tensorflow.computation(add, (state, kind))
    merge = tff.tensorflow.computation(
      lambda a, b: (a[0] + b[0], tf.concat([a[1], b[1]], 0)), (state, state)
    )
    report = tff.tensorflow.computation(lambda total: total[1] * total[0], state)
    return tff.federated_aggregate(value, zero(), accumulate, merge, report)

  def selected(self, held):
    own = held.type_signature.member
    keys = tff.tensorflow.computation(lambda: tf.constant([0, 0], tf.int32))
    select = tff.tensorflow.computation(lambda table, key: tf.gather([table], key), (own, np.int32))
    return tff.federated_select(
      tff.federated_eval(keys, tff.CLIENTS), tff.federated_value(1, tff.SERVER), held, select
    )


def _specs(type_spec):
  """Returns the TensorFlow specs of a type, as data sets and loops take them."""
  if isinstance(type_spec, tff.TensorType):
    return tf.TensorSpec(type_spec.shape, tf.as_dtype(type_spec.dtype.type))
  parts = [(name, _specs(part)) for name, part in tff.structure.to_elements(type_spec)]
  if parts[0][0] is None:
    return tuple(part for _, part in parts)
  return collections.OrderedDict(parts)


def _is_other(spec):
  return spec.dtype.as_numpy_dtype not in (*_INTEGERS, *_FLOATS)


def _empty(specs):
  zeros = tf.nest.map_structure(
    lambda spec: tf.zeros([size or 0 for size in spec.shape], spec.dtype), specs
  )
  return tf.data.Dataset.from_tensors(zeros).take(0)


def _joined(first, second):
  return tf.concat([first, second], 0)


def _table():
  def look_up(words):
    initializer = tf.lookup.KeyValueTensorInitializer(["a", "long word"], [1, 2])
    return tf.lookup.StaticHashTable(initializer, -1).lookup(words)

  return look_up


def _with_variable(value):
  variable = tf.Variable(tf.zeros_like(value), shape=value.shape)
  variable.assign_add(value)
  return variable.read_value() * 2


def draw(seed: int, folder) -> tuple[Any, list, bool]:
  """Draws a computation and its argument, of the seed, and whether data sets in it draw numbers.

  Those that read files read those that `random_data_sets.write` has written in the directory.
  """
  random_data_sets.write(folder, 1)
  drawer = _Drawer(seed, folder)
  num_clients = drawer.one_of([0, 1, 1, 2, 3, 5, 16, 16, 16, 16, 17, 18])
  kinds = [drawer.type() for _ in range(drawer.rng.integers(1, 3))]
  types = [tff.FederatedType(kind, tff.CLIENTS) for kind in kinds]

  def held(kind):
    if num_clients >= 16:  # In large cohorts all clients hold values of the same shapes.
      drawer.sizes = np.random.default_rng(seed)
    return drawer.value(kind)

  arguments = [[held(kind) for _ in range(num_clients)] for kind in kinds]
  drawer.sizes = drawer.rng
  if drawer.chance(0.5):
    kind = drawer.type()
    types.append(tff.FederatedType(kind, tff.SERVER))
    arguments.append(drawer.value(kind))

  @tff.federated_computation(tff.StructType(types))
  def program(values):
    values = list(values)
    at_clients, at_server = values[: len(kinds)], values[len(kinds) :]
    for _ in range(drawer.rng.integers(2, 9)):
      drawer.step(at_clients, at_server)
    results = drawer.rng.permutation(len(at_clients) + len(at_server))[:5]
    return tuple((at_clients + at_server)[i] for i in results)

  return program, arguments, drawer.draws
