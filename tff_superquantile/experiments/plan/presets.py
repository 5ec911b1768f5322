"""The experiments that `run_experiments.sh` knows by name."""

from collections.abc import Mapping
from typing import Any

from tff_superquantile.experiments.config import names
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.plan import preset as preset_lib
from tff_superquantile.experiments.plan import private_presets

_THETAS_OF_THE_PAPER = (0.8, 0.5, 0.1)
# The paper's grids. The paper runs q-FFL with q = 10 for AFL; agnostic FedAvg is the real one.
_BASELINES = (
  *(dict(algorithm="fed_avg_sub", theta=theta) for theta in _THETAS_OF_THE_PAPER),
  dict(
    algorithm="fed_prox", proximal_weight=preset_lib.Grid((1.0, 0.1, 0.01, 0.001), default=0.01)
  ),
  dict(algorithm="q_fed_avg", q=preset_lib.Grid((0.001, 0.01, 0.1, 1.0), default=0.1)),
  dict(
    algorithm="tilted_erm",
    temperature=preset_lib.Grid((0.1, 0.5, 1.0, 5.0, 10.0, 50.0, 100.0, 200.0), default=1.0),
  ),
  dict(algorithm="q_fed_avg", q=10.0),
  dict(algorithm="agnostic_fed_avg", ascent_rate=preset_lib.Grid((0.01, 0.1, 1.0), default=0.1)),
)
_L2 = preset_lib.SharedGrid({"l2": (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)}, preset_lib.VALIDATION_P90)
_DECAYS = (0.125, 0.25, 0.5, 1.0)
# The paper's clients have more than 100 images, and more than 50 tweets: its 877 users are those
# with 51 or more.
_EMNIST, _SENT140 = dict(min_examples_per_client=101), dict(min_examples_per_client=51)


def _of_the_paper(
  task: str,
  data_flags: Mapping[str, Any],
  quick_flags: Mapping[str, Any],
  *shared_grids: preset_lib.SharedGrid,
) -> preset_lib.Preset:
  """Returns the paper's comparison of all methods on a task."""
  return preset_lib.Preset(
    task=task,
    data_flags=data_flags,
    thetas=_THETAS_OF_THE_PAPER,
    seeds=preset_lib.FIVE_SEEDS,
    quick_flags=quick_flags,
    baselines=_BASELINES,
    shared_grids=shared_grids,
  )


def _one_at_a_time(**method: Any) -> tuple[dict[str, Any], ...]:
  """Returns a method with each value of the settings that are 1 and 100 in the synthetic task."""
  name = names.folder(run_config.from_values(**method))
  settings = {"local_epochs": (2, 5, 10), "clients_per_round": (10, 30, 300)}
  return tuple(
    {**method, flag: value, "run_name": f"{name}_{flag}_{value}"}
    for flag, values in settings.items()
    for value in values
  )


PRESETS: Mapping[str, preset_lib.Preset] = {
  "default": preset_lib.Preset(
    **preset_lib.SYNTHETIC,
    thetas=(0.5, 0.25),
    seeds=(0,),
    flags=dict(num_rounds=500, rounds_per_evaluation=25),
    quick_flags=dict(num_rounds=50, rounds_per_evaluation=10),
  ),
  "synthetic": preset_lib.Preset(
    **preset_lib.SYNTHETIC,
    thetas=(0.8, 0.5, 0.25, 0.1),
    seeds=preset_lib.FIVE_SEEDS,
    quick_flags=dict(num_rounds=100, rounds_per_evaluation=10),
    # A single local step: FedProx is FedAvg, so there is nothing to tune.
    baselines=(
      dict(algorithm="fed_avg_sub", theta=0.5),
      dict(algorithm="fed_prox", proximal_weight=0.1),
      *(flags for flags in _BASELINES if flags["algorithm"] not in ("fed_avg_sub", "fed_prox")),
    ),
    variants=(
      dict(theta=0.5, threshold="reweighting"),
      dict(theta=0.5, threshold="reweighting", smoothing=0.05),
    ),
  ),
  "emnist_linear": _of_the_paper(
    "emnist_linear",
    _EMNIST,
    preset_lib.FEW_ROUNDS,
    preset_lib.SharedGrid(
      {"client_learning_rate": (0.003, 0.01, 0.03, 0.1)}, preset_lib.TRAIN_LOSS
    ),
    _L2,
  ),
  "emnist_convnet": _of_the_paper(
    "emnist_convnet",
    _EMNIST,
    preset_lib.FEWER_ROUNDS,
    preset_lib.SharedGrid(
      {"client_learning_rate": (0.03, 0.1, 0.3), "learning_rate_decay": _DECAYS},
      preset_lib.TRAIN_LOSS,
    ),
  ),
  "sent140_linear": _of_the_paper(
    "sent140_linear",
    _SENT140,
    preset_lib.FEW_ROUNDS,
    preset_lib.SharedGrid({"client_learning_rate": (0.03, 0.1, 0.3, 1.0)}, preset_lib.TRAIN_LOSS),
    _L2,
  ),
  "sent140_lstm": _of_the_paper(
    "sent140_lstm",
    _SENT140,
    preset_lib.FEWER_ROUNDS,
    preset_lib.SharedGrid(
      {"client_learning_rate": (0.5, 1.0, 2.0), "learning_rate_decay": _DECAYS},
      preset_lib.TRAIN_LOSS,
    ),
  ),
  "shakespeare": preset_lib.Preset(
    task="shakespeare",
    thetas=(0.5, 0.25),
    seeds=(0,),
    quick_flags=preset_lib.FEWER_ROUNDS,
    shared_grids=(
      preset_lib.SharedGrid({"client_learning_rate": (0.4, 0.8, 1.6)}, preset_lib.TRAIN_LOSS),
    ),
  ),
  "own": preset_lib.Preset(
    task="own",
    thetas=(0.5, 0.25),
    seeds=(0,),
    quick_flags=preset_lib.FEWER_ROUNDS,
    describes_data=True,
  ),
  "personalization": preset_lib.Preset(
    task="emnist_convnet",
    data_flags=_EMNIST,
    flags=dict(personalize=10),
    thetas=_THETAS_OF_THE_PAPER,
    seeds=preset_lib.FIVE_SEEDS,
    quick_flags=preset_lib.FEWER_ROUNDS,
  ),
  "model_family": preset_lib.Preset(
    task="emnist_linear",
    data_flags=_EMNIST,
    thetas=_THETAS_OF_THE_PAPER,
    seeds=preset_lib.FIVE_SEEDS,
    quick_flags=preset_lib.FEW_ROUNDS,
    evaluation="paper.studies.model_family",
  ),
  "sensitivity": preset_lib.Preset(
    **preset_lib.SYNTHETIC,
    thetas=(0.8, 0.5, 0.25, 0.1),
    seeds=preset_lib.FIVE_SEEDS,
    quick_flags=dict(num_rounds=50, rounds_per_evaluation=10),
    baselines=_one_at_a_time(algorithm="fed_avg"),
    variants=_one_at_a_time(theta=0.5),
    evaluation="paper.studies.sensitivity",
  ),
  **private_presets.PRESETS,
}
