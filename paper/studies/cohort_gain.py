"""Shows what superquantile aggregation gains over FedAvg, by the size of cohorts.

    python -m paper.studies cohort_gain --output_dir=DIR --task=TASK

Reads the finished runs of FedAvg and of superquantile aggregation with an exact threshold that
differ in --clients_per_round, --averaged_rounds and theta alone, and trains nothing; the runs of a
cross-validation count as one. The names of folders do not tell the size of cohorts, so such runs
have a --run_name. Intervals are of 95 %, over test clients. Writes

    DIR/TASK/cohort_gain.{html,md,csv}    a row each theta, size of cohorts and kind of model
"""

from __future__ import annotations

import os

from paper.studies import gains
from privacy import parts
from tff_superquantile.experiments.pages import page
from tff_superquantile.experiments.run import run_folder


def _clients(run: run_folder.Run) -> float | None:
  """Returns the clients of a round of a run whose threshold is exact, if it has one."""
  config = run.config
  if config is None or not isinstance(config.method.threshold, parts.Exact | None):
    return None
  return None if config.is_private else config.values()["clients_per_round"]


AXIS = gains.Axis(
  name="cohort_gain",
  column="clients_per_round",
  unit="clients a round",
  label="Clients a round",
  title="gain by cohorts",
  question="how many clients a round does θ need?",
  caption="Look whether the tail gains where cohorts are small, and whether a mean of the last"
  " rounds’ models does.",
  place=_clients,
  flags=frozenset(("clients_per_round",)),
)


def report(output_dir: str | os.PathLike, task: str) -> page.Page:
  """Shows the gain of a task's finished runs by theta, kind of model and size of cohorts."""
  return gains.report(output_dir, task, AXIS)
