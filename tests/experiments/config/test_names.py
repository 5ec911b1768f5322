"""Names of runs: from a config to its folder and to what people read."""

import pathlib
import random

import pytest

from tff_superquantile.experiments.config import methods
from tff_superquantile.experiments.config import names
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.plan import presets
from tff_superquantile.experiments.plan import tuning


def _config(**values):
  return run_config.from_values(**values)


def _name(**values):
  config = _config(**values)
  return names.Name(names.folder(config), config)


def _other(folder):
  """The name of a folder whose flags cannot be read."""
  return names.Name(folder)


def _order(name):
  return name.order


# In the order of the paper's tables; kept_results/configs.json has such runs' folders and labels.
_METHODS = (
  dict(algorithm="fed_avg"),
  dict(algorithm="fed_avg_sub", theta=0.8),
  dict(algorithm="fed_avg_sub", theta=0.1),
  dict(algorithm="fed_prox", proximal_weight=0.01),
  *(dict(algorithm="q_fed_avg", q=q) for q in (1e-5, 9.0, 100.0)),
  dict(algorithm="tilted_erm", temperature=5.0),
  dict(algorithm="tilted_erm", temperature=5.0, moving_average_rate=0.2),
  dict(algorithm="tilted_erm", temperature=200.0),
  dict(algorithm="q_fed_avg", q=10.0),  # AFL.
  dict(algorithm="agnostic_fed_avg", ascent_rate=1e-3),
  dict(algorithm="prop_fair", utility_bound=5.0),
  dict(algorithm="prop_fair", utility_bound=5.0, share_weight=0.5),
  dict(algorithm="semi_vred", beta=0.5),
  dict(algorithm="gifair", fairness_strength=1.0),
  dict(algorithm="eagle", gap_strength=3.0),
  dict(algorithm="aaggff"),
  dict(algorithm="aaggff", decision_step=2.0),
  dict(theta=1.0),
  dict(theta=0.8, threshold="exact"),
  dict(theta=0.5, threshold="reweighting"),
  dict(theta=0.5, threshold="reweighting", smoothing=0.05),
  dict(threshold="geometric", threshold_noise_multiplier=2.0, update_noise_multiplier=1.5),
  dict(theta=0.05),
  dict(algorithm="fed_avg", epsilon=0.5, update_sum="distributed"),
  dict(algorithm="fed_avg", epsilon=0.5, update_sum="distributed", noise_shares="helpers"),
  dict(algorithm="fed_avg", epsilon=0.5, relation="replace_one"),
  dict(theta=0.25, epsilon=0.5, threshold="tree"),
  dict(
    **dict(theta=0.25, epsilon=0.5, threshold="tree", noise_shares="private_coin"),
    **dict(contacted_clients=300, relation="replace_one"),
  ),
  dict(algorithm="fed_avg", epsilon=15.0),
)


@pytest.mark.parametrize("values", _METHODS, ids=lambda values: str(_name(**values)))
def test_names_know_what_the_flags_say(values):
  config, own = _config(**values), _name(**values)
  has_theta = config.algorithm in ("superquantile", "fed_avg_sub")
  assert own.theta == (values.get("theta", 0.5) if has_theta else None)
  assert own.epsilon == config.epsilon
  assert own.is_superquantile == (config.algorithm == "superquantile")
  assert own.without_epsilon == own.removesuffix(f"_epsilon_{values.get('epsilon', 0):g}")
  assert own.without_epsilon.epsilon is None
  if "epsilon" in values:  # What follows from a budget changes no name.
    resolved = dict(update_noise_multiplier=2.0, delta=1e-5, rho_ratio=0.5)
    if "threshold" in values:
      resolved["threshold_noise_multiplier"] = 3.0
    calibrated = _name(**values, **resolved)
    assert (calibrated, calibrated.label) == (own, own.label)
    assert calibrated.without_epsilon == own.without_epsilon


def test_every_algorithm_is_named_here():
  assert {_config(**values).algorithm for values in _METHODS} == set(methods.METHODS)
  assert run_config.flags()["algorithm"].choices == tuple(methods.METHODS)


def test_methods_are_ordered_as_in_the_papers_tables():
  ordered = [_name(**values) for values in _METHODS]
  others = [_other("mine"), _name(run_name="zz")]
  private = ordered.index("fed_avg_distributed_epsilon_0.5")
  expected = [*ordered[:private], *others, *ordered[private:]]
  shuffled = list(expected)
  random.Random(0).shuffle(shuffled)
  assert sorted(shuffled, key=_order) == expected


def test_the_baseline_is_fed_avg_with_the_same_options():
  # Others are in kept_results/configs.json.
  name = _name(theta=0.5, initial_weights="r/t/fed_avg/seed_0", run_name="mine")
  assert name.fed_avg == "fed_avg_from_fed_avg" and name.fed_avg.is_fed_avg
  assert name.fed_avg.fed_avg == name.fed_avg and not name.is_fed_avg


def test_runs_of_another_setting_have_no_baseline():
  fed_avg = _name(algorithm="fed_avg", local_epochs=1)
  same = _name(theta=0.5, local_epochs=1, run_name="mine")
  others = [
    _name(**values, local_epochs=5, run_name=f"five_{i}")
    for i, values in enumerate((dict(theta=0.5), dict(algorithm="fed_avg")))
  ]
  assert names.baselines([fed_avg, same, *others]) == {same: fed_avg}


def test_baselines_are_those_that_are_there():
  adam = dict(server_optimizer="adam")
  compared = [
    _name(algorithm="fed_avg"),
    _name(algorithm="fed_avg", **adam),
    _name(algorithm="fed_avg", server_optimizer="yogi"),
    _name(theta=0.5),
    _name(theta=0.5, **adam),
    _name(theta=0.5, server_optimizer="adagrad"),
    _other("torn"),
  ]
  assert names.baselines(compared) == {
    "superquantile_theta_0.5": "fed_avg",
    "superquantile_theta_0.5_adam": "fed_avg_adam",
    "torn": "fed_avg",
    "fed_avg_yogi": "fed_avg",
  }
  assert names.baselines(compared[1:3]) == {}


@pytest.mark.parametrize("name", ["mine", "superquantile_theta_0.5", "fed_avg_epsilon_5"])
def test_a_folder_is_not_taken_apart(name):
  # Whatever it is called, its flags say what it is; without any it is just a name, and comes last.
  for found in (_other(name), _name(algorithm="fed_avg", run_name=name)):
    assert found.label == name
    assert found.theta is None and found.epsilon is None and not found.is_superquantile
    assert found.order > _name(theta=0.05).order
  assert _name(theta=0.25, run_name=name).theta == 0.25


@pytest.mark.parametrize("letter", ["\n", "\x1b", "\r", "\0", "\x7f", "\u202e", "\u200b"])
def test_letters_that_do_not_print_are_replaced(letter):
  for name in (letter + "mine", "mine" + letter, "mine" + letter + "[2J"):
    shown = name.replace(letter, "\N{REPLACEMENT CHARACTER}")
    assert shown.isprintable()
    assert _other(name).label == shown
    assert names.Name(name, _config(run_name=name)).label == shown


@pytest.mark.parametrize(
  "values, path, title",
  [
    (dict(task="synthetic"), "results/synthetic/superquantile_theta_0.5/seed_0", "synthetic"),
    (
      dict(algorithm="q_fed_avg", q=0.1, task="emnist_linear", data="standin", seed=3),
      "results/emnist_linear_standin/q_fed_avg_q_0.1/seed_3",
      "emnist_linear (stand-in: generated data)",
    ),
    # A name replaces the method's; letters that do not print are replaced.
    (dict(task="a\x1b", run_name="mine", output_dir="a/b"), "a/b/a\x1b/mine/seed_0", "a\ufffd"),
  ],
)
def test_a_run_has_a_folder_and_its_task_a_title(values, path, title):
  assert names.run_path(_config(**values)) == pathlib.Path(path)
  assert names.task_title(_config(**values)) == title


# The experiments.


def _runs_of_a_preset(preset):
  """A config of each of its methods, with every value of the method's own that is to be tuned."""
  for method in preset.methods():
    settings = {**run_config.defaults(), "task": preset.task, **preset.flags, **method}
    settings = tuning.with_defaults(settings, "methods")
    if tuning.is_tuned(settings):
      yield from (found.config for found in tuning.method_search(preset, settings).candidates)
    else:
      yield run_config.from_values(**settings)


@pytest.mark.parametrize("name", presets.PRESETS)
def test_methods_of_an_experiment_have_folders_of_their_own_that_can_be_read(name):
  preset = presets.PRESETS[name]
  found = [names.Name(names.folder(config), config) for config in _runs_of_a_preset(preset)]
  folders = [str(name) for name in found]
  assert len(set(folders)) == len(folders)
  shown = [name.label for name in found]
  named = {name.label for name in found if name.config.run_name}
  assert set(shown) & set(folders) == named
  assert len(set(shown)) == len(shown)
  assert folders[0].startswith("fed_avg") and shown[0].startswith("FedAvg")
  budgets = {name.epsilon for name in found}
  without = {None} if preset.with_public or not preset.epsilons else set()
  assert budgets == set(preset.epsilons) | without
