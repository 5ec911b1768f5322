"""Private runs with allocated cohorts: who takes part, and what becomes of one that is killed."""

import signal

from helpers import commands
from helpers import private_run
import numpy as np
import pytest

from privacy import account
from tff_superquantile.experiments.run import selection

_LENGTH, _BLOCKS = 4, 2  # Of 30 clients 8 a round: t rounds of a block, and k blocks.
_ROUNDS = _LENGTH * _BLOCKS
_KILLED = _LENGTH + 2  # In the middle of the second block.
_VALUES = dict(
  sampling="allocated",
  threshold_noise_multiplier=1.3,
  update_noise_multiplier=1.2,
  num_rounds=_ROUNDS,
  seconds_per_checkpoint=0.0,
)


@pytest.fixture(scope="module")
def run_recorded(run_here):
  """Runs as `run_here`; also returns, by round, the index and the seed of each client."""

  def run(output_dir, **values):
    build, found = selection.build_selection, {}

    def recording(*args):
      select = build(*args)

      def recorded(round_num):
        handles = select(round_num)
        found[round_num] = [(int(h["index"]), tuple(np.asarray(h["seed"]))) for h in handles]
        return handles

      return recorded

    with pytest.MonkeyPatch.context() as patch:
      patch.setattr(selection, "build_selection", recording)
      return run_here(output_dir, **values), found

  return run


@pytest.fixture(scope="module")
def whole(run_recorded, fixed_key):
  """The folder and the cohorts of a run that nothing disturbed."""
  return run_recorded("allocated", **fixed_key, **_VALUES)


def test_each_client_takes_part_in_one_round_of_each_block(whole):
  run, cohorts = whole
  assert sorted(cohorts) == list(range(1, _ROUNDS + 1))
  indices = {round_num: [index for index, _ in cohort] for round_num, cohort in cohorts.items()}
  everybody = list(range(private_run.POPULATION))
  blocks = [range(1 + b * _LENGTH, 1 + (b + 1) * _LENGTH) for b in range(_BLOCKS)]
  turns = []
  for block in blocks:
    turns.append({i: r - block[0] for r in block for i in indices[r]})
    # Each in one round, and no more: a client of two rounds would stand in the list twice.
    assert sorted(i for r in block for i in indices[r]) == everybody
  assert turns[0] != turns[1]  # Drawn anew.
  counts = np.bincount([i for cohort in indices.values() for i in cohort])
  assert counts.tolist() == [_BLOCKS] * private_run.POPULATION
  # Blocks that are cut elsewhere, such as from round 0, would not be whole.
  assert any(
    sorted(i for r in block for i in indices[r + shift]) != everybody
    for shift in (-1, 1)
    for block in blocks
    if {block[0] + shift, block[-1] + shift} <= indices.keys()
  )
  private_run.assert_nothing_of_the_cohorts(
    run, private_run.GEOMETRIC_COLUMNS, list(indices.values())
  )
  private_run.assert_the_key_is_kept(run)


def test_a_run_that_is_killed_within_a_block_ends_as_if_nothing_had_happened(
  lab, whole, run_recorded, capsys
):
  run, cohorts = whole
  values = {**_VALUES, "noise_key_file": run / private_run.KEY}
  values |= dict(delta=private_run.DELTA, clip_norm=0.5, rounds_per_evaluation=2)
  flags = [f"--{name}={value}" for name, value in values.items()]
  # The first two rows, with new columns, are not appended: it waits before that of `_KILLED`.
  rows = _KILLED - 2
  command = lab.held("train", *flags, "--output_dir=allocated_killed", rows=rows)
  command.wait_until_held()
  assert command.end_by(signal.SIGKILL).code == -signal.SIGKILL
  (killed,) = lab.folder.glob(f"allocated_killed/*/{run.parent.name}/seed_0")
  assert not (killed / "metrics.json").exists()
  # The ledger has the round of which there is no row yet.
  assert private_run.ledger_of(killed).rounds_done == _KILLED
  assert int(commands.rows(killed)[-1]["round"]) == _KILLED - 1
  resumed, left = run_recorded("allocated_killed", **_VALUES)
  assert resumed == killed
  assert left == {r: cohorts[r] for r in range(_KILLED, _ROUNDS + 1)}
  commands.assert_same_results(killed, run)
  private_run.assert_same_weights(killed, run)
  for name in ("privacy.json", "rounds.csv"):
    assert (killed / name).read_bytes() == (run / name).read_bytes()
  private_run.assert_the_key_is_kept(killed)
  assert account.run(["audit", str(killed)]) == 0, capsys.readouterr()
  assert f"takes part in one of {_LENGTH} successive" in " ".join(capsys.readouterr().out.split())
