"""Commands in the process of the tests, which has imported and traced what a fork would trace anew.

What a command changes of a process is as before afterwards: its streams, folder, variables, signals
and context.
"""

import contextlib
import logging as stdlib_logging
import os
import runpy
import signal
import sys
from unittest import mock
import warnings
import weakref

from absl import logging
import tensorflow_federated as tff
import tqdm

from tff_superquantile.engine import context
from tff_superquantile.engine.processes import limits
from tff_superquantile.engine.processes import worker
from tff_superquantile.experiments.plan import pool


def _refuse(*args, **kwargs):
  raise AssertionError("this command starts processes, which one that has used TensorFlow must not")


class _Run:
  """A run of a sweep, in place of a fork: carried out in this process, at once."""

  def __init__(self, function, *, output, cores=None):
    bars, logger = tqdm.tqdm, stdlib_logging.getLogger("tff_superquantile")
    with (
      _streams(output, output),
      mock.patch.object(logger, "handlers", [*logger.handlers]),
      mock.patch.multiple(bars, _instances=weakref.WeakSet(), _lock=bars.get_lock()),
      mock.patch("threadpoolctl.threadpool_limits"),
    ):
      self.returncode = function()

  def poll(self):
    return self.returncode

  wait = poll


@contextlib.contextmanager
def _streams(*descriptors):
  """Lets what Python and what libraries print go to open files."""
  kept = [os.dup(number) for number in (1, 2)]
  absl_handler = logging.get_absl_handler().python_handler
  old = (sys.stdout, sys.stderr, absl_handler.stream)
  for stream in old[:2]:
    stream.flush()
  for number, descriptor in zip((1, 2), descriptors):
    os.dup2(descriptor, number)
  try:
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", closefd=False)
    absl_handler.stream = sys.stderr
    yield
  finally:
    for stream in (sys.stdout, sys.stderr):
      stream.flush()
    sys.stdout, sys.stderr, absl_handler.stream = old
    for number, copy in zip((1, 2), kept):
      os.dup2(copy, number)
      os.close(copy)


@contextlib.contextmanager
def _process(folder):
  """What else belongs to a process."""
  old_folder = os.getcwd()
  verbosity = logging.get_verbosity()
  old_context = tff.framework.get_context_stack().current
  signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
  handlers = {signum: signal.getsignal(signum) for signum in signals}
  os.chdir(folder)
  asked = [None]
  try:
    with (
      mock.patch.dict(os.environ),
      mock.patch.object(sys, "path", [str(folder), *sys.path]),
      mock.patch.object(worker.Worker, "__init__", _refuse),
      mock.patch.object(pool.dependent_process, "DependentFork", _Run),
      mock.patch.object(pool, "_MOST_RUNS", 1),
      # A process of its own would have as many threads as its run asks for.
      mock.patch.object(
        context, "limit_threads", lambda number=None: asked.append(number or asked[-1])
      ),
      mock.patch.object(context, "num_threads", lambda: asked[-1] or len(limits.cores())),
      # Else nothing of the tests before would ever be collected.
      mock.patch("gc.freeze"),
    ):
      yield
  finally:
    os.chdir(old_folder)
    logging.set_verbosity(verbosity)
    tff.framework.set_default_context(old_context)
    for signum, handler in handlers.items():
      signal.signal(signum, handler)


def run(module, arguments, folder, out, err):
  """Carries out a command as `python -m` does it; returns its exit code."""
  with (
    _process(folder),
    open(out, "w") as out_file,
    open(err, "w") as err_file,
    _streams(out_file.fileno(), err_file.fileno()),
  ):
    with mock.patch.object(sys, "argv", [module, *arguments]), warnings.catch_warnings():
      warnings.filterwarnings("ignore", ".* found in sys.modules after import")
      try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
      except SystemExit as error:
        if isinstance(error.code, str):
          print(error.code, file=sys.stderr)
          return 1
        return error.code or 0
      except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
  return 0
