"""Evaluates a finished run's model on clients with differential privacy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import pathlib
from typing import Any

from privacy import ledger as ledger_lib
from privacy.evaluation import entries
from privacy.evaluation import query as query_lib
from tff_superquantile import atomic_files
from tff_superquantile.experiments import cli
from tff_superquantile.experiments import finished_run
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run import run_folder

_PERCENTILES = (10, 50, 90, 95)
_TAIL = 0.1


@dataclasses.dataclass(frozen=True)
class Inquiry:
  """What to release of the clients of a finished run's split: their "error" or their "loss"."""

  folder: pathlib.Path
  epsilon: float
  delta: float | None = None
  split: str = "test"
  metric: str = "error"
  upper: float | None = None
  num_bins: int = 64
  where_data_is: Mapping[str, str] = dataclasses.field(default_factory=dict)


def evaluate(
  request: Inquiry,
) -> tuple[list[entries.Evaluation], ledger_lib.Ledger | None]:
  """Makes one release, and enters it into the ledger of evaluations beside the run."""
  run = run_folder.find_finished(request.folder)
  finished_run.check_classes(run)
  config = finished_run.config(run, request.where_data_is)
  upper = request.upper
  if upper is None:
    upper = 1.0 if request.metric == "error" else config.max_loss
  if upper is None:
    raise ValueError(
      f"Found no --max_loss in the flags of {request.folder}; expected --upper, the upper end of"
      " the loss."
    )
  # A mistake ends the command before the work; the number of clients is not known yet.
  query_lib.Query(2, request.epsilon, request.delta, 0.0, upper, request.num_bins)
  with run_folder.lock(run.path):
    content, manifest = entries.load(run.path), run_files.read_json(run.path / "manifest.json")
    broken = entries.broken_chain(content, manifest.get(entries.HEAD))
    if broken is not None:
      raise ValueError(
        f"Found that evaluations of {run.path} were changed or removed: {broken} Bring"
        f" {entries.FILE_NAME} and manifest.json back as the evaluations wrote them."
      )
    evaluations = [entries.Evaluation.from_dict(entry) for entry in content]
    path = run.path / ledger_lib.FILE_NAME
    ledger = ledger_lib.Ledger.from_json(path.read_text("utf-8")) if path.exists() else None
    evaluations.append(_release(request, run, config, upper))
    new = entries.append(content, evaluations[-1])
    # A crash leaves the head of the chain one entry behind, and never two.
    _keep_head(run.path, manifest, content)
    atomic_files.write(run.path / entries.FILE_NAME, entries.to_json(new))
    _keep_head(run.path, manifest, new)
  return evaluations, ledger


def _keep_head(folder: pathlib.Path, manifest: dict[str, Any], content: Sequence[Any]) -> None:
  """Writes the head of the chain of evaluations into manifest.json."""
  if manifest.get(entries.HEAD) != entries.head(content):
    manifest[entries.HEAD] = entries.head(content)
    atomic_files.write_json(folder / "manifest.json", manifest)


def _release(
  request: Inquiry, run: run_folder.Run, config: run_config.RunConfig, upper: float
) -> entries.Evaluation:
  """Releases the distribution of the clients' numbers; returns the entry for the ledger."""
  with cli.starting_tensorflow():
    from tff_superquantile import analytics
    from tff_superquantile import evaluation
    from tff_superquantile.engine import context
    from tff_superquantile.experiments.run import manifest

  task = finished_run.get_task(run, config, is_own="data_dir" not in request.where_data_is)
  model, splits = finished_run.load_task(task, config)
  files = finished_run.of_split(splits, request.split)
  run.check_clients(request.split, files.client_ids)
  weights, fingerprint = run.weights_for(model), run.fingerprint
  context.set_simulation_context()
  evaluate_clients = evaluation.build_evaluators(model, {request.split: files})[request.split]
  distribution = analytics.private_distribution(
    getattr(evaluate_clients(weights), request.metric),
    epsilon=request.epsilon,
    delta=request.delta,
    lower=0.0,
    upper=upper,
    num_bins=request.num_bins,
  )
  estimates = {
    "clients": distribution.num_clients,
    "mean": distribution.mean,
    **{f"p{q}": distribution.quantile(q / 100) for q in _PERCENTILES},
    "worst 10 %": distribution.tail_mean(_TAIL),
  }
  return entries.Evaluation(
    released=manifest.now(),
    model=fingerprint,
    split=request.split,
    metric=request.metric,
    query=distribution.query,
    # The histogram's alone.
    noise_multiplier=distribution.query.release.effective_noise_multiplier,
    counts=tuple(distribution.counts.tolist()),
    estimates={
      name: (entries.or_none(estimate.value), entries.or_none(estimate.standard_error))
      for name, estimate in estimates.items()
    },
  )
