"""Ends commands: one sentence for a mistake, an exit code that means something."""

import argparse
import atexit
from collections.abc import Callable, Iterator, Sequence
import contextlib
import gc
import os
import signal
import sys
import traceback
import types
from typing import NoReturn

from absl import app
from absl import flags
from absl import logging

from tff_superquantile.experiments import failures

USAGE_ERROR, FAILED = failures.USAGE_ERROR, failures.FAILED
# Each takes a command line before its flags are read; a mistake is a `ValueError` or `flags.Error`.
BEFORE_FLAGS: list[Callable[[Sequence[str]], None]] = []
INTERRUPTED = 128 + signal.SIGINT


@contextlib.contextmanager
def starting_tensorflow() -> Iterator[None]:
  """Encloses the imports of modules that need TensorFlow, which take seconds.

  The garbage collector is off meanwhile: it would look at every new object several times, a second
  in all. None of these objects is garbage before Python ends, so the collector ignores them later,
  too.

  If absl has begun already, TensorFlow would also count its GPUs here. That call comes before
  TensorFlow is eager, and afterwards Keras takes itself to be in TensorFlow 1 within functions. So
  the call is left out.
  """
  atexit.register(gc.unfreeze)
  gc.disable()
  call_after_init, app.call_after_init = app.call_after_init, lambda callback: None
  try:
    yield
  finally:
    app.call_after_init = call_after_init
    gc.freeze()
    gc.enable()


def fail(message: str, code: int) -> NoReturn:
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


def _carry_out(main: Callable[[], None]) -> tuple[str, int] | None:
  """Runs a command; returns the message of its failure, and the exit code.

  It does not end the process itself: while an error is handled, its traceback keeps the objects of
  the command alive, until Python has ended.
  """
  try:
    main()
    sys.stdout.flush()
  except KeyboardInterrupt:
    return "Interrupted. The same command continues where this one stopped.", INTERRUPTED
  except Exception as error:
    failure = failures.describe(error)
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


def run_parsed(main: Callable[[], None], tell: Callable[[str], None] | None = None) -> int:
  """Runs a command whose flags are read, as in a fork, which can `tell` why it failed; its code."""
  _end_by_signals()
  try:
    failure = _carry_out(main)
    if failure is not None:
      if tell is not None:
        tell(failure[0])
      fail(*failure)
    return 0
  except SystemExit as error:  # By `fail`, or by a signal.
    return error.code if isinstance(error.code, int) else FAILED


def run(main: Callable[[], None]) -> None:
  """Runs a command: parses its flags and turns signals into orderly ends.

  A `ValueError` that this project raises is the user's mistake: its message is shown, not a
  traceback. `failures` describes other errors.
  """
  _replace_closed_streams()

  def guarded(argv: Sequence[str]) -> None:
    if len(argv) > 1:
      fail(f"Found {argv[1]!r} among the flags; expected --name=value.", USAGE_ERROR)
    if not flags.FLAGS["verbosity"].present:
      logging.set_verbosity(logging.WARNING)
    _end_by_signals()
    failure = _carry_out(main)
    if failure is not None:
      fail(*failure)

  def parse(argv: Sequence[str]) -> Sequence[str]:
    try:
      for prepare in BEFORE_FLAGS:
        prepare(argv)
      return flags.FLAGS(argv)
    except flags.Error as error:
      fail(f"{' '.join(str(error).split())} (--help lists the flags)", USAGE_ERROR)
    except ValueError as error:
      fail(str(error), USAGE_ERROR)
    except SystemExit:
      sys.exit(0)  # absl ends --help as a failure.

  app.run(guarded, flags_parser=parse)


def run_module(module: types.ModuleType) -> None:
  """Runs the command of a module: its flags, its `main`, and its docstring for --help."""
  module.define_flags()
  sys.modules["__main__"].__doc__ = module.__doc__
  for flag in flags.FLAGS.get_key_flags_for_module(module.__name__):
    flags.FLAGS.register_key_flag_for_module(sys.argv[0], flag)
  run(module.main)


def run_parser(
  parser: argparse.ArgumentParser,
  main: Callable[[argparse.Namespace], None],
  argv: Sequence[str] | None = None,
) -> int:
  """Runs a command with arguments of its own in place of flags; returns its exit code.

  A mistake that the parser finds is a `ValueError` with a sentence. Errors end the command as in
  `run`. Arguments of None are the process's.
  """
  _replace_closed_streams()
  try:
    args = parser.parse_args(argv)
  except ValueError as error:
    print(f"Error: {error}", file=sys.stderr, flush=True)
    return USAGE_ERROR
  return run_parsed(lambda: main(args))


def parse_list(flag: str, values: Sequence[str], kind: type) -> list:
  """Returns the numbers of a list flag, of the kind int or float: one or more, and none twice."""
  found = f"Found --{flag}={','.join(values)}; expected"
  try:
    numbers = [kind(value) for value in values]
  except ValueError:
    raise ValueError(f"{found} numbers separated by commas.") from None
  if not numbers or len(set(numbers)) != len(numbers):
    raise ValueError(f"{found} at least one number, and none twice.")
  return numbers
