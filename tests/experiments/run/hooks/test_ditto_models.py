"""Ditto's models of runs: that they follow the rounds, go on after a kill, and are reported."""

import signal

from helpers import commands
from helpers import finished_runs
import numpy as np
import pytest

from tff_superquantile import evaluation
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.pages import page
from tff_superquantile.experiments.report import comparison
from tff_superquantile.experiments.run import build
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.experiments.run import runner
from tff_superquantile.experiments.run.hooks import personalizing

_SMALL = dict(num_train_clients=30, num_test_clients=15, clients_per_round=8)
# The last round is no multiple of two: it has an evaluation, and no turn.
_VALUES = dict(
  algorithm="fed_avg",
  num_rounds=7,
  rounds_per_evaluation=2,
  seconds_per_checkpoint=0.0,
  ditto=0.5,
  ditto_learning_rate=0.05,
)
_STATES = "checkpoints/ditto.npz"


@pytest.fixture(scope="module")
def whole(lab):
  """A run that nothing disturbed, and the shared models of its turns."""
  shared, build_ditto = {}, evaluation.DittoTrainer

  class Recording(build_ditto):
    def start(self, weights):
      shared[0] = weights
      return super().start(weights)

    def turn(self, states, weights, number):
      shared[number] = weights
      return super().turn(states, weights, number)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(evaluation, "DittoTrainer", Recording)
    run = runner.train(run_config.from_values(**lab.places("ditto"), **_SMALL, **_VALUES))
  return run, shared


def test_the_models_are_those_of_the_turns(lab, whole):
  run, shared = whole
  assert list(shared) == [0, 2, 4, 6]
  config = run_config.with_values(run.config, cache_dir=str(lab.cache_dir))
  model, splits = build.load_task(build.get_task(config), config)
  halves = personalizing.split_clients(config, splits)
  ditto = evaluation.DittoTrainer(
    model,
    halves,
    strength=0.5,
    learning_rate=0.05,
    seed=config.seed,
    batch_size=config.local.batch_size,
    l2=config.local.l2,
  )
  states = ditto.start(shared[0])
  for number in (2, 4, 6):
    states = ditto.turn(states, shared[number], number)
  with np.load(run.path / _STATES) as arrays:
    assert int(arrays["round"]) == 6
    for i, state in enumerate(states):
      np.testing.assert_array_equal(arrays[f"trainable_{i}"], state)
  for name, measured in zip(("shared", "ditto"), ditto.measured(states, run.weights)):
    found = run.clients(name)
    assert list(found["client_id"]) == list(halves.held_out.client_ids)
    np.testing.assert_allclose(found["error"], measured.of_clients.error)
    np.testing.assert_allclose(found["loss"], measured.of_clients.loss)
    expected = np.percentile(measured.of_clients.error, 90)
    assert run.numbers[f"{name}.error.p90"] == pytest.approx(expected)
  assert (run.clients("ditto")["loss"] != run.clients("shared")["loss"]).any()


def test_the_shared_model_is_that_without_them(lab, whole):
  run, _ = whole
  values = {name: value for name, value in _VALUES.items() if not name.startswith("ditto")}
  other = runner.train(run_config.from_values(**lab.places("alone"), **_SMALL, **values))
  for found, expected in zip(run.weights.trainable, other.weights.trainable):
    np.testing.assert_array_equal(found, expected)
  assert run.numbers["test.error.p90"] == other.numbers["test.error.p90"]
  assert not other.numbers.keys() & {"ditto.error.p90", "shared.error.p90"}


def test_a_killed_run_ends_as_if_nothing_had_happened(lab, whole):
  run, _ = whole
  flags = [f"--{name}={value}" for name, value in _VALUES.items()]
  # The first two rows, with new columns, are not appended: it waits before that of round 5.
  command = lab.held("train", *flags, "--output_dir=ditto_killed", rows=3)
  command.wait_until_held()
  assert command.end_by(signal.SIGKILL).code == -signal.SIGKILL
  killed = lab.folder / "ditto_killed" / run.path.relative_to(lab.folder / "ditto")
  with np.load(killed / _STATES) as arrays:
    assert int(arrays["round"]) == 4
  # Models that are ahead of the checkpoints, from which rounds are repeated: as if killed later.
  (killed / _STATES).write_bytes((run.path / _STATES).read_bytes())
  config = run_config.from_values(**lab.places("ditto_killed"), **_SMALL, **_VALUES)
  # Without them, or with others, it does not go on.
  ahead = (killed / _STATES).read_bytes()
  with np.load(killed / _STATES) as arrays:
    earlier = {**arrays, "round": 2}
  for lose in (lambda: np.savez(killed / _STATES, **earlier), (killed / _STATES).unlink):
    lose()
    with pytest.raises(ValueError, match="no .*ditto.npz of round 4, the own models of a run at"):
      runner.train(config)
  (killed / _STATES).write_bytes(ahead)
  for flag, value in (("ditto", 0.1), ("rounds_per_evaluation", 1)):
    with pytest.raises(ValueError, match=f"run with other flags .*--{flag}="):
      runner.train(run_config.with_values(config, **{flag: value}))
  resumed = runner.train(config)
  assert resumed.path == killed
  names = ("ditto_clients.csv", "shared_clients.csv", "metrics.json")
  assert commands.contents(killed, names) == commands.contents(run.path, names)
  assert commands.contents(killed, names).keys() == set(names)
  with np.load(killed / _STATES) as found, np.load(run.path / _STATES) as expected:
    assert set(found) == set(expected)
    for name in expected:
      np.testing.assert_array_equal(found[name], expected[name])


def test_turns_after_a_kill_are_those_of_the_whole_run(lab, whole):
  """Killed while its own models are not ahead: rounds and turns follow, and not only rounds."""
  run, _ = whole
  flags = [f"--{name}={value}" for name, value in _VALUES.items()]
  command = lab.held("train", *flags, "--output_dir=ditto_again", rows=3)
  command.wait_until_held()
  command.end_by(signal.SIGKILL)
  config = run_config.from_values(**lab.places("ditto_again"), **_SMALL, **_VALUES)
  resumed = runner.train(config)
  names = ("ditto_clients.csv", "shared_clients.csv", "metrics.json")
  assert commands.contents(resumed.path, names) == commands.contents(run.path, names)


@pytest.mark.parametrize(
  "values, message",
  [
    (dict(epsilon=3.0, clip_norm=0.1), "Found --ditto in a private run"),
    (dict(rounds_per_evaluation=9), "--rounds_per_evaluation=9 with --ditto; expected at most"),
  ],
)
def test_what_is_refused(lab, values, message):
  config = run_config.from_values(**lab.places("refused"), **_SMALL, **{**_VALUES, **values})
  with pytest.raises(ValueError, match=message):
    runner.train(config)
  assert not list((lab.folder / "refused").rglob("flags.txt"))


# What a report says.

_SHARED = np.linspace(0.2, 0.6, 41)


@pytest.mark.parametrize("has_kept", [True, False])
def test_the_report_has_a_column_of_ditto(tmp_path, has_kept):
  kept = {"chosen": _SHARED - 0.1, "personal": _SHARED - 0.1} if has_kept else {}
  parts = {"test": _SHARED, "shared": _SHARED, "ditto": _SHARED - 0.15, **kept}
  finished_runs.fabricate(tmp_path, {"fed_avg": parts}, place="tiny")
  content = comparison.report(tmp_path, "tiny")
  tables = finished_runs.markdown_tables(page.render(content, "md"))
  levels, changes = (t for t in tables if any("Ditto" in heading for heading in t[0]))
  (row,) = (dict(zip(levels[0], row)) for row in levels[1:])
  for heading, errors in (("shared", _SHARED), ("Ditto", _SHARED - 0.15)):
    assert row[f"mean, {heading}"] == f"{100 * errors.mean():.1f}"
    assert row[f"p90, {heading}"] == f"{100 * np.percentile(errors, 90):.1f}"
  (row,) = (dict(zip(changes[0], row)) for row in changes[1:])
  assert row["mean: Ditto − shared"].startswith("**−15.0")
  assert ("mean: Ditto − kept" in row) == ("mean: kept − shared" in row) == has_kept
  if has_kept:
    assert row["mean: Ditto − kept"].startswith("**−5.0")
  # Without Ditto nothing of it.
  for path in tmp_path.rglob("ditto_clients.csv"):
    path.unlink()
  for run in run_folder.find_runs(tmp_path):
    text = (run.path / "metrics.json").read_text().replace('"ditto"', '"gone"')
    (run.path / "metrics.json").write_text(text)
  assert "Ditto −" not in page.render(comparison.report(tmp_path, "tiny"), "md")
