"""How the clients' part of a computation runs: once a client, or all of them compiled together."""

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

from absl import logging
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.simulation.engine import components
from tff_superquantile.simulation.engine import emission
from tff_superquantile.simulation.engine import expressions
from tff_superquantile.simulation.engine import values

Leaf = values.Leaf

# How far clients may run ahead of the slowest, times those that compute at once: TensorFlow's loops
# end in order, so that one client in training would keep all cores waiting while others have none.
_WINDOW = 4


class Library:
  """The components of a computation, each read once, and their expressions."""

  def __init__(self, names_of_strings: Mapping[int, str]):
    """Initializes a library.

    Args:
      names_of_strings: From the position of a leaf in the computation's argument to the name of its
        root, for the strings that clients hold.
    """
    self.pool = expressions.Pool()
    self._names = names_of_strings
    # By identity; the block is kept so that no other one gets its id.
    self._components: dict[int, tuple[Any, components.Component]] = {}
    self._count = 0

  def component(self, block: tff.framework.CompiledComputation) -> components.Component:
    """The component of a building block."""
    if id(block) not in self._components:
      self._components[id(block)] = (block, components.Component(block))
    return self._components[id(block)][1]

  def body(
    self, component: components.Component, leaves: Sequence[Leaf]
  ) -> Optional[tuple[list[expressions.Ref], expressions.Body]]:
    """The roots that stand for the leaves, and the component's body; None if it has none."""
    roots = []
    for leaf in leaves:
      name = None if leaf.origin is None else self._names.get(leaf.origin)
      if name is None:
        self._count += 1
        name = f"argument {self._count}"
      roots.append(expressions.Ref(self.pool.root(name), 0))
    try:
      return roots, component.body(roots, self.pool)
    except values.UnsupportedError as error:
      logging.info("The engine maps a component as it is, as it cannot take apart %s", error)
      return None

  def is_read(self, expression: expressions.Expression) -> bool:
    """Whether it is what a client's file says, which strings that the client holds determine.

    What follows from its shape is not: where the shape is known, so is that.
    """
    return (
      expression.reads
      and not expression.of_shape
      and expression.is_pure
      and expression.roots <= set(self._names.values())
    )


class Mapper(abc.ABC):
  """Calls components in a trace."""

  def __init__(self, library: Library):
    self._library = library
    self.component = library.component

  def symbolic(self) -> "Symbolic":
    """A mapper of the same library that computes nothing."""
    return Symbolic(self._library)

  def call(self, component: components.Component, leaves: Sequence[Leaf]) -> list[Leaf]:
    """Calls a component at the server."""
    return [Leaf(r, False) for r in component.call([leaf.tensor for leaf in leaves])]

  def map(
    self, component: components.Component, leaves: Sequence[Leaf], num_clients: tf.Tensor
  ) -> list[Leaf]:
    """Calls a component once a client.

    Args:
      component: What to call.
      leaves: Its arguments.
      num_clients: int32 [], how many clients there are.

    Returns:
      Its results, stacked; not stacked if they must be the same for all clients.

    Raises:
      UnsupportedError: If results are of unknown shape.
    """
    if component.is_deterministic and not any(leaf.stacked for leaf in leaves):
      return self.call(component, leaves)
    if not component.result_types:
      return []
    if any(not tf.TensorShape(t.shape).is_fully_defined() for t in component.result_types):
      raise values.UnsupportedError("client values of unknown shape between computations")
    return [Leaf(tensor, True) for tensor in self._map(component, leaves, num_clients)]

  @abc.abstractmethod
  def _map(
    self, component: components.Component, leaves: Sequence[Leaf], num_clients: tf.Tensor
  ) -> list[tf.Tensor]:
    """`map`, without the cases that need no mapping."""


class Discovery(Mapper):
  """Computes nothing; finds out what clients read from files.

  Attributes:
    reads: What is read, in a fixed order.
  """

  def __init__(self, library: Library):
    super().__init__(library)
    self.reads: list[expressions.Ref] = []

  def _nothing(self, component: components.Component, stacked: bool) -> list[tf.Tensor]:
    return [
      tf.compat.v1.placeholder(spec.dtype, spec.shape)
      for spec in (leaf._replace(stacked=stacked).spec for leaf in component.result_types)
    ]

  def call(self, component: components.Component, leaves: Sequence[Leaf]) -> list[Leaf]:
    return [Leaf(tensor, False) for tensor in self._nothing(component, False)]

  def _map(
    self, component: components.Component, leaves: Sequence[Leaf], num_clients: tf.Tensor
  ) -> list[tf.Tensor]:
    found = self._library.body(component, leaves)
    if found is not None:
      _, body = found
      effects = [expressions.Ref(effect, 0) for effect in body.effects]
      for ref in expressions.frontier([*body.outputs, *effects], self._library.is_read):
        if ref not in self.reads:
          self.reads.append(ref)
    return self._nothing(component, True)


class Symbolic(Mapper):
  """Computes nothing; leaves are expressions, from which one sees what results are made of."""

  def call(self, component: components.Component, leaves: Sequence[Leaf]) -> list[Leaf]:
    if not all(isinstance(leaf.tensor, expressions.Ref) for leaf in leaves):
      raise values.UnsupportedError("a value that is no expression")
    body = component.body([leaf.tensor for leaf in leaves], self._library.pool)
    if body.effects:
      raise values.UnsupportedError("a component with effects")
    return [Leaf(ref, False) for ref in body.outputs]

  def _map(
    self, component: components.Component, leaves: Sequence[Leaf], num_clients: tf.Tensor
  ) -> list[tf.Tensor]:
    raise values.UnsupportedError("a map within an expression")

  def symbol(self, name: str) -> Leaf:
    """Something that is given."""
    return Leaf(expressions.Ref(self._library.pool.root(name), 0), False)


def _vectorize(component: components.Component, leaves: Sequence[Leaf]) -> list[tf.Tensor]:
  """Calls a component on all clients at once."""

  def call_one(stacked: list[tf.Tensor]) -> list[tf.Tensor]:
    own = iter(stacked)
    return component.call([next(own) if leaf.stacked else leaf.tensor for leaf in leaves])

  return tf.vectorized_map(call_one, [leaf.tensor for leaf in leaves if leaf.stacked])


def _map_fn(function: Callable[[Any], Any], elements: Any, **options: Any) -> Any:
  """`tf.map_fn`, which would leave a mark on the whole process where the function raises.

  It sets a caching device on the variable scope, which all graphs share, and does not take it back
  then: no graph of variables could be built after that.
  """
  scope = tf.compat.v1.get_variable_scope()
  device = scope.caching_device
  try:
    return tf.map_fn(function, elements, **options)
  finally:
    scope.set_caching_device(device)


class Sequential(Mapper):
  """One client after the other, some of them at once; what they read may be of any shape."""

  def __init__(
    self,
    library: Library,
    reads: Mapping[expressions.Ref, tuple[tf.Tensor, tf.Tensor, tf.Tensor]],
    parallel: int,
  ):
    """Initializes the mapper.

    Args:
      library: The components.
      reads: What clients have read: all values one after the other, one client after the other,
        where each client's begin, int64 [n + 1], and its shape, int32 [n, rank].
      parallel: How many clients compute at once.
    """
    super().__init__(library)
    self._reads = reads
    self._parallel = parallel

  def _map(
    self, component: components.Component, leaves: Sequence[Leaf], num_clients: tf.Tensor
  ) -> list[tf.Tensor]:
    if component.is_flat and component.is_deterministic:
      return _vectorize(component, leaves)
    found = self._library.body(component, leaves) if self._reads else None

    def call_one(client: tf.Tensor) -> list[tf.Tensor]:
      # A row at a time: taken apart beforehand, large values would be in memory twice.
      arguments = [leaf.tensor[client] if leaf.stacked else leaf.tensor for leaf in leaves]
      if found is None:
        return component.call(arguments)
      roots, body = found
      known = {root: emission.Value(tensor, None) for root, tensor in zip(roots, arguments)}
      for ref, (flat, offsets, shapes) in self._reads.items():
        part = tf.reshape(flat[offsets[client] : offsets[client + 1]], shapes[client])
        known[ref] = emission.Value(part, None)
      results = emission.Emitter(known).emit(body.outputs, body.effects)
      return [
        tf.ensure_shape(result.as_tensor(), leaf.shape)
        for result, leaf in zip(results, component.result_types)
      ]

    return _map_fn(
      call_one,
      tf.range(num_clients),
      fn_output_signature=[leaf.spec for leaf in component.result_types],
      parallel_iterations=_WINDOW * self._parallel,
    )


class Compiled(Sequential):
  """All clients in one compiled loop, where all of them have read values of the same shapes.

  Only components that have no loops left once the shapes are known are compiled: in others XLA
  would have to slice batches of unknown bounds.
  """

  def __init__(
    self,
    library: Library,
    reads: Mapping[expressions.Ref, tuple[tf.Tensor, tf.Tensor, tf.Tensor]],
    parallel: int,
    stacked_reads: Mapping[expressions.Ref, tf.Tensor],
    capacity: int,
  ):
    """Initializes the mapper.

    Args:
      library: The components.
      reads: As for `Sequential`, for components that are not compiled.
      parallel: How many clients compute at once in those.
      stacked_reads: What clients have read, [capacity, ...], of known shape; what stands beyond the
        last client does not matter.
      capacity: For how many clients to compile.
    """
    super().__init__(library, reads, parallel)
    self._stacked_reads = stacked_reads
    self._capacity = capacity

  def _map(
    self, component: components.Component, leaves: Sequence[Leaf], num_clients: tf.Tensor
  ) -> list[tf.Tensor]:
    found = self._library.body(component, leaves)
    if found is None or not _may_compile(found[1]):
      return super()._map(component, leaves, num_clients)
    roots, body = found
    needed = set(expressions.walk(body.outputs, stop=self._library.is_read))
    used = [i for i, root in enumerate(roots) if root.expression in needed]
    if any(leaves[i].tensor.dtype == tf.string for i in used):
      return super()._map(component, leaves, num_clients)
    refs = [ref for ref in self._stacked_reads if ref.expression in needed]
    apart = expressions.frontier(body.outputs, _is_apart)
    # Beyond the last client the last one is repeated.
    positions = tf.minimum(tf.range(self._capacity), num_clients - 1)

    def pad(leaf: Leaf) -> tf.Tensor:
      return tf.gather(leaf.tensor, positions) if leaf.stacked else leaf.tensor

    def map_all(
      outputs: Sequence[expressions.Ref],
      given: Sequence[expressions.Ref],
      arguments: Sequence[tf.Tensor],
      tensors_given: Sequence[tf.Tensor],
      signature: list[tf.TensorSpec],
    ) -> list[tf.Tensor]:
      """The outputs of all clients, of what they are given and the arguments."""

      def call_one(elements: tuple[list[tf.Tensor], list[tf.Tensor]]) -> list[tf.Tensor]:
        own, own_given = iter(elements[0]), elements[1]
        known = {ref: emission.Value(tensor, None) for ref, tensor in zip(given, own_given)}
        for i, argument in zip(used, arguments):
          tensor = next(own) if leaves[i].stacked else argument
          known[roots[i]] = emission.Value(tensor, None)
        emitted = emission.Emitter(known, may_loop=False).emit(outputs)
        results = [result.as_tensor() for result in emitted]
        shapes[:] = [result.shape for result in results]
        return results

      shapes: list[tf.TensorShape] = []
      stacked = [t for i, t in zip(used, arguments) if leaves[i].stacked]
      results = _map_fn(
        call_one,
        (stacked, tensors_given),
        fn_output_signature=signature,
        parallel_iterations=_WINDOW * self._parallel,
      )
      return [
        tf.ensure_shape(result, [self._capacity, *shape]) for result, shape in zip(results, shapes)
      ]

    @tf.function(jit_compile=True, autograph=False)
    def compiled(
      arguments: Sequence[tf.Tensor], tensors_given: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
      signature = [leaf.spec for leaf in component.result_types]
      return map_all(body.outputs, refs + apart, arguments, tensors_given, signature)

    arguments = [pad(leaves[i]) for i in used]
    given = [self._stacked_reads[ref] for ref in refs]
    try:
      if apart:
        given += map_all(apart, refs, arguments, given, [_spec_apart(ref) for ref in apart])
      results = compiled(arguments, given)
    except emission.LoopError:
      return super()._map(component, leaves, num_clients)
    return [result[:num_clients] for result in results]


def _is_search(expression: expressions.Expression) -> bool:
  return expression.op in ("LowerBound", "UpperBound") and not expression.reads


def _is_apart(expression: expressions.Expression) -> bool:
  """Whether TensorFlow computes it before: what is drawn, and where in a table it belongs.

  XLA draws other numbers from the same seed, and compares a value with all of a table.
  """
  is_draw = expression.op.startswith("StatelessRandom") and "dtype" in expression.node.attr
  return is_draw or _is_search(expression)


def _spec_apart(ref: expressions.Ref) -> tf.TensorSpec:
  name = "out_type" if _is_search(ref.expression) else "dtype"
  return tf.TensorSpec(None, tf.as_dtype(ref.expression.node.attr[name].type))


def _may_compile(body: expressions.Body) -> bool:
  """Whether XLA can and should compile it: nothing random of this machine, no convolutions."""
  return not body.effects and not any(
    expression.op.startswith(("Conv", "Depthwise")) or expressions.is_stateful(expression.op)
    for expression in expressions.walk(body.outputs)
    if expression.node is not None
  )
