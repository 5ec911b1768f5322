"""The flags of the commands in `account`."""

from collections.abc import Mapping
from typing import Any

from privacy import accounting
from privacy import cohorts
from privacy import parts
from privacy import releases
from privacy.noise import shares
from privacy.settings import command_line

# The flags of numbers are NAME=METAVAR here, those of words and files NAME alone.
_WHOLE = ("num_rounds", "bands", "num_bins", "num_parameters", "participations")
_RUN = {
  "population=N": "n, the number of clients",
  "clients_per_round=M": "m, the (expected) size of a cohort",
  "num_rounds=T": "T, the number of rounds",
}
_DELTA = {"delta=X": "delta of the budget; by default the smaller of 1e-5 and n^-1.1"}
OF_RUN = tuple(name.partition("=")[0] for name in _RUN)  # Without these there is no run.
_RELEASE = {
  "sensitivity=D": "in place of clients and rounds: Delta, the largest norm of a client's part in"
  " all rounds of a matrix of one's own (tree aggregation, BLT); the run is one Gaussian mechanism",
  "sampling": "poisson: each client takes part with probability m / n; fixed_size: m clients"
  " without replacement; none: as if all took part in all rounds; cyclic: groups of at most m take"
  " turns, for all to know; spaced: at most m of those that waited for --separation rounds, for"
  " all to know; allocated: each client in one secret round of each block of n / m (rounded up)",
  "separation=X": "for spaced: s, the least distance of two rounds of a client",
  "bands=B": "for cyclic and spaced: the rounds over which noise is correlated, 1 for independent"
  " noise (default: the least distance of two rounds of a client)",
  "coefficients": "for cyclic and spaced, in place of --bands: c of noise of one's own (a Toeplitz"
  " matrix), c_0 = 1, with commas between them, or a file that has them",
  "relation": "neighbouring data sets: one client's data removed, or replaced by any other",
  "threshold": "the private threshold: a histogram (tree) or a one-bit count",
  "num_bins=B": "bins of the histogram, a power of two",
  "update_sum": "source of the updates' noise: the server, or the clients",
  "num_parameters=D": "d, numbers in an update, d + 1 if weighted by losses; for"
  " --update_sum=distributed",
  "noise_shares": "source of the noise that a cohort lacks, where clients make noise: the server"
  " (complement), other clients (helpers), or more clients than add data, by a coin of their own"
  " (private_coin)",
  "contacted_clients=K": "for --noise_shares=private_coin: the expected number of clients that a"
  " round contacts; M of them add data",
  "clip_norm=C": "C, the norm that a client's update is clipped to; it scales the noise that is"
  " shown, and costs nothing",
  "participations=K": "for epsilon against the server: the number of rounds in which a client takes"
  " part; by default so many that one client in a thousand takes part in more",
  "accounting": "the bound: that of privacy loss distributions (pld), that of Renyi divergences"
  " (rdp), or the smaller of both (tightest)",
}
for _name, _text in cohorts.own_flags().items():
  _RELEASE.setdefault(f"{_name}=X", _text)
# The words of flags, the first of them the default. It is no default of the parser, so that
# `meaning` tells what was passed; `asked` takes it where nothing was.
_CHOICES: dict[str, tuple[str, ...]] = {
  "sampling": tuple(cohorts.SAMPLINGS),
  "relation": releases.RELATIONS,
  "threshold": tuple(parts.private_kinds()),
  "update_sum": ("central", "distributed"),
  "noise_shares": shares.PROTOCOLS,
  "accounting": accounting.ACCOUNTANTS,
}
DEFAULTS = {name: words[0] for name, words in _CHOICES.items()}
_BUDGET = {
  "rho_ratio=R": "r, the budget of the threshold over that of the weights; inf for a threshold"
  " alone; by default there is no threshold, as in DP-FedAvg",
  "clip_rho_ratio=R": "the budget of the count by which a clip norm adapts over that of the updates"
  f" (runs take {parts.AdaptiveClip.usual_share:g}); by default the clip norm is fixed",
}
_NOISE = {
  "update_noise_multiplier=Z": "z_w, noise on the sum of updates over C",
  "threshold_noise_multiplier=Z": "z_q, noise of the threshold over its sensitivity",
  "clip_count_noise_multiplier=Z": "z_b, noise of the count by which a clip norm adapts over its"
  " sensitivity",
  "rho=R": "in place of noise: rho of a rho-zCDP mechanism, with --delta",
}


def _add(group: Any, texts: Mapping[str, str], required: bool = False) -> None:
  """Adds flags to a group."""
  for flag, text in texts.items():
    name, _, metavar = flag.partition("=")
    is_whole = name in (*_WHOLE, *cohorts.own_flags())
    kind = str if not metavar else int if is_whole else float
    words = _CHOICES.get(name, ())
    usual = f" (default: {words[0]})" if words else ""
    options: dict[str, Any] = dict(choices=words, metavar=metavar, required=required)
    command_line.add_flag(group, name, kind, None, text + usual, **options)


def run_flags(parser: command_line.Parser, required: bool = True) -> Any:
  """Adds the flags on clients, rounds and delta; returns their group."""
  group = parser.add_argument_group("the run")
  _add(group, _RUN, required)
  _add(group, _DELTA)
  return group


def _noise_flags(parser: command_line.Parser) -> None:
  _add(run_flags(parser, required=False), _RELEASE)
  noise = parser.add_argument_group("the noise of the weights, the threshold or both")
  _add(noise, _NOISE)


def define(parser: command_line.Parser) -> None:
  """Adds all commands to the parser."""
  commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

  def command(name: str, text: str) -> command_line.Parser:
    description = f"{text[0].upper()}{text[1:]}."
    subparser: command_line.Parser = commands.add_parser(name, help=text, description=description)
    command_line.add_flag(subparser, "json", bool, False, "print one JSON object")
    return subparser

  calibrate = command("calibrate", "finds the noise for a privacy budget")
  _add(run_flags(calibrate, required=False), _RELEASE)
  budget = calibrate.add_argument_group("the budget")
  _add(budget, {"epsilon=X": "of the whole run"}, required=True)
  _add(budget, _BUDGET)
  _noise_flags(command("spend", "finds the cost of a run"))
  together = command("compose", "finds the cost of several releases for one client of all of them")
  together.add_argument(
    "ledgers",
    metavar="LEDGER",
    nargs="*",
    help="folders that have private runs, with the evaluations beside these, or their privacy.json",
  )
  together.add_argument(
    "--run",
    action="append",
    metavar="FLAGS",
    help="one release, by the flags of spend on its rounds and noise, and --times=K",
  )
  largest = (
    "delta of all together, in place of those within --run; by default the largest of the releases'"
  )
  command_line.add_flag(together, "delta", float, None, largest)
  claim = command("audit", "checks the claims of runs, and what one client loses by all of them")
  claim.add_argument(
    "folders",
    metavar="FOLDER",
    nargs="+",
    help="of a run (with privacy.json, rounds.csv, flags.txt), or one that has several below it",
  )


def release_parser() -> command_line.Parser:
  """Makes the parser of one release of `compose`."""
  parser = command_line.Parser(prog="--run", arguments=())
  _noise_flags(parser)
  text = "how often it is released (default: 1)"
  command_line.add_flag(parser, "times", int, None, text, metavar="K")
  return parser
