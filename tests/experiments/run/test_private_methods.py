"""Private runs of each method, threshold and sampling: what they leave, spend, and go on with."""

import contextlib
import os

from helpers import commands
from helpers import flat
from helpers import private_run
import numpy as np
import pytest

from privacy import account
from privacy import accounting
from privacy import cohorts as kinds
from tff_superquantile.experiments.run import selection
from tff_superquantile.simulation import cohorts

# Cohorts that all may know.

_KNOWN = dict(epsilon=6.0, theta=0.5, threshold="primal_dual")


@pytest.mark.parametrize(
  "sampling", [dict(sampling="cyclic"), dict(sampling="spaced", separation=3)]
)
def test_a_run_with_known_cohorts_keeps_to_its_turns(run_here, sampling, capsys, monkeypatch):
  seen = []

  def spy(build):
    def built(*args, **kwargs):
      select = build(*args, **kwargs)

      def record(round_num):
        found = select(round_num)
        seen.append({int(handle["index"]) for handle in found})
        return found

      return record

    return built

  monkeypatch.setattr(selection, "build_selection", spy(selection.build_selection))
  run = run_here(
    f"known_{sampling['sampling']}", num_rounds=9, averaged_rounds=4, **_KNOWN, **sampling
  )
  found = private_run.ledger_of(run)
  separation = found.release.cohort.separation
  assert separation == {"cyclic": 4, "spaced": 3}[sampling["sampling"]]
  assert len(seen) >= 9 and max(map(len, seen)) <= 8
  for first in range(len(seen)):
    for distance in range(1, separation):
      assert not seen[first] & set().union(*seen[first + distance : first + distance + 1])
  assert account.run(["audit", str(run)]) == 0
  printed = capsys.readouterr().out
  assert "The claim holds." in printed and "and the cohorts" in printed
  rows = commands.rows(run)
  spent = [float(row["epsilon"]) for row in rows[1:]]
  assert spent == sorted(spent) and spent[-1] == found.epsilon_spent
  # A changed distance, or number of bands, is found out.
  lines = (run / "flags.txt").read_text()
  (run / "flags.txt").write_text(lines + "--bands=2\n")
  assert account.run(["audit", str(run)]) == 1
  assert "--bands=2 and the ledger" in " ".join(capsys.readouterr().out.split())


def test_noise_of_other_coefficients_does_not_go_on(run_here):
  values = dict(_KNOWN, num_rounds=5, sampling="cyclic")
  run = run_here("coefficients", **values)
  text = (run / "privacy.json").read_text()
  ((_, second, *_),) = [private_run.ledger_of(run).release.coefficients]
  (run / "privacy.json").write_text(text.replace(repr(second), repr(second + 1e-9)))
  (run / "metrics.json").unlink()
  with pytest.raises(ValueError, match="other coefficients of the noise over rounds"):
    run_here("coefficients", **values)
  # Without the ledger nobody knows which they were.
  (run / "privacy.json").unlink()
  with pytest.raises(ValueError, match="which alone has the coefficients"):
    run_here("coefficients", **values)
  assert not (run / "privacy.json").exists()


@contextlib.contextmanager
def _umask(mask):
  old = os.umask(mask)
  try:
    yield
  finally:
    os.umask(old)


def test_noise_multipliers_in_place_of_a_budget(run_here, capfd):
  with _umask(0o000):
    run = run_here("multipliers", update_noise_multiplier=1.3, threshold_noise_multiplier=7.0)
  assert run.parent.name == "superquantile_theta_0.5_z_7_update_z_1.3"
  private_run.assert_nothing_of_the_cohorts(
    run, private_run.GEOMETRIC_COLUMNS, private_run.cohorts_of(run, num_rounds=4)
  )
  found = private_run.assert_spent(run, None)
  assert flat.of(found.release).threshold_noise_multiplier == 7.0
  assert flat.of(found.release).update_noise_multiplier == 1.3
  private_run.assert_the_key_is_kept(run, *capfd.readouterr())


@pytest.fixture(scope="module")
def fed_avg(run_here):
  with _umask(0o077):
    return run_here("fed_avg", algorithm="fed_avg", epsilon=2.0, delta=None)


def test_dp_fed_avg(fed_avg):
  private_run.assert_nothing_of_the_cohorts(
    fed_avg, set(), private_run.cohorts_of(fed_avg, num_rounds=4)
  )
  found = private_run.assert_spent(fed_avg, 2.0)
  assert flat.of(found.release).threshold_noise_multiplier is None
  # One in 10^5 or less, as nobody has chosen.
  assert found.claim["delta"] == accounting.default_delta(private_run.POPULATION) == 1e-5
  private_run.assert_the_key_is_kept(fed_avg)


def test_the_primal_dual_threshold(run_here, capsys):
  run = run_here("primal_dual", threshold="primal_dual", theta=0.5, epsilon=6.0)
  rows = private_run.assert_nothing_of_the_cohorts(
    run, private_run.GEOMETRIC_COLUMNS, private_run.cohorts_of(run, num_rounds=4)
  )
  assert rows[1]["threshold"] == "0.0"  # All train at first.
  found = private_run.assert_spent(run, 6.0)
  assert flat.of(found.release).threshold_kind == "primal_dual"
  assert account.run(["audit", str(run)]) == 0, capsys.readouterr()
  assert "a one-bit count of losses" in capsys.readouterr().out


# Little noise: the least divisor, two standard deviations of it, is far below the sum of shares.
_WEIGHTED = {
  "q_fed_avg_q_1_epsilon_6": dict(algorithm="q_fed_avg", q=1.0, epsilon=6.0),
  "tilted_erm_t_0.2_distributed_update_z_0.5": dict(
    algorithm="tilted_erm",
    temperature=0.2,
    update_sum="distributed",
    update_noise_multiplier=0.5,
  ),
  "prop_fair_M_5_update_z_0.3": dict(
    algorithm="prop_fair", utility_bound=5.0, update_noise_multiplier=0.3
  ),
  "prop_fair_M_5_k_0.5_update_z_5": dict(
    algorithm="prop_fair", utility_bound=5.0, update_noise_multiplier=5.0, share_weight=0.5
  ),
  "semi_vred_beta_2_epsilon_6": dict(algorithm="semi_vred", beta=2.0, epsilon=6.0),
  "gifair_lambda_1_z_1_update_z_0.5": dict(
    algorithm="gifair",
    fairness_strength=1.0,
    threshold_noise_multiplier=1.0,
    update_noise_multiplier=0.5,
  ),
}


@pytest.mark.parametrize("name", _WEIGHTED)
def test_averages_that_are_weighted_by_losses(run_here, fixed_key, capsys, name):
  values = _WEIGHTED[name]
  by_histogram = values["algorithm"] in ("semi_vred", "gifair")
  run = run_here(f"weighted_{name}", **fixed_key, **values)
  assert run.parent.name == name
  num_shares = private_run.ledger_of(run).release.num_shares
  assert by_histogram or num_shares == (20 if "distributed" in name else None)
  columns = {"estimated_share_sum", *(("estimated_cohort_size", "aborted") if by_histogram else ())}
  true_cohorts = private_run.cohorts_of(run, num_rounds=4, max_clients=num_shares)
  rows = private_run.assert_nothing_of_the_cohorts(run, columns, true_cohorts)
  divisors = {float(row["estimated_share_sum"]) for row in rows[1:]}
  if "share_weight" in values:  # The shares are lost in such noise: the least counts, 2 z / k.
    assert min(divisors) == pytest.approx(2.0 * 5.0 / 0.5)
  else:
    assert len(divisors) > 1
  release = flat.of(private_run.assert_spent(run, values.get("epsilon")).release)
  assert release.weighted_updates == (not by_histogram)
  if by_histogram:
    assert release.threshold_kind == "tree" and release.tree is not None
  else:
    assert release.threshold_noise_multiplier is None
  if "distributed" in name:
    assert release.update_sum.num_entries == private_run.NUM_PARAMETERS + 1
  assert account.run(["audit", str(run)]) == 0, capsys.readouterr()
  said = "a histogram of losses" if by_histogram else "of these weights"
  assert said in capsys.readouterr().out


def test_another_run_of_the_same_flags_and_seed_has_other_noise_and_cohorts(run_here, fed_avg):
  other = run_here("fed_avg_again", algorithm="fed_avg", epsilon=2.0, delta=None)
  assert private_run.key_of(other) != private_run.key_of(fed_avg)
  assert private_run.cohorts_of(other, num_rounds=4) != private_run.cohorts_of(
    fed_avg, num_rounds=4
  )
  # The seed says how both start.
  first, others = (commands.rows(run) for run in (fed_avg, other))
  assert first[0] == others[0] and first[2] != others[2]
  for name, array in private_run.weights_of(fed_avg).items():
    assert (
      np.mean(array != private_run.weights_of(other)[name]) > 0.95
    )  # By chance one in 10^8 is the same.
  # Most of what they have learned is noise, which has nothing in common.
  flat = [
    np.concatenate([a.ravel() for a in private_run.weights_of(run).values()])
    for run in (fed_avg, other)
  ]
  assert abs(np.corrcoef(flat)[0, 1]) < 0.5


def test_cohorts_of_fixed_size(run_here):
  run = run_here("fixed", algorithm="fed_avg", epsilon=9.0, sampling="fixed_size")
  sample = cohorts.build_sampler(
    kinds.FixedSize(size=8), private_run.client_ids(), private_run.key_of(run)
  )
  private_run.assert_nothing_of_the_cohorts(run, set(), [sample(r) for r in range(1, 5)])
  found = private_run.assert_spent(run, 9.0)
  assert "removed" in found.release.neighboring_relation
