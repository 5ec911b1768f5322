"""Lets TFF be imported first, whenever this Python starts: `superquantile stack`."""

from collections.abc import Sequence
import sys
import sysconfig

from privacy.settings import command_line
from tff_superquantile import stack


def define(parser: command_line.Parser) -> None:
  del parser  # It has no flags.


def main(arguments: Sequence[str] | None = None) -> int:
  """Writes the file that Python reads at its start, and prints its path."""
  try:
    command_line.parse(sys.modules[__name__], arguments)
  except ValueError as error:
    print(f"Error: {error}", file=sys.stderr)
    return command_line.USAGE_ERROR
  print(stack.install_at_start(sysconfig.get_path("purelib")))
  return 0


if __name__ == "__main__":
  sys.exit(main())
