"""Describes the error that ends a command, in a sentence and with an exit code.

A `ValueError` of this project's is a sentence for its user already. What the system says of a file,
such as that the disk is full, becomes one. Any other error comes from a user's own task or model,
or from where nobody expects any: a sentence says where, under the traceback.
"""

import errno
import os
import pathlib
import re
import sysconfig
import textwrap
import traceback
from typing import Any, NamedTuple

from privacy.settings import command_line

USAGE_ERROR = command_line.USAGE_ERROR
FAILED = 1

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_OUR_PACKAGES = ("tff_superquantile", "privacy", "paper", "benchmarks")
# Files and folders of `tasks` that are the project's; the others there are users'.
_OUR_TASKS = (
  *("__init__", "data_set", "downloads", "emnist", "models", "own", "own_flags", "places"),
  "preprocessing",
  *("request", "sent140", "shakespeare", "splits", "synthetic", "task", "user_files"),
)
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
# AutoGraph runs a copy of a function; its messages say where the original is.
_FRAME_IN_MESSAGE = re.compile(r'File "(.+)", line (\d+), in (\w+)(?:  \*)?')
_MOST_CHARACTERS = 500  # TensorFlow's messages may have thousands; so much of them is shown.

_REMEDIES = {
  errno.ENOSPC: "make room",
  errno.EDQUOT: "make room",
  errno.EFBIG: "raise the limit of a file's size (ulimit -f)",
}
# What is the user's mistake: a name that no file of such a path can have.
_NAMES = (errno.ENAMETOOLONG, errno.ENOTDIR)
_ERRNOS = {os.strerror(number): number for number in errno.errorcode}
# The words of TensorFlow's errors, at the beginning of a line or after the failed action:
# "{{node SaveV2}} PATH; No space left on device", "Failed to run: PATH; No such file or directory".
_TENSORFLOWS_WORDS = re.compile(
  rf"(?:^|: |\}}\}} )((?:(?!: |\}}\}} ).)+?); ({'|'.join(map(re.escape, _ERRNOS))})", re.MULTILINE
)


class Failure(NamedTuple):
  """The message and the exit code of a command, and whether a traceback belongs above them."""

  sentence: str
  code: int
  has_traceback: bool = False


def describe(error: Exception, parser: command_line.Parser | None = None) -> Failure:
  """Returns the failure of a command that this error ends: that of the parser, or of a run."""
  if isinstance(error, command_line.Mistake):
    return Failure(error.sentence(parser.has if parser else _is_of_a_run), USAGE_ERROR)
  last = traceback.extract_tb(error.__traceback__)[-1]
  if isinstance(error, ValueError) and _is_ours(last.filename):
    return Failure(str(error), USAGE_ERROR)
  fault = _system_error(error)
  if fault is not None:
    what = f"{fault.filename or 'the output'} cannot be read or written ({fault.strerror or fault})"
    if fault.errno in _NAMES:
      return Failure(f"Found that {what}; name another file or folder.", USAGE_ERROR)
    remedy = _REMEDIES.get(fault.errno or 0, "mend that")
    return Failure(
      f"Found that {what}; {remedy} and run the same command again: it goes on where it was.",
      FAILED,
    )
  return Failure(_say_where(error), FAILED, has_traceback=True)


def _is_of_a_run(flag: str) -> bool:
  """Returns whether a flag, `--name` or `--name=value`, is one of `train`."""
  from tff_superquantile.experiments.config import run_config

  return flag.partition("=")[0].removeprefix("--") in run_config.flags()


def _is_ours(path: str) -> bool:
  """Returns whether a source file is this project's."""
  file = pathlib.Path(path).resolve()
  if _ROOT / "tasks" in file.parents:
    return pathlib.Path(file.relative_to(_ROOT / "tasks").parts[0]).stem in _OUR_TASKS
  return any(_ROOT / package in file.parents for package in _OUR_PACKAGES)


def _is_users(path: str) -> bool:
  """Returns whether a source file is neither this project's nor a library's."""
  if _ROOT / "tasks" in pathlib.Path(path).resolve().parents:
    return not _is_ours(path)
  return not _is_ours(path) and os.path.exists(path) and not path.startswith(_LIBRARIES)


def _say_where(error: Exception) -> str:
  """Describes an error of a user's file, or one that nobody expects, with its place."""
  stack = traceback.extract_tb(error.__traceback__)
  frames: list[tuple[Any, ...]] = [(f.filename, f.lineno, f.name) for f in stack]
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


def _system_error(error: Exception) -> OSError | None:
  """Returns the system's error about a file, also TensorFlow's and TFF's, as Python's; or None."""
  if isinstance(error, OSError):
    return error
  match = _TENSORFLOWS_WORDS.search(str(error))
  return match and OSError(_ERRNOS[match[2]], match[2], match[1])
