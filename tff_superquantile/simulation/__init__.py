"""Simulates federated training on one machine: cohorts, client files, the training loop."""

from tff_superquantile import lazy

__all__, __getattr__, __dir__ = lazy.attach(
  __name__,
  (
    "client_files",
    "cohorts",
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
    "/tff_superquantile.engine.context": (
      "create_async_simulation_context",
      "set_simulation_context",
    ),
  },
)
