"""Private runs: what they leave and leave out, their ledger, how they end and what they refuse."""

import csv
import json
import re
import shutil
import signal

from absl import flags
import commands
import dp_accounting
import numpy as np
import pytest
import tensorflow as tf

from privacy import accounting
from privacy import ledger
import tasks
from tff_superquantile.experiments import private_runs
from tff_superquantile.experiments import runner
from tff_superquantile.experiments import train_flags
from tff_superquantile.simulation import cohorts

_POPULATION, _NUM_ROUNDS, _EPSILON, _DELTA = 30, 24, 6.0, 1e-2
_FLAGS = (
  *(f"--epsilon={_EPSILON}", f"--delta={_DELTA}", "--clip_norm=0.5", "--clip_unit=gradient"),
  *(f"--num_rounds={_NUM_ROUNDS}", "--rounds_per_evaluation=8", "--run_name=mine"),
)
_RUN = "synthetic/mine/seed_0"
# What rounds.csv holds of the test clients, who are outside of the guarantee.
_TEST_COLUMNS = {
  f"test_{quantity}_{name}"
  for quantity in ("error", "loss")
  for name in ("mean", "p90", "superquantile_90")
}
_GEOMETRIC_COLUMNS = {"threshold", "estimated_tail_size"}
_TREE_COLUMNS = {"threshold", "estimated_cohort_size", "estimated_tail_size", "aborted"}


def _config(**values):
  """Values of all flags: the defaults, those of a small task, and `values`."""
  defaults = {name: flags.FLAGS[name].default for name in train_flags.names()}
  small = dict(num_train_clients=_POPULATION, num_test_clients=15, clients_per_round=8)
  private = dict(delta=_DELTA, clip_norm=0.5, num_rounds=4, rounds_per_evaluation=2)
  return {**defaults, **small, **private, **values}


@pytest.fixture(scope="module")
def run_here(lab):
  """Runs the train command's function in this process, which has started TensorFlow before."""

  def run(output_dir, **values):
    values = dict(output_dir=str(lab.folder / output_dir), cache_dir=str(lab.cache_dir), **values)
    return runner.run(_config(**values))

  return run


@pytest.fixture(scope="module")
def private(lab):
  """(result, folder) of a private run that nothing disturbed."""
  result = lab.train("--output_dir=whole", *_FLAGS)
  assert result.code == 0, result.err
  return result, lab.folder / "whole" / _RUN


@pytest.fixture(scope="module")
def killed(lab, private):
  """A run as it was when it was killed."""
  command = lab.start("train", "--output_dir=killed", "--seconds_per_checkpoint=0", *_FLAGS)
  run = lab.folder / "killed" / _RUN
  command.wait_until(lambda: commands.num_rows(run) > 5)
  result = command.end_by(signal.SIGKILL)
  assert result.code == -signal.SIGKILL
  return run


@pytest.fixture(scope="module")
def killed_copy(lab, killed):
  """The killed run, before another test resumes it."""
  shutil.copytree(lab.folder / "killed", lab.folder / "killed_copy")
  return lab.folder / "killed_copy" / _RUN


def _flags_of(run):
  lines = (run / "flags.txt").read_text().splitlines()
  return dict(line[2:].split("=", 1) for line in lines)


def _ledger(run):
  return ledger.Ledger.from_json((run / "privacy.json").read_text())


def _cohorts(clients_per_round=8, num_rounds=_NUM_ROUNDS, build=cohorts.build_poisson_sampler):
  """The true cohorts, which nobody may learn."""
  client_ids = [f"train_{i:04d}" for i in range(_POPULATION)]
  sample = build(client_ids, clients_per_round, 0)
  return [sample(round_num) for round_num in range(1, num_rounds + 1)]


def _assert_nothing_of_the_cohorts(run, columns, true_cohorts):
  """Reads everything that a private run has left."""
  found = {path.name for path in run.iterdir()}
  assert found == {
    *("flags.txt", "manifest.json", "privacy.json", "rounds.csv", "metrics.json", "lock"),
    *("validation_clients.csv", "test_clients.csv", "weights.npz", "checkpoints"),
  }
  assert (run / "lock").read_bytes() == b""
  contents = commands.contents(run)
  for name, content in contents.items():
    if name.startswith("checkpoints"):
      # What TensorFlow saves a state as, and nothing beside it.
      pattern = (
        r"checkpoints/program_state_\d+/(saved_model\.pb|fingerprint\.pb|"
        r"variables/variables\.(index|data-\d+-of-\d+))"
      )
      assert re.fullmatch(pattern, name), name
    assert b"train_0" not in content, name  # The ids of the clients.
  for name in ("validation_clients.csv", "test_clients.csv"):
    with open(run / name, newline="") as file:
      rows = list(csv.reader(file))
    assert rows[0] == ["client_id", "num_examples", "loss", "error"]
    assert {row[0].rpartition("_")[0] for row in rows[1:]} == {name.partition("_")[0]}
  assert set(json.loads(contents["metrics.json"])) == {"validation", "test"}
  manifest = json.loads(contents["manifest.json"])
  assert set(manifest) == {
    *("seed", "python", "versions", "machine", "git_revision", "started", "finished"),
  }
  assert set(_flags_of(run)) <= set(train_flags.names())

  rows = list(csv.DictReader(contents["rounds.csv"].decode().splitlines()))
  assert set(rows[0]) == {"round", "epsilon", *columns, *_TEST_COLUMNS}
  assert [int(row["round"]) for row in rows] == list(range(len(true_cohorts) + 1))
  assert {name for name, text in rows[0].items() if text} == {"round", *_TEST_COLUMNS}
  sizes = [len(cohort) for cohort in true_cohorts]
  if len(set(sizes)) > 1:
    for name in set(rows[0]) - {"round", *_TEST_COLUMNS}:
      assert [float(row[name]) for row in rows[1:]] != sizes
  return rows


# What a run leaves.


def test_a_private_run_leaves_nothing_of_its_cohorts(private):
  result, run = private
  rows = _assert_nothing_of_the_cohorts(run, _GEOMETRIC_COLUMNS, _cohorts())
  # The tail's size is what is expected of it, whatever the cohort.
  assert {float(row["estimated_tail_size"]) for row in rows[1:]} == {4.0}
  assert len({row["threshold"] for row in rows[1:]}) > _NUM_ROUNDS / 2
  # What it says.
  assert result.out.startswith(f"Private: {_NUM_ROUNDS} rounds cost epsilon")
  assert result.out.endswith(f"\nFinished: whole/{_RUN}\n")
  assert "epsilon=" in result.err
  for name in ("loss=", "tail=", "left out=", "s/round=", "train_"):
    assert name not in result.out + result.err


def test_a_private_run_leaves_no_events_with_their_times(private):
  _, run = private
  assert not (run / "tensorboard").exists()


def test_a_checkpoint_holds_the_model_the_threshold_and_counters(private):
  _, run = private
  (latest,) = (run / "checkpoints").glob(f"program_state_{_NUM_ROUNDS}")
  prefix = str(latest / "variables" / "variables")
  shapes = [
    tuple(shape) for name, shape in tf.train.list_variables(prefix) if "OBJECT_GRAPH" not in name
  ]
  large = sorted(shape for shape in shapes if np.prod(shape, dtype=int) > 1)
  assert large == [(10,), (20, 10)]  # Nothing with an entry for each client.
  assert len(shapes) < 25


def test_the_ledger_is_what_was_spent(private):
  _, run = private
  found, flag = _ledger(run), _flags_of(run)
  rows = commands.rows(run)
  assert found.rounds_done == found.num_rounds_planned == int(rows[-1]["round"]) == _NUM_ROUNDS
  assert found.claim == dict(epsilon=_EPSILON, delta=_DELTA)
  assert found.accounting == "rdp" and found.epsilon_server is None
  assert found.clip_norm == pytest.approx(0.1 * 0.5)  # Of the update.
  z_q, z_w = (float(flag[f"{name}_noise_multiplier"]) for name in ("threshold", "update"))
  assert (z_w / z_q) ** 2 == pytest.approx(0.01)
  release = accounting.Release(_POPULATION, 8, z_q, z_w, threshold_kind="geometric")
  assert found.release == release
  assert found.epsilon_spent == float(rows[-1]["epsilon"]) <= _EPSILON
  assert found.epsilon_spent > 0.99 * _EPSILON  # Nor was any of it wasted.
  for row in rows[1:]:
    round_num, event = int(row["round"]), []
    expected = accounting.epsilon(release, round_num, _DELTA).epsilon
    assert float(row["epsilon"]) == pytest.approx(expected, rel=1e-9)
    if round_num in (1, _NUM_ROUNDS):
      event = dp_accounting.ComposedDpEvent(
        [dp_accounting.GaussianDpEvent(z_q), dp_accounting.GaussianDpEvent(z_w)]
      )
      event = dp_accounting.PoissonSampledDpEvent(8 / 30, event)
      accountant = dp_accounting.rdp.RdpAccountant().compose(event, round_num)
      assert float(row["epsilon"]) == pytest.approx(accountant.get_epsilon(_DELTA), rel=1e-6)
  assert any("zero-out" in sentence or "removed" in sentence for sentence in found.guarantee)
  assert found.not_covered


# Runs that were interrupted, and what comes after the end.


def test_the_ledger_of_a_killed_run_is_never_behind_its_rounds(killed_copy):
  killed = killed_copy
  found = _ledger(killed)
  assert not (killed / "metrics.json").exists()
  assert found.rounds_done >= commands.num_rows(killed) - 1 > 3
  assert found.rounds_done < _NUM_ROUNDS
  assert found.epsilon_spent < found.claim["epsilon"]


def test_a_killed_run_ends_where_an_uninterrupted_one_does(killed, killed_copy, private, run_here):
  _, whole = private
  values = dict(
    epsilon=_EPSILON,
    clip_unit="gradient",
    num_rounds=_NUM_ROUNDS,
    rounds_per_evaluation=8,
    run_name="mine",
  )
  del killed_copy  # Made before it goes on.
  noise = [_flags_of(killed)[name] for name in private_runs.CALIBRATED]
  assert run_here("killed", **values) == killed
  commands.assert_same_results(killed, whole)
  for name in ("privacy.json", "rounds.csv", "test_clients.csv"):
    assert (killed / name).read_bytes() == (whole / name).read_bytes()
  assert noise == [_flags_of(killed)[name] for name in private_runs.CALIBRATED]
  _assert_nothing_of_the_cohorts(killed, _GEOMETRIC_COLUMNS, _cohorts())


# Values besides those of a small private run, and what the sentence holds.
_NOT_PRIVATE = dict(delta=None, clip_norm=None)
_BUDGET = dict(epsilon=6.0)
_NOISE = dict(update_noise_multiplier=1.0)
_TREE = dict(threshold="tree")
_BAD_FLAGS = (
  (dict(**_BUDGET, **_NOISE), "--epsilon and --update_noise_multiplier"),
  (dict(**_BUDGET, threshold_noise_multiplier=1.0), "--epsilon and --threshold_noise_multiplier"),
  (dict(**_BUDGET, threshold="exact"), "--threshold=exact .* tree, geometric"),
  (dict(**_BUDGET, threshold="reweighting"), "--threshold=reweighting .* tree, geometric"),
  (dict(**_BUDGET, client_weighting="num_examples"), "num_examples in a private run; .*uniform"),
  (dict(**_BUDGET, clip_norm=None), "Found no --clip_norm in"),
  (dict(**_BUDGET, clip_norm=0.0), "--clip_norm=0"),
  (dict(**_BUDGET, clip_norm=float("nan")), "--clip_norm=nan"),
  (dict(**_BUDGET, clip_norm=float("inf")), "--clip_norm=inf"),
  (dict(epsilon=0.0), "--epsilon = 0"),
  (dict(epsilon=-1.0), "--epsilon = -1"),
  (dict(epsilon=float("nan")), "--epsilon = nan"),
  (dict(_NOT_PRIVATE, delta=1e-3), "--delta=0.001 .* not private"),
  (dict(_NOT_PRIVATE, rho_ratio=0.1), "--rho_ratio=0.1 .* not private"),
  (dict(_NOT_PRIVATE, clip_norm=0.1), "--clip_norm=0.1 .* not private"),
  (dict(_NOT_PRIVATE, update_sum="distributed"), "--update_sum=distributed"),
  (
    dict(**_BUDGET, clip_unit="gradient", learning_rate_decay=0.5),
    "--clip_unit=gradient .* --clip_unit=update",
  ),
  (
    dict(_NOT_PRIVATE, **_TREE, threshold_noise_multiplier=1.0, sampling="poisson"),
    "--threshold=tree .* --sampling=poisson .* budget",
  ),
  (_NOISE, "no --threshold_noise_multiplier"),
  (dict(_NOISE, threshold_noise_multiplier=9.0, rho_ratio=1.0), "--rho_ratio without --epsilon"),
  (dict(update_noise_multiplier=0.0, algorithm="fed_avg"), "update_noise_multiplier = 0"),
  (dict(**_BUDGET, **_TREE, algorithm="fed_avg"), "--threshold=tree .* without a threshold"),
  (dict(**_BUDGET, theta=1.0, rho_ratio=0.5), "--rho_ratio=0.5 .* without a threshold"),
  (dict(**_BUDGET, smoothing=0.3), "--smoothing=0.3"),
)
# What needs the number of clients, or the process, to be refused.
_BAD_NUMBERS = (
  (dict(epsilon=1e-3, delta=1e-9), "epsilon = 0.001, which no noise reaches"),
  (dict(epsilon=1e9), r"epsilon = 1e\+09, which no noise is little enough"),
  (dict(**_BUDGET, delta=0.0), "delta = 0"),
  (dict(**_BUDGET, delta=1.0), "delta = 1"),
  (dict(**_BUDGET, rho_ratio=-1.0), "rho_ratio = -1"),
  (dict(**_BUDGET, **_TREE), "cohorts of 8 clients .* Take larger cohorts"),
  (dict(**_BUDGET, update_sum="distributed"), "cohorts of 8 clients .* Take larger cohorts"),
  (dict(**_BUDGET, **_TREE, clients_per_round=20, num_bins=12), "num_bins = 12; .* power of two"),
  (dict(**_BUDGET, clients_per_round=31), "31 of population = 30"),
  (dict(**_BUDGET, theta=0.0), "tail fraction"),
  (dict(**_BUDGET, theta=1.5), "tail fraction"),
  (dict(**_BUDGET, theta=float("nan")), "tail fraction"),
  (dict(**_BUDGET, max_loss=-1.0), "--max_loss=-1"),
)


@pytest.mark.parametrize("values,message", _BAD_FLAGS)
def test_bad_flags_are_refused(values, message):
  with pytest.raises(ValueError, match=message):
    runner.methods.resolve(_config(**values), tasks.get_task("synthetic"))


@pytest.mark.parametrize("values,message", _BAD_NUMBERS)
def test_bad_numbers_are_refused_before_anything_is_written(run_here, lab, values, message):
  with pytest.raises(ValueError, match=message):
    run_here("refused_here", run_name="bad", **values)
  assert not (lab.folder / "refused_here/synthetic/bad").exists()


_WITH_BUDGET = ("--output_dir=refused", "--num_rounds=4", "--epsilon=6", "--clip_norm=0.5")
# Arguments of commands, and what their sentence holds.
_REFUSED = (
  ((*_WITH_BUDGET, "--update_noise_multiplier=1"), ("--epsilon and --update_noise_multiplier",)),
  ((*_WITH_BUDGET, "--threshold=exact"), ("--threshold=exact", "geometric")),
  ((*_WITH_BUDGET, "--epsilon=1e-3", "--delta=1e-9"), ("epsilon = 0.001", "no noise reaches")),
  (
    ("--output_dir=whole", *_FLAGS, f"--num_rounds={_NUM_ROUNDS + 1}"),
    (f"--num_rounds={_NUM_ROUNDS} there, {_NUM_ROUNDS + 1} here",),
  ),
  (
    ("--output_dir=killed_copy", *_FLAGS, f"--num_rounds={_NUM_ROUNDS + 1}"),
    (f"--num_rounds={_NUM_ROUNDS} there, {_NUM_ROUNDS + 1} here",),
  ),
  (("--output_dir=whole", *_FLAGS, "--epsilon=60"), ("--epsilon=6.0 there, 60.0 here",)),
  (("--output_dir=whole", *_FLAGS, "--delta=0.02"), ("--delta=0.01 there, 0.02 here",)),
)


@pytest.fixture(scope="module")
def ends(lab, private, killed_copy):
  """How commands end that compute nothing, and what the runs held before."""
  runs = (private[1], killed_copy)
  before = [commands.contents(run) for run in runs]
  arguments = [*(list(args) for args, _ in _REFUSED), ["--output_dir=whole", *_FLAGS]]
  results = lab.train_without_tensorflow(arguments)
  return results, before, [commands.contents(run) for run in runs]


@pytest.mark.parametrize("index", range(len(_REFUSED)))
def test_commands_are_refused_with_a_sentence(ends, index):
  ends[0][index].assert_refused(*_REFUSED[index][1])


def test_refused_commands_write_nothing(ends, lab):
  results, before, after = ends
  assert results[-1] == commands.Result(0, f"Finished before: whole/{_RUN}\n", "")
  assert before == after
  assert not commands.contents(lab.folder / "refused")


# Other private runs.


def _release_of_flags(run):
  """What the flags say that a round releases, from the parts of `privacy` alone."""
  flag = _flags_of(run)
  return accounting.Release(
    population=_POPULATION,
    clients_per_round=int(flag["clients_per_round"]),
    threshold_noise_multiplier=flag.get("threshold_noise_multiplier"),
    update_noise_multiplier=flag["update_noise_multiplier"],
    sampling=flag["sampling"],
    threshold_kind=flag.get("threshold", accounting.TREE),
  )


def _assert_spent(run, epsilon):
  """The ledger's number of rounds, noise and cost are those of the rounds and of the flags."""
  found, rows = _ledger(run), commands.rows(run)
  assert found.claim["epsilon"] == epsilon
  assert found.rounds_done == int(rows[-1]["round"]) == 4
  assert found.epsilon_spent == float(rows[-1]["epsilon"])
  release = _release_of_flags(run)
  gaussian = accounting.epsilon(release, 4, found.claim["delta"]).epsilon
  # Noise from the clients costs a little more.
  most = 1.02 if found.release.cohort_limits else 1.0 + 1e-9
  assert 1.0 - 1e-9 <= found.epsilon_spent / gaussian <= most
  assert epsilon is None or found.epsilon_spent <= epsilon
  return found


def test_noise_multipliers_in_place_of_a_budget(run_here):
  run = run_here("multipliers", update_noise_multiplier=1.3, threshold_noise_multiplier=7.0)
  assert run.parent.name == "superquantile_theta_0.5_z_7_update_z_1.3"
  _assert_nothing_of_the_cohorts(run, _GEOMETRIC_COLUMNS, _cohorts(num_rounds=4))
  found = _assert_spent(run, None)
  assert found.release.threshold_noise_multiplier == 7.0
  assert found.release.update_noise_multiplier == 1.3


def test_dp_fed_avg(run_here):
  run = run_here("fed_avg", algorithm="fed_avg", epsilon=2.0, delta=None)
  _assert_nothing_of_the_cohorts(run, set(), _cohorts(num_rounds=4))
  found = _assert_spent(run, 2.0)
  assert found.release.threshold_noise_multiplier is None
  # One in 10^5 or less, as nobody has chosen.
  assert found.claim["delta"] == accounting.default_delta(_POPULATION) == 1e-5


def test_distributed_noise_with_a_tree(run_here):
  run = run_here(
    "distributed",
    epsilon=6.0,
    threshold="tree",
    update_sum="distributed",
    num_bins=16,
    clients_per_round=20,
  )
  true_cohorts = _cohorts(20, num_rounds=4)
  rows = _assert_nothing_of_the_cohorts(run, _TREE_COLUMNS, true_cohorts)
  sizes = [len(cohort) for cohort in true_cohorts]
  found = _assert_spent(run, 6.0)
  tree, update_sum = found.release.tree, found.release.update_sum
  limits = accounting.cohort_bounds(_POPULATION, 20, 4, _DELTA)
  assert (tree.min_clients, tree.max_clients) == limits == found.release.cohort_limits
  assert (update_sum.min_clients, update_sum.max_clients) == limits
  assert (update_sum.clip_norm, update_sum.num_entries) == (0.5, 20 * 10 + 10)
  assert update_sum.noise_multiplier == found.release.update_noise_multiplier
  assert [row["aborted"] for row in rows[1:]] == ["0"] * 4
  assert all(float(row["estimated_cohort_size"]) != n for row, n in zip(rows[1:], sizes))
  # The server sees noisy sums alone.
  assert found.epsilon_server is not None and found.epsilon_server >= found.epsilon_spent
  assert any("share of the noise" in sentence for sentence in found.guarantee)


def test_cohorts_of_fixed_size(run_here):
  run = run_here("fixed", algorithm="fed_avg", epsilon=9.0, sampling="fixed_size")
  true_cohorts = _cohorts(num_rounds=4, build=cohorts.build_fixed_size_sampler)
  _assert_nothing_of_the_cohorts(run, set(), true_cohorts)
  found = _assert_spent(run, 9.0)
  assert found.release.neighboring_relation == "replace one client"


def test_what_a_private_run_has_by_default():
  task = tasks.get_task("synthetic")
  geometric = runner.methods.resolve(_config(epsilon=3.0), task)
  tree = runner.methods.resolve(_config(epsilon=3.0, threshold="tree"), task)
  fed_avg = runner.methods.resolve(_config(epsilon=3.0, algorithm="fed_avg"), task)
  names = ("threshold", "rho_ratio", "sampling", "client_weighting", "update_sum")
  assert [geometric[name] for name in names] == [
    *("geometric", 0.01, "poisson", "uniform", "central"),
  ]
  assert (tree["threshold"], tree["rho_ratio"]) == ("tree", 0.5)
  assert (fed_avg["threshold"], fed_avg["rho_ratio"]) == (None, None)


def test_a_run_that_goes_on_keeps_its_noise(tmp_path):
  task = tasks.get_task("synthetic")
  config = runner.methods.resolve(_config(epsilon=3.0), task)
  first = private_runs.calibrate(config, _POPULATION, {})
  earlier = {name: str(value) for name, value in first.items() if value is not None}
  assert private_runs.calibrate(config, _POPULATION, earlier) == first
  # Noise that somebody has lowered in flags.txt is past the budget.
  earlier["update_noise_multiplier"] = str(first["update_noise_multiplier"] / 2)
  lowered = private_runs.calibrate(config, _POPULATION, earlier)
  release = private_runs.build_release(lowered, _POPULATION, 210)
  with pytest.raises(ValueError, match="past --epsilon=3"):
    private_runs.Account(lowered, release, tmp_path)
