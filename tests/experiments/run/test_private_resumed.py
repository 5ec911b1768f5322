"""Clip norms that adapt and noise from the clients, also in runs that are killed and go on."""

import contextlib

from helpers import commands
from helpers import flat
from helpers import private_run
import numpy as np
import pytest
import tensorflow_federated as tff

from privacy import account
from privacy import statements
from privacy.noise import shares
import tasks
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run import accounts
from tff_superquantile.experiments.run import build
from tff_superquantile.experiments.run import noise_key
from tff_superquantile.experiments.run import private as private_runs


class _Killed(Exception):
  pass


@pytest.fixture(scope="module")
def adaptive(run_here, fixed_key):
  """(values of flags, the folder) of a run whose clip norm adapts."""
  values = dict(algorithm="fed_avg", epsilon=6.0, clip_norm="adaptive", clip_unit="gradient")
  return values, run_here("adaptive", **fixed_key, **values)


def test_an_adaptive_clip_norm(adaptive, capsys):
  _, run = adaptive
  assert run.parent.name == "fed_avg_adaptive_clip_epsilon_6"
  rows = private_run.assert_nothing_of_the_cohorts(
    run, {"clip_norm"}, private_run.cohorts_of(run, num_rounds=4)
  )
  private_run.assert_the_key_is_kept(run)
  norms = [float(row["clip_norm"]) for row in rows[1:]]
  assert norms[0] == pytest.approx(0.1 * 1.0)  # Of the update: the learning rate, 0.1, times C.
  assert len(set(norms)) == 4
  assert np.all(np.abs(np.diff(np.log(norms))) <= 0.2 * 0.5 + 1e-6)
  found, flag = private_run.ledger_of(run), private_run.flags_of(run)
  z_w, z_b = (float(flag[f"{n}_noise_multiplier"]) for n in ("update", "clip_count"))
  assert flat.of(found.release).noise_multipliers == (None, z_w, z_b) and found.clip_norm is None
  assert (z_w / z_b) ** 2 == pytest.approx(0.01) == float(flag["clip_rho_ratio"])
  assert found.epsilon_spent == pytest.approx(private_run.epsilon_by_pld(z_b, z_w, 4), rel=2e-3)
  assert 0.99 * 6.0 < found.epsilon_spent <= 6.0
  assert account.run(["audit", str(run)]) == 0, capsys.readouterr()
  said = " ".join(capsys.readouterr().out.split())
  assert "a one-bit count of the updates within the clip norm" in said
  # The flags are read again.
  assert run_config.from_flags(flag).values()["clip_norm"] == "adaptive"


def test_a_killed_run_whose_clip_norm_adapts_ends_as_if_nothing_had_happened(adaptive, run_here):
  values, whole = adaptive
  _assert_ends_as_if_nothing_had_happened(run_here, values, whole, "adaptive_killed")


def _assert_ends_as_if_nothing_had_happened(run_here, values, whole, output_dir):
  """Kills a run whose rounds are ahead of its checkpoints, and lets it go on."""
  save, write = noise_key.SecretStateManager.save, accounts.Account.write

  async def save_two(self, program_state, version):
    if version <= 2:
      await save(self, program_state, version)

  def write_three(self, rounds_done):
    if rounds_done > 3:
      raise _Killed
    write(self, rounds_done)

  values = {**values, "noise_key_file": str(whole / private_run.KEY), "seconds_per_checkpoint": 0.0}
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(noise_key.SecretStateManager, "save", save_two)
    patch.setattr(accounts.Account, "write", write_three)
    with pytest.raises(_Killed):
      run_here(output_dir, **values)
  run = next(whole.parents[3].glob(f"{output_dir}/*/{whole.parent.name}/seed_0"))
  assert not (run / "metrics.json").exists()
  # Three rounds are out, and two in a checkpoint.
  assert (commands.num_rows(run), private_run.ledger_of(run).rounds_done) == (4, 3)
  assert {path.name for path in (run / "checkpoints").iterdir()} == {
    *("noise_key", "program_state_1", "program_state_2"),
  }
  del values["noise_key_file"]
  assert run_here(output_dir, **values) == run
  commands.assert_same_results(run, whole)
  private_run.assert_same_weights(run, whole)
  for name in ("privacy.json", "rounds.csv"):
    assert (run / name).read_bytes() == (whole / name).read_bytes()
  private_run.assert_the_key_is_kept(run)


# Who makes the noise: the values of the flags, and how many shares there are. To look for the noise
# of a budget takes longer than these runs.
_DISTRIBUTED = dict(secure=True, num_bins=16, num_rounds=5)
_MULTIPLIERS = dict(threshold_noise_multiplier=1.3, update_noise_multiplier=1.2)
_NOISE_SHARES = {
  "complement": (dict(epsilon=6.0, rho_ratio=0.5), 20),
  "helpers": (dict(noise_shares="helpers", relation="replace_one", **_MULTIPLIERS), 20),
  "private_coin": (dict(noise_shares="private_coin", contacted_clients=16, **_MULTIPLIERS), 30),
}


@pytest.fixture(scope="module", params=_NOISE_SHARES)
def distributed(request, run_here):
  """(values of flags, K, the folder of a run that nothing disturbed)."""
  values, num_shares = _NOISE_SHARES[request.param]
  values = {**_DISTRIBUTED, **values}
  return values, num_shares, run_here("distributed", **values)


def test_noise_from_the_clients_with_a_tree(distributed):
  values, num_shares, run = distributed
  # What a private coin has contacted is as secret as what a cohort is.
  expected = values.get("contacted_clients", 8)
  true_cohorts = private_run.cohorts_of(run, expected, 5, num_shares)
  rows = private_run.assert_nothing_of_the_cohorts(run, private_run.TREE_COLUMNS, true_cohorts)
  private_run.assert_the_key_is_kept(run)
  found = private_run.assert_spent(run, values.get("epsilon"), 5)
  tree, update_sum = flat.of(found.release).tree, flat.of(found.release).update_sum
  assert num_shares == shares.cohort_limit(private_run.POPULATION, expected)
  assert tree.num_shares == update_sum.num_shares == found.release.num_shares == num_shares
  assert (update_sum.clip_norm, update_sum.num_entries) == (0.5, private_run.NUM_PARAMETERS)
  assert update_sum.noise_multiplier == flat.of(found.release).update_noise_multiplier
  assert found.release.relation == values.get("relation", "zero_out")
  assert [row["aborted"] for row in rows[1:]] == ["0"] * 5
  # The server sees noisy sums alone.
  assert found.epsilon_server is not None and found.epsilon_server >= found.epsilon_spent
  assert "share" in found.guarantee["noise_shares"]


@pytest.mark.parametrize(
  "values, num_sums, said",
  [
    (dict(secure=True, **_MULTIPLIERS), 2, "histograms and updates."),
    (dict(secure=True, theta=1.0, update_noise_multiplier=1.2), 1, "updates."),
    (
      dict(secure=True, algorithm="q_fed_avg", q=1.0, update_noise_multiplier=1.2),
      *(1, "updates."),
    ),
    (
      dict(secure=True, algorithm="gifair", fairness_strength=1.0, **_MULTIPLIERS),
      *(2, "histograms and updates."),
    ),
    (
      dict(threshold="tree", **_MULTIPLIERS),
      *(1, "histograms; the server makes the noise of updates."),
    ),
    (_MULTIPLIERS, 0, "none; the server makes the noise of counts and updates."),
  ],
)
def test_the_compiled_round_has_the_secure_sums_that_a_run_states(lab, values, num_sums, said):
  task = tasks.get_task("synthetic")
  config = build.resolve(private_run.config(cache_dir=str(lab.cache_dir), **values), task)
  model, splits = build.load_task(task, config)
  release = private_runs.build_release(config, private_run.POPULATION, private_run.NUM_PARAMETERS)
  assert statements.secure_sums(release) == f"Secure sums of noisy integers: {said}"
  process = build.build_process(config, model, splits["train"], release, bytes(16))
  text = process.next.to_building_block().compact_representation()
  assert text.count("federated_secure_modular_sum(") == num_sums
  is_open = "the server makes" in said
  with pytest.raises(AssertionError) if is_open else contextlib.nullcontext():
    tff.test.assert_not_contains_unsecure_aggregation(process.next)


# Who the shares come from is drawn for each round by itself, see `test_private_selection`.
@pytest.mark.parametrize("distributed", ["complement"], indirect=True)
def test_a_killed_run_with_noise_from_the_clients_ends_as_if_nothing_had_happened(
  distributed, run_here
):
  values, _, whole = distributed
  _assert_ends_as_if_nothing_had_happened(run_here, values, whole, "distributed_killed")
