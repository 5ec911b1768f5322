"""The accountant's flags: each counts in its answer or is refused, whatever its value is."""

import itertools
import json
import random
import warnings

import pytest

from privacy import account
from privacy.command import flags
from privacy.command import meaning
from privacy.settings import command_line

_RUN = ("--population=40", "--clients_per_round=4", "--num_rounds=6")
_NOISE = ("--update_noise_multiplier=3",)
_TREE = ("--threshold_noise_multiplier=4", "--num_bins=4")
_COIN = ("--noise_shares=private_coin", "--contacted_clients=8")
_CLIENTS = ("--update_sum=distributed", "--num_parameters=9")
_CYCLIC = ("--sampling=cyclic",)
_SPACED = ("--sampling=spaced", "--separation=5")
# A question of each way, and one that flags are added to where they count beside others alone.
_ASKED = {
  ("spend", ""): ("spend", *_RUN, *_NOISE),
  ("spend", "rho"): ("spend", "--rho=0.5", "--population=40"),
  ("spend", "sensitivity"): (
    "spend",
    "--sensitivity=2",
    "--update_noise_multiplier=3",
    "--population=40",
  ),
  ("calibrate", ""): ("calibrate", "--epsilon=2", *_RUN),
  ("calibrate", "sensitivity"): ("calibrate", "--sensitivity=2", "--epsilon=2", "--population=40"),
  ("--run", ""): (*_RUN, *_NOISE),
}
# What to add to a question so that a flag counts, and two values that it counts with.
_COUNTS = {
  "accounting": ((), "pld", "rdp"),
  "bands": (_CYCLIC, "1", "2"),
  "clients_per_round": ((), "4", "8"),
  "clip_count_noise_multiplier": (_NOISE, "5", "6"),
  "clip_norm": ((), "1", "2"),
  "clip_rho_ratio": ((), "0.1", "0.2"),
  "coefficients": (_CYCLIC, "1", "1,0.5"),
  "contacted_clients": ((*_CLIENTS, *_COIN), "8", "16"),
  "delta": ((), "1e-5", "1e-3"),
  "epsilon": ((), "1", "3"),
  "noise_shares": (_CLIENTS, "complement", "helpers"),
  "num_bins": (_TREE, "4", "8"),
  "num_parameters": (_CLIENTS, "9", "12"),
  "num_rounds": ((), "5", "7"),
  "participations": (_CLIENTS, "1", "2"),
  "population": ((), "50", "90000"),
  "relation": ((), "zero_out", "replace_one"),
  "rho": ((), "0.5", "0.6"),
  "rho_ratio": ((), "0.1", "0.2"),
  "sampling": ((), "poisson", "none"),
  "sensitivity": ((), "2", "3"),
  "separation": (_SPACED, "5", "3"),
  "threshold": (("--threshold_noise_multiplier=4",), "geometric", "tree"),
  "threshold_noise_multiplier": ((), "3", "4"),
  "times": ((), "1", "2"),
  "update_noise_multiplier": ((), "3", "4"),
  "update_sum": ((), "central", "distributed"),
}
_BUDGETS = {"--threshold_noise_multiplier=4": "--rho_ratio=0.1"}
_BAD = (
  *("nan", "inf", "-inf", "1e400", "1e-320", "1e-5", "0.9999999", "0", "-1", "-0.0", "0.5", "2"),
  *(
    "",
    " ",
    "１２",
    "9" * 400,
    "9" * 5000,
    "1e308",
    "1e9",
    "1e-9",
    "'",
    '"',
    "\\",
    "x\ny",
    "1,0.5",
  ),
  *("--epsilon=1", "tree", "cyclic", "/dev/null", "/", "/nowhere", "./binary", "./private", "."),
)


@pytest.fixture(autouse=True)
def files(monkeypatch, tmp_path):
  (tmp_path / "binary").write_bytes(bytes(range(256)) * 40)
  (tmp_path / "private").write_text("secret words\nof a file\n" * 9)
  monkeypatch.chdir(tmp_path)


def _answer(capsys, argv):
  """Returns the answer to a command; None for one sentence and 2, and nothing else passes."""
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    code = account.run([*argv, "--json"])
  printed = capsys.readouterr()
  if code == account.USAGE_ERROR:
    assert printed.out == "" and printed.err.count("\n") == 1, printed.err
    assert printed.err.startswith("Error: Found ") and "expected" in printed.err, printed.err
    assert "secret words" not in printed.err and len(printed.err) < 1500
    return None
  assert code == account.SUCCESS and printed.err == ""

  def refuse(name):
    raise AssertionError((argv, name))  # NaN and Infinity are not JSON.

  return json.loads(printed.out, parse_constant=refuse)


def _last(argv):
  """Returns each flag of a command once, with its last value."""
  return list({text.partition("=")[0]: text for text in argv}.values())


def _ask(capsys, of, argv):
  """Asks in one of the ways; that of a release is asked of `compose`."""
  if of[0] == "--run":
    argv = ["compose", "--run=" + " ".join(argv)]
  return _answer(capsys, argv)


def _parsers():
  """Returns the parser of each command by its name."""
  parser = command_line.Parser(prog="x", arguments=())
  account.define(parser)
  (commands,) = (action for action in parser._actions if action.dest == "command")
  return {**commands.choices, "--run": flags.release_parser()}


def _names(parser):
  return {action.dest for action in parser._actions} - {"help", "json"}


def _added(command, flag):
  """Returns what makes a flag count, in a command's own words."""
  added, first, second = _COUNTS[flag]
  if command == "calibrate":
    added = [_BUDGETS.get(text, text) for text in added if text not in _NOISE]
  if flag == "update_sum":
    first, second = [f"{first}"], [f"{second}", "--num_parameters=9"]
    return added, first, second
  return added, [first], [second]


def test_each_flag_of_a_command_stands_in_a_list_of_it_and_no_other_does():
  parsers = _parsers()
  assert set(parsers) == {command for command, _ in meaning.COUNTED}
  for command, parser in parsers.items():
    lists = [names for (of, _), names in meaning.COUNTED.items() if of == command]
    assert all(len(names) == len(set(names)) for names in lists)
    listed = set().union(*lists)
    assert listed <= _names(parser)
    # A release of `compose` is told by the flags of `spend`, some of which only `spend` shows.
    others = _names(parser) - listed
    assert others == (
      {"rho", "sensitivity", "clip_norm", "participations"} if command == "--run" else set()
    )


@pytest.mark.parametrize(
  "of",
  # Most flags of runs are among those of a release, whose answers are the quickest.
  [pytest.param(of, marks=[pytest.mark.slow] * (of[0] != "--run" and not of[1])) for of in _ASKED],
  ids="-".join,
)
def test_each_flag_that_counts_changes_the_answer(capsys, of):
  for flag in meaning.COUNTED[of]:
    added, first, second = _added(of[0], flag)
    answers = [
      _ask(capsys, of, _last([*_ASKED[of], *added, f"--{flag}={value}", *more]))
      for value, *more in (first, second)
    ]
    assert None not in answers and answers[0] != answers[1], flag


@pytest.mark.parametrize("of", _ASKED, ids="-".join)
def test_each_flag_that_does_not_count_is_refused(capsys, of):
  asked = _ASKED[of]
  for flag in _names(_parsers()[of[0]]) - set(meaning.COUNTED[of]):
    value = _COUNTS[flag][1]
    argv = [*asked, f"--{flag}={value}"]
    assert _ask(capsys, of, argv) is None, flag
  for flag in meaning._ABOUT if not of[1] else ():
    # Without what it is about.
    argv = ["spend", *_RUN, "--threshold_noise_multiplier=4", "--threshold=geometric"]
    argv = argv if flag in ("update_sum", "clip_norm") else [*asked]
    assert _ask(capsys, ("spend", ""), [*argv, f"--{flag}={_COUNTS[flag][1]}"][-99:]) is None, flag


def test_a_new_flag_is_refused(capsys, monkeypatch):
  monkeypatch.setitem(flags._RELEASE, "novelty=X", "new")
  for of in _ASKED:
    assert _ask(capsys, of, _ASKED[of]) is not None
    assert _ask(capsys, of, [*_ASKED[of], "--novelty=1"]) is None


def _with(of, **values):
  """Returns a question with values of flags, and with what these are about."""
  given = [*_ASKED[of], *(text for flag in values for text in _added(of[0], flag)[0])]
  return _last([*given, *(f"--{flag}={value}" for flag, value in values.items())])


def _cases():
  return [(of, flag, bad) for of in _ASKED for flag in meaning.COUNTED[of] for bad in _BAD]


def test_a_value_of_a_flag_has_an_answer_or_a_sentence(capsys):
  for of, flag, bad in random.Random(0).sample(_cases(), 250):
    if of != ("calibrate", ""):
      _ask(capsys, of, _with(of, **{flag: bad}))
  for sensitivity, z in (("1e9", "1e-9"), ("1e-9", "1e9"), ("1", "1e-9")):
    values = dict(sensitivity=sensitivity, update_noise_multiplier=z)
    _ask(capsys, ("spend", "sensitivity"), _with(("spend", "sensitivity"), **values))


@pytest.mark.slow
def test_any_value_of_any_flag_has_an_answer_or_a_sentence(capsys):
  for of, flag, bad in _cases():
    _ask(capsys, of, _with(of, **{flag: bad}))


@pytest.mark.slow
def test_pairs_of_flags_have_an_answer_or_a_sentence(capsys):
  chosen = random.Random(1)
  for of, names in ((of, meaning.COUNTED[of]) for of in _ASKED):
    for pair in itertools.combinations(names, 2):
      values = (*_COUNTS[pair[0]][1:], chosen.choice(_BAD)), (*_COUNTS[pair[1]][1:], "1e-9", "1e9")
      _ask(capsys, of, _with(of, **{flag: chosen.choice(of) for flag, of in zip(pair, values)}))


@pytest.mark.parametrize("command", ["compose", "audit"])
def test_paths_of_all_kinds_have_a_sentence(capsys, tmp_path, command):
  (tmp_path / "privacy.json").mkdir()
  for path in (
    "binary",
    "private",
    "binary/x",
    "nowhere",
    "/dev/null",
    "",
    "x" * 5000,
    ".",
  ):
    assert _answer(capsys, [command, path]) is None, path
