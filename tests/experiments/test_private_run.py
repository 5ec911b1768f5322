"""Private runs: what they leave and leave out, their ledger, how they end and what they refuse."""

import base64
import contextlib
import csv
import json
import os
import re
import shutil
import signal
import stat

import dp_accounting
from helpers import commands
from helpers import flat
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from privacy import account
from privacy import accounting
from privacy import cohorts as kinds
from privacy import ledger
from privacy import statements
from privacy.noise import shares
import tasks
from tff_superquantile import noise_source
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run import accounts
from tff_superquantile.experiments.run import build
from tff_superquantile.experiments.run import noise_key
from tff_superquantile.experiments.run import private as private_runs
from tff_superquantile.experiments.run import runner
from tff_superquantile.experiments.run import selection
from tff_superquantile.simulation import cohorts
from tff_superquantile.simulation import seeds

_POPULATION, _NUM_ROUNDS, _EPSILON, _DELTA = 30, 24, 6.0, 1e-2
# The values of flags of a run, and with those of all runs here as arguments.
_RESUMED = dict(
  epsilon=_EPSILON,
  clip_unit="gradient",
  num_rounds=_NUM_ROUNDS,
  rounds_per_evaluation=8,
  run_name="mine",
)
_FLAGS = [f"--{n}={v}" for n, v in dict(_RESUMED, delta=_DELTA, clip_norm=0.5).items()]
_RUN = "synthetic/mine/seed_0"
_KEY = "checkpoints/noise_key"
_NUM_PARAMETERS = 20 * 10 + 10
# What rounds.csv holds of the test clients, who are outside of the guarantee.
_TEST_COLUMNS = {
  f"test_{quantity}_{name}"
  for quantity in ("error", "loss")
  for name in ("mean", "p90", "superquantile_90")
}
_GEOMETRIC_COLUMNS = {"threshold", "estimated_tail_size"}
_TREE_COLUMNS = {"threshold", "estimated_cohort_size", "estimated_tail_size", "aborted"}


def _config(**values):
  """A small run with `values`."""
  small = dict(num_train_clients=_POPULATION, num_test_clients=15, clients_per_round=8)
  private = dict(delta=_DELTA, clip_norm=0.5, num_rounds=4, rounds_per_evaluation=2)
  return run_config.of(**{**small, **private, **values})


@pytest.fixture(scope="module")
def run_here(lab):
  """Runs the train command's function in this process, which has started TensorFlow before."""
  return lambda out, **values: runner.train(_config(**lab.places(out), **values)).path


@pytest.fixture(scope="module")
def fixed_key(lab):
  """Flags of runs whose numbers are looked at: cohorts and noise are the same in all tests."""
  path = lab.folder / "fixed_key"
  path.write_text("8f3b61d2c07a94e5" + "1d6e50b7f29c8a43")
  return dict(noise_key_file=str(path))


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
  key = f"--noise_key_file={private[1] / _KEY}"
  command = lab.held("train", key, *flags, rows=5, forked=True)
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


def _flags_of(run):
  lines = (run / "flags.txt").read_text().splitlines()
  return dict(line[2:].split("=", 1) for line in lines)


def _ledger(run):
  return ledger.Ledger.from_json((run / "privacy.json").read_text())


def _key(run):
  return bytes.fromhex((run / _KEY).read_text())


def _client_ids():
  return [f"train_{i:04d}" for i in range(_POPULATION)]


def _cohorts(run, clients_per_round=8, num_rounds=_NUM_ROUNDS, max_clients=None):
  """The true cohorts, which nobody may learn."""
  sample = cohorts.build_sampler(
    kinds.Poisson(size=clients_per_round), _client_ids(), _key(run), max_clients=max_clients
  )
  return [sample(round_num) for round_num in range(1, num_rounds + 1)]


def _texts_of(number, num_bytes):
  """How a number of so many bytes may be written, for people or not."""
  found = {number, number.hex().encode(), number.hex().upper().encode(), base64.b64encode(number)}
  for start in range(0, len(number), num_bytes):
    part = number[start : start + num_bytes]
    found |= {part, part.hex().encode()}
    for order in ("big", "little"):
      for signed in (False, True):
        value = int.from_bytes(part, order, signed=signed)
        found |= {str(value).encode(), f"{value:x}".encode()}
  return found


def _derived(key):
  """What follows from a key: the first states of the server's noise and all clients' seeds."""
  purposes = ("updates", "sum of updates", "histogram", "geometric threshold")
  purposes += ("primal-dual threshold",)
  found = [noise_source.derive_key(key, purpose) for purpose in purposes]
  for purpose in purposes:
    source = noise_source.NoiseSource(key, purpose)
    found.append(source.draw(source.initial_state())[0].numpy().tobytes())
  for round_num in range(1, _NUM_ROUNDS + 1):
    found += [seeds.client_seed(key, round_num, c).tobytes() for c in _client_ids()]
  return found


def _assert_the_key_is_kept(run, *said):
  """The key is where it belongs and nowhere else, nor is anything that follows from it."""
  mode = {True: 0o700, False: 0o600}
  checkpoints = run / "checkpoints"
  for path in (checkpoints, *checkpoints.rglob("*")):
    assert stat.S_IMODE(path.stat().st_mode) == mode[path.is_dir()], path
  key = _key(run)
  assert (run / _KEY).read_bytes() == key.hex().encode() + b"\n"
  contents = {f"said {i}": text.encode() for i, text in enumerate(said)}
  contents.update(commands.contents(run))
  del contents[_KEY]
  needles = _texts_of(key, 16) | _texts_of(key, 8)
  for name, content in contents.items():
    assert not [needle for needle in needles if needle in content], name
  # Beside the key there is the state of the noise, as the key is no secret there any more.
  public = b"\n".join(c for name, c in contents.items() if not name.startswith("checkpoints/"))
  for derived in _derived(key):
    for needle in _texts_of(derived, 8):
      assert needle not in public


def _assert_nothing_of_the_cohorts(run, columns, true_cohorts):
  """Reads everything that a private run has left."""
  found = {path.name for path in run.iterdir()}
  assert found == {
    *("flags.txt", "manifest.json", "privacy.json", "rounds.csv", "metrics.json", "lock"),
    *("validation_clients.csv", "test_clients.csv", "weights.npz", "checkpoints", "clients"),
  }
  assert (run / "lock").read_bytes() == b""
  contents = commands.contents(run)
  for name, content in contents.items():
    if name.startswith("checkpoints") and name != _KEY:
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
    assert rows[0] == [
      *("client_id", "num_examples", "loss", "error"),
      *("balanced_error", "ranking_error", "calibration_error"),
    ]
    assert {row[0].rpartition("_")[0] for row in rows[1:]} == {name.partition("_")[0]}
  evaluated = pd.read_parquet(run / "clients")
  assert set(evaluated["split"]) == {"test"}
  assert set(evaluated["client_id"].str.rpartition("_")[0]) == {"test"}
  # One time for all: differences would tell how long rounds took.
  times = {path.stat().st_mtime for path in (run / "clients").iterdir()}
  manifest = json.loads(contents["manifest.json"])
  assert times == {pd.Timestamp(manifest["started"]).timestamp()}
  assert set(json.loads(contents["metrics.json"])) == {"validation", "test"}
  assert set(manifest) == {
    *("seed", "python", "versions", "machine", "cpus", "git_revision", "started", "finished"),
    *(
      "num_clients",
      "relative_noise",
      "error",
      "data",
      "flags",
      "kept_round",
      "rounds_done",
      "commitments",
      "register",
    ),
  }
  assert manifest["data"] is None  # A digest of data would be one of the training clients.
  assert manifest["num_clients"]["train"] == _POPULATION
  assert set(_flags_of(run)) <= set(run_config.flags())

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
  rows = _assert_nothing_of_the_cohorts(run, _GEOMETRIC_COLUMNS, _cohorts(run))
  # The tail's size is what is expected of it, whatever the cohort.
  assert {float(row["estimated_tail_size"]) for row in rows[1:]} == {4.0}
  assert len({row["threshold"] for row in rows[1:]}) > _NUM_ROUNDS / 2
  # What it says.
  first = result.out.splitlines()[0]
  assert first.startswith(f"Private: {_NUM_ROUNDS} rounds cost epsilon")
  assert first.endswith(
    " Secure sums of noisy integers: none; the server makes the noise of counts and updates."
  )
  assert result.out.endswith(f"\nFinished: whole/{_RUN}\n")
  assert "epsilon=" in result.err
  for name in ("loss=", "tail=", "left out=", "s/round=", "train_"):
    assert name not in result.out + result.err


def test_the_key_of_a_private_run_is_in_its_file_alone(private):
  result, run = private
  _assert_the_key_is_kept(run, result.out, result.err)
  assert len(set(_key(run))) > 4  # Drawn, and not something that is easily guessed.


def test_a_checkpoint_holds_the_model_the_threshold_and_states_of_noise(private):
  _, run = private
  (latest,) = (run / "checkpoints").glob(f"program_state_{_NUM_ROUNDS}")
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
  return dp_accounting.rdp.RdpAccountant().compose(event, num_rounds).get_epsilon(_DELTA)


def _epsilon_by_pld(z_q, z_w, num_rounds):
  z = (z_q**-2 + z_w**-2) ** -0.5
  event = dp_accounting.PoissonSampledDpEvent(8 / 30, dp_accounting.GaussianDpEvent(z))
  accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-3)
  return accountant.compose(event, num_rounds).get_epsilon(_DELTA)


def test_the_ledger_is_what_was_spent(private):
  _, run = private
  found, flag = _ledger(run), _flags_of(run)
  rows = commands.rows(run)
  assert found.rounds_done == found.num_rounds_planned == int(rows[-1]["round"]) == _NUM_ROUNDS
  assert found.claim == dict(epsilon=_EPSILON, delta=_DELTA)
  assert found.accounting == "tightest" and found.epsilon_server is None
  assert found.clip_norm == pytest.approx(0.1 * 0.5)  # Of the update.
  z_q, z_w = (float(flag[f"{name}_noise_multiplier"]) for name in ("threshold", "update"))
  assert (z_w / z_q) ** 2 == pytest.approx(float(flag["rho_ratio"]))
  release = flat.release(_POPULATION, 8, z_q, z_w, threshold_kind="geometric")
  assert found.release == release
  assert found.epsilon_spent == float(rows[-1]["epsilon"]) <= _EPSILON
  assert found.epsilon_spent > 0.99 * _EPSILON  # Nor was any of it wasted.
  spent = [float(row["epsilon"]) for row in rows[1:]]
  assert spent == sorted(spent)
  assert spent[-1] == pytest.approx(_epsilon_by_pld(z_q, z_w, _NUM_ROUNDS), rel=2e-3)
  for round_num in (1, 7, _NUM_ROUNDS):
    # Between rounds that were accounted for by themselves RDP may be all that there is.
    exact, most = (f(z_q, z_w, round_num) for f in (_epsilon_by_pld, _epsilon_by_rdp))
    assert exact * (1.0 - 2e-3) <= spent[round_num - 1] <= most * (1.0 + 1e-6)
  assert any("zero-out" in sentence or "removed" in sentence for sentence in found.guarantee)
  assert found.not_covered


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
  found = _ledger(run)
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
  ((_, second, *_),) = [_ledger(run).release.coefficients]
  (run / "privacy.json").write_text(text.replace(repr(second), repr(second + 1e-9)))
  (run / "metrics.json").unlink()
  with pytest.raises(ValueError, match="other coefficients of the noise over rounds"):
    run_here("coefficients", **values)
  # Without the ledger nobody knows which they were.
  (run / "privacy.json").unlink()
  with pytest.raises(ValueError, match="which alone has the coefficients"):
    run_here("coefficients", **values)
  assert not (run / "privacy.json").exists()


# Runs that were interrupted, and what comes after the end.


def test_the_ledger_of_a_killed_run_is_never_behind_its_rounds(killed_copy):
  killed = killed_copy
  found = _ledger(killed)
  assert not (killed / "metrics.json").exists()
  assert found.rounds_done >= commands.num_rows(killed) - 1 > 3
  assert found.rounds_done < _NUM_ROUNDS
  assert found.epsilon_spent < found.claim["epsilon"]


def _weights(run):
  with np.load(run / "weights.npz") as arrays:
    return {name: arrays[name] for name in arrays}


def _assert_same_weights(run, other):
  """Bit for bit."""
  weights, others = _weights(run), _weights(other)
  assert weights.keys() == others.keys()
  for name, array in weights.items():
    np.testing.assert_array_equal(array.view(np.int32), others[name].view(np.int32))


def test_a_killed_run_ends_where_an_uninterrupted_one_does(killed, killed_copy, private, run_here):
  _, whole = private
  del killed_copy  # Made before it goes on.
  followed = ("threshold_noise_multiplier", "update_noise_multiplier", "delta", "rho_ratio")
  noise = [_flags_of(killed).get(name) for name in followed]
  # It has its key, and needs no file of it any more.
  assert run_here("killed", **_RESUMED) == killed
  commands.assert_same_results(killed, whole)
  _assert_same_weights(killed, whole)
  for name in ("privacy.json", "rounds.csv", "test_clients.csv"):
    assert (killed / name).read_bytes() == (whole / name).read_bytes()
  assert noise == [_flags_of(killed).get(name) for name in followed]
  _assert_nothing_of_the_cohorts(killed, _GEOMETRIC_COLUMNS, _cohorts(killed))
  _assert_the_key_is_kept(killed)


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
    build.resolve(_config(**values), tasks.get_task("synthetic"))


@pytest.mark.parametrize("values, words", _refusals(_NUMBERS, epsilon=6.0))
def test_bad_numbers_are_refused_before_anything_is_written(run_here, lab, values, words):
  with pytest.raises(ValueError, match=words):
    run_here("refused_here", run_name="bad", **values)
  assert not (lab.folder / "refused_here/synthetic/bad").exists()


@pytest.mark.parametrize(
  "output_dir, changed, words",
  [
    ("whole", dict(num_rounds=_NUM_ROUNDS + 1), f"={_NUM_ROUNDS} there, {_NUM_ROUNDS + 1} here"),
    ("killed_copy", dict(num_rounds=_NUM_ROUNDS + 1), f"={_NUM_ROUNDS} there, .* here"),
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


# Other private runs.


def _release_of_flags(run):
  """What the flags say that a round releases, from the parts of `privacy` alone."""
  flag = _flags_of(run)
  return flat.release(
    population=_POPULATION,
    clients_per_round=int(flag["clients_per_round"]),
    threshold_noise_multiplier=flag.get("threshold_noise_multiplier"),
    update_noise_multiplier=flag["update_noise_multiplier"],
    sampling=flag["sampling"],
    threshold_kind=flag.get("threshold", "tree"),
    relation=flag["relation"],
    protocol=flag["noise_shares"],
    contacted=flag.get("contacted_clients"),
  )


def _assert_spent(run, epsilon, num_rounds=4):
  """The ledger's number of rounds, noise and cost are those of the rounds and of the flags."""
  found, rows = _ledger(run), commands.rows(run)
  assert found.claim["epsilon"] == epsilon
  assert found.rounds_done == int(rows[-1]["round"]) == num_rounds
  assert found.epsilon_spent == float(rows[-1]["epsilon"])
  release = _release_of_flags(run)
  gaussian = accounting.epsilon(release, num_rounds, found.claim["delta"]).epsilon
  # Cohorts that are cut cost a little more; discrete noise does not to speak of.
  most = 1.0 + 1e-9 if found.release.num_shares is None else 1.02
  assert 1.0 - 1e-9 <= found.epsilon_spent / gaussian <= most
  assert epsilon is None or 0.99 * epsilon < found.epsilon_spent <= epsilon
  return found


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
  _assert_nothing_of_the_cohorts(run, _GEOMETRIC_COLUMNS, _cohorts(run, num_rounds=4))
  found = _assert_spent(run, None)
  assert flat.of(found.release).threshold_noise_multiplier == 7.0
  assert flat.of(found.release).update_noise_multiplier == 1.3
  _assert_the_key_is_kept(run, *capfd.readouterr())


@pytest.fixture(scope="module")
def fed_avg(run_here):
  with _umask(0o077):
    return run_here("fed_avg", algorithm="fed_avg", epsilon=2.0, delta=None)


def test_dp_fed_avg(fed_avg):
  _assert_nothing_of_the_cohorts(fed_avg, set(), _cohorts(fed_avg, num_rounds=4))
  found = _assert_spent(fed_avg, 2.0)
  assert flat.of(found.release).threshold_noise_multiplier is None
  # One in 10^5 or less, as nobody has chosen.
  assert found.claim["delta"] == accounting.default_delta(_POPULATION) == 1e-5
  _assert_the_key_is_kept(fed_avg)


def test_the_primal_dual_threshold(run_here, capsys):
  run = run_here("primal_dual", threshold="primal_dual", theta=0.5, epsilon=6.0)
  rows = _assert_nothing_of_the_cohorts(run, _GEOMETRIC_COLUMNS, _cohorts(run, num_rounds=4))
  assert rows[1]["threshold"] == "0.0"  # All train at first.
  found = _assert_spent(run, 6.0)
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
  num_shares = _ledger(run).release.num_shares
  assert by_histogram or num_shares == (20 if "distributed" in name else None)
  columns = {"estimated_share_sum", *(("estimated_cohort_size", "aborted") if by_histogram else ())}
  true_cohorts = _cohorts(run, num_rounds=4, max_clients=num_shares)
  rows = _assert_nothing_of_the_cohorts(run, columns, true_cohorts)
  divisors = {float(row["estimated_share_sum"]) for row in rows[1:]}
  if "share_weight" in values:  # The shares are lost in such noise: the least counts, 2 z / k.
    assert min(divisors) == pytest.approx(2.0 * 5.0 / 0.5)
  else:
    assert len(divisors) > 1
  release = flat.of(_assert_spent(run, values.get("epsilon")).release)
  assert release.weighted_updates == (not by_histogram)
  if by_histogram:
    assert release.threshold_kind == "tree" and release.tree is not None
  else:
    assert release.threshold_noise_multiplier is None
  if "distributed" in name:
    assert release.update_sum.num_entries == _NUM_PARAMETERS + 1
  assert account.run(["audit", str(run)]) == 0, capsys.readouterr()
  said = "a histogram of losses" if by_histogram else "of these weights"
  assert said in capsys.readouterr().out


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
  rows = _assert_nothing_of_the_cohorts(run, {"clip_norm"}, _cohorts(run, num_rounds=4))
  _assert_the_key_is_kept(run)
  norms = [float(row["clip_norm"]) for row in rows[1:]]
  assert norms[0] == pytest.approx(0.1 * 1.0)  # Of the update: the learning rate, 0.1, times C.
  assert len(set(norms)) == 4
  assert np.all(np.abs(np.diff(np.log(norms))) <= 0.2 * 0.5 + 1e-6)
  found, flag = _ledger(run), _flags_of(run)
  z_w, z_b = (float(flag[f"{n}_noise_multiplier"]) for n in ("update", "clip_count"))
  assert flat.of(found.release).noise_multipliers == (None, z_w, z_b) and found.clip_norm is None
  assert (z_w / z_b) ** 2 == pytest.approx(0.01) == float(flag["clip_rho_ratio"])
  assert found.epsilon_spent == pytest.approx(_epsilon_by_pld(z_b, z_w, 4), rel=2e-3)
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

  values = {**values, "noise_key_file": str(whole / _KEY), "seconds_per_checkpoint": 0.0}
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(noise_key.SecretStateManager, "save", save_two)
    patch.setattr(accounts.Account, "write", write_three)
    with pytest.raises(_Killed):
      run_here(output_dir, **values)
  run = next(whole.parents[3].glob(f"{output_dir}/*/{whole.parent.name}/seed_0"))
  assert not (run / "metrics.json").exists()
  # Three rounds are out, and two in a checkpoint.
  assert (commands.num_rows(run), _ledger(run).rounds_done) == (4, 3)
  assert {path.name for path in (run / "checkpoints").iterdir()} == {
    *("noise_key", "program_state_1", "program_state_2"),
  }
  del values["noise_key_file"]
  assert run_here(output_dir, **values) == run
  commands.assert_same_results(run, whole)
  _assert_same_weights(run, whole)
  for name in ("privacy.json", "rounds.csv"):
    assert (run / name).read_bytes() == (whole / name).read_bytes()
  _assert_the_key_is_kept(run)


def test_another_run_of_the_same_flags_and_seed_has_other_noise_and_cohorts(run_here, fed_avg):
  other = run_here("fed_avg_again", algorithm="fed_avg", epsilon=2.0, delta=None)
  assert _key(other) != _key(fed_avg)
  assert _cohorts(other, num_rounds=4) != _cohorts(fed_avg, num_rounds=4)
  # The seed says how both start.
  first, others = (commands.rows(run) for run in (fed_avg, other))
  assert first[0] == others[0] and first[2] != others[2]
  for name, array in _weights(fed_avg).items():
    assert np.mean(array != _weights(other)[name]) > 0.95  # By chance one in 10^8 is the same.
  # Most of what they have learned is noise, which has nothing in common.
  flat = [np.concatenate([a.ravel() for a in _weights(run).values()]) for run in (fed_avg, other)]
  assert abs(np.corrcoef(flat)[0, 1]) < 0.5


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
  true_cohorts = _cohorts(run, expected, 5, num_shares)
  rows = _assert_nothing_of_the_cohorts(run, _TREE_COLUMNS, true_cohorts)
  _assert_the_key_is_kept(run)
  found = _assert_spent(run, values.get("epsilon"), 5)
  tree, update_sum = flat.of(found.release).tree, flat.of(found.release).update_sum
  assert num_shares == shares.cohort_limit(_POPULATION, expected)
  assert tree.num_shares == update_sum.num_shares == found.release.num_shares == num_shares
  assert (update_sum.clip_norm, update_sum.num_entries) == (0.5, _NUM_PARAMETERS)
  assert update_sum.noise_multiplier == flat.of(found.release).update_noise_multiplier
  assert found.release.relation == values.get("relation", "zero_out")
  assert [row["aborted"] for row in rows[1:]] == ["0"] * 5
  # The server sees noisy sums alone.
  assert found.epsilon_server is not None and found.epsilon_server >= found.epsilon_spent
  assert any("share" in sentence for sentence in found.guarantee)


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
  config = build.resolve(_config(cache_dir=str(lab.cache_dir), **values), task)
  model, splits = build.load_task(task, config)
  release = private_runs.build_release(config, _POPULATION, _NUM_PARAMETERS)
  assert statements.secure_sums(release) == f"Secure sums of noisy integers: {said}"
  process = build.build_process(config, model, splits["train"], release)
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


def test_cohorts_of_fixed_size(run_here):
  run = run_here("fixed", algorithm="fed_avg", epsilon=9.0, sampling="fixed_size")
  sample = cohorts.build_sampler(kinds.FixedSize(size=8), _client_ids(), _key(run))
  _assert_nothing_of_the_cohorts(run, set(), [sample(r) for r in range(1, 5)])
  found = _assert_spent(run, 9.0)
  assert "removed" in found.release.neighboring_relation


# The key's file.


def _damage(run, how):
  """Does something to the key of a run."""
  path = run / _KEY
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
  assert (copy / _KEY).exists() == (how != "missing")


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
  key = (copy / _KEY).read_text().strip()
  (copy / _KEY).unlink()
  (lab.folder / "written_down").write_text(f"  {key[:16].upper()} {key[16:]}\n\n")
  run_here("brought_back", noise_key_file=str(lab.folder / "written_down"), **_RESUMED)
  commands.assert_same_results(copy, private[1])
  _assert_same_weights(copy, private[1])
  _assert_the_key_is_kept(copy)


# What follows from the flags.


@pytest.mark.parametrize("num_parameters", [_NUM_PARAMETERS, 10**6])
def test_the_budget_is_divided_by_the_modelled_error(num_parameters):
  task = tasks.get_task("synthetic")
  config = build.resolve(_config(epsilon=3.0, clients_per_round=25), task)
  found, _ = private_runs.calibrate(config, _POPULATION, num_parameters, {})
  z_q, z_w = private_runs.noise_multipliers(found).values()
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
  config = run_config.replace(config, rho_ratio=0.25)
  found, _ = private_runs.calibrate(config, _POPULATION, num_parameters, {})
  assert found.privacy.rho_ratio == 0.25
  z_q, z_w = private_runs.noise_multipliers(found).values()
  assert (z_w / z_q) ** 2 == pytest.approx(0.25)


def test_a_run_that_goes_on_keeps_its_noise(tmp_path):
  task = tasks.get_task("synthetic")
  config = build.resolve(_config(epsilon=3.0), task)
  first, release = private_runs.calibrate(config, _POPULATION, _NUM_PARAMETERS, {})
  earlier = first.to_flags()
  assert private_runs.calibrate(config, _POPULATION, _NUM_PARAMETERS, earlier) == (first, release)
  # Noise that somebody has lowered in flags.txt is past the budget.
  earlier["update_noise_multiplier"] = str(first.privacy.update_noise_multiplier / 2)
  lowered, release = private_runs.calibrate(config, _POPULATION, _NUM_PARAMETERS, earlier)
  with pytest.raises(ValueError, match="past --epsilon=3"):
    accounts.Account(lowered, release, tmp_path, _NUM_PARAMETERS)


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
  config = build.resolve(_config(**{"epsilon": 3.0, **flags}), tasks.get_task("synthetic"))
  config, release = private_runs.calibrate(config, _POPULATION, _NUM_PARAMETERS, {})
  # As many weights as make the noise of FedAvg 6 clip norms long, and that of a tenth 60.
  num_parameters = round((6 * 8 / flat.of(release).update_noise_multiplier) ** 2)
  text = accounts.Account(config, release, tmp_path, num_parameters).describe()
  bound = "at least" if flags.get("algorithm") == "semi_vred" else "about"
  assert f"is {bound} {6 * 8 / averaged:.2g} times as long" in text
  assert ("a clip norm that adapts" in text) == warns


def test_the_noise_of_weighted_averages_is_beside_the_least_divisor(tmp_path):
  values = dict(algorithm="q_fed_avg", q=1.0, epsilon=3.0, clip_norm=1.0, share_weight=0.01)
  config = build.resolve(_config(**values), tasks.get_task("synthetic"))
  config, release = private_runs.calibrate(config, _POPULATION, _NUM_PARAMETERS, {})
  assert 2 * flat.of(release).update_noise_multiplier / 0.01 > config.cohort.size
  # z sqrt(d) / (2 z / k) = k sqrt(d) / 2, whatever the noise.
  text = accounts.Account(config, release, tmp_path, 10_000).describe()
  assert "is at least 0.5 times as long" in text
