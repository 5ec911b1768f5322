"""The flags of a run. Importing this module starts no TensorFlow, so `--help` answers at once."""

from collections.abc import Mapping
from typing import Any

from absl import flags

from tff_superquantile import user_cache
from tff_superquantile.experiments import method_names

_TASK_DEFAULT = "None for the task's own"

flags.DEFINE_string(
  "task",
  "synthetic",
  "What to learn: synthetic, emnist_linear, emnist_convnet, sent140_linear, sent140_lstm.",
)
flags.DEFINE_enum(
  "data",
  "files",
  ["files", "standin"],
  "The task's own data, or a generated stand-in of the same shape, to try things out.",
)
flags.DEFINE_enum("algorithm", "superquantile", list(method_names.ALGORITHMS), "How to learn it.")
flags.DEFINE_float(
  "theta",
  0.5,
  "Tail fraction in (0, 1], for superquantile: 1 averages everybody. For fed_avg_sub: the fraction"
  " of each cohort that trains, drawn at random.",
)
flags.DEFINE_integer(
  "wanted_updates",
  None,
  "For superquantile, in place of --theta: how many clients are to train in a round, whoever turns"
  " up; theta follows within --min_theta and --max_theta.",
  lower_bound=1,
)
flags.DEFINE_float("min_theta", 0.1, "Least tail fraction of --wanted_updates.")
flags.DEFINE_float("max_theta", 1.0, "Largest tail fraction of --wanted_updates.")
flags.DEFINE_float("proximal_weight", None, "mu of fed_prox: mu / 2 |w - w0|^2 at each client.")
flags.DEFINE_float("q", None, "Exponent of q_fed_avg (q-FFL); 10 stands for AFL in the paper.")
flags.DEFINE_float("temperature", None, "t of tilted_erm: weights proportional to exp(t loss).")
flags.DEFINE_float(
  "moving_average_rate",
  None,
  "Of tilted_erm: normalises by a moving average over rounds, as its authors do; None for each"
  " round by itself, which is stable.",
)
flags.DEFINE_float("ascent_rate", None, "Step size on the client weights of agnostic_fed_avg.")
flags.DEFINE_enum(
  "threshold",
  None,
  ["exact", "reweighting", *method_names.PRIVATE_THRESHOLDS],
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
  "Of the budget, what the threshold spends over what the updates spend; None for the ratio with"
  " the least modelled error.",
)
flags.DEFINE_enum(
  "accounting",
  "tightest",
  ["tightest", "pld", "rdp"],
  "Whose bound on --epsilon: privacy loss distributions', Renyi divergences', or the smaller one.",
)
flags.DEFINE_enum(
  "relation",
  "zero_out",
  ["zero_out", "replace_one"],
  "Which data a private run hides: one client's, removed or replaced by any other.",
)
flags.DEFINE_string(
  "noise_key_file",
  "",
  "Of a private run that is to be repeated: a file with 32 hexadecimal digits, from which cohorts"
  " and noise follow, to be kept secret and used for one run only; empty to draw a key, which is"
  " kept in checkpoints/noise_key.",
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
  "noise_shares",
  "complement",
  ["complement", "helpers", "private_coin"],
  "Where clients make the noise, who makes what a cohort lacks: the server; other clients, who send"
  " no data; or more clients than add data (--contacted_clients), each by a coin of its own, which"
  " protects from the server, too.",
)
flags.DEFINE_integer(
  "contacted_clients",
  None,
  "Of --noise_shares=private_coin: how many clients a round is expected to contact, of whom"
  " --clients_per_round add data.",
  lower_bound=1,
)
flags.DEFINE_enum(
  "sampling",
  None,
  ["fixed_size", "poisson", "diurnal"],
  "Cohorts of exactly --clients_per_round; of each client by itself with the same chance; or with a"
  " chance that follows the hour where it lives. None for fixed_size, or in a private run poisson.",
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
flags.DEFINE_integer(
  "seed",
  0,
  "Of clients, cohorts, batches and initial weights. No secret: cohorts and noise of a private run"
  " come from a key.",
  lower_bound=0,
)
flags.DEFINE_string(
  "data_dir",
  "",
  "EMNIST: LEAF's directory with train/ and test/, or TFF's emnist_all.sqlite or .sqlite.lzma;"
  " empty to let TFF download it. Sent140: LEAF's directory, or Stanford's CSV.",
)
flags.DEFINE_string(
  "glove",
  "",
  "Sent140: GloVe's file of word vectors; empty for glove.6B.50d.txt in --data_dir.",
)
flags.DEFINE_integer(
  "min_examples_per_client",
  0,
  "Clients with fewer examples are dropped; 0 for the task's own number.",
  lower_bound=0,
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
flags.DEFINE_enum(
  "engine",
  "auto",
  ["auto", "in_process", "native"],
  "What computes a round: in this process the whole cohort at once, or TFF's C++ runtime; auto"
  " takes the first wherever it can.",
)
flags.DEFINE_string("run_name", "", "Folder of the method; empty to name it by its flags.")
flags.DEFINE_string("output_dir", "results", "Where OUTPUT_DIR/TASK/METHOD/seed_S/ is written.")
flags.DEFINE_string(
  "cache_dir",
  user_cache.default_dir(),
  "Where converted data is kept for the next run.",
)
flags.DEFINE_float(
  "seconds_per_checkpoint", 30.0, "Least time between two checkpoints.", lower_bound=0.0
)

# Not a part of what a run computes: a run continues under other values of these.
INCIDENTAL = (
  "output_dir",
  "cache_dir",
  "seconds_per_checkpoint",
  "num_rounds",
  "rounds_per_evaluation",
  "noise_key_file",
)


def names() -> list[str]:
  """The names of the flags of a run."""
  return [flag.name for flag in flags.FLAGS.flags_by_module_dict()[__name__]]


def values() -> dict[str, Any]:
  """The values of the flags of a run, by name."""
  return {name: flags.FLAGS[name].value for name in names()}


def to_arguments(config: Mapping[str, Any]) -> list[str]:
  """Command-line arguments that give these values."""
  return [f"--{name}={value}" for name, value in config.items() if value is not None]


def from_strings(found: Mapping[str, str]) -> dict[str, Any]:
  """The values of a run's flags from their texts, as its flags.txt holds them, or the defaults."""
  return {
    name: flags.FLAGS[name].parser.parse(found[name])
    if name in found
    else flags.FLAGS[name].default
    for name in names()
  }


def is_private(config: Mapping[str, Any]) -> bool:
  """Whether all that the run releases of its training clients is differentially private."""
  return config["epsilon"] is not None or config["update_noise_multiplier"] is not None
