"""One run: its config, its training, and the folder that it leaves.

    from tff_superquantile.experiments import run

    finished = run.train(run.RunConfig(theta=0.25, num_rounds=100))

`METHODS` has a row for each algorithm. `find_runs` reads the runs of an output directory.
"""

import os

from tff_superquantile import lazy

# A run shows its progress; TensorFlow's own log stays silent unless a user asks for it.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

__all__, __getattr__, __dir__ = lazy.attach(
  __name__,
  ("methods", "thresholds"),
  {
    "methods": ("METHODS",),
    "run_config": ("RunConfig",),
    "run_folder": ("Run", "find_runs", "group_by_method"),
    "runner": ("train",),
  },
)
