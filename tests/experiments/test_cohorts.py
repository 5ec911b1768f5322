"""Runs whose cohorts others compute: the same bits, no key, and what is refused."""

from helpers import elsewhere as elsewhere_lib
from helpers import private_run
import pytest

from tff_superquantile import noise_source
from tff_superquantile.experiments.cluster import cohorts
from tff_superquantile.experiments.config import methods
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run import runner
from tff_superquantile.simulation import seeds

pytestmark = pytest.mark.usefixtures("restored_context")
_REQUIRED = {
  "fed_avg_sub": dict(theta=0.5),
  "fed_prox": dict(proximal_weight=0.1),
  "q_fed_avg": dict(q=1.0),
  "tilted_erm": dict(temperature=1.0),
  "agnostic_fed_avg": dict(ascent_rate=0.1),
  "prop_fair": dict(utility_bound=5.0),
  "semi_vred": dict(beta=0.5),
  "gifair": dict(fairness_strength=0.5),
  "eagle": dict(gap_strength=0.5),
}


@pytest.fixture
def config(tmp_path, cache_dir):
  def build(folder, **flags):
    places = dict(output_dir=str(tmp_path / folder), cache_dir=str(cache_dir))
    small = dict(num_train_clients=30, num_test_clients=15, clients_per_round=8, num_rounds=2)
    return run_config.from_values(**{**small, **places, "num_blocks": 3, **flags})

  return build


def _private(**flags):
  usual = dict(epsilon=10.0, delta=1e-2, clip_norm=0.5, theta=0.5, threshold="geometric")
  return {**usual, "batch_size": 4, **flags}


def _assert_same_elsewhere(config, **flags):
  """Returns the run whose blocks others computed, and what they were sent."""
  elsewhere = elsewhere_lib.Elsewhere()
  here = runner.train(config("here", **flags))
  there = runner.train(config("there", **flags), elsewhere)
  assert len(elsewhere.messages) in (2 * 7, 4 * 7)
  private_run.assert_same_weights(there.path, here.path)
  assert private_run.flags_of(there.path)["num_blocks"] == "3"
  return there, b"".join(elsewhere.messages)


def test_a_private_run_sends_no_key_and_nothing_of_it(config):
  flags = _private(noise_key_file="")
  run, sent = _run_with_one_key(config, **flags)
  key = private_run.key_of(run.path)
  entry = private_run.manifest_of(run.path)["commitments"]["noise"]
  noise_key = noise_source.derive_key(key, f"noise of the run {entry}")
  for secret in (key, noise_key):
    for needle in [secret, *private_run._derived(secret)]:
      assert needle[:8] not in sent and needle[8:] not in sent
    assert secret.hex().encode() not in sent
  # What clients draw from, the order of their examples alone, is public.
  of_clients = [seeds.client_seed(0, 1, c).tobytes() for c in private_run.client_ids()]
  assert 0 < sum(seed in sent for seed in of_clients) < len(of_clients)


def _run_with_one_key(config, **flags):
  elsewhere = elsewhere_lib.Elsewhere()
  run = runner.train(config("there", **flags), elsewhere)
  assert len(elsewhere.messages) == 4 * 7
  return run, b"".join(elsewhere.messages)


def test_seeds_stay_of_the_key_where_clients_make_noise(config):
  """Such a run is refused a scheduler; in blocks on this machine it is what it was."""
  flags = dict(epsilon=10.0, delta=1e-2, clip_norm=0.5, secure=True, theta=0.5)
  run, sent = _run_with_one_key(config, **flags)
  found = private_run.manifest_of(run.path)["commitments"]["noise"]
  noise_key = noise_source.derive_key(private_run.key_of(run.path), f"noise of the run {found}")
  assert any(seed in sent for seed in private_run._derived(noise_key))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", cohorts._METHODS)
def test_each_method_that_is_allowed_gives_the_same_bits(config, algorithm):
  _assert_same_elsewhere(config, algorithm=algorithm, **_REQUIRED.get(algorithm, {}), batch_size=4)


@pytest.mark.slow
@pytest.mark.parametrize("threshold", cohorts._THRESHOLDS)
def test_each_threshold_that_is_allowed_gives_the_same_bits(config, threshold):
  noise = {} if threshold in ("exact", "reweighting") else dict(threshold_noise_multiplier=1.0)
  _assert_same_elsewhere(config, threshold=threshold, **noise)


@pytest.mark.slow
@pytest.mark.parametrize("task", cohorts._TASKS)
def test_each_task_that_is_allowed_gives_the_same_bits(config, tmp_path, task):
  own = {}
  if task == "own":
    table = tmp_path / "table.csv"
    table.write_text("c,y,x\n" + "".join(f"{i % 30},{i % 2},{i}\n" for i in range(300)))
    own = dict(data_dir=str(table), client_column="c", label_column="y")
    own.update(num_train_clients=None, num_test_clients=None)
  elif task != "synthetic":
    own = dict(data="standin")
  _assert_same_elsewhere(config, task=task, **own)


def test_all_that_is_allowed_is_named():
  assert set(cohorts._METHODS) == set(methods.METHODS.own)


@pytest.mark.parametrize(
  "flags, found",
  [
    (dict(num_blocks=None), "Found --scheduler without --num_blocks; expected both"),
    (dict(task="sent140_lstm"), "Found --scheduler with --task=sent140_lstm; expected one of"),
    (_private(secure=True, threshold=None), "clients make noise, from seeds of the noise key"),
    (_private(threshold="tree"), "clients make noise, from seeds of the noise key"),
    (_private(update_sum="distributed"), "clients make noise, from seeds of the noise key"),
  ],
  ids=["no blocks", "task", "secure", "tree", "distributed"],
)
def test_what_cannot_be_shared_out_is_refused(config, flags, found):
  refused = config(
    "x",
    **{name: value for name, value in flags.items() if value is not None or name == "num_blocks"},
  )
  assert found in cohorts.why_not(refused)
  with pytest.raises(ValueError, match=found):
    with cohorts.machines(refused, "nowhere.json"):
      pass


@pytest.mark.parametrize("threshold", cohorts._BY_SERVER)
def test_what_can_be_shared_out(config, threshold):
  assert cohorts.why_not(config("x")) == ""
  assert cohorts.why_not(config("x", **_private(threshold=threshold))) == ""


def test_another_number_of_blocks_is_another_run(config):
  with pytest.raises(ValueError, match="Found --num_blocks=3 beside --block_size=2; expected one"):
    runner.train(config("x", block_size=2))
  runner.train(config("x"))
  for flags, found in ((4, "--num_blocks=3 there, 4 here"), (None, "--num_blocks=3 there,  here")):
    with pytest.raises(ValueError, match=found):
      runner.train(config("x", num_blocks=flags, num_rounds=3))
  assert runner.train(config("x", num_rounds=3)).last_round == 3


def test_a_command_says_what_is_missing(lab):
  flags = ("--task=synthetic", "--scheduler=nowhere.json")
  lab.start("train", *flags).wait().assert_refused("Found --scheduler without --num_blocks")
  lab.start("train", *flags, "--num_blocks=4").wait().assert_refused("nowhere.json cannot be read")
