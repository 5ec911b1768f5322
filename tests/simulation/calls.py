"""Computations at clients, and calls of them in one context or another, TFF's own among them."""

import tensorflow_federated as tff

from tff_superquantile.simulation import context


def tffs_runtime(default_num_clients=0):
  """TFF's own runtime, in a process of its own, with simulated secure sums."""
  return tff.backends.test.create_sync_test_cpp_execution_context(
    default_num_clients=default_num_clients, max_concurrent_computation_calls=context.num_cores()
  )


def at_clients(component):
  """The computation that maps a component over its clients."""

  @tff.federated_computation(
    tff.FederatedType(component.type_signature.parameter, tff.CLIENTS, all_equal=False)
  )
  def everywhere(held):
    return tff.federated_map(component, held)

  return everywhere


def invoke(of_context, computation, *arguments):
  """What a computation gives in a context, which becomes the default one."""
  tff.framework.set_default_context(of_context)
  return computation(*arguments)
