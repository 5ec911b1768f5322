"""TFF's language: what its building blocks mean, whatever values are."""

import abc
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow_federated as tff

from tff_superquantile.engine.cohort.graphs import errors

# What a function of the language is here: from (argument or None, whether at clients) to a value.
Function = Callable[[Any, bool], Any]


class Interpreter(abc.ABC):
  """Evaluates building blocks. Structures are `tff.structure.Struct`, functions are `Function`."""

  @abc.abstractmethod
  def component(self, block: tff.framework.CompiledComputation) -> Function:
    """Returns the function of a TensorFlow graph."""

  @abc.abstractmethod
  def intrinsic(self, block: tff.framework.Intrinsic) -> Function:
    """Returns the function of an intrinsic; raises `UnsupportedError` for an unknown one."""

  @abc.abstractmethod
  def literal(self, block: tff.framework.Literal) -> Any:
    """Returns the value of a literal."""

  def evaluate(
    self,
    block: tff.framework.ComputationBuildingBlock,
    scope: Mapping[str, Any],
    at_clients: bool = False,
  ) -> Any:
    """Returns the value of a building block, once a client if `at_clients`."""
    if isinstance(block, tff.framework.Reference):
      return scope[block.name]
    if isinstance(block, tff.framework.Selection):
      return self.evaluate(block.source, scope, at_clients)[block.as_index()]
    if isinstance(block, tff.framework.Struct):
      return tff.structure.Struct(
        [
          (name, self.evaluate(element, scope, at_clients))
          for name, element in tff.structure.to_elements(block)
        ]
      )
    if isinstance(block, tff.framework.Call):
      function = self.evaluate(block.function, scope, at_clients)
      argument = block.argument and self.evaluate(block.argument, scope, at_clients)
      return function(argument, at_clients)
    if isinstance(block, tff.framework.Lambda):
      return self._closure(block, scope)
    if isinstance(block, tff.framework.Block):
      scope = dict(scope)
      for name, local in block.locals:
        scope[name] = self.evaluate(local, scope, at_clients)
      return self.evaluate(block.result, scope, at_clients)
    if isinstance(block, tff.framework.CompiledComputation):
      return self.component(block)
    if isinstance(block, tff.framework.Intrinsic):
      return self.intrinsic(block)
    if isinstance(block, tff.framework.Literal):
      return self.literal(block)
    raise errors.UnsupportedError(f"a {type(block).__name__}")

  def _closure(self, block: tff.framework.Lambda, scope: Mapping[str, Any]) -> Function:
    def function(argument: Any, at_clients: bool) -> Any:
      inner = dict(scope)
      if block.parameter_name is not None:
        inner[block.parameter_name] = argument
      return self.evaluate(block.result, inner, at_clients)

    return function
