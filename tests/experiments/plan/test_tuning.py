"""Grid search: what is tried, what is chosen, and how an experiment goes about it."""

import dataclasses
import itertools
import json
import math
import pathlib
import shlex
import sys
import types

from helpers import commands
import pytest

from privacy.settings import part
from tff_superquantile.experiments import sweep
from tff_superquantile.experiments.config import names
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.plan import preset as preset_lib
from tff_superquantile.experiments.plan import presets
from tff_superquantile.experiments.plan import tuning
from tff_superquantile.experiments.run import run_folder

_P90 = preset_lib.VALIDATION_P90
_LOSS = preset_lib.TRAIN_LOSS


def _settings(**values):
  """Values of all fields of a config: the defaults, and `values`."""
  return {**run_config.defaults(), **values}


def _finish(config, folder="", **criteria):
  """Writes a metrics.json as a run with these flags would, with `criteria` by dotted name."""
  metrics = {}
  for name, value in criteria.items():
    split, quantity, statistic = name.split(".")
    metrics.setdefault(split, {}).setdefault(quantity, {})[statistic] = value
  path = pathlib.Path(folder, names.run_path(config))
  path.mkdir(parents=True, exist_ok=True)
  (path / "metrics.json").write_text(json.dumps(metrics))


def _preset(**values):
  fields = dict(task="synthetic", thetas=(0.5,), seeds=(0,), quick_flags={})
  return preset_lib.Preset(**{**fields, **values})


@pytest.fixture
def search(tmp_path):
  """A search for q among six values; none of its runs is there yet."""
  settings = _settings(
    algorithm="q_fed_avg",
    q=preset_lib.Grid((1e-3, 0.1, 1.0, 2.0, 5.0, 9.0), default=1.0),
    output_dir=str(tmp_path),
  )
  return tuning.method_search(_preset(), settings)


# What is chosen.


@pytest.mark.parametrize(
  "results, q",
  [
    ([0.5, 0.4, 0.45, 0.39, 0.4, 0.6], 2.0),
    ([0.5, 0.25, 0.25, 0.3, 0.25, 0.25], 0.1),  # The first of equals.
    ([0.25] * 6, 1e-3),
    ([0.5, 0.25, 0.0, 0.3, 0.25, 0.25], 1.0),  # No error is a result.
  ],
)
def test_smallest_result_is_chosen(search, results, q):
  """Whatever test and training clients say."""
  for candidate, result in zip(search.candidates, results):
    others = dict.fromkeys(("test.error.p90", "train.error.p90"), 1 - result)
    _finish(candidate.config, **{_P90: result}, **others)
  assert search.results() == results
  assert search.choose() == {"q": q}


def test_the_metric_of_the_runs_decides(search):
  for candidate, value in zip(search.candidates, [0.5, 0.5, 0.45, 0.5, 0.3, 0.5]):
    _finish(candidate.config, **{_P90: 0.1, "validation.balanced_error.p90": value})
    (names.run_path(candidate.config) / "flags.txt").write_text(
      "--metric=balanced_error\n--exact_siblings=refused\n"
    )
  assert search.choose() == {"q": 5.0}
  assert search.describe()["criterion"] == "validation.balanced_error.p90"


def _refuse(constant):
  raise AssertionError(f"{constant} is no JSON")


def test_runs_that_failed_or_diverged_are_never_chosen_and_written_as_json(search, tmp_path):
  """Of six runs one diverged to NaN, one to infinity, one left nothing and one half a file."""
  nan, infinite, _, torn, *finite = search.candidates
  _finish(nan.config, **{_P90: math.nan})
  _finish(infinite.config, **{_P90: -math.inf})
  _finish(torn.config, **{_P90: 0.1})
  path = names.run_path(torn.config) / "metrics.json"
  path.write_text(path.read_text()[:-1])
  for candidate, result in zip(finite, (0.9, 0.8)):
    _finish(candidate.config, **{_P90: result})
  assert search.results() == [math.inf, math.inf, math.inf, math.inf, 0.9, 0.8]
  tuning.write(tmp_path / "results" / "synthetic", [search])
  text = (tmp_path / "results" / "synthetic" / "tuning.json").read_text()
  assert json.loads(text, parse_constant=_refuse) == [
    {
      "method": "q_fed_avg",
      "criterion": "validation.error.p90",
      "tried": [
        *({"q": q, "result": None} for q in (1e-3, 0.1, 1.0, 2.0)),
        {"q": 5.0, "result": 0.9},
        {"q": 9.0, "result": 0.8},
      ],
      "chosen": {"q": 9.0},
    }
  ]


# What is tried.


@pytest.mark.parametrize("private, used", [({}, 0.0), (dict(epsilon=5.0, clip_norm=1.0), 0.5)])
def test_whose_results_tune_private_runs_are_held_out_of_the_comparison(capsys, private, used):
  grid = preset_lib.Grid((1.0, 2.0), 1.0)
  settings = _settings(algorithm="q_fed_avg", q=grid, num_rounds=2, **private)
  stages = types.SimpleNamespace(search=lambda _, searches: [dict(q=2.0) for _ in searches])
  (planned,) = sweep._tune(stages, _preset(validation_fraction=0.5), [settings], "methods")
  assert (planned["q"], planned["validation_fraction"]) == (2.0, used)
  assert bool(capsys.readouterr().err) == bool(private)


def test_shared_values_are_tried_in_all_combinations_with_fed_avg(tmp_path):
  grid = preset_lib.SharedGrid(
    {"client_learning_rate": (0.3, 0.1), "learning_rate_decay": (0.5, 1.0, 0.25)}, _LOSS
  )
  settings = _settings(
    algorithm="fed_avg", output_dir=str(tmp_path), client_learning_rate=7.0, l2=0.1
  )
  search = tuning.shared_search(grid, _preset(), settings)
  tried = [dict(zip(grid.values, pair)) for pair in itertools.product(*grid.values.values())]
  assert [candidate.values for candidate in search.candidates] == tried
  for candidate in search.candidates:
    assert candidate.values.items() <= candidate.config.values().items()
    assert candidate.config.algorithm == "fed_avg" and candidate.config.local.l2 == 0.1
  # These are no part of a method's name, yet no two runs may share a folder.
  assert len({names.run_path(candidate.config) for candidate in search.candidates}) == 6
  # The criterion is the training loss, whatever the validation clients say.
  for i, candidate in enumerate(search.candidates):
    _finish(candidate.config, **{_LOSS: [5, 4, 1, 2, 3, 6][i], _P90: [1, 1, 1, 0, 1, 1][i]})
  assert search.choose() == dict(client_learning_rate=0.3, learning_rate_decay=0.25)


@pytest.mark.parametrize("name", presets.PRESETS)
def test_no_experiment_is_tuned_on_test_clients(name):
  preset = presets.PRESETS[name]
  criteria = {grid.criterion for grid in preset.shared_grids}
  assert criteria <= {_LOSS, _P90}
  # Where a criterion looks at validation clients there are some: the task's own, or held out.
  # The synthetic task has validation clients of its own, and no others are held out.
  assert (preset.validation_fraction == 0.0) == (preset.task == "synthetic")
  for grid in preset.shared_grids:
    assert grid.values.keys() <= set(run_config.flags())
    assert all(len(set(values)) == len(values) > 1 for values in grid.values.values())
  for value in itertools.chain(*(method.values() for method in preset.methods())):
    if isinstance(value, preset_lib.Grid):
      assert value.default in (*value.values, None)
      assert len(set(value.values)) == len(value.values) > 1


# Commands for a cluster, step by step: what tuning runs would have found is made up.


def _configs(lines):
  """The flags of the printed commands, as a shell reads them."""
  configs = []
  for line in lines:
    program, *arguments = shlex.split(line)
    assert program == sys.executable
    assert arguments[:2] == ["-m", "tff_superquantile.experiments.plan.job"]
    assert all(argument.startswith("--") for argument in arguments[2:])
    configs.append(
      run_config.from_flags(dict(argument[2:].split("=", 1) for argument in arguments[2:]))
    )
  return configs


@dataclasses.dataclass
class _Steps:
  """The printed commands of --tune=all, step by step, and what is said of each."""

  lab: commands.Lab
  arguments: tuple[str, ...]

  def next(self, num_left, num_all, what):
    """The flags of the runs that can go now."""
    result = self.lab.bare("sweep", *self.arguments)
    assert result.code == 0, result.err
    configs = _configs(result.out.splitlines())
    assert result.err == f"{num_left} of {num_all} runs are left: {what}\n"
    assert len(configs) == num_left
    return configs

  def finish(self, config, **criteria):
    _finish(config, self.lab.folder, **criteria)


def test_commands_of_a_whole_grid_search_follow_from_what_was_found(lab):
  output_dir = "a folder; with 'quotes'"
  steps = _Steps(
    lab,
    (
      *("--experiment=emnist_linear", "--tune=all", "--seeds=4,5", "--thetas=0.5"),
      *("--print_commands", f"--output_dir={output_dir}", "--data_dir=the $data"),
    ),
  )
  # First the learning rate, by the training loss.
  what = "tuning --client_learning_rate with FedAvg"
  rates = steps.next(4, 4, what)
  assert not (lab.folder / output_dir).exists()
  assert [config.local.learning_rate for config in rates] == [0.003, 0.01, 0.03, 0.1]
  for config in rates:
    assert config.algorithm == "fed_avg" and config.seed == 4 and config.local.l2 is None
    assert config.task.validation_fraction == 0.5 and config.task.data_dir == "the $data"
    assert config.output_dir == f"{output_dir}/tuning"
  for config, loss in zip(rates[:2] + rates[3:], (3.0, 2.0, 2.5)):
    steps.finish(config, **{_LOSS: loss, _P90: 0.1})
  assert steps.next(1, 4, what) == rates[2:3]  # Only what is left.
  steps.finish(rates[2], **{_LOSS: 1.0, _P90: 0.9})
  # Then l2 with that learning rate, by the validation clients.
  l2s = steps.next(6, 6, "tuning --l2 with FedAvg")
  assert [config.local.l2 for config in l2s] == [1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8]
  assert {config.local.learning_rate for config in l2s} == {0.03}
  for config in l2s:
    assert not (lab.folder / names.run_path(config)).exists()
    steps.finish(config, **{_LOSS: config.local.l2, _P90: 0.4 if config.local.l2 == 1e-5 else 0.5})
  # Then each method's own, all side by side, with the first seed.
  own = steps.next(19, 19, "tuning each method on validation clients")
  tried = {}
  for config in own:
    assert (config.local.learning_rate, config.local.l2, config.seed) == (0.03, 1e-5, 4)
    (flag,) = (
      name for name, one in part.flags_by_field(type(config.method)).items() if one.is_required
    )
    tried.setdefault(flag, []).append(getattr(config.method, flag))
  assert {flag: len(values) for flag, values in tried.items()} == {
    **{"proximal_weight": 4, "q": 4, "temperature": 8, "ascent_rate": 3}
  }
  chosen = dict(proximal_weight=0.001, q=1.0, temperature=50.0, ascent_rate=0.01)
  for config in own:
    best = any(config.values()[flag] == value for flag, value in chosen.items())
    steps.finish(config, **{_P90: 0.3 if best else 0.35, "test.error.p90": 0.9 if best else 0.1})
  # Then the comparison.
  runs = steps.next(20, 20, "every method with every seed")
  assert [names.folder(config) for config in runs if config.seed == 5] == [
    "fed_avg",
    *(f"fed_avg_sub_theta_{theta}" for theta in (0.8, 0.5, 0.1)),
    *("fed_prox_mu_0.001", "q_fed_avg_q_1", "tilted_erm_t_50", "q_fed_avg_q_10"),
    *("agnostic_fed_avg_rate_0.01", "superquantile_theta_0.5"),
  ]
  for config in runs:
    assert (config.local.learning_rate, config.local.l2) == (0.03, 1e-5)
    assert config.task.validation_fraction == 0.0 and config.output_dir == output_dir
    assert config.run_name == ""
  written = json.loads((lab.folder / output_dir / "emnist_linear" / "tuning.json").read_text())
  assert [entry["chosen"] for entry in written] == [
    {"client_learning_rate": 0.03},
    {"l2": 1e-5},
    *({flag: value} for flag, value in chosen.items()),
  ]
  assert [entry["criterion"] for entry in written] == [_LOSS, *[_P90] * 5]


def test_the_papers_grid_of_a_private_run_and_its_warning(lab):
  output_dir = "private"
  arguments = (
    *("--experiment=private_synthetic", "--tune=all", "--epsilons=5", "--thetas=0.5"),
    *("--print_commands", f"--output_dir={output_dir}", "--rho_ratio=0.25"),
  )
  result = lab.bare("sweep", *arguments)
  assert result.code == 0, result.err
  warning, left = result.err.splitlines()
  # C of FedAvg; C, B and b of the tree; C of the geometric threshold. The command line fixed r.
  assert left == "68 of 68 runs are left: tuning each method on validation clients"
  assert warning.startswith("Warning: 68 private runs")
  # Each of them, and the three methods with five seeds, at epsilon 5.
  assert "15 runs of the comparison" in warning and f"epsilons, {(68 + 15) * 5}," in warning
  configs = _configs(result.out.splitlines())
  found = [types.SimpleNamespace(**config.values()) for config in configs]
  tree = [values for values in found if values.threshold == "tree"]
  kept = {(values.max_loss, values.num_bins, values.clip_norm) for values in tree}
  bounds = (0.7, 0.9, 1.1, 1.3, 1.5)
  assert kept == set(itertools.product(bounds, (16, 32, 64), (0.9, 1.3, 1.7, 2.4)))
  assert {values.rho_ratio for values in tree} == {0.25}
  assert len({names.run_path(config) for config in configs}) == 68
  for config, values in zip(configs, found):
    assert config.output_dir == f"{output_dir}/tuning" and config.task.validation_fraction == 0.0
    best = values.clip_norm == 1.7 and (values.threshold != "tree" or values.num_bins == 32)
    _finish(config, lab.folder, **{_P90: 0.4 if best and config.max_loss != 0.7 else 0.5})
  result = lab.bare("sweep", *arguments)
  runs = [types.SimpleNamespace(**c.values()) for c in _configs(result.out.splitlines())]
  assert {config.clip_norm for config in runs} == {1.7} and len(runs) == 15
  assert {values.run_name for values in runs} == {""}
  assert {(c.num_bins, c.max_loss) for c in runs if c.threshold == "tree"} == {(32, 0.9)}


def test_the_papers_grid_of_private_runs_is_not_searched_unasked(lab):
  result = lab.bare("sweep", "--experiment=private_synthetic", "--epsilons=5", "--print_commands")
  assert result.err == "25 of 25 runs are left: every method with every seed\n"
  found = [types.SimpleNamespace(**c.values()) for c in _configs(result.out.splitlines())]
  trees = [values for values in found if values.threshold == "tree"]
  assert {(c.clip_norm, c.max_loss, c.num_bins, c.rho_ratio) for c in trees} == {
    (1.3, 0.9, 16, None)
  }


def test_search_in_which_every_run_failed_ends_with_a_sentence(lab):
  arguments = (
    *("--experiment=emnist_linear", "--tune=all", "--seeds=0", "--thetas=0.5"),
    *("--print_commands", "--output_dir=failed"),
  )
  for config in _Steps(lab, arguments).next(4, 4, "tuning --client_learning_rate with FedAvg"):
    _finish(config, lab.folder, **{_LOSS: math.nan})
  result = lab.bare("sweep", *arguments)
  result.assert_fails_with_a_sentence(1, "FedAvg", "train.loss.mean", "log.txt")
  assert result.out == ""


@pytest.mark.parametrize(
  "arguments, num_runs, tuned",
  [
    (("--tune=none",), 10, False),
    (("--quick",), 10, False),
    (("--quick", "--tune=methods"), 19, True),
  ],
)
def test_a_quick_comparison_is_tuned_if_it_is_asked_for(lab, arguments, num_runs, tuned):
  flags = ("--experiment=emnist_linear", "--seeds=0", "--thetas=0.5", "--print_commands")
  configs = _configs(lab.bare("sweep", *flags, *arguments).out.splitlines())
  assert len(configs) == num_runs
  assert {config.output_dir for config in configs} == {"results/tuning" if tuned else "results"}
  assert {config.task.validation_fraction for config in configs} == {0.5 if tuned else 0.0}
  folders = {names.folder(config) for config in configs}
  assert {"fed_prox_mu_0.01", "q_fed_avg_q_0.1", "tilted_erm_t_1"} <= folders


# A whole experiment.

_SWEEP = """
import dataclasses
from tff_superquantile.experiments import cli, sweep
from tff_superquantile.experiments.plan import preset as preset_lib
from tff_superquantile.experiments.plan import presets
presets.PRESETS["synthetic"] = dataclasses.replace(
  presets.PRESETS["synthetic"],
  thetas=(),
  seeds=(0, 1),
  baselines=(
    dict(algorithm="q_fed_avg", q=preset_lib.Grid((5.0, 0.001), default=5.0)),
  ),
  variants=(),
)
raise SystemExit(cli.run(sweep))
"""
_ARGUMENTS = ("--experiment=synthetic", "--num_rounds=3", "--output_dir=whole")
_TRIED = {5.0: "q_fed_avg_q_5", 0.001: "q_fed_avg_q_0.001"}


def _files(folder):
  """{path: (content, time)} of what the runs have left, but for those that say how it went."""
  return {
    path: (data, (folder / path).stat().st_mtime_ns)
    for path, data in commands.contents(folder).items()
    if "/seed_" in path and pathlib.Path(path).name not in ("log.txt", "lock")
  }


def test_an_experiment_that_a_queue_tunes_and_a_sweep_ends(lab):
  folder = lab.folder / "whole"

  def sweep(*more):
    command = lab.fork("-c", _SWEEP, *lab.small([*_ARGUMENTS, *more]))
    result = command.wait()
    assert result.code == 0 and not command.left_behind(), result.err
    assert (command.num_seen() > 1) == (not more)  # Its runs, too.
    return result

  def printed(said, *more):
    """The folders of the runs that can start now."""
    result = sweep("--print_commands", *more)
    assert result.err == f"{said}\n"
    return [str(names.run_path(c)) for c in _configs(result.out.splitlines())], result.out

  said = "2 of 2 runs are left: tuning each method on validation clients"
  folders, lines = printed(said, "--tune=methods")
  assert not folder.exists()
  assert folders == [f"whole/tuning/synthetic/{method}/seed_0" for method in _TRIED.values()]
  # As a queue of a cluster does, two at a time; test_job_array gives such a line to a shell.
  jobs = [lab.fork(*shlex.split(line)[1:]) for line in lines.splitlines()]
  for job in jobs:
    result = job.wait()
    assert result.code == 0, result.err
  p90 = {
    q: json.loads((lab.folder / path / "metrics.json").read_text())["validation"]["error"]["p90"]
    for q, path in zip(_TRIED, folders)
  }
  assert p90[0.001] < p90[5.0]  # The best is not the first, nor the default.
  after_tuning = _files(folder)
  methods = ("fed_avg", _TRIED[0.001])
  compared = [f"whole/synthetic/{method}/seed_{seed}" for seed in (0, 1) for method in methods]
  assert printed("4 of 4 runs are left: every method with every seed")[0] == compared
  assert sweep().out.splitlines()[:3] == [
    "Experiment synthetic into whole/synthetic",
    "2 runs: tuning each method on validation clients",
    "4 runs: every method with every seed",
  ]
  runs = run_folder.find_runs(folder)
  assert {(run.method, run.seed) for run in runs} == {(m, s) for m in methods for s in (0, 1)}
  assert all(run.finished and run.last_round == 3 for run in runs)
  # What was finished elsewhere is not run again.
  files = _files(folder)
  assert {path: files.get(path) for path in after_tuning} == after_tuning != {}
  (entry,) = json.loads((folder / "synthetic" / "tuning.json").read_text())
  assert entry["tried"] == [{"q": q, "result": result} for q, result in p90.items()]
  assert (entry["criterion"], entry["chosen"]) == (_P90, {"q": 0.001})
  report = (folder / "synthetic" / "report.md").read_text(encoding="utf-8")
  labels = [names.label(run_config.from_values(algorithm="q_fed_avg", q=q)) for q in _TRIED]
  assert [label in report for label in labels] == [False, True]
  assert not list((folder / "tuning").rglob("report.*"))
  done = "All runs are done; the same command without --print_commands reports."
  assert printed(done) == ([], "")
