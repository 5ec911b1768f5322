"""Ctrl-C and SIGTERM within a call are answered within a second, and the next call is right."""

import pytest
import tensorflow as tf

from tff_superquantile.engine.cohort.graphs import calls

# Interrupts itself in a long round, while a slow generator is read, while a graph is traced, and in
# a round within a graph of the user's, who goes on with it.
_CODE = r"""
import os, signal, sys, threading, time
import numpy as np, tensorflow as tf, tensorflow_federated as tff
import tff_superquantile as tsq

signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
signum = getattr(signal, sys.argv[1])
tsq.set_simulation_context(block_size=int(sys.argv[2]) or None)
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
assert run(kept, [1] * 4) == 40

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
  print(run(kept, [1] * 4) == 40)

interrupt("round", lambda: run(kept, [10**8] * 4), False)
pause[0] = 0.2
interrupt("reading", lambda: run(generators(), [1] * 4), True)
interrupt("tracing", lambda: long_graph([1] * 4), False)
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


@pytest.mark.parametrize("signum, block_size", [("SIGINT", 0), ("SIGTERM", 2)])
def test_a_signal_is_answered_within_a_call(lab, signum, block_size):
  command = lab.fork("-c", _CODE, signum, str(block_size), "1.0", is_whole=True)
  done = command.wait(seconds=300)
  found = done.out.split("\n")[:-1]
  expected = [
    line for n in ("round", "reading", "tracing", "graph") for line in (f"{n} in time", "True")
  ]
  assert found == [*expected, "41 True", "end"]
  assert done.code == 0  # And nothing of it is left that would keep it.


@pytest.mark.parametrize("is_interrupted", [True, False])
def test_what_a_signal_has_cancelled_is_not_computed_in_another_way(is_interrupted):
  def fail():
    manager = calls.of_thread.manager
    if is_interrupted:
      manager.interrupt()
    else:  # As TensorFlow does where an op fails.
      manager.start_cancel()
    raise tf.errors.CancelledError(None, None, "cancelled")

  def fail_and_go_on():
    with pytest.raises(calls.Interrupted if is_interrupted else tf.errors.CancelledError):
      calls.call(fail)
    return calls.call(lambda: 3)

  if is_interrupted:  # Nor is anything begun.
    with pytest.raises(calls.Interrupted):
      calls.call(fail_and_go_on, outside=True)
  else:
    assert calls.call(fail_and_go_on, outside=True) == 3
  assert calls.call(lambda: 4, outside=True) == 4
