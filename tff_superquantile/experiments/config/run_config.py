"""A run as a value: `RunConfig` holds the values of a run's flags, or of its `flags.txt`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
import dataclasses
import functools
import math
import types
from typing import Any

from privacy import checks
from privacy import cohorts
from privacy import parts
from privacy.settings import flag
from privacy.settings import part
from tasks import own_flags
from tasks import request as request_lib
from tff_superquantile import measures
from tff_superquantile import user_cache
from tff_superquantile.experiments.config import kept
from tff_superquantile.experiments.config import local_training
from tff_superquantile.experiments.config import methods
from tff_superquantile.experiments.config import personal
from tff_superquantile.experiments.config import privacy as privacy_lib
from tff_superquantile.experiments.config import servers

ALLOWED = "allowed"  # The value of --exact_siblings with which they are.
# Rounds of more clients are computed in blocks of so many, whose updates fit in less than a GB.
BLOCK_SIZE = 256
_TASK_DEFAULT = "None for the task's own"


def check_folder_name(name: str, value: str) -> None:
  """The rule of a folder: raises a `ValueError` for an empty name."""
  if not value:
    raise ValueError(f"Found no folder in {name}; expected one: name it, or . for this one.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig(part.Part):
  """The values of a run's flags.

      RunConfig(method=Superquantile(theta=0.25), num_rounds=100, output_dir="results")

  A field is a flag of `experiments.train`, whose `--help` describes it, or a part, whose fields are
  flags. None stands for what does not apply, and before `build.resolve` also for the task's own
  value: a field without None among its types has one from then on.
  """

  task: request_lib.Request = request_lib.Request()
  method: methods.Method = part.choice(
    "algorithm",
    methods.METHODS,
    "The method, one of these or MODULE:CLASS in a file of yours (docs/how_to/add_a_part.md).",
    default="superquantile",
  )
  cohort: cohorts.Cohort = cohorts.choice(privacy_lib.usual_sampling)
  max_loss: float = flag.field(
    None,
    "B: --threshold=tree does not tell losses above it apart, and geometric starts from it; losses"
    " above it count as B for prop_fair, and for q_fed_avg, tilted_erm, semi_vred and gifair in a"
    " private run, and so do gaps for eagle, whose noise grows with it: give it there;"
    f" {_TASK_DEFAULT}.",
    rule=checks.scale,
  )
  num_rounds: int = flag.field(
    None,
    f"Number of rounds, with --stop=converged the most; {_TASK_DEFAULT}.",
    least=1,
    most=(10**6, "no run has so many, and files of rounds sort by seven digits"),
    is_incidental=True,
  )
  stop: str = flag.field(
    None,
    "When the run ends: after --num_rounds (never before), or at the first evaluation at which its"
    " training loss has stopped falling (converged; not in private runs, whose rounds are fixed"
    " beforehand). None for converged with a table of one's own without --num_rounds, else never.",
    choices=("never", "converged"),
    is_incidental=True,
  )
  start: kept.Start | None = part.optional(
    {"initial_weights": kept.Start}, "in a run that starts anew"
  )
  local: local_training.Local = local_training.Local()
  seed: int = flag.field(
    0,
    "Seed of clients, cohorts, batches and initial weights. It is no secret: cohorts and noise of a"
    " private run come from a key.",
    least=0,
    most=flag.SEEDS,
  )
  rounds_per_evaluation: int = flag.field(
    None,
    f"Rounds between evaluations of all test clients; {_TASK_DEFAULT}.",
    least=1,
    is_incidental=True,
  )
  server: servers.Server = part.choice(
    "server_optimizer",
    servers.SERVERS,
    "Optimizer of the server, to which the average of the updates is a negative gradient: sgd is"
    " FedAvg's, the others are those of FedAdam, FedYogi and FedAdagrad.",
    words={"adam": "server Adam", "yogi": "server Yogi", "adagrad": "server Adagrad"},
  )
  metric: str | None = flag.field(
    None,
    "The measure of test clients that reports lead with, and of validation clients by which --tune"
    " and --keep=best choose: error, loss, balanced_error (the mean over classes of the share of"
    " their examples that are missed), ranking_error (1 - AUC), calibration_error, or mae of labels"
    " that are numbers; less is better in each. None for error, or for a table of which one class"
    " has more than 80 % of the examples, balanced_error.",
    choices=measures.NAMES,
    is_incidental=True,  # What changes a run is in --best_by.
  )
  keep: kept.Keep = part.choice(
    "keep",
    kept.KEEPS,
    "The model that the run leaves: the last one, or that of the round with the best evaluation"
    " of validation clients, every --rounds_per_evaluation rounds (best).",
    words={"best": "best round"},
  )
  personalization: personal.Personalization | None = part.optional(
    {"personalize": personal.Personalization}, "without --personalize"
  )
  ditto: personal.Ditto | None = part.optional({"ditto": personal.Ditto}, "without --ditto")
  privacy: privacy_lib.Privacy | None = part.optional(
    privacy_lib.KINDS, "in a run that is not private"
  )
  exact_siblings: str = flag.field(
    "refused",
    "Whether runs of one --output_dir may measure exactly clients whom other runs protect, or train"
    " on them without privacy: refused, or allowed for clients who are nobody's secret, where"
    " methods are to be compared. Then the guarantee is that of each private run by itself.",
    choices=("refused", ALLOWED),
    is_incidental=True,
  )
  other_cpu: str = flag.field(
    "refused",
    "Whether a run goes on on another kind of CPU, or with another number of threads, than it had,"
    " where TensorFlow computes other last bits: refused, or allowed; manifest.json says which it"
    " had.",
    choices=("refused", ALLOWED),
    is_incidental=True,
  )
  block_size: int | None = flag.field(
    None,
    "Largest number of clients whose updates are in memory at once: larger cohorts are computed in"
    " blocks and added up, which changes the last bits. 0 for no blocks; None for"
    f" {BLOCK_SIZE} if more clients are selected in a round.",
    least=0,
  )
  num_blocks: int | None = flag.field(
    None,
    "Number of blocks in which each cohort is computed and added up, in place of --block_size; the"
    " last bits depend on it, and not on who computes the blocks (--scheduler). In a private run"
    " whose noise is the server's, the order of examples then follows from --seed.",
    least=2,
  )
  run_name: str = flag.field(
    "",
    "Name of the method's folder; empty to name it by its flags.",
  )
  output_dir: str = flag.field(
    "results",
    "Directory to write TASK/METHOD/seed_S/ to.",
    rule=check_folder_name,
    is_incidental=True,
  )
  hook: str | None = flag.field(
    None,
    "Hooks of your own, as MODULE:CLASS in a file of yours, separated by commas: each follows the"
    " run (docs/how_to/add_a_part.md), a private one once it is finished. None for no hook.",
    is_incidental=True,
  )
  cache_dir: str = flag.field(
    user_cache.default_dir(),
    "Directory that keeps converted data for the next run.",
    is_incidental=True,
  )
  seconds_per_checkpoint: float = flag.field(
    30.0, "Least time between two checkpoints.", least=0.0, is_incidental=True
  )

  @property
  def is_private(self) -> bool:
    """Whether all that the run releases of its training clients is differentially private."""
    return self.privacy is not None

  @property
  def epsilon(self) -> float | None:
    """The privacy budget of the run; None without one."""
    return self.privacy.epsilon if isinstance(self.privacy, privacy_lib.Budget) else None

  @property
  def algorithm(self) -> str:
    """The value of --algorithm."""
    return methods.METHODS.name_of(type(self.method))

  @property
  def final_learning_rate(self) -> float:
    """The local learning rate of the last round."""
    return float(self.learning_rate(float(self.num_rounds - 1), math))

  def learning_rate(self, t: Any, ops: Any) -> Any:
    """Returns the local learning rate gamma_t of a round from 0, a number as `ops` takes it."""
    return self.local.learning_rate * self.local.schedule.factor(t, self.num_rounds, ops)

  def request(self, columns: str = "") -> request_lib.Request:
    """Returns what the run asks of its task, whose table's columns an earlier run may have kept."""
    return dataclasses.replace(
      self.task,
      cache_dir=self.cache_dir,
      seed=self.seed,
      is_private=self.is_private,
      columns=columns,
    )

  def values(self) -> dict[str, Any]:
    """Returns the values of all flags by name; defaults of those that no part of it has."""
    return {**defaults(), **part.values(self)}

  def to_flags(self) -> dict[str, str]:
    """Returns the values as texts by name, without those that are None, for `from_flags`."""
    return {name: str(value) for name, value in self.values().items() if value is not None}

  def to_arguments(self) -> list[str]:
    """Returns command-line arguments with these values, which are the lines of `flags.txt`."""
    return [f"--{name}={text}" for name, text in self.to_flags().items()]


# By the flags that may name parts from outside, which have flags of their own.
TABLES: Mapping[str, Any] = {
  "task": own_flags.OF_TASK,
  "algorithm": methods.METHODS,
  "threshold": parts.THRESHOLDS,
}


@functools.cache
def _flags(*kinds: tuple[type[part.Part], ...]) -> Mapping[str, flag.Flag]:
  return part.flags(RunConfig)


def flags() -> Mapping[str, flag.Flag]:
  """Returns the flags of a run, also of all parts from outside so far.

  Returns:
    The flags by name, in their order.
  """
  return _flags(*(tuple(table.values()) for table in TABLES.values()))


_OWN = flags()


def defaults() -> dict[str, Any]:
  """Returns the defaults of the flags of a run, without those of parts from outside.

  Returns:
    The defaults by the flag's name.
  """
  return {name: flag.default for name, flag in _OWN.items()}


def import_plugins(values: Mapping[str, Any]) -> None:
  """Brings in the parts from outside that values of flags name, with flags that no other has."""
  for name, table in TABLES.items():
    known = flags()
    for new in part.flags(table[values[name]]).values() if table.load(values.get(name)) else ():
      if dataclasses.replace(known.get(new.name, new), help=new.help) != new:
        raise ValueError(
          f"Found --{new.name} of {table.pop(values[name]).__name__}, which runs have already with"
          " another meaning; expected a flag of another name."
        )


def incidentals() -> list[str]:
  """Returns the names of flags that do not change the results."""
  return [name for name, flag in flags().items() if flag.is_incidental]


def from_values(*, secure: bool = False, **values: Any) -> RunConfig:
  """Returns the config with values of flags, by their names.

  Args:
    secure: Whether clients make the noise in secure sums of integers: --threshold=tree where
      there is a threshold, and --update_sum=distributed.
    **values: The values.

  Returns:
    The config.

  Raises:
    TypeError: If there is no such flag, or a value is not of its type.
    ValueError: If a value is out of its range, belongs to a part that was not chosen, or
      contradicts `secure`.
  """
  import_plugins(values)
  unknown = set(values) - set(flags())
  if unknown:
    raise TypeError(f"Found {min(unknown)!r}; expected the names of flags of a run.")
  config = part.build(RunConfig, values)
  return from_values(**{**values, **_secured(config, values)}) if secure else config


def _secured(config: RunConfig, values: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the flags by which clients make the noise; a `ValueError` where they cannot."""
  if config.privacy is None:
    raise ValueError("Found --secure in a run that is not private; give --epsilon, too.")
  threshold = config.method.threshold
  is_open = isinstance(threshold, parts.PrivateThreshold) and threshold.noise_by_server
  by_server = {
    "threshold": is_open and values.get("threshold") is not None,
    "update_sum": values.get("update_sum") == "central",
    "clip_norm": isinstance(config.privacy.clip, parts.AdaptiveClip),
    "sampling": config.cohort.is_one_mechanism,
  }
  for name in (name for name, contradicts in by_server.items() if contradicts):
    raise ValueError(
      f"Found --secure with --{name}={values[name]}, for which the server makes the noise; leave"
      " out one of them."
    )
  return {"update_sum": "distributed", **({"threshold": "tree"} if is_open else {})}


def with_values(config: RunConfig, **values: Any) -> RunConfig:
  """Returns a config with other values of flags.

  Args:
    config: The config, which stays as it is.
    **values: Values by the flag's name.

  Returns:
    The new config.

  Raises:
    TypeError: As by `from_values`.
    ValueError: As by `from_values`.
  """
  return from_values(**{**config.values(), **values})


def with_defaults(
  config: RunConfig, defaults: Mapping[str, Any] = types.MappingProxyType({})
) -> RunConfig:
  """Returns a config with values in place of None; a `ValueError` names what a round lacks."""
  filled = part.fill(config, {"stop": "never", **defaults})
  part.check_complete(filled)
  return filled


def from_flags(texts: Mapping[str, str]) -> RunConfig:
  """Returns a run's config from the texts of its flags.

  Args:
    texts: Texts by the flag's name, as `flags.txt` holds them; flags without a text keep their
      defaults.

  Returns:
    The config.

  Raises:
    ValueError: If a text is no value of its flag, or a part that it names cannot be imported.
  """
  import_plugins(texts)
  values = {name: flag.parse(texts[name]) for name, flag in flags().items() if name in texts}
  return part.build(RunConfig, values, is_strict=False)


def differences(
  texts: Mapping[str, str], config: RunConfig, followed: Iterable[str] = ()
) -> list[str]:
  """Returns a phrase for each flag that keeps a run from being continued under another config."""
  own, followed = config.to_flags(), set(followed)
  texts = {name: value for name, value in texts.items() if name in own or name not in followed}
  incidental = set(incidentals())
  if config.is_private or config.local.schedule.needs_num_rounds:
    incidental.discard("num_rounds")  # Noise or learning rates are for that many rounds.
  if isinstance(config.keep, kept.Best) or config.ditto is not None:
    # Any evaluation may be the best, and after each there is a turn of Ditto's.
    incidental.discard("rounds_per_evaluation")
  # A value that no part of the run has changes nothing.
  idle = {name for name, flag in flags().items() if flag.may_idle} - set(part.values(config))
  return [
    f"--{name}={texts.get(name, '')} there, {own.get(name, '')} here"
    for name in sorted((set(texts) | set(own)) - idle)
    if texts.get(name) != own.get(name) and name not in incidental
  ]


def is_done_by(texts: Mapping[str, str], config: RunConfig) -> bool:
  """Returns whether a finished run with these texts of its flags has all rounds of a config."""
  is_whole = texts.get("stop") != "converged" or config.stop == "converged"
  return texts.get("num_rounds") == str(config.num_rounds) and is_whole
