"""Begins and ends commands: one sentence for a mistake, an exit code that means something."""

import atexit
from collections.abc import Callable, Iterator, Sequence
import contextlib
import faulthandler
import gc
import os
import signal
import sys
import traceback
import types
from typing import Any, NoReturn

from absl import flags
from absl import logging

from privacy.settings import command_line
from tff_superquantile.experiments import failures

USAGE_ERROR, FAILED = failures.USAGE_ERROR, failures.FAILED
INTERRUPTED = command_line.INTERRUPTED


@contextlib.contextmanager
def starting_tensorflow() -> Iterator[None]:
  """Encloses the imports of modules that need TensorFlow, which take seconds.

  The garbage collector is off meanwhile: it would look at every new object several times, a second
  in all. None of these objects is garbage before Python ends, so the collector ignores them later,
  too, and at the end all others, for which it would take another second. What a process keeps of a
  run must not be among them: the second time does nothing.
  """
  if "tensorflow_federated" in sys.modules:
    yield
    return
  atexit.register(gc.freeze)
  gc.disable()
  try:
    yield
  finally:
    gc.freeze()
    gc.enable()


def fail(message: str, code: int) -> NoReturn:
  """Ends the process with an error's message; without one in silence."""
  if message:
    print(f"Error: {message}", file=sys.stderr, flush=True)
  sys.exit(code)


def _replace_closed_streams() -> None:
  """Discards the output to streams that the caller of the command has closed (`>&-`).

  Python then has None in its place, and the next file that opens would get the stream's number, and
  what libraries print.
  """
  for number, name in ((1, "stdout"), (2, "stderr")):
    if getattr(sys, name) is None:
      descriptor = os.open(os.devnull, os.O_WRONLY)
      if descriptor != number:
        os.dup2(descriptor, number)
        os.close(descriptor)
      os.set_inheritable(number, True)
      setattr(sys, name, os.fdopen(number, "w", encoding="utf-8"))


def _drop_unwritable_output() -> None:
  """Drops buffered output, which Python would else write again at its end, with a complaint."""
  try:
    sys.stdout.flush()
  except OSError:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _carry_out(
  main: Callable[[], None], parser: command_line.Parser | None
) -> tuple[str, int] | None:
  """Runs the command of a parser, if known; returns the message of its failure, and the exit code.

  It does not end the process itself: while an error is handled, its traceback keeps the objects of
  the command alive, until Python has ended.
  """
  try:
    main()
    sys.stdout.flush()
  except KeyboardInterrupt:
    return "Interrupted. The same command continues where this one stopped.", INTERRUPTED
  except Exception as error:
    if isinstance(error, BrokenPipeError) and command_line.drop_unread_output():
      return "", command_line.UNREAD  # Such as by `| head`: silence is usual.
    failure = failures.describe(error, parser)
    if failure.has_traceback:
      traceback.print_exc()
    _drop_unwritable_output()
    return failure.sentence, failure.code
  return None


def _end_by_signals() -> None:
  """Turns signals into orderly ends."""

  def terminate(signum: int, frame: types.FrameType | None) -> NoReturn:
    del frame
    sys.exit(128 + signum)  # The stack unwinds, so that computed rounds are saved.

  signal.signal(signal.SIGTERM, terminate)
  if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup ignores it: it stays so.
    signal.signal(signal.SIGHUP, terminate)


def run_parsed(
  main: Callable[[], None],
  tell: Callable[[str], None] | None = None,
  parser: command_line.Parser | None = None,
) -> int:
  """Runs a command whose flags are read, as in a fork, which can `tell` why it failed; its code.

  `parser` has read them; None for the flags of a run.
  """
  _end_by_signals()
  try:
    failure = _carry_out(main, parser)
    if failure is not None:
      if tell is not None:
        tell(failure[0])
      fail(*failure)
    return 0
  except SystemExit as error:  # By `fail`, or by a signal.
    return error.code if isinstance(error.code, int) else FAILED


def begin() -> None:
  """Prepares this process for what its libraries print, and for what they would read as flags."""
  _replace_closed_streams()
  flags.FLAGS.mark_as_parsed()  # Those of logging, which libraries read.
  logging.use_absl_handler()
  logging.set_verbosity(logging.WARNING)
  with contextlib.suppress(OSError, ValueError):  # Where the stream is none of the system's.
    faulthandler.enable()


def run(module: Any, arguments: Sequence[str] | None = None) -> int:
  """Runs the command of a module, and turns signals into orderly ends; returns the exit code.

  `define(parser)` of the module adds its flags, and `main(args)` carries it out. A `ValueError`
  that this project raises is the user's mistake: its message is shown, not a traceback. `failures`
  describes other errors.
  """
  begin()
  try:
    parser = command_line.parser(module, arguments)
    args = parser.parse_args()
  except ValueError as error:
    print(f"Error: {error}", file=sys.stderr, flush=True)
    return USAGE_ERROR
  return run_parsed(lambda: module.main(args), parser=parser)
