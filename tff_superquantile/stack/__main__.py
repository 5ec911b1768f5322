"""Lets TFF be imported first, whenever this Python starts: `python -m tff_superquantile.stack`."""

import sysconfig

from tff_superquantile import stack

if __name__ == "__main__":
  print(stack.install_at_start(sysconfig.get_path("purelib")))
