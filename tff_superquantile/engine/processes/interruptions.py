"""Coroutines that run to their end, and signals that wait."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent import futures
import contextlib
import signal
import threading
from typing import Any


def _is_loop_running() -> bool:
  try:
    asyncio.get_running_loop()
    return True
  except RuntimeError:
    return False


@contextlib.contextmanager
def coroutine_runner() -> Iterator[Callable[[Awaitable], Any]]:
  """Yields a function that runs a coroutine to its end, also in Jupyter."""
  # Not asyncio.run, which would handle Ctrl-C by itself, at the next pause of a coroutine.
  event_loop = asyncio.new_event_loop()
  try:
    if not _is_loop_running():
      yield event_loop.run_until_complete
      return
    # Jupyter runs an event loop in this thread, and a thread can run only one at a time.
    with futures.ThreadPoolExecutor(max_workers=1) as thread:
      yield lambda coroutine: thread.submit(event_loop.run_until_complete, coroutine).result()
  finally:
    event_loop.close()


@contextlib.contextmanager
def deferred_signals() -> Iterator[None]:
  """Delivers signals that end runs after the block. Only Python's main thread gets them anyway."""
  if threading.current_thread() is not threading.main_thread():
    yield
    return
  arrived = []
  handlers = {
    signum: signal.signal(signum, lambda number, frame: arrived.append(number))
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # Child processes inherit what is ignored; None is no handler of Python's.
    if signal.getsignal(signum) not in (signal.SIG_IGN, None)
  }
  try:
    yield
  finally:
    for signum, handler in handlers.items():
      signal.signal(signum, handler)
    for number in arrived:
      signal.raise_signal(number)
