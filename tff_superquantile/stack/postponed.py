"""Modules of other packages that run when something is first asked of them."""

from __future__ import annotations

import _thread
import importlib.machinery
import types
from typing import Any, NamedTuple


class Late(NamedTuple):
  """A part of another package that is run when something is first asked of it.

  Attributes:
    module: Its module's full name.
    why: Why it is postponed.
    needs: What pip has to install for it, if this project's packages are not enough.
    names: What other modules take from it by `from module import name` while they are imported.
      They get a stand-in that becomes the real thing when it is called, subclassed or asked for an
      attribute.
  """

  module: str
  why: str
  needs: str = ""
  names: tuple[str, ...] = ()


class Wrapper:
  """A loader that does what the real one does; its sources and resources are as ever."""

  def __init__(self, real: Any):
    self.real = real

  def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
    return self.real.create_module(spec)

  def exec_module(self, module: types.ModuleType) -> None:
    self.real.exec_module(module)

  def __getattr__(self, name: str) -> Any:
    return getattr(self.real, name)


class Postponed(types.ModuleType):
  """A module that has not run yet."""

  def __getattr__(self, name: str) -> Any:
    # Reading a module's own attributes, as `inspect` and `warnings` do of all, runs nothing.
    if name.startswith("__") and name not in ("__all__", "__version__"):
      raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
    loader = _loader_of(self)
    if name in loader.part.names and not loader.is_running:
      return _StandIn(self, name)
    run(self)
    if isinstance(self, Postponed):  # It is running, and has not come to this name.
      raise AttributeError(f"module {self.__name__!r} has no attribute {name!r} yet")
    return getattr(self, name)

  def __dir__(self) -> list[str]:
    run(self)
    return sorted(vars(self))


def run(module: types.ModuleType) -> None:
  """Runs a postponed module; does nothing if it has run, or is running in this thread."""
  if not isinstance(module, Postponed):
    return
  loader = _loader_of(module)
  with loader.lock:  # Another thread waits until it has run.
    if not isinstance(module, Postponed) or loader.is_running:
      return
    before = dict(vars(module))
    loader.is_running = True
    try:
      loader.real.exec_module(module)
    except BaseException as error:
      vars(module).clear()
      vars(module).update(before)
      if not loader.part.needs or not isinstance(error, (ImportError, AttributeError)):
        raise
      raise ImportError(
        f"Found no way to import {loader.part.module} here ({error}), since {loader.part.why}; it"
        f" needs {loader.part.needs}.",
        name=loader.part.module,
      ) from error
    finally:
      loader.is_running = False
    object.__setattr__(module, "__class__", types.ModuleType)


class _StandIn:
  """A name of a postponed module in the place of what it names."""

  def __init__(self, module: types.ModuleType, name: str):
    self._module = module
    self._name = name

  def _real(self) -> Any:
    run(self._module)
    return vars(self._module)[self._name]

  def __call__(self, *args: Any, **kwargs: Any) -> Any:
    return self._real()(*args, **kwargs)

  def __getattr__(self, name: str) -> Any:
    if name.startswith("__"):
      raise AttributeError(name)
    return getattr(self._real(), name)

  def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
    return (self._real(),)

  def __instancecheck__(self, instance: object) -> bool:
    return isinstance(instance, self._real())

  def __repr__(self) -> str:
    return f"<{self._name} of {self._module.__name__}, not loaded yet>"


class Loader(Wrapper):
  """Loads a postponed module, which the real loader runs later."""

  def __init__(self, real: Any, part: Late):
    super().__init__(real)
    self.part = part
    self.lock = _thread.RLock()
    self.is_running = False

  def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
    return Postponed(spec.name)

  def exec_module(self, module: types.ModuleType) -> None:
    """Runs nothing yet."""


def _loader_of(module: types.ModuleType) -> Loader:
  spec = module.__spec__
  assert spec is not None and isinstance(spec.loader, Loader)
  return spec.loader
