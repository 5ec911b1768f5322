"""The flags of a run. Importing this module starts no TensorFlow, so `--help` answers at once."""

from collections.abc import Mapping
import os
from typing import Any

from absl import flags

PRIVATE_THRESHOLDS = ("tree", "geometric")

_TASK_DEFAULT = "None for the task's own"

flags.DEFINE_string("task", "synthetic", "What to learn: synthetic, emnist_linear, emnist_convnet.")
flags.DEFINE_enum("algorithm", "superquantile", ["fed_avg", "superquantile"], "How to learn it.")
flags.DEFINE_float(
  "theta", 0.5, "Tail fraction in (0, 1], for superquantile: 1 averages everybody."
)
flags.DEFINE_enum(
  "threshold",
  None,
  ["exact", "reweighting", *PRIVATE_THRESHOLDS],
  "How superquantile weighs the clients: by the exact quantile of the cohort's losses; by the"
  " paper's exact reweighting; by the quantile of a private histogram (tree), or by one that is"
  " tracked by a private bit a client (geometric). None for exact, or in a private run geometric.",
)
flags.DEFINE_float(
  "threshold_noise_multiplier",
  None,
  "Noise of a private threshold: its standard deviation over the sensitivity.",
)
flags.DEFINE_float(
  "epsilon",
  None,
  "Budget of the whole run, (epsilon, delta)-differential privacy of all that the server releases:"
  " makes a private run, with the noise that this asks for.",
)
flags.DEFINE_float("delta", None, "See --epsilon; None for min(1e-5, n^-1.1) with n clients.")
flags.DEFINE_float(
  "update_noise_multiplier",
  None,
  "Noise on the sum of updates, its standard deviation over --clip_norm: makes a private run in"
  " place of --epsilon.",
)
flags.DEFINE_float(
  "rho_ratio",
  None,
  "Of the budget, what the threshold spends over what the updates spend; None for 0.01 with"
  " geometric and 0.5 with tree.",
)
flags.DEFINE_float(
  "clip_norm", None, "C, to which the l2 norm of a client's update is clipped in a private run."
)
flags.DEFINE_enum(
  "clip_unit",
  "update",
  ["update", "gradient"],
  "Whether --clip_norm is of the update, or of the update over the learning rate, as the paper's.",
)
flags.DEFINE_enum(
  "update_sum",
  "central",
  ["central", "distributed"],
  "Who adds the noise to the updates of a private run: the server, or the clients, with a secure"
  " sum.",
)
flags.DEFINE_enum(
  "sampling",
  None,
  ["fixed_size", "poisson"],
  "Cohorts of exactly --clients_per_round, or of each client by itself with the same chance; None"
  " for fixed_size, or in a private run poisson.",
)
flags.DEFINE_integer("num_bins", 64, "Bins of --threshold=tree, a power of two.")
flags.DEFINE_float(
  "max_loss",
  None,
  "B, above which --threshold=tree does not tell losses apart, and with which geometric starts;"
  f" {_TASK_DEFAULT}.",
)
flags.DEFINE_enum(
  "secure_sum",
  "modular",
  ["modular", "integer"],
  "How --threshold=tree sums: modulo M, or integers that never wrap.",
)
flags.DEFINE_float("smoothing", 0.0, "nu of the entropic smoothing of --threshold=reweighting.")
flags.DEFINE_integer("num_rounds", None, f"Rounds; {_TASK_DEFAULT}.", lower_bound=1)
flags.DEFINE_integer("clients_per_round", None, f"Cohort size; {_TASK_DEFAULT}.", lower_bound=1)
flags.DEFINE_float("client_learning_rate", None, f"Of the local SGD; {_TASK_DEFAULT}.")
flags.DEFINE_float(
  "learning_rate_decay",
  None,
  f"Factor on the learning rate every --rounds_per_decay; {_TASK_DEFAULT}.",
)
flags.DEFINE_integer("rounds_per_decay", None, f"See there; {_TASK_DEFAULT}.", lower_bound=1)
flags.DEFINE_integer(
  "local_epochs", None, f"Passes over local data; {_TASK_DEFAULT}.", lower_bound=1
)
flags.DEFINE_integer(
  "batch_size", None, f"Local batch size, 0 for all examples; {_TASK_DEFAULT}.", lower_bound=0
)
flags.DEFINE_float("l2", None, f"lambda of lambda / 2 |w|^2; {_TASK_DEFAULT}.", lower_bound=0.0)
flags.DEFINE_enum(
  "client_weighting",
  None,
  ["num_examples", "uniform"],
  f"Weight of a client in the average and in the quantile; {_TASK_DEFAULT}.",
)
flags.DEFINE_integer("seed", 0, "Of clients, cohorts, batches and initial weights.", lower_bound=0)
flags.DEFINE_string(
  "data_dir",
  "",
  "EMNIST: LEAF's directory with train/ and test/, or TFF's emnist_all.sqlite or .sqlite.lzma;"
  " empty to let TFF download it.",
)
flags.DEFINE_integer(
  "num_train_clients", 0, "Training clients; 0 for the task's own.", lower_bound=0
)
flags.DEFINE_integer("num_test_clients", 0, "Test clients; 0 for the task's own.", lower_bound=0)
flags.DEFINE_float(
  "validation_fraction",
  0.0,
  "Fraction of the training clients that is held out for tuning.",
  lower_bound=0.0,
)
flags.DEFINE_integer(
  "rounds_per_evaluation",
  None,
  f"Rounds between evaluations of all test clients; {_TASK_DEFAULT}.",
  lower_bound=1,
)
flags.DEFINE_string("run_name", "", "Folder of the method; empty to name it by its flags.")
flags.DEFINE_string("output_dir", "results", "Where OUTPUT_DIR/TASK/METHOD/seed_S/ is written.")
flags.DEFINE_string(
  "cache_dir",
  os.path.join(
    os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache"),
    "tff_superquantile",
  ),
  "Where converted data is kept for the next run.",
)
flags.DEFINE_float(
  "seconds_per_checkpoint", 30.0, "Least time between two checkpoints.", lower_bound=0.0
)

# Not a part of what a run computes: a run continues under other values of these.
INCIDENTAL = ("output_dir", "cache_dir", "seconds_per_checkpoint", "num_rounds")


def names() -> list[str]:
  """The names of the flags of a run."""
  return [flag.name for flag in flags.FLAGS.flags_by_module_dict()[__name__]]


def values() -> dict[str, Any]:
  """The values of the flags of a run, by name."""
  return {name: flags.FLAGS[name].value for name in names()}


def to_arguments(config: Mapping[str, Any]) -> list[str]:
  """Command-line arguments that give these values."""
  return [f"--{name}={value}" for name, value in config.items() if value is not None]


def is_private(config: Mapping[str, Any]) -> bool:
  """Whether all that the run releases of its training clients is differentially private."""
  return config["epsilon"] is not None or config["update_noise_multiplier"] is not None


def method_name(config: Mapping[str, Any]) -> str:
  """The folder of a run's method, from the flags as given."""
  if config["run_name"]:
    return config["run_name"]
  name = config["algorithm"]
  if name == "superquantile":
    name += f"_theta_{config['theta']:g}"
    if config["threshold"] not in (None, "exact"):
      name += f"_{config['threshold']}"
    if config["smoothing"]:
      name += f"_smoothing_{config['smoothing']:g}"
  if config["update_sum"] == "distributed":
    name += "_distributed"
  for flag, short in (
    ("epsilon", "epsilon"),
    ("threshold_noise_multiplier", "z"),
    ("update_noise_multiplier", "update_z"),
  ):
    if config[flag] is not None:
      name += f"_{short}_{config[flag]:g}"
  return name
