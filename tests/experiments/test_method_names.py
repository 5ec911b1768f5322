"""Names of methods: from flags to folders, and from folders to what people read."""

import dataclasses
import math
import pathlib
import random

from absl import flags
import pytest

from tff_superquantile.experiments import train_flags  # noqa: F401  Defines the flags.
from tff_superquantile.experiments.plan import presets
from tff_superquantile.experiments.plan import tuning
from tff_superquantile.experiments.run import names
from tff_superquantile.experiments.run import run_config


def _config(**values):
  return run_config.RunConfig(**values)


# (flags, folder, name for people), in the order of the paper's tables.
_METHODS = (
  (dict(algorithm="fed_avg"), "fed_avg", "FedAvg"),
  (
    dict(algorithm="fed_avg_sub", theta=0.8),
    "fed_avg_sub_theta_0.8",
    "FedAvg-Sub θ = 0.8",
  ),
  (dict(algorithm="fed_avg_sub", theta=0.1), "fed_avg_sub_theta_0.1", "FedAvg-Sub θ = 0.1"),
  (dict(algorithm="fed_prox", proximal_weight=0.01), "fed_prox_mu_0.01", "FedProx μ = 0.01"),
  (dict(algorithm="q_fed_avg", q=1e-5), "q_fed_avg_q_1e-05", "q-FFL q = 1e-05"),
  (dict(algorithm="q_fed_avg", q=9.0), "q_fed_avg_q_9", "q-FFL q = 9"),
  (dict(algorithm="q_fed_avg", q=100.0), "q_fed_avg_q_100", "q-FFL q = 100"),
  (dict(algorithm="tilted_erm", temperature=5.0), "tilted_erm_t_5", "Tilted-ERM t = 5"),
  (
    dict(algorithm="tilted_erm", temperature=5.0, moving_average_rate=0.2),
    "tilted_erm_t_5_average_0.2",
    "Tilted-ERM t = 5, moving average = 0.2",
  ),
  (dict(algorithm="tilted_erm", temperature=200.0), "tilted_erm_t_200", "Tilted-ERM t = 200"),
  (dict(algorithm="q_fed_avg", q=10.0), "q_fed_avg_q_10", "AFL (q-FFL q = 10)"),
  (
    dict(algorithm="agnostic_fed_avg", ascent_rate=1e-3),
    "agnostic_fed_avg_rate_0.001",
    "Agnostic FedAvg rate = 0.001",
  ),
  (dict(theta=1.0), "superquantile_theta_1", "Superquantile θ = 1"),
  (dict(theta=0.8, threshold="exact"), "superquantile_theta_0.8", "Superquantile θ = 0.8"),
  (
    dict(theta=0.5, threshold="reweighting"),
    "superquantile_theta_0.5_reweighting",
    "Superquantile θ = 0.5, reweighting",
  ),
  (
    dict(theta=0.5, threshold="reweighting", smoothing=0.05),
    "superquantile_theta_0.5_reweighting_smoothing_0.05",
    "Superquantile θ = 0.5, reweighting, ν = 0.05",
  ),
  (
    dict(
      theta=0.5,
      threshold="geometric",
      threshold_noise_multiplier=2.0,
      update_noise_multiplier=1.5,
    ),
    "superquantile_theta_0.5_geometric_z_2_update_z_1.5",
    "Superquantile θ = 0.5, geometric, z = 2, update z = 1.5",
  ),
  (dict(theta=0.05), "superquantile_theta_0.05", "Superquantile θ = 0.05"),
  # Who decides theta by the number of updates has none of its own.
  (dict(wanted_updates=25), "superquantile_updates_25", "Superquantile updates = 25"),
  (
    dict(algorithm="fed_avg", epsilon=0.5, update_sum="distributed"),
    "fed_avg_distributed_epsilon_0.5",
    "FedAvg, distributed noise, ε = 0.5",
  ),
  (
    dict(algorithm="fed_avg", epsilon=0.5, update_sum="distributed", noise_shares="helpers"),
    "fed_avg_distributed_helpers_epsilon_0.5",
    "FedAvg, distributed noise, helpers, ε = 0.5",
  ),
  (
    dict(algorithm="fed_avg", epsilon=0.5, relation="replace_one"),
    "fed_avg_replace_one_epsilon_0.5",
    "FedAvg, replace one, ε = 0.5",
  ),
  (
    dict(theta=0.25, epsilon=0.5, threshold="tree"),
    "superquantile_theta_0.25_tree_epsilon_0.5",
    "Superquantile θ = 0.25, tree, ε = 0.5",
  ),
  (
    dict(
      theta=0.25,
      epsilon=0.5,
      threshold="tree",
      noise_shares="private_coin",
      contacted_clients=300,
      relation="replace_one",
    ),
    "superquantile_theta_0.25_tree_private_coin_replace_one_epsilon_0.5",
    "Superquantile θ = 0.25, tree, private coin, replace one, ε = 0.5",
  ),
  (dict(algorithm="fed_avg", epsilon=15.0), "fed_avg_epsilon_15", "FedAvg, ε = 15"),
)
_FOLDERS = [folder for _, folder, _ in _METHODS]


@pytest.mark.parametrize("values, folder, name", _METHODS, ids=_FOLDERS)
def test_flags_make_the_folder_that_people_read(values, folder, name):
  assert names.folder(_config(**values)) == folder
  assert names.display_name(folder) == name


def test_every_algorithm_is_named_here():
  assert {_config(**values).algorithm for values, *_ in _METHODS} == set(names.ALGORITHMS)
  assert tuple(flags.FLAGS["algorithm"].parser.enum_values) == names.ALGORITHMS


@pytest.mark.parametrize("values, folder, name", _METHODS, ids=_FOLDERS)
def test_numbers_of_the_flags_are_read_back_from_the_folder(values, folder, name):
  del name
  config = _config(**values)
  has_theta = config.algorithm in ("superquantile", "fed_avg_sub")
  has_theta = has_theta and config.wanted_updates is None
  assert names.theta_of(folder) == (config.theta if has_theta else None)
  assert names.epsilon_of(folder) == config.epsilon


def test_flags_of_other_algorithms_are_no_part_of_the_folder():
  everything = dict(
    theta=0.3, proximal_weight=1.0, q=2.0, temperature=4.0, ascent_rate=5.0, threshold="tree"
  )
  expected = {
    "fed_avg": "fed_avg",
    "fed_avg_sub": "fed_avg_sub_theta_0.3",
    "fed_prox": "fed_prox_mu_1",
    "q_fed_avg": "q_fed_avg_q_2",
    "tilted_erm": "tilted_erm_t_4",
    "agnostic_fed_avg": "agnostic_fed_avg_rate_5",
    "superquantile": "superquantile_theta_0.3_tree",
  }
  assert expected == {
    algorithm: names.folder(_config(algorithm=algorithm, **everything))
    for algorithm in names.ALGORITHMS
  }


def test_methods_are_ordered_as_in_the_papers_tables():
  others = ["mine", "zz"]
  shuffled = [*_FOLDERS, *others]
  random.Random(0).shuffle(shuffled)
  private = _FOLDERS.index("fed_avg_distributed_epsilon_0.5")
  expected = [*_FOLDERS[:private], *others, *_FOLDERS[private:]]
  assert sorted(shuffled, key=names.order) == expected


def test_numbers_are_ordered_as_numbers():
  temperatures = [f"tilted_erm_t_{t}" for t in ("1e-05", "0.5", "9", "10", "200", "1e+06")]
  assert sorted(sorted(temperatures), key=names.order) == temperatures


@pytest.mark.parametrize(
  "method, afl", [("q_fed_avg_q_10", True), ("q_fed_avg_q_1", False), ("q_fed_avg_q_100", False)]
)
def test_afl_is_q_fed_avg_with_exponent_ten(method, afl):
  assert names.is_afl(method) == afl
  assert ("AFL" in names.display_name(method)) == afl


def test_other_numbers_that_are_ten_are_no_afl():
  for method in ("fed_avg", "fed_prox_mu_10", "tilted_erm_t_10", "mine_q_10"):
    assert not names.is_afl(method)
    assert "AFL" not in names.display_name(method)


@pytest.mark.parametrize("values, folder, name", _METHODS, ids=_FOLDERS)
def test_without_epsilon_is_the_folder_of_the_same_flags_without(values, folder, name):
  del name
  without = names.folder(_config(**{**values, "epsilon": None}))
  assert names.without_epsilon(folder) == without
  assert names.epsilon_of(without) is None


@pytest.mark.parametrize(
  "method, expected",
  [
    ("mine_epsilon_1e-05", "mine"),
    ("mine_epsilon_0.5_b", "mine_b"),
    ("mine_epsilon_5b", "mine_epsilon_5b"),
    ("mine_epsilon_small", "mine_epsilon_small"),
  ],
)
def test_epsilon_is_removed_where_a_number_follows(method, expected):
  assert names.without_epsilon(method) == expected


_NO_METHODS = (
  *("", "_", "mine", "tilted", "fed", "fed_avg_", "fed_avg2", "my_fed_avg", "fed_avg fed_avg"),
  *("superquantile_theta_", "superquantile_theta_half", "superquantile_theta_-0.5"),
  *("superquantile_theta_0.5_", "superquantile_theta_0.5_forest", "superquantile_theta_0.5x"),
  *("superquantile_theta_nan", "superquantile_theta_inf", "superquantile_theta_1e", "theta_0.5"),
  *("Fed_avg", "fed_avg_epsilon_5%", "fed_avg/epsilon_5", "seed_0", "q_fed_avg_q_.5"),
)


@pytest.mark.parametrize("name", _NO_METHODS)
def test_folder_of_another_name_is_shown_as_it_is_and_comes_last(name):
  assert names.display_name(name) == name
  assert names.theta_of(name) is None
  assert names.epsilon_of(name) is None
  assert names.order(name) > names.order("superquantile_updates_25")


@pytest.mark.parametrize("method", ["fed_avg", "superquantile_theta_0.5", "mine"])
@pytest.mark.parametrize("letter", ["\n", "\x1b", "\r", "\0", "\x7f", "\u202e", "\u200b"])
def test_letters_that_do_not_print_are_replaced(method, letter):
  for name in (letter + method, method + letter, method + letter + "[2J"):
    shown = names.display_name(name)
    assert shown == name.replace(letter, "\N{REPLACEMENT CHARACTER}")
    assert shown.isprintable()
    assert names.theta_of(name) is None


def test_hostile_names_of_any_length_are_ordered_at_once():
  # A pattern that backtracks would take hours.
  hostile = ["superquantile" + "_tree" * 3000 + "x", "fed_avg" + "_q_1" * 3000 + "_", "_" * 20000]
  assert [names.display_name(name) for name in hostile] == hostile
  ordered = sorted([*hostile, "fed_avg"], key=names.order)
  assert ordered[0] == "fed_avg" and set(ordered[1:]) == set(hostile)


# Folders of tasks and runs.


@pytest.mark.parametrize(
  "values, folder, title",
  [
    (dict(task="synthetic"), "synthetic", "synthetic"),
    (dict(task="sent140_lstm"), "sent140_lstm", "sent140_lstm"),
    (
      dict(task="emnist_linear", data="standin"),
      "emnist_linear_standin",
      "emnist_linear (stand-in: generated data)",
    ),
    (
      dict(task="synthetic", sampling="diurnal"),
      "synthetic_diurnal",
      "synthetic (clients come and go by the hour)",
    ),
    (
      dict(task="sent140_lstm", data="standin", sampling="diurnal"),
      "sent140_lstm_standin_diurnal",
      "sent140_lstm (stand-in: generated data) (clients come and go by the hour)",
    ),
  ],
)
def test_what_cannot_be_compared_has_a_folder_of_its_own_and_says_so(values, folder, title):
  assert names.task_folder(_config(**values)) == folder
  assert names.task_title(folder) == title


def test_titles_of_tasks_hold_nothing_that_does_not_print():
  assert names.task_title("a\x1b[2J_standin") == "a�[2J (stand-in: generated data)"
  assert names.task_title("a\nb") == "a�b"


def test_run_path_is_task_method_and_seed_below_the_output_directory():
  config = _config(
    algorithm="q_fed_avg", q=0.1, task="emnist_convnet", data="standin", seed=3, output_dir="a/b"
  )
  assert names.run_path(config) == pathlib.Path("a/b/emnist_convnet_standin/q_fed_avg_q_0.1/seed_3")


def test_run_name_replaces_the_methods_name():
  config = _config(algorithm="q_fed_avg", q=0.1, run_name="mine", output_dir="out")
  assert names.folder(config) == "mine"
  assert names.run_path(config) == pathlib.Path("out/synthetic/mine/seed_0")


# The experiments.


def _runs_of_a_preset(preset):
  """A config of each of its methods, with every value that is to be tuned."""
  for method in preset.methods():
    settings = {**dataclasses.asdict(_config()), "task": preset.task, **preset.flags, **method}
    for candidate in tuning.method_search(preset, settings).candidates:
      yield candidate.config


@pytest.mark.parametrize("name", presets.PRESETS)
def test_methods_of_an_experiment_have_folders_of_their_own_that_can_be_read(name):
  preset = presets.PRESETS[name]
  folders = [names.folder(config) for config in _runs_of_a_preset(preset)]
  assert len(set(folders)) == len(folders)
  shown = [names.display_name(folder) for folder in folders]
  assert not set(shown) & set(folders)
  assert len(set(shown)) == len(shown)
  assert folders[0].startswith("fed_avg") and shown[0].startswith("FedAvg")
  budgets = {names.epsilon_of(folder) for folder in folders}
  assert budgets == (set(preset.epsilons) or {None})


@pytest.mark.parametrize("name", presets.PRESETS)
def test_methods_of_an_experiment_have_their_parameters_and_no_others(name):
  every = {flag for names in names.PARAMETERS.values() for flag in names}
  for method in presets.PRESETS[name].methods():
    own = set(names.PARAMETERS.get(method["algorithm"], ()))
    assert method.keys() & every <= own
    for flag in method.keys() & every:
      assert flags.FLAGS[flag].default is None or flag == "theta"
    needed = own - {"moving_average_rate", "wanted_updates", "theta"}
    assert needed <= method.keys()
    for value in method.values():
      if isinstance(value, presets.Grid):
        assert value.default in value.values and len(set(value.values)) == len(value.values) > 1
        assert all(math.isfinite(number) and number > 0 for number in value.values)


def test_paper_experiments_compare_with_every_baseline():
  for name in ("synthetic", "emnist_linear", "emnist_convnet", "sent140_linear", "sent140_lstm"):
    folders = [names.folder(config) for config in _runs_of_a_preset(presets.PRESETS[name])]
    shown = " ".join(map(names.display_name, folders))
    for expected in ("FedAvg", "FedAvg-Sub", "FedProx", "q-FFL", "Tilted-ERM", "AFL", "Agnostic"):
      assert expected in shown, name
