"""The sweep command: which runs it plans, what it leaves, and that nothing of it stays behind."""

import dataclasses
import fcntl
import json
import logging
import os
import pathlib
import shutil
import signal
from unittest import mock

from helpers import commands
import pytest

from privacy.settings import command_line
from tff_superquantile.engine.cohort import programs
from tff_superquantile.experiments import sweep
from tff_superquantile.experiments.config import names
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.plan import pool
from tff_superquantile.experiments.plan import tuning

_METHODS = ("fed_avg", "superquantile_theta_0.5", "superquantile_theta_0.25")
_QUICK = ("--experiment=default", "--quick", "--num_rounds=3")


def _plan(*arguments):
  """[(method with defaults for what is to be tuned, seed, flags)] of every run asked for."""
  plan = sweep.plan(command_line.parse(sweep, arguments))
  runs = [
    (names.folder(run_config.from_values(**tuning.with_defaults(c))), c["seed"], c) for c in plan
  ]
  return json.loads(json.dumps(runs, default=dataclasses.asdict))


def _results(folder):
  """The files of the runs, but for those that say how a command went."""
  return {
    path: data
    for path, data in commands.contents(folder).items()
    if pathlib.Path(path).name not in ("log.txt", "lock") and "/seed_" in path
  }


# What is planned.


# Methods of the synthetic experiment, with defaults for what is to be tuned.
_BASELINES = (
  *("fed_avg_sub_theta_0.5", "fed_prox_mu_0.1", "q_fed_avg_q_0.1", "tilted_erm_t_1"),
  *("q_fed_avg_q_10", "agnostic_fed_avg_rate_0.1"),
)
_TAILS = tuple(f"superquantile_theta_{theta}" for theta in (0.8, 0.5, 0.25, 0.1))
_REWEIGHTINGS = (
  "superquantile_theta_0.5_reweighting",
  "superquantile_theta_0.5_reweighting_smoothing_0.05",
)


def test_a_preset_has_all_methods_with_every_seed_and_is_quick_with_one():
  assert [(method, seed) for method, seed, _ in _plan()] == [(method, 0) for method in _METHODS]
  for _, _, config in _plan():
    assert config["task"] == "synthetic" and config["num_rounds"] == 500
    assert config["clients_per_round"] is None  # The task decides.
  methods = ("fed_avg", *_BASELINES, *_TAILS, *_REWEIGHTINGS)
  plan = _plan("--experiment=synthetic")
  assert [(method, seed) for method, seed, _ in plan] == [(m, s) for s in range(5) for m in methods]
  quick = _plan("--experiment=synthetic", "--quick")
  assert [(method, seed) for method, seed, _ in quick] == [(method, 0) for method in methods]
  assert {config["num_rounds"] for _, _, config in quick} == {100}


def test_command_line_has_the_last_word():
  plan = _plan(
    *("--experiment=emnist_linear", "--quick", "--seeds=3,4", "--thetas=0.5,1"),
    *("--num_rounds=7", "--batch_size=0"),
  )
  methods = [method for method, seed, _ in plan if seed == 3]
  # --thetas is about superquantile aggregation, the baselines stay.
  assert [method for method in methods if method.startswith("superquantile")] == [
    "superquantile_theta_0.5",
    "superquantile_theta_1",
  ]
  assert methods[0] == "fed_avg" and "fed_avg_sub_theta_0.8" in methods
  assert [(method, seed) for method, seed, _ in plan] == [(m, s) for s in (3, 4) for m in methods]
  for _, _, config in plan:
    assert config["num_rounds"] == 7 and config["batch_size"] == 0
    assert config["task"] == "emnist_linear" and config["rounds_per_evaluation"] == 20


@pytest.mark.parametrize(
  "experiment, least",
  [
    *(("emnist_linear", 101), ("emnist_convnet", 101), ("personalization", 101)),
    *(("model_family", 101), ("sent140_linear", 51), ("sent140_lstm", 51)),
    *(("shakespeare", 0), ("private_fairness_emnist", 0)),
  ],
)
def test_the_papers_clients_have_more_than_100_images_or_50_tweets(experiment, least):
  plan = _plan(f"--experiment={experiment}", "--quick")
  assert {config["min_examples_per_client"] for *_, config in plan} == {least}
  plan = _plan(f"--experiment={experiment}", "--quick", "--min_examples_per_client=7")
  assert {config["min_examples_per_client"] for *_, config in plan} == {7}
  # A stand-in has no such clients, and its task refuses the flag.
  plan = _plan(f"--experiment={experiment}", "--quick", "--data=standin")
  assert {config["min_examples_per_client"] for *_, config in plan} == {0}


def test_private_preset_has_all_methods_at_every_budget():
  whole = _plan("--experiment=private_synthetic")
  assert len(whole) == 5 * 5 * 5
  assert len({(method, seed) for method, seed, _ in whole}) == len(whole)
  few = _plan(
    "--experiment=private_synthetic", "--epsilons=4", "--thetas=0.5", "--seeds=0", "--l2=0.1"
  )
  assert [method for method, *_ in few] == [
    "fed_avg_epsilon_4",
    "superquantile_theta_0.5_tree_epsilon_4",
    "superquantile_theta_0.5_geometric_epsilon_4",
  ]
  for _, _, config in few:
    assert config["epsilon"] == 4.0 and config["delta"] == 1 / 2500 and config["l2"] == 0.1
    assert config["clip_norm"]["default"] > 0 and config["clip_unit"] == "gradient"


def test_a_secure_experiment_has_no_sum_whose_noise_the_server_makes():
  for name, is_public in (("private_synthetic", False), ("private_fairness", True)):
    flags = (f"--experiment={name}", "--epsilons=4", "--thetas=0.5", "--seeds=0")
    secure, usual = _plan(*flags, "--secure"), _plan(*flags)
    public = [method for method, *_ in usual if "epsilon" not in method]
    assert [method for method, *_ in secure if "epsilon" not in method] == public
    assert bool(public) == is_public
    assert {method for method, *_ in secure if method not in public} == {
      method.replace("epsilon", "distributed_epsilon")
      for method, *_ in usual
      if method not in public and "geometric" not in method and "primal_dual" not in method
    }


_REFUSED = {
  "--experiment=sensitivity --clients_per_round=50": ("--clients_per_round", "several runs"),
  "--epsilons=5": ("--epsilons", "private_synthetic"),
  "--secure": ("--secure for default, which is not private", "private_synthetic"),
  "--experiment=private_synthetic --secure --update_sum=central": ("--secure with --update_sum",),
  "--theta=0.5": ("--theta", "--thetas"),
  "--algorithm=fed_avg": ("--algorithm", "--experiment"),
  "--run_name=mine": ("--run_name",),
  "--tune=some": ("--tune", "none", "methods", "all"),
  "--seeds=a": ("--seeds=a", "numbers"),
  "--seeds=0,1,0": ("seeds",),
  "--thetas=0.5,half": ("--thetas=0.5,half", "numbers"),
  "--thetas=0.5,0": ("theta", "(0, 1]"),
  "--experiment=private_synthetic --print_commands --epsilons=nan": ("--epsilons=nan", "positive"),
  "--experiment=private_synthetic --print_commands --epsilons=3,0": ("--epsilons=3,0", "positive"),
  "--experiment=private_synthetic --epsilons=3,3.0000001": ("--epsilons", "first six digits"),
  "--experiment=defualt": ("no experiment 'defualt'", "did you mean 'default'?"),
  "default": ("'default'", "--name=value"),
}


@pytest.mark.parametrize("arguments", _REFUSED)
def test_bad_flags_are_refused_before_anything_starts(lab, arguments):
  output_dir = f"refused_{list(_REFUSED).index(arguments)}"
  given = (f"--output_dir={output_dir}", "--num_rounds=1", *arguments.split())
  result = lab.here("tff_superquantile.experiments.sweep", *lab.small(given))
  result.assert_refused(*_REFUSED[arguments])
  assert not (lab.folder / output_dir).exists()


def test_folder_that_cannot_be_written_is_refused(lab):
  (lab.folder / "a_file").touch()
  result = lab.sweep(*_QUICK, "--output_dir=a_file")
  result.assert_fails_with_a_sentence(2, "a_file", "--output_dir")


# What is left.


@pytest.fixture(scope="module")
def quick(lab):
  return lab.forked("sweep", *lab.small([*_QUICK, "--output_dir=quick"]))


def test_every_method_is_run_and_the_report_named(lab, quick):
  assert quick.code == 0, quick.err
  folder = lab.folder / "quick" / "synthetic"
  assert sorted(path.parent.name for path in folder.glob("*/seed_0")) == sorted(_METHODS)
  for run in folder.glob("*/seed_0"):
    assert json.loads((run / "metrics.json").read_text()).keys() >= {"train", "test"}
    assert commands.num_rows(run) == 4
    assert "Finished: " in (run / "log.txt").read_text()
  assert all((folder / f"report.{kind}").stat().st_size > 0 for kind in ("html", "md", "csv"))
  assert "quick/synthetic/report.html" in quick.out
  assert "FedAvg" in quick.out and "0.25" in quick.out


def test_sweep_shows_progress_and_nothing_else(quick):
  lines = [line for line in quick.err.replace("\r", "\n").split("\n") if line.strip()]
  *bars, fitting, drawing = lines  # What may take long after the bar's end says what it does.
  assert "3 of 3 runs done" in bars[-1] and "9/9" in bars[-1]
  assert not [line for line in bars if "runs done" not in line]
  assert (fitting, drawing) == ("Fitting reference models, seed 0", "Drawing the report")


def test_finished_runs_are_skipped(lab, quick):
  assert quick.code == 0
  before = _results(lab.folder / "quick")
  times = {path: (lab.folder / "quick" / path).stat().st_mtime_ns for path in before}
  again = lab.sweep(*_QUICK, "--output_dir=quick")
  assert again.code == 0 and "quick/synthetic/report.html" in again.out
  assert _results(lab.folder / "quick") == before
  assert {path: (lab.folder / "quick" / path).stat().st_mtime_ns for path in before} == times


def test_printed_commands_are_those_of_the_flags(lab, quick):
  assert quick.code == 0
  command = (*_QUICK, "--output_dir=quick", "--print_commands")
  done = lab.sweep(*command)
  assert (done.code, done.out) == (0, "") and "All runs are done" in done.err
  # More rounds continue runs; other flags need another folder.
  longer = lab.sweep(*command, "--num_rounds=7")
  assert longer.code == 0 and longer.out.count("--num_rounds=7") == len(_METHODS)
  other = lab.sweep(*command, "--client_learning_rate=0.07")
  other.assert_refused("a run with other flags in quick/", "--client_learning_rate=", "0.07 here")
  old = lab.sweep(*command, "--batch_size=3")
  old.assert_refused("a run with other flags in quick/", "--batch_size=", "3 here")


def test_the_log_of_a_run_at_work_is_kept(lab):
  run = lab.folder / "occupied" / "synthetic" / "fed_avg" / "seed_0"
  run.mkdir(parents=True)
  (run / "log.txt").write_text("what it said\n")
  with open(run / "lock", "w") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    result = lab.sweep("--output_dir=occupied", "--thetas=0.5", "--num_rounds=3")
  result.assert_fails_with_a_sentence(2, "another process is at work", "fed_avg/seed_0")
  assert (run / "log.txt").read_text() == "what it said\n"


@pytest.mark.parametrize(
  "num_runs, num_workers, expected",
  [
    (1, None, [[0, 1]]),
    (2, None, [[0], [1]]),
    (3, None, [[0], [1], [0, 1]]),  # None of the three runs alone at the end.
    (4, None, [[0], [1]]),
    (3, 2, [[0], [1]]),
    (3, 1, [[0, 1]]),
    (3, 9, [[0], [1]]),
  ],
)
def test_shares_of_the_cores(num_runs, num_workers, expected):
  assert pool.core_shares([0, 1], num_runs, num_workers) == expected
  shares = pool.core_shares(range(8), 13, None)
  assert [list(share) for share in shares[:8]] == [[core] for core in range(8)]
  assert sorted(core for share in shares[8:] for core in share) == list(range(8))


class _Run:
  """A run at work or at its end, as the pool looks at it."""

  def __init__(self, done, planned, asked=None):
    self.config = run_config.from_values(num_rounds=asked)
    self.last_round = lambda: (done, {})
    self.num_rounds = lambda: planned


def test_the_rounds_of_runs_that_stop_early():
  rounds, waiting = pool._Rounds(), [run_config.from_values()] * 3
  assert rounds.total(waiting, []) is None  # The task decides.
  assert rounds.total(waiting, [_Run(5, 100)]) == 400
  rounds.end(_Run(100, 100), has_failed=False)
  assert rounds.total(waiting, []) == 400  # None was early, so far.
  rounds.end(_Run(3, 100), has_failed=True)
  assert rounds.total(waiting, []) == 403
  rounds.end(_Run(40, 100), has_failed=False)
  # Others are taken to have 70, but for one that has had more.
  assert rounds.total(waiting[:1], [_Run(85, 100), _Run(8, 100)]) == 143 + 70 + 85 + 70
  for done in (85, 60, 50):
    rounds.end(_Run(done, 100), has_failed=False)
  assert rounds.total([], []) == rounds.done == 338


def test_a_process_goes_on_with_its_method():
  a, b = (
    run_config.from_values(algorithm=name, task="synthetic")
    for name in ("fed_avg", "superquantile")
  )
  waiting = {i: dataclasses.replace(one, seed=i) for i, one in enumerate((a, b, a, b))}
  worker = pool.Worker([], [0], 1)
  assert worker.choose(waiting) == 0
  worker._method = b
  assert worker.choose(waiting) == 1
  assert worker.choose({i: waiting[i] for i in (0, 2, 3)}) == 3
  assert worker.choose({i: waiting[i] for i in (2, 0)}) == 2


def test_a_run_says_the_warnings_of_this_project_and_none_of_the_run_before(
  tmp_path, monkeypatch, capsys
):
  """Runs of one process: the first warns, the second is killed, the third is in another process."""
  pids, ours = tmp_path / "pids", "tff_superquantile.simulation.training_loop"

  def train(config):
    with open(pids, "a") as file:
      file.write(f"{os.getpid()} ")
    os.write(1, b"seed %d\n" % config.seed)
    for level, name, text in (
      (logging.WARNING, ours, "Found the weights\nunmoved after %d rounds"),
      (logging.INFO, ours, "info %d"),
      (logging.ERROR, ours, "error %d"),
      (logging.WARNING, "absl", "of others %d"),
    ):
      if config.seed == 0:
        logging.getLogger(name).log(level, text, 20)
    if config.seed == 1:
      os.kill(os.getpid(), signal.SIGKILL)

  monkeypatch.setattr(pool.training, "train", train)
  configs = [
    run_config.from_values(task="synthetic", num_rounds=1, output_dir=str(tmp_path), seed=seed)
    for seed in range(3)
  ]
  (killed,) = pool.run_all(configs, 1)
  err = capsys.readouterr().err
  assert killed.endswith("seed_1") and err.count("Warning: ") == 1
  assert "seed_0: Found the weights\nunmoved after 20 rounds" in err
  assert f"{killed}: SIGKILL ended it; its last words are in {tmp_path}/{killed}/log.txt" in err
  first, second, third = pids.read_text().split()
  assert first == second != third
  logs = [(tmp_path / killed).with_name(f"seed_{seed}") / "log.txt" for seed in range(3)]
  assert [log.read_text().split("\n")[0] for log in logs[::2]] == ["seed 0", "seed 2"]


def test_bad_input_ends_all_runs_with_one_sentence(lab):
  flags = lab.small([*_QUICK, "--output_dir=bad", "--clients_per_round=10000"])
  command = lab.fork("-m", "tff_superquantile.experiments.sweep", *flags)
  result = command.wait()
  result.assert_fails_with_a_sentence(2, "10000", "30 training clients")
  assert not command.left_behind()


def test_what_a_private_run_prints_is_among_its_secrets(lab):
  flags = ("--experiment=private_synthetic", "--quick", "--thetas=0.5", "--epsilons=5")
  flags = (*flags, "--num_rounds=2", "--output_dir=secret")
  with mock.patch.object(pool.training, "train", side_effect=RuntimeError("Client 7 has 12 rows")):
    assert lab.sweep(*flags).code == 1
  runs = list((lab.folder / "secret").glob("synthetic/*/seed_0"))
  assert runs and all("epsilon" in run.parent.name for run in runs)
  for run in runs:
    files = commands.contents(run)
    assert list(files) == ["checkpoints/log.txt"] and b"Client 7 has 12 rows" in files.popitem()[1]
    modes = [(run / path).stat().st_mode & 0o777 for path in ("checkpoints", "checkpoints/log.txt")]
    assert modes == [0o700, 0o600]
  assert lab.sweep(*flags).code == 0  # They begin as if nothing had been there.
  assert not list((lab.folder / "secret").glob("*/*/*/log.txt"))


# How it ends.

_SEEDS = ("--experiment=default", "--seeds=0,1", "--thetas=0.5", "--output_dir=seeds")
_BROKEN = "synthetic/fed_avg/seed_1"  # Neither the first nor the last.


def _num_rows(lab):
  return sum(commands.num_rows(run) for run in (lab.folder / "seeds").glob("synthetic/*/seed_*"))


@pytest.fixture(scope="module")
def interrupted(lab, base):
  """{signal: (result, processes left behind)} of one sweep, ended again and again; its last end.

  One of its runs fails in the end. The last is the number of programs that this end has traced.
  """
  flags = (*_SEEDS, *base.flags, "--seconds_per_checkpoint=0")
  ends = {}

  def start(rows, **kwargs):
    # One run after the other: those that follow are held too.
    return lab.held("sweep", *flags, "--num_workers=1", rows=rows, **kwargs)

  def end(command, signum):
    result = command.end_by(signum)
    assert command.num_seen() > 1  # Its runs, too.
    ends[signum] = (result, command.left_behind())

  # Shells start the background jobs of a script with SIGINT ignored: only SIGTERM ends these. Its
  # runs are there, but have not got to their rounds.
  command = start(rows=0, in_background=True)
  command.wait_until(lambda: command.num_seen() > 1)
  end(command, signal.SIGTERM)
  for signum in (signal.SIGINT, signal.SIGKILL):
    before = _num_rows(lab)
    command = start(rows=3)
    command.wait_until_held()
    assert _num_rows(lab) > before + 2
    end(command, signum)
  broken = lab.folder / "seeds" / _BROKEN
  while broken.exists():  # A run that has been killed may still have been writing.
    shutil.rmtree(broken, ignore_errors=True)
  broken.mkdir(parents=True)
  (broken / "checkpoints").touch()  # No folder: the run trips over it.
  with mock.patch.object(programs, "Program", wraps=programs.Program) as traced:
    return ends, lab.sweep(*flags), traced.call_count


@pytest.mark.parametrize("name, code", [("SIGTERM", 143), ("SIGINT", 130), ("SIGKILL", -9)])
def test_interrupted_sweep_leaves_no_process(interrupted, name, code):
  result, left_behind = interrupted[0][getattr(signal, name)]
  assert result.code == code
  assert "Traceback" not in result.err
  assert len(result.errors()) == (1 if name == "SIGINT" else 0)
  assert not left_behind


def test_failed_run_does_not_stop_the_others(lab, interrupted):
  result = interrupted[1]
  result.assert_fails_with_a_sentence(1, "1 of 4 runs", _BROKEN)
  folder = lab.folder / "seeds"
  assert "Traceback" in (folder / _BROKEN / "log.txt").read_text()
  finished = {str(path.parent.relative_to(folder)) for path in folder.rglob("metrics.json")}
  runs = {f"synthetic/{method}/seed_{seed}" for method in _METHODS[:2] for seed in (0, 1)}
  assert finished == runs - {_BROKEN}
  assert "seeds/synthetic/report.html" in result.out
  assert (folder / "synthetic" / "report.html").exists()


@pytest.mark.usefixtures("interrupted")
def test_interrupted_sweep_ends_where_an_uninterrupted_run_does(lab, base):
  # One core or all of them: the numbers are the same.
  commands.assert_same_results(lab.folder / "seeds" / commands.METHOD / "seed_0", base.path)


def test_seeds_and_methods_differ_and_seeds_share_their_programs(lab, interrupted):
  assert interrupted[2] <= 2 * 3  # Of a method: first state, model of a state, round.
  found = {}
  for path in (lab.folder / "seeds").rglob("metrics.json"):
    manifest = json.loads((path.parent / "manifest.json").read_text())
    assert path.parent.name == f"seed_{manifest['seed']}"
    found[path.parent] = json.loads(path.read_text())["test"]["loss"]["mean"]
  assert len(found) == len(set(found.values())) == 3
