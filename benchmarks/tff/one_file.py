"""Runs one file of TFF's tests in TFF's context, or in this project's: see `own_tests`.

python -m benchmarks.tff.one_file CONTEXT CHECKOUT FILE XML
"""

from collections.abc import Sequence
import importlib.abc
import importlib.machinery
import importlib.util
import pathlib
import runpy
import sys
import types
from typing import Any

import tensorflow_federated as tff

import tff_superquantile as tsq

THEIRS, OURS = "TFF", "here"


class _Checkout(importlib.abc.MetaPathFinder):
  """Finds modules of TFF that its wheel does not have, such as those that its tests share."""

  def __init__(self, folder: pathlib.Path):
    self._folder = folder

  def find_spec(
    self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
  ) -> importlib.machinery.ModuleSpec | None:
    if not fullname.startswith("tensorflow_federated."):
      return None
    place = self._folder.joinpath(*fullname.split("."))
    for file in (place.with_suffix(".py"), place / "__init__.py"):
      if file.is_file():
        return importlib.util.spec_from_file_location(fullname, file)
    return None


def _use_our_contexts() -> None:
  """Has TFF's functions that make its contexts make those of this process."""

  def create(default_num_clients: int = 0, **_: Any) -> tff.framework.AsyncContext:
    return tsq.simulation.create_async_simulation_context(default_num_clients=default_num_clients)

  def set_sync(default_num_clients: int = 0, **_: Any) -> None:
    tsq.set_simulation_context(default_num_clients=default_num_clients)

  def create_sync(default_num_clients: int = 0, **_: Any) -> Any:
    before = tff.framework.get_context_stack().current
    set_sync(default_num_clients)
    made = tff.framework.get_context_stack().current
    tff.framework.set_default_context(before)
    return made

  def set_async(**options: Any) -> None:
    tff.framework.set_default_context(create(**options))

  # Where tests take them from, and what `tff.backends` has of them.
  for package in ("native", "test"):
    kind = "local" if package == "native" else package
    public = getattr(tff.backends, package)
    for module in (public, sys.modules[f"{public.__name__}.execution_contexts"]):
      setattr(module, f"set_sync_{kind}_cpp_execution_context", set_sync)
      setattr(module, f"set_async_{kind}_cpp_execution_context", set_async)
      setattr(module, f"create_sync_{kind}_cpp_execution_context", create_sync)
      setattr(module, f"create_async_{kind}_cpp_execution_context", create)
  set_sync()


def main(argv: Sequence[str]) -> None:
  context, checkout, file, xml = argv
  sys.meta_path.append(_Checkout(pathlib.Path(checkout)))
  if context == OURS:
    _use_our_contexts()
  sys.argv = [file, f"--xml_output_file={xml}"]
  runpy.run_path(file, run_name="__main__")


if __name__ == "__main__":
  main(sys.argv[1:])
