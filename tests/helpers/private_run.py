"""Small private runs: their flags, and what may be in their folders and in their ledgers."""

import base64
import csv
import json
import re
import stat

import dp_accounting
import numpy as np
import pandas as pd

from helpers import commands
from helpers import flat
from privacy import accounting
from privacy import cohorts as kinds
from privacy import ledger
from tff_superquantile import noise_source
from tff_superquantile.experiments.config import run_config
from tff_superquantile.simulation import cohorts
from tff_superquantile.simulation import seeds

POPULATION, NUM_ROUNDS, EPSILON, DELTA = 30, 24, 6.0, 1e-2
KEY = "checkpoints/noise_key"
NUM_PARAMETERS = 20 * 10 + 10
# What rounds.csv holds of the test clients, who are outside of the guarantee.
_TEST_COLUMNS = {
  f"test_{quantity}_{name}"
  for quantity in ("error", "loss")
  for name in ("mean", "p90", "superquantile_90")
}
GEOMETRIC_COLUMNS = {"threshold", "estimated_tail_size"}
TREE_COLUMNS = {"threshold", "estimated_cohort_size", "estimated_tail_size", "aborted"}


def config(**values):
  """A small run with `values`."""
  small = dict(num_train_clients=POPULATION, num_test_clients=15, clients_per_round=8)
  private = dict(delta=DELTA, clip_norm=0.5, num_rounds=4, rounds_per_evaluation=2)
  return run_config.from_values(**{**small, **private, **values})


def flags_of(run):
  lines = (run / "flags.txt").read_text().splitlines()
  return dict(line[2:].split("=", 1) for line in lines)


def ledger_of(run):
  return ledger.Ledger.from_json((run / "privacy.json").read_text())


def key_of(run):
  return bytes.fromhex((run / KEY).read_text())


def manifest_of(run):
  return json.loads((run / "manifest.json").read_text())


def client_ids():
  return [f"train_{i:04d}" for i in range(POPULATION)]


def cohorts_of(run, clients_per_round=8, num_rounds=NUM_ROUNDS, max_clients=None):
  """The true cohorts, which nobody may learn."""
  sample = cohorts.build_sampler(
    kinds.Poisson(size=clients_per_round), client_ids(), key_of(run), max_clients=max_clients
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
  for round_num in range(1, NUM_ROUNDS + 1):
    found += [seeds.client_seed(key, round_num, c).tobytes() for c in client_ids()]
  return found


def assert_the_key_is_kept(run, *said):
  """The key is where it belongs and nowhere else, nor is anything that follows from it."""
  mode = {True: 0o700, False: 0o600}
  checkpoints = run / "checkpoints"
  for path in (checkpoints, *checkpoints.rglob("*")):
    assert stat.S_IMODE(path.stat().st_mode) == mode[path.is_dir()], path
  key = key_of(run)
  assert (run / KEY).read_bytes() == key.hex().encode() + b"\n"
  contents = {f"said {i}": text.encode() for i, text in enumerate(said)}
  contents.update(commands.contents(run))
  del contents[KEY]
  needles = _texts_of(key, 16) | _texts_of(key, 8)
  for name, content in contents.items():
    assert not [needle for needle in needles if needle in content], name
  # Beside the key there is the state of the noise, as the key is no secret there any more.
  public = b"\n".join(c for name, c in contents.items() if not name.startswith("checkpoints/"))
  for derived in _derived(key):
    for needle in _texts_of(derived, 8):
      assert needle not in public


def assert_nothing_of_the_cohorts(run, columns, true_cohorts):
  """Reads everything that a private run has left."""
  found = {path.name for path in run.iterdir()}
  assert found == {
    *("flags.txt", "manifest.json", "privacy.json", "rounds.csv", "metrics.json", "lock"),
    *("validation_clients.csv", "test_clients.csv", "weights.npz", "checkpoints", "clients"),
  }
  # An attempt's mark is random, and of nobody's.
  assert re.fullmatch(r"-{16} [0-9a-f]{16}\n", (run / "lock").read_text())
  contents = commands.contents(run)
  for name, content in contents.items():
    if name.startswith("checkpoints") and name != KEY:
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
  assert manifest["num_clients"]["train"] == POPULATION
  assert set(flags_of(run)) <= set(run_config.flags())

  rows = list(csv.DictReader(contents["rounds.csv"].decode().splitlines()))
  assert set(rows[0]) == {"round", "epsilon", *columns, *_TEST_COLUMNS}
  assert [int(row["round"]) for row in rows] == list(range(len(true_cohorts) + 1))
  assert {name for name, text in rows[0].items() if text} == {"round", *_TEST_COLUMNS}
  sizes = [len(cohort) for cohort in true_cohorts]
  if len(set(sizes)) > 1:
    for name in set(rows[0]) - {"round", *_TEST_COLUMNS}:
      assert [float(row[name]) for row in rows[1:]] != sizes
  return rows


def epsilon_by_pld(z_q, z_w, num_rounds):
  z = (z_q**-2 + z_w**-2) ** -0.5
  event = dp_accounting.PoissonSampledDpEvent(8 / 30, dp_accounting.GaussianDpEvent(z))
  accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-3)
  return accountant.compose(event, num_rounds).get_epsilon(DELTA)


def weights_of(run):
  with np.load(run / "weights.npz") as arrays:
    return {name: arrays[name] for name in arrays}


def assert_same_weights(run, other):
  """Bit for bit."""
  weights, others = weights_of(run), weights_of(other)
  assert weights.keys() == others.keys()
  for name, array in weights.items():
    np.testing.assert_array_equal(array.view(np.int32), others[name].view(np.int32))


# Other private runs.


def _release_of_flags(run):
  """What the flags say that a round releases, from the parts of `privacy` alone."""
  flag = flags_of(run)
  return flat.release(
    population=POPULATION,
    clients_per_round=int(flag["clients_per_round"]),
    threshold_noise_multiplier=flag.get("threshold_noise_multiplier"),
    update_noise_multiplier=flag["update_noise_multiplier"],
    sampling=flag["sampling"],
    threshold_kind=flag.get("threshold", "tree"),
    relation=flag["relation"],
    protocol=flag["noise_shares"],
    contacted=flag.get("contacted_clients"),
  )


def assert_spent(run, epsilon, num_rounds=4):
  """The ledger's number of rounds, noise and cost are those of the rounds and of the flags."""
  found, rows = ledger_of(run), commands.rows(run)
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
