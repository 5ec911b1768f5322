"""A run as a value: `RunConfig` holds the values of a run's flags, or of its `flags.txt`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
import dataclasses
import functools
import os
import typing
from typing import Any

from tff_superquantile import user_cache
from tff_superquantile.experiments.run import methods
from tff_superquantile.experiments.run import thresholds
from tff_superquantile.experiments.run import trackers
from tff_superquantile.experiments.run.training import schedules
from tff_superquantile.experiments.run.training import server_optimizers

# Rounds of more clients are computed in blocks of so many, whose updates fit in less than a GB.
BLOCK_SIZE = 256
_TASK_DEFAULT = "None for the task's own"
# These do not change the results: a run continues under other values of them.
INCIDENTAL = (
  "output_dir",
  "cache_dir",
  "seconds_per_checkpoint",
  "num_rounds",
  "rounds_per_evaluation",
  "noise_key_file",
  "ray_address",
  "worker_timeout",
  "initial_weights",  # Their fingerprint counts.
  "tracker",
)
# The value of --clip_norm with which it adapts.
ADAPTIVE = "adaptive"
# What runs did whose flags do not say it.
_BEFORE_THERE_WAS_A_FLAG = {
  "block_size": "0",
  "threshold_step": "0.01",
  "server_optimizer": "sgd",
  "server_learning_rate": "1.0",
  "client_momentum": "0.0",
  "learning_rate_schedule": "step",
  "keep": "last",
  "client_split": "shuffled",
}


def _flag(
  default: Any,
  description: str,
  *,
  choices: tuple[str, ...] = (),
  synonyms: Mapping[str, str] | None = None,
  least: float | None = None,
  word: str | None = None,
) -> Any:
  """Returns a field that is a flag, too.

  Args:
    default: Its default.
    description: Its help.
    choices: Its values, if these are not all of its type.
    synonyms: Values of earlier versions, and which of the choices each one is now.
    least: The least value of a number.
    word: A word that may stand in a number's place.
  """
  metadata = dict(
    help=description, choices=choices, synonyms=synonyms or {}, least=least, word=word
  )
  return dataclasses.field(default=default, metadata=metadata)


# The largest whole numbers, and why none is larger.
_MOST_OF_OTHERS = (2**31 - 1, "TensorFlow counts in 32 bits")
_MOST: Mapping[str, tuple[int, str]] = {
  "num_rounds": (10**6, "no run has so many, and files of rounds sort by seven digits"),
  "local_epochs": (10**6, "a client's work of a round cannot be interrupted"),
  "seed": (2**63 - 1, "seeds have 63 bits"),
  "num_bins": (2**16, "a client sends two numbers a bin"),
}


def _parameters_of_methods() -> type:
  """Returns a dataclass with the parameters of all methods."""
  fields = [
    (one.name, one.kind | None, _flag(one.default, one.help, least=one.least))
    for one in methods.parameters().values()
  ]
  return dataclasses.make_dataclass("ParametersOfMethods", fields, frozen=True)


if typing.TYPE_CHECKING:

  class _ParametersOfMethods:
    """Fields that `methods.METHODS` decides."""

    def __init__(self, **values: Any) -> None: ...

    def __getattr__(self, name: str) -> Any: ...

else:
  _ParametersOfMethods = _parameters_of_methods()


@dataclasses.dataclass(frozen=True)
class RunConfig(_ParametersOfMethods):
  """The values of a run's flags.

      RunConfig(task="synthetic", theta=0.25, num_rounds=100, output_dir="results")

  Each field is a flag of `experiments.train`, whose `--help` describes it. A field whose default is
  None may be None: the task decides its value, or it does not apply. `build.resolve` fills in the
  task's values, so those fields have no `Optional` type.
  """

  task: str = _flag(
    "synthetic",
    "The task: synthetic, emnist_linear, emnist_convnet, sent140_linear, sent140_lstm, shakespeare,"
    " or own, a table of yours.",
  )
  data: str = _flag(
    "files",
    "The task's own data, or a generated stand-in of the same shape, to try things out.",
    choices=("files", "standin"),
  )
  algorithm: str = _flag(
    "superquantile",
    "The method.",
    choices=tuple(methods.METHODS),
  )
  threshold: str | None = _flag(
    None,
    "How superquantile weighs the clients: exact, by the quantile of the cohort's losses;"
    " reweighting, by the paper's exact reweighting; tree, by the quantile of a private histogram;"
    " geometric, by a quantile tracked with one private bit a client; primal_dual, by one that"
    " moves by --threshold_step a round, in a private run by a bit of each client. None for exact,"
    " or in a private run for geometric.",
    choices=tuple(thresholds.THRESHOLDS),
  )
  threshold_noise_multiplier: float | None = _flag(
    None,
    "Noise of a private threshold: its standard deviation over the sensitivity.",
  )
  epsilon: float | None = _flag(
    None,
    "Budget of the whole run, (epsilon, delta)-differential privacy of all that the server"
    " releases. It makes the run private; the noise follows from it.",
  )
  delta: float | None = _flag(
    None,
    "delta of --epsilon; None for min(1e-5, n^-1.1) with n clients.",
  )
  update_noise_multiplier: float | None = _flag(
    None,
    "Noise on the sum of updates: its standard deviation over --clip_norm. It makes the run private"
    " in place of --epsilon.",
  )
  rho_ratio: float | None = _flag(
    None,
    "The threshold's part of the budget over that of the updates; None for the ratio with the least"
    " modelled error.",
  )
  accounting: str = _flag(
    "tightest",
    "The bound on --epsilon: that of privacy loss distributions (pld), that of Renyi divergences"
    " (rdp), or the smaller one (tightest).",
    choices=("tightest", "pld", "rdp"),
  )
  relation: str = _flag(
    "zero_out",
    "The change that a private run hides: one client's data are removed (zero_out), or replaced by"
    " any others (replace_one).",
    choices=("zero_out", "replace_one"),
  )
  noise_key_file: str = _flag(
    "",
    "To repeat a private run: a file with 32 hexadecimal digits, from which cohorts and noise"
    " follow. Keep it secret and use it for one run only. Empty to draw a key, which is kept in"
    " checkpoints/noise_key.",
  )
  clip_norm: float | str | None = _flag(
    None,
    "C of a private run: the l2 norm of a client's update is clipped to it. adaptive: C follows a"
    " quantile of the norms, by a private bit of each client that trains.",
    word=ADAPTIVE,
  )
  initial_clip_norm: float | None = _flag(
    None,
    "C of the first round with --clip_norm=adaptive; None for 0.1, or 1 with --clip_unit=gradient.",
  )
  clip_quantile: float | None = _flag(
    None,
    "The fraction of the updates that --clip_norm=adaptive does not clip; None for 0.5.",
  )
  clip_rho_ratio: float | None = _flag(
    None,
    "The bits' part of the budget over that of the updates with --clip_norm=adaptive; None for"
    " 0.01.",
  )
  clip_count_noise_multiplier: float | None = _flag(
    None,
    "Noise on the count of the bits of --clip_norm=adaptive: its standard deviation over the"
    " sensitivity. It follows from --epsilon.",
  )
  clip_unit: str = _flag(
    "update",
    "Unit of --clip_norm and --initial_clip_norm: that of the update, or that of the update over"
    " the learning rate, as in the paper (gradient).",
    choices=("update", "gradient"),
  )
  update_sum: str = _flag(
    "central",
    "Source of the noise on the updates of a private run: the server (central), or the clients with"
    " a secure sum (distributed).",
    choices=("central", "distributed"),
  )
  noise_shares: str = _flag(
    "complement",
    "Source of the noise that a cohort lacks, where clients make noise: the server (complement);"
    " other clients, which send no data (helpers); or --contacted_clients, of which each adds its"
    " data by a coin of its own, which protects from the server, too (private_coin).",
    choices=("complement", "helpers", "private_coin"),
  )
  contacted_clients: int | None = _flag(
    None,
    "With --noise_shares=private_coin: the expected number of clients that a round contacts;"
    " --clients_per_round of them add data.",
    least=1,
  )
  sampling: str = _flag(
    None,
    "Sampling of cohorts: exactly --clients_per_round clients (fixed_size); each client by itself"
    " with the same probability (poisson), or with one that follows its local hour (diurnal). None"
    " for fixed_size, or in a private run for poisson.",
    choices=("fixed_size", "poisson", "diurnal"),
  )
  num_bins: int = _flag(
    64,
    "Bins of --threshold=tree, a power of two.",
  )
  max_loss: float = _flag(
    None,
    "B: --threshold=tree does not tell losses above it apart, and geometric starts from it; losses"
    " above it count as B for prop_fair, and for q_fed_avg, tilted_erm, semi_vred and gifair in a"
    " private run;"
    f" {_TASK_DEFAULT}.",
  )
  secure_sum: str = _flag(
    "modular",
    "Secure sum of --threshold=tree: modulo M (modular), or of integers that never wrap (integer).",
    choices=("modular", "integer"),
  )
  threshold_step: float = _flag(
    0.01,
    "Step size of --threshold=primal_dual, in units of the loss.",
  )
  smoothing: float = _flag(
    0.0,
    "nu of the entropic smoothing of --threshold=reweighting.",
  )
  num_rounds: int = _flag(
    None,
    f"Number of rounds; {_TASK_DEFAULT}.",
    least=1,
  )
  clients_per_round: int = _flag(
    None,
    f"Cohort size; {_TASK_DEFAULT}.",
    least=1,
  )
  client_learning_rate: float = _flag(
    None,
    f"Learning rate of the local SGD; {_TASK_DEFAULT}.",
  )
  client_momentum: float = _flag(
    0.0,
    "Momentum of the local SGD, in [0, 1); it begins anew in each round.",
    least=0.0,
  )
  server_optimizer: str = _flag(
    "sgd",
    "Optimizer of the server, to which the average of the updates is a negative gradient: sgd is"
    " FedAvg's, the others are those of FedAdam, FedYogi and FedAdagrad.",
    choices=tuple(server_optimizers.SERVER_OPTIMIZERS),
  )
  server_learning_rate: float = _flag(
    None,
    "Learning rate of the server; None for "
    + ", ".join(
      f"{row.learning_rate:g} ({name})" for name, row in server_optimizers.SERVER_OPTIMIZERS.items()
    )
    + ".",
  )
  learning_rate_schedule: str = _flag(
    "step",
    "How the local learning rate falls: by --learning_rate_decay after every --rounds_per_decay"
    " (step), or to 0 at the end of the run, along half a cosine (cosine) or a line (linear).",
    choices=tuple(schedules.SCHEDULES),
  )
  learning_rate_decay: float = _flag(
    None,
    f"Factor on the learning rate after every --rounds_per_decay; {_TASK_DEFAULT}.",
  )
  rounds_per_decay: int = _flag(
    None,
    f"Rounds between two decays of the learning rate; {_TASK_DEFAULT}.",
    least=1,
  )
  initial_weights: str = _flag(
    "",
    "Folder of a finished run, OUTPUT_DIR/TASK/METHOD/seed_S, from whose model the run starts;"
    " empty for the task's own initial weights.",
  )
  initial_weights_fingerprint: str | None = _flag(
    None,
    "Fingerprint of the file of --initial_weights, from which alone the run goes on; None for that"
    " which is there.",
  )
  local_epochs: int = _flag(
    None,
    f"Passes over local data; {_TASK_DEFAULT}.",
    least=1,
  )
  batch_size: int = _flag(
    None,
    f"Local batch size, 0 for all examples; {_TASK_DEFAULT}.",
    least=0,
  )
  l2: float = _flag(
    None,
    f"lambda of lambda / 2 |w|^2; {_TASK_DEFAULT}.",
    least=0.0,
  )
  client_weighting: str = _flag(
    None,
    f"Weight of a client in the average and in the quantile; {_TASK_DEFAULT}.",
    choices=("num_examples", "uniform"),
  )
  seed: int = _flag(
    0,
    "Seed of clients, cohorts, batches and initial weights. It is no secret: cohorts and noise of a"
    " private run come from a key.",
    least=0,
  )
  data_dir: str = _flag(
    "",
    "EMNIST: LEAF's directory with train/ and test/, TFF's emnist_all.sqlite or .sqlite.lzma,"
    " Hugging Face's flwrlabs/femnist (.parquet) or NIST's emnist-byclass.mat; empty to let TFF"
    " download it. Sent140: LEAF's directory, or Stanford's CSV. Shakespeare: LEAF's directory, or"
    " TFF's shakespeare_train.h5. Own: a .csv, .csv.gz or .parquet file, or a folder of"
    " such files.",
  )
  client_column: str | None = _flag(
    None,
    "Own: the column whose values are the clients; None for a folder with a file for each client.",
  )
  label_column: str | None = _flag(
    None,
    "Own: the column that is to be predicted.",
  )
  features: str | None = _flag(
    None,
    "Own: the columns that the model reads, separated by commas; None for all others.",
  )
  label_kind: str | None = _flag(
    None,
    "Own: labels are classes, or a number to be predicted with the squared loss; None for number"
    " where labels are not whole, or more than 100 different numbers.",
    choices=("classes", "number"),
  )
  classes: str | None = _flag(
    None,
    "Own: the classes, separated by commas; None for those that are found, in a private run among"
    " the test and validation clients, whose others are left out of training.",
  )
  model: str | None = _flag(
    None,
    "Own: a linear model, or one with a hidden layer of 64 units (mlp); None for linear.",
    choices=("linear", "mlp"),
  )
  glove: str = _flag(
    "",
    "Sent140: GloVe's file of word vectors; empty for glove.6B.50d.txt in --data_dir.",
  )
  min_examples_per_client: int = _flag(
    0,
    "Least number of examples; clients with fewer are dropped, or in a private run trained on"
    " without examples. 0 for the task's own.",
    least=0,
  )
  num_train_clients: int = _flag(
    0,
    "Number of training clients; 0 for the task's own, or in a private run on your files, which"
    " takes no other, for all.",
    least=0,
  )
  num_test_clients: int = _flag(
    0,
    "Number of test clients; 0 for the task's own.",
    least=0,
  )
  validation_fraction: float = _flag(
    0.0,
    "Fraction of the training clients that is held out for tuning.",
    least=0.0,
  )
  client_split: str | None = _flag(
    None,
    "Who is trained and who is tested on: by_id, as a hash of each client's id and the seed says;"
    " shuffled, by a permutation of all clients, as versions up to 0.2 did it. None for by_id, or"
    " for that of a run that goes on. The synthetic task has its own.",
    choices=("by_id", "shuffled"),
  )
  rounds_per_evaluation: int = _flag(
    None,
    f"Rounds between evaluations of all test clients; {_TASK_DEFAULT}.",
    least=1,
  )
  keep: str = _flag(
    "last",
    "The model that the run leaves: the last one, or that of the round with the best evaluation"
    " of validation clients, every --rounds_per_evaluation rounds (best).",
    choices=("last", "best"),
  )
  best_by: str | None = _flag(
    None,
    "With --keep=best: the number of metrics.json that is to be least; None for"
    " validation.error.p90.",
  )
  patience: int | None = _flag(
    None,
    "With --keep=best: the run ends after so many evaluations without a better one; None to carry"
    " out all rounds.",
    least=1,
  )
  engine: str = _flag(
    "in_process",
    "Runtime of a round: this process, with the whole cohort at once wherever that can be"
    " (in_process; earlier versions also wrote auto or native), or the workers of a cluster (ray,"
    " docs/how_to/cluster.md).",
    choices=("in_process", "ray"),
    synonyms={"auto": "in_process", "native": "in_process"},
  )
  block_size: int = _flag(
    None,
    "Largest number of clients whose updates are in memory at once, in this process: larger cohorts"
    " are computed in blocks and added up, which changes the last bits. 0 for no blocks; None for"
    f" {BLOCK_SIZE} if more clients are selected in a round.",
    least=0,
  )
  ray_address: str = _flag(
    "local",
    "With --engine=ray: local for workers on this machine, auto for the cluster that it belongs to,"
    " or HOST:PORT of a cluster's head.",
  )
  num_blocks: int = _flag(
    None,
    "With --engine=ray: number of blocks of a cohort, which decides the order of sums and so the"
    " last bits; None for the number of workers.",
    least=1,
  )
  threads_per_worker: int = _flag(
    None,
    "With --engine=ray: cores that a worker takes, on which results of convolutions depend, too;"
    " None for 1.",
    least=1,
  )
  worker_timeout: float = _flag(
    600.0,
    "With --engine=ray: seconds after which a block that is not done goes to another worker.",
    least=1.0,
  )
  run_name: str = _flag(
    "",
    "Name of the method's folder; empty to name it by its flags.",
  )
  output_dir: str = _flag(
    "results",
    "Directory to write TASK/METHOD/seed_S/ to.",
  )
  tracker: str | None = _flag(
    None,
    "Trackers that follow the run beside TensorBoard's events, separated by commas:"
    f" {', '.join(trackers.TRACKERS)}. Their own variables say where: MLFLOW_TRACKING_URI,"
    " WANDB_MODE, WANDB_DIR ...; without any, MLflow's local store is OUTPUT_DIR/mlruns, and the"
    " files of wandb are in the run's folder. A private run is sent when it is finished. None for"
    " no tracker.",
  )
  cache_dir: str = _flag(
    user_cache.default_dir(),
    "Directory that keeps converted data for the next run.",
  )
  seconds_per_checkpoint: float = _flag(
    30.0,
    "Least time between two checkpoints.",
    least=0.0,
  )

  def __post_init__(self) -> None:
    """Checks each field by itself; numbers get the type of their field.

    Raises:
      TypeError: If a value is not of its field's type.
      ValueError: If a value is out of its range.
    """
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      kind, may_be_none = types()[field.name], field.default is None
      word = field.metadata["word"]
      if value is None and may_be_none or word is not None and value == word:
        continue
      if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
        object.__setattr__(self, field.name, value)
      if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(
          f"Found {field.name} = {value!r}, of type {type(value).__name__}; expected"
          f" {kind.__name__}{f', {word}' if word else ''}{' or None' if may_be_none else ''}."
        )
      choices, least = field.metadata["choices"], field.metadata["least"]
      if value in field.metadata["synonyms"]:
        value = field.metadata["synonyms"][value]
        object.__setattr__(self, field.name, value)
      if choices and value not in choices:
        raise ValueError(f"Found {field.name} = {value!r}; expected one of {', '.join(choices)}.")
      if least is not None and not value >= least:  # This refuses NaN, too.
        raise ValueError(f"Found {field.name} = {value}; expected at least {least}.")
      most, reason = _MOST.get(field.name, _MOST_OF_OTHERS)
      if isinstance(value, int) and value > most:
        raise ValueError(f"Found {field.name} = {value}; expected at most {most}: {reason}.")

  @property
  def is_private(self) -> bool:
    """Whether all that the run releases of its training clients is differentially private."""
    return self.epsilon is not None or self.update_noise_multiplier is not None

  @property
  def final_learning_rate(self) -> float:
    """The local learning rate of the last round."""
    return schedules.learning_rate(self, self.num_rounds - 1)

  def to_flags(self) -> dict[str, str]:
    """Returns the values as texts by name, without those that are None, for `from_flags`."""
    values = dataclasses.asdict(self)
    return {name: str(value) for name, value in values.items() if value is not None}

  def to_arguments(self) -> list[str]:
    """Returns command-line arguments with these values, which are the lines of `flags.txt`."""
    return [f"--{name}={text}" for name, text in self.to_flags().items()]


def names() -> tuple[str, ...]:
  """Returns the names of the fields, in their order."""
  return tuple(field.name for field in dataclasses.fields(RunConfig))


@functools.cache
def types() -> Mapping[str, type]:
  """Returns int, float or str for each field; where its default is None, the value may be, too.

  A float may also be the field's word.
  """
  hints = typing.get_type_hints(RunConfig)
  return {name: next(iter(typing.get_args(hint)), hint) for name, hint in hints.items()}


def client_split_of(found: Mapping[str, str]) -> str:
  """Returns the --client_split of the texts of a run's flags, which earlier runs do not have."""
  return found.get("client_split", _BEFORE_THERE_WAS_A_FLAG["client_split"])


def from_flags(found: Mapping[str, str]) -> RunConfig:
  """Reads a run's config from the texts of its flags, as its `flags.txt` holds them.

  Args:
    found: Texts by name. Other names than those of the fields are passed over; fields that are
      not there have their defaults, but for `client_split_of`.

  Returns:
    The config.

  Raises:
    ValueError: If a text is no value of its field.
  """
  values: dict[str, Any] = {}
  found = {**found, "client_split": client_split_of(found)}
  words = {field.name: field.metadata["word"] for field in dataclasses.fields(RunConfig)}
  for name, kind in types().items():
    if name in found:
      try:
        values[name] = found[name] if found[name] == words[name] else kind(found[name])
      except ValueError:
        raise ValueError(
          f"Found --{name}={found[name]} among a run's flags; expected a number."
        ) from None
  return RunConfig(**values)


def differences(
  found: Mapping[str, str], config: RunConfig, followed: Iterable[str] = ()
) -> list[str]:
  """Lists the flags that keep a run from being continued under another config.

  Args:
    found: The texts of the run's flags.
    config: The other config.
    followed: Names of values that `config` does not have yet where it is None.

  Returns:
    A phrase for each flag that is not the same and is not incidental.
  """
  wanted = config.to_flags()
  found = {name: value for name, value in found.items() if name in wanted or name not in followed}
  found, wanted = {**_BEFORE_THERE_WAS_A_FLAG, **found}, {**_BEFORE_THERE_WAS_A_FLAG, **wanted}
  for field in dataclasses.fields(RunConfig):
    if found.get(field.name) in field.metadata["synonyms"]:
      found[field.name] = field.metadata["synonyms"][found[field.name]]
  incidental = set(INCIDENTAL)
  if config.is_private or schedules.SCHEDULES[config.learning_rate_schedule].needs_num_rounds:
    incidental.discard("num_rounds")  # Noise or learning rates are for that many rounds.
  if config.keep == "best":
    incidental.discard("rounds_per_evaluation")  # Any evaluation may be the best.
  return [
    f"--{name}={found.get(name, '')} there, {wanted.get(name, '')} here"
    for name in sorted(set(found) | set(wanted))
    if found.get(name) != wanted.get(name) and name not in incidental
  ]


def check_same(
  folder: os.PathLike, found: Mapping[str, str], config: RunConfig, followed: Iterable[str] = ()
) -> None:
  """Raises a `ValueError` if `differences` keep the run in a folder from being continued."""
  different = differences(found, config, followed)
  if different:
    raise ValueError(
      f"Found a run with other flags in {os.fspath(folder)} ({'; '.join(different)}); choose"
      " another --output_dir or --run_name, or remove that folder."
    )
