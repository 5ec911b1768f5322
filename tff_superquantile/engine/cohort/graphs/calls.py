"""Calls of TensorFlow that end with their caller: with a signal, or with a coroutine."""

import asyncio
import collections
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
import contextlib
import contextvars
import functools
import queue
import threading
from typing import Any, TypeVar

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
  """What ends a thread whose caller was interrupted: no other way is to be tried."""


class Manager(cancellation.CancellationManager):
  """Cancels a call whose caller is interrupted; TensorFlow itself cancels each that fails."""

  def __init__(self) -> None:
    super().__init__()
    self.is_interrupted = False
    self._cancels: list[Callable[[], None]] = []

  def interrupt(self) -> None:
    """Cancels the call and all it waits for, after which nothing is computed in its place."""
    self.is_interrupted = True
    self.start_cancel()
    for cancel in list(self._cancels):
      cancel()

  @contextlib.contextmanager
  def waits_for(self, cancel: Callable[[], None]) -> Iterator[None]:
    """Has an interruption that comes before the end of the block call `cancel`."""
    self._cancels.append(cancel)
    try:
      if self.is_interrupted:
        cancel()
      yield
    finally:
      self._cancels.remove(cancel)


# Of the call that computes here. TFF hands variables on to the thread of its event loop.
_manager: contextvars.ContextVar[Manager | None] = contextvars.ContextVar("manager", default=None)
# TensorFlow has one manager for all threads: it would cancel what another thread computes.
_of_process = cancellation.context
cancellation.context = lambda: _manager.get() or _of_process()


def interrupted_by(cancel: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
  """Has an interruption of the call that computes here, while the block lasts, call `cancel`."""
  manager = _manager.get()
  return manager.waits_for(cancel) if manager else contextlib.nullcontext()


@contextlib.contextmanager
def _set(manager: Manager) -> Iterator[None]:
  token = _manager.set(manager)
  try:
    yield
  finally:
    _manager.reset(token)


def _run(function: Callable[[], _T]) -> _T:
  """Calls a function with a manager of its own, which its caller interrupts.

  It is not called if the caller is interrupted by then.
  """
  manager = Manager()
  with interrupted_by(manager.interrupt), _set(manager):
    try:
      if not manager.is_interrupted:
        return function()
    except Exception:
      if not manager.is_interrupted:
        raise
    raise Interrupted


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


def _settle(future: "futures.Future[_T]", task: Callable[[], _T]) -> None:
  """Gives a future what a task returns or raises."""
  try:
    result = task()
  except BaseException as error:  # For the caller.
    future.set_exception(error)
  else:
    future.set_result(result)


def results(tasks: Sequence[Callable[[], _T]], parallel: int) -> Iterator[_T]:
  """Yields the results of tasks in their order, which threads run, `parallel` of them at once.

  Python calls signal handlers in its main thread, and there alone between two of its own steps. So
  what blocks in TensorFlow is not to run there, if Ctrl-C is to end it. What interrupts the caller,
  and what ends the iteration before its end, cancels the tasks that have begun, and starts no more.
  """
  manager, device = Manager(), context.context().device_name
  of_tasks: list[futures.Future[_T]] = [futures.Future() for _ in tasks]
  waiting = collections.deque(zip(tasks, of_tasks))

  def work() -> None:
    with _set(manager), tf.device(device or None):
      while True:
        try:
          task, future = waiting.popleft()
        except IndexError:
          return
        _settle(future, functools.partial(_run, task))

  try:
    with interrupted_by(manager.interrupt):
      for _ in range(min(parallel, len(tasks))):
        _start(work)
      for future in of_tasks:
        yield future.result()
  except BaseException:
    begun = of_tasks[: len(tasks) - len(waiting)]
    waiting.clear()
    if not all(future.done() for future in begun):
      manager.interrupt()
      futures.wait(begun, _SECONDS_TO_END)
    raise


def call(function: Callable[[], _T], outside: bool = False) -> _T:
  """Calls what TensorFlow computes, so that an exception of a signal handler ends it.

  In other threads than the main one, which get no signals, it is called as it is, unless it is to
  be `outside` of the caller's graph: in another thread.
  """
  if threading.current_thread() is not threading.main_thread() and not outside:
    return _run(function)
  (result,) = results([function], 1)
  return result


async def awaited(function: Callable[..., _T], *args: Any) -> _T:
  """Awaits what a function computes in a thread, and ends it where the coroutine is cancelled.

  `asyncio.run` cancels its coroutines at Ctrl-C; what `asyncio.to_thread` computes goes on, and
  keeps the process.
  """
  manager, variables = Manager(), contextvars.copy_context()
  variables.run(_manager.set, manager)
  task = functools.partial(variables.run, _run, functools.partial(function, *args))
  future: futures.Future[_T] = futures.Future()
  future.set_running_or_notify_cancel()  # A coroutine that is cancelled leaves it as it is.
  _start(functools.partial(_settle, future, task))
  waiting = asyncio.wrap_future(future)
  try:
    return await asyncio.shield(waiting)
  except asyncio.CancelledError:
    manager.interrupt()
    await asyncio.wait([waiting], timeout=_SECONDS_TO_END)
    waiting.cancel()  # Nobody is told of an end that comes later.
    raise
