"""The command line of a comparison, kept beside its runs: a report names the next one by it.

The folder of a task has that of its last comparison, `OUTPUT_DIR/TASK/experiment.json`, with the
flags as they were typed, so that paths are seen from where the user stands.
"""

from __future__ import annotations

from collections.abc import Mapping
import pathlib
import shlex
from typing import Any

from tff_superquantile import atomic_files
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run import run_folder

_FILE = "experiment.json"
_PROGRAM = "./run_experiments.sh"
# Runs with others of these have folders of their own.
_IN_FOLDERS = ("folds", "seeds")


def write(task_folder: pathlib.Path, experiment: str, flags: Mapping[str, Any]) -> None:
  """Keeps the name of an experiment, and the values of the flags that were typed, by name."""
  task_folder.mkdir(parents=True, exist_ok=True)
  texts = {name: _text(value) for name, value in flags.items()}
  atomic_files.write_json(task_folder / _FILE, {"experiment": experiment, "flags": texts})


def again(run: run_folder.Run, *without: str, **changed: Any) -> str:
  """Returns the command of the last comparison of a run's task with other flags.

  It is "" where that comparison is not known, or had these flags.
  Where finished runs cannot go on with them, it names another folder of results beside theirs.
  """
  folder = run.path.parent.parent
  content = run_files.read_json(folder / _FILE)
  experiment, flags = content.get("experiment"), content.get("flags")
  if not isinstance(experiment, str) or not isinstance(flags, dict):
    return ""
  texts = {str(name): str(text) for name, text in flags.items() if name not in without}
  texts |= {name: _text(value) for name, value in changed.items()}
  if texts == flags:
    return ""
  if not _go_on(run, {name: changed[name] for name in changed if name not in _IN_FOLDERS}):
    results = flags.get("output_dir", folder.parent.name)
    texts["output_dir"] = f"{results}_{'_'.join(sorted(changed))}"
  arguments = [
    f"--{name}" if text == "True" else f"--{name}={text}" for name, text in texts.items()
  ]
  return shlex.join([_PROGRAM, experiment, *arguments])


def _go_on(run: run_folder.Run, changed: Mapping[str, Any]) -> bool:
  """Returns whether a run can go on with other values of flags, if it can with its own."""
  if run.config is None:
    return False
  try:
    after = run_config.differences(run.flags, run_config.with_values(run.config, **changed))
  except (TypeError, ValueError):  # They do not go with the run's.
    return False
  return set(after) <= set(run_config.differences(run.flags, run.config))


def _text(value: Any) -> str:
  several = isinstance(value, (list, tuple, range))
  return ",".join(f"{item:g}" for item in value) if several else str(value)
