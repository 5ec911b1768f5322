"""The features of runs, in the order in which they write: a file and a row each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow_federated as tff

from privacy.settings import plugins
from tff_superquantile.experiments.run import run_config
from tff_superquantile.experiments.run.hooks import best_model
from tff_superquantile.experiments.run.hooks import class_weights
from tff_superquantile.experiments.run.hooks import client_split
from tff_superquantile.experiments.run.hooks import convergence
from tff_superquantile.experiments.run.hooks import evaluating
from tff_superquantile.experiments.run.hooks import hook
from tff_superquantile.experiments.run.hooks import initial_weights
from tff_superquantile.experiments.run.hooks import measurements
from tff_superquantile.experiments.run.hooks import outputs
from tff_superquantile.experiments.run.hooks import personalizing
from tff_superquantile.experiments.run.hooks import private_rounds
from tff_superquantile.experiments.run.hooks import siblings

HOOKS: Sequence[type[hook.Hook]] = (
  client_split.ClientSplit,
  best_model.BestModel,
  siblings.Siblings,
  initial_weights.InitialWeights,
  private_rounds.PrivateRounds,  # Its ledger never lags.
  class_weights.ClassWeights,
  evaluating.Evaluating,
  outputs.RoundsTable,
  measurements.ClientResults,
  personalizing.Personalizing,
  outputs.Shown,
  measurements.Growth,
  convergence.Ending,
)


def of(config: run_config.RunConfig) -> list[type[hook.Hook]]:
  """Returns all features, those that --hook names at the end; a `ValueError` if these cannot be."""
  names = plugins.names(config.hook)
  if names and config.is_private:
    raise ValueError(
      f"Found --hook={config.hook} in a private run; expected none, as a hook of your own sees"
      " clients and keys, and no accounting covers what it writes: leave it out."
    )
  return [*HOOKS, *(hook.OF_USERS[name] for name in names)]


def taking_part(config: run_config.RunConfig) -> list[type[hook.Hook]]:
  """Returns the features that a resolved run has."""
  return [kind for kind in of(config) if kind.takes_part(config)]


class AllHooks(tff.program.ReleaseManager):
  """The hooks of a job during its rounds: its release manager, and the keeper of its loop."""

  def __init__(self, hooks: Sequence[hook.Hook]):
    self._hooks = hooks

  def read_metrics(self, metrics: Mapping[str, Any], round_num: int) -> hook.Values:
    """Returns the values of a round in its row of rounds.csv."""
    values = measurements.of_round(metrics)
    for each in self._hooks:
      values.update(each.of_round(round_num))
    return values

  def evaluate(self, weights: Any, round_num: int) -> dict[str, float]:
    """Returns the values of an evaluation in a row of rounds.csv."""
    values: dict[str, float] = {}
    for each in self._hooks:
      values.update(each.evaluate(weights))
    return values

  async def release(self, value: Any, key: int) -> None:
    """Hands the values of a round to all hooks, one after the other."""
    for each in self._hooks:
      await each.release(value, key)

  def consider(self, weights: Any, values: hook.Values, round_num: int) -> None:
    """Hands an evaluated model to all hooks."""
    for each in self._hooks:
      each.consider(weights, values, round_num)

  def is_over(self, round_num: int) -> bool:
    """Returns whether a hook has had enough rounds."""
    return any([each.is_over(round_num) for each in self._hooks])
