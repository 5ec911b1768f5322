"""Studies: each makes a page of the finished runs of a task.

A study is a module of this package with

    report(output_dir, task, ...) -> page.Page    takes the missing measurements, makes the page

and, if it needs more than the finished runs of a task,

    define(parser) -> None                        adds the flags of its command
    main(args) -> None                            carries the command out

`STUDIES` has a row for each; `python -m paper.studies NAME` runs one. Sweeps make the
pages of those that their presets name.
"""

from __future__ import annotations

import importlib
import types

# The name of each study, which is also its module's, and the question that it answers.
STUDIES = {
  "model_family": "What do clients gain by choosing their model?",
  "sensitivity": "What do local epochs, cohorts and θ change?",
  "cohort_gain": "How many clients a round does θ need?",
  "noise_gain": "Under how much noise does θ still gain?",
  "sampling_noise": "How much noise does one budget take, by how cohorts are sampled?",
  "private_quantile": "How far are private quantiles from the true ones?",
}


def load(name: str) -> types.ModuleType:
  """Imports the module of a study by its key in `STUDIES`, or raises a `ValueError`.

  Args:
    name: The key.

  Returns:
    The module.

  Raises:
    ValueError: If there is no such study.
    ModuleNotFoundError: If the study's module needs one that is not installed.
  """
  if name not in STUDIES:
    raise ValueError(f"Found study {name!r}; expected one of {', '.join(STUDIES)}.")
  return importlib.import_module(f"{__name__}.{name}")
