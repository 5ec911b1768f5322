"""A federated computation as functions of a cohort, from Python's values to Python's values."""

from collections.abc import Sequence
import functools
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.engine.cohort import aggregations
from tff_superquantile.engine.cohort import computation
from tff_superquantile.engine.cohort import interpreter
from tff_superquantile.engine.cohort import reading
from tff_superquantile.engine.cohort import stages as stages_lib
from tff_superquantile.engine.cohort import values
from tff_superquantile.engine.cohort.graphs import data_sets
from tff_superquantile.engine.cohort.graphs import errors


class Program(computation.Computation):
  """A computation in this process, for whole cohorts or in stages for their blocks.

  `whole` returns the result for a whole cohort at once, one tensor a leaf.
  """

  def __init__(
    self,
    comp: tff.framework.ConcreteComputation,
    store: reading.Store,
    parallel: int,
    default_num_clients: int = 0,
  ):
    """Reads and traces a computation for whole cohorts, with `Computation`'s arguments."""
    super().__init__(comp, store, parallel, default_num_clients)
    parameter_type = comp.type_signature.parameter
    self._converter = None if parameter_type is None else values.Converter(parameter_type)
    # Compiling loses the Python containers that the annotated type has.
    result_type = comp.type_signature.result
    self._results = values.leaf_types(result_type)
    self._to_python = values.build_to_python(result_type)
    if any(leaf.is_data_set for leaf in self._results):
      raise errors.UnsupportedError("a data set as a result")
    self._returns_clients_values = tff.types.contains(
      result_type, lambda t: isinstance(t, tff.FederatedType) and t.placement is tff.CLIENTS
    )
    self.whole = self.cohort_function(self._evaluate)

  def arrays(self, arg: Any) -> list[np.ndarray]:
    """Returns an argument as one array a leaf, those at clients with the clients in rows.

    It refuses what TFF does: another type (`TypeError`), parts of different numbers of clients, and
    values of no clients as a result (`ValueError`); and shapes that differ between clients.
    """
    data_sets.forget_lists()
    arrays = [] if self._converter is None else self._converter.arrays(arg)
    lengths = {len(a) for a, leaf in zip(arrays, self.parameters) if leaf.stacked}
    if len(lengths) > 1:
      found = " and ".join(map(str, sorted(lengths)))
      raise ValueError(
        f"Found arguments of {found} clients; expected one value a client in each of them."
      )
    if self._returns_clients_values and not self.num_clients(arrays):
      raise ValueError("Found no clients; expected some, since the result is of values at clients.")
    return arrays

  @functools.cached_property
  def stages(self) -> stages_lib.Stages | str:
    """Returns the computation, cut at its aggregations; or a sentence on why it cannot be cut."""
    try:
      return stages_lib.Stages(self)
    except Exception as error:  # Whatever TensorFlow finds wrong in tracing.
      return str(error)

  def to_python(self, results: Sequence[tf.Tensor]) -> Any:
    """Returns the Python value of a result, one tensor a leaf."""
    return self._to_python([result.numpy() for result in results])

  def _evaluate(
    self, tensors: Sequence[tf.Tensor], clients: aggregations.Clients
  ) -> list[tf.Tensor]:
    evaluator = interpreter.Interpreter(clients)
    results = values.flatten(evaluator.evaluate(self.block.result, self.scope(tensors)))
    return [
      clients.stack(leaf) if leaf_type.stacked else leaf.tensor
      for leaf, leaf_type in zip(results, self._results)
    ]
