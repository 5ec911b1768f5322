"""Draws what makes another data set of one, of numbers: by files, draws and resources, at random.

What they read changes between two rounds; `write` does that.
"""

import tensorflow as tf

_DATA = tf.data.Dataset


def write(folder, number):
  """Makes the files of a round, of a number below 100, those of a directory."""
  for path in folder.iterdir():
    path.unlink()
  (folder / "lines").write_text(f"{number}\n{number + 1}\n")
  (folder / "csv").write_text(f"v\n{number}\n")
  (folder / "bytes").write_bytes(bytes([number]))
  with tf.io.TFRecordWriter(str(folder / "records")) as writer:
    writer.write(str(number).encode())
  for i in range(number % 7):
    (folder / f"{number} {i}").touch()


def reading(one, folder):
  """Data sets that read the files, for each element of one."""
  dtype, path = one.element_spec.dtype, {name: str(folder / name) for name in _NAMES}

  def as_number(text):
    return tf.cast(tf.strings.to_number(text, tf.int32), dtype)

  def added(make):
    return one.flat_map(lambda x: make().map(lambda y: x + y))

  def lines():
    return tf.data.TextLineDataset(path["lines"]).map(as_number)

  def records():  # TFF's worker refuses the default size.
    return tf.data.TFRecordDataset(path["records"], buffer_size=2**10)

  def first_line():
    return tf.strings.split(tf.io.read_file(path["lines"]))[0]

  return {
    "lines": lambda: one.concatenate(lines()),
    "lines in a function": lambda: added(lines),
    "csv in a function": lambda: added(
      lambda: tf.data.experimental.CsvDataset(path["csv"], [tf.int32], header=True).map(
        lambda v: tf.cast(v, dtype)
      )
    ),
    "bytes": lambda: added(
      lambda: tf.data.FixedLengthRecordDataset(path["bytes"], 1).map(
        lambda b: tf.cast(tf.io.decode_raw(b, tf.uint8)[0], dtype)
      )
    ),
    "records in parallel": lambda: one.interleave(
      lambda x: records().map(as_number), num_parallel_calls=2
    ),
    "a file": lambda: one.map(lambda x: x + as_number(first_line())),
    "a file in a branch": lambda: one.map(
      lambda x: tf.cond(x > 3, lambda: as_number(first_line()), lambda: x)
    ),
    "a file in a case": lambda: one.map(
      lambda x: tf.switch_case(
        tf.cast(x, tf.int32) % 2, [lambda: x, lambda: as_number(first_line())]
      )
    ),
    "a file in a scan": lambda: one.scan(
      tf.zeros([], dtype), lambda s, x: (s + x, s + as_number(first_line()))
    ),
    "names of files": lambda: one.map(
      lambda x: x + tf.cast(tf.size(tf.io.matching_files(str(folder / "*"))), dtype)
    ),
    "lines in windows": lambda: one.concatenate(
      tf.data.TextLineDataset(path["lines"])
      .window(2)
      .flat_map(lambda w: w.batch(2))
      .unbatch()
      .map(as_number)
    ),
    "a cached file": lambda: one.map(lambda x: x + as_number(first_line())).cache().repeat(2),
    "a shuffled file": lambda: one.map(lambda x: x + as_number(first_line())).shuffle(1),
  }


_NAMES = ("lines", "csv", "bytes", "records")


def beginning_anew(one, seed):
  """Data sets with resources of their own, which begin anew in each call."""
  dtype = one.element_spec.dtype

  keys, values = tf.range(9, dtype=tf.int64), tf.range(20, 29, dtype=tf.int64)
  table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), -1)
  variable = tf.Variable(seed, dtype=tf.int32)

  def small(x):
    return tf.cast(x % 50, dtype)

  return {
    "shuffled": lambda: one.shuffle(3, seed=seed),
    "shuffled epochs": lambda: one.shuffle(3, seed=seed).repeat(2),
    "cached": lambda: one.shuffle(3, seed=seed).cache().repeat(2),
    "in one order": lambda: one.shuffle(3, seed=seed, reshuffle_each_iteration=False).repeat(2),
    "by a seed": lambda: one.concatenate(_DATA.random(seed=seed).take(2).map(small)),
    "by a seed, going on": lambda: one.concatenate(
      _DATA.random(seed=seed, rerandomize_each_iteration=True).take(2).map(small)
    ),
    "a mixture": lambda: _DATA.sample_from_datasets(
      [one, one.skip(1)], [0.5, 0.5], seed=seed, rerandomize_each_iteration=True
    ),
    "in functions": lambda: _DATA.range(2).flat_map(
      lambda _: one.shuffle(3, seed=seed, reshuffle_each_iteration=True)
    ),
    "by a variable": lambda: one.map(lambda x: x + tf.cast(variable, dtype)),
    "by a table": lambda: one.map(lambda x: x + tf.cast(table.lookup(tf.cast(x, tf.int64)), dtype)),
  }


def drawing(one):
  """Data sets that draw large numbers without a seed."""
  dtype = one.element_spec.dtype

  def draw():
    return tf.cast(tf.random.uniform([], 0, 2**14, tf.int32), dtype)

  def large(x):
    return tf.cast(x % 2**14, dtype)

  return {
    "in a map": lambda: one.map(lambda x: x + draw()),
    "in a branch": lambda: one.map(lambda x: tf.cond(x > 3, draw, lambda: x)),
    "kept": lambda: one.map(lambda x: x + draw()).cache().repeat(2),
    "in a scan": lambda: one.scan(draw(), lambda s, x: (s + draw(), s + x + draw())),
    "negative samples": lambda: one.flat_map(lambda _: _DATA.random().take(2).map(large)),
    "shuffled": lambda: one.flat_map(lambda _: _DATA.random().take(2).map(large)).shuffle(1),
    "in batches": lambda: one.map(lambda x: x + draw()).batch(2).unbatch(),
    "the time": lambda: one.map(
      lambda x: x + tf.cast(tf.cast(tf.timestamp() * 1e6, tf.int64) % 2**14, dtype)
    ),
  }


def loop(data_set, zero):
  @tf.function
  def run(elements):
    total = zero
    for element in elements:
      total = total + element * element
    return total

  return run(data_set)


def assigned(data_set, zero, method):
  held = tf.Variable([zero, zero])

  @tf.function
  def run(elements):
    for pair in elements.batch(2):  # The last one may be shorter, and is refused then.
      getattr(held, method)(pair + pair)
    return held.read_value()

  return run(data_set)
