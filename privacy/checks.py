"""Checks arguments; each check returns the number as a Python number."""

import math
import numbers
import reprlib
from typing import Any

# float32, whose range is 1e-38 to 3e38, holds the products and squares of such numbers.
LEAST_SCALE, MOST_SCALE = 1e-9, 1e9
# Double precision does not tell larger whole numbers apart.
_MOST_WHOLE = 2**53


def of_type(name: str, value: Any, types: Any, expected: str) -> None:
  """Raises a TypeError unless `value` is of one of `types`; `expected` says which in words."""
  if isinstance(value, bool) or not isinstance(value, types):
    actual = f"{name} = {reprlib.repr(value)}, of type {type(value).__name__}"
    raise TypeError(f"Found {actual}; expected {expected}.")


def number(name: str, value: Any) -> float:
  """Returns any kind of real scalar as a finite Python float, or raises a ValueError."""
  # dp_accounting silently drops mechanisms whose noise multiplier is an int, a NumPy scalar or a
  # tensor when they are composed below a sampling event. So only floats may get that far.
  try:
    if isinstance(value, bool):
      raise TypeError
    plain = float(value)
  except (TypeError, ValueError, OverflowError):
    raise ValueError(f"Found {name} = {value!r}; expected a number.") from None
  if not math.isfinite(plain):
    raise ValueError(f"Found {name} = {plain}; expected a finite number.")
  return plain


def positive(name: str, value: Any) -> float:
  """Returns a positive, finite number as a Python float, or raises a ValueError."""
  plain = float(value)
  if not 0.0 < plain < math.inf:
    raise ValueError(f"Found {name} = {plain}; expected a positive number.")
  return plain


def scale(name: str, value: Any) -> float:
  """Returns a number from `LEAST_SCALE` to `MOST_SCALE`, or raises a ValueError."""
  plain = positive(name, value)
  if not LEAST_SCALE <= plain <= MOST_SCALE:
    raise ValueError(
      f"Found {name} = {plain:g}; expected a number from {LEAST_SCALE:g} to {MOST_SCALE:g}."
    )
  return plain


def not_negative(name: str, value: Any) -> float:
  """Returns a number from 0 to `MOST_SCALE`, or raises a TypeError or a ValueError."""
  of_type(name, value, numbers.Real, "a number")
  if not 0.0 <= value <= MOST_SCALE:  # This refuses NaN, too.
    raise ValueError(f"Found {name} = {value}; expected a number from 0 to {MOST_SCALE:g}.")
  return float(value)


def fraction(name: str, value: Any) -> float:
  """Returns a number in (0, 1), or raises a ValueError."""
  plain = number(name, value)
  if not 0.0 < plain < 1.0:
    raise ValueError(f"Found {name} = {plain:g}; expected a number between 0 and 1, both excluded.")
  return plain


def whole(name: str, value: Any, least: int) -> int:
  """Returns a whole number from `least` to 2^53 as a Python int, or raises a ValueError."""
  plain = number(name, value)
  if plain != int(plain) or plain < least:
    raise ValueError(f"Found {name} = {plain:g}; expected a whole number of at least {least}.")
  if plain > _MOST_WHOLE:
    raise ValueError(f"Found {name} = {plain:g}; expected at most 2^53.")
  return int(plain)


def one_of(name: str, value: str, choices: tuple[str, ...]) -> str:
  """Returns `value` if it is one of `choices`, or raises a ValueError."""
  if value not in choices:
    raise ValueError(f"Found {name} = {value!r}; expected one of {', '.join(choices)}.")
  return value
