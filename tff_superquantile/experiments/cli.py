"""How commands end: one sentence for a mistake, an exit code that means something."""

import atexit
from collections.abc import Iterator, Sequence
import contextlib
import gc
import os
import pathlib
import re
import signal
import sys
import sysconfig
import textwrap
import traceback
import types
from typing import Any, Callable, NoReturn, Optional

from absl import app
from absl import flags
from absl import logging

USAGE_ERROR = 2  # Bad flags or bad input; nothing was computed.
FAILED = 1
INTERRUPTED = 128 + signal.SIGINT

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_OUR_PACKAGES = ("tff_superquantile", "privacy", "benchmarks")
# Of the tasks; the other files of their package are users'.
_OUR_TASK_FILES = (
  *("__init__", "emnist", "emnist_files", "emnist_standin", "glove", "models", "sent140"),
  *("sent140_files", "sent140_standin", "synthetic", "task", "user_files"),
)
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
# AutoGraph runs a copy of a function; its messages say where the original is.
_FRAME_IN_MESSAGE = re.compile(r'File "(.+)", line (\d+), in (\w+)(?:  \*)?')
_MOST_CHARACTERS = 500  # Of an error's own message; TensorFlow's may have thousands.


@contextlib.contextmanager
def starting_tensorflow() -> Iterator[None]:
  """Where modules that need TensorFlow are imported, which takes seconds.

  Without the garbage collector, which would look at all that they make several times, a second in
  all. None of it is garbage before Python ends: until then it is left out of what the collector
  looks at.

  And without the call by which TensorFlow counts its GPUs where absl has begun already: it comes
  before TensorFlow is eager, and from then on Keras takes itself to be in TensorFlow 1 within
  functions.
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


def _is_ours(path: str) -> bool:
  """Whether a source file is this project's."""
  file = pathlib.Path(path).resolve()
  if file.parent == _ROOT / "tasks":
    return file.stem in _OUR_TASK_FILES
  return any(_ROOT / package in file.parents for package in _OUR_PACKAGES)


def _is_users(path: str) -> bool:
  """Whether a source file is neither this project's nor a library's."""
  if pathlib.Path(path).resolve().parent == _ROOT / "tasks":
    return not _is_ours(path)
  return not _is_ours(path) and os.path.exists(path) and not path.startswith(_LIBRARIES)


def _is_sentence(error: Exception) -> bool:
  """Whether an error's message is written for users: this project's own `ValueError`s are."""
  last = traceback.extract_tb(error.__traceback__)[-1]
  return isinstance(error, ValueError) and _is_ours(last.filename)


def _say_where(error: Exception) -> str:
  """A sentence on an error that comes from a user's file, or from where nobody expects any."""
  frames: list[tuple[Any, ...]] = []
  frames += [(f.filename, f.lineno, f.name) for f in traceback.extract_tb(error.__traceback__)]
  message = str(error)
  for match in _FRAME_IN_MESSAGE.finditer(str(error)):
    frames.append(match.groups())
    message = str(error)[match.end() :]
  users = [frame for frame in frames if _is_users(frame[0])]
  file, line, function = (users or frames)[-1]
  message = textwrap.shorten(message, _MOST_CHARACTERS, placeholder=" ...").rstrip(".")
  return (
    f"Found that {file}, line {line}, in {function}, raised {type(error).__name__}: {message}; see"
    " the traceback above."
  )


def run(main: Callable[[], None]) -> None:
  """Runs a command: parses its flags, quietens TensorFlow and turns signals into orderly ends.

  Args:
    main: The command. A `ValueError` that this project raises is the user's mistake: its message is
      shown, not a traceback. Of other errors, such as those of a task of the user's own, both are,
      and where they come from.
  """
  # Before anything imports TensorFlow, here or in a child process.
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

  def terminate(signum: int, frame: Optional[types.FrameType]) -> NoReturn:
    del frame
    sys.exit(128 + signum)  # Unwinds, so that what was computed is saved.

  def guarded(argv: Sequence[str]) -> None:
    if len(argv) > 1:
      fail(f"Found {argv[1]!r} among the flags; expected --name=value.", USAGE_ERROR)
    if not flags.FLAGS["verbosity"].present:
      logging.set_verbosity(logging.WARNING)
    signal.signal(signal.SIGTERM, terminate)
    try:
      main()
    except Exception as error:
      if _is_sentence(error):
        fail(str(error), USAGE_ERROR)
      traceback.print_exc()
      fail(_say_where(error), FAILED)
    except KeyboardInterrupt:
      fail("Interrupted. The same command continues where this one stopped.", INTERRUPTED)

  def parse(argv: Sequence[str]) -> Sequence[str]:
    try:
      return flags.FLAGS(argv)
    except flags.Error as error:
      fail(f"{' '.join(str(error).split())} (--help lists the flags)", USAGE_ERROR)
    except SystemExit:
      sys.exit(0)  # After --help, which absl ends as a failure.

  app.run(guarded, flags_parser=parse)


def parse_list(flag: str, values: Sequence[str], kind: type) -> list:
  """The values of a list flag as numbers.

  Args:
    flag: Its name.
    values: Its value.
    kind: int or float.

  Returns:
    The numbers.

  Raises:
    ValueError: If one isn't a number or comes twice, or there is none.
  """
  found = f"Found --{flag}={','.join(values)}; expected"
  try:
    numbers = [kind(value) for value in values]
  except ValueError:
    raise ValueError(f"{found} numbers separated by commas.") from None
  if not numbers or len(set(numbers)) != len(numbers):
    raise ValueError(f"{found} at least one number, and none twice.")
  return numbers
