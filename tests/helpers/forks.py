"""Commands as forks of a process that has imported TensorFlow, and has not used it.

To import it takes a command longer than a small run. A fork has nothing of the tests and of other
commands; what it is asked to do is done as `python -m` and `python -c` do it.
"""

import atexit
import contextlib
import fcntl
import gc
import json
import os
import pathlib
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
_SECONDS_BETWEEN_LOOKS = 0.05
_ADDRESS = "FORKS_OF_TESTS"
_starting = threading.Lock()


def environment():
  path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
  return {**os.environ, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"}


_outside = environment()  # Of tests, some of which change variables for themselves.


class Fork:
  """A command, with the interface of `subprocess.Popen` as far as it is needed here."""

  def __init__(self, arguments, folder, out, err, is_whole=False):
    """Starts it; `arguments` are what follows "python": "-m" and more, or "-c" and a script.

    A whole one ends as Python does, which takes seconds, and may start TFF's worker.
    """
    self.returncode = None
    self._answers = pathlib.Path(tempfile.mkdtemp())
    files = dict(out=str(out), err=str(err), answers=str(self._answers))
    request = dict(arguments=list(arguments), folder=str(folder), is_whole=is_whole, **files)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
      client.sendto(json.dumps(request).encode(), _server())
    while (pid := self._answer("pid")) is None:
      time.sleep(0.01)
    self.pid = pid

  def _answer(self, name):
    try:
      return int((self._answers / name).read_text())
    except FileNotFoundError:
      return None

  def poll(self):
    if self.returncode is None:
      self.returncode = self._answer("code")
      if self.returncode is not None:
        shutil.rmtree(self._answers)
    return self.returncode

  def wait(self, timeout=None):
    end = None if timeout is None else time.monotonic() + timeout
    while self.poll() is None:
      if end is not None and time.monotonic() > end:
        raise subprocess.TimeoutExpired("fork", timeout)
      time.sleep(_SECONDS_BETWEEN_LOOKS)
    return self.returncode

  def send_signal(self, signum):
    if self.poll() is None:
      with contextlib.suppress(ProcessLookupError):  # It has ended; its code is on its way.
        os.kill(self.pid, signum)


def _server():
  """The address of the process that forks, started when first asked for."""
  with _starting:
    if _ADDRESS not in os.environ:
      os.environ[_ADDRESS] = str(_started_server())
    return os.environ[_ADDRESS]


def _started_server():
  """The socket of one for all workers of these tests: each holds what takes seconds to import."""
  tests = os.environ.get("PYTEST_XDIST_TESTRUNUID")
  folder = pathlib.Path(tempfile.gettempdir(), f"forks_{tests}")
  # It ends with the process that shares out the tests, as any worker may be done before others.
  ends_with = os.getppid() if tests else os.getpid()
  if tests:
    folder.mkdir(mode=0o700, exist_ok=True)
  else:
    folder = pathlib.Path(tempfile.mkdtemp())
  path = folder / "socket"
  with open(folder / "lock", "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    if not path.exists():
      command = [sys.executable, __file__, path, str(ends_with)]
      server = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=_outside)
      while not path.exists():
        assert server.poll() is None, "the process that forks has ended before it began"
        time.sleep(0.1)
  return path


def _carry_out(arguments):
  """As Python does with these arguments."""
  kind, what, *rest = arguments
  sys.path[0] = os.getcwd()
  sys.argv = [kind, *rest]
  if kind == "-m":
    runpy.run_module(what, run_name="__main__", alter_sys=True)
  else:
    exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})


def _watch(request, answers):
  """Waits for the command that it forks; returns in the command."""
  pid = os.fork()
  if pid == 0:
    gc.set_threshold(100_000)  # A small run makes many objects, and little garbage.
    gc.enable()
    os.chdir(request["folder"])
    for number, name in ((1, "out"), (2, "err")):
      os.dup2(os.open(request[name], os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644), number)
    return
  for name, number in (("pid", lambda: pid), ("code", lambda: os.waitpid(pid, 0)[1])):
    value = number()
    value = os.waitstatus_to_exitcode(value) if name == "code" else value
    (answers / f".{name}").write_text(str(value))
    (answers / f".{name}").rename(answers / name)
  os._exit(0)


def _refuse_worker(worker, args, **kwargs):
  raise AssertionError("a command of this project started TFF's worker")


def _serve(path, ends_with):
  """Forks until a process ends; returns in each command, with what was asked for."""
  gc.disable()  # The collector would go over what is imported again and again.
  import sklearn.datasets  # noqa: F401
  import tqdm

  import tasks
  from tff_superquantile.engine.processes import worker
  from tff_superquantile.experiments.report import comparison  # noqa: F401
  from tff_superquantile.experiments.run import runner  # noqa: F401
  from tff_superquantile.simulation import training_loop  # noqa: F401

  tasks.get_task("synthetic")  # Its modules, too, are imported late.
  start_worker, worker.Worker.__init__ = worker.Worker.__init__, _refuse_worker
  gc.freeze()
  tqdm.tqdm.monitor_interval = 0  # No thread of it.
  signal.signal(signal.SIGCHLD, signal.SIG_IGN)
  with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
    server.bind(path)
    server.settimeout(1)
    while os.path.exists(f"/proc/{ends_with}"):
      try:
        request = json.loads(server.recv(1 << 20))
      except TimeoutError:
        continue
      if os.fork() == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _watch(request, pathlib.Path(request["answers"]))
        if request["is_whole"]:
          worker.Worker.__init__ = start_worker
        return request
  os._exit(0)


def _end(code):
  """Ends the command without taking apart what was imported, which takes seconds."""
  atexit._run_exitfuncs()
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(code)


def _carry_out_and_end(arguments):
  try:
    _carry_out(arguments)
  except SystemExit as error:
    if isinstance(error.code, str):
      print(error.code, file=sys.stderr)
    _end(int(error.code is not None) if isinstance(error.code, (str, type(None))) else error.code)
  except BaseException:
    sys.excepthook(*sys.exc_info())
    _end(1)
  _end(0)


if __name__ == "__main__":
  os.environ[_ADDRESS] = sys.argv[1]
  request = _serve(*sys.argv[1:])
  (_carry_out if request["is_whole"] else _carry_out_and_end)(request["arguments"])
