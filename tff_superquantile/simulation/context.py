"""Sets up TFF's C++ runtime with simulated secure sums, and leaves no process behind.

TFF executes computations in a child process, `worker_binary`. Left alone, it outlives a Python that
dies by a signal, holds the terminal's output open, and dies too early on Ctrl-C, before Python can
save anything. Here it lives exactly as long as the process that started it.

Secure intrinsics are simulated: TFF's test context rewrites them to plain sums, and runs everything
else as the native one does.
"""

import atexit
import functools
import gc
import os
from typing import Optional

import tensorflow_federated as tff

from tff_superquantile.simulation import engine as cohort_engine
from tff_superquantile.simulation import worker

_ENGINES = ("auto", "in_process", "native")


def num_cores() -> int:
  """Returns the number of processor cores that this process may use."""
  return len(os.sched_getaffinity(0))


def _native_context(concurrency: int) -> tff.framework.SyncContext:
  worker.install()
  return tff.backends.test.create_sync_test_cpp_execution_context(
    max_concurrent_computation_calls=concurrency
  )


def set_simulation_context(
  max_concurrent_computation_calls: Optional[int] = None, engine: str = "auto"
) -> None:
  """Makes a context with simulated secure aggregation the default one.

  Args:
    max_concurrent_computation_calls: How many clients compute at once; None for the number of
      cores.
    engine: "native", TFF's C++ runtime; "in_process", the whole cohort at once in this process,
      which raises for what it does not know; or "auto", in this process what can be done there, and
      the rest by TFF's runtime, which is not started before it is needed, with a warning that says
      for what.

  Raises:
    ValueError: If the number is not positive or the engine is unknown.
  """
  concurrency = max_concurrent_computation_calls
  if concurrency is not None and concurrency < 1:
    raise ValueError(
      f"Found max_concurrent_computation_calls = {concurrency}; expected at least 1."
    )
  if engine not in _ENGINES:
    raise ValueError(f"Found engine = {engine!r}; expected one of {', '.join(_ENGINES)}.")
  concurrency = concurrency or num_cores()
  native = functools.partial(_native_context, concurrency)
  if engine == "native":
    context = native()
  else:
    context = cohort_engine.CohortContext(native if engine == "auto" else None, concurrency)
  tff.framework.set_default_context(context)


@atexit.register
def close() -> None:
  """Ends the worker and restores TFF's own default context. Called when Python exits."""
  if not worker.workers:
    return
  # Killed, but not waited for: TFF does that when its context is collected, which may be now, or
  # never if something like a traceback still holds it.
  for process in worker.workers:
    if process.returncode is None:
      process.kill()
  tff.backends.native.set_sync_local_cpp_execution_context()
  gc.collect()
