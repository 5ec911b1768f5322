"""Ranges of arguments: a value within each, and those outside that a call must refuse."""

from collections.abc import Callable, Iterator, Mapping
import dataclasses
import math
import re
from typing import Any

import pytest

NOT_FINITE = (math.nan, math.inf, -math.inf)
NO_NUMBERS = ("1", None, True)


@dataclasses.dataclass(frozen=True)
class Range:
  """The range of an argument.

  Attributes:
    good: A value within it.
    wrong: Values that are not.
    called: The argument's name in the refusal; "" for its own.
  """

  good: Any
  wrong: tuple[Any, ...]
  called: str = ""

  def named(self, name: str) -> "Range":
    return dataclasses.replace(self, called=name)

  def at(self, good: Any) -> "Range":
    return dataclasses.replace(self, good=good)

  def typed(self) -> "Range":
    """The range of an argument that refuses other types by a sentence, too."""
    return dataclasses.replace(self, wrong=(*self.wrong, *NO_NUMBERS))


NUMBER = Range(1.0, NOT_FINITE)
POSITIVE = Range(1.0, (0.0, -1.0, *NOT_FINITE))
SCALE = Range(1.0, (*POSITIVE.wrong, 1e-300, 1e300))
NOT_NEGATIVE = Range(1.0, (-1.0, -1e-9, *NOT_FINITE)).typed()
FRACTION = Range(0.5, (0.0, 1.0, -0.5, 1.5, *NOT_FINITE))
THETA = Range(0.5, (0.0, 1.5, -0.5, *NOT_FINITE)).typed()


def whole(least: int, good: int | None = None) -> Range:
  return Range(least if good is None else good, (least - 1, least + 0.5, *NOT_FINITE))


def choice(*good: str) -> Range:
  return Range(good[0], ("", "no such", f"{good[0]} "))


# A call, and its arguments: each is a range or a value.
Call = tuple[Callable[..., Any], Mapping[str, Any]]


def good(arguments: Mapping[str, Any]) -> dict[str, Any]:
  return {name: r.good if isinstance(r, Range) else r for name, r in arguments.items()}


def of_calls(*calls: Call) -> Iterator[Any]:
  """The arguments of `assert_refused` for each range of each call, with ids."""
  for build, arguments in calls:
    for name, r in arguments.items():
      if isinstance(r, Range):
        of_call = getattr(build, "func", build).__qualname__
        yield pytest.param(build, arguments, name, id=f"{of_call}-{name}")


def assert_refused(build: Callable[..., Any], arguments: Mapping[str, Any], name: str) -> None:
  """Asserts that each value outside an argument's range is refused by a sentence that names it."""
  for wrong in arguments[name].wrong:
    named = re.escape(arguments[name].called or name)
    with pytest.raises((TypeError, ValueError), match=f"^Found .*{named}"):
      build(**{**good(arguments), name: wrong})
      raise AssertionError(f"{name} = {wrong!r} was taken")
