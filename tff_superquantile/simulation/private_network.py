"""Runs a server where nobody else can reach it: in a network of its own (Linux).

    python private_network.py LISTENER STATUS PORT COMMAND ...

TFF's worker listens at all addresses of the machine and asks nobody who they are: who can reach its
port can have it read and write files as its user, and it has no option against that. So the worker
is started in a network namespace, whose only address is a loopback that belongs to it alone. A
process beside it, in the same namespace, carries what arrives at a Unix socket to the worker's port
and back. That socket is a file in a folder that only its owner can enter.

The kernel lets root make a network namespace, and anybody else where user namespaces are allowed.
Where it does not, the command runs all the same, and STATUS says that it is open.

LISTENER and STATUS are numbers of open files: a listening Unix socket, and where a byte is written,
`ALONE` or `OPEN`. This is a program of its own, as the namespaces of a process with threads cannot
be changed; it uses Python's standard library alone.
"""

from collections.abc import Sequence
import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import socket
import struct
import sys
import threading
import time

ALONE, OPEN = b"1", b"0"

_CLONE_NEWNET, _CLONE_NEWUSER = 0x40000000, 0x10000000
_PR_SET_PDEATHSIG = 1
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_SECONDS_UNTIL_IT_LISTENS = 60.0
_BUFFER_BYTES = 1 << 20


def _enter() -> None:
  """Moves this process into a new network namespace.

  Raises:
    OSError: If the kernel does not allow it.
  """
  libc = ctypes.CDLL(None, use_errno=True)
  uid, gid = os.getuid(), os.getgid()
  if libc.unshare(_CLONE_NEWNET) != 0:
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
      raise OSError(ctypes.get_errno(), "unshare")
    # The same user inside as outside.
    for name, text in (
      ("setgroups", "deny"),
      ("uid_map", f"{uid} {uid} 1"),
      ("gid_map", f"{gid} {gid} 1"),
    ):
      with open(f"/proc/self/{name}", "w") as stream:
        stream.write(text)
  with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))


def is_allowed() -> bool:
  """Tells whether the kernel lets this process make a network namespace and use it.

  A process of its own tries: there is no way back out of one that cannot be used.
  """
  pid = os.fork()
  if pid:
    return os.waitpid(pid, 0)[1] == 0
  try:
    _enter()
    os._exit(0)
  finally:
    os._exit(1)


def _connect(port: int) -> socket.socket:
  """Connects to the server, as soon as it listens."""
  end = time.monotonic() + _SECONDS_UNTIL_IT_LISTENS
  while True:
    try:
      connection = socket.create_connection(("localhost", port))
      connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
      return connection
    except OSError:
      if time.monotonic() > end:
        raise
      time.sleep(0.02)


def _carry(source: socket.socket, target: socket.socket) -> None:
  """Carries bytes one way until one end closes, and then closes the other."""
  buffer = memoryview(bytearray(_BUFFER_BYTES))
  with contextlib.suppress(OSError):
    while count := source.recv_into(buffer):
      target.sendall(buffer[:count])
  with contextlib.suppress(OSError):
    target.shutdown(socket.SHUT_WR)


def _serve(listener: socket.socket, port: int) -> None:
  """Carries what arrives at the listener to the port and back, for ever."""

  def serve_one(accepted: socket.socket) -> None:
    with accepted, contextlib.suppress(OSError), _connect(port) as server:
      back = threading.Thread(target=_carry, args=(server, accepted), daemon=True)
      back.start()
      _carry(accepted, server)
      back.join()

  while True:
    accepted, _ = listener.accept()
    threading.Thread(target=serve_one, args=(accepted,), daemon=True).start()


def _start_carrier(listener: socket.socket, port: int, status: int) -> None:
  """Starts the process that carries; it ends with this one, and removes the socket's folder."""
  parent = os.getpid()
  if os.fork():
    return
  os.close(status)
  folder = os.path.dirname(listener.getsockname())

  def end(*_: object) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)

  try:
    signal.signal(signal.SIGTERM, end)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == parent:
      _serve(listener, port)
  finally:
    end()


def main(arguments: Sequence[str]) -> None:
  """Becomes the command, in a network of its own if the kernel allows that."""
  listener_number, status, port = map(int, arguments[:3])
  command = arguments[3:]
  alone = is_allowed()
  if alone:
    _enter()
  with socket.socket(fileno=listener_number) as listener:
    if alone:
      _start_carrier(listener, port, status)
  os.write(status, ALONE if alone else OPEN)
  os.close(status)
  os.execvp(command[0], list(command))


if __name__ == "__main__":
  main(sys.argv[1:])
