"""Lets TFF be imported first, whenever this Python starts: `superquantile stack`."""

import argparse
import sys
import sysconfig

from privacy.settings import command_line
from tff_superquantile import stack


def define(parser: command_line.Parser) -> None:
  del parser  # It has no flags.


def main(args: argparse.Namespace) -> int:
  del args
  print(stack.install_at_start(sysconfig.get_path("purelib")))
  return 0


if __name__ == "__main__":
  sys.exit(command_line.run(sys.modules[__name__]))
