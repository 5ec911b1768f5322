"""Counts what the finished runs of a task send: bytes a round, and until a target error.

    python -m tff_superquantile.experiments.study communication --output_dir=DIR [--task=TASK] \
        [--target_error=0.52]

The count is that of the messages of the algorithm, without headers or the exchange of keys: the
model and what the threshold needs go down to each client of a cohort; losses, a histogram or a bit
come up, and then the updates. It follows from the runs' flags, ledgers and models; nothing is
trained, and no TensorFlow needed. It writes

    DIR/TASK/communication.{html,md,csv}    methods compared, over seeds
"""

from __future__ import annotations

import math
import os

from absl import flags
import numpy as np
import pandas as pd

from privacy import ledger
from tff_superquantile.experiments.report import page
from tff_superquantile.experiments.report import tables
from tff_superquantile.experiments.report import units
from tff_superquantile.experiments.run import names
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.experiments.studies import finished_models
from tff_superquantile.experiments.studies import messages

_TAIL = "test_error_p90"
_FED_AVGS = ("fed_avg", "fed_avg_sub", "fed_prox")
_COLUMNS = (
  tables.Column("down", "down, B a client", factor=1.0, decimals=0, contest=False),
  tables.Column(
    "threshold_up", "for the threshold, B a client", factor=1.0, decimals=1, contest=False
  ),
  tables.Column("update_up", "update, B a client", factor=1.0, decimals=0, contest=False),
  tables.Column("round_plain", "up, KB a round", factor=1e-3, decimals=1),
  tables.Column("round_secure", "secure sum, KB a round", factor=1e-3, decimals=1),
  tables.Column("reached", "seeds there, %", factor=100.0, decimals=0, contest=False),
  tables.Column("rounds_to_target", "rounds to target", factor=1.0, decimals=0),
  tables.Column("plain_to_target", "up to target, MB", factor=1e-6, decimals=2),
  tables.Column("secure_to_target", "secure sum to target, MB", factor=1e-6, decimals=2),
)
_NOTE = (
  "Bytes of the messages, without headers or keys. Down: the model and the threshold, to each"
  " client of a cohort. For the threshold: a loss and a weight, or the client’s private report."
  " Update: float32, or integers where clients make the noise. Up a round: the whole cohort’s, if"
  " only clients with a share send an update; beside it the same with a secure sum, to which all"
  " clients of the cohort send, so that nobody sees who has none. To target: until the first"
  " evaluation with that error, the mean of the seeds that get there."
)


def _rounds_to(run: run_folder.Run, target: float) -> float:
  """Returns the round of the first evaluation with an error of the tail at most the target."""
  found = run.rounds
  if _TAIL not in found:
    return math.nan
  reached = found["round"][found[_TAIL] <= target]
  return float(reached[0]) if len(reached) else math.nan


def _is_counted(method: names.Name) -> bool:
  """Returns whether the messages are known: FedAvg's family, and the averages of a tail."""
  config = method.config
  is_plain = method.is_superquantile and method.theta is not None
  return config is not None and (is_plain or config.algorithm in _FED_AVGS)


def _measure(run: run_folder.Run, target: float) -> dict[str, float]:
  """Returns the numbers of the table for one run, without those that there are not."""
  weights, config = run.weights, run.config
  assert config is not None
  if weights is None:
    raise ValueError(f"Found no weights.npz in {run.path}; train the run again.")
  path = run.path / ledger.FILE_NAME
  release = (
    ledger.Ledger.from_json(path.read_text(encoding="utf-8")).release if path.exists() else None
  )
  num_weights = sum(array.size for array in weights.trainable)
  traffic = messages.of_round(config.method, config.cohort.size or 0, num_weights, release)
  num_rounds = _rounds_to(run, target)
  found = dict(
    down=traffic.down,
    threshold_up=traffic.threshold_up,
    update_up=traffic.update_up,
    round_plain=traffic.plain,
    round_secure=traffic.secure,
    reached=float(not math.isnan(num_rounds)),
    rounds_to_target=num_rounds,
    plain_to_target=num_rounds * traffic.plain,
    secure_to_target=num_rounds * traffic.secure,
  )
  return {name: value for name, value in found.items() if not math.isnan(value)}


def report(output_dir: str | os.PathLike, task: str, target_error: float | None) -> page.Page:
  """Compares what methods send.

  Args:
    output_dir: The directory that holds `TASK/METHOD/seed_S/` folders.
    task: Name of the task.
    target_error: The 90th percentile of the test clients' error to be reached, a fraction; None for
      the lowest that FedAvg reaches with every seed.

  Returns:
    The page.

  Raises:
    ValueError: If the task has no finished run, or none whose messages are known.
  """
  groups = run_folder.group_by_method(finished_models.find(output_dir, task))
  groups = {method: runs for method, runs in groups.items() if _is_counted(method)}
  if not groups:
    raise ValueError(
      f"Found no finished run of FedAvg or superquantile aggregation of {task!r}; train one."
    )
  if target_error is None:
    target_error = _target(groups)
  results = tables.of_values(
    (method, run.seed, _measure(run, target_error))
    for method, runs in groups.items()
    for run in runs
  )
  target = units.of(groups).error.text(target_error)
  return page.Page(
    "communication",
    next(iter(groups.values()))[0].task_title,
    "what do its messages weigh?",
    tables.plural(len(groups), "method"),
    _summarize(groups, results, target),
    [
      tables.of_seeds(
        results,
        _COLUMNS,
        {method: method.label for method in groups},
        title="Bytes",
        note=_NOTE,
        lead=f"Messages, until the 90th percentile of the test error is {target}:",
      )
    ],
    tables.to_csv(task, results),
  )


def _target(groups: run_folder.Groups) -> float:
  """Returns the lowest tail that every seed of the first method reaches."""
  runs = next(iter(groups.values()))
  lowest = [np.nanmin(run.rounds[_TAIL]) for run in runs if _TAIL in run.rounds]
  return float(max(lowest, default=math.nan))


def _summarize(groups: run_folder.Groups, results: pd.DataFrame, target: str) -> str:
  """Says what the cheapest way to the target is, and what a threshold costs beside an update."""
  means = tables.over_seeds(results)["mean"].unstack()
  shares = means["threshold_up"] / means["update_up"]
  text = f"A threshold adds at most {100 * shares.max():.2g} % to what a client sends."
  if "plain_to_target" not in means:
    return f"{text} No method reaches a 90th percentile of {target}."
  cheapest = next(method for method in groups if method == means["plain_to_target"].idxmin())
  return (
    f"{text} {cheapest.label} reaches a 90th percentile of {target} with the fewest bytes,"
    f" {means['plain_to_target'].min() / 1e6:.1f} MB up."
  )


def define_flags() -> None:
  finished_models.declare_flags(__name__)
  flags.DEFINE_float(
    "target_error",
    None,
    "The 90th percentile of the test clients' error to be reached, a fraction; None for the lowest"
    " that every seed of FedAvg reaches.",
    lower_bound=0.0,
    upper_bound=1.0,
  )


def main() -> None:
  finished_models.publish(report, flags.FLAGS.target_error)
