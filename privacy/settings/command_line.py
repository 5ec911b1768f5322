"""Command lines: their flags, their mistakes as sentences, and tables for a terminal.

It needs the standard library alone, as the doctor does.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
import contextlib
import difflib
import os
import re
import select
import signal
import sys
from typing import Any, NoReturn

_MOST_SHOWN = 30  # Flags in the usage of a command.
_LONGEST_LINE = 60  # Of a file of flags, in a sentence.
# The attribute of parsed arguments with the names of flags that files alone have given.
OF_FILES = "of_files"
_MOST_CHARACTERS = 300  # Of a value in a sentence.
INTERRUPTED = 128 + signal.SIGINT
UNREAD = 128 + signal.SIGPIPE  # Nobody reads the output any more.
USAGE_ERROR = 2  # Bad flags or bad input; nothing was computed.

# argparse's messages, and the sentences in their place.
_SENTENCES = (
  (r"argument [^:]+: (Found .*)", "{}"),
  (
    r"argument ([^:]+): invalid choice: ['\"](.*)['\"] \(choose from (.*)\)",
    "Found {}={}; expected one of {}",
  ),
  (r"argument ([^:]+): expected one argument", "Found {0} without a value; expected {0}=VALUE"),
  (r"argument ([^:]+): ignored explicit argument '(.*)'", "Found {0}={1}; expected {0} alone"),
  (r"the following arguments are required: (.*)", "Found no {}; expected it"),
  (r"unrecognized arguments: (.*)", "Found {!r} among the flags; expected --name=value"),
)


class Parser(argparse.ArgumentParser):
  """A parser whose mistakes are `ValueError`s with sentences like all others.

  Attributes:
    arguments: Those that it is to parse; None for the process's.
  """

  _has_commands = False  # What it is given then belongs to one of them.
  _last_counts = False  # Of a flag that is there twice, as those after a file override its own.

  def __init__(self, *, arguments: Sequence[str] | None = None, **kwargs: Any):
    kwargs.update(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    super().__init__(**kwargs)
    self._negative_number_matcher = re.compile(r"-\.?\d")  # Also 1e-3, as a value of its own.
    self.arguments = list(sys.argv[1:] if arguments is None else arguments)

  def error(self, message: str) -> NoReturn:
    raise ValueError(_as_sentence(message))

  def print_help(self, file: Any = None) -> None:
    del file
    say(self.format_help())

  def add_subparsers(self, **kwargs: Any) -> Any:
    self._has_commands = True
    return super().add_subparsers(**kwargs)

  def flags(self) -> list[str]:
    """Returns the names of all flags, also `--noNAME` of truth values."""
    return [name for name in self._option_string_actions if name.startswith("--")]

  def has(self, flag: str) -> bool:
    """Returns whether there is a flag `--name`, or one that may be `--name=value`."""
    name, _, value = flag.partition("=")
    action = self._option_string_actions.get(name)
    return action is not None and (not value or not action.choices or value in action.choices)

  def shorten_usage(self) -> None:
    """Leaves flags out of the usage if they are many."""
    shown_ones = {
      a.dest for a in self._option_string_actions.values() if a.help != argparse.SUPPRESS
    }
    if len(shown_ones) > _MOST_SHOWN:
      self.usage = f"{self.prog} [--flag=value ...]"

  def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
    # A flag that is not known may be the reason why another one is missing.
    args, known = self.arguments if args is None else args, self.flags()
    for text in () if self._has_commands else args:
      name = text.partition("=")[0]
      if name.startswith("--") and name not in known and name != "--" and " " not in name:
        nearest = self._nearest(name[2:].replace("-", "_"))
        hint = f", the nearest of them --{nearest}" if nearest else ""
        raise ValueError(
          f"Found {text} among the flags; expected only those that exist{hint} (--help lists them)."
        )
    if not self._last_counts:
      self._check_once(args)
    return super().parse_known_args(args, namespace)

  def _check_once(self, texts: Iterable[str]) -> None:
    """Raises a `ValueError` for a flag that is there twice, unless each of them counts."""
    given: dict[str, str] = {}
    for text in texts:
      action = self._option_string_actions.get(text.partition("=")[0])
      if action is None or isinstance(action, argparse._AppendAction):
        continue
      if (earlier := given.get(action.dest)) is not None:
        raise ValueError(
          f"Found {shown(earlier)} and {shown(text)}; expected one of them, as only the last would"
          " count: leave the other out."
        )
      given[action.dest] = text

  def _nearest(self, name: str) -> str:
    """Returns the flag that an unknown name may mean; "" if none is near.

    It is one that begins so, or is written alike, or else one whose help has these words.
    """
    names, words = sorted(flag.lstrip("-") for flag in self.flags()), name.replace("_", " ")
    near = [flag for flag in names if flag.startswith(name)]
    near += difflib.get_close_matches(name, names, 1)
    # Each flag begins a line of the help, and its words follow to the next flag.
    for entry in re.split(r"^ +(?:-\w, )?--(?=[\w-])", self.format_help(), flags=re.MULTILINE)[1:]:
      if words in " ".join(entry.lower().split()):
        near.append(re.match(r"[\w-]+", entry)[0])  # type: ignore[index]
    return near[0] if near and name else ""

  def read_files(self) -> None:
    """Adds --flagfile, and to the arguments the lines of its files."""
    self._last_counts = True
    add_flag(self, "flagfile", str, None, "File of further flags, one a line: a run's flags.txt.")
    texts, self.arguments = iter(self.arguments), []
    of_files: set[str] = set()
    for text in texts:
      self.arguments.append(text)
      if text.partition("=")[0] == "--flagfile":
        path = text.partition("=")[2] or next(texts, "")
        self.arguments[-1] = f"--flagfile={path}"
        try:
          with open(path, encoding="utf-8") as file:
            lines = [line.strip() for line in file]
        except (OSError, ValueError) as error:
          reason = getattr(error, "strerror", None) or "it is no text"
          raise ValueError(
            f"Found --flagfile={path}, which cannot be read ({reason}); expected a file of flags."
          ) from None
        if any(line.startswith("--flagfile") for line in lines):
          raise ValueError(f"Found --flagfile within {path}; expected it in the command alone.")
        _check_flags(path, lines)
        flags = [line for line in lines if line.startswith("--")]
        self.arguments += flags
        of_files |= {name for flag in flags for name in read_flags(flag)}
      else:
        of_files -= set(read_flags(text))
    self.set_defaults(**{OF_FILES: frozenset(of_files)})


class Mistake(ValueError):
  """A user's mistake, with remedies of which each names the flags that it needs, or none.

  A command has not all flags of the others: its user reads the `sentence` without those remedies
  whose flags it lacks. The text of the error has all, as for Python.
  """

  def __init__(self, found: str, *remedies: str):
    """Takes the sentence up to its colon, and what may follow it."""
    super().__init__(found, *remedies)

  def __str__(self) -> str:
    return self.sentence(lambda flag: True)

  def sentence(self, has: Callable[[str], bool]) -> str:
    """Returns the sentence for a command that has the flags of which `has` says so."""
    found, *remedies = self.args
    left = [text for text in remedies if all(map(has, re.findall(r"--\w+(?:=\w+)?", text)))]
    return f"{': '.join([found, ', or '.join(left)] if left else [found])}."


def _check_flags(path: str, lines: Sequence[str]) -> None:
  """Raises a `ValueError` unless each line of a file is a flag, a comment or blank."""
  for number, line in enumerate(lines, 1):
    if line and not line.startswith(("--", "#")):
      shown = line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}..."
      raise ValueError(
        f"Found {shown!r} in line {number} of {path}; expected flags alone, one a line, such as"
        " --num_rounds=100, or comments (#): name a run's flags.txt, or mend that line."
      )


def did_you_mean(name: str, names: Iterable[str], cutoff: float = 0.0) -> str:
  """Returns "did you mean 'X'?" with the nearest of some names; "" if none is near, or there is."""
  nearest = difflib.get_close_matches(name, list(names), n=1, cutoff=cutoff)
  return f"did you mean {nearest[0]!r}?" if nearest else ""


def say(text: str) -> None:
  """Prints a text, of which a pipe may take the beginning alone."""
  try:
    print(text, flush=True)
  except BrokenPipeError:
    # The reader has closed the pipe. Without this, Python would complain again at its end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def drop_unread_output() -> bool:
  """Drops the output to pipes that nobody reads any more; returns whether there is one."""
  is_unread = False
  for stream in (sys.stdout, sys.stderr):
    with contextlib.suppress(OSError, ValueError):  # A stream may be none of the system's.
      poll = select.poll()
      poll.register(stream.fileno(), 0)
      if any(event & select.POLLERR for _, event in poll.poll(0)):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        is_unread = True
  return is_unread


def one_line(text: Any) -> str:
  """Returns a text whose line breaks, as a path may have them, are seen and break no line."""
  return "\\n".join(str(text).splitlines())


def shown(value: Any, most: int = _MOST_CHARACTERS) -> str:
  """Returns a value for a sentence: in one line, and of a long one the beginning."""
  text = " ".join(str(value).split())
  return text if len(text) <= most else f"{text[:most]}..."


def _as_sentence(message: str) -> str:
  """Turns argparse's message into "Found ...; expected ..."."""
  for pattern, sentence in _SENTENCES:
    match = re.fullmatch(pattern, message, re.DOTALL)
    if match:
      groups = [shown(value.replace("'", ""), 3 * _MOST_CHARACTERS) for value in match.groups()]
      return f"{sentence.format(*groups)} (--help lists them)."
  return f"Found flags that cannot be read: {message} (--help lists them)."


def read_flags(text: str) -> dict[str, str]:
  """Reads lines like `--name=value`, as those of a run's `flags.txt`: values by name.

  The values of a flag that is there several times are joined by commas.
  """
  values: dict[str, list[str]] = {}
  for line in text.splitlines():
    if line.startswith("-"):
      name, equals, value = line.lstrip("-").partition("=")
      values.setdefault(name.strip(), []).append(value.strip() if equals else "true")
  return {name: ",".join(items) for name, items in values.items()}


def _whole(text: str) -> int:
  """Returns a whole number, such as 1e6."""
  if re.fullmatch(r"[+-]?\d+", text):
    return int(text)
  if not (value := float(text)).is_integer():
    raise ValueError
  return int(value)


_KINDS: dict[type, tuple[Callable[[str], Any], str]] = {
  int: (_whole, "a whole number"),
  float: (float, "a number"),
  str: (str, ""),
}


def _reader(name: str, kind: type, least: float | None, are_several: bool) -> Callable[[str], Any]:
  """Returns what reads the value of a flag, or its values with commas between them."""

  def read(text: str) -> Any:
    message = f"Found --{name}={shown(text)}; expected"
    convert, expected = _KINDS[kind]
    texts = [part.strip() for part in text.split(",") if part.strip()] if are_several else [text]
    try:
      values = [convert(part) for part in texts]
    except (ValueError, OverflowError):
      expected = "numbers separated by commas" if are_several else expected
      raise argparse.ArgumentTypeError(f"{message} {expected}") from None
    if least is not None and not all(value >= least for value in values):  # This refuses NaN, too.
      raise argparse.ArgumentTypeError(f"{message} at least {least:g}")
    if are_several and kind is not str and not len(values) == len(set(values)) > 0:
      raise argparse.ArgumentTypeError(f"{message} at least one number, and none twice")
    return values if are_several else values[0]

  return read


def add_flag(
  group: Any,
  name: str,
  kind: type,
  default: Any,
  description: str,
  *,
  least: float | None = None,
  choices: Iterable[str] = (),
  are_several: bool = False,
  metavar: str = "",
  **options: Any,
) -> None:
  """Adds a flag of a kind (bool, int, float or str) to a parser or a group of it.

  `least` is the least number, `choices` the words that a text may be; of `are_several` values,
  with commas between them, the default is a list. `options` are argparse's.
  """
  shown = ",".join(map(str, default)) if isinstance(default, list) else default
  if shown not in (None, "", False, argparse.SUPPRESS):
    description += f" (default: {shown})"
  options.update(default=default, help=description.replace("%", "%%"))
  if kind is bool:
    group.add_argument(f"--{name}", action="store_true", **options)
    off = dict(dest=name, action="store_false", default=default, help=argparse.SUPPRESS)
    group.add_argument(f"--no{name}", **off)
    return
  read = _reader(name, kind, least, are_several)
  words = tuple(choices)
  options.update(choices=words or None, metavar="|".join(words) or metavar or name[0].upper())
  group.add_argument(f"--{name}", type=read, **options)


def run(module: Any, arguments: Sequence[str] | None = None) -> int:
  """Runs the command of a module that needs nothing else; returns the exit code, as its `main`."""
  try:
    code: int = module.main(parse(module, arguments))
    sys.stdout.flush()
    return code
  except BrokenPipeError:
    if not drop_unread_output():
      raise
    return UNREAD
  except ValueError as error:
    print(f"Error: {one_line(error)}", file=sys.stderr, flush=True)
    return USAGE_ERROR
  except KeyboardInterrupt:
    print("Error: Interrupted.", file=sys.stderr, flush=True)
    return INTERRUPTED


def parse(module: Any, arguments: Sequence[str] | None) -> argparse.Namespace:
  """Parses the arguments of a module's command, None for the process's, by its `parser`."""
  return parser(module, arguments).parse_args()


def parser(module: Any, arguments: Sequence[str] | None) -> Parser:
  """Returns the parser of a module's command with its arguments, None for the process's.

  The module adds its flags in `define(parser)`; its docstring describes the command.
  """
  name = getattr(module.__spec__, "name", module.__name__).replace(".__main__", "")
  is_ours = name.startswith(("tff_superquantile.", "privacy."))
  words = f"superquantile {name.rpartition('.')[2]}" if is_ours else f"python -m {name}"
  if name == "__main__":  # A script, which no package has.
    words = f"python {sys.argv[0]}"
  made = Parser(prog=words, description=module.__doc__, arguments=arguments)
  module.define(made)
  made.shorten_usage()
  return made


def table(rows: Iterable[Sequence[str]], num_left: int = 1, indent: str = "  ") -> str:
  """Lays texts out in columns: the first `num_left` to the left, the others to the right."""
  rows = list(rows)
  widths = [max(map(len, column)) for column in zip(*rows)]
  lines = (
    "  ".join(
      text.ljust(width) if i < num_left else text.rjust(width)
      for i, (text, width) in enumerate(zip(row, widths))
    )
    for row in rows
  )
  return "\n".join(indent + line.rstrip() for line in lines)
