"""Ctrl-C, SIGTERM and cancelled coroutines end a call within a second; the next one is right."""

import asyncio
import threading

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.engine import context
from tff_superquantile.engine.cohort.graphs import calls

# Interrupts itself in a long round, while a slow generator is read, while a graph is traced, in a
# round client by client, and in one within a graph of the user's, who goes on with it.
_CODE = r"""
import asyncio, os, signal, sys, threading, time
import numpy as np, tensorflow as tf, tensorflow_federated as tff
import tff_superquantile as tsq

signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
signum = getattr(signal, sys.argv[1])
block_size, is_async = int(sys.argv[2]) or None, sys.argv[4] == "True"
if is_async:
  tff.framework.set_default_context(
    tsq.simulation.create_async_simulation_context(block_size=block_size))
else:
  tsq.set_simulation_context(block_size=block_size)

def call(comp, *args):
  async def wait():
    return await comp(*args)
  return asyncio.run(wait()) if is_async else comp(*args)

held = tff.SequenceType(np.int64)
pause, begun = [0.0], threading.Event()

def generate():
  begun.set()
  for i in range(5):
    time.sleep(pause[0])
    yield i

@tff.tensorflow.computation(held, np.int32)
def work(data_set, steps):
  total = data_set.reduce(np.int64(0), lambda a, b: a + b)
  loop = lambda i, x: (i + 1, tf.sin(x @ x))
  _, x = tf.while_loop(lambda i, x: i < steps, loop, (0, tf.ones([8, 8])))
  return total + tf.cast(x[0, 0] * 0, tf.int64)

@tff.federated_computation(
  tff.FederatedType(held, tff.CLIENTS), tff.FederatedType(np.int32, tff.CLIENTS))
def run(data_sets, steps):
  return tff.federated_sum(tff.federated_map(work, (data_sets, steps)))

@tff.federated_computation(
  tff.FederatedType(held, tff.CLIENTS), tff.FederatedType(np.int32, tff.CLIENTS))
def run_apart(data_sets, steps):  # Since data sets are results.
  return tff.federated_sum(tff.federated_map(work, (data_sets, steps))), data_sets

@tff.tensorflow.computation(np.int32)
def add_one(n):
  for _ in range(2000):
    n = n + 1
  return n

@tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
def long_graph(numbers):
  for _ in range(5):
    numbers = tff.federated_map(add_one, numbers)
  return tff.federated_sum(numbers)

def generators():
  spec = tf.TensorSpec([], tf.int64)
  return [tf.data.Dataset.from_generator(generate, output_signature=spec) for _ in range(4)]

kept = [tf.data.Dataset.range(5) for _ in range(4)]
assert call(run, kept, [1] * 4) == 40

def interrupt(name, function, is_begun):
  sent = []
  def send():
    if is_begun:
      begun.wait(60)
    time.sleep(0.3)
    sent.append(time.monotonic())
    os.kill(os.getpid(), signum)
  begun.clear()
  threading.Thread(target=send, daemon=True).start()
  try:
    function()
    print(name, "ended first")
  except (KeyboardInterrupt, SystemExit):
    print(name, "late" if time.monotonic() - sent[0] > float(sys.argv[3]) else "in time")
  pause[0] = 0
  print(call(run, kept, [1] * 4) == 40)

interrupt("round", lambda: call(run, kept, [10**8] * 4), False)
pause[0] = 0.2
interrupt("reading", lambda: call(run, generators(), [1] * 4), True)
interrupt("tracing", lambda: call(long_graph, [1] * 4), False)
assert call(run_apart, kept, [1] * 4)[0] == 40
interrupt("apart", lambda: call(run_apart, kept, [10**8] * 4), False)
print(call(run_apart, kept, [1] * 4)[0] == 40)
if not is_async:
  graph = tf.Graph()

  def within():
    with graph.as_default():
      run(kept, [10**8] * 4)

  interrupt("graph", within, False)
  with graph.as_default():
    total = tf.constant(1) + int(run(kept, [1] * 4))
  print(tf.compat.v1.Session(graph=graph).run(total), tf.executing_eagerly())
print("end", flush=True)
"""


@pytest.mark.parametrize(
  "signum, block_size, is_async",
  [("SIGINT", 0, False), ("SIGTERM", 2, False), ("SIGINT", 2, True), ("SIGTERM", 0, True)],
)
def test_a_signal_is_answered_within_a_call(lab, signum, block_size, is_async):
  command = lab.fork("-c", _CODE, signum, str(block_size), "1.0", str(is_async), is_whole=True)
  done = command.wait(seconds=300)
  expected = [f"{name} in time\nTrue" for name in ("round", "reading", "tracing", "apart")] + [
    "True"
  ]
  if not is_async:
    expected += ["graph in time\nTrue", "41 True"]
  assert done.out.splitlines() == "\n".join([*expected, "end"]).splitlines()
  assert done.code == 0  # And nothing of it is left that would keep it.


@tf.function
def _endless(x):
  return tf.while_loop(lambda x: x[0, 0] < 2.0, lambda x: [tf.sin(x @ x)], [x])


def test_what_is_interrupted_is_not_computed_in_another_way():
  found = []

  def try_twice():
    for function in (lambda: _endless(tf.zeros([8, 8])), lambda: 3):
      try:
        found.append(calls.call(function))
      except calls.Interrupted as error:
        found.append(type(error))

  with pytest.raises(asyncio.TimeoutError):
    asyncio.run(asyncio.wait_for(calls.awaited(try_twice), 0.3))
  assert found == [calls.Interrupted] * 2
  assert asyncio.run(calls.awaited(calls.call, lambda: 4)) == 4


def test_what_fails_is_computed_in_another_way():
  """TensorFlow cancels the manager of a call that fails: the next one has another."""

  @tf.function
  def fail(x):
    tf.debugging.assert_less(x, 0)
    return x

  def try_twice():
    with pytest.raises(tf.errors.InvalidArgumentError):
      calls.call(lambda: fail(tf.constant(1)))
    return int(calls.call(lambda: fail(tf.constant(-1))))

  assert calls.call(try_twice, outside=True) == -1
  assert asyncio.run(calls.awaited(try_twice)) == -1


@pytest.mark.parametrize("is_generated", [True, False])
def test_a_cancelled_coroutine_ends_its_reading_alone(restored_context, is_generated):
  goes_on = threading.Event()

  def generate():
    yield 1
    while not goes_on.wait(0.01):
      yield 1

  held = tff.SequenceType(np.int64)

  @tff.tensorflow.computation(held)
  def total(data_set):
    return data_set.reduce(np.int64(0), lambda a, b: a + b)

  @tff.federated_computation(tff.FederatedType(held, tff.CLIENTS))
  def run(data_sets):
    return tff.federated_sum(tff.federated_map(total, data_sets))

  if is_generated:  # Each client reads by itself.
    spec = tf.TensorSpec([], tf.int64)
    endless = tf.data.Dataset.from_generator(generate, output_signature=spec)
  else:
    endless = tf.data.Dataset.range(10**15).filter(lambda x: x < 0)
  tff.framework.set_default_context(context.create_async_simulation_context())

  async def go():
    with pytest.raises(asyncio.TimeoutError):
      await asyncio.wait_for(run([endless] * 3), 0.5)
    return await asyncio.gather(*(run([tf.data.Dataset.range(n)] * 2) for n in (3, 4)))

  try:
    assert asyncio.run(asyncio.wait_for(go(), 60)) == [6, 12]
  finally:
    goes_on.set()
