"""Rounds, one after the other: resumable, released as they happen, watched by a person.

State is kept by TFF's `tff.program.FileProgramStateManager`, results are given to
`tff.program.ReleaseManager`s. All that a round needs besides the state follows from its number, so
a run that was killed continues from its last checkpoint to the same weights.
"""

import asyncio
from collections.abc import Mapping, Sequence
import dataclasses
import time
from typing import Any, Callable, Optional

import numpy as np
import tensorflow_federated as tff

Metrics = Mapping[str, Any]


class DivergedError(RuntimeError):
  """No client of a cohort has a finite loss any more."""


@dataclasses.dataclass(frozen=True)
class Loop:
  """What a training run consists of.

  Attributes:
    process: The learning process.
    select_clients: From the round's number to the cohort's data, or whatever its clients hold.
    num_rounds: The number of the last round; the first is 1.
    read_metrics: From `process.next`'s metrics to the flat values that are released.
    evaluate: From (model weights, round) to flat values, or None for no evaluation.
    rounds_per_evaluation: Rounds between evaluations; the first and the last state are evaluated
      too.
    release_managers: Get the values of each round, with its number as key.
    state_manager: Keeps the state.
    seconds_per_checkpoint: Saves the state when at least this much time has passed since the last
      time. The last round's is always saved, as is that of a round that is interrupted.
  """

  process: tff.learning.templates.LearningProcess
  select_clients: Callable[[int], Sequence[Any]]
  num_rounds: int
  read_metrics: Callable[[Any], Metrics]
  evaluate: Optional[Callable[[Any, int], Metrics]]
  rounds_per_evaluation: int
  release_managers: Sequence[tff.program.ReleaseManager]
  state_manager: tff.program.FileProgramStateManager
  seconds_per_checkpoint: float = 30.0


def run(loop: Loop) -> Any:
  """Runs the rounds that are not done yet.

  Args:
    loop: What to run.

  Returns:
    The state after the last round.

  Raises:
    DivergedError: If a whole cohort had no finite loss. The state of the round before is saved.
    ValueError: If the saved state is beyond `num_rounds`.
  """
  return asyncio.run(_run(loop))


async def _load(loop: Loop) -> tuple[Any, int]:
  """Returns the latest readable state and its round; the initial state is that of round 0."""
  initial_state = loop.process.initialize()
  for round_num in reversed(await loop.state_manager.get_versions() or []):
    if round_num > loop.num_rounds:
      raise ValueError(
        f"Found a checkpoint of round {round_num}, past num_rounds = {loop.num_rounds}; ask for at"
        f" least {round_num} rounds or remove the run's folder."
      )
    return await loop.state_manager.load(round_num, initial_state), round_num
  return initial_state, 0


async def _run(loop: Loop) -> Any:
  state, done = await _load(loop)
  saved = done

  async def release(values: Metrics, round_num: int) -> None:
    # All numbers, in one order: what a release manager gets is what it writes.
    values = {name: np.asarray(value).item() for name, value in values.items()}
    for manager in loop.release_managers:
      await manager.release(values, key=round_num)

  async def save(round_num: int) -> None:
    nonlocal saved
    if round_num > saved:
      await loop.state_manager.save(state, round_num)
      saved = round_num

  def evaluate(round_num: int) -> Metrics:
    if loop.evaluate is None:
      return {}
    return loop.evaluate(loop.process.get_model_weights(state), round_num)

  if done == 0:
    initial = evaluate(0)
    if initial:
      await release(initial, 0)
  last_saved_time = time.monotonic()
  try:
    for round_num in range(done + 1, loop.num_rounds + 1):
      start = time.monotonic()
      output = loop.process.next(state, loop.select_clients(round_num))
      values = dict(loop.read_metrics(output.metrics))
      values["seconds"] = time.monotonic() - start
      if values.get("num_excluded", 0) == values.get("cohort_size", np.inf):
        raise DivergedError(
          f"Found no finite loss among the {values['cohort_size']} clients of round {round_num};"
          " the model has diverged, or the data are not finite: lower the learning rate."
        )
      # Both at once, so that an interrupt leaves a state and its number.
      state, done = output.state, round_num
      if round_num % loop.rounds_per_evaluation == 0 or round_num == loop.num_rounds:
        values.update(evaluate(round_num))
      await release(values, round_num)
      if time.monotonic() - last_saved_time >= loop.seconds_per_checkpoint:
        await save(round_num)
        last_saved_time = time.monotonic()
  finally:
    await save(done)
  return state
