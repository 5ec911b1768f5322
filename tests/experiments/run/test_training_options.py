"""Options of a run's training: optimizers, schedules, its start, and the model that it keeps."""

import json
import math
import shutil

from helpers import problems
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from privacy import account
from privacy import ledger
import tasks
from tff_superquantile import algorithms
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.config import servers
from tff_superquantile.experiments.run import build
from tff_superquantile.experiments.run import measurements
from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run import runner

_SMALL = dict(
  num_train_clients=30,
  num_test_clients=15,
  clients_per_round=8,
  num_rounds=6,
  rounds_per_evaluation=2,
)
_PRIVATE = dict(update_noise_multiplier=1.0, threshold_noise_multiplier=2.0, clip_norm=0.1)
_ADAM = dict(server_optimizer="adam", client_momentum=0.5)


@pytest.fixture(scope="module")
def train(lab):
  """Carries out small runs below the lab's folder."""
  return lambda out, **values: runner.train(
    run_config.from_values(**{**_SMALL, **lab.places(out), **values})
  )


def _vector(run):
  return problems.vector(run.weights.trainable)


# Optimizers of the server.


def _reddi(name, rate, updates):
  """The sum of the server's steps, by Reddi et al. with the moments' bias corrected."""
  beta_1, beta_2, tau = 0.9, 0.99, 1e-3
  position, moment, square = 0.0, 0.0, tau**2 if name == "yogi" else 0.0
  for t, update in enumerate(updates(), start=1):
    if name == "sgd":
      position = position + rate * update
    elif name == "adagrad":
      square = square + update**2
      position = position + rate * update / np.sqrt(square + tau**2)
    else:
      moment = beta_1 * moment + (1 - beta_1) * update
      if name == "adam":
        square = beta_2 * square + (1 - beta_2) * update**2
      else:
        square = square - (1 - beta_2) * update**2 * np.sign(square - update**2)
      corrected = rate * math.sqrt(1 - beta_2**t) / (1 - beta_1**t)
      position = position + corrected * moment / (np.sqrt(square) + tau)
    yield position


@pytest.mark.parametrize("name", servers.SERVERS)
def test_server_takes_the_steps_of_the_paper_and_of_tff(name):
  rate = 0.05
  config = run_config.from_values(server_optimizer=name, server_learning_rate=rate)
  arguments = dict(
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.3),
    server_optimizer_fn=config.server.build(tff.learning.optimizers),
  )
  arrays = problems.client_arrays()[:3]
  sizes = np.array([len(y) for _, y in arrays], float)
  ours = algorithms.build_fed_avg(problems.linear_model(), **arguments)
  theirs = tff.learning.algorithms.build_weighted_fed_avg(problems.linear_model(), **arguments)
  initial = problems.initial_weights()
  shapes = [w.shape for w in initial]
  weights = problems.vector(initial)

  def updates():
    while True:
      now, start = [], 0
      for shape in shapes:
        stop = start + math.prod(shape)
        now.append(weights[start:stop].reshape(shape))
        start = stop
      trained = [
        problems.vector(problems.local_sgd(now, x, y, learning_rate=0.3, batch_size=4))
        for x, y in arrays
      ]
      yield np.average(trained, axis=0, weights=sizes) - weights

  steps = _reddi(name, rate, updates)
  state, their_state = ours.initialize(), theirs.initialize()
  for _ in range(4):
    cohort = problems.datasets(arrays)
    state = ours.next(state, cohort).state
    their_state = theirs.next(their_state, cohort).state
    weights = problems.vector(initial) + next(steps)
    found = problems.vector(ours.get_model_weights(state).trainable)
    np.testing.assert_allclose(found, weights, rtol=2e-4, atol=2e-5)
    expected = problems.vector(theirs.get_model_weights(their_state).trainable)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def adam(train):
  return train("adam", **_ADAM)


def test_blocks_agree_on_the_servers_state(train, adam):
  other = train("adam_in_blocks", **_ADAM, block_size=3)
  np.testing.assert_allclose(_vector(other), _vector(adam), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("values", [{}, _PRIVATE])
def test_resumed_run_of_an_optimizer_with_state_equals_an_uninterrupted_one(
  train, lab, adam, values
):
  if values:
    key = lab.folder / "key"
    key.write_text("0123456789abcdef" * 2)
    values = dict(values, noise_key_file=str(key), server_optimizer="yogi", sampling="poisson")
    # A private run is of a number of rounds that is known, so this one is killed by hand.
    whole = train("private_whole", **values)
    parts = _killed_and_resumed(train, "private_parts", values)
  else:
    whole = adam
    train("adam_parts", **_ADAM, num_rounds=3)
    parts = train("adam_parts", **_ADAM)
  np.testing.assert_array_equal(_vector(parts), _vector(whole))


class _Killed(Exception):
  pass


def _killed_and_resumed(train, output_dir, values, round_num=4):
  """Ends a run like an interrupt in a round, and carries out the rest."""
  bound = pytest.MonkeyPatch()
  read = measurements.of_round
  rounds = iter(range(1, round_num + 1))

  def count(metrics):
    if next(rounds) == round_num:
      raise _Killed
    return read(metrics)

  with bound.context() as patch:
    patch.setattr(measurements, "of_round", count)
    with pytest.raises(_Killed):
      train(output_dir, **values)
  return train(output_dir, **values)


# Another run's model as the start.


def test_run_starts_from_a_finished_one(train, adam, lab):
  run = train("tuned", initial_weights=f"{adam.path}/", theta=0.25, num_rounds=2)
  assert run.path.parent.name == "superquantile_theta_0.25_from_superquantile_theta_0.5_adam"
  assert run.method.label == "Superquantile θ = 0.25, from superquantile_theta_0.5_adam"
  assert run.flags["initial_weights"] == str(adam.path)
  fingerprint = adam.fingerprint
  assert run.flags["initial_weights_fingerprint"] == fingerprint
  (start,) = run.manifest["starts"]
  assert start["fingerprint"] == fingerprint and start["epsilon"] is None
  # Round 0 evaluates the start.
  assert run.rounds["test_error_mean"][0] == adam.metrics["test"]["error"]["mean"]
  assert not np.array_equal(_vector(run), _vector(adam))

  # A resumed run starts from the same file, wherever it is, and from no other.
  moved = lab.folder / "moved" / "synthetic" / "superquantile_theta_0.5_adam" / "seed_0"
  shutil.copytree(adam.path, moved)
  values = dict(theta=0.25, num_rounds=2, initial_weights=str(moved))
  assert train("tuned", **values).last_round == 2
  run_files.write_weights(moved / "weights.npz", run.weights)
  with pytest.raises(ValueError, match=f"--initial_weights_fingerprint={fingerprint} there"):
    train("tuned", **values)
  with pytest.raises(ValueError, match=f"Found other weights in .*those of {fingerprint}"):
    train("tuned", **values, initial_weights_fingerprint=fingerprint)
  flat = run_files.Weights(tuple(w.ravel() for w in run.weights.trainable), ())
  run_files.write_weights(moved / "weights.npz", flat)
  with pytest.raises(ValueError, match="Found weights of shapes"):
    train("misfit", **values)
  (moved / "metrics.json").unlink()
  with pytest.raises(ValueError, match="is at round 6 of 6; expected a finished run"):
    train("unfinished", **values)
  with pytest.raises(ValueError, match="Found no finished run in"):
    train("missing", initial_weights=str(lab.folder))
  with pytest.raises(ValueError, match="in a run that starts anew; it belongs to"):
    train("missing", initial_weights_fingerprint=fingerprint)


def test_ledger_says_what_the_start_has_cost(train, adam, lab, capsys):
  # Its flags say whose model it is, whatever its folder is called.
  renamed = lab.folder / "renamed/shakespeare/superquantile_theta_0.5_adam/seed_0"
  shutil.copytree(adam.path, renamed)
  first = train("public_start", **_PRIVATE, num_rounds=2, initial_weights=str(renamed))
  second = train("private_start", **_PRIVATE, num_rounds=1, initial_weights=str(first.path))
  entries = [
    ledger.Ledger.from_json((run.path / "privacy.json").read_text()) for run in (first, second)
  ]
  said = [tuple(entry.not_covered.values())[: len(entry.starts)] for entry in entries]
  assert [len(one) for one in said] == [1, 2]
  assert "trained on the same population without privacy" in said[0][0]
  assert f"epsilon = {entries[0].epsilon_spent:.4g} at delta" in said[1][0]
  assert said[1][1] == said[0][0]  # What came before goes on.
  capsys.readouterr()
  # What began without privacy on the same clients protects none of them.
  assert account.run(["audit", str(second.path)]) == 1
  printed = " ".join(capsys.readouterr().out.split())
  assert all(sentence in printed for sentence in said[1])
  start = "/".join(renamed.parts[-3:])
  assert f"The run starts from {start}, which was trained without privacy on what may be" in printed
  assert "second" not in printed and printed.count("The run starts from") == 1

  path = second.path / "privacy.json"
  changed = json.loads(path.read_text())
  changed["starts"].clear()
  path.write_text(json.dumps(changed))
  assert account.run(["audit", str(second.path)]) == 1
  assert "do not name the same initial weights" in " ".join(capsys.readouterr().out.split())


# The model that is kept.

# A rate that soon overshoots, so that the best round is not the last.
_BEST = dict(algorithm="fed_avg", keep="best", patience=2, client_learning_rate=3.0, num_rounds=40)


@pytest.fixture(scope="module")
def best(train):
  return train("best", **_BEST)


def test_best_round_is_kept_and_patience_ends_the_run(best):
  values = best.rounds["validation_error_p90"]
  evaluated = {int(r): v for r, v in zip(best.rounds["round"], values) if np.isfinite(v)}
  kept = min(evaluated, key=lambda r: (evaluated[r], r))
  assert best.manifest["kept_round"] == kept
  assert best.metrics["validation"]["error"]["p90"] == evaluated[kept]
  # Two evaluations later it ended, and no pair of evaluations before was without a better one.
  assert best.last_round == best.manifest["rounds_done"] == kept + 4 < 40
  assert list(evaluated) == list(range(0, kept + 5, 2))
  assert best.method.label == "FedAvg, best round"


def test_killed_run_keeps_the_same_model(train, best):
  for number, round_num in enumerate((2, best.manifest["kept_round"] + 2)):
    run = _killed_and_resumed(train, f"best_{number}", _BEST, round_num)
    np.testing.assert_array_equal(_vector(run), _vector(best))
    kept = ("kept_round", "rounds_done")
    assert [run.manifest[name] for name in kept] == [best.manifest[name] for name in kept]
  longer = train("best_0", **{**_BEST, "num_rounds": 50})
  np.testing.assert_array_equal(_vector(longer), _vector(best))


def test_private_ledger_has_the_rounds_done(train):
  run = train("best_private", **{**_BEST, "patience": 1}, update_noise_multiplier=50.0, clip_norm=9)
  entry = ledger.Ledger.from_json((run.path / "privacy.json").read_text())
  assert entry.rounds_done == run.manifest["rounds_done"] == run.last_round < 40
  assert entry.num_rounds_planned == 40
  assert account.run(["audit", str(run.path)]) == 0


# Schedules of the local learning rate.


def _scheduled(name, **values):
  config = run_config.from_values(
    client_learning_rate=0.4, learning_rate_schedule=name, num_rounds=8, **values
  )
  return build.resolve(config, tasks.get_task("synthetic"))


@pytest.mark.parametrize(
  "config, expected",
  [
    (
      _scheduled("step", learning_rate_decay=0.5, rounds_per_decay=3),
      [0.4, 0.4, 0.4, 0.2, 0.2, 0.2, 0.1, 0.1],
    ),
    (_scheduled("step", learning_rate_decay=1.0, rounds_per_decay=1), [0.4] * 8),
    (_scheduled("cosine"), 0.4 * np.cos(np.arange(8) * np.pi / 16) ** 2),
    (_scheduled("linear"), 0.05 * np.arange(8, 0, -1)),
  ],
)
def test_rates_of_rounds(config, expected):
  np.testing.assert_allclose([config.learning_rate(float(t), math) for t in range(8)], expected)
  in_graph = tf.function(lambda t: config.learning_rate(t, tf.math))
  found = [in_graph(tf.constant(t, tf.float32)).numpy() for t in range(8)]
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  np.testing.assert_allclose(config.final_learning_rate, expected[-1])
  assert config.local.schedule.is_constant == (len(set(found)) == 1)


def test_run_follows_its_schedule_and_momentum(train):
  """One client, one step: an update is rate times gradient, as the first round measures it."""
  values = dict(algorithm="fed_avg", clients_per_round=30, batch_size=0, l2=0.0)
  first = train("first", num_rounds=1, **values)
  linear = dict(values, learning_rate_schedule="linear")
  # The second of two rounds has half the rate: a run of another start would show it as well.
  rates = [_scheduled("linear").learning_rate(float(t), math) for t in (0, 4)]
  assert rates[1] == rates[0] / 2
  two, constant = train("two", num_rounds=2, **linear), train("two_c", num_rounds=2, **values)
  steps = [_vector(run) - _vector(first) for run in (two, constant)]
  np.testing.assert_allclose(steps[0], steps[1] / 2, atol=1e-6)
  with pytest.raises(ValueError, match="--num_rounds=2 there, 3 here"):
    train("two", num_rounds=3, **linear)


@pytest.mark.parametrize(
  "values, said",
  [
    (
      dict(learning_rate_schedule="cosine", learning_rate_decay=0.5),
      "with --learning_rate_schedule=cosine; it belongs to --learning_rate_schedule=step",
    ),
    (dict(patience=3), "Found --patience=3 with --keep=last; it belongs to --keep=best"),
    (dict(keep="best", best_by="test.error.p90"), "Found --best_by=test.error.p90; expected one"),
    (dict(keep="best", rounds_per_evaluation=7), "Found --rounds_per_evaluation=7 with"),
    (
      dict(_PRIVATE, clip_unit="gradient", learning_rate_schedule="linear"),
      "with a learning rate that decays",
    ),
  ],
)
def test_options_that_cannot_be_are_refused(values, said):
  with pytest.raises(ValueError, match=said):
    config = run_config.from_values(**{**_SMALL, **values})
    build.resolve(config, build.get_task(config))
