"""The runs of the bench: every method on every data set, with the values that tuning has chosen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
import dataclasses
import itertools
import math
import pathlib
from typing import Any

from benchmarks.tailbench import sources
from privacy.settings import part
from tff_superquantile.experiments.config import methods
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.plan import preset as preset_lib
from tff_superquantile.experiments.plan import stages as stages_lib
from tff_superquantile.experiments.plan import tuning

NUM_ROUNDS, QUICK_ROUNDS = 100, 20
EPSILON = 10.0
_EPOCHS = 10  # Of personal models.
# Below it the noise of a round is too long beside an update, whatever the method.
LEAST_PRIVATE_CLIENTS = 400
QUICK_DATA_SETS = ("hsb82", "verb_agg")
# FedAvg and the theta that the bench judges: everything is measured against the first.
FED_AVG, JUDGED = "FedAvg", "Superquantile θ = 0.5"
_GRIDS = dict(
  fed_prox=dict(proximal_weight=preset_lib.Grid((0.001, 0.01, 0.1), default=0.01)),
  q_fed_avg=dict(q=preset_lib.Grid((0.1, 1.0, 5.0), default=1.0)),
  tilted_erm=dict(temperature=preset_lib.Grid((0.3, 1.0, 3.0), default=1.0)),
  agnostic_fed_avg=dict(ascent_rate=preset_lib.Grid((0.01, 0.1, 1.0), default=0.1)),
  semi_vred=dict(beta=preset_lib.Grid((1.0, 3.0, 10.0), default=3.0)),
  gifair=dict(fairness_strength=preset_lib.Grid((0.3, 1.0), default=1.0)),
  eagle=dict(gap_strength=preset_lib.Grid((1.0, 3.0, 10.0), default=3.0)),
)
_BOUND_RATIOS, _USUAL_BOUND_RATIO = (1.1, 1.4, 2.0), 1.4


def name(settings: tuning.Settings) -> str:
  """Returns the name of a method in the bench: without the values that tuning chooses."""
  kind = methods.METHODS[settings["algorithm"]]
  has_theta = "theta" in part.flags_by_field(kind)
  return f"{kind.title} θ = {settings['theta']:g}" if has_theta else kind.title


@dataclasses.dataclass(frozen=True)
class Plan:
  """What of the bench is to run, and the folder where it is written.

  Without `algorithms` all run; without tuning, parameters are the usual ones. A cross-validation
  has at least the seeds of its folds. A private bench has runs with a budget, too. The flags are
  further ones of all runs.
  """

  folder: pathlib.Path
  algorithms: Sequence[str] | None
  seeds: Sequence[int]
  num_rounds: int
  is_private: bool = True
  is_tuned: bool = True
  flags: dict[str, Any] = dataclasses.field(default_factory=dict)

  def preset(self, data_set: sources.DataSet, facts: sources.Facts) -> preset_lib.Preset:
    """Returns the comparison on one data set."""
    # The loss of a constant answer is log(classes), of numbers 1/2: the task's own B.
    max_loss = max(1.5, math.log(max(1, facts.num_classes)))
    # The gradient of a linear model's loss is L-Lipschitz with L about 1 + features, and half of
    # that for classes. The task's own rate, at most 0.1, takes hundreds of rounds.
    rate = (2 if facts.num_classes else 1) / (1 + facts.num_features)
    bounds = tuple(round(ratio * max_loss, 3) for ratio in _BOUND_RATIOS)
    usual = round(_USUAL_BOUND_RATIO * max_loss, 3)
    grids = {**_GRIDS, "prop_fair": dict(utility_bound=preset_lib.Grid(bounds, default=usual))}
    private = dict(clip_norm="adaptive")
    return preset_lib.Preset(
      task="own",
      thetas=(0.5, 0.25),
      seeds=self.seeds,
      quick_flags={},
      flags=dict(
        data_dir=str(self.folder / "tables" / f"{data_set.name}.csv"),
        client_column=data_set.client,
        label_column=data_set.label,
        label_kind=data_set.label_kind,
        folds=data_set.folds,
        metric=data_set.metric,
        num_rounds=self.num_rounds,
        rounds_per_evaluation=self.num_rounds,
        client_learning_rate=rate,
        max_loss=max_loss,
        output_dir=str(self.folder),
        personalize=_EPOCHS,
        exact_siblings=run_config.ALLOWED,  # The tables are public.
        **self.flags,
      ),
      baselines=(
        dict(algorithm="fed_avg_sub", theta=0.5),
        *(dict(algorithm=algorithm, **grid) for algorithm, grid in grids.items()),
        dict(algorithm="aaggff"),
      ),
      epsilons=(EPSILON,),
      with_public=True,
      private_flags={
        **dict.fromkeys(("fed_avg", "q_fed_avg", "tilted_erm", "prop_fair", "geometric"), private),
        **dict.fromkeys(("semi_vred", "gifair", "eagle"), dict(private, num_bins=16)),
      },
    )

  def settings(self, data_set: sources.DataSet, facts: sources.Facts) -> list[tuning.Settings]:
    """Returns the settings of all runs on one data set, seed by seed."""
    preset = self.preset(data_set, facts)
    enough = facts.num_clients >= LEAST_PRIVATE_CLIENTS and not data_set.folds
    listed = [
      # Tuning with a budget would spend budget of its own.
      tuning.with_defaults(method) if method.get("epsilon") or not self.is_tuned else method
      for method in preset.methods(epsilons=None if self.is_private and enough else ())
      # FedAvg is what all others are measured against.
      if self.algorithms is None or method["algorithm"] in {"fed_avg", *self.algorithms}
    ]
    seeds = sorted({*self.seeds, *range(data_set.folds)})
    common = {**run_config.defaults(), "task": preset.task, **preset.flags}
    return [
      # A seed tests all methods on the same clients.
      {**common, **method, "seed": seed, "split_seed": seed if method.get("epsilon") else None}
      for seed, method in itertools.product(seeds, listed)
    ]


def tune(
  stages: stages_lib.Stages, planned: Sequence[tuning.Settings]
) -> tuple[list[tuning.Settings], list[str]]:
  """Chooses the parameters of each method on each data set, by p90 over validation clients.

  Half of the training clients of the first seed are held out, as in every other experiment. It
  returns the settings with the chosen values, and a sentence about each method that is left out, as
  no value gave a finite result.
  """
  searches = _searches(planned)
  configs = [candidate.config for search in searches.values() for candidate in search.candidates]
  carry_out(stages, "tuning each method on validation clients", configs)
  return with_choices(planned)


def with_choices(
  planned: Sequence[tuning.Settings],
) -> tuple[list[tuning.Settings], list[str]]:
  """Returns what `tune` returns, of the tuning runs that are finished; it runs nothing."""
  chosen, complaints = {}, []
  for key, search in _searches(planned).items():
    try:
      chosen[key] = search.choose()
    except RuntimeError as error:
      table = search.candidates[0].config.values()["data_dir"]
      complaints.append(f"{pathlib.Path(table).stem} is without a method. {error}")
  return [
    {**settings, **chosen.get(stages_lib.key(settings), {})}
    for settings in planned
    if not tuning.is_tuned(settings) or stages_lib.key(settings) in chosen
  ], complaints


def _searches(planned: Iterable[tuning.Settings]) -> dict[str, tuning.Search]:
  """Returns the search of each method that is to be tuned, with its first seed, by its key."""
  preset = preset_lib.Preset(task="own", thetas=(), seeds=(), quick_flags={})
  firsts: dict[str, tuning.Settings] = {}
  for settings in planned:
    if tuning.is_tuned(settings):
      firsts.setdefault(stages_lib.key(settings), settings)
  return {key: tuning.method_search(preset, settings) for key, settings in firsts.items()}


def carry_out(
  stages: stages_lib.Stages, what: str, configs: Sequence[run_config.RunConfig]
) -> list[str]:
  """Carries out the runs that are left, and returns the names of those that failed."""
  left = [config for config in configs if stages_lib.is_left(config)]
  return stages.carry_out(what, left) if left else []
