"""What follows from the flags of a private run, before it begins, and which flags are refused."""

from helpers import flat
from helpers import private_run
import numpy as np
import pytest

from privacy.settings import command_line
import tasks
from tff_superquantile.experiments import train
from tff_superquantile.experiments.config import flags
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run import accounts
from tff_superquantile.experiments.run import build
from tff_superquantile.experiments.run import private as private_runs

# Flags besides those of a small run, which a private one has --epsilon=6 with, and its sentence.
_PRIVATE = r"""
secure threshold=geometric | --secure with --threshold=geometric, for
secure threshold=exact | --threshold=exact .* tree, geometric
secure update_sum=central | --secure with --update_sum=central, for
secure clip_norm=adaptive | --secure with --clip_norm=adaptive, for
secure sampling=spaced | --secure with --sampling=spaced, for
secure algorithm=fed_avg clip_norm=adaptive | --secure with --clip_norm=adaptive, .*; leave out one
update_noise_multiplier=1 | --epsilon and --update_noise_multiplier
threshold_noise_multiplier=1 | --epsilon and --threshold_noise_multiplier
threshold=exact | --threshold=exact .* tree, geometric
client_weighting=num_examples | num_examples in a private run; .*uniform
clip_norm= | Found no --clip_norm in a private run; give one
clip_norm=0 | --clip_norm = 0\.0
clip_norm=1e300 | --clip_norm = 1e\+300
clip_norm=adaptive update_sum=distributed | --update_sum=distributed, .* give a number
clip_quantile=0.5 | --clip_quantile=0.5 with a --clip_norm that does not adapt; it belongs
clip_norm=adaptive clip_count_noise_multiplier=9 | --epsilon and --clip_count_noise_multiplier
epsilon= algorithm=fed_avg update_noise_multiplier=1 clip_norm=adaptive | and no --epsilon
epsilon=-1 | --epsilon = -1.0
epsilon=nan | --epsilon = nan
contacted_clients=9 | --contacted_clients=9 .*=complement; .*private_coin
threshold=tree noise_shares=helpers contacted_clients=9 | =helpers; .*private_coin
threshold=tree noise_shares=private_coin | private_coin without --contacted_clients; expected
noise_shares=helpers | helpers in a run whose noise the server makes
algorithm=fed_avg noise_shares=private_coin contacted_clients=9 | whose noise the server makes
threshold=tree noise_shares=helpers sampling=fixed_size | helpers with .*=fixed_size, .* use poisson
update_sum=distributed noise_shares=private_coin contacted_clients=9 sampling=fixed_size | poisson
clip_unit=gradient learning_rate_decay=0.5 | --clip_unit=gradient .* --clip_unit=update
epsilon= update_noise_multiplier=1 | no --threshold_noise_multiplier
epsilon= update_noise_multiplier=1 threshold_noise_multiplier=9 rho_ratio=1 | belongs to --epsilon
threshold=tree algorithm=fed_avg | --threshold=tree with --algorithm=fed_avg
theta=1 rho_ratio=0.5 | --rho_ratio=0.5 .* without a threshold
smoothing=0.3 | --smoothing=0.3
threshold=primal_dual bands=3 | --bands=3 with --sampling=poisson
threshold=primal_dual sampling=cyclic accounting=pld | whose rounds are one Gaussian mechanism
threshold=tree sampling=cyclic | --threshold=tree with --sampling=cyclic
threshold=primal_dual sampling=cyclic update_sum=distributed | --update_sum=distributed with
threshold=primal_dual sampling=spaced | --sampling=spaced without --separation; expected a value
threshold=primal_dual separation=3 | --separation
"""
_OPEN = r"""
secure | --secure in a run that is not private; give --epsilon
delta=0.001 | --delta=0.001 .* not private
rho_ratio=0.1 | --rho_ratio=0.1 .* not private
clip_norm=0.1 | --clip_norm=0.1 .* not private
clip_norm=adaptive | --clip_norm=adaptive .* not private
clip_quantile=0.5 | --clip_quantile=0.5 .* not private
contacted_clients=9 | --contacted_clients=9 .* not private
noise_shares=helpers | --noise_shares=helpers .* not private
relation=replace_one | --relation=replace_one .* not private
accounting=rdp | --accounting=rdp .* not private
noise_key_file=key | --noise_key_file=key .* not private
update_sum=distributed | --update_sum=distributed
threshold=tree threshold_noise_multiplier=1 sampling=poisson | --sampling=poisson .* budget
"""
# What needs the number of clients, or the process, to be refused.
_NUMBERS = r"""
epsilon=1e-3 delta=1e-9 | epsilon = 0.001, which no noise reaches
epsilon=1e9 | epsilon = 1e\+09, which no noise is little enough
delta=0 | delta = 0
delta=1 | delta = 1
threshold=tree num_bins=12 | num_bins = 12; .* power of two
threshold=tree num_bins=1099511627776 | --num_bins=1099511627776; expected at most 65536
threshold=tree noise_shares=private_coin contacted_clients=7 | contacted = 7 with .* = 8 and .* = 30
threshold=tree noise_shares=private_coin contacted_clients=31 | contacted = 31 with .* = 30
clients_per_round=31 | --clients_per_round=31 with 30 training clients
theta=0 | tail fraction
theta=1.5 | tail fraction
epsilon= update_sum=distributed algorithm=fed_avg update_noise_multiplier=1e6 | a smaller noise mult
threshold=primal_dual sampling=cyclic bands=5 | --bands=5 with 4 rounds; expected 1 to 4
threshold=primal_dual sampling=spaced separation=4 | expected 1 to 3
"""


def _refusals(table, **usual):
  """(values of flags, words of the sentence) of each line."""
  for line in table.strip().splitlines():
    flags, _, words = line.partition(" | ")
    values = dict(usual)
    for name, is_given, text in (flag.partition("=") for flag in flags.split()):
      kept = run_config.flags()[name].parse if is_given else lambda _: True
      values[name] = kept(text) if text or not is_given else None
    yield pytest.param(values, words, id=flags)


@pytest.mark.parametrize(
  "values, words",
  [*_refusals(_PRIVATE, epsilon=6.0), *_refusals(_OPEN, delta=None, clip_norm=None)],
)
def test_bad_flags_are_refused(values, words):
  with pytest.raises(ValueError, match=words):
    build.resolve(private_run.config(**values), tasks.get_task("synthetic"))


@pytest.mark.parametrize("values, words", _refusals(_NUMBERS, epsilon=6.0))
def test_bad_numbers_are_refused_before_anything_is_written(run_here, lab, values, words):
  with pytest.raises(ValueError, match=words):
    run_here("refused_here", run_name="bad", **values)
  assert not (lab.folder / "refused_here/synthetic/bad").exists()


# What follows from the flags.


def _noise(config):
  return config.privacy.noise_multipliers(config.method.threshold)


@pytest.mark.parametrize("threshold", ["tree", "primal_dual"])
def test_a_run_repeats_by_its_own_flags_and_its_noise_follows_anew(threshold, tmp_path, capsys):
  task, path = tasks.get_task("synthetic"), tmp_path / "flags.txt"

  def calibrated(config):
    resolved = build.resolve(config, task)
    of_run = (private_run.POPULATION, private_run.NUM_PARAMETERS, {})
    return private_runs.calibrate(resolved, *of_run)[0]

  def asked(*more):
    return flags.config(command_line.parse(train, [f"--flagfile={path}", *more]))

  first = calibrated(private_run.config(epsilon=3.0, threshold=threshold, clip_norm="adaptive"))
  path.write_text("\n".join(first.to_arguments()))
  assert len(_noise(first)) == 3 and None not in _noise(first).values()
  assert set(_noise(asked()).values()) == {None}
  said = capsys.readouterr().err
  assert said.startswith("Note: --clip_count_noise_multiplier, --") and "from --epsilon" in said
  assert calibrated(asked()) == first
  longer = calibrated(asked("--num_rounds=40"))
  assert all(_noise(longer)[n] > z for n, z in _noise(first).items())
  # A command's own noise is asked for, and that of a file without a budget, too.
  with pytest.raises(ValueError, match="^Found --epsilon and --update_noise_multiplier; the noise"):
    calibrated(asked("--update_noise_multiplier=1"))
  capsys.readouterr()
  lines = [line for line in first.to_arguments() if not line.startswith(("--epsilon", "--rho_"))]
  path.write_text("\n".join(lines))
  assert _noise(asked()) == _noise(first) and not capsys.readouterr().err


@pytest.mark.parametrize("num_parameters", [private_run.NUM_PARAMETERS, 10**6])
def test_the_budget_is_divided_by_the_modelled_error(num_parameters):
  task = tasks.get_task("synthetic")
  config = build.resolve(private_run.config(epsilon=3.0, clients_per_round=25), task)
  found, _ = private_runs.calibrate(config, private_run.POPULATION, num_parameters, {})
  z_q, z_w = _noise(found).values()
  ratio = found.privacy.rho_ratio
  assert (z_w / z_q) ** 2 == pytest.approx(ratio)
  # By hand: of 2 A z_q^2 + d z_w^2, given z_q^-2 + z_w^-2, the least; or A z_q^2 = (m / 10)^2.
  one_client = 0.12 / (2.0 - 0.12) / 4.0
  grid = np.exp(np.linspace(np.log(1e-3), 0.0, 200_001))
  error = 2.0 * one_client * (1.0 + grid) / grid + num_parameters * (1.0 + grid)
  z = (z_q**-2 + z_w**-2) ** -0.5
  far_off = one_client * z**2 * (1.0 + grid) / grid > 2.5**2
  best = grid[np.argmin(np.where(far_off, np.inf, error))]
  assert ratio == pytest.approx(best, rel=0.02)
  # What the user asks for is kept.
  config = run_config.with_values(config, rho_ratio=0.25)
  found, _ = private_runs.calibrate(config, private_run.POPULATION, num_parameters, {})
  assert found.privacy.rho_ratio == 0.25
  z_q, z_w = _noise(found).values()
  assert (z_w / z_q) ** 2 == pytest.approx(0.25)


def test_a_run_that_goes_on_keeps_its_noise(tmp_path):
  task = tasks.get_task("synthetic")
  config = build.resolve(private_run.config(epsilon=3.0), task)
  first, release = private_runs.calibrate(
    config, private_run.POPULATION, private_run.NUM_PARAMETERS, {}
  )
  earlier = first.to_flags()
  assert private_runs.calibrate(
    config, private_run.POPULATION, private_run.NUM_PARAMETERS, earlier
  ) == (first, release)
  # Noise that somebody has lowered in flags.txt is past the budget.
  earlier["update_noise_multiplier"] = str(first.privacy.update_noise_multiplier / 2)
  lowered, release = private_runs.calibrate(
    config, private_run.POPULATION, private_run.NUM_PARAMETERS, earlier
  )
  with pytest.raises(ValueError, match="past --epsilon=3"):
    accounts.Account(lowered, release, tmp_path, private_run.NUM_PARAMETERS)


@pytest.mark.parametrize(
  "flags, averaged, warns",
  [
    (dict(algorithm="fed_avg", clip_norm="adaptive"), 8, False),
    (dict(theta=0.1, clip_norm="adaptive"), 0.8, True),
    # A fixed norm follows nothing.
    (dict(theta=0.1, clip_norm=1.0), 0.8, False),
    (dict(algorithm="semi_vred", beta=10.0, clip_norm=1.0), 8, False),
  ],
)
def test_says_how_long_the_noise_is_and_warns_where_a_norm_may_follow_it(
  tmp_path, flags, averaged, warns
):
  config = build.resolve(
    private_run.config(**{"epsilon": 3.0, **flags}), tasks.get_task("synthetic")
  )
  config, release = private_runs.calibrate(
    config, private_run.POPULATION, private_run.NUM_PARAMETERS, {}
  )
  # As many weights as make the noise of FedAvg 6 clip norms long, and that of a tenth 60.
  num_parameters = round((6 * 8 / flat.of(release).update_noise_multiplier) ** 2)
  text = accounts.Account(config, release, tmp_path, num_parameters).describe()
  bound = "at least" if flags.get("algorithm") == "semi_vred" else "about"
  assert f"is {bound} {6 * 8 / averaged:.2g} times as long" in text
  assert ("a clip norm that adapts" in text) == warns


def test_the_noise_of_weighted_averages_is_beside_the_least_divisor(tmp_path):
  values = dict(algorithm="q_fed_avg", q=1.0, epsilon=3.0, clip_norm=1.0, share_weight=0.01)
  config = build.resolve(private_run.config(**values), tasks.get_task("synthetic"))
  config, release = private_runs.calibrate(
    config, private_run.POPULATION, private_run.NUM_PARAMETERS, {}
  )
  assert 2 * flat.of(release).update_noise_multiplier / 0.01 > config.cohort.size
  # z sqrt(d) / (2 z / k) = k sqrt(d) / 2, whatever the noise.
  text = accounts.Account(config, release, tmp_path, 10_000).describe()
  assert "is at least 0.5 times as long" in text
