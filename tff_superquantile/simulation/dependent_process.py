"""Child processes that end when their parent does, in whatever way it ends (Linux)."""

from collections.abc import Sequence
import os
import subprocess
import sys
from typing import Any, Optional

_PR_SET_PDEATHSIG = 1

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

  def __init__(self, args: Sequence[str], *, cores: Optional[Sequence[int]] = None, **kwargs: Any):
    """Starts the process.

    Args:
      args: The command.
      cores: The processor cores that it may use; None for all that this process may.
      **kwargs: As for `subprocess.Popen`.
    """
    core_list = ",".join(str(core) for core in cores or ())
    wrapper = [sys.executable, "-I", "-S", "-c", _EXEC_AS_DEPENDENT, str(os.getpid()), core_list]
    super().__init__([*wrapper, *args], start_new_session=True, **kwargs)
