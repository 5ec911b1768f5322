"""Computations at clients, and calls of them in one context or another."""

import tensorflow_federated as tff


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
