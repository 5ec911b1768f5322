"""This project's processes, computed by TFF's runtime or in this process."""

from collections.abc import Mapping
import secrets
from typing import Any

import numpy as np

from benchmarks import contender
from benchmarks import lineup
from benchmarks import workloads


def _config(task: Any, workload: workloads.Workload, options: Mapping[str, Any]) -> Any:
  """Returns the resolved `RunConfig` of a contender."""
  from tff_superquantile.experiments.config import run_config

  values = {
    **task.defaults,
    **dict(
      algorithm="superquantile",
      theta=options["theta"],
      threshold="exact",
      sampling="fixed_size",
      clients_per_round=workload.num_places,
      l2=0.0,  # The others have none.
      learning_rate_decay=1.0,
      server_learning_rate=1.0,
    ),
    **lineup.METHODS[options["method"]][1],
  }
  return run_config.with_defaults(run_config.from_values(**values))


def set_context(engine: str, block_size: int | None = None) -> None:
  """Sets what computes: this process, or "native", TFF's runtime."""
  import tensorflow_federated as tff

  from tff_superquantile.engine import context
  from tff_superquantile.engine.processes import limits

  if engine == "native":
    tff.framework.set_default_context(
      tff.backends.test.create_sync_test_cpp_execution_context(
        max_concurrent_computation_calls=limits.num_cores()
      )
    )
  else:
    context.set_simulation_context(block_size=block_size)


class _Ours(contender.Contender):
  """One of the methods."""

  def __init__(self, workload: workloads.Workload, options: Mapping[str, Any]):
    import tasks
    from tff_superquantile import algorithms
    from tff_superquantile import noise_source
    from tff_superquantile.experiments.config import run_config
    from tff_superquantile.experiments.run import build
    from tff_superquantile.experiments.run import private
    from tff_superquantile.simulation import client_files

    set_context(options["engine"], run_config.BLOCK_SIZE)  # As runs of so many clients do it.
    self._has_examples = options["engine"] == "kept"
    self._workload = workload
    settings = workload.settings
    task = tasks.get_task(settings["task"])
    self._ids = settings["client_ids"]
    self._files = client_files.open_client_files(settings["client_files"]).subset(self._ids)
    model = task.build_model_for(self._files, 0)
    config = _config(task, workload, options)
    release = None
    if config.is_private:
      num_parameters = sum(weights.size for weights in workload.initial_weights)
      # Cohorts larger than the population: for timing, nobody's privacy is at stake.
      population = max(len(self._ids), workload.num_places)
      release = private.build_release(config, population, num_parameters)
    self._is_family = options["method"] == lineup.FAMILY
    if self._is_family:
      self._process = algorithms.build_superquantile_family(
        thetas=lineup.FAMILY_THETAS,
        client_weighting=config.local.weighting,
        **build.build_options(config, model, self._files),
      )
    else:
      key = None if release is None else secrets.token_bytes(noise_source.KEY_BYTES)
      self._process = build.build_process(config, model, self._files, release, key)
    self._state = self._process.initialize()
    self._cohort: list[Any] = []

  def prepare(self, round_num):
    self._cohort = handles(self._files, self._workload, round_num)
    if self._has_examples:  # What is read of a client's file stays in memory.
      self._process.next(self._state, self._cohort)

  def run_round(self, round_num):
    del round_num
    self._state = self._process.next(self._state, self._cohort).state

  def weights(self):
    weights = self._process.get_model_weights(self._state)
    if self._is_family:
      weights = weights[0]
    return [np.asarray(w) for w in weights.trainable]


def handles(files: Any, workload: workloads.Workload, round_num: int) -> list[Any]:
  """Returns each client's `client_files.HANDLE_TYPE` in a round: its file's name, and its seed."""
  ids = workload.settings["client_ids"]
  cohort = zip(workload.cohorts[round_num], workload.seeds[round_num])
  return [files.handle(ids[client], np.array(seed)) for client, seed in cohort]


if __name__ == "__main__":
  contender.serve(_Ours)
