"""Calls of TensorFlow that a signal's handler interrupts: in threads, and cancelled."""

import collections
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
import queue
import threading
from typing import TypeVar

import tensorflow as tf

# These modules are private to TensorFlow. Nothing public cancels a call, or tells the device.
from tensorflow.python.eager import cancellation
from tensorflow.python.eager import context

_T = TypeVar("_T")
# So long an interrupted caller waits for what it has cancelled. Python code in a data set may take
# longer, and then ends in its thread.
_SECONDS_TO_END = 0.5
# Threads without work, by their queues. They are kept, as a new one takes 0.1 ms.
_idle: list[queue.SimpleQueue[Callable[[], None]]] = []


class Interrupted(BaseException):
  """What ends a thread whose caller a signal has interrupted: no other way is to be tried."""


class Manager(cancellation.CancellationManager):
  """Cancels a call that a signal interrupts; TensorFlow itself cancels each that fails."""

  is_interrupted = False

  def interrupt(self) -> None:
    """Cancels the call, after which nothing else is computed in its place."""
    self.is_interrupted = True
    self.start_cancel()


class _Thread(threading.local):
  """What a thread computes: the call that began it; TensorFlow's own context is of all threads."""

  manager: Manager | None = None


of_thread = _Thread()


def _work(tasks: "queue.SimpleQueue[Callable[[], None]]") -> None:
  while True:
    tasks.get()()


def _start(work: Callable[[], None]) -> None:
  """Starts work in a thread that has none, and that ends with the process whatever it does."""
  try:
    tasks = _idle.pop()
  except IndexError:
    tasks = queue.SimpleQueue()
    threading.Thread(target=_work, args=[tasks], name="computes", daemon=True).start()

  def run_and_rest() -> None:
    try:
      work()
    finally:
      _idle.append(tasks)

  tasks.put(run_and_rest)


def results(
  tasks: Sequence[Callable[[], _T]], parallel: int, cancel: Callable[[], None]
) -> Iterator[_T]:
  """Yields the results of tasks in their order, which threads run, `parallel` of them at once.

  Python calls signal handlers in its main thread, and there alone between two of its own steps. So
  what blocks in TensorFlow is not to run there, if Ctrl-C is to end it. What interrupts the caller,
  and what ends the iteration before its end, calls `cancel` once, and starts no other task.
  """
  of_tasks: list[futures.Future[_T]] = [futures.Future() for _ in tasks]
  waiting = collections.deque(zip(tasks, of_tasks))

  def work() -> None:
    while True:
      try:
        task, future = waiting.popleft()
      except IndexError:
        return
      try:
        result = task()
      except BaseException as error:  # For the caller.
        future.set_exception(error)
      else:
        future.set_result(result)

  try:
    for _ in range(min(parallel, len(tasks))):
      _start(work)
    for future in of_tasks:
      yield future.result()
  except BaseException:
    begun = of_tasks[: len(tasks) - len(waiting)]
    waiting.clear()
    if not all(future.done() for future in begun):
      cancel()
      futures.wait(begun, _SECONDS_TO_END)
    raise


def _unless_interrupted(function: Callable[[], _T]) -> _T:
  """Calls a function, unless what called it is interrupted, by then or when it fails."""
  manager = of_thread.manager
  if manager is None:
    return function()
  try:
    if manager.is_interrupted:
      raise Interrupted
    return function()
  except tf.errors.OpError:
    if manager.is_interrupted:
      raise Interrupted from None
    raise


def call(function: Callable[[], _T], outside: bool = False) -> _T:
  """Calls what TensorFlow computes, so that an exception of a signal handler ends it.

  In other threads than the main one, which get no signals, it is called as it is, unless it is to
  be `outside` of the caller's graph: in another thread.
  """
  if threading.current_thread() is not threading.main_thread() and not outside:
    return _unless_interrupted(function)
  manager, device = Manager(), context.context().device_name

  def compute() -> _T:
    of_thread.manager = manager
    try:
      with cancellation.CancellationManagerContext(manager), tf.device(device or None):
        return _unless_interrupted(function)
    finally:
      of_thread.manager = None

  (result,) = results([compute], 1, manager.interrupt)
  return result
