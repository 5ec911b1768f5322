"""TFF's runtime, in this process: what its worker does, client by client, for every TFF program."""

from tff_superquantile.simulation.runtime.contexts import create_sync_context

__all__ = ("create_sync_context",)
