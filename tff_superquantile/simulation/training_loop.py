"""Runs rounds one after the other: resumable, released as they happen, watched by a person.

State is kept by TFF's `tff.program.FileProgramStateManager`, results are given to
`tff.program.ReleaseManager`s. All that a round needs besides the state follows from its number, so
a run that was killed continues from its last checkpoint to the same weights.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
import dataclasses
import logging
import time
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.engine.processes import interruptions

_LOG = logging.getLogger(__name__)

Metrics = Mapping[str, Any]

# A model that has not moved in so many rounds is worth a word.
_ROUNDS_TO_MOVE = 20


class DivergedError(RuntimeError):
  """No client of a cohort has a finite loss any more."""


class Watcher(Protocol):
  """Follows the rounds, and says when the run may end before its last one."""

  def on_start(self, round_num: int) -> bool:
    """Gets the last round that is done, or 0; returns whether no round need follow it."""

  async def on_round(self, round_num: int, values: Metrics) -> bool:
    """Gets a round's released values, before it counts as done; returns whether none need follow.

    Round 0 is the evaluation before the first round, which follows in any case.
    """


@dataclasses.dataclass(frozen=True)
class Loop:
  """The parts of a training run.

  Attributes:
    process: The learning process.
    select_clients: From the round's number to the cohort's data, or whatever its clients hold.
    num_rounds: The number of the last round; the first is 1.
    read_metrics: From (`process.next`'s metrics, round) to the flat values that are released.
    evaluate: From (model weights, round) to flat values; none for no evaluation.
    rounds_per_evaluation: Rounds between evaluations; the first and the last state are evaluated
      too.
    state_manager: Keeps the state.
    release_managers: Get the values of each round, with its number as key.
    seconds_per_checkpoint: Saves the state when at least this much time has passed since the last
      time. The last round's is always saved, as is that of a round that is interrupted.
    measure_time: Whether to release the seconds that a round took.
    initial_weights: The model of round 0, with `trainable` and `non_trainable` as in
      `tff.learning.models.ModelWeights`; None for that of the process.
    watcher: Follows the rounds, and may end the run; None for all rounds.
  """

  process: tff.learning.templates.LearningProcess
  select_clients: Callable[[int], Sequence[Any]]
  num_rounds: int
  read_metrics: Callable[[Any, int], Metrics]
  evaluate: Callable[[Any, int], Metrics]
  rounds_per_evaluation: int
  state_manager: tff.program.FileProgramStateManager
  release_managers: Sequence[tff.program.ReleaseManager] = ()
  seconds_per_checkpoint: float = 30.0
  measure_time: bool = True
  initial_weights: Any = None
  watcher: Watcher | None = None


def run(loop: Loop) -> Any:
  """Runs the rounds that are not done yet.

  A round counts as done when it is released; a signal that arrives while files are being written
  takes effect when they are whole. So whatever ends a run in an orderly way, the saved state is
  that of the last round that was released.

  Args:
    loop: The run.

  Returns:
    The state after the last round, or that after which the watcher ended the run.

  Raises:
    DivergedError: If nobody's loss or update was finite. The state of the round before is saved.
    ValueError: If the saved state is beyond `num_rounds`.
  """
  with interruptions.coroutine_runner() as wait:
    return _run(loop, wait)


def _load(
  loop: Loop, initial_state: Any, wait: Callable[[Awaitable], Any]
) -> tuple[Any, int, set[int]]:
  """Returns the latest readable state, its round (0: the initial one) and the unreadable rounds."""
  unreadable: set[int] = set()
  for round_num in reversed(wait(loop.state_manager.get_versions()) or []):
    if round_num > loop.num_rounds:
      raise ValueError(
        f"Found a checkpoint of round {round_num}, past num_rounds = {loop.num_rounds}; ask for at"
        f" least {round_num} rounds or remove the run's folder."
      )
    try:
      return wait(loop.state_manager.load(round_num, initial_state)), round_num, unreadable
    except Exception as error:  # Whatever a full disk or a loss of power left there.
      _LOG.warning("The checkpoint of round %d cannot be read: %s", round_num, error)
      unreadable.add(round_num)
  return initial_state, 0, unreadable


def _check_progress(values: Metrics, round_num: int) -> None:
  """Raises `DivergedError` if clients were left out and nobody else was left to train."""
  excluded = values.get("num_excluded", 0)
  cohort = values.get("cohort_size", 0)
  if excluded and values.get("tail_size", cohort - excluded) <= 0:
    raise DivergedError(
      f"Found no finite loss and update among the {cohort} clients of round {round_num}; the model"
      " has diverged, or the data are not finite: lower --client_learning_rate."
    )


def _warn_if_unmoved(before: Any, after: Any) -> None:
  """Says so if a model's weights are what they were."""
  pairs = zip(tf.nest.flatten(before), tf.nest.flatten(after))
  if all(np.array_equal(old, new) for old, new in pairs):
    _LOG.warning(
      "Found the weights of the model unmoved after %d rounds; expected training to change them:"
      " see whether the learning rate is too small, the threshold above all losses (a private one"
      " starts from max_loss), or nobody in the cohorts.",
      _ROUNDS_TO_MOVE,
    )


def _run(loop: Loop, wait: Callable[[Awaitable], Any]) -> Any:
  initial_state = loop.process.initialize()
  if loop.initial_weights is not None:
    initial_state = loop.process.set_model_weights(
      initial_state,
      tff.learning.models.ModelWeights(
        list(loop.initial_weights.trainable), list(loop.initial_weights.non_trainable)
      ),
    )
  initial_weights = loop.process.get_model_weights(initial_state)
  state, done, unreadable = _load(loop, initial_state, wait)
  saved = done

  def evaluate(state: Any, round_num: int) -> Metrics:
    return loop.evaluate(loop.process.get_model_weights(state), round_num)

  def release(values: Metrics, round_num: int) -> bool:
    # Plain numbers: what a release manager gets is what it writes.
    values = {name: np.asarray(value).item() for name, value in values.items()}

    async def release_in_order() -> bool:
      for manager in loop.release_managers:
        await manager.release(values, key=round_num)
      return loop.watcher is not None and await loop.watcher.on_round(round_num, values)

    return wait(release_in_order())

  def save() -> None:
    nonlocal saved
    if done > saved:
      if done in unreadable:
        # Not before there is a better one. Private to TFF: nothing public removes one version.
        wait(loop.state_manager._remove(done))
      wait(loop.state_manager.save(state, done))
      saved = done

  is_over = loop.watcher is not None and loop.watcher.on_start(done)
  if done == 0:
    initial = evaluate(state, 0)
    if initial:
      with interruptions.deferred_signals():
        release(initial, 0)
  last_saved_time = time.monotonic()
  try:
    for round_num in range(done + 1, loop.num_rounds + 1):
      if is_over and done:
        break
      start = time.monotonic()
      output = loop.process.next(state, loop.select_clients(round_num))
      values = dict(loop.read_metrics(output.metrics, round_num))
      if loop.measure_time:
        values["seconds"] = time.monotonic() - start
      _check_progress(values, round_num)
      if round_num == _ROUNDS_TO_MOVE:
        _warn_if_unmoved(initial_weights, loop.process.get_model_weights(output.state))
      if round_num % loop.rounds_per_evaluation == 0 or round_num == loop.num_rounds:
        values = {**evaluate(output.state, round_num), **values}
      with interruptions.deferred_signals():
        is_over = release(values, round_num)
        state, done = output.state, round_num
        if time.monotonic() - last_saved_time >= loop.seconds_per_checkpoint:
          save()
          last_saved_time = time.monotonic()
  finally:
    with interruptions.deferred_signals():
      save()
  return state
