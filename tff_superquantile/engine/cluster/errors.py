"""Errors of a cluster, whose messages are for people."""


class ClusterError(RuntimeError):
  """Signals that the workers could not compute a round. What was computed before is not lost."""
