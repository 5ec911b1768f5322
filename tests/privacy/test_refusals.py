"""Numbers out of range, and flags that are no numbers or words, are refused by a sentence."""

import argparse
import contextlib
import functools

from helpers import flat
from helpers import ranges
import pytest

from privacy import account
from privacy import accounting
from privacy import cohorts
from privacy import releases
from privacy import server
from privacy import together
from privacy.command import flags
from privacy.evaluation import query
from privacy.noise import banded
from privacy.noise import shares
from privacy.noise import sum_mechanism
from privacy.noise import tree_mechanism
from privacy.settings import command_line

_RELEASE = flat.release(2500, 100, 3.0, 2.0)
_ROUNDS = ranges.whole(0, 10)
_ACCOUNT = dict(delta=ranges.FRACTION.at(1e-5), accountant=ranges.choice(*accounting.ACCOUNTANTS))
_RUN = dict(
  population=ranges.Range(2500, (0, -1, 10.5, 1e300, 10**400)),
  clients_per_round=ranges.Range(100, (0, -1, 2501, *ranges.NOT_FINITE)),
  sampling=ranges.choice("poisson", "fixed_size"),
  threshold_kind=ranges.choice("tree", "geometric"),
  relation=ranges.choice(*releases.RELATIONS),
  protocol=ranges.choice(*shares.PROTOCOLS),
)
_NOISE = ranges.Range(2.0, (*ranges.SCALE.wrong, "much"))
_CALLS = (
  (
    flat.release,
    dict(_RUN, threshold_noise_multiplier=_NOISE, update_noise_multiplier=_NOISE),
  ),
  (functools.partial(cohorts.of, "poisson"), dict(population=_RUN["population"], expected=100)),
  (accounting.Accountant, dict(_ACCOUNT, release=_RELEASE)),
  (accounting.epsilon, dict(_ACCOUNT, release=_RELEASE, num_rounds=_ROUNDS)),
  (
    accounting.Accountant(_RELEASE, 1e-5).epsilon_at_most,
    dict(num_rounds=_ROUNDS, num_rounds_planned=5),
  ),
  (accounting.default_delta, dict(population=ranges.whole(1))),
  (
    flat.calibrate,
    dict(
      _RUN | _ACCOUNT,
      threshold_kind="tree",
      epsilon=ranges.POSITIVE.at(3.0),
      num_rounds=ranges.whole(1, 10),
      rho_ratio=ranges.Range(1.0, (-1.0, -float("inf"))),
    ),
  ),
  (flat.split_noise, dict(z=ranges.POSITIVE.named("noise"), rho_ratio=1.0)),
  (
    server.server_epsilon,
    dict(
      release=_RELEASE,
      num_rounds=_ROUNDS,
      delta=_ACCOUNT["delta"],
      participations=ranges.Range(5, (-1, 2.5, 11)),
    ),
  ),
  (together.Repeated, dict(release=_RELEASE, num_rounds=_ROUNDS)),
  (
    query.Query,
    dict(
      num_clients=ranges.whole(1, 9),
      epsilon=ranges.POSITIVE,
      delta=ranges.FRACTION.at(1e-5),
      lower=ranges.NUMBER.at(0.0),
      upper=ranges.NUMBER,
    ),
  ),
  (
    sum_mechanism.build_sum_mechanism,
    dict(
      noise_multiplier=ranges.SCALE,
      clip_norm=ranges.SCALE,
      num_entries=ranges.whole(1, 10),
      num_shares=ranges.whole(1, 9),
    ),
  ),
  (
    tree_mechanism.build_tree_mechanism,
    dict(
      noise_multiplier=ranges.SCALE.at(2.0),
      num_bins=ranges.Range(64, (0, 1, 48, 8.5, 2**17)),
      expected_clients=ranges.Range(100, (0, -1)),
      num_shares=ranges.Range(100, (99, 0)),
    ),
  ),
  (
    banded.Participation,
    dict(
      num_rounds=ranges.whole(1, 20), separation=ranges.whole(1), most=ranges.whole(1).named("part")
    ),
  ),
)


@pytest.mark.parametrize("build,arguments,name", ranges.of_calls(*_CALLS))
def test_numbers_out_of_range_are_refused(build, arguments, name):
  build(**ranges.good(arguments))
  ranges.assert_refused(build, arguments, name)


def _flags_of_commands():
  """(command, flag, text that it does not take) for each flag that the commands declare."""
  flags.define(parser := command_line.Parser())
  (commands,) = (a for a in parser._actions if isinstance(a.choices, dict))
  for command, parser in commands.choices.items():
    for action in parser._actions:
      with contextlib.suppress(argparse.ArgumentTypeError):
        if action.type is None or action.type("x") and not action.choices:
          continue  # Any text is one.
      yield pytest.param(command, action.option_strings[0], "no such")


@pytest.mark.parametrize("command,flag,text", _flags_of_commands())
def test_flags_of_another_kind_are_refused(capsys, command, flag, text):
  assert account.run([command, f"{flag}={text}"]) == account.USAGE_ERROR
  printed = capsys.readouterr()
  assert printed.out == "" and printed.err.startswith(f"Error: Found {flag}={text}; expected ")
  assert printed.err.count("\n") == 1
