"""Computes any TFF program in this process, a whole cohort at once; README.md is the guide."""

from tff_superquantile import lazy

__all__, __getattr__, __dir__ = lazy.attach(
  __name__,
  ("context",),
  {"context": ("create_async_simulation_context", "set_simulation_context")},
)
