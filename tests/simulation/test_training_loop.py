"""The loop on a process of a few numbers: what it does, and what an interrupt anywhere leaves."""

import asyncio
import collections
import contextlib
import csv
import gc
import os
import signal
import types

import numpy as np
import pytest
import tensorflow_federated as tff

from tff_superquantile.simulation import release_managers
from tff_superquantile.simulation import training_loop

_NUM_ROUNDS = 6


class Process:
  """Its state is a hash of every cohort so far: a round lost, repeated or swapped changes it."""

  def __init__(self):
    self.rounds = 0

  def initialize(self):
    return collections.OrderedDict(weights=np.array([1.0, 0.5]), steps=np.int32(0))

  def next(self, state, clients):
    self.rounds += 1
    weights = np.sin(1e3 * state["weights"] + sum(clients))
    metrics = dict(train_loss=np.float32(weights[0]), cohort_size=len(clients), num_excluded=0)
    state = collections.OrderedDict(weights=weights, steps=np.int32(state["steps"] + 1))
    return types.SimpleNamespace(state=state, metrics=metrics)

  def get_model_weights(self, state):
    return state["weights"]


class Recorder(tff.program.ReleaseManager):
  """Remembers what it gets."""

  def __init__(self):
    self.released = []

  async def release(self, value, key):
    self.released.append((key, value))

  @property
  def keys(self):
    return [key for key, _ in self.released]


class Bed:
  """A folder and what it takes to run in it, as often as need be."""

  def __init__(self, folder):
    self.folder = folder
    self.process = Process()
    self.recorder = Recorder()
    self.evaluated = []

  def state_manager(self):
    return tff.program.FileProgramStateManager(str(self.folder / "checkpoints"), keep_total=0)

  def evaluate(self, weights, round_num):
    self.evaluated.append(round_num)
    return {"test_error_mean": float(weights[1])}

  def loop(self, **changes):
    arguments = dict(
      process=self.process,
      select_clients=lambda round_num: [round_num, round_num + 1],
      num_rounds=_NUM_ROUNDS,
      read_metrics=lambda metrics, round_num: metrics,
      evaluate=self.evaluate,
      rounds_per_evaluation=4,
      release_managers=[
        release_managers.RowReleaseManager(self.folder / "rounds.csv"),
        self.recorder,
      ],
      state_manager=self.state_manager(),
      seconds_per_checkpoint=1000.0,
    )
    return training_loop.Loop(**{**arguments, **changes})

  def run(self, **changes):
    return training_loop.run(self.loop(**changes))

  def versions(self):
    return asyncio.run(self.state_manager().get_versions()) or []

  def rows(self):
    """The rows of the CSV file, without what a clock measured."""
    with open(self.folder / "rounds.csv", newline="") as file:
      rows = list(csv.DictReader(file))
    return [{name: text for name, text in row.items() if name != "seconds"} for row in rows]


@pytest.fixture
def bed(tmp_path):
  return Bed(tmp_path)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
  """(final state, rows) of a run that nothing disturbed."""
  bed = Bed(tmp_path_factory.mktemp("uninterrupted"))
  return bed.run(), bed.rows()


def assert_equal_states(state, other):
  np.testing.assert_array_equal(state["weights"], other["weights"])
  assert state["steps"] == other["steps"]


def test_each_round_is_released_once_and_in_order(bed):
  state = bed.run()
  assert state["steps"] == _NUM_ROUNDS
  assert bed.recorder.keys == list(range(_NUM_ROUNDS + 1))
  assert [row["round"] for row in bed.rows()] == [str(i) for i in range(_NUM_ROUNDS + 1)]
  for key, value in bed.recorder.released[1:]:
    assert {"train_loss", "cohort_size", "num_excluded", "seconds"} <= set(value), key
    assert value["seconds"] >= 0
    # Plain numbers: whatever a manager writes is readable.
    assert all(type(number) in (int, float) for number in value.values())


class _Stuck(Process):
  """Its weights stay what they are, from some round on."""

  def __init__(self, since):
    super().__init__()
    self._since = since

  def next(self, state, clients):
    output = super().next(state, clients)
    if self.rounds >= self._since:
      output.state["weights"] = state["weights"]
    return output


@pytest.mark.parametrize("since, resumed, num_warnings", [(1, 0, 1), (1, 7, 1), (9, 0, 0)])
def test_a_model_that_does_not_move_is_said_once(bed, caplog, since, resumed, num_warnings):
  bed.process = _Stuck(since)
  if resumed:
    bed.run(num_rounds=resumed)
  bed.run(num_rounds=45)
  warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
  assert len(warnings) == num_warnings
  for warning in warnings:
    assert warning.startswith("Found the weights of the model unmoved after 20 rounds; expected")
    assert "learning rate" in warning and "max_loss" in warning


def test_evaluates_first_last_and_every_few_rounds(bed):
  state = bed.run(num_rounds=10)
  assert bed.evaluated == [0, 4, 8, 10]
  assert [key for key, value in bed.recorder.released if "test_error_mean" in value] == [
    *(0, 4, 8, 10)
  ]
  assert bed.recorder.released[0][1] == {"test_error_mean": 0.5}
  assert bed.recorder.released[-1][1]["test_error_mean"] == state["weights"][1]  # After the round.


def test_saves_every_round_when_asked_to_and_the_last_one_in_any_case(bed):
  bed.run(num_rounds=3, seconds_per_checkpoint=0.0)
  assert bed.versions() == [1, 2, 3]
  bed.run(num_rounds=5)
  assert bed.versions() == [1, 2, 3, 5]


def test_saves_after_the_seconds_that_were_asked_for(bed, monkeypatch):
  clock = types.SimpleNamespace(now=0.0)
  monkeypatch.setattr(training_loop.time, "monotonic", lambda: clock.now)

  def select(round_num):
    clock.now += 10.0
    return [round_num]

  bed.run(num_rounds=7, select_clients=select, seconds_per_checkpoint=30.0)
  assert bed.versions() == [3, 6, 7]


def test_runs_where_an_event_loop_runs_already_as_in_jupyter(bed, uninterrupted):
  async def cell():
    return bed.run(num_rounds=4), Bed(bed.folder).run()

  _, state = asyncio.run(cell())
  assert_equal_states(state, uninterrupted[0])
  assert bed.rows() == uninterrupted[1]


def test_continues_to_where_a_longer_run_gets(bed, uninterrupted):
  bed.run(num_rounds=4)
  resumed = Bed(bed.folder)
  state = resumed.run()
  assert_equal_states(state, uninterrupted[0])
  assert resumed.process.rounds == _NUM_ROUNDS - 4
  assert resumed.recorder.keys == [5, 6]
  assert bed.rows() == uninterrupted[1]


def test_repeats_what_was_released_after_the_last_checkpoint(bed, uninterrupted):
  """As after SIGKILL: rows beyond the checkpoint, and perhaps other ones than now."""
  bed.run(num_rounds=4)

  async def add_rows():
    manager = release_managers.RowReleaseManager(bed.folder / "rounds.csv")
    for round_num in (5, 6):
      await manager.release({"train_loss": -1.0, "seconds": 0.0}, round_num)

  asyncio.run(add_rows())
  state = Bed(bed.folder).run()
  assert_equal_states(state, uninterrupted[0])
  assert bed.rows() == uninterrupted[1]


class _Watcher:
  """Says after any round but the first that it is the last."""

  def __init__(self, bed):
    self._bed, self.calls = bed, []

  def on_start(self, round_num):
    self.calls.append(("start", round_num))
    return round_num != 1

  async def on_round(self, round_num, values):
    assert self._bed.recorder.released[-1] == (round_num, values)
    self.calls.append((round_num, values))
    return round_num != 1


def test_a_watcher_ends_the_run_after_a_round_and_it_stays_ended(bed):
  watcher = _Watcher(bed)
  state = bed.run(watcher=watcher)
  assert state["steps"] == 2 and bed.versions() == [2]
  assert [name for name, _ in watcher.calls] == ["start", 0, 1, 2]
  assert_equal_states(bed.run(watcher=watcher), state)
  assert watcher.calls[4:] == [("start", 2)] and bed.process.rounds == 2


def test_does_nothing_when_all_is_done(bed):
  state = bed.run()
  rows = bed.rows()
  again = Bed(bed.folder)
  assert_equal_states(again.run(), state)
  assert again.process.rounds == 0 and again.recorder.keys == [] and again.evaluated == []
  assert bed.rows() == rows and bed.versions() == [_NUM_ROUNDS]


def test_checkpoint_beyond_the_rounds_is_refused(bed):
  bed.run()
  rows = bed.rows()
  again = Bed(bed.folder)
  with pytest.raises(ValueError, match="Found a checkpoint of round 6, past num_rounds = 3"):
    again.run(num_rounds=3)
  assert again.process.rounds == 0 and again.recorder.keys == []
  assert bed.rows() == rows and bed.versions() == [_NUM_ROUNDS]


@pytest.mark.parametrize("round_num", [4, _NUM_ROUNDS])
def test_unreadable_checkpoint_is_passed_over(bed, uninterrupted, round_num):
  """What a full disk or a loss of power leaves."""
  bed.run(num_rounds=round_num, seconds_per_checkpoint=0.0)
  (bed.folder / "checkpoints" / f"program_state_{round_num}" / "saved_model.pb").write_bytes(
    b"torn"
  )
  state = Bed(bed.folder).run()
  assert_equal_states(state, uninterrupted[0])
  assert bed.rows() == uninterrupted[1]
  # And is replaced: the last round's state is always saved.
  again = Bed(bed.folder)
  assert_equal_states(again.run(), uninterrupted[0])
  assert again.process.rounds == 0


@pytest.mark.parametrize(
  "counts, diverges",
  [
    (dict(num_excluded=2), True),
    (dict(num_excluded=1, tail_size=0), True),  # The other is not in the tail, and doesn't train.
    (dict(num_excluded=1, tail_size=1), False),
    (dict(num_excluded=0, tail_size=0), False),  # A noisy threshold can lie above every loss.
  ],
)
def test_a_run_that_diverges_ends_and_keeps_its_last_good_state(bed, counts, diverges):
  def read_metrics(metrics, round_num):
    return {**metrics, **(counts if round_num >= 4 else {})}

  sentence = "2 clients of round 4.*--client_learning_rate"
  with (
    pytest.raises(training_loop.DivergedError, match=sentence)
    if diverges
    else (contextlib.nullcontext())
  ):
    bed.run(read_metrics=read_metrics)
  assert bed.versions() == [3 if diverges else _NUM_ROUNDS]
  assert bed.recorder.keys == list(range(4 if diverges else _NUM_ROUNDS + 1))


class Interrupt:
  """Sends this process a signal at one place of one round, once."""

  def __init__(self, place, signum, round_num=4):
    self.place, self.signum, self.round_num = place, signum, round_num
    self.sent = False

  def __call__(self, place, round_num):
    if (place, round_num) == (self.place, self.round_num) and not self.sent:
      self.sent = True
      os.kill(os.getpid(), self.signum)


class InterruptedRecorder(Recorder):
  def __init__(self, interrupt):
    super().__init__()
    self._interrupt = interrupt

  async def release(self, value, key):
    self._interrupt("before release", key)
    # As the managers that write files do: other things may happen meanwhile.
    await asyncio.sleep(0.001)
    await super().release(value, key)
    self._interrupt("after release", key)


class InterruptedStateManager(tff.program.FileProgramStateManager):
  def __init__(self, interrupt, *args, **kwargs):
    super().__init__(*args, **kwargs)
    self._interrupt = interrupt

  async def load(self, version, structure):
    if self._interrupt.place == "during load":
      asyncio.get_running_loop().call_later(0.002, self._interrupt, "during load", 4)
    return await super().load(version, structure)

  async def save(self, program_state, version):
    self._interrupt("before save", version)
    if self._interrupt.place == "during save":
      # Once the thread that writes has begun.
      asyncio.get_running_loop().call_later(0.002, self._interrupt, "during save", version)
    await super().save(program_state, version)
    self._interrupt("after save", version)


@pytest.fixture
def signals_as_in_a_command():
  """Ctrl-C raises KeyboardInterrupt, SIGTERM and SIGHUP raise SystemExit."""

  def terminate(signum, frame):
    del frame
    raise SystemExit(128 + signum)

  handlers = {
    signal.SIGTERM: terminate,
    signal.SIGHUP: terminate,
    signal.SIGINT: signal.default_int_handler,
  }
  old = {signum: signal.signal(signum, handler) for signum, handler in handlers.items()}
  yield
  for signum, handler in old.items():
    signal.signal(signum, handler)


@pytest.mark.usefixtures("signals_as_in_a_command")
@pytest.mark.parametrize(
  "signal_name, place",
  [
    *(("SIGINT", place) for place in ("select", "next", "evaluate")),
    *(("SIGINT", f"{when} release") for when in ("before", "after")),
    *(("SIGINT", f"{when} save") for when in ("before", "during", "after")),
    ("SIGTERM", "during save"),
    ("SIGHUP", "during save"),
  ],
)
def test_interrupt_anywhere_loses_nothing(bed, uninterrupted, place, signal_name):
  interrupt = Interrupt(place, getattr(signal, signal_name))

  def select(round_num):
    interrupt("select", round_num)
    return [round_num, round_num + 1]

  def evaluate(weights, round_num):
    interrupt("evaluate", round_num)
    return bed.evaluate(weights, round_num)

  class InterruptedProcess(Process):
    def next(self, state, clients):
      interrupt("next", state["steps"] + 1)
      return super().next(state, clients)

  loop = bed.loop(
    process=InterruptedProcess(),
    select_clients=select,
    evaluate=evaluate,
    state_manager=InterruptedStateManager(interrupt, str(bed.folder / "checkpoints"), keep_total=0),
    seconds_per_checkpoint=0.0 if "save" in place else 1000.0,
  )
  loop.release_managers.append(InterruptedRecorder(interrupt))
  expected = KeyboardInterrupt if signal_name == "SIGINT" else SystemExit
  with pytest.raises(expected) as raised:
    training_loop.run(loop)
  assert interrupt.sent
  if signal_name != "SIGINT":
    assert raised.value.code == 128 + interrupt.signum
  # What was computed is saved: at most the interrupted round is computed again.
  assert bed.versions()[-1] in (3, 4, 5)
  names = os.listdir(bed.folder / "checkpoints")
  assert not [name for name in names if "temp" in name], "left half a checkpoint"

  resumed = Bed(bed.folder)
  assert_equal_states(resumed.run(), uninterrupted[0])
  assert bed.rows() == uninterrupted[1]


@pytest.mark.usefixtures("signals_as_in_a_command")
def test_interrupt_of_loading_is_silent(bed, uninterrupted, capfd, caplog):
  """Nothing is half done then, and an event loop must not complain of what it did not finish."""
  bed.run(num_rounds=4)
  interrupt = Interrupt("during load", signal.SIGINT)
  checkpoints = str(bed.folder / "checkpoints")
  with pytest.raises(KeyboardInterrupt):
    bed.run(state_manager=InterruptedStateManager(interrupt, checkpoints, keep_total=0))
  gc.collect()
  assert capfd.readouterr().err == ""
  assert not [record for record in caplog.records if record.name == "asyncio"]
  assert_equal_states(Bed(bed.folder).run(), uninterrupted[0])
  assert bed.rows() == uninterrupted[1]


def test_a_watcher_that_refuses_a_round_leaves_the_one_before(bed):
  class Refusing(_Watcher):
    async def on_round(self, round_num, values):
      if round_num == 3:
        raise training_loop.DivergedError("no")
      return False

  with pytest.raises(training_loop.DivergedError, match="no"):
    bed.run(watcher=Refusing(bed))
  assert bed.versions() == [2]


def test_failure_of_a_round_saves_the_one_before(bed, uninterrupted):
  def select(round_num):
    if round_num == 5:
      raise OSError("no such client")
    return [round_num, round_num + 1]

  with pytest.raises(OSError, match="no such client"):
    bed.run(select_clients=select)
  assert bed.versions() == [4]
  assert_equal_states(Bed(bed.folder).run(), uninterrupted[0])
  assert bed.rows() == uninterrupted[1]
