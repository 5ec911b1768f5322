"""Which flags mean something: one list for each way to ask a command, and nothing else counts.

An answer is about the flags that it counts. One that was passed and that no list below has for the
way in which a command is asked is refused, so that nobody takes an answer for one that includes it;
so is a flag of a list without what it is about, such as bins without a histogram. A new flag is
refused until it stands here.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
import math
from typing import Any

from privacy import cohorts
from privacy import parts
from privacy.command import flags
from privacy.noise import shares
from privacy.settings import command_line

_RUN = "--run"  # The way of a release of `compose`, whose flags are in a text.
# What is no flag of a question: who asks, and how an answer is printed.
_NO_FLAGS = ("command", "json")

_OF_DELTA = ("delta", "population")
_OF_ROUNDS = (
  *flags.OF_RUN,
  "delta",
  "sampling",
  *cohorts.own_flags(),
  "bands",
  "coefficients",
  "relation",
  "threshold",
  "num_bins",
  "update_sum",
  "num_parameters",
  "noise_shares",
  "contacted_clients",
  "accounting",
)
_OF_NOISE = tuple(kind.flag for kind in parts.kinds())
_OF_BUDGET = ("epsilon", *(kind.share_flag for kind in parts.kinds() if kind.share_flag))
# They are about what `spend` and `calibrate` show beside epsilon.
_SHOWN = ("clip_norm", "participations")

# The flags that count, by the command and by the flag in whose way it is asked; "" for rounds.
COUNTED: dict[tuple[str, str], tuple[str, ...]] = {
  ("spend", ""): (*_OF_ROUNDS, *_OF_NOISE, *_SHOWN),
  ("spend", "rho"): ("rho", *_OF_DELTA),
  ("spend", "sensitivity"): ("sensitivity", parts.UpdateSum.flag, *_OF_DELTA),
  ("calibrate", ""): (*_OF_ROUNDS, *_OF_BUDGET, *_SHOWN),
  ("calibrate", "sensitivity"): ("sensitivity", "epsilon", *_OF_DELTA),
  (_RUN, ""): (*_OF_ROUNDS, *_OF_NOISE, "times"),
  ("compose", ""): ("ledgers", "run", "delta"),
  ("audit", ""): ("folders",),
}
# What to do in the place of a way that a release of `compose` has not.
_NO_RELEASE = (
  " expected the rounds of a run, whose neighbouring data sets are known. Mechanisms of zCDP for"
  " the same neighbouring data sets compose by the sum of their rho (with --sensitivity D and noise"
  " z it is D^2 / (2 z^2)): ask spend --rho for it."
)

_Values = Mapping[str, Any]


def _has_threshold(values: _Values) -> bool:
  """Returns whether a threshold with noise is asked for; a share of 0 is none."""
  kind = parts.PrivateThreshold
  return values.get(kind.flag) is not None or bool(values.get(kind.share_flag))


def _has_updates(values: _Values) -> bool:
  """Returns whether a sum of updates is asked for: `calibrate` leaves it out for one ratio."""
  if "epsilon" in values:
    return bool(values.get(parts.PrivateThreshold.share_flag) != math.inf)
  return values.get(parts.UpdateSum.flag) is not None


def _has_tree(values: _Values) -> bool:
  return _has_threshold(values) and bool(values["threshold"] == parts.Tree.kind)


def _is_distributed(values: _Values) -> bool:
  return bool(values["update_sum"] == "distributed")


def _is_known(values: _Values) -> bool:
  return cohorts.SAMPLINGS[values["sampling"]].is_one_mechanism


def _server_is_shown_noise(values: _Values) -> bool:
  """Returns whether epsilon against the server is a number: see `privacy.server`."""
  return _has_tree(values) or _is_distributed(values) and not _has_threshold(values)


_UPDATES = "a sum of updates, which update_noise_multiplier or a budget asks for"
# What a flag is about, where that is not there in each run of rounds, in words.
_ABOUT: dict[str, tuple[str, Callable[[_Values], bool]]] = {
  "threshold": ("a threshold that has noise or a budget", _has_threshold),
  "num_bins": ("a tree threshold that has noise or a budget", _has_tree),
  "update_sum": (_UPDATES, _has_updates),
  "clip_norm": (_UPDATES, _has_updates),
  "num_parameters": ("--update_sum=distributed", _is_distributed),
  "noise_shares": (
    "noise that clients make, by a tree threshold or --update_sum=distributed",
    lambda values: _has_tree(values) or _is_distributed(values),
  ),
  "contacted_clients": (
    f"--noise_shares={shares.PRIVATE_COIN}",
    lambda values: values["noise_shares"] == shares.PRIVATE_COIN,
  ),
  "bands": (f"--sampling={cohorts.of_one_mechanism()}", _is_known),
  "coefficients": (f"--sampling={cohorts.of_one_mechanism()}", _is_known),
  "participations": ("an epsilon against the server, who is trusted here", _server_is_shown_noise),
}


def passed(args: argparse.Namespace) -> dict[str, Any]:
  """Returns the flags that were passed, by name, with their values."""
  values = vars(args).items()
  return {name: v for name, v in values if name not in _NO_FLAGS and v is not None and v != []}


def way(args: argparse.Namespace) -> str:
  """Returns the flag in whose way a command is asked; "" for that of rounds."""
  return next((name for name in ("rho", "sensitivity") if name in passed(args)), "")


def checked(args: argparse.Namespace, command: str = _RUN) -> argparse.Namespace:
  """Returns flags with the defaults of those not passed; a `ValueError` for one that counts not."""
  values, by = passed(args), way(args)
  counted = COUNTED.get((command, by))
  where = f"in {_RUN}" if command == _RUN else f"with {command}"
  if counted is None:
    raise ValueError(f"Found --{by}={command_line.shown(values[by])} {where};{_NO_RELEASE}")
  where = f"with --{by}" if by else where
  for name, value in values.items():
    if name not in counted:
      raise ValueError(
        f"Found --{name}={command_line.shown(value)} {where}, where it counts for nothing; expected"
        f" no others than {', '.join(f'--{other}' for other in counted)}."
      )
  filled = argparse.Namespace(**vars(args))
  for name, default in flags.DEFAULTS.items() if command != "compose" else ():
    if hasattr(args, name) and name not in values:
      setattr(filled, name, default)
  for name, value in values.items() if not by else ():
    about, is_there = _ABOUT.get(name, ("", None))
    if is_there is not None and not is_there(vars(filled)):
      found = f"--{name}={command_line.shown(value)}"
      raise ValueError(f"Found {found} without {about}; expected both or neither.")
  return filled
