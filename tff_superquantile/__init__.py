"""Federated learning that serves the worst-off clients, on TensorFlow Federated.

`algorithms` builds learning processes, `threshold` the quantile that a round learns, `client_work`
what a client does, `evaluation` measures every client, `simulation` runs rounds. The mathematics,
without TensorFlow, is in `superquantile`.
"""

import importlib
import types

__version__ = "0.2.0"

__all__ = (
  "algorithms",
  "client_work",
  "evaluation",
  "simulation",
  "superquantile",
  "threshold",
)


def __getattr__(name: str) -> types.ModuleType:
  # Loaded on first use: TensorFlow Federated takes seconds to import, `--help` needs none of it.
  if name in __all__:
    return importlib.import_module(f"{__name__}.{name}")
  raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
