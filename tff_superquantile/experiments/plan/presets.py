"""The experiments that `run_experiments.sh` knows by name."""

from collections.abc import Mapping
from typing import Any

from tff_superquantile.experiments.plan import preset as preset_lib

_FIVE_SEEDS = (0, 1, 2, 3, 4)
# The synthetic task has validation clients of its own.
_SYNTHETIC: Mapping[str, Any] = dict(task="synthetic", validation_fraction=0.0)
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

# The paper's delta, norms of gradients and grid. The values without tuning are the best of the
# paper's grid at epsilon 5, for all epsilons.
_PAPERS_UNITS = dict(delta=1 / 2500, clip_unit="gradient")
# The paper's norms, 0.9 to 1.5, are quantiles over clients as they train, which cost budget. Of
# FedAvg's gradients in rounds 500 to 1000, the median and the 0.9-quantile are 0.95 and 1.35 over
# training clients, and 1.7 and 2.4 over the validation clients, who are nobody's secret.
_CLIP_NORMS = (0.9, 1.3, 1.7, 2.4)
_BUDGET_RATIO = dict(rho_ratio=preset_lib.Grid((0.1, 0.25, 0.5, 0.75), default=None, tune="all"))
_PRIVATE_SYNTHETIC = dict(
  fed_avg=dict(
    _PAPERS_UNITS, clip_norm=preset_lib.Grid((0.9, 1.5, 1.7, 2.4), default=1.5, tune="all")
  ),
  geometric=dict(
    _PAPERS_UNITS,
    **_BUDGET_RATIO,
    clip_norm=preset_lib.Grid(_CLIP_NORMS, default=1.3, tune="all"),
  ),
  tree=dict(
    _PAPERS_UNITS,
    **_BUDGET_RATIO,
    clip_norm=preset_lib.Grid(_CLIP_NORMS, default=1.3, tune="all"),
    max_loss=preset_lib.Grid((0.7, 0.9, 1.1, 1.3, 1.5), default=0.9, tune="all"),
    num_bins=preset_lib.Grid((16, 32, 64), default=16, tune="all"),
  ),
)
_FEW_ROUNDS = dict(num_rounds=60, rounds_per_evaluation=20)
_FEWER_ROUNDS = dict(num_rounds=20, rounds_per_evaluation=5)


def _of_the_paper(
  task: str, quick_flags: Mapping[str, Any], *shared_grids: preset_lib.SharedGrid
) -> preset_lib.Preset:
  """Returns the paper's comparison of all methods on a task."""
  return preset_lib.Preset(
    task=task,
    thetas=_THETAS_OF_THE_PAPER,
    seeds=_FIVE_SEEDS,
    quick_flags=quick_flags,
    baselines=_BASELINES,
    shared_grids=shared_grids,
  )


def _weighted(**flags: Any) -> dict[str, Mapping[str, Any]]:
  """Returns the flags of private methods without a threshold, whose losses above B count as B.

  With a smaller B shares are larger, beside the same noise.
  """
  by_loss = dict.fromkeys(("q_fed_avg", "tilted_erm", "prop_fair"), flags)
  return {**by_loss, **dict.fromkeys(("semi_vred", "gifair"), {**flags, "num_bins": 16})}


def _private_fairness(utility_bounds: preset_lib.Grid, **fields: Any) -> preset_lib.Preset:
  """Returns the comparison of every method that can be private, with and without budgets.

  Args:
    utility_bounds: Values of PropFair's M, which are above B.
    **fields: The task's own fields of the preset.
  """
  return preset_lib.Preset(
    thetas=(0.5, 0.25),
    seeds=_FIVE_SEEDS,
    baselines=(
      dict(algorithm="q_fed_avg", q=preset_lib.Grid((0.3, 1.0, 3.0, 10.0), default=3.0)),
      dict(algorithm="tilted_erm", temperature=preset_lib.Grid((0.3, 1.0, 3.0, 10.0), default=3.0)),
      dict(algorithm="prop_fair", utility_bound=utility_bounds),
      dict(algorithm="semi_vred", beta=preset_lib.Grid((1.0, 3.0, 10.0), default=3.0)),
      dict(algorithm="gifair", fairness_strength=preset_lib.Grid((0.3, 1.0), default=1.0)),
      dict(algorithm="aaggff", decision_step=preset_lib.Grid((0.1, 1.0, 10.0), default=1.0)),
    ),
    variants=tuple(dict(theta=theta, threshold="primal_dual") for theta in (0.5, 0.25)),
    with_public=True,
    **fields,
  )


PRESETS: Mapping[str, preset_lib.Preset] = {
  "default": preset_lib.Preset(
    **_SYNTHETIC,
    thetas=(0.5, 0.25),
    seeds=(0,),
    flags=dict(num_rounds=500, rounds_per_evaluation=25),
    quick_flags=dict(num_rounds=50, rounds_per_evaluation=10),
  ),
  "synthetic": preset_lib.Preset(
    **_SYNTHETIC,
    thetas=(0.8, 0.5, 0.25, 0.1),
    seeds=_FIVE_SEEDS,
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
    _FEW_ROUNDS,
    preset_lib.SharedGrid(
      {"client_learning_rate": (0.003, 0.01, 0.03, 0.1)}, preset_lib.TRAIN_LOSS
    ),
    _L2,
  ),
  "emnist_convnet": _of_the_paper(
    "emnist_convnet",
    _FEWER_ROUNDS,
    preset_lib.SharedGrid(
      {"client_learning_rate": (0.03, 0.1, 0.3), "learning_rate_decay": _DECAYS},
      preset_lib.TRAIN_LOSS,
    ),
  ),
  "sent140_linear": _of_the_paper(
    "sent140_linear",
    _FEW_ROUNDS,
    preset_lib.SharedGrid({"client_learning_rate": (0.01, 0.03, 0.1, 0.3)}, preset_lib.TRAIN_LOSS),
    _L2,
  ),
  "sent140_lstm": _of_the_paper(
    "sent140_lstm",
    _FEWER_ROUNDS,
    preset_lib.SharedGrid(
      {"client_learning_rate": (0.5, 1.0, 2.0), "learning_rate_decay": _DECAYS},
      preset_lib.TRAIN_LOSS,
    ),
  ),
  "shakespeare": preset_lib.Preset(
    task="shakespeare",
    thetas=(0.5, 0.25),
    seeds=(0,),
    quick_flags=_FEWER_ROUNDS,
    shared_grids=(
      preset_lib.SharedGrid({"client_learning_rate": (0.4, 0.8, 1.6)}, preset_lib.TRAIN_LOSS),
    ),
  ),
  "own": preset_lib.Preset(
    task="own",
    thetas=(0.5, 0.25),
    seeds=(0,),
    quick_flags=dict(num_rounds=20, rounds_per_evaluation=5),
    describes_data=True,
  ),
  "personalization": preset_lib.Preset(
    task="emnist_convnet",
    thetas=_THETAS_OF_THE_PAPER,
    seeds=_FIVE_SEEDS,
    quick_flags=_FEWER_ROUNDS,
    evaluation="personalization",
  ),
  "model_family": preset_lib.Preset(
    task="emnist_linear",
    thetas=_THETAS_OF_THE_PAPER,
    seeds=_FIVE_SEEDS,
    quick_flags=_FEW_ROUNDS,
    evaluation="model_family",
  ),
  "availability": preset_lib.Preset(
    **_SYNTHETIC,
    thetas=(0.5, 0.25),
    seeds=_FIVE_SEEDS,
    # Few clients and a step that is not small: so the noise of a small tail shows at night.
    # Evaluations every 5 rounds see every hour of the day in turn.
    flags=dict(
      sampling="diurnal", clients_per_round=20, client_learning_rate=0.2, rounds_per_evaluation=5
    ),
    quick_flags=dict(num_rounds=120),
    variants=(dict(wanted_updates=5, min_theta=0.1, max_theta=1.0),),
    evaluation="availability",
  ),
  "private_synthetic": preset_lib.Preset(
    **_SYNTHETIC,
    thetas=(0.5, 0.25),
    seeds=_FIVE_SEEDS,
    quick_flags=dict(num_rounds=50, rounds_per_evaluation=10),
    epsilons=(3.0, 5.0, 10.0, 15.0, 20.0),
    private_flags=_PRIVATE_SYNTHETIC,
  ),
  "private_fairness": _private_fairness(
    **_SYNTHETIC,
    quick_flags=dict(num_rounds=50, rounds_per_evaluation=10),
    epsilons=(1.0, 3.0, 5.0, 10.0, 20.0),
    utility_bounds=preset_lib.Grid((1.6, 2.0, 3.0), default=2.0),
    private_flags={
      **_PRIVATE_SYNTHETIC,
      "primal_dual": _PRIVATE_SYNTHETIC["geometric"],
      **_weighted(**_PAPERS_UNITS, clip_norm=1.5, max_loss=0.9),
    },
  ),
  "private_fairness_emnist": _private_fairness(
    task="emnist_linear",
    flags=dict(num_rounds=100, rounds_per_evaluation=10),
    quick_flags=_FEWER_ROUNDS,
    # Hundreds or thousands of writers are few: with a smaller budget nothing is learned.
    epsilons=(5.0, 10.0, 20.0),
    # Above the task's B of 4, which runs without a budget have.
    utility_bounds=preset_lib.Grid((4.5, 6.0, 10.0), default=6.0),
    private_flags={
      "fed_avg": dict(clip_norm="adaptive"),
      "geometric": dict(clip_norm="adaptive", max_loss=2.0),
      "primal_dual": dict(clip_norm="adaptive", max_loss=2.0),
      "tree": dict(clip_norm="adaptive", max_loss=2.0, num_bins=16),
      **_weighted(clip_norm="adaptive", max_loss=2.0),
    },
  ),
}
