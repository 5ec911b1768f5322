"""A private run: what it leaves and leaves out, its ledger, how it goes on, and its key."""

import re
import shutil
import signal

import dp_accounting
from helpers import commands
from helpers import flat
from helpers import private_run
import numpy as np
import pytest
import tensorflow as tf

# The values of flags of a run, and with those of all runs here as arguments.
_RESUMED = dict(
  epsilon=private_run.EPSILON,
  clip_unit="gradient",
  num_rounds=private_run.NUM_ROUNDS,
  rounds_per_evaluation=8,
  run_name="mine",
)
_FLAGS = [f"--{n}={v}" for n, v in dict(_RESUMED, delta=private_run.DELTA, clip_norm=0.5).items()]
_RUN = "synthetic/mine/seed_0"


@pytest.fixture(scope="module")
def private(lab):
  """(result, folder) of a private run that nothing disturbed."""
  result = lab.train("--output_dir=whole", *_FLAGS)
  assert result.code == 0, result.err
  return result, lab.folder / "whole" / _RUN


@pytest.fixture(scope="module")
def killed(lab, private):
  """A run as it was when it was killed, with the key of the one that nothing disturbed."""
  flags = ("--output_dir=killed", "--seconds_per_checkpoint=0", *_FLAGS)
  key = f"--noise_key_file={private[1] / private_run.KEY}"
  command = lab.held("train", key, *flags, rows=5)
  run = lab.folder / "killed" / _RUN
  command.wait_until_held()
  assert commands.num_rows(run) > 5
  result = command.end_by(signal.SIGKILL)
  assert result.code == -signal.SIGKILL
  return run


@pytest.fixture(scope="module")
def killed_copy(lab, killed):
  """The killed run, before another test resumes it."""
  shutil.copytree(lab.folder / "killed", lab.folder / "killed_copy")
  return lab.folder / "killed_copy" / _RUN


# What a run leaves.


def test_a_private_run_leaves_nothing_of_its_cohorts(private):
  result, run = private
  rows = private_run.assert_nothing_of_the_cohorts(
    run, private_run.GEOMETRIC_COLUMNS, private_run.cohorts_of(run)
  )
  # The tail's size is what is expected of it, whatever the cohort.
  assert {float(row["estimated_tail_size"]) for row in rows[1:]} == {4.0}
  assert len({row["threshold"] for row in rows[1:]}) > private_run.NUM_ROUNDS / 2
  # What it says.
  first = result.out.splitlines()[0]
  assert first.startswith(f"Private: {private_run.NUM_ROUNDS} rounds cost epsilon")
  assert first.endswith(
    " Secure sums of noisy integers: none; the server makes the noise of counts and updates."
  )
  assert result.out.endswith(f"\nFinished: whole/{_RUN}\n")
  assert "epsilon=" in result.err
  for name in ("loss=", "tail=", "left out=", "s/round=", "train_"):
    assert name not in result.out + result.err


def test_the_key_of_a_private_run_is_in_its_file_alone(private):
  result, run = private
  private_run.assert_the_key_is_kept(run, result.out, result.err)
  assert len(set(private_run.key_of(run))) > 4  # Drawn, and not something that is easily guessed.


def test_a_checkpoint_holds_the_model_the_threshold_and_states_of_noise(private):
  _, run = private
  (latest,) = (run / "checkpoints").glob(f"program_state_{private_run.NUM_ROUNDS}")
  prefix = str(latest / "variables" / "variables")
  shapes = [
    tuple(shape) for name, shape in tf.train.list_variables(prefix) if "OBJECT_GRAPH" not in name
  ]
  large = sorted(shape for shape in shapes if np.prod(shape, dtype=int) > 1)
  # Nothing with an entry for each client; of the noise 128 bits for each of two releases.
  assert large == [(2,), (2,), (10,), (20, 10)]
  assert len(shapes) < 25


def _epsilon_by_rdp(z_q, z_w, num_rounds):
  """Of Poisson cohorts of 8 in 30, by dp_accounting alone."""
  event = dp_accounting.ComposedDpEvent(
    [dp_accounting.GaussianDpEvent(z_q), dp_accounting.GaussianDpEvent(z_w)]
  )
  event = dp_accounting.PoissonSampledDpEvent(8 / 30, event)
  return dp_accounting.rdp.RdpAccountant().compose(event, num_rounds).get_epsilon(private_run.DELTA)


def test_the_ledger_is_what_was_spent(private):
  _, run = private
  found, flag = private_run.ledger_of(run), private_run.flags_of(run)
  rows = commands.rows(run)
  assert (
    found.rounds_done
    == found.num_rounds_planned
    == int(rows[-1]["round"])
    == private_run.NUM_ROUNDS
  )
  assert found.claim == dict(epsilon=private_run.EPSILON, delta=private_run.DELTA)
  assert found.accounting == "tightest" and found.epsilon_server is None
  assert found.clip_norm == pytest.approx(0.1 * 0.5)  # Of the update.
  z_q, z_w = (float(flag[f"{name}_noise_multiplier"]) for name in ("threshold", "update"))
  assert (z_w / z_q) ** 2 == pytest.approx(float(flag["rho_ratio"]))
  release = flat.release(private_run.POPULATION, 8, z_q, z_w, threshold_kind="geometric")
  assert found.release == release
  assert found.epsilon_spent == float(rows[-1]["epsilon"]) <= private_run.EPSILON
  assert found.epsilon_spent > 0.99 * private_run.EPSILON  # Nor was any of it wasted.
  spent = [float(row["epsilon"]) for row in rows[1:]]
  assert spent == sorted(spent)
  assert spent[-1] == pytest.approx(
    private_run.epsilon_by_pld(z_q, z_w, private_run.NUM_ROUNDS), rel=2e-3
  )
  for round_num in (1, 7, private_run.NUM_ROUNDS):
    # Between rounds that were accounted for by themselves RDP may be all that there is.
    exact, most = (f(z_q, z_w, round_num) for f in (private_run.epsilon_by_pld, _epsilon_by_rdp))
    assert exact * (1.0 - 2e-3) <= spent[round_num - 1] <= most * (1.0 + 1e-6)
  assert any(
    "zero-out" in sentence or "removed" in sentence for sentence in found.guarantee.values()
  )
  assert found.not_covered


# Runs that were interrupted, and what comes after the end.


def test_the_ledger_of_a_killed_run_is_never_behind_its_rounds(killed_copy):
  killed = killed_copy
  found = private_run.ledger_of(killed)
  assert not (killed / "metrics.json").exists()
  assert found.rounds_done >= commands.num_rows(killed) - 1 > 3
  assert found.rounds_done < private_run.NUM_ROUNDS
  assert found.epsilon_spent < found.claim["epsilon"]


def test_a_killed_run_ends_where_an_uninterrupted_one_does(killed, killed_copy, private, run_here):
  _, whole = private
  del killed_copy  # Made before it goes on.
  followed = ("threshold_noise_multiplier", "update_noise_multiplier", "delta", "rho_ratio")
  noise = [private_run.flags_of(killed).get(name) for name in followed]
  # It has its key, and needs no file of it any more.
  assert run_here("killed", **_RESUMED) == killed
  commands.assert_same_results(killed, whole)
  private_run.assert_same_weights(killed, whole)
  for name in ("privacy.json", "rounds.csv", "test_clients.csv"):
    assert (killed / name).read_bytes() == (whole / name).read_bytes()
  assert noise == [private_run.flags_of(killed).get(name) for name in followed]
  private_run.assert_nothing_of_the_cohorts(
    killed, private_run.GEOMETRIC_COLUMNS, private_run.cohorts_of(killed)
  )
  private_run.assert_the_key_is_kept(killed)


@pytest.mark.parametrize(
  "output_dir, changed, words",
  [
    (
      "whole",
      dict(num_rounds=private_run.NUM_ROUNDS + 1),
      f"={private_run.NUM_ROUNDS} there, {private_run.NUM_ROUNDS + 1} here",
    ),
    (
      "killed_copy",
      dict(num_rounds=private_run.NUM_ROUNDS + 1),
      f"={private_run.NUM_ROUNDS} there, .* here",
    ),
    ("whole", dict(epsilon=60.0), "--epsilon=6.0 there, 60.0 here"),
  ],
)
def test_a_run_has_the_budget_that_it_began_with(
  lab, private, killed_copy, output_dir, changed, words
):
  run = lab.folder / output_dir / _RUN
  before = commands.contents(run)
  flags = [*_FLAGS, *(f"--{name}={value}" for name, value in changed.items())]
  result = lab.train(f"--output_dir={output_dir}", *flags)
  result.assert_refused()
  assert re.search(words, result.err) and commands.contents(run) == before


# The key's file.


def _damage(run, how):
  """Does something to the key of a run."""
  path = run / private_run.KEY
  path.unlink()
  if how == "a folder":
    path.mkdir()
  elif how != "missing":
    path.write_bytes(how)


@pytest.mark.parametrize(
  "how,message",
  [
    ("missing", "Found no .*noise_key, the key of a private run that has begun"),
    ("a folder", "the run's key .*noise_key cannot be read .Is a directory"),
    (b"", "Found no key in .*noise_key; expected 32 hexadecimal digits"),
    (b"00" * 15, "Found no key in .*noise_key"),
    (b"00" * 17, "Found no key in .*noise_key"),
    (b"0" * 31, "Found no key in .*noise_key"),
    (b"\xff" * 16, "Found no key in .*noise_key"),
    (b"0x" + b"00" * 16, "Found no key in .*noise_key"),
    (b"00" * 16 + b"\0", "Found no key in .*noise_key"),
  ],
)
def test_without_its_key_a_run_does_not_go_on(killed_copy, lab, run_here, tmp_path, how, message):
  copy = shutil.copytree(killed_copy, lab.folder / tmp_path.name / _RUN)
  _damage(copy, how)
  before = commands.contents(copy)
  with pytest.raises(ValueError, match=message) as error:
    run_here(tmp_path.name, **_RESUMED)
  assert "\n" not in str(error.value)
  assert commands.contents(copy) == before
  assert (copy / private_run.KEY).exists() == (how != "missing")


@pytest.mark.parametrize(
  "content,message",
  [
    (bytes(16).hex().encode(), "Found another key in .*given than in .*noise_key"),
    (b"", "Found no key in .*given; expected 32 hexadecimal digits"),
    (b"not a key", "Found no key in .*given"),
    (None, "--noise_key_file .*given cannot be read .Is a directory"),
  ],
)
def test_a_wrong_key_file_is_refused(killed_copy, lab, run_here, tmp_path, content, message):
  given = tmp_path / "given"
  given.mkdir() if content is None else given.write_bytes(content)
  before = commands.contents(killed_copy)
  with pytest.raises(ValueError, match=message):
    run_here("killed_copy", noise_key_file=str(given), **_RESUMED)
  assert commands.contents(killed_copy) == before
  if content is None or len(content) < 32:  # Nor does it begin a run.
    with pytest.raises(ValueError, match=message):
      run_here(
        "refused_here",
        noise_key_file=str(given),
        algorithm="fed_avg",
        update_noise_multiplier=1.0,
        run_name="bad",
      )
    assert not (lab.folder / "refused_here/synthetic/bad").exists()


def test_a_lost_key_can_be_brought_back(killed_copy, private, lab, run_here):
  """By the file, in which the digits may be as people write them."""
  copy = shutil.copytree(killed_copy, lab.folder / "brought_back" / _RUN)
  key = (copy / private_run.KEY).read_text().strip()
  (copy / private_run.KEY).unlink()
  (lab.folder / "written_down").write_text(f"  {key[:16].upper()} {key[16:]}\n\n")
  run_here("brought_back", noise_key_file=str(lab.folder / "written_down"), **_RESUMED)
  commands.assert_same_results(copy, private[1])
  private_run.assert_same_weights(copy, private[1])
  private_run.assert_the_key_is_kept(copy)
