"""Child processes that end when their parent does, in whatever way it ends (Linux)."""

from collections.abc import Callable, Iterable, Sequence
import ctypes
import os
import signal
import subprocess
import sys
import traceback
from typing import Any, NoReturn

from tff_superquantile.engine.processes import interruptions

_PR_SET_PDEATHSIG = 1
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# Runs in the child before the program: asks the kernel to kill it when its parent ends, and has
# signals do what they usually do (a shell starts background jobs with SIGINT ignored, and who waits
# for a process that ignores it waits for ever). Done by a wrapper, as `preexec_fn` is not safe in a
# process with threads.
_EXEC_AS_DEPENDENT = f"""
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, signal.SIGKILL)
for name in ("SIGINT", "SIGTERM", "SIGPIPE"):
  signal.signal(getattr(signal, name), signal.SIG_DFL)
parent, cores, *command = sys.argv[1:]
if os.getppid() != int(parent):
  sys.exit("the parent has ended")
if cores:
  os.sched_setaffinity(0, [int(core) for core in cores.split(",")])
os.execvp(command[0], command)
"""


class DependentProcess(subprocess.Popen):
  """A process bound to this one, in a session of its own: Ctrl-C is left to the parent to handle.

  It must be started by a thread that lives as long as it should.
  """

  def __init__(self, args: Sequence[str], *, cores: Sequence[int] | None = None, **kwargs: Any):
    """Starts the process, on `cores` (None for all of this process), with `Popen`'s arguments."""
    core_list = ",".join(str(core) for core in cores or ())
    wrapper = [sys.executable, "-I", "-S", "-c", _EXEC_AS_DEPENDENT, str(os.getpid()), core_list]
    super().__init__([*wrapper, *args], start_new_session=True, **kwargs)


class DependentFork:
  """A function that a fork of this process carries out, bound to it as a `DependentProcess` is.

  It spares the imports of another Python. A fork has none of this process's other threads, so
  TensorFlow may be imported here, but must not have begun to compute. Nothing is done at its end
  that waits for Python's: neither `atexit` nor the finalizers of objects. `pid` and `returncode`
  are as in `subprocess.Popen`.
  """

  def __init__(
    self, function: Callable[[], int], *, output: int, cores: Sequence[int] | None = None
  ):
    """Forks this process, on `cores` (None for all of this process).

    The fork exits with what `function` returns, prints to the descriptor `output` and reads
    nothing. An exception of `function` is shown, with code 1.
    """
    self.returncode: int | None = None
    parent = os.getpid()
    sys.stdout.flush()  # Else the fork would write that, too.
    sys.stderr.flush()
    # A signal for this process waits, too: Python drops what a handler raises while it forks, and
    # another thread, with a mask of its own, may get the signal.
    with interruptions.deferred_signals():
      # A signal for the fork waits until it has handlers of its own.
      blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
      try:
        self.pid = os.fork()
        if self.pid == 0:
          _carry_out(function, parent, output, cores, blocked)
      finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

  def _wait(self, options: int) -> int | None:
    if self.returncode is None:
      pid, status = os.waitpid(self.pid, options)
      if pid:
        self.returncode = os.waitstatus_to_exitcode(status)
    return self.returncode

  def poll(self) -> int | None:
    """Returns the exit code, negative for a signal; None while it runs."""
    return self._wait(os.WNOHANG)

  def wait(self) -> int | None:
    """Waits for its end and returns the exit code."""
    return self._wait(0)

  def send_signal(self, signum: int) -> None:
    """Sends a signal, unless it has ended."""
    if self.poll() is None:
      os.kill(self.pid, signum)


def _carry_out(
  function: Callable[[], int],
  parent: int,
  output: int,
  cores: Sequence[int] | None,
  blocked: Iterable[int],
) -> NoReturn:
  """Carries out a function in a fork, in place of all that its parent had still to do."""
  code = 1
  try:
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
      os._exit(code)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # As by nohup.
      signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if cores:
      os.sched_setaffinity(0, cores)
    for number, descriptor in enumerate((os.open(os.devnull, os.O_RDONLY), output, output)):
      os.dup2(descriptor, number)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    code = function()
    sys.stdout.flush()
  except BaseException:  # Nothing gets past here: above is what the parent does.
    traceback.print_exc()
  finally:
    os._exit(code)
