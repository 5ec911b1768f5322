"""Runs federated computations on one machine: runtime, cohorts, client files, the training loop."""

from tff_superquantile import lazy

__all__, __getattr__, __dir__ = lazy.attach(
  __name__,
  (
    "client_files",
    "cohorts",
    "context",
    "engine",
    "progress",
    "release_managers",
    "seeds",
    "training_loop",
  ),
  {
    "client_files": (
      "ClientFiles",
      "build_examples_fn",
      "open_client_files",
      "write_client_files",
    ),
    "context": ("create_async_simulation_context", "set_simulation_context"),
  },
)
