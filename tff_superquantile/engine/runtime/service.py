"""The service of TFF's worker, in this process: values by their numbers, computed when called."""

import collections
import hashlib
import itertools
import threading
from typing import Any, NamedTuple

import tensorflow_federated as tff
from tensorflow_federated.proto.v0 import computation_pb2
from tensorflow_federated.proto.v0 import executor_pb2

from tff_superquantile.engine.runtime import components
from tff_superquantile.engine.runtime import evaluation
from tff_superquantile.engine.runtime import sequences

# Computations beyond these are read anew, the least recently used ones first.
_MOST_COMPUTATIONS = 256


class _Value(NamedTuple):
  """A value of a program, as in `evaluation`, with its type."""

  value: Any
  type: Any  # tff.Type


def _from_proto(proto: executor_pb2.Value) -> _Value:
  """Returns the value of an argument."""
  kind = proto.WhichOneof("value")
  if kind == "sequence":
    element_type = tff.types.deserialize_type(proto.sequence.element_type)
    sequence = sequences.Sequence(element_type, serialized=proto.sequence.serialized_graph_def)
    return _Value(sequence, tff.SequenceType(element_type))
  if kind == "struct":
    parts = [(part.name or None, _from_proto(part.value)) for part in proto.struct.element]
    return _struct(parts)
  if kind == "federated":
    type_proto = computation_pb2.Type(federated=proto.federated.type)
    members = [_from_proto(value).value for value in proto.federated.value]
    return _Value(
      evaluation.Federated(members, proto.federated.type.all_equal),
      tff.types.deserialize_type(type_proto),
    )
  return _Value(*tff.framework.deserialize_value(proto))


def _struct(parts: list[tuple[str | None, _Value]]) -> _Value:
  return _Value(
    tff.structure.Struct([(name, part.value) for name, part in parts]),
    tff.StructType([(name, part.type) if name else part.type for name, part in parts]),
  )


def _to_proto(value: Any, type_spec: Any, num_clients: int) -> executor_pb2.Value:
  """Returns a value as TFF's contexts read it."""
  if isinstance(type_spec, tff.FederatedType):
    proto = executor_pb2.Value()
    proto.federated.type.CopyFrom(tff.types.serialize_type(type_spec).federated)
    members = value.members
    # One value stands for all clients. Without clients there is none, which TFF refuses to read.
    if type_spec.placement is tff.CLIENTS and value.is_all_equal:
      members = members * (min(1, num_clients) if type_spec.all_equal else num_clients)
    proto.federated.value.extend(
      _to_proto(member, type_spec.member, num_clients) for member in members
    )
    return proto
  if isinstance(type_spec, tff.StructType):
    proto = executor_pb2.Value(struct=executor_pb2.Value.Struct())
    for (name, kind), part in zip(tff.structure.to_elements(type_spec), value):
      proto.struct.element.add(name=name, value=_to_proto(part, kind, num_clients))
    return proto
  if isinstance(type_spec, tff.SequenceType):
    return value.to_proto()
  return tff.framework.serialize_value(value, type_spec)[0]


class _Library(dict[tff.framework.CompiledComputation, evaluation.Component]):
  """The components of a computation, each made when it is first needed."""

  def __init__(self) -> None:
    super().__init__()
    self._lock = threading.Lock()

  def __missing__(self, block: tff.framework.CompiledComputation) -> evaluation.Component:
    with self._lock:
      if block not in self:
        self[block] = components.component(block)
      return self[block]


class Service(tff.framework.RemoteExecutorStub):
  """Answers TFF's `RemoteExecutor` as its worker does. Calls are computed at once."""

  def __init__(self, parallel: int):
    """Initializes the service, which computes `parallel` clients at once."""
    self._parallel = parallel
    self._numbers = itertools.count()
    self._num_clients: dict[str, int] = {}
    self._values: dict[str, dict[str, _Value]] = {}
    self._computations: collections.OrderedDict[bytes, Any] = collections.OrderedDict()

  def _add(self, executor: executor_pb2.ExecutorId, value: _Value) -> executor_pb2.ValueRef:
    number = str(next(self._numbers))
    self._values[executor.id][number] = value
    return executor_pb2.ValueRef(id=number)

  def _get(self, executor: executor_pb2.ExecutorId, ref: executor_pb2.ValueRef) -> _Value:
    return self._values[executor.id][ref.id]

  def _evaluate(self, proto: computation_pb2.Computation, num_clients: int) -> _Value:
    digest = hashlib.sha256(proto.SerializeToString(deterministic=True)).digest()
    if digest not in self._computations:
      block = tff.framework.ComputationBuildingBlock.from_proto(proto)
      self._computations[digest] = (block, _Library())
      if len(self._computations) > _MOST_COMPUTATIONS:
        self._computations.popitem(last=False)
    self._computations.move_to_end(digest)
    block, library = self._computations[digest]
    evaluator = evaluation.Evaluator(num_clients, self._parallel, library)
    return _Value(evaluator.evaluate(block, {}), block.type_signature)

  def get_executor(
    self, request: executor_pb2.GetExecutorRequest
  ) -> executor_pb2.GetExecutorResponse:
    number = str(next(self._numbers))
    clients = [c.cardinality for c in request.cardinalities if c.placement.uri == tff.CLIENTS.uri]
    self._num_clients[number] = sum(clients)
    self._values[number] = {}
    return executor_pb2.GetExecutorResponse(executor=executor_pb2.ExecutorId(id=number))

  def create_value(
    self, request: executor_pb2.CreateValueRequest
  ) -> executor_pb2.CreateValueResponse:
    if request.value.WhichOneof("value") == "computation":
      num_clients = self._num_clients[request.executor.id]
      value = self._evaluate(request.value.computation, num_clients)
    else:
      value = _from_proto(request.value)
    return executor_pb2.CreateValueResponse(value_ref=self._add(request.executor, value))

  def create_call(self, request: executor_pb2.CreateCallRequest) -> executor_pb2.CreateCallResponse:
    function = self._get(request.executor, request.function_ref)
    argument = None
    if request.HasField("argument_ref"):
      argument = self._get(request.executor, request.argument_ref).value
    value = _Value(function.value(argument, False), function.type.result)
    return executor_pb2.CreateCallResponse(value_ref=self._add(request.executor, value))

  def create_struct(
    self, request: executor_pb2.CreateStructRequest
  ) -> executor_pb2.CreateStructResponse:
    parts = [
      (part.name or None, self._get(request.executor, part.value_ref)) for part in request.element
    ]
    value_ref = self._add(request.executor, _struct(parts))
    return executor_pb2.CreateStructResponse(value_ref=value_ref)

  def create_selection(
    self, request: executor_pb2.CreateSelectionRequest
  ) -> executor_pb2.CreateSelectionResponse:
    source = self._get(request.executor, request.source_ref)
    value = _Value(source.value[request.index], source.type[request.index])
    return executor_pb2.CreateSelectionResponse(value_ref=self._add(request.executor, value))

  def compute(self, request: executor_pb2.ComputeRequest) -> executor_pb2.ComputeResponse:
    value = self._get(request.executor, request.value_ref)
    num_clients = self._num_clients[request.executor.id]
    return executor_pb2.ComputeResponse(value=_to_proto(*value, num_clients))

  def dispose(self, request: executor_pb2.DisposeRequest) -> executor_pb2.DisposeResponse:
    of_executor = self._values.get(request.executor.id, {})
    for ref in request.value_ref:
      of_executor.pop(ref.id, None)
    return executor_pb2.DisposeResponse()

  def dispose_executor(
    self, request: executor_pb2.DisposeExecutorRequest
  ) -> executor_pb2.DisposeExecutorResponse:
    self._values.pop(request.executor.id, None)
    self._num_clients.pop(request.executor.id, None)
    return executor_pb2.DisposeExecutorResponse()
