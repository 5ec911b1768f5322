"""What the engine raises for what it does not know; it lies below all of the engine's modules."""

# Ends the sentences about what this process cannot compute.
TFFS_OWN = "TFF's own runtime is set by tff.backends.native.set_sync_local_cpp_execution_context()."


class UnsupportedError(Exception):
  """Signals that the engine cannot do something that TFF's own runtime may do."""
